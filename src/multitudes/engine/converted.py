"""Converted layers: a mixin placed before a layer's class; the resulting class can be pickled."""

from __future__ import annotations

import functools
from typing import Any


class Converted:
    """Base of mixins that are placed before a layer's class to override its forward; instances can be pickled."""

    made_of: tuple[type, type, tuple[tuple[str, Any], ...]]
    """The arguments of `converted_class`: the mixin, the layer's original class, and class attributes."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _unpickle, type(self).made_of, vars(self)


def converted_class(mixin: type, layer_class: type, attributes: tuple[tuple[str, Any], ...] = ()) -> Any:
    """Returns a subclass of the mixin and the layer's class, with class attributes; equal arguments give the same class."""
    return _converted_class(mixin, layer_class, attributes)


@functools.cache
def _converted_class(mixin: Any, layer_class: Any, attributes: tuple[tuple[str, Any], ...]) -> type:
    values = {key: staticmethod(value) if callable(value) else value for key, value in attributes}
    name = f"{mixin.__name__}{layer_class.__name__}"
    return type(name, (mixin, layer_class), {**values, "made_of": (mixin, layer_class, attributes)})


def _unpickle(mixin: type, layer_class: type, attributes: tuple[tuple[str, Any], ...]) -> Any:
    kind = converted_class(mixin, layer_class, attributes)
    return kind.__new__(kind)
