"""Places: where members lie in a plain tensor.

vmap wraps every tensor of members, and each layer unwraps it and wraps its result: in Python that takes as long as the layer.
So while vmap runs a network without a compiler, the tensors of members are plain ones, with a note of where members lie in
them. Layers with rules of our own read the note. Functions without a rule get wrapped tensors, as vmap would give them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from multitudes.engine.kernels.convolution import by_member, known_beside
from multitudes.errors import RunError

FIRST = "first"
"""Members lie along the first axis, ``[M, ...]``: parameters, and most results."""
BESIDE = "beside"
"""The channels of members lie beside each other, ``[B, (M C), ...]``: images between convolutions."""

RESHAPING = frozenset(
    f"{name}_" for name in "unsqueeze squeeze t transpose swapaxes swapdims resize resize_as set as_strided detach".split()
) | {"requires_grad_", "__set__"}
"""Methods that change what a tensor is, not its values: on a wrapped tensor they would not reach the plain one."""


class Members:
    """The tensors of members in one call of a network.

    count    the number of members
    level    the level of vmap at which tensors are wrapped
    tensors  the tensors that the call starts with, ``[M, ...]``
    dtype    the precision of autocast; None without it
    """

    def __init__(self, count: int, level: int, tensors: Iterable[Tensor], dtype: torch.dtype | None = None) -> None:
        self.count, self.level, self.dtype = count, level, dtype
        self.given = {id(tensor): tensor for tensor in tensors}

    def place(self, tensor: Tensor) -> str | None:
        """Returns where members lie in a plain tensor; None if it is common to them, or wrapped."""
        if id(tensor) in self.given:
            return FIRST
        note = getattr(tensor, "multitudes_place", None)
        if note is None:
            return None
        if note[0] is not self:
            raise RunError("forward reads a tensor that it kept from an earlier call, whose members may be other ones")
        return str(note[1])

    def put(self, tensor: Tensor, place: str) -> Tensor:
        """Notes where members lie in a new tensor, and returns it."""
        tensor.multitudes_place = (self, place)  # type: ignore[attr-defined]
        return tensor

    def lowered(self, tensor: Tensor) -> Tensor:
        """Casts an argument of a layer as autocast would, without a note."""
        return tensor if self.dtype is None or tensor.dtype is not torch.float32 else tensor.to(self.dtype)

    def by_axis(self, tensor: Tensor, place: str) -> tuple[Tensor, int]:
        """Returns a plain tensor with an axis of members, and which axis that is."""
        return (tensor, 0) if place == FIRST else (by_member(tensor, self.count), 1)

    def of_axis(self, tensor: Tensor, axis: int) -> Tensor:
        """Turns a new tensor with an axis of members back into a noted one, or else into a wrapped one."""
        if axis == 0:
            return self.put(tensor, FIRST)
        image = known_beside(tensor) if axis == 1 else None
        return functorch._add_batch_dim(tensor, axis, self.level) if image is None else self.put(image, BESIDE)

    def shape(self, tensor: Tensor) -> torch.Size:
        """Returns the shape of one member's tensor."""
        place = self.place(tensor)
        if place is None:
            return tensor.shape
        if place == FIRST:
            return tensor.shape[1:]
        return torch.Size((tensor.shape[0], tensor.shape[1] // self.count, *tensor.shape[2:]))

    def wrapped(self, value: Any) -> Any:
        """Wraps the tensors of members in an argument, also in lists, tuples and dicts."""
        if isinstance(value, Tensor):
            place = self.place(value)
            if place is not None:
                return functorch._add_batch_dim(*self.by_axis(value, place), self.level)
            if self._hides_members(value):
                raise RunError("a transform of torch.func in forward was given a tensor of members that vmap has not wrapped")
            return value
        if type(value) in (list, tuple):
            return type(value)([self.wrapped(one) for one in value])
        if type(value) is dict:
            return {key: self.wrapped(one) for key, one in value.items()}
        return value

    def _hides_members(self, tensor: Tensor) -> bool:
        """Whether a transform inside forward has wrapped a plain tensor of members, and takes it for one of a single member."""
        inner = tensor
        while functorch.is_functorch_wrapped_tensor(inner) and functorch.maybe_get_level(inner) > self.level:
            inner = functorch.get_unwrapped(inner)
        return inner is not tensor and self.place(inner) is not None

    def wrapped_for(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Wraps the arguments of a function without a rule. Refuses one that changes what a tensor of members is."""
        if getattr(func, "__name__", "") in RESHAPING and args and isinstance(args[0], Tensor) and self.place(args[0]):
            raise RunError(f"{func.__name__} on a tensor of members changes more than its values")
        return self.wrapped(args), self.wrapped(kwargs)

    def results(self, tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """Returns the results of the network with members first, ``[M, ...]``, and without notes."""
        results = tuple([self._stacked(tensor) for tensor in tensors])
        for tensor in results:
            vars(tensor).pop("multitudes_place", None)
        return results

    def _stacked(self, tensor: Tensor) -> Tensor:
        place = self.place(tensor)
        if place is None:
            return functorch._remove_batch_dim(tensor, self.level, self.count, 0)
        return tensor if place == FIRST else tensor.unflatten(1, (self.count, -1)).movedim(1, 0)
