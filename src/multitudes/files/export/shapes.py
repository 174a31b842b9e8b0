"""Rules of pointwise operations, norms, pooling, and operations along axes."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.files.export.forms import (
    Form,
    Value,
    aligned,
    equal,
    put_into,
    resized,
    to_channels,
    to_leading,
    to_rows,
    values_in,
)
from multitudes.files.export.rules import Run, Step, rule

PACKED: dict[str, int] = {"rows": 0, "channels": 1}
"""The axis into which a form merges the members."""


def pointwise(run: Run, step: Step) -> Value:
    """Broadcasts operands of several forms: in the form of the largest if that is cheap, otherwise with an axis of members."""
    operands = [value for value in step.arguments.values() if isinstance(value, Value)]
    rank = max(value.rank for value in operands)
    for chosen in operands:
        if chosen.form in PACKED and chosen.rank == rank:
            channels = chosen.shape[1] if rank > 1 else 1
            tensors = [put_into(run.of(value), chosen.form, rank, channels) for value in operands]
            if all(tensor is not None for tensor in tensors):
                return _called(run, step, operands, tensors, chosen.form)
    return _called(run, step, operands, [aligned(run.of(value), rank) for value in operands], "leading")


def _called(run: Run, step: Step, operands: list[Value], tensors: list[Any], form: Form) -> Value:
    replaced = dict(zip([n for n, v in step.arguments.items() if isinstance(v, Value)], tensors, strict=True))
    return run.value(step.call(**replaced), form)


@rule("clone", "_to_copy", "alias", "detach", "contiguous", "lift_fresh_copy", "dropout")
def keep(run: Run, step: Step) -> Value:
    """An operation on each element, in any form."""
    first = step.names[0]
    kwargs = {"memory_format": None} if "memory_format" in step.names else {}
    return step[first].like(step.call(**kwargs))


@rule("_native_batch_norm_legit_no_training")
def normalise_batch(run: Run, step: Step) -> list[Value | None] | None:
    """BatchNorm with its running statistics: one norm over members' channels, or a scale and a shift of each member."""
    x, names = step["input"], ("weight", "bias", "running_mean", "running_var")
    vectors = {name: step[name] for name in names if step[name] is not None}
    own = any(vector.batched for vector in vectors.values())
    if not own and x.form != "channels":
        return [x.like(step.call(input=to_rows(x))[0], "rows"), None, None]
    if own and x.form != "channels":
        return [_scaled(run, x, step, vectors), None, None]
    whole = {name: _whole_vector(run, vector) for name, vector in vectors.items()}
    return [run.value(step.call(input=x.tensor, **whole)[0], "channels"), None, None]


def _whole_vector(run: Run, vector: Value) -> Tensor:
    if vector.batched:
        return run.prepared(vector, "merged", lambda v: v.flatten(0, 1))
    return run.prepared(vector, "repeated", lambda v: v.repeat(run.members))


def _scaled(run: Run, x: Value, step: Step, vectors: dict[str, Value]) -> Value:
    """(x − mean) / √(var + eps) · weight + bias, with an axis of members."""
    shape = [1, -1, *(1 for _ in range(x.rank - 2))]
    own = {n: to_leading(v).reshape(v.members if v.batched else 1, *shape) for n, v in vectors.items()}
    scale = (own["running_var"] + step["eps"]).rsqrt()
    scale = scale * own["weight"] if "weight" in own else scale
    shift = -own["running_mean"] * scale
    shift = shift + own["bias"] if "bias" in own else shift
    return run.value(to_leading(x) * scale + shift, "leading")


@rule("layer_norm", "rms_norm")
def normalise_layer(run: Run, step: Step) -> Value | None:
    """LayerNorm or RMSNorm over the last axes; members' weights are multiplied after it."""
    x, axes = step["input"], len(step["normalized_shape"])
    if x.form in PACKED and PACKED[x.form] >= x.rank - axes:
        x = x.like(to_leading(x), "leading")
    vectors = {name: step[name] for name in ("weight", "bias") if name in step.names}
    if not any(vector is not None and vector.batched for vector in vectors.values()):
        return x.like(step.call(input=x.tensor))
    y = step.call(input=to_leading(x), **dict.fromkeys(vectors))
    for name, vector in vectors.items():
        if vector is not None:
            own = run.prepared(vector, f"aligned {x.rank}", functools.partial(_with_axes, vector, x.rank))
            y = y * own if name == "weight" else y + own
    return run.value(y, "leading")


def _with_axes(vector: Value, rank: int, tensor: Tensor) -> Tensor:
    return aligned(Value(tensor, vector.form, vector.members), rank)


@rule("group_norm")
def normalise_groups(run: Run, step: Step) -> Value:
    """GroupNorm: members are more groups, or more rows."""
    x, weight, bias = step["input"], step["weight"], step["bias"]
    own = any(vector is not None and vector.batched for vector in (weight, bias))
    if not own and x.form != "channels":
        return x.like(step.call(input=to_rows(x)), "rows")
    given = {name: None if step[name] is None else _whole_vector(run, step[name]) for name in ("weight", "bias")}
    groups = step["num_groups"] * run.members
    return run.value(step.call(input=to_channels(run.of(x)), num_groups=groups, **given), "channels")


@rule(
    *"max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d".split(),
    *"adaptive_avg_pool3d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d".split(),
    *"upsample_bicubic2d upsample_trilinear3d upsample_linear1d reflection_pad2d replication_pad2d pixel_shuffle".split(),
    *"adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d max_pool2d_with_indices max_pool3d_with_indices".split(),
)
def pool(run: Run, step: Step) -> Any:
    """An operation on each channel of each row, or on channels side by side: members are more of these."""
    x = step[step.names[0]]
    spatial = next((int(letter) for letter in step.name if letter.isdigit()), 2)
    if x.rank != spatial + 2:
        return None
    kept = x if x.form in PACKED else x.like(to_rows(x), "rows")
    return _wrapped(run, step.call(**{step.names[0]: kept.tensor}), kept.form)


@rule("view", "reshape", "_unsafe_view")
def view(run: Run, step: Step) -> Value:
    """A reshape; one that keeps the batch axis keeps the form."""
    x, sizes = step["self"], list(step[step.names[1]])
    shape = x.shape
    if -1 in [size for size in sizes if not isinstance(size, torch.SymInt)]:
        rest = math.prod(size for size in sizes if isinstance(size, torch.SymInt) or size != -1)
        sizes[sizes.index(-1)] = math.prod(shape) // rest
    whole = bool(sizes) and bool(shape) and equal(sizes[0], shape[0])
    if x.form == "rows" and whole:
        return x.like(resized(x.tensor, [run.members * sizes[0], *sizes[1:]]))
    if x.form == "channels" and whole and len(sizes) > 1:
        return x.like(resized(x.tensor, [sizes[0], run.members * sizes[1], *sizes[2:]]))
    return run.value(resized(to_leading(x), [run.members, *sizes]), "leading")


@rule("expand")
def expand(run: Run, step: Step) -> Value:
    """Repeats axes of size 1 for each member."""
    x, sizes = step["self"], list(step["size"])
    return run.value(aligned(x, len(sizes)).expand(run.members, *sizes), "leading")


@rule("repeat")
def repeat(run: Run, step: Step) -> Value:
    """Repeats axes for each member."""
    x, times = step["self"], list(step["repeats"])
    return run.value(aligned(x, len(times)).repeat(1, *times), "leading")


def _axes(step: Step, rank: int) -> list[int] | None:
    """Returns the axes that an operation names, not negative; None if it names none, which means all."""
    named = [step[name] for name in step.names if name in ("dim", "dims", "dim0", "dim1")]
    found = [axis for one in named for axis in (one if isinstance(one, (list, tuple)) else [one])]
    if not found or None in found:
        return None
    return [axis % (rank + (step.name == "unsqueeze")) for axis in found]


ALONG = """softmax log_softmax _softmax _log_softmax mean sum amax amin var std argmax argmin cumsum squeeze unsqueeze transpose
    select slice narrow split split_with_sizes chunk unbind flip logsumexp topk sort max min any all prod permute
    linalg_vector_norm""".split()


@rule(*ALONG)
def along_axes(run: Run, step: Step) -> Any:
    """An operation along some axes: the form stays if these do not hold members, otherwise members get an axis first."""
    first = step.names[0]
    x = step[first]
    axes = _axes(step, x.rank)
    if axes is None or values_in([v for n, v in step.arguments.items() if n != first]):
        return None
    ordered = step.name == "permute"
    low = next((at for at, axis in enumerate(axes) if axis != at), x.rank) if ordered else min(axes)
    if x.form in PACKED and low > PACKED[x.form]:
        return _wrapped(run, step.call(**{first: x.tensor}, **_shifted(step, axes, 0)), x.form)
    if x.form == "channels" and step.name == "slice" and axes == [1]:
        parts = resized(x.tensor, [x.shape[0], run.members, *x.shape[1:]])
        taken = step.call(**{first: parts, "dim": 2})
        return x.like(resized(taken, [x.shape[0], run.members * taken.shape[2], *x.shape[2:]]))
    given = _shifted(step, axes, 1)
    if ordered:
        given["dims"] = [0, *given["dims"]]
    return _wrapped(run, step.call(**{first: to_leading(x)}, **given), "leading")


def _shifted(step: Step, axes: list[int], by: int) -> dict[str, Any]:
    """Returns the arguments that name axes, moved by one where members have an axis before them."""
    rest = iter(axes)
    given: dict[str, Any] = {}
    for name in step.names:
        if name in ("dim", "dims", "dim0", "dim1"):
            value = step[name]
            given[name] = [next(rest) + by for _ in value] if isinstance(value, (list, tuple)) else next(rest) + by
    return given


def _wrapped(run: Run, output: Any, form: Form) -> Any:
    return [run.value(one, form) for one in output] if isinstance(output, (list, tuple)) else run.value(output, form)


@rule("cat")
def concatenate(run: Run, step: Step) -> Value:
    """Joins tensors along an axis; along the channels, members are unfolded for it."""
    parts = [part for part in step["tensors"] if not equal(part.rank, 1) or not equal(part.shape[0], 0)]
    rank = parts[0].rank
    dim = step["dim"] % rank
    forms = {part.form for part in parts}
    if len(forms) == 1 and (form := parts[0].form) in PACKED and dim != PACKED[form]:
        return run.value(torch.cat([part.tensor for part in parts], dim), form)
    if dim == 1 and "channels" in forms and "rows" not in forms:
        return _joined_channels(run, parts)
    if forms == {"rows", "shared"} and dim > 0:
        return run.value(torch.cat([to_rows(run.of(part)) for part in parts], dim), "rows")
    whole = [to_leading(part) for part in parts]
    whole = [t.expand(run.members, *t.shape[1:]) for t in whole]
    return run.value(torch.cat(whole, dim + 1), "leading")


def _joined_channels(run: Run, parts: list[Value]) -> Value:
    """Joins members' channels with others: the channels of all parts one after the other, in the order of the members."""
    if all(part.form == "channels" for part in parts):  # reshapes copy nothing
        apart = [resized(part.tensor, [part.shape[0], run.members, *part.shape[1:]]) for part in parts]
        joined = torch.cat(apart, 2)
        return run.value(resized(joined, [parts[0].shape[0], run.members * joined.shape[2], *joined.shape[3:]]), "channels")
    places: list[Tensor] = []
    begin = 0
    for part in parts:
        width, count = part.shape[1], run.members if part.batched else 1
        places.append((begin + torch.arange(count * width).reshape(count, width)).expand(run.members, width))
        begin += count * width
    sources = [to_channels(part) if part.batched else part.tensor for part in parts]
    return run.value(torch.cat(sources, 1).index_select(1, torch.cat(places, 1).flatten()), "channels")


@rule("constant_pad_nd", "pad")
def pad(run: Run, step: Step) -> Value | None:
    """Pads the last axes, by a number or by entries of the tensor; the latter is for images and rows of them alone."""
    x, padded, mode = step["self"], len(step["pad"]) // 2, step.arguments.get("mode", "constant")
    if mode != "constant":
        if padded > x.rank - 2:
            return None
        kept = x if x.form in PACKED else x.like(to_rows(x), "rows")
    else:
        kept = x if x.form not in PACKED or padded < x.rank - PACKED[x.form] else x.like(to_leading(x), "leading")
    return kept.like(F.pad(kept.tensor, list(step["pad"]), mode, step["value"]))
