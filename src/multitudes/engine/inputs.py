"""What a model is called with, and where its batch axis is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.modules import named_tensors
from multitudes.errors import InputError

BatchAxis = Any
"""An axis for all tensor inputs, or a list with an axis (None: no batch axis) for each of them in order."""


class Inputs:
    """The arguments of one call: `Inputs(ids, attention_mask=mask)` for a model called `model(ids, attention_mask=mask)`.

    A tensor stands for itself, so it is only needed for several arguments; a tuple or dict is one argument.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        shown = [_show(a) for a in self.args] + [f"{k}={_show(v)}" for k, v in self.kwargs.items()]
        return f"Inputs({', '.join(shown)})"

    @classmethod
    def of(cls, x: Any) -> Inputs:
        """`x` itself if it is one already, else a call with `x` as its only argument."""
        return x if isinstance(x, Inputs) else cls(x)

    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments, in order."""
        return tree.tensors((self.args, self.kwargs))

    def refill(self, values: list[Tensor]) -> Inputs:
        """The same call with other tensors."""
        args, kwargs = tree.refill((self.args, self.kwargs), values)
        return Inputs(*args, **kwargs)

    def described(self) -> dict[str, Any]:
        """The call as JSON: its structure, its constants, shapes and dtypes, without values."""
        return {"args": [_described(a) for a in self.args], "kwargs": {k: _described(v) for k, v in self.kwargs.items()}}

    @classmethod
    def like(cls, description: Mapping[str, Any], device: torch.device) -> Inputs:
        """A call of the described structure, on ones, and zeros for whole numbers."""
        args = [_like(a, device) for a in description["args"]]
        return cls(*args, **{key: _like(value, device) for key, value in description["kwargs"].items()})


KINDS = {"list": list, "tuple": tuple, "dict": dict}


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, Tensor):
        return {"kind": "tensor", "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"kind": "plain", "value": value}
    if type(value) in (list, tuple):
        return {"kind": type(value).__name__, "parts": [_described(part) for part in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"kind": "dict", "parts": {key: _described(part) for key, part in value.items()}}
    return {"kind": "other", "type": type(value).__name__}


def _like(description: Mapping[str, Any], device: torch.device) -> Any:
    kind = description["kind"]
    if kind == "tensor":
        dtype = getattr(torch, description["dtype"])
        make = torch.ones if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool else torch.zeros
        return make(description["shape"], dtype=dtype, device=device)  # a whole number may be an index: 0 is always one
    if kind == "plain":
        return description["value"]
    if kind not in KINDS:
        kind = description["type"]
        raise InputError(f"the example has a {kind}, which a file cannot describe: convert with plain tensors, lists and dicts")
    if kind == "dict":
        return {key: _like(part, device) for key, part in description["parts"].items()}
    return KINDS[kind](_like(part, device) for part in description["parts"])


def _show(value: Any) -> str:
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else repr(value)


def axes(call: Inputs, batch_axis: BatchAxis) -> list[int | None]:
    """The batch axis of each tensor of the call."""
    count = len(call.tensors())
    if batch_axis is None or isinstance(batch_axis, int):
        return [batch_axis] * count
    if len(batch_axis) != count:
        raise InputError(f"batch_axis={list(batch_axis)} names {len(batch_axis)} inputs, but the call has {count} tensors")
    return list(batch_axis)


def count_rows(call: Inputs, batch_axis: BatchAxis) -> int:
    """The number of rows B, on which all batched inputs must agree."""
    sizes = set()
    for tensor, axis in zip(call.tensors(), axes(call, batch_axis), strict=True):
        if axis is None:
            continue
        if not -tensor.ndim <= axis < tensor.ndim:
            raise InputError(f"batch_axis={axis}, but an input has shape {tuple(tensor.shape)}")
        sizes.add(tensor.shape[axis])
    if not sizes:
        raise InputError("no tensor input carries a batch axis")
    if len(sizes) > 1:
        raise InputError(
            f"the inputs {call} disagree about the number of rows ({sorted(sizes)}); "
            "give batch_axis=[0, None, ...] with one entry for each tensor, None for those without rows"
        )
    return int(sizes.pop())


def each_row(call: Inputs, batch_axis: BatchAxis, change: Any) -> Inputs:
    """The call with `change(tensor, axis)` in place of each tensor that has rows."""
    return call.refill(
        [
            tensor if axis is None else change(tensor, axis)
            for tensor, axis in zip(call.tensors(), axes(call, batch_axis), strict=True)
        ]
    )


def take_rows(call: Inputs, batch_axis: BatchAxis, index: Tensor) -> Inputs:
    """The call with only these rows."""
    return each_row(call, batch_axis, lambda tensor, axis: tensor.index_select(axis, index.to(tensor.device)))


def tile_rows(call: Inputs, batch_axis: BatchAxis, times: int) -> Inputs:
    """All rows, `times` over, copy-major: [B, ...] → [(times B), ...]."""
    return each_row(call, batch_axis, lambda tensor, axis: torch.cat([tensor] * times, dim=axis))


def slot(call: Inputs, batch_axis: BatchAxis, m: int) -> Inputs:
    """Member m's own inputs, where every tensor with rows carries a leading member axis."""
    return each_row(call, batch_axis, lambda tensor, axis: tensor[m])


def stack_slots(calls: list[Inputs], batch_axis: BatchAxis) -> Inputs:
    """Members' own inputs as one call: [B, ...] of each → [M, B, ...]."""
    columns = list(zip(*(call.tensors() for call in calls), strict=True))
    places = axes(calls[0], batch_axis)
    return calls[0].refill([column[0] if a is None else torch.stack(column) for column, a in zip(columns, places, strict=True)])


def join_slots(call: Inputs, batch_axis: BatchAxis) -> Inputs:
    """All members' own inputs as rows, member-major: [M, B, ...] → [(M B), ...]."""
    return each_row(call, batch_axis, lambda tensor, axis: torch.cat(tensor.unbind(0), dim=axis))


def fresh_inputs(inputs: Inputs) -> Inputs:
    """The same call on copies of its tensors."""
    return inputs.refill([t.detach().clone() for t in inputs.tensors()])


def checked_example(model: nn.Module, example: Any, batch_axis: BatchAxis, rows_at_least: int = 2) -> Inputs:
    """The example as a call of the model, with at least two rows: one is repeated."""
    inputs = Inputs.of(example)
    if not inputs.tensors():
        raise InputError(f"the example is a {type(example).__name__} without a tensor; give an input of the model")
    for tensor in inputs.tensors():
        if (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_meta and not tensor.isfinite().all():
            raise InputError(f"the example has NaN or infinite values in its {list(tensor.shape)} input")
    count = count_rows(inputs, batch_axis)
    if count == 0:
        raise InputError(f"the example {inputs} has no rows")
    places = {tensor.device.type for _, tensor in named_tensors(model)}
    others = {tensor.device.type for tensor in inputs.tensors()} - places
    if len(places) == 1 and others:
        raise InputError(f"the model is on {places.pop()}, the example on {others.pop()}")

    def told_apart(tensor: Tensor, axis: int) -> Tensor:
        return _distinct_rows(tensor, axis, max(count, rows_at_least))

    return each_row(inputs, batch_axis, told_apart)


def _distinct_rows(tensor: Tensor, axis: int, count: int) -> Tensor:
    """At least so many rows; of equal ones each a little off, since equal rows tell BatchNorm nothing."""
    first = tensor.narrow(axis, 0, 1)
    if tensor.shape[axis] >= count and (count == 1 or tensor.is_meta or not torch.equal(tensor, first.expand_as(tensor))):
        return tensor
    steps = [(1 + k * k / 16, k / 16) for k in range(count)]
    return torch.cat([first * a + b if tensor.is_floating_point() else first for a, b in steps], dim=axis)
