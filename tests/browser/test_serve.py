"""The page of a server in a real browser: images are dropped, rows pasted, tokens asked for, and no other host is asked."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx.parser
import pytest
from PIL import Image
from shell.serve.graphs import classifier, describe, expected, saved
from shell.serve.processes import running

api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
pytestmark = pytest.mark.slow

LABELS = ["cat", "dog", "<b>eel</b>"]
REGRESSION = """<ir_version: 8, opset_import: ["": 17]>
g (float[B, 2] x) => (float[B] mean, float[B] variance, float[B] epistemic, float[B, 2] member_mean)
<float[2, 2] w = {1, 2, 3, 4}> {
    member_mean = MatMul (x, w)
    mean = ReduceMean <axes = [1], keepdims = 0> (member_mean)
    epistemic = Abs (mean)
    variance = Add (epistemic, epistemic)
}"""


def pixels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(seed)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(saved(tmp_path_factory.mktemp("images"), classifier((3, 8, 8), labels=LABELS))) as (port, _):
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(saved(tmp_path_factory.mktemp("rows"), classifier(labels=LABELS)), MULTITUDES_TOKEN="word") as (port, _):
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def events() -> list[str]:
    """Errors, console messages, and requests to other hosts."""
    return []


@pytest.fixture(params=[(1280, "light"), (380, "dark")], ids=["desktop", "phone"])
def page(request: pytest.FixtureRequest, browser: Any, events: list[str]) -> Iterator[Any]:
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda message: events.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: events.append(f"error: {error}"))
    page.on(
        "request",
        lambda sent: events.append(sent.url) if not sent.url.startswith(("http://127.0.0.1", "data:", "blob:")) else None,
    )
    yield page
    context.close()


def fits(page: Any) -> bool:
    """Whether nothing is wider than the screen."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_images_are_chosen_and_dropped(page: Any, images: str, events: list[str]) -> None:
    page.goto(images)
    page.locator("#drop").wait_for()
    page.set_input_files("#files", [{"name": f"{i}.png", "mimeType": "image/png", "buffer": png(i)} for i in range(2)])
    page.locator(".answer").nth(1).wait_for()
    wanted = expected(np.stack([pixels(i).transpose(2, 0, 1) / 255 for i in range(2)]).astype(np.float32))
    assert page.locator(".answer h2").all_text_contents() == [LABELS[label] for label in wanted["label"]]
    shown = page.locator(".answer").first.locator(".votes").first.locator("b").all_text_contents()
    assert [float(text.rstrip(" %")) for text in shown] == pytest.approx(sorted(100 * wanted["probs"][0])[::-1], abs=0.1)
    for row, answer in enumerate(page.locator(".answer").all()):
        votes = answer.locator(".votes").nth(1)
        chosen = wanted["member_probs"][row].argmax(1)
        assert votes.locator("span").all_text_contents() == [f"{m + 1}  {LABELS[k]}" for m, k in enumerate(chosen)]
        shares = [float(text.strip("> %")) for text in votes.locator("b").all_text_contents()]
        assert shares == pytest.approx(100 * wanted["member_probs"][row].max(1), abs=0.1)
    states = page.locator(".answer .state").all_text_contents()
    assert [text.startswith("The ensemble abstains") for text in states] == wanted["abstain"].tolist()
    assert page.locator(".answer img").count() == 2
    page.evaluate(
        """text => { const bytes = Uint8Array.from(atob(text), one => one.charCodeAt(0)), data = new DataTransfer();
        data.items.add(new File([bytes], "x.png", {type: "image/png"}));
        const event = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
        document.getElementById("drop").dispatchEvent(event); }""",
        base64.b64encode(png(1)).decode(),
    )
    api.expect(page.locator(".answer")).to_have_count(1)
    assert page.locator(".answer h2").text_content() == LABELS[wanted["label"][1]]
    assert fits(page)
    assert events == []


def test_a_broken_image_is_told(page: Any, images: str) -> None:
    page.goto(images)
    page.locator("#drop").wait_for()
    page.set_input_files("#files", [{"name": "x.png", "mimeType": "image/png", "buffer": b"no image"}])
    page.locator("#error").wait_for()
    assert "image 0 is no whole PNG or JPEG" in page.locator("#error").text_content()
    page.set_input_files("#files", [{"name": "x.txt", "mimeType": "text/plain", "buffer": b"text"}])
    api.expect(page.locator("#error")).to_contain_text("Only PNG and JPEG")
    assert page.locator(".answer").count() == 0


def test_rows_behind_a_token(page: Any, locked: str, events: list[str]) -> None:
    page.goto(locked)
    page.locator("#locked").wait_for()
    assert not page.locator("#pasting").is_visible()
    page.fill("#token", "wrong")
    page.click("#unlock")
    api.expect(page.locator("#about")).to_contain_text("not the token")
    page.fill("#token", "word")
    page.keyboard.press("Enter")
    page.locator("#pasting[open]").wait_for()
    page.click("#example")
    assert page.input_value("#rows") == "[0,0,0,0,0]"
    page.click("#predict")
    page.locator(".answer .state.abstains").wait_for()
    x = np.array([[1, 2, 3, 4, 5], [-1, 0.5, 0, 2, 1], [3, 0, 0, 0, 0]], np.float32)
    page.fill("#rows", str(x.tolist()))
    page.click("#predict")
    page.locator(".answer").nth(2).wait_for()
    assert page.locator(".answer h2").all_text_contents() == [LABELS[label] for label in expected(x)["label"]]
    assert page.locator("b b").count() == 0, "a label became HTML"
    for text, says in (("[1, 2]", "shape [2]"), ("[", "This is no JSON"), ("[1, 2, 3, 4, 1e99]", "row 0 of x is not finite")):
        page.fill("#rows", text)
        page.click("#predict")
        api.expect(page.locator("#error")).to_contain_text(says)
    assert fits(page)
    assert [event for event in events if "422" not in event] == []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Serves a graph, once for all pages that ask it, and returns the address."""
    with contextlib.ExitStack() as servers:

        @functools.cache
        def address(text: str, task: str, threshold: float | None = None) -> str:
            model = onnx.parser.parse_model(text)
            rule = None if threshold is None else {"score": "confidence", "value": threshold}
            about: Any = {"labels": None, "reference": None, "members": 2, "task": task, "threshold": rule}
            describe(model, outputs=[one.name for one in model.graph.output], **about)
            port, _ = servers.enter_context(running(saved(tmp_path_factory.mktemp("graph"), model)))
            return f"http://127.0.0.1:{port}/"

        yield address


def ask(page: Any, address: str, row: str) -> None:
    """Asks a server on its page, and returns when it shows the answer."""
    page.goto(address)
    page.locator("#pasting[open]").wait_for()
    page.fill("#rows", row)
    page.click("#predict")
    page.locator(".answer").wait_for()


def test_a_regression(page: Any, served: Callable[..., str], events: list[str]) -> None:
    ask(page, served(REGRESSION, "gaussian"), "[1, 2]")
    assert page.locator(".answer h2").text_content() == "8.5 ± 4.123"
    assert page.locator(".answer .votes b").all_text_contents() == ["7", "10"]
    assert events == []


TARGETS = """<ir_version: 8, opset_import: ["": 17]>
g (float[B, 2] x) => (float[B, 8] mean, float[B, 8] variance, float[B, 2, 8] member_mean)
<float[2, 16] w = {1, 10, 3, 4, 5, 6, 7, 8, 3, 30, 3, 4, 5, 6, 7, 8, 0, 990, 0, 0, 0, 0, 0, 0, 0, 970, 0, 0, 0, 0, 0, 0},
 int64[3] form = {-1, 2, 8}> {
    all = MatMul (x, w)
    member_mean = Reshape (all, form)
    mean = ReduceMean <axes = [1], keepdims = 0> (member_mean)
    variance = Mul (mean, mean)
}"""
TOKENS = """<ir_version: 8, opset_import: ["": 17]>
g (float[B, 4] x) => (float[B, 1, 4] probs, float[B, 4] confidence, bool[B, 4] abstain)
<float line = {0.3}, int64[1] axis = {1}> {
    probs = Unsqueeze (x, axis)
    confidence = Identity (x)
    abstain = Less (x, line)
}"""


def test_targets_are_shown_one_by_one(page: Any, served: Callable[..., str]) -> None:
    """A mean over targets, whose units differ, would say nothing."""
    ask(page, served(TARGETS, "gaussian"), "[1, 1]")
    assert page.locator(".answer h2").text_content() == "8 targets"
    shown = page.locator(".targets dd").all_text_contents()
    assert shown[:2] == ["2 ± 2", "1000 ± 1000"]
    assert shown[6] == "2 more are below, as JSON"
    assert page.locator(".measures:not(.targets) dd").all_text_contents() == ["4, 1000000, 9, 16, 25, 36, … (8 targets)"]
    assert page.locator(".votes").first.locator("b").all_text_contents() == ["1", "3"]
    assert page.locator(".votes").nth(1).locator("b").all_text_contents() == ["1000", "1000"]
    assert fits(page)


def test_tokens_say_on_how_many_it_abstains(page: Any, served: Callable[..., str]) -> None:
    ask(page, served(TOKENS, "classes", 0.3), "[0.25, 0.5, 0.75, 0.5]")
    assert page.locator(".answer h2").text_content() == "A sequence of 4"
    assert page.locator(".state").text_content() == "The ensemble abstains on 1 of 4: confidence is below 0.3"
    assert page.locator(".measures dt").all_text_contents() == ["Confidence, mean of 4"]
    assert page.locator(".measures dd").all_text_contents() == ["0.5"]


def test_the_theme(page: Any, images: str) -> None:
    page.goto(images)
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
