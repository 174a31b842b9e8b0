"""A smaller example: the fewest rows and the smallest input on which a network runs the same program.

What is proved of a network on a few pixels or tokens holds for many, as long as the same operations run in the same order.
Programs are compared on the meta device. Where a network cannot run there, or runs another program, the example stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import nn

from multitudes.engine import tree
from multitudes.engine.inputs import BatchAxis, Inputs, axes, checked_example, count_rows, fresh_inputs, take_rows
from multitudes.engine.modules import batch_norms, detached_copy
from multitudes.engine.program import Decisions, Program, Tracer
from multitudes.engine.proof.outcome import close, restored

LARGE = 1e8
"""Multiply-adds of two rows from which on a smaller example pays: below, finding it takes longer than the proof."""
LONG = 200
"""Operations from which on a network is large too: then most of a run's time is Python's."""
MANY, FEW = 16, 4
"""Most and fewest rows that must not see each other: most, where they run in `AT_ONCE` multiply-adds."""
AT_ONCE = 10**10
ROWS = 8
"""Examples of a small network with no more rows than this are used as they are."""
VALUES = 16
"""BatchNorm over fewer values of a channel amplifies rounding errors too much for a row alone."""
SIZES = (16, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Sizes that are tried for the axes of an input, the smallest first."""


@dataclass(frozen=True)
class SmallExample:
    """The smallest example on which a model runs the same program."""

    inputs: Inputs
    two_rows: Inputs
    """The same with two rows, for proofs that need rows to differ."""
    large: bool = False
    """Whether the model is large: trials of it should be few."""
    decisions: Decisions = field(default_factory=Decisions)
    """What the values of the example decided."""
    multiply_adds: int | None = None
    """The multiply-adds of the model on the whole example, if it is large."""
    apart: bool = True
    """Whether rows of the whole example have the outputs that they have in smaller batches."""


def smaller(model: nn.Module, inputs: Inputs, batch_axis: BatchAxis) -> SmallExample:
    """Returns the smallest example on which the model runs the same program as on `inputs`."""
    rows, tensors = count_rows(inputs, batch_axis), inputs.tensors()
    at_most = sum(p.numel() for p in model.parameters()) * sum(t.numel() for t in tensors) / rows
    if rows <= ROWS and at_most <= LARGE and sum(1 for _ in model.modules()) <= LONG:
        return SmallExample(inputs, inputs, apart=rows_are_apart(model, inputs, batch_axis))
    try:
        tracer = Tracer(model)
        program = tracer.program(inputs)
        decisions, tracer.decisions = tracer.decisions, Decisions()
    except Exception:  # the example does not run: its observation says why
        return SmallExample(inputs, inputs)
    many = inputs
    if rows > 2 and None not in axes(inputs, batch_axis):  # a tensor without rows may name rows
        each = max(program.multiply_adds // rows, 1)
        many = take_rows(inputs, batch_axis, torch.arange(min(rows, MANY, max(FEW, AT_ONCE // each))))
        few = checked_example(model, take_rows(inputs, batch_axis, torch.arange(2)), batch_axis)
        inputs = few if _covers(tracer, few, program, rows) else inputs
    rows = count_rows(inputs, batch_axis)
    if program.multiply_adds * min(2 / rows, 1) <= LARGE and len(program.names) < LONG:
        return SmallExample(inputs, inputs, apart=rows_are_apart(model, many, batch_axis))
    for size, places in _equal_axes(inputs, batch_axis).items():
        cuts = (_cut(inputs, places, new) for new in SIZES if 2 * new <= size)
        found = next((cut for cut in cuts if cut is not None and _covers(tracer, cut, program, rows)), inputs)
        if found is not inputs and many is not inputs:
            many = _cut(many, places, found.tensors()[places[0][0]].shape[places[0][1]]) or found
        inputs = found
    one = inputs
    if None not in axes(inputs, batch_axis):
        row = take_rows(inputs, batch_axis, torch.zeros(1, dtype=torch.long))
        alone = _covers(tracer, row, tracer.program(inputs), rows)
        one = row if alone and _trains_alone(tracer, row, inputs, rows) else inputs
    return SmallExample(one, inputs, True, decisions, program.multiply_adds, rows_are_apart(model, many, batch_axis))


def rows_are_apart(model: nn.Module, inputs: Inputs, batch_axis: BatchAxis) -> bool:
    """Whether each half of the rows has the outputs that it has alone. A layer of experts that take so many rows has others.

    True as well where that cannot be told: of two rows or fewer, of random outputs, and if the halves do not run.
    """
    count = count_rows(inputs, batch_axis)
    if count < 3 or None in axes(inputs, batch_axis):
        return True
    halves = torch.arange(count).tensor_split(2)
    try:
        with restored(model, "eval"):  # a copy may keep functions of the model itself
            copy = detached_copy(model, {})  # forward may keep something, or write into weights
            whole, again = _predicted(copy, inputs), _predicted(copy, inputs, seed=1)
            parts = [_predicted(copy, take_rows(inputs, batch_axis, rows)) for rows in halves]
        if not all(close(a, b) for a, b in zip(again, whole, strict=True)):
            return True
        for tensor, *pieces in zip(whole, *parts, strict=True):
            grown = [at for at, (a, b) in enumerate(zip(pieces[0].shape, tensor.shape, strict=True)) if a != b]
            if len(grown) == 1 and not close(torch.cat(pieces, grown[0]), tensor):
                return False
    except Exception:
        return True
    return True


def _predicted(model: nn.Module, inputs: Inputs, seed: int = 0) -> list[torch.Tensor]:
    call = fresh_inputs(inputs)
    with restored(model, "eval", seed), torch.no_grad():
        return tree.tensors(model(*call.args, **call.kwargs))


def _equal_axes(inputs: Inputs, batch_axis: BatchAxis) -> dict[int, list[tuple[int, int]]]:
    """Groups the axes of the inputs by their size, the largest first: height and width, or all tensors of one sequence."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for index, (tensor, rows) in enumerate(zip(inputs.tensors(), axes(inputs, batch_axis), strict=True)):
        own = None if rows is None else rows % tensor.ndim
        for axis, size in enumerate(tensor.shape):
            if axis != own and size >= 2 * SIZES[0]:
                groups.setdefault(size, []).append((index, axis))
    return dict(sorted(groups.items(), reverse=True))


def _cut(inputs: Inputs, places: list[tuple[int, int]], size: int) -> Inputs | None:
    """Returns the inputs with the first or last `size` entries along these axes; None if a mask would lose all its ones."""
    for last in (False, True):
        tensors = inputs.tensors()
        for index, axis in places:
            start = tensors[index].shape[axis] - size if last else 0
            tensors[index] = tensors[index].narrow(axis, start, size).clone()
        flags = [t for t in tensors if not t.is_floating_point() and not t.is_complex()]
        if all(bool(t.flatten(1).any(1).all()) for t in flags if t.ndim > 1 and not t.is_meta) or size == 1:
            return inputs.refill(tensors)
    return None


def _trains_alone(tracer: Tracer, row: Inputs, inputs: Inputs, rows: int) -> bool:
    """Whether one row trains as several do: by the same program, with at least `VALUES` values of each channel in BatchNorm."""
    try:
        one, several = tracer.program(row, "train"), tracer.program(inputs, "train")
    except Exception:  # norms of one value per channel
        return False
    normed = [shapes[0] for name, shapes in zip(one.names, one.shapes, strict=True) if "batch_norm" in name]
    values = min((math.prod(shape) // shape[1] for shape in normed), default=0 if batch_norms(tracer.model) else VALUES)
    return values >= VALUES and one.covers(several, rows)


def _covers(tracer: Tracer, inputs: Inputs, program: Program, rows: int | None = None) -> bool:
    try:
        return tracer.program(inputs).covers(program, rows)
    except Exception:  # too small, or of another size than the network is made for
        return False
