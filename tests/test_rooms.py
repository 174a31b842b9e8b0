"""Rooms import downwards: no module knows a room above its own, and no two modules know each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "multitudes"

ORDER = """
    version lazy_names errors settings terminal storage
    engine models data prediction
    conversion.anatomy conversion.resize method ensemble conversion
    files methods scores training figures analysis report shell integrations
    __main__
""".split()
"""The rooms from the bottom up. A module may import its own room and those before it."""

REGISTRY = ("method", "methods")
"""An import upwards: `Method.all()` loads the package's own methods, as it would a plugin's."""

FREEZE = ("ensemble", "files.export.freeze")
"""The other import upwards: `ens.freeze()` is asked of an ensemble, and made of the graph that files are made of."""

PLANNED: dict[str, str] = {}
"""Where what is still missing will live, so that it does not have to be moved."""


def named(path: Path) -> str:
    """A module's name below `multitudes`; that of the package itself is empty."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {named(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imported(module: str, tree: ast.AST) -> set[str]:
    """The modules of this package that a piece of code imports, inside functions too; type-only imports are left out."""
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in node.body
        for inner in ast.walk(part)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names |= {str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name.partition(".")[2] in MODULES else str(node.module) for name in full}
    own = {name.partition(".")[2] for name in names if name.split(".")[0] == "multitudes"}
    return {name for name in own if name in MODULES} - {module}


EVERY = {name: imported(name, ast.parse(path.read_text())) for name, path in MODULES.items()}
GRAPH = {name: {other for other in others if (name, other) not in (REGISTRY, FREEZE)} for name, others in EVERY.items()}


def room(module: str) -> str:
    """The room of a module: the longest name in ORDER that it begins with."""
    return max((name for name in ORDER if module == name or module.startswith(f"{name}.")), key=len)


def test_every_module_is_in_a_room() -> None:
    homeless = [name for name in MODULES if name and not any(name == r or name.startswith(f"{r}.") for r in ORDER)]
    assert homeless == []
    assert [name for name in ORDER if name not in MODULES] == []


def test_rooms_import_downwards() -> None:
    """Lazy imports count: they would only hide a knot."""
    place = {name: index for index, name in enumerate(ORDER)}
    upward = [
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        if module
        for other in sorted(others)
        if not other or place[room(other)] > place[room(module)]
    ]
    assert upward == []


def test_the_registry_is_the_one_exception() -> None:
    for lower, upper in (REGISTRY, FREEZE):
        assert upper in EVERY[lower]


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a ring, if there are any."""
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph[module]):
            if ring := visit(other, (*path, module)):
                return ring
        done.add(module)
        return []

    return next((ring for module in sorted(graph) if (ring := visit(module, ()))), [])


def test_no_modules_import_each_other() -> None:
    assert cycle(GRAPH) == []


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from multitudes.engine.loop import run_loop", {"engine.loop"}),
        ("def f():\n    from multitudes.engine import tree", {"engine.tree"}),
        ("import multitudes.report.page", {"report.page"}),
        ("if TYPE_CHECKING:\n    from multitudes.ensemble import Ensemble", set()),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from multitudes.ensemble import Ensemble", {"ensemble"}),
        ("if not TYPE_CHECKING:\n    from multitudes.ensemble import Ensemble", {"ensemble"}),
        ("from multitudes import Ensemble", {""}),
        ("importlib.import_module('multitudes.methods')", {"methods"}),
    ],
)
def test_an_import_is_seen(code: str, names: set[str]) -> None:
    assert imported("x", ast.parse(code)) == names


def test_a_ring_is_seen() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_planned_places_are_rooms_or_in_one() -> None:
    assert [name for name in PLANNED if not room(name)] == []
