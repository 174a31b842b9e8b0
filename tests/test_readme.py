"""The documentation says what is so: its code runs, its excerpts are in the source, its table of methods is current."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^(?:<!-- from (?P<source>\S+) -->\n)?```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[re.Match[str]]:
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))


def script(page: Path) -> str:
    """The code of a page's own blocks, each line where it stands in the page, so that a traceback points there."""
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


def run(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("page", [page for page in PAGES if runnable(page)], ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    # In an interpreter of its own: a page may define methods, and these would stay in the registry.
    path = tmp_path / f"{page.name}.py"
    path.write_text(script(page), encoding="utf-8")
    done = run([str(path)], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "source", "code"), excerpts(), ids=lambda value: str(value).rpartition("/")[2][:24])
def test_an_excerpt_is_in_the_source(page: Path, source: str, code: str) -> None:
    text, place = (ROOT / source).read_text(encoding="utf-8"), 0
    for part in re.split(r"^ *\.\.\.\n", code, flags=re.MULTILINE):
        place = text.find(part, place)
        assert place >= 0, f"{page.name} quotes what {source} does not say, at least not in this order:\n{part}"


def test_the_readme_and_the_guide_have_code() -> None:
    assert {"README.md", "CONTRIBUTING.md"} <= {page.name for page in PAGES if runnable(page)}


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize(
    "table", ["docs/methods_table.py", "docs/recipes_table.py", pytest.param("docs/cost_table.py", marks=pytest.mark.slow)]
)
def test_tables_are_current(table: str) -> None:
    done = run([table, "--check"], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_evidence_is_what_results_hold() -> None:
    """Every row is within the bounds it is held against, and the guide has them all."""
    done = run(["benchmarks/cifar10.py", "--markdown"], ROOT)
    assert done.returncode == 0, done.stderr
    table = done.stdout.strip()
    assert "not met" not in table
    assert len(table.splitlines()) > 5
    assert f"<!-- evidence -->\n\n{table}\n\n<!-- /evidence -->" in (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")


def test_patches_are_surer_than_one_network() -> None:
    """What EMP and ECMP are held to besides: a lower NLL and calibration error than the single network's."""
    files = {name: ROOT / "results" / "cifar10-resnet18" / f"{name}-0.json" for name in ("single", "emp", "ecmp")}
    scores = {name: json.loads(file.read_text(encoding="utf-8"))["scores"] for name, file in files.items()}
    for name in ("emp", "ecmp"):
        for score in ("nll", "ece"):
            assert scores[name][score] < scores["single"][score]
