"""Inputs: the arguments of a model's call, and the batch axis of each tensor among them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from reprlib import repr as abbreviate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from multitudes.engine import tree
from multitudes.engine.modules import named_tensors
from multitudes.errors import InputError

BatchAxis = Any
"""One axis for all tensor inputs, or a list with one axis for each of them in order; None means no batch axis."""


class Inputs:
    """The arguments of one call: `Inputs(ids, attention_mask=mask)` for a model called `model(ids, attention_mask=mask)`.

    A model with one argument needs no Inputs: pass the argument itself. A tuple, list or dict is unpacked if forward takes its
    entries as arguments; `Inputs(x)` passes it as one argument, `Inputs(*x)` or `Inputs(**x)` as several.

    A dataset may hold pairs (Inputs, target): torch's DataLoader makes batches of them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        parts = [shown(a) for a in self.args] + [f"{k}={shown(v)}" for k, v in self.kwargs.items()]
        return f"Inputs({', '.join(parts)})"

    @classmethod
    def of(cls, x: Any) -> Inputs:
        """Returns `x` if it is an Inputs, otherwise an Inputs with `x` as its only argument."""
        return x if isinstance(x, Inputs) else cls(x)

    def tensors(self) -> list[Tensor]:
        """Returns all tensors among the arguments, in order."""
        return tree.tensors((self.args, self.kwargs))

    def refill(self, values: list[Tensor]) -> Inputs:
        """Returns the same call with other tensors."""
        if not self.kwargs and all(isinstance(arg, Tensor) for arg in self.args):
            return Inputs(*values)
        args, kwargs = tree.refill((self.args, self.kwargs), values)
        return Inputs(*args, **kwargs)

    def pin_memory(self, device: Any = None) -> Inputs:
        """Returns the call with tensors in pinned memory, for a DataLoader with pin_memory=True."""
        return self.refill([tensor.pin_memory() for tensor in self.tensors()])

    def described(self) -> dict[str, Any]:
        """Describes the call as JSON: structure, constants, shapes, dtypes, and the values of small tensors of whole numbers.

        Ids, masks and edges decide what many networks run; other values are left out. Files sort names, so the order of
        arguments by name is kept if it is another.
        """
        described: dict[str, Any] = {"args": [_described(a) for a in self.args]}
        described["kwargs"] = {k: _described(v) for k, v in self.kwargs.items()}
        return described if [*self.kwargs] == sorted(self.kwargs) else {**described, "order": [*self.kwargs]}

    @classmethod
    def like(cls, description: Mapping[str, Any], device: torch.device) -> Inputs:
        """Builds a call from its description. Without values, float and bool tensors are filled with ones, others with 0."""
        args, named = [_like(a, device) for a in description["args"]], description["kwargs"]
        return cls(*args, **{key: _like(named[key], device) for key in description.get("order", named)})


FEW_VALUES = 4096
"""Tensors of whole numbers with at most so many entries are described with their values."""

KINDS = {"list": list, "tuple": tuple, "dict": dict}


def _described(value: Any) -> dict[str, Any]:
    if isinstance(value, Tensor):
        described = {"kind": "tensor", "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        whole = not value.is_floating_point() and not value.is_complex() and not value.is_meta
        return {**described, "values": value.tolist()} if whole and value.numel() <= FEW_VALUES else described
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
        if "values" in description:
            return torch.tensor(description["values"], dtype=dtype, device=device).reshape(description["shape"])
        make = torch.ones if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool else torch.zeros
        return make(description["shape"], dtype=dtype, device=device)  # an integer may be an index, and 0 is always a valid one
    if kind == "plain":
        return description["value"]
    if kind not in KINDS:
        kind = description["type"]
        raise InputError(
            f"a file cannot store the {kind} in the example: convert with tensors, numbers, strings, lists and dicts"
        )
    if kind == "dict":
        return {key: _like(part, device) for key, part in description["parts"].items()}
    return KINDS[kind](_like(part, device) for part in description["parts"])


def shown(value: Any) -> str:
    """Writes a value in few words: tensors by shape and dtype, never by their numbers."""
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {value.dtype}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {shown(part)}' for key, part in value.items())}}}"
    if isinstance(value, (tuple, list)) and tree.tensors(value):
        inside = ", ".join(map(shown, value[:8])) + (", ..." if len(value) > 8 else "")
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    return abbreviate(value)


def _collate(calls: Sequence[Inputs], *, collate_fn_map: Any = None) -> Inputs:
    """Makes a batch of several examples: each argument is collated as torch's DataLoader does."""
    forms = {(len(call.args), *call.kwargs) for call in calls}
    if len(forms) > 1:
        raise InputError("examples of the dataset are mt.Inputs with different arguments: give all of them the same")
    args = [collate(part, collate_fn_map=collate_fn_map) for part in zip(*(call.args for call in calls), strict=True)]
    names = calls[0].kwargs
    return Inputs(*args, **{k: collate([call.kwargs[k] for call in calls], collate_fn_map=collate_fn_map) for k in names})


default_collate_fn_map[Inputs] = _collate  # so that torch's DataLoader makes batches of datasets with Inputs


def axes(call: Inputs, batch_axis: BatchAxis) -> list[int | None]:
    """Returns the batch axis of each tensor of the call."""
    count = len(call.tensors())
    if batch_axis is None or isinstance(batch_axis, int):
        return [batch_axis] * count
    if len(batch_axis) != count:
        raise InputError(
            f"batch_axis={list(batch_axis)} has {len(batch_axis)} entries, but the call has {count} tensors: give one for each"
        )
    return list(batch_axis)


def count_rows(call: Inputs, batch_axis: BatchAxis) -> int:
    """Returns the number of rows B, which all inputs with a batch axis must share."""
    sizes = set()
    for tensor, axis in zip(call.tensors(), axes(call, batch_axis), strict=True):
        if axis is None:
            continue
        if not -tensor.ndim <= axis < tensor.ndim:
            raise InputError(
                f"batch_axis={axis} does not exist in an input of shape {tuple(tensor.shape)}: give its batch axis, or None"
            )
        sizes.add(tensor.shape[axis])
    if not call.tensors():
        kinds = sorted({type(part).__name__ for part in [*call.args, *call.kwargs.values()]})
        raise InputError(
            f"the inputs have no tensor, but {', '.join(kinds) or 'nothing'}: give tensors, for texts the ids of a tokenizer"
        )
    if not sizes:
        raise InputError("no input tensor has a batch axis: set batch_axis= to an axis for at least one tensor")
    if len(sizes) > 1:
        raise InputError(
            f"the inputs {call} disagree about the number of rows ({sorted(sizes)}): "
            "give batch_axis=[0, None, ...] with one entry per tensor, None for tensors without rows"
        )
    return int(sizes.pop())


def each_row(call: Inputs, batch_axis: BatchAxis, change: Any) -> Inputs:
    """Applies `change(tensor, axis)` to each tensor that has a batch axis."""
    return call.refill(
        [
            tensor if axis is None else change(tensor, axis)
            for tensor, axis in zip(call.tensors(), axes(call, batch_axis), strict=True)
        ]
    )


def take_rows(call: Inputs, batch_axis: BatchAxis, index: Tensor) -> Inputs:
    """Returns the call with only these rows, in this order."""
    return each_row(call, batch_axis, lambda tensor, axis: tensor.index_select(axis, index.to(tensor.device)))


def add_row(call: Inputs, batch_axis: BatchAxis) -> Inputs:
    """Returns the call with its first row repeated at the end: [B, ...] → [B + 1, ...]."""
    return take_rows(call, batch_axis, torch.tensor([*range(count_rows(call, batch_axis)), 0]))


def row_axis(small: Sequence[int], large: Sequence[int], count: int) -> int | None:
    """Returns the batch axis of a tensor from its shapes at `count` rows and at one row more; None if the shapes are equal.

    The size along the axis must be a multiple of the number of rows; otherwise this raises a ValueError.
    """
    grown = [axis for axis, (a, b) in enumerate(zip(small, large, strict=False)) if a != b]
    if not grown and len(small) == len(large):
        return None
    if len(small) != len(large) or len(grown) > 1 or small[grown[0]] * (count + 1) != large[grown[0]] * count:
        raise ValueError(f"with one more row its shape {list(small)} becomes {list(large)}, but only the batch axis may grow")
    return grown[0]


def tile_rows(call: Inputs, batch_axis: BatchAxis, times: int) -> Inputs:
    """Repeats all rows, copy-major: [B, ...] → [(times B), ...]."""
    return each_row(call, batch_axis, lambda tensor, axis: torch.cat([tensor] * times, dim=axis))


def slot(call: Inputs, batch_axis: BatchAxis, m: int) -> Inputs:
    """Returns member m's inputs from inputs with a member axis: [M, B, ...] → [B, ...]."""
    return each_row(call, batch_axis, lambda tensor, axis: tensor[m])


def stack_slots(calls: list[Inputs], batch_axis: BatchAxis) -> Inputs:
    """Stacks the members' inputs into one call: M times [B, ...] → [M, B, ...]."""
    columns = list(zip(*(call.tensors() for call in calls), strict=True))
    places = axes(calls[0], batch_axis)
    return calls[0].refill([column[0] if a is None else torch.stack(column) for column, a in zip(columns, places, strict=True)])


def join_slots(call: Inputs, batch_axis: BatchAxis) -> Inputs:
    """Joins the members' inputs as rows, member-major: [M, B, ...] → [(M B), ...]."""
    return each_row(call, batch_axis, lambda tensor, axis: torch.cat(tensor.unbind(0), dim=axis))


def fresh_inputs(inputs: Inputs) -> Inputs:
    """Returns the same call on copies of its tensors."""
    return inputs.refill([t.detach().clone() for t in inputs.tensors()])


def cast_advice(given: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> str:
    """Returns what to type for inputs of another dtype than the network takes, such as x.float(); "" if there are none."""
    other = next((dtype for tensor, dtype in zip(given, dtypes, strict=False) if tensor.dtype != dtype), None)
    names = {torch.float32: "x.float()", torch.float64: "x.double()", torch.int64: "x.long()"}
    return "" if other is None else names.get(other, f"x.to({other})")


def checked_example(model: nn.Module, example: Any, batch_axis: BatchAxis, rows_at_least: int = 2) -> Inputs:
    """Checks the example. Returns it as a call with at least `rows_at_least` rows; a single row is repeated."""
    inputs = Inputs.of(example)
    if not inputs.tensors():
        raise InputError(_no_tensor(inputs))
    for tensor in inputs.tensors():
        if tensor.layout is not torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            raise InputError(
                f"the example has a tensor of layout {kind}, of which no rows can be taken: give a dense one, such as "
                "x.to_dense(), or indices; a matrix that is the same for all rows belongs into the model"
            )
        if (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_meta and not tensor.isfinite().all():
            raise InputError(f"the example has NaN or infinite values in its {list(tensor.shape)} input: give finite ones")
    count = count_rows(inputs, batch_axis)
    if count == 0:
        raise InputError(f"the example {inputs} has no rows: give at least one")
    devices = {tensor.device.type for _, tensor in named_tensors(model)}
    others = {tensor.device.type for tensor in inputs.tensors()} - devices
    if len(devices) == 1 and others:
        place, other = devices.pop(), others.pop()
        if "meta" in (place, other):
            what = "model has no weights" if place == "meta" else "example has no numbers"
            raise InputError(f"the {what}, since it is on the meta device: build it on {other if place == 'meta' else place}")
        raise InputError(f"the model is on {place}, the example on {other}: move one of them with .to(device)")
    return each_row(inputs, batch_axis, lambda tensor, axis: _distinct_rows(tensor, axis, max(count, rows_at_least)))


def _no_tensor(inputs: Inputs) -> str:
    """Says what to type in place of an example without tensors: a shape, a dataset, an array."""
    parts = [*inputs.args, *inputs.kwargs.values()]
    first = next(iter(parts), None)
    sizes = first if isinstance(first, (tuple, list)) and len(parts) == 1 else parts
    if sizes and all(type(size) is int and size > 0 for size in sizes):
        shape = ", ".join(map(str, sizes))
        return f"the example is a shape, ({shape}), not a tensor: give a batch of this shape, torch.randn({shape})"
    give = "torch.as_tensor(x)" if hasattr(first, "__array__") else "torch.randn(2, 30) for two rows of 30 numbers"
    if isinstance(first, list):
        give = _of_lists(first) or give
    if isinstance(first, Dataset | DataLoader):
        give = "a batch of its inputs, next(iter(DataLoader(dataset, batch_size=2)))[0]"
    return f"the example is a {type(first).__name__}, not an input of the model: give a tensor, {give}"


def _of_lists(rows: list[Any]) -> str:
    """Returns what makes a tensor of lists of numbers, which may be of different lengths; "" if they are something else."""
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        torch.tensor(rows)
        return "torch.tensor(x)"
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        [torch.tensor(row) for row in rows]
        return "torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in x], batch_first=True), whose rows have one length"
    return ""


def _distinct_rows(tensor: Tensor, axis: int, count: int) -> Tensor:
    """Returns at least `count` rows. Equal rows are scaled and shifted a little, since BatchNorm needs rows that differ."""
    first = tensor.narrow(axis, 0, 1)
    if tensor.shape[axis] >= count and (count == 1 or tensor.is_meta or not torch.equal(tensor, first.expand_as(tensor))):
        return tensor
    steps = [(1 + k * k / 16, k / 16) for k in range(count)]
    return torch.cat([first * a + b if tensor.is_floating_point() else first for a, b in steps], dim=axis)
