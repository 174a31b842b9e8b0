"""The laws that every method obeys on every model of the zoo, each a function of a method and a case."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from zoo import Case, refusal

import multitudes as mt
from laws import carrying, graphs, meaning

METHODS: dict[str, Any] = {kind.__name__: kind for kind in mt.Method.all() if kind.__module__.startswith("multitudes.methods.")}
"""The methods there are, by name; called, they give settings that fit the thin models of the zoo."""
METHODS["Masksembles"] = functools.partial(mt.Masksembles, fewest=2)
for name in ("EMP", "ECMP", "MCDropout", "DropConnect", "SWAG", "Laplace"):
    METHODS[name] = functools.partial(METHODS[name], members=4)


def taken(*cases: str) -> list[Any]:
    """Every method with every one of these models that it takes, as parameters `kind` and `case`."""
    pairs = [(name, case) for case in cases for name in METHODS if refusal(name, case, "member") is None]
    return [pytest.param(METHODS[name], case, id=f"{case}-{name}") for name, case in pairs]


Law = Callable[[mt.Method, Case], None]

LAWS: dict[str, Law] = {
    name.removeprefix("law_"): law
    for module in (meaning, carrying, graphs)
    for name, law in vars(module).items()
    if name.startswith("law_")
}
