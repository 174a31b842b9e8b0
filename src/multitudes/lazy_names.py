"""Lazy names: a package's public names are imported from their modules when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def homes_of(names_by_module: Mapping[str, str]) -> dict[str, str]:
    """Returns the module of each name, from names that are listed by module with spaces between."""
    return {name: module for module, names in names_by_module.items() for name in names.split()}


def meant(name: str, names: Iterable[str]) -> str:
    """Returns a hint with the public name that is nearest to an unknown one; empty if none is near."""
    from difflib import get_close_matches

    known = list(names)
    by_lower = {one.lower(): one for one in known}
    near = sorted((one for one in known if len(one) > 3 and name.startswith(one)), key=len)[-1:]  # DeepEnsemble: Deep
    near = near or get_close_matches(name, known, n=1, cutoff=0.7)
    near = near or [by_lower[one] for one in get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)]
    return f": did you mean {near[0]!r}?" if near and not name.startswith("_") else ""


def importer(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package: it imports a name from its module, and keeps it in the package."""

    def imported(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{meant(name, homes)}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return imported
