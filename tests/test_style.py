"""How the code should read, as far as it can be counted."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE, TESTS = ROOT / "src" / "multitudes", ROOT / "tests"
MODULES = sorted(path for path in SOURCE.rglob("*.py"))
FILES = [*MODULES, *sorted(TESTS.rglob("*.py"))]
METHODS = sorted(path for path in (SOURCE / "methods").glob("*.py") if path.name != "__init__.py")
LONGEST_MODULE, LONGEST_TEST, LONGEST_FUNCTION = 600, 1000, 60
TOPICS = {"laws", "laws_can_fail", "zoo_refusals", "style", "package", "readme", "papers", "peers", "refuted", "rooms"}
"""Tests that speak of the whole package."""
FOLDERS = ("slow", "gpu", "thirdparty", "browser")
"""Tests that need more time, or more than Python."""


def relative(path: Path) -> str:
    """A path as it is shown."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_are_short(path: Path) -> None:
    """A limit far above the usual length: a module is divided where its subject divides, not where a ruler ends."""
    assert len(path.read_text().splitlines()) <= (LONGEST_MODULE if path in MODULES else LONGEST_TEST)


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_functions_fit_a_screen(path: Path) -> None:
    """Signature and docstring included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_modules_say_what_they_are_and_draw_no_banners(path: Path) -> None:
    """A docstring at the top, and no line of signs to divide what should be two files."""
    text = path.read_text()
    assert not text.strip() or ast.get_docstring(ast.parse(text))
    assert not re.search(r"^\s*#\s*[-=*#~]{3,}", text, re.MULTILINE)


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_no_module_is_a_drawer_for_everything(path: Path) -> None:
    """A name says what is inside."""
    assert not {"utils", "util", "core", "common", "base", "helpers", "misc"} & {
        *path.relative_to(SOURCE).parts[:-1],
        path.stem,
    }


def rooms(folder: Path) -> set[str]:
    """The folders below one that hold Python files, by their path."""
    return {str(path.parent.relative_to(folder)) for path in folder.rglob("*.py") if path.parent != folder}


def test_tests_mirror_rooms() -> None:
    """Each room has a folder of tests, and each folder of tests a room or a purpose of its own, listed here."""
    tested = {str(path.parent.relative_to(TESTS)) for path in TESTS.rglob("test_*.py") if path.parent != TESTS}
    assert sorted(rooms(SOURCE) - tested) == []
    assert sorted(folder for folder in tested - rooms(SOURCE) if folder.split("/")[0] not in FOLDERS) == []


def test_tests_outside_rooms_speak_of_the_whole() -> None:
    """Beside the rooms lie the tests of the package's own files, and topics that no room has."""
    files = {path.stem for path in SOURCE.glob("*.py")}
    found = {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")}
    assert sorted(found - files - TOPICS) == []


@pytest.mark.parametrize("path", METHODS, ids=relative)
def test_a_method_is_one_file_and_one_line(path: Path) -> None:
    """The file holds one method, which `methods/__init__.py` exports on a line of its own."""
    kinds = [
        n.name
        for n in ast.parse(path.read_text()).body
        if isinstance(n, ast.ClassDef) and "Method" in map(ast.unparse, n.bases)
    ]
    assert len(kinds) == 1
    assert kinds[0].lower() == path.stem
    line = f"from multitudes.methods.{path.stem} import {kinds[0]} as {kinds[0]}"
    assert line in (SOURCE / "methods" / "__init__.py").read_text().splitlines()


@pytest.mark.parametrize("path", METHODS, ids=relative)
def test_no_method_imports_another(path: Path) -> None:
    """So that one can be read, changed or removed by itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            others = (node.module or "").removeprefix("multitudes.methods.layers")
            assert not others.startswith("multitudes.methods")
            assert node.level == 0
        if isinstance(node, ast.Import):
            assert not any(name.name.startswith("multitudes.methods") for name in node.names)


@pytest.mark.parametrize("path", METHODS, ids=relative)
def test_settings_are_documented_beside_the_field(path: Path) -> None:
    """Every field that a method adds has a line about it below."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.decorator_list:  # a dataclass
            for field, after in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                    documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                    assert documented or ast.unparse(field.target) == "members", ast.unparse(field)


@pytest.mark.parametrize("tool", ["ruff", "mypy"])
def test_a_tool_has_one_version(tool: str) -> None:
    """Wherever it is named it is pinned alike, and the hook runs what CI runs."""
    text = {name: (ROOT / name).read_text() for name in ("pyproject.toml", "constraints.txt", ".pre-commit-config.yaml")}
    pins = {name: set(re.findall(rf"\b{tool}==([\d.]+)", found)) for name, found in text.items()}
    revisions = set(re.findall(rf"{tool}(?:-pre-commit)?\s+rev: v([\d.]+)", text[".pre-commit-config.yaml"]))
    assert len(pins["pyproject.toml"]) == 1
    assert pins["constraints.txt"] == pins["pyproject.toml"]
    assert revisions | pins[".pre-commit-config.yaml"] <= pins["pyproject.toml"]
    assert revisions or "entry: make lint" in text[".pre-commit-config.yaml"]
