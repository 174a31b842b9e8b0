"""The documentation is right: its code runs, its excerpts are in the source, its tables and its picture are current."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from multitudes import data
from multitudes.shell.reproduce.page import SECTIONS, evidence, page_text
from multitudes.shell.reproduce.results import load

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^(?:<!-- from (?P<source>\S+) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[re.Match[str]]:
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


def script(page: Path) -> str:
    """The code of a page without excerpts, each line where it is in the page: a traceback then has the right line numbers."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for block in blocks(page):
        if block["source"] is None:
            first = text.count("\n", 0, block.start("code"))
            code = block["code"].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines)


def runnable(page: Path) -> bool:
    return any(block["source"] is None for block in blocks(page))


def excerpts() -> list[tuple[Path, str, str]]:
    return [(page, b["source"], b["code"]) for page in PAGES for b in blocks(page) if b["source"] is not None]


def run(path: Path, *arguments: str) -> tuple[Any, str]:
    """Runs a script in this process, where torch is loaded already, and returns its exit code and its output."""
    code: Any = 0
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(path), *arguments])
        patch.syspath_prepend(str(path.parent))
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            code = end.code
    return code or 0, printed.getvalue()


QUICK = ("README.md",)
RUNNABLE = [
    pytest.param(page, id=page.name, marks=() if page.name in QUICK else pytest.mark.slow) for page in PAGES if runnable(page)
]


@pytest.mark.filterwarnings("ignore:.*does not have many workers")  # these three are Lightning's
@pytest.mark.filterwarnings("ignore:.*smaller than the logging interval")
@pytest.mark.filterwarnings("ignore:.*LeafSpec")
@pytest.mark.parametrize("page", RUNNABLE)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer images: a page need not train long to show that it runs."""
    whole = data.fashion
    monkeypatch.setattr(data, "fashion", lambda split: whole(split).subset(range(150)))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"{page.name}.py"
    path.write_text(script(page), encoding="utf-8")
    code, printed = run(path)
    gc.collect()  # a method that a page defines leaves the registry
    assert code == 0, printed


@pytest.mark.parametrize(("page", "source", "code"), excerpts(), ids=lambda value: str(value).rpartition("/")[2][:24])
def test_an_excerpt_is_in_the_source(page: Path, source: str, code: str) -> None:
    text, place = (ROOT / source).read_text(encoding="utf-8"), 0
    for part in re.split(r"^ *\.\.\.\n", code, flags=re.MULTILINE):
        place = text.find(part, place)
        assert place >= 0, f"{page.name} quotes lines that {source} does not have in this order:\n{part}"


def test_the_main_pages_have_code() -> None:
    assert {"README.md", "CONTRIBUTING.md", "guide.md"} <= {page.name for page in PAGES if runnable(page)}


def test_links_lead_to_files() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "name",
    ["methods_table.py", "recipes_table.py", "reference.py", "rooms.py", pytest.param("cost_table.py", marks=pytest.mark.slow)],
)
def test_generated_files_are_current(name: str) -> None:
    assert run(ROOT / "docs" / name, "--check") == (0, "")


def test_the_reliability_page_is_what_results_hold() -> None:
    assert run(ROOT / "benchmarks" / "reliability.py", "--check") == (0, "")


def test_the_performance_page_is_what_results_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    assert importlib.import_module("benchmarks.page").is_current()


def test_the_seconds_of_the_census_page_are_what_results_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    conversion = importlib.import_module("benchmarks.conversion")
    assert conversion.measured()
    assert conversion.PAGE.read_text(encoding="utf-8") == conversion.page()


def test_the_tabular_page_is_what_results_hold() -> None:
    pytest.importorskip("sklearn")
    code, printed = run(ROOT / "benchmarks" / "tabular.py", "--markdown")
    assert code == 0
    assert f"<!-- tabm -->\n\n{printed.strip()}\n\n<!-- /tabm -->" in (ROOT / "docs" / "tabular.md").read_text(encoding="utf-8")


def test_the_page_of_trained_networks_is_what_results_hold() -> None:
    code, printed = run(ROOT / "benchmarks" / "budgets.py", "--markdown")
    assert code == 0
    page = (ROOT / "docs" / "pretrained.md").read_text(encoding="utf-8")
    assert f"<!-- budgets -->\n\n{printed.strip()}\n\n<!-- /budgets -->" in page


def test_the_architecture_page_has_the_order_of_the_rooms() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    order = re.split("[\\s,·]+", page.partition("<!-- order -->")[2].partition("<!-- /order -->")[0].strip())
    enforced = re.search('ORDER = """(.*?)"""', (ROOT / "tests" / "test_rooms.py").read_text(encoding="utf-8"), re.DOTALL)
    assert enforced is not None
    assert order == enforced[1].split()[:-1]  # the last one is __main__


@pytest.mark.parametrize("mark", list(SECTIONS))
def test_the_evidence_is_what_results_hold(mark: str) -> None:
    """Every run is as good as the paper's row, and the guide has them all."""
    table = evidence(ROOT / "results", SECTIONS[mark])
    assert "not met" not in table
    assert len(table.splitlines()) > 3
    assert f"<!-- {mark} -->\n\n{table}\n\n<!-- /{mark} -->" in (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")


def test_the_page_of_results_is_what_results_hold() -> None:
    """`multitudes reproduce --page` would write the same page, and its pictures are there."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert text == page_text(ROOT / "results", ROOT / "docs"), "run multitudes reproduce --page"
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert [name for name in pictures if not (ROOT / "docs" / name).is_file()] == []


def test_patches_are_better_calibrated_than_one_network() -> None:
    """EMP and ECMP have a lower NLL and calibration error than the single network."""
    files = {"single": "single-model-c10-r18", "emp": "emp-c10-r18", "ecmp": "ecmp-c10-r18"}
    folder = ROOT / "results" / "packed" / "table-1" / "small"
    scores = {name: load(folder / f"{file}.json").runs[0].scores for name, file in files.items()}
    for name in ("emp", "ecmp"):
        for score in ("nll", "ece"):
            assert scores[name][score] < scores["single"][score]
