"""Finds counts that a resized network changed with its widths: words, experts, latents, taps, heads, repeated steps.

A constructor that was only guessed, or numbers in its code, may be counts as well as widths, and a network with fewer of them
runs too. What cannot be told from a count is reported.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from multitudes.conversion.anatomy.known_layers import taught_name
from multitudes.conversion.anatomy.structure import NORMS, Structure
from multitudes.conversion.resize.audit import run_of, width_of
from multitudes.engine.modules import named_tensors, owning_module
from multitudes.engine.program import Tracer

TABLES = (nn.Embedding, nn.EmbeddingBag)
ROUNDED = 4
"""By how many channels an input may be narrower than the ratio says."""


def changed_tables(structure: Structure, new: nn.Module) -> Iterator[str]:
    """Reports tables with another number of rows: words, positions and labels are no channels."""
    tensors = dict(named_tensors(new))
    for name, table in named_tensors(structure.model):
        layer = owning_module(name)
        part: Any = structure.model.get_submodule(layer)
        held = name in structure.tables or isinstance(part, TABLES)
        if held and table.ndim:  # a table may hold a number too, by which its rows are multiplied
            rows, now = len(table), len(tensors[name])
            other: Any = new.get_submodule(layer)
            one_row = isinstance(part, TABLES) and table.ndim == 1 and (rows, now) == (part.embedding_dim, other.embedding_dim)
            if rows != now and not one_row:  # a row beside the table, such as that of one word, is as wide as the table
                yield f"{layer or name} would have {now} rows instead of {rows}, but their number is no width"


def changed_counts(
    structure: Structure, new: nn.Module, ratio: float, in_code: Collection[str], features: Collection[str] = ()
) -> Iterator[str]:
    """Reports what may be a count in a network whose numbers were guessed.

    in_code   the tensors that follow numbers in its constructors' code
    features  buffers that make features for layers: their sizes are widths
    """
    model, inputs = structure.model, structure.inputs
    yield from _changed_loose(structure, new, in_code, features)
    for name, part in model.named_modules():
        other: Any = new.get_submodule(name)
        if isinstance(part, nn.GroupNorm) and part.num_groups != other.num_groups:
            yield f"{name} would have {other.num_groups} groups instead of {part.num_groups}"
        if isinstance(part, (nn.Linear, _ConvNd)):
            before, after = part.weight.shape[1], other.weight.shape[1]
            if ratio < 1 and after < 0.75 * ratio * before - ROUNDED:
                yield f"{name} would read {after} inputs instead of {before}: two of the numbers that make them shrink"
    splits, splits_now = run_of(model, inputs).splits, run_of(new, inputs).splits
    if any(_fewer_heads(*pair, *pair_now) for pair, pair_now in zip(splits, splits_now, strict=False)):
        yield "it may have another number of heads: where channels are split, their size stays and their number shrinks"
    try:
        full, thin = Tracer(model).program(inputs), Tracer(new).program(inputs)
    except Exception:  # values decide what runs
        return
    if full.names != thin.names:
        yield f"it would run {len(thin.names)} operations instead of {len(full.names)}, so a number of steps follows the width"


def _changed_loose(structure: Structure, new: nn.Module, in_code: Collection[str], features: Collection[str]) -> Iterator[str]:
    """Reports tensors that belong to no layer of torch's if axes of theirs changed that may be counts."""
    model = structure.model
    widths = {width_of(part) for part in model.modules()}
    after = dict(named_tensors(new))
    for name, tensor in named_tensors(model):
        if (
            name not in after
            or name in features
            or type(model.get_submodule(owning_module(name))).__module__.startswith("torch.nn.")
        ):
            continue
        shape, now = tuple(tensor.shape), tuple(after[name].shape)
        changed = {axis for axis, (a, b) in enumerate(zip(shape, now, strict=True)) if a != b}
        if changed <= _channel_axes(model.get_submodule(owning_module(name)), name) | _product_axes(structure, name, widths):
            continue
        if not _may_change(shape, changed, widths, isinstance(tensor, nn.Parameter), name in in_code):
            yield f"{name} would be {list(now)} instead of {list(shape)}, and which of its axes are channels is not known"


def _channel_axes(layer: nn.Module, name: str) -> set[int]:
    """Returns the axes of a tensor that are channels, if torch's own layer, of which this one is a kind, holds it too.

    Linear layers and convolutions of other libraries that are known by name count as kinds of torch's.
    """
    if name.rpartition(".")[2] not in ("weight", "bias", "running_mean", "running_var"):
        return set()
    linear = isinstance(layer, (nn.Linear, _ConvNd)) or taught_name(layer) is not None
    return {0, 1} if linear else {0} if isinstance(layer, NORMS) else set()


def _product_axes(structure: Structure, name: str, widths: Collection[int]) -> set[int]:
    """Returns the axes of a matrix W ``[C, D]`` that are channels in products x @ W, where C is the width of a layer."""
    if structure.summed_axes.get(name) != -2:
        return set()
    shape = structure.model.get_parameter(name).shape
    return {len(shape) - 2, len(shape) - 1} if shape[-2] in widths else set()


def _may_change(shape: Sequence[int], changed: set[int], widths: Collection[int], parameter: bool, in_code: bool) -> bool:
    """Whether axes that changed are channels: the last one alone; of arguments, some axes but not all.

    A vector may have further axes of one entry, as the scales ``[1, C, 1, 1]`` of a norm.
    """
    if in_code and not parameter:
        return False
    if len(shape) == 1 or sum(size > 1 for size in shape) == 1:
        return not in_code or max(shape) in widths
    if changed == {len(shape) - 1}:
        return True
    return not in_code and changed < {axis for axis, size in enumerate(shape) if size > 1}


def _fewer_heads(given: Sequence[int], split: Sequence[int], thin: Sequence[int], thin_split: Sequence[int]) -> bool:
    """Whether an axis of channels is split so that its last part, the size of a head, stays and the one before shrinks.

    What stands before these two, as the three of queries, keys and values, stays too.
    """
    parts, thin_parts = _regrouped(given, split), _regrouped(thin, thin_split)
    if len(parts) != len(thin_parts) or len(split) != len(thin_split):
        return False
    for (_, inner), (_, now) in zip(parts, thin_parts, strict=True):
        if len(inner) == len(now) > 1 and inner[-1] == now[-1] > 1 and inner[-2] != now[-2] and inner[:-2] == now[:-2]:
            return True
    return False


def _regrouped(given: Sequence[int], split: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Returns for each axis of a tensor the axes that it is split into by a reshape; nothing if it is none.

    Axes of one entry are left out.
    """
    parts: list[tuple[int, tuple[int, ...]]] = []
    rest = [size for size in split if size > 1]
    for size in [size for size in given if size > 1]:
        inner: list[int] = []
        while rest and math.prod(inner) < size:
            inner.append(rest.pop(0))
        if math.prod(inner) != size:
            return []
        parts.append((size, tuple(inner)))
    return [] if rest else parts
