"""Forms: where the axis of members lies in a tensor of the graph of all members.

    shared      [...]                 the same for all members
    leading     [M, ...]              an axis of its own
    rows        [(M B), ...]          members merged into the first axis: shared layers see them as more rows
    channels    [B, (M C), ...]       members merged into the second axis: layers of members are groups of one layer

A value knows its form, and the shape that one member sees, its logical shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import SymInt, Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

Form = Literal["shared", "leading", "rows", "channels"]


@dataclass(frozen=True)
class Stored:
    """A tensor that the graph stores: a weight, a statistic, a mask."""

    name: str
    sizes: tuple[int, ...]
    read: Callable[[], Tensor]
    """Returns the tensor as it is. Who needs it in another shape asks `Run.prepared`, and does not read it."""


class Value:
    """A tensor of the graph, and where its axis of members is."""

    def __init__(self, tensor: Tensor | Stored, form: Form = "shared", members: int = 1) -> None:
        self.stored = tensor if isinstance(tensor, Stored) else None
        self._tensor = tensor
        self.form: Form = form
        self.members = members

    @property
    def tensor(self) -> Tensor:
        """The tensor itself."""
        return self._tensor.read() if isinstance(self._tensor, Stored) else self._tensor

    @property
    def sizes(self) -> list[Any]:
        """The shape of the tensor itself."""
        return list(self._tensor.sizes if isinstance(self._tensor, Stored) else self._tensor.shape)

    def of(self, members: int) -> Value:
        """Returns the same value of an ensemble of so many members."""
        return Value(self._tensor, self.form, members)

    @property
    def batched(self) -> bool:
        """Whether members have different values."""
        return self.form != "shared"

    @property
    def shape(self) -> list[Any]:
        """The shape that one member sees."""
        sizes = self.sizes
        if self.form == "leading":
            return sizes[1:]
        at = {"rows": 0, "channels": 1}.get(self.form)
        if at is not None:
            sizes[at] = sizes[at] // self.members
        return sizes

    @property
    def rank(self) -> int:
        """The number of axes that one member sees."""
        return len(self.sizes) - (self.form == "leading")

    def like(self, tensor: Tensor, form: Form | None = None) -> Value:
        """Returns another tensor of the same number of members, by default in the same form."""
        return Value(tensor, form or self.form, self.members)


def resized(tensor: Tensor, sizes: Sequence[Any]) -> Tensor:
    """Reshapes a tensor. One size that depends on the batch is left to be inferred, so that the sizes are constants."""
    wanted = list(sizes)
    free = [at for at, size in enumerate(wanted) if isinstance(size, SymInt)]
    if len(free) == 1 and -1 not in [size for size in wanted if not isinstance(size, SymInt)]:
        wanted[free[0]] = -1
    return solid(tensor).view(wanted)


def solid(tensor: Tensor) -> Tensor:
    """Returns a contiguous tensor. Without it torch would compare strides for a reshape, which may fix the batch size."""
    step: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if str(stride) != str(step):
            return tensor.clone(memory_format=torch.contiguous_format)
        step = step * size
    return tensor


def equal(one: Any, other: Any) -> bool:
    """Whether two sizes are known to be equal for every batch size."""
    return bool(statically_known_true(one == other))


def to_leading(value: Value) -> Tensor:
    """Returns the tensor as ``[M, ...]``; of a shared value as ``[1, ...]``."""
    tensor, shape = value.tensor, value.shape
    if value.form == "shared":
        return tensor.unsqueeze(0)
    if value.form == "rows":
        return resized(tensor, [value.members, *shape])
    if value.form == "channels":
        return resized(tensor, [shape[0], value.members, *shape[1:]]).transpose(0, 1)
    return tensor


def to_rows(value: Value) -> Tensor:
    """Returns the tensor as ``[(M B), ...]``, also of a shared value."""
    if value.form == "rows":
        return value.tensor
    shape = value.shape
    if value.form == "shared":
        return value.tensor.repeat(value.members, *(1 for _ in shape[1:]))
    return resized(to_leading(value), [value.members * shape[0], *shape[1:]])


def to_channels(value: Value) -> Tensor:
    """Returns the tensor as ``[B, (M C), ...]``, also of a shared value."""
    if value.form == "channels":
        return value.tensor
    shape = value.shape
    if value.form == "shared":
        return value.tensor.repeat(1, value.members, *(1 for _ in shape[2:]))
    return resized(to_leading(value).transpose(0, 1), [shape[0], value.members * shape[1], *shape[2:]])


def aligned(value: Value, rank: int) -> Tensor:
    """Returns the tensor as ``[M or 1, 1, ..., ...]`` with `rank` axes after the members': it then broadcasts with others."""
    tensor = to_leading(value)
    for _ in range(rank - value.rank):
        tensor = tensor.unsqueeze(1)
    return tensor


def put_into(value: Value, form: Form, rank: int, channels: Any) -> Tensor | None:
    """Returns an operand for a pointwise operation on tensors of this form; None if it has no cheap one.

    rank       the number of axes of the result, as one member sees it
    channels   the size of the second axis of the result
    """
    missing = rank - value.rank
    shape = [1] * missing + value.shape
    if value.form == form and missing == 0 and (form != "channels" or equal(shape[1], channels)):
        return value.tensor
    if form == "rows":
        if value.form == "shared":
            return value.tensor if missing or equal(shape[0], 1) else None
        return to_rows(value) if value.form == "leading" and not missing and not equal(shape[0], 1) else None
    if value.form == "rows" or not (equal(shape[1], channels) or equal(shape[1], 1)):
        return None
    if value.form == "shared":
        if equal(shape[1], 1):
            return value.tensor
        return value.tensor.reshape(shape).repeat(1, value.members, *(1 for _ in shape[2:]))
    if value.form == "channels" or not equal(shape[0], 1):
        return None
    own = aligned(value, rank)  # [M, 1, C or 1, ...]
    whole = own.expand(value.members, 1, channels, *shape[2:])
    return whole.reshape(1, value.members * channels, *shape[2:])


def plain(argument: Any) -> Any:
    """Returns an argument with the tensors of its values."""
    if isinstance(argument, Value):
        return argument.tensor
    if isinstance(argument, (list, tuple)):
        return type(argument)(plain(one) for one in argument)
    if isinstance(argument, dict):
        return {name: plain(one) for name, one in argument.items()}
    return argument


def values_in(arguments: Any) -> list[Value]:
    """Lists the values among arguments, also inside lists."""
    if isinstance(arguments, Value):
        return [arguments]
    if isinstance(arguments, (list, tuple)):
        return [value for one in arguments for value in values_in(one)]
    if isinstance(arguments, dict):
        return values_in(list(arguments.values()))
    return []


def of_member(argument: Any, m: int) -> Any:
    """Returns an argument as member m sees it."""
    if isinstance(argument, Value):
        return to_leading(argument)[m] if argument.batched else argument.tensor
    if isinstance(argument, (list, tuple)):
        return type(argument)(of_member(one, m) for one in argument)
    if isinstance(argument, dict):
        return {name: of_member(one, m) for name, one in argument.items()}
    return argument


def stacked(outputs: list[Any], members: int) -> Any:
    """Stacks the members' outputs of one operation."""
    if isinstance(outputs[0], Tensor):
        return Value(torch.stack(outputs), "leading", members)
    if isinstance(outputs[0], (list, tuple)):
        return [stacked(list(column), members) for column in zip(*outputs, strict=True)]
    return outputs[0]
