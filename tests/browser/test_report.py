"""The report in a real browser: sorting, themes, small screens, and no network requests."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import multitudes as mt
from multitudes.prediction.prediction import Prediction
from multitudes.report import report
from multitudes.report.row import Row

pytestmark = pytest.mark.slow
EVIL = "<script>document.title='gone'</script><img src=x onerror=\"document.title='gone'\"> & \"'ü漢"
LONG = "a-name-without-end-" * 12
NAMES = ["single", "packed", "deep", EVIL, LONG, *(f"method {index}" for index in range(7))]


def made(name: str, index: int) -> Row:
    """Returns a row with every field set; its accuracy falls with its index."""
    generator = torch.Generator().manual_seed(index)
    targets = torch.arange(120) % 4
    noise = torch.randn(3, 120, 4, generator=generator) * (1 + 0.25 * index)
    pred = Prediction(logits=4 * torch.nn.functional.one_hot(targets, 4) + noise, targets=targets)
    ood = Prediction(logits=torch.randn(3, 80, 4, generator=generator))
    return Row(
        name=name, method="Single()" if name == "single" else f"Method({name!r})",
        scores=mt.score(pred, ood={"svhn": ood}, shift={"fog": dict.fromkeys(range(1, 6), pred)}, intervals=20),
        prediction=pred, ood={EVIL: ood}, variants={"best epoch": mt.score(pred), "calibrated": mt.score(pred)},
        cost={"parameters": 1e6 * (1 + index), "multiply_adds": 1e9 + index, "latency": 0.01},
        settings={"data": "made up", "network": EVIL, "recipe": {"epochs": 3, EVIL: EVIL}}, command=f"multitudes {EVIL}",
        seconds=61.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    rows = [made(name, index) for index, name in enumerate(NAMES)]
    images, classes = torch.rand(120, 3, 16, 16), ["cat", "dog", EVIL, LONG]
    return report(
        rows, tmp_path_factory.mktemp("report") / "page.html", title=f"A title {EVIL}", images=images, classes=classes
    )


@pytest.fixture
def events() -> list[str]:
    """Console messages, errors and requests of the page."""
    return []


@pytest.fixture(params=[(1280, "light"), (1000, "light"), (380, "dark")], ids=["desktop", "laptop", "phone"])
def opened(request: pytest.FixtureRequest, browser: Any, file: Path, events: list[str]) -> Iterator[Any]:
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda message: events.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: events.append(f"error: {error}"))
    page.on("request", lambda sent: events.append(f"request: {sent.url}") if not sent.url.startswith("data:") else None)
    page.goto(file.as_uri())
    yield page
    context.close()


def first_column(page: Any) -> list[str]:
    return page.eval_on_selector_all("#table tbody th", "heads => heads.map(head => head.dataset.value)")


def values(page: Any, column: int) -> list[float]:
    rows = page.eval_on_selector_all("#table tbody tr", f"rows => rows.map(row => row.cells[{column}].dataset.value)")
    return [float(value) for value in rows]


def test_there_are_no_messages_and_no_requests(opened: Any, events: list[str], file: Path) -> None:
    opened.get_by_role("button", name="Accuracy").first.click()
    opened.locator("#theme").click()
    for details in opened.locator("summary").all():
        details.click()
    assert events == [f"request: {file.as_uri()}"]


def test_headers_sort_best_first_and_back(opened: Any) -> None:
    by_name = sorted(first_column(opened))
    head = opened.locator("#table thead th", has_text="NLL").first
    assert head.get_attribute("aria-sort") == "ascending", "the page comes sorted"
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert values(opened, 1) == sorted(values(opened, 1), reverse=True)
    assert sorted(first_column(opened)) == by_name, "every row is still there"
    accuracy = opened.locator("#table thead th", has_text="Accuracy").first
    accuracy.get_by_role("button").click()
    assert (accuracy.get_attribute("aria-sort"), head.get_attribute("aria-sort")) == ("descending", None)
    assert values(opened, 3) == sorted(values(opened, 3), reverse=True)


def test_the_keyboard_sorts_too(opened: Any) -> None:
    button = opened.locator("#table thead button").first
    button.focus()
    opened.keyboard.press("Enter")
    order = first_column(opened)
    assert order[-1] == "single"
    opened.keyboard.press("Space")
    assert first_column(opened) == order[::-1]
    assert opened.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focus is visible"


def test_the_first_tab_skips_to_the_scores(opened: Any) -> None:
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to the scores"
    opened.keyboard.press("Enter")
    assert opened.evaluate("location.hash") == "#scores"


def test_the_theme_follows_the_system_until_it_is_changed(opened: Any) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    shown = "[...document.querySelectorAll('.only-light, .only-dark')].map(e => getComputedStyle(e).display)"
    before, pictures = opened.evaluate(paper), opened.evaluate(shown)
    dark = opened.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert before == ("rgb(21, 24, 29)" if dark else "rgb(255, 255, 255)")
    assert set(pictures) == {"block", "none"}
    opened.locator("#theme").click()
    assert opened.evaluate(paper) == ("rgb(255, 255, 255)" if dark else "rgb(21, 24, 29)")
    assert opened.evaluate(shown) == [{"block": "none", "none": "block"}[one] for one in pictures]
    fill = "getComputedStyle(document.querySelector('#reliability svg path')).fill"
    assert opened.evaluate(fill) == opened.evaluate(paper), "figures have the background of the page"
    opened.locator("#theme").click()
    assert opened.evaluate(paper) == before


def test_the_page_never_scrolls_sideways(opened: Any) -> None:
    for details in opened.locator("summary").all():
        details.click()
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    wide = opened.evaluate(
        """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, pre, .skip, svg'))
           .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert wide == []


def test_costs_and_detection_are_visible_on_a_desktop(opened: Any) -> None:
    """Without scrolling the table."""
    if opened.viewport_size["width"] < 1000:
        pytest.skip("a phone shows the first columns")
    edge = opened.evaluate("document.querySelector('.scroll').getBoundingClientRect().right")
    for title in ("Parameters", "Multiply-", "AUROC"):
        head = opened.locator("#table thead th", has_text=title).last
        assert head.bounding_box()["x"] + head.bounding_box()["width"] <= edge + 1, title


def skip_if_it_fits(opened: Any) -> None:
    """A desktop shows the whole first table."""
    if opened.evaluate("(box => box.scrollWidth <= box.clientWidth)(document.querySelector('.scroll'))"):
        assert opened.viewport_size["width"] >= 1000
        pytest.skip("the table fits")


def test_names_stay_visible_while_a_table_scrolls(opened: Any) -> None:
    skip_if_it_fits(opened)
    opened.evaluate("document.querySelector('.scroll').scrollLeft = 300")
    assert opened.evaluate("document.querySelector('.scroll').scrollLeft") > 0
    left = "document.querySelector('#table tbody th').getBoundingClientRect().left"
    assert 0 <= opened.evaluate(left) < 100


def test_a_shadow_says_that_a_table_goes_on(opened: Any) -> None:
    """The right edge is darker than paper, until the table is scrolled to its end."""
    skip_if_it_fits(opened)

    def edge() -> float:
        box = opened.locator(".scroll").first.bounding_box()
        right = {"x": box["x"] + box["width"] - 3, "y": box["y"] + 2, "width": 2, "height": 4}
        return float(imread(io.BytesIO(opened.screenshot(clip=right, full_page=True)))[..., :3].mean())

    imread = pytest.importorskip("matplotlib.image").imread
    cut = edge()
    opened.evaluate("document.querySelector('.scroll').scrollLeft = 1e6")
    assert abs(edge() - cut) > 0.1


def test_no_text_is_smaller_than_12_pixels(opened: Any) -> None:
    small = opened.evaluate(
        """[...document.querySelectorAll('main p, main td, main th, main li, main dd, figcaption')]
           .filter(e => e.offsetParent && parseFloat(getComputedStyle(e).fontSize) < 12).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert small == []


def test_strings_are_shown_and_not_executed(opened: Any) -> None:
    opened.wait_for_timeout(100)
    assert opened.title() == f"A title {EVIL}"
    assert EVIL in first_column(opened)
    assert opened.locator("#table tbody th", has_text=EVIL).count() == 1
    assert opened.locator("script").count() == 1
    assert opened.locator("img:not([src^='data:image/png'])").count() == 0
    assert opened.locator("[onerror]").count() == 0


def test_images_load(opened: Any) -> None:
    sizes = opened.eval_on_selector_all(".example img", "images => images.map(image => image.naturalWidth)")
    assert len(sizes) >= 12
    assert set(sizes) == {16}


def test_ids_are_unique_and_links_have_targets(opened: Any) -> None:
    ids = opened.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
    assert len(ids) == len(set(ids))
    links = opened.eval_on_selector_all("a[href^='#'], use", "all => all.map(one => one.getAttribute('href').slice(1))")
    assert set(links) <= set(ids)
    assert opened.eval_on_selector_all("svg[role=img]:not([aria-label]), img:not([alt])", "all => all.length") == 0


def test_it_prints_in_light(opened: Any) -> None:
    opened.emulate_media(media="print")
    opened.evaluate("document.documentElement.dataset.theme = 'dark'")
    assert opened.evaluate("getComputedStyle(document.body).color") == "rgb(28, 31, 36)"
    assert opened.locator("#theme").is_hidden()
