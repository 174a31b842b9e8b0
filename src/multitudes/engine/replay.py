"""What depends only on shared tensors is computed once.

The loop calls the template once for each member. While the first member runs, `Replay` notes every operation whose
tensors all members have in common, starting from the inputs and the shared tensors; when a later member reaches the
same operation on the same tensors, it is handed the first member's result. So a shared trunk is run once, forward and
backward, its BatchNorm statistics are updated once, and its dropout is drawn once.

An operation is known by its function, its plain arguments and the identity of its tensors, and repeated ones by their
order. Nothing is remembered of a tensor that a member writes into, nor after a member's own values have steered the
program (`if tensor`, `.item()`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

FACTORIES = frozenset(
    "arange as_tensor empty empty_strided eye full linspace logspace meshgrid ones tensor "
    "tril_indices triu_indices zeros".split()
)
"""Functions that make a tensor from plain values, without chance."""

READS = frozenset(
    "__array__ __bool__ __complex__ __contains__ __float__ __index__ __int__ "
    "allclose equal is_nonzero item numpy tolist".split()
)
"""Functions by which a tensor's values come to steer the program."""


class Replay(TorchFunctionMode):
    """One pass over the members: enter it once for each of them."""

    def __init__(self, shared: Iterable[Tensor]) -> None:
        super().__init__()
        self.known: dict[int, Tensor] = {id(tensor): tensor for tensor in shared}
        self.results: dict[Hashable, list[Any]] = defaultdict(list)
        self.spoiled: set[int] = set()
        self.seen: dict[Hashable, int] = {}
        self.first = True
        self.steered = False

    def restart(self) -> None:
        """Called before each member but the first."""
        self.first = False
        self.steered = False
        self.seen = {}

    def is_shared(self, tensor: Tensor) -> bool:
        """Whether this tensor is the same for all members."""
        return id(tensor) in self.known and not (self.spoiled and _storage(tensor) in self.spoiled)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
        name = getattr(func, "__name__", "")
        for tensor in tensors:
            if not self.is_shared(tensor):
                if name in READS:
                    self.steered = True
                for target in _written(func, name, args, kwargs):
                    self._spoil(target)
                return func(*args, **kwargs)
        if self.steered or not (tensors or name in FACTORIES):
            return func(*args, **kwargs)
        return self._once((func, _signature(args), _signature(kwargs)), func, args, kwargs)

    def _once(self, key: Hashable, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        turn = self.seen.get(key, 0)
        self.seen[key] = turn + 1
        results = self.results[key]
        if turn < len(results):
            return results[turn]
        result = func(*args, **kwargs)
        made = _tensors(result)
        if self.first and made:
            results.append(result)
            self.known.update((id(tensor), tensor) for tensor in made)
        return result

    def _spoil(self, tensor: Tensor) -> None:
        """A member writes into this tensor: it, and all that share its memory, are each member's own from here on."""
        if id(tensor) not in self.known:
            return
        storage = _storage(tensor)
        self.spoiled.add(storage)
        if self.first:
            for key, results in list(self.results.items()):
                if any(_storage(made) == storage for result in results for made in _tensors(result)):
                    del self.results[key]


def _signature(value: Any) -> Hashable:
    """Arguments as a hashable value: tensors and objects by identity, plain values by type and value."""
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.device, torch.memory_format)):
        return (type(value), value)
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_signature, value))
    if isinstance(value, dict):
        return (dict, *((key, _signature(item)) for key, item in value.items()))
    if isinstance(value, slice):
        return (slice, value.start, value.stop, value.step)
    return id(value)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _storage(tensor: Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a tensor without memory of its own
        return id(tensor)


def _written(func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that this operation writes into."""
    targets = _tensors(kwargs.get("out"))
    schema = getattr(func, "_schema", None)
    if schema is not None:
        written = [value for value, spec in zip(args, schema.arguments, strict=False) if spec.is_write]
        return targets + _tensors(written)
    in_place = name.endswith("_") and not name.endswith("__")
    operator = name == "__setitem__" or (name.startswith("__i") and name not in ("__int__", "__index__", "__invert__"))
    if args and (in_place or operator or kwargs.get("inplace") is True or (name == "__set__")):
        targets += _tensors(args[0])
    return targets
