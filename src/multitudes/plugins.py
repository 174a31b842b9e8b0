"""Methods of other packages: found by their entry points in the group `multitudes.methods`, imported when they are asked for.

The name of an entry point is that of the method in the shell, its class in lower case; its value is the class:

    [project.entry-points."multitudes.methods"]
    norms = "own_method:Norms"
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points

GROUP = "multitudes.methods"
"""The group of entry points."""

_found: list[EntryPoint] = []
_asked: set[str] = set()
_refused: list[type] = []


def entries() -> list[EntryPoint]:
    """Returns the entry points of methods, of all installed packages; they are looked for once."""
    if "found" not in _asked:
        _asked.add("found")
        _found[:] = entry_points(group=GROUP)
    return list(_found)


def plugin_names() -> list[str]:
    """Returns the names of other packages' methods in the shell, without an import of these packages."""
    return sorted({entry.name.lower() for entry in entries()})


def load_plugins(kind: type, known: Collection[str]) -> list[type]:
    """Imports other packages' methods, once. Returns those that are refused: their names are `known` as other methods.

    A plugin that cannot be imported, or is no `kind`, or has a known name, is told in a warning and left out: it can be
    broken by an update that has nothing to do with what the caller wants.
    """
    if "loaded" in _asked:
        return _refused
    _asked.add("loaded")  # before the imports: a plugin may ask for all methods itself
    for entry in entries():
        where = f"the method {entry.name!r} of {entry.dist.name if entry.dist else 'a package'} ({entry.value})"
        try:
            found = entry.load()
        except Exception as error:
            told = " ".join(str(error).split())
            _warn(f"{where} cannot be imported: {type(error).__name__}: {told}. Update or uninstall that package")
            continue
        if not isinstance(found, type) or not issubclass(found, kind):
            _warn(f"{where} is no subclass of multitudes.Method: let its entry point name the class")
        elif found.__name__ in known:
            _refused.append(found)
            _warn(f"{where} has the name of another method, {found.__name__}: rename the class")
    return _refused


def _warn(text: str) -> None:
    warnings.warn(f"{text}. It is left out", stacklevel=4)
