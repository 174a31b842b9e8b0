"""Lazy names: a package's public names are imported from their modules when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def homes_of(names_by_module: Mapping[str, str]) -> dict[str, str]:
    """Returns the module of each name, from names that are listed by module with spaces between."""
    return {name: module for module, names in names_by_module.items() for name in names.split()}


def importer(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a package: it imports a name from its module, and keeps it in the package."""

    def imported(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return imported
