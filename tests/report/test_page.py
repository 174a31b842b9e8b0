"""The page: valid HTML for every task, escaped names, and no content from outside."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import import_module, resources
from pathlib import Path

import pytest
import torch

import multitudes as mt
from multitudes.errors import FileError, InputError
from multitudes.prediction.prediction import Prediction
from multitudes.report import report
from multitudes.report.examples import Images
from multitudes.report.groups import grouped
from multitudes.report.page import page
from multitudes.report.row import Row, load_rows
from multitudes.scores.scores import Scores

Make = Callable[..., Row]
EVIL = "<script>alert(1)</script> & \"'ü漢 $title ${style} \x00\ud800"
VOID = {"meta", "link", "img", "br"}


class Checked(HTMLParser):
    """Parses a page: its tags, ids and text. Tags that do not close are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        for name, value in attrs:
            assert not name.startswith("on"), "no handler in an attribute"
            if name in ("href", "src", "srcset", "action"):
                assert (value or "").startswith(("#", "data:")), f"{tag} asks for {value}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(path: Path) -> Checked:
    found = Checked(path.read_text(encoding="utf-8"))
    assert found.tags.count("script") == 1
    assert len(found.ids) == len(set(found.ids))
    return found


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the figures, which take most of the time."""
    monkeypatch.setattr(import_module("multitudes.report.page"), "page_figures", lambda *_: [])


FULL = [pytest.param(task, marks=pytest.mark.slow) for task in ("binary", "multilabel", "regression")]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classes", "gaussian", "dense", *FULL])
def test_every_task_has_its_page(made: Make, task: str, tmp_path: Path) -> None:
    ood = {"other": made(task=task, seed=9).prediction}
    given = [made("packed", task, ood=ood, intervals=5)]
    images = torch.rand(30, 3, 5, 4) if task != "multilabel" else None
    found = checked(report(given, tmp_path / "page.html", images=images))
    assert {"scores", "reliability", "ood", "diversity", "reproduce"} <= set(found.ids)
    assert ("examples" in found.ids) == (task != "multilabel")


def test_plain_scores_are_enough(tmp_path: Path) -> None:
    pred = Prediction(logits=torch.randn(2, 20, 3), targets=torch.arange(20) % 3)
    scores = mt.score(pred)
    found = checked(report([scores, Scores.from_json(scores.json())], tmp_path / "page.html"))
    assert {"scores", "reliability"} <= set(found.ids)
    assert "run 1" in found.text
    found = checked(report([Scores({"accuracy": math.nan}, task="classes")], tmp_path / "page.html"))
    assert "NaN" in found.text
    assert "reliability" not in found.ids


def several_jobs(made: Make) -> list[Row]:
    """A single network and an ensemble on wine, and the same ensemble on two other jobs."""
    wine, text = ({"job": f"{name}:job", "data": name} for name in ("wine", "text"))
    single = made("single", method="Single()", settings=wine)
    return [
        made("packed", settings=wine, seed=1),
        made("packed", settings=text, seed=2),
        single,
        made("packed", "gaussian", settings=text),
    ]


@pytest.mark.usefixtures("without_figures")
def test_jobs_are_not_compared(made: Make, tmp_path: Path) -> None:
    """Each has its own part, with a table, a verdict and labels of its own."""
    path = report(several_jobs(made), tmp_path / "page.html", images=torch.rand(30, 3, 5, 4), classes=["a", "b", "c"])
    found, page = checked(path), path.read_text(encoding="utf-8")
    assert "3 jobs: wine (wine:job, classes), text (text:job, classes) and text (text:job, gaussian). Each" in found.text
    assert {"job-1-table", "job-2-table", "job-3-table"} <= set(found.ids)
    assert "packed (2)" not in found.text
    above = page[page.index("</h1>") : page.index("<nav")]
    assert "best" not in above.lower()
    assert "<strong>" not in above
    second = page[page.index('<section id="job-2"') : page.index('<section id="job-3"')]
    assert "<td" in second
    assert "<strong>" not in second.split("<tbody>")[1].split("</tbody>")[0], "one row is not the best of anything"
    assert "the single network" not in second


def test_figures_of_jobs_have_ids_of_their_own(made: Make, tmp_path: Path) -> None:
    first, second, *_ = several_jobs(made)
    assert {"job-1-reliability", "job-2-reliability"} <= set(checked(report([first, second], tmp_path / "page.html")).ids)


@pytest.mark.slow
def test_all_strings_are_escaped(made: Make, tmp_path: Path) -> None:
    row = made(
        EVIL, method=EVIL, command=EVIL, ood={EVIL: made(seed=3).prediction}, cost={EVIL: 3.0, "parameters": 1.0},
        settings={"data": EVIL, "network": EVIL, EVIL: {EVIL: [EVIL]}, "plain": EVIL},
    )  # fmt: skip
    scores = Scores({**row.scores, EVIL: 1.0, f"{EVIL}/auroc/entropy": 0.5}, task="classes")
    row = dataclasses.replace(row, scores=scores)
    other = made("_b & <i>", seed=1)
    path = report([row, other], tmp_path / "p.html", title=EVIL, images=torch.rand(30, 1, 4, 4), classes=[EVIL, "b", "c"])
    found = checked(path)
    assert "i" not in found.tags
    assert found.text.count("<script>alert(1)</script>") >= 12
    assert "$title ${style}" in found.text, "placeholders of the template stay text"


@pytest.mark.usefixtures("without_figures")
def test_the_page_allows_its_own_script_alone(made: Make, tmp_path: Path) -> None:
    text = report([made()], tmp_path / "page.html").read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    for storage in ("localStorage", "sessionStorage", "fetch(", "XMLHttpRequest", "@import", "url(http"):
        assert storage not in text


@pytest.mark.slow
def test_twelve_rows_with_seeds_are_a_small_page(made: Make, tmp_path: Path) -> None:
    cost = {"parameters": 1e6, "multiply_adds": 1e9}
    others = {"svhn": made(seed=50).prediction}
    shift = {"fog": {severity: made(seed=60).prediction for severity in range(1, 6)}}
    given = [made(f"m{i}", seed=seed, cost=cost, ood=others, shift=shift) for i in range(12) for seed in (0, 1)]
    path = report(given, tmp_path / "page.html", images=torch.rand(30, 3, 32, 32))
    found = checked(path)
    assert {"scores", "cost", "reliability", "ood", "corruption", "diversity", "examples", "reproduce"} <= set(found.ids)
    assert path.stat().st_size < 1_500_000


@pytest.mark.usefixtures("without_figures")
def test_the_same_rows_make_the_same_page(made: Make, tmp_path: Path) -> None:
    first, second = (report([made()], tmp_path / name).read_bytes() for name in ("a.html", "b.html"))
    assert first == second


@pytest.mark.usefixtures("without_figures")
def test_rows_from_files_make_the_page_of_those_in_memory(made: Make, tmp_path: Path) -> None:
    given = [made("a", intervals=5, command="type this"), made("b", seed=1)]
    for row in given:
        row.save(tmp_path / "runs" / row.name)
    one = report(given, tmp_path / "one.html").read_text()
    two = report(load_rows([tmp_path / "runs"]), tmp_path / "two.html").read_text()
    assert one == two
    assert "type this" in one


@pytest.mark.usefixtures("without_figures")
def test_the_page_shows_how_to_reproduce_a_row(made: Make, tmp_path: Path) -> None:
    given = [
        made(seed=s, command=f"multitudes bench --seed {s}", settings={"recipe": {"seed": s, "lr": 0.125}}) for s in (0, 1)
    ]
    found = checked(report(given, tmp_path / "page.html"))
    for text in ("Packed(members=3)", "multitudes bench --seed 0", "multitudes bench --seed 1", '"lr": 0.125'):
        assert text in found.text


@pytest.mark.usefixtures("without_figures")
def test_rows_of_different_tasks_are_shown_apart(made: Make, tmp_path: Path) -> None:
    found = checked(report([made("a"), made("b", "gaussian")], tmp_path / "page.html"))
    assert "2 jobs: classes and gaussian." in found.text


@pytest.mark.usefixtures("without_figures")
def test_missing_folders_are_created_and_write_errors_raised(made: Make, tmp_path: Path) -> None:
    assert report([made()], tmp_path / "a" / "b.html") == tmp_path / "a" / "b.html"
    with pytest.raises(FileError, match="cannot write"):
        report([made()], tmp_path / "a" / "b.html" / "c.html")
    with pytest.raises(FileError, match="cannot write"):
        report([made()], tmp_path / "a")


def test_wrong_arguments_are_refused(made: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rows is empty"):
        report([], tmp_path / "page.html")
    with pytest.raises(InputError, match="classes="):
        report([made()], tmp_path / "page.html", classes="abc")
    assert not list(tmp_path.iterdir())


def test_the_pages_files_are_shipped() -> None:
    folder = resources.files("multitudes.report")
    assert all(folder.joinpath(name).is_file() for name in ("page.html", "page.css", "page.js"))


def test_a_method_has_one_colour_on_the_whole_page(made: Make) -> None:
    """In the headline, the table, the discs and the curves."""
    costs = {"latency": 1.0, "parameters": 1.0}
    rows = [made("single", method="Single()", cost=costs), made("packed", seed=1, cost={**costs, "latency": 2.0})]
    rows[0] = dataclasses.replace(rows[0], losses={"": torch.full((30,), 9.0)})
    rows[1] = dataclasses.replace(rows[1], losses={"": torch.zeros(30)})
    text = page(grouped(rows), "title", Images(), None)
    (headline,) = re.findall(r'<p class="summary">(.*?)</p>', text)
    assert '<strong style="--shade: var(--run-1)">packed</strong>' in headline
    assert re.search(r'<span class="dot" style="--shade: var\(--run-1\)"></span>packed', text)
    (cost, *_) = re.findall(r'<svg[^>]*aria-label="Cost and quality.*?</svg>', text)
    assert {"var(--run-0)", "var(--run-1)"} <= set(re.findall(r"var\(--run-\d\)", cost))
