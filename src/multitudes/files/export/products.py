"""Rules of products: how a convolution, a matrix product, attention or a table runs for all members at once.

Weights that members own become groups of one convolution, or a batched product. Shared weights see members as more rows.
"""

from __future__ import annotations

import math
import string

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.files.export.forms import Value, aligned, equal, resized, solid, to_channels, to_leading, to_rows
from multitudes.files.export.rules import Run, Step, rule

CONVOLUTIONS = "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split()
REPEATED = 2**24
"""Most bytes of a shared kernel, once for each member, for which members' channels stay side by side: a group for each member.

Otherwise members become rows, and channels again behind the layer, which copies activations twice.
"""


@rule(*CONVOLUTIONS)
def convolve(run: Run, step: Step) -> Value | None:
    """Members' weights are groups of one convolution; shared weights see members' rows."""
    x, weight, bias = step["input"], step["weight"], step["bias"]
    if x.rank != weight.rank:  # an image without a batch axis
        return None
    if not weight.batched and x.form == "channels" and _is_small(weight, run.members):
        weight = run.value(weight.tensor.expand(run.members, *weight.shape), "leading")
    if not weight.batched:
        own = bias is not None and bias.batched
        y = step.call(input=to_rows(x) if x.batched else x.tensor, bias=None if own or bias is None else bias.tensor)
        found = Value(y, "rows" if x.batched else "shared", run.members)
        return _add_channels(run, found, bias) if own else found
    transposed, groups = "transpose" in step.name, step["groups"]
    once = not x.batched and groups == 1
    if once:  # one input: members' kernels are more channels of the output
        kernel = run.prepared(weight, "outputs", _more_inputs if transposed else _merged)
    else:
        kernel, groups = run.prepared(weight, "merged", _merged), groups * run.members
    offsets = None if bias is None else _merged_vector(run, bias)
    source = x.tensor if once else to_channels(run.of(x))
    return run.value(step.call(input=source, weight=kernel, bias=offsets, groups=groups), "channels")


def _is_small(kernel: Value, members: int) -> bool:
    return 4 * members * math.prod(kernel.shape) <= REPEATED


def _merged(weight: Tensor) -> Tensor:
    """``[M, D, ...]`` → ``[(M D), ...]``"""
    return weight.flatten(0, 1)


def _more_inputs(weight: Tensor) -> Tensor:
    """``[M, C, D, ...]`` → ``[C, (M D), ...]``, for a transposed convolution."""
    return weight.transpose(0, 1).flatten(1, 2)


def _merged_vector(run: Run, vector: Value) -> Tensor:
    """Returns a vector of each member, one after the other, ``[(M D)]``; a shared one M times."""
    if vector.batched:
        return run.prepared(vector, "merged", _merged)
    return run.prepared(vector, "repeated", lambda v: v.repeat(run.members))


def _add_channels(run: Run, y: Value, bias: Value) -> Value:
    """Adds a vector of each member to the channels of ``[B, D, ...]``."""
    own = to_leading(bias)
    own = own.reshape(own.shape[0], 1, own.shape[1], *(1 for _ in range(y.rank - 2)))
    return run.value(to_leading(y) + own, "leading")


@rule("linear")
def multiply_rows(run: Run, step: Step) -> Value | None:
    """Members' weights are a batched product ``[M, B, C] × [M, C, D]``."""
    x, weight, bias = step["input"], step["weight"], step["bias"]
    if x.rank < 2:
        return None
    if not weight.batched:
        keeps = x.form != "channels" or x.rank > 2
        kept = x if keeps else x.like(to_leading(x), "leading")
        y = kept.like(step.call(input=solid(kept.tensor), bias=None if bias is None or bias.batched else bias.tensor))
        own = bias is not None and bias.batched
        return run.value(to_leading(y) + aligned(bias, y.rank), "leading") if own else y
    if not x.batched and x.rank == 2:  # one input: members' weights are more columns
        offsets = None if bias is None else _merged_vector(run, bias)
        return run.value(F.linear(x.tensor, run.prepared(weight, "merged", _merged), offsets), "channels")
    middle = [1] * (x.rank - 2)
    columns = run.prepared(weight, f"columns {x.rank}", lambda w: _columns(w, middle))
    y = torch.matmul(solid(to_leading(x)), columns)
    if bias is not None:
        y = y + run.prepared(bias, f"aligned {x.rank}", lambda b: _vector(b, x.rank) if bias.batched else b)
    return run.value(y, "leading")


def _columns(weight: Tensor, middle: list[int]) -> Tensor:
    """``[M, D, C]`` → ``[M, 1, ..., C, D]``"""
    turned = weight.transpose(1, 2).contiguous()
    return turned.reshape(turned.shape[0], *middle, *turned.shape[1:])


def _vector(vector: Tensor, rank: int) -> Tensor:
    """``[M, D]`` → ``[M, 1, ..., D]``"""
    return vector.reshape(vector.shape[0], *(1 for _ in range(rank - 1)), vector.shape[1])


@rule("matmul", "bmm", "mm")
def multiply(run: Run, step: Step) -> Value | None:
    """A product of two activations, one for each member."""
    one, other = (step[name] for name in step.names[:2])
    if min(one.rank, other.rank) < 2:
        return None
    if {one.form, other.form} == {"rows"} and one.rank == other.rank > 2:
        return one.like(torch.matmul(one.tensor, other.tensor))
    rank = max(one.rank, other.rank)
    return run.value(torch.matmul(aligned(one, rank), aligned(other, rank)), "leading")


@rule("einsum")
def sum_products(run: Run, step: Step) -> Value | None:
    """Einstein's sum: the members' axis is one more letter."""
    terms, arrow, result = step["equation"].replace(" ", "").partition("->")
    free = [letter for letter in string.ascii_letters if letter not in terms]
    if not arrow or not free:
        return None
    values = step["tensors"]
    named = [free[0] + term if value.batched else term for term, value in zip(terms.split(","), values, strict=True)]
    tensors = [to_leading(value) if value.batched else value.tensor for value in values]
    return run.value(step.call(equation=f"{','.join(named)}->{free[0]}{result}", tensors=tensors), "leading")


@rule("scaled_dot_product_attention")
def attend(run: Run, step: Step) -> Value | None:
    """Attention of all members' rows."""
    query, mask = step["query"], step["attn_mask"]
    if query.rank != 4 or (mask is not None and mask.rank > 4):
        return None
    given = {name: to_rows(run.of(step[name])) for name in ("query", "key", "value")}
    if mask is not None:
        whole = mask.rank == 4 and not equal(mask.shape[0], 1)
        if mask.batched and not whole:
            return None
        given["attn_mask"] = to_rows(run.of(mask)) if whole else mask.tensor
    return run.value(step.call(**given), "rows")


@rule("embedding")
def look_up(run: Run, step: Step) -> Value:
    """Members' tables lie side by side: one look-up reads the rows of all. An id that a table does not have is an error."""
    table, ids = step["weight"], step["indices"]
    rows = table.shape[0]
    if table.batched and ids.batched:  # an id beyond a member's table would be one of the next member's
        known = (to_leading(ids) >= 0) & (to_leading(ids) < rows)
        offsets = torch.arange(run.members).reshape(-1, *(1 for _ in range(ids.rank))) * rows
        places = torch.where(known, to_leading(ids) + offsets, run.members * rows)
        return run.value(F.embedding(places, run.prepared(table, "merged", _merged)), "leading")
    places = torch.where(ids.tensor < 0, rows, ids.tensor)  # ONNX counts negative ones from the end
    if not table.batched:
        return ids.like(F.embedding(places, table.tensor))
    wide = run.prepared(table, "beside", lambda t: t.transpose(0, 1).flatten(1))  # [V, (M C)]
    found = F.embedding(places, wide)
    return run.value(resized(found, [*ids.shape, run.members, table.shape[1]]).movedim(-2, 0), "leading")


@rule("index_select")
def choose_entries(run: Run, step: Step) -> Value | None:
    """Each member chooses entries: of a shared tensor, or of its own channels."""
    stored, index = step["self"], step["index"]
    dim = step["dim"] % stored.rank
    if not index.batched or index.rank != 1 or (1 < dim < stored.rank - 1 and stored.batched):
        return None
    if dim > 1 and stored.batched:  # members beside each other along the last axis, and each chooses among its own
        shape, width = stored.shape[:-1], stored.shape[-1]
        beside = resized(to_leading(stored).movedim(0, -2), [*shape, run.members * width])
        chosen = torch.index_select(beside, dim, run.prepared(index, f"places {width}", lambda i: _places(i, width)))
        return run.value(resized(chosen, [*shape, run.members, index.shape[0]]).movedim(-2, 0), "leading")
    if dim > 1:
        chosen = torch.index_select(stored.tensor, dim, run.prepared(index, "places 0", lambda i: _places(i, 0)))
        apart = resized(chosen, [*stored.shape[:dim], run.members, index.shape[0], *stored.shape[dim + 1 :]])
        return run.value(apart.movedim(dim, 0), "leading")
    if dim == 1:
        width = stored.shape[1] if stored.batched else 0
        places = run.prepared(index, f"places {width}", lambda i: _places(i, width))
        source = to_channels(stored) if stored.batched else stored.tensor
        return run.value(torch.index_select(source, 1, places), "channels")
    if stored.batched:
        return None
    chosen = torch.index_select(stored.tensor, 0, to_leading(index).flatten())
    return run.value(resized(chosen, [run.members, *index.shape, *stored.shape[1:]]), "leading")


def _places(index: Tensor, width: int) -> Tensor:
    """``[M, C]`` → ``[(M C)]``, where the channels of member m begin at m · width."""
    return (index + width * torch.arange(len(index))[:, None].to(index.dtype)).flatten()


@rule("gather")
def choose_elements(run: Run, step: Step) -> Value | None:
    """Each member chooses one of several shared tensors for each element: ``[K, ...]`` by ``[M, 1, ...]``."""
    stored, index, dim = step["self"], step["index"], step["dim"]
    if stored.batched or not index.batched or dim != 0 or not equal(index.shape[0], 1):
        return None
    chosen = stored.tensor.gather(0, to_leading(index).squeeze(1))
    return run.value(chosen.unsqueeze(1), "leading")
