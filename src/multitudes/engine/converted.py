"""Converted layers: a layer's own class with a mixin before it, which can be pickled."""

from __future__ import annotations

import functools
from typing import Any


class Converted:
    """A layer of some kind with something before its own forward: a class that is made of the two, and can be pickled."""

    made_of: tuple[type, type, tuple[tuple[str, Any], ...]]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _unpickle, type(self).made_of, vars(self)


def converted_class(first: type, own: type, more: tuple[tuple[str, Any], ...] = ()) -> Any:
    """The class of a layer of some kind with something before its forward: the same for the same."""
    return _converted_class(first, own, more)


@functools.cache
def _converted_class(first: Any, own: Any, more: tuple[tuple[str, Any], ...]) -> type:
    values = {key: staticmethod(value) if callable(value) else value for key, value in more}
    return type(f"{first.__name__}{own.__name__}", (first, own), {**values, "made_of": (first, own, more)})


def _unpickle(first: type, own: type, more: tuple[tuple[str, Any], ...]) -> Any:
    kind = converted_class(first, own, more)
    return kind.__new__(kind)
