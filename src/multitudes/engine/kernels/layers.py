"""Linear layers, attention and BatchNorm of all members at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.engine.kernels.convolution import beside, by_member, first, in_rows, run_under_vmap, second
from multitudes.engine.kernels.products import product_of_rows
from multitudes.errors import RunError

_library = torch.library.Library("multitudes", "FRAGMENT")
_library.define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_library.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale, bool grouped_heads) -> Tensor"
)
_library.define(
    "batch_norm(Tensor x, Tensor? mean, Tensor? variance, Tensor? weight, Tensor? bias, bool training, float momentum,"
    " float eps) -> Tensor"
)


@torch.library.impl(_library, "linear", "CompositeImplicitAutograd")
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes a plain linear layer; under vmap `linear_of_members` takes its place."""
    return F.linear(x, weight, bias)


def linear_of_members(members: int, dims: Sequence[Any], x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, int]:
    """Runs one product for all members, batched if each has its own input."""
    if dims[1] is None:
        common = bias if dims[2] is None else None
        y = F.linear(first(x, dims[0], members), weight, common)
        if bias is None or dims[2] is None:
            return y, 0
        return y + _before_last(bias.movedim(dims[2], 0), y.ndim), 0
    weight = first(weight, dims[1], members)
    bias = None if bias is None else first(bias, dims[2], members)
    if weight.ndim == 2:  # a vector per member
        y = (first(x, dims[0], members) * _before_last(weight, x.ndim + (dims[0] is None))).sum(-1)
        return (y if bias is None else y + _before_last(bias.unsqueeze(-1), y.ndim + 1).squeeze(-1)), 0
    if dims[0] is None:
        y = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
        return y.unflatten(-1, weight.shape[:2]), y.ndim - 1
    x = first(x, dims[0], members)
    rows = x.unsqueeze(1) if x.ndim == 2 else x.flatten(1, -2)
    y = product_of_rows(rows, weight, bias)
    return (y.squeeze(1) if x.ndim == 2 else y.unflatten(1, x.shape[1:-1])), 0


def _before_last(x: Tensor, ndim: int) -> Tensor:
    """Inserts axes of size one between the first axis and the last, up to `ndim` axes."""
    return x.reshape(x.shape[0], *(1 for _ in range(ndim - 2)), x.shape[-1])


@torch.library.impl(_library, "attention", "CompositeImplicitAutograd")
def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, grouped_heads: bool
) -> Tensor:
    """Computes plain attention; under vmap `attention_of_members` takes its place."""
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped_heads)


def attention_of_members(
    members: int,
    dims: Sequence[Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
    grouped_heads: bool,
) -> tuple[Tensor, int]:
    """Attends within each row of all members, as one batch of M times the rows."""
    q, k, v = (first(t, dim, members) for t, dim in zip((q, k, v), dims, strict=False))
    lead = [max(sizes) for sizes in zip(*(t.shape[1:-2] for t in (q, k, v)), strict=True)]
    if mask is not None and (dims[3] is not None or any(size > 1 for size in mask.shape[:-2])):
        mask = first(mask, dims[3], members)
        missing = q.ndim - mask.ndim
        mask = mask.reshape(members, *(1 for _ in range(missing)), *mask.shape[1:])
        mask = mask.expand(members, *(lead[:1] if lead else ()), *mask.shape[2 if lead else 1 :])
        mask = mask.flatten(0, 1) if lead else mask
    rows = [t.flatten(0, 1) if lead else t for t in (q, k, v)]
    y = attention(rows[0], rows[1], rows[2], mask, causal, scale, grouped_heads)
    return (y.unflatten(0, q.shape[:2]) if lead else y), 0


@torch.library.impl(_library, "batch_norm", "CompositeImplicitAutograd")
def batch_norm(
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    """Computes a plain BatchNorm layer; under vmap `batch_norm_of_members` takes its place."""
    return F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)


def batch_norm_of_members(
    members: int,
    dims: Sequence[Any],
    x: Tensor,
    mean: Tensor | None,
    variance: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, int]:
    """Norms each member's channels: by shared statistics in rows, by its own as channels beside each other."""
    how = (training, momentum, eps)
    if training and mean is not None and dims[1] is None and dims[0] is not None:
        raise RunError("a shared BatchNorm layer would change its running statistics once for all members")
    own_statistics = training or any(dim is not None for dim in dims[1:3])
    if (dims[0] is None and not own_statistics) or (dims[0] is None and dims[1] is dims[2] is None):
        y = F.batch_norm(x, mean, variance, None, None, *how)
        return _scaled(y, weight, bias, dims[3:5]), 0
    if all(dim is None for dim in dims[1:5]) and not training:
        rows = first(x, dims[0], members)
        y = F.batch_norm(in_rows(rows), mean, variance, weight, bias, *how)
        return y.unflatten(0, rows.shape[:2]), 0
    given = second(x, dims[0], members)
    flat = [
        None if t is None else first(t, dim, members).reshape(-1)
        for t, dim in zip((mean, variance, weight, bias), dims[1:5], strict=True)
    ]
    y = F.batch_norm(beside(given), flat[0], flat[1], flat[2], flat[3], *how)
    return by_member(y, members), 1


def _scaled(y: Tensor, weight: Tensor | None, bias: Tensor | None, dims: Sequence[int | None]) -> Tensor:
    """Scales and shifts a normed tensor ``[B, C, ...]`` for each member: ``[M, B, C, ...]``."""
    dtype, shape = y.dtype, (1, y.shape[1], *(1 for _ in y.shape[2:]))
    result = y.unsqueeze(0)
    for t, dim, combine in ((weight, dims[0], torch.mul), (bias, dims[1], torch.add)):
        if t is not None:
            rows = t.unsqueeze(0) if dim is None else t.movedim(dim, 0)
            result = combine(result, rows.reshape(len(rows), *shape))
    return result.to(dtype)


run_under_vmap("linear", linear_of_members, _library)
run_under_vmap("attention", attention_of_members, _library)
run_under_vmap("batch_norm", batch_norm_of_members, _library)
