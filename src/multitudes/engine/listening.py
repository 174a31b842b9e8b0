"""Listening: the base class of modes that watch torch's operations."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

MOST = 50_000
"""How many results without values are remembered."""

_RESULTS: dict[Hashable, tuple[tuple[Any, ...], ...] | None] = {}
"""Shapes, strides and dtypes by operation and arguments; None where an operation returns something else than one or more
tensors, such as a list of them."""


class Listening(TorchDispatchMode):
    """A mode that sees every operation in a with-block, and does not load torch's compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import the compiler


class Quick(Listening):
    """Makes runs on the meta device faster, also of calls whose whole numbers have values (`shape_inputs`)."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return result_of(func, args, kwargs or {})


def result_of(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operation that a mode sees.

    On the meta device torch computes shapes in Python, ten times slower than it computes numbers elsewhere: so the results of
    operations that only make new tensors are remembered.
    """
    args, kwargs = on_one_device(func, args, kwargs)
    key = _key(func, args, kwargs)
    if key is None:
        return func(*args, **kwargs)
    if key not in _RESULTS:
        result = func(*args, **kwargs)
        if len(_RESULTS) >= MOST:
            _RESULTS.clear()
        made = result if isinstance(result, tuple) else (result,)
        whole = all(_is_plain(tensor) and tensor.is_meta for tensor in made)
        _RESULTS[key] = tuple((t.shape, t.stride(), t.dtype) for t in made) if whole else None
        return result
    known = _RESULTS[key]
    if known is None:
        return func(*args, **kwargs)
    made = tuple(torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in known)
    return made[0] if len(func._schema.returns) == 1 else made


def on_one_device(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Returns the arguments of an operation, all without values if some have none.

    So masks and ids are computed with, until they meet what has no values; moved to where that is, they keep theirs. Raises a
    RuntimeError if what has none would be written into what has some.
    """
    found = [value for value in (*args, *kwargs.values()) if isinstance(value, (Tensor, list, tuple))]
    tensors = [t for value in found for t in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(t, Tensor)]
    if not any(t.is_meta for t in tensors):
        moves = func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("meta")
        return args, {name: value for name, value in kwargs.items() if not (moves and name == "device")}
    if all(t.is_meta for t in tensors):
        return args, kwargs
    schema = func._schema.arguments
    written = [value for known, value in zip(schema, args, strict=False) if known.alias_info and known.alias_info.is_write]
    if any(isinstance(value, Tensor) and not value.is_meta for value in written):
        raise RuntimeError(f"{func} writes what is on the meta device, without values, into a tensor with values")
    return [_thin(value) for value in args], {name: _thin(value) for name, value in kwargs.items()}


def _thin(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to("meta")
    return type(value)(map(_thin, value)) if type(value) in (list, tuple) else value


def _key(func: Any, args: Any, kwargs: Any) -> Hashable | None:
    """Returns what the shapes of an operation's results depend on; None where results are not to be remembered."""
    schema = func._schema
    if any(argument.alias_info is not None for argument in schema.arguments):  # it writes, or returns a view
        return None
    try:
        key = (func, _part(args), *((name, _part(value)) for name, value in kwargs.items()))
        hash(key)
    except TypeError:  # a tensor with values, or an argument that cannot be remembered
        return None
    return key if args and isinstance(args[0], (Tensor, list, tuple)) else None  # what makes tensors from nothing is fast


def _part(value: Any) -> Hashable:
    """Describes an argument. Raises TypeError for tensors with values, or of another kind."""
    if isinstance(value, Tensor):
        if not (value.is_meta and _is_plain(value)):
            raise TypeError
        return "tensor", value.shape, value.stride(), value.dtype
    if isinstance(value, (list, tuple)):
        return tuple(map(_part, value))
    return type(value), value


def _is_plain(value: Any) -> bool:
    return type(value) in (Tensor, nn.Parameter, nn.Buffer) and value.layout is torch.strided and not value.is_conj()
