"""Converted layers: classes made of a mixin and a layer's class. Their objects can be pickled."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from multitudes.errors import ConversionError


def converted_class(mixin: type, layer_class: type, attributes: tuple[tuple[str, Any], ...] = ()) -> Any:
    """Returns a class with the bases (mixin, layer_class) and these class attributes. Equal arguments return the same class.

    The mixin comes first, so that it can override the layer's forward. Objects of the class can be pickled. The class
    stores its arguments as `made_of`.
    """
    return _converted_class(mixin, layer_class, attributes)


@functools.cache
def _converted_class(mixin: Any, layer_class: Any, attributes: tuple[tuple[str, Any], ...]) -> type:
    values = {key: staticmethod(value) if callable(value) else value for key, value in attributes}
    name = f"{mixin.__name__}{layer_class.__name__}"
    values |= {"made_of": (mixin, layer_class, attributes), "__reduce_ex__": _reduce}
    return type(name, (mixin, layer_class), values)


def convert_layer(layer: Any, mixin: type, attributes: tuple[tuple[str, Any], ...] = (), **values: Any) -> None:
    """Puts a mixin before a layer's class, in place, and sets `values` as its attributes. The layer's tensors stay.

    A layer that has something of its own by one of these names is refused: one would be read in place of the other.
    """
    names = {*_names_of(mixin), *(key for key, _ in attributes), *values}
    check_names(layer, names - _names_of_torch(layer.__class__))
    if "forward" in vars(layer) and "forward" in names:
        raise ConversionError(
            f"the forward of a {type(layer).__name__} was replaced on the object, which would be called in place of the "
            "converted one: write a class with that forward, or use a method for any network, such as mt.Deep(members=4)"
        )
    layer.__class__ = converted_class(mixin, type(layer), attributes)
    vars(layer).update(values)


def check_names(layer: Any, names: Collection[str]) -> None:
    """Refuses a layer that has something of its own by one of the names that its conversion adds."""
    taken = sorted(name for name in names if hasattr(layer, name))
    if taken:
        kind = getattr(type(layer), "made_of", (None, type(layer)))[1].__name__
        raise ConversionError(
            f"{kind} has an attribute {' and '.join(taken)}, and this method adds one of that name: rename it in {kind}, or "
            "use a method that adds none, such as mt.Deep(members=4)"
        )


@functools.cache
def _names_of(mixin: Any) -> frozenset[str]:
    """Returns the names that a mixin adds to a module; not those that nn.Module has, to which other libraries add some."""
    own = [kind for kind in mixin.__mro__ if kind is not object and not kind.__module__.startswith("torch.")]
    return frozenset(name for kind in own for name in vars(kind) if not name.startswith("__"))


@functools.cache
def _names_of_torch(kind: Any) -> frozenset[str]:
    """Returns the names of a layer's classes that are torch's own: a mixin overrides them on purpose."""
    own = [one for one in (*kind.__mro__, nn.Module) if one.__module__.startswith("torch.") or one is object]
    return frozenset(name for one in own for name in vars(one))


def _reduce(self: Any, protocol: Any) -> Any:
    return _unpickle, type(self).made_of, vars(self)


def _unpickle(mixin: type, layer_class: type, attributes: tuple[tuple[str, Any], ...]) -> Any:
    kind = converted_class(mixin, layer_class, attributes)
    return kind.__new__(kind)


class Formed:
    """Mixin of a module whose weights are formed for each member wherever they are read, also outside its own forward.

    The stored parameters keep their names. `formed_keys` names those that are formed.
    """

    formed_keys: tuple[str, ...]

    def form(self, key: str, stored: Tensor) -> Tensor:
        """Returns the member's value of a parameter, made from the stored one."""
        raise NotImplementedError

    def __getattr__(self, key: str) -> Any:
        """Returns what the module has by this name; a formed weight as the member sees it.

        A shard is returned as it is: `fully_shard` reads its parameters by name. A call has whole tensors.
        """
        value = super().__getattr__(key)  # type: ignore[misc]
        forms = key in vars(self).get("formed_keys", ()) and not hasattr(value, "full_tensor")
        return self.form(key, value) if forms else value

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves or converts the stored tensors. A recurrent layer reads them again, and they have an axis of members."""
        keys, self.formed_keys = self.formed_keys, ()
        try:
            return super()._apply(fn, recurse)  # type: ignore[misc]
        finally:
            self.formed_keys = keys

    def formed(self) -> dict[str, Tensor]:
        """Returns the member's value of every formed weight, by name."""
        return {key: getattr(self, key) for key in self.formed_keys}
