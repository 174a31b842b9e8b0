"""Rules of style that can be counted; each test lists what breaks its rule."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE, TESTS = ROOT / "src" / "multitudes", ROOT / "tests"
MODULES, TEST_FILES = sorted(SOURCE.rglob("*.py")), sorted(TESTS.rglob("*.py"))
METHODS = sorted(path for path in (SOURCE / "methods").glob("*.py") if path.name != "__init__.py")
TEXT = {path: path.read_text() for path in (*MODULES, *TEST_FILES)}
TREES = {path: ast.parse(text) for path, text in TEXT.items()}
LONGEST_MODULE, LONGEST_TEST, LONGEST_FUNCTION = 600, 1000, 60
TOPICS = {
    "benchmarks",
    "laws",
    "laws_can_fail",
    "zoo_refusals",
    "style",
    "package",
    "readme",
    "help",
    "papers",
    "peers",
    "plugins",
    "refuted",
    "rooms",
    "unseen_parts",
}
"""Tests of the whole package, which lie beside the rooms."""
FOLDERS = ("slow", "gpu", "thirdparty", "browser")
"""Tests that need more time, or more than Python."""
PUBLIC_WINDOWS = ("conversion", "methods", "laws", "slow", "gpu", "thirdparty")
"""Folders whose tests, like those beside the rooms, look at ensembles through `plan` and `executor` and never at `engine`."""
INSIDE = ("laws/compare.py", "slow/test_distributed.py")
"""Files there that may: compare.py is what the others call."""


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_files_are_short_and_say_what_they_are() -> None:
    """A docstring at the top, and a limit far above the usual length: modules divide where their subject does."""
    for path, text in TEXT.items():
        assert len(text.splitlines()) <= (LONGEST_MODULE if path in MODULES else LONGEST_TEST), shown(path)
        assert not text.strip() or ast.get_docstring(TREES[path]), shown(path)


def test_functions_fit_a_screen() -> None:
    """Docstring included, and the signature not: a long one has a line for each parameter."""
    for path in MODULES:
        for node in ast.walk(TREES[path]):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.body[0].lineno + 1
                assert length <= LONGEST_FUNCTION, f"{node.name} in {shown(path)} has {length} lines"


def test_names_of_modules_say_what_is_inside() -> None:
    drawers = {"utils", "util", "core", "common", "base", "helpers", "misc"}
    assert [shown(p) for p in MODULES if drawers & {*p.relative_to(SOURCE).parts[:-1], p.stem}] == []


def test_tests_mirror_rooms() -> None:
    """Each room has a folder of tests, and each folder of tests a room or an entry in FOLDERS."""
    rooms = {str(path.parent.relative_to(SOURCE)) for path in MODULES if path.parent != SOURCE}
    tested = {str(path.parent.relative_to(TESTS)) for path in TESTS.rglob("test_*.py") if path.parent != TESTS}
    assert sorted(rooms - tested) == []
    assert sorted(folder for folder in tested - rooms if folder.split("/")[0] not in FOLDERS) == []


def test_tests_beside_the_rooms_have_a_file_or_a_topic() -> None:
    files = {path.stem for path in SOURCE.glob("*.py")}
    assert sorted({path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")} - files - TOPICS) == []


def test_tests_look_at_ensembles_from_outside() -> None:
    """`ens.plan.proven`, `ens.plan.executor`, `ens.executor` and the helpers of laws/compare.py say what runs."""
    names = {path: str(path.relative_to(TESTS)) for path in TEST_FILES}
    done = [path for path, name in names.items() if ("/" not in name or name.startswith(PUBLIC_WINDOWS)) and name not in INSIDE]
    reads = [(p, n) for p in done for n in ast.walk(TREES[p]) if isinstance(n, ast.Attribute) and n.attr == "engine"]
    assert [f"{shown(path)}:{node.lineno}" for path, node in reads if ast.unparse(node.value) != "multitudes"] == []


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_a_method_is_one_file_and_one_line(path: Path) -> None:
    """The file holds one method, which `methods/__init__.py` exports on a line of its own; it imports no other method."""
    classes = [node for node in TREES[path].body if isinstance(node, ast.ClassDef)]
    (kind,) = [node.name for node in classes if "Method" in map(ast.unparse, node.bases)]
    assert kind.lower() == path.stem
    line = f"from multitudes.methods.{path.stem} import {kind} as {kind}"
    assert line in TEXT[SOURCE / "methods" / "__init__.py"].splitlines()
    imports = re.findall(r"^\s*(?:from|import) (multitudes\.methods\S*|\.\S*)", TEXT[path], re.MULTILINE)
    assert [name for name in imports if not name.startswith("multitudes.methods.layers")] == []


@pytest.mark.parametrize("path", METHODS, ids=lambda path: path.stem)
def test_settings_are_documented_beside_the_field(path: Path) -> None:
    """Every field that a method adds has a line about it below."""
    for node in TREES[path].body:
        if isinstance(node, ast.ClassDef) and node.decorator_list:  # a dataclass
            for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                    documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    assert documented or ast.unparse(field.target) == "members", ast.unparse(field)


@pytest.mark.parametrize("tool", ["ruff", "mypy"])
def test_a_tool_has_one_version(tool: str) -> None:
    """Wherever it is named it is pinned alike, and the hook runs the same version as CI."""
    text = {name: (ROOT / name).read_text() for name in ("pyproject.toml", "constraints.txt", ".pre-commit-config.yaml")}
    pins = {name: set(re.findall(rf"\b{tool}==([\d.]+)", found)) for name, found in text.items()}
    revisions = set(re.findall(rf"{tool}(?:-pre-commit)?\s+rev: v([\d.]+)", text[".pre-commit-config.yaml"]))
    assert len(pins["pyproject.toml"]) == 1
    assert pins["constraints.txt"] == pins["pyproject.toml"]
    assert revisions | pins[".pre-commit-config.yaml"] <= pins["pyproject.toml"]
    assert revisions or "entry: make lint" in text[".pre-commit-config.yaml"]
