"""The laws that every method obeys on every model of the zoo, each a function of a method and a case."""

from __future__ import annotations

from collections.abc import Callable

from zoo import Case

import multitudes as mt
from laws import carrying, graphs, meaning

METHODS = {kind.__name__: kind for kind in mt.Method.all() if kind.__module__.startswith("multitudes.")}
"""The methods there are, by name."""

Law = Callable[[mt.Method, Case], None]

LAWS: dict[str, Law] = {
    name.removeprefix("law_"): law
    for module in (meaning, carrying, graphs)
    for name, law in vars(module).items()
    if name.startswith("law_")
}
