"""Linear layers, attention and BatchNorm of members against one call per member: values, gradients and running statistics."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.engine.kernels import Together

M, B = 3, 4


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def assert_as_alone(function: Callable[..., Tensor], tensors: list[Tensor | None], dims: tuple[int | None, ...]) -> None:
    """Values and gradients of vmap under our rules, and of one call per member."""
    given, plain = (
        [None if t is None else t.detach().clone().requires_grad_(t.is_floating_point()) for t in tensors] for _ in "ab"
    )
    with Together():
        y = torch.func.vmap(function, dims)(*given)
    wanted = torch.stack(
        [
            function(*[t if t is None or d is None else t.select(d, m) for t, d in zip(plain, dims, strict=True)])
            for m in range(M)
        ]
    )
    torch.testing.assert_close(y, wanted, rtol=1e-9, atol=1e-9)
    weights = torch.randn_like(wanted)
    sides = [
        torch.autograd.grad(value, [t for t in side if t is not None and t.requires_grad], weights)
        for value, side in ((y, given), (wanted, plain))
    ]
    for a, b in zip(*sides, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rows", [(), (B,), (B, 2), (B, 2, 5)], ids=str)
def test_linear(rows: tuple[int, ...]) -> None:
    """Every mixture of common tensors and those of members."""
    for x_own, weight_own, bias_own in itertools.product([True, False], [True, False], [True, False, None]):
        if not (x_own or weight_own or bias_own):
            continue
        x, weight = numbers(*([M] if x_own else []), *rows, 6), numbers(*([M] if weight_own else []), 7, 6)
        bias = None if bias_own is None else numbers(*([M] if bias_own else []), 7)
        dims = (0 if x_own else None, 0 if weight_own else None, 0 if bias_own else None)
        assert_as_alone(F.linear, [x, weight, bias], dims)


def test_a_weight_that_is_a_vector() -> None:
    for x_own in (True, False):
        x = numbers(*([M] if x_own else []), B, 6)
        assert_as_alone(F.linear, [x, numbers(M, 6)], (0 if x_own else None, 0))


@pytest.mark.parametrize("lead", [(), (B,), (B, 2)], ids=str)
@pytest.mark.parametrize("mask", ["none", "common", "of rows", "of members", "causal"])
def test_attention(lead: tuple[int, ...], mask: str) -> None:
    shape = {"common": (5, 5), "of rows": (*lead, 5, 5), "of members": (M, *lead, 5, 5)}.get(mask)
    masked = None if shape is None else numbers(*shape)
    q, k, v = numbers(M, *lead, 5, 4), numbers(*lead, 5, 4), numbers(M, *lead, 5, 4)

    def attend(q: Tensor, k: Tensor, v: Tensor, mask_: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask_, is_causal=mask == "causal", scale=0.3)

    assert_as_alone(attend, [q, k, v, masked], (0, None, 0, 0 if mask == "of members" else None))


def test_grouped_heads() -> None:
    def attend(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    assert_as_alone(attend, [numbers(M, B, 4, 5, 6), numbers(M, B, 2, 5, 6)], (0, 0))


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize(("own", "training"), [("all", True), ("all", False), ("affine", False), ("input", False)])
def test_batch_norm(own: str, last: bool, training: bool) -> None:
    """Statistics and affine tensors of members, or one of both; members' running statistics move as alone."""
    x = numbers(M, B, 5, 5, 4).movedim(-1, 2) if last else numbers(M, B, 4, 5, 5)
    lead = [M] if own == "all" else []
    affine = [] if own == "input" else [M]
    mean, variance = numbers(*lead, 4), numbers(*lead, 4).square() + 0.5
    weight, bias = numbers(*affine, 4), numbers(*affine, 4)
    for x_dim, rows in ((0, x), (None, x[0])):
        if own == "input" and x_dim is None:
            continue
        dims = (x_dim, *(0 if lead else None,) * 2, *(0 if affine else None,) * 2)
        moved = [[t.clone() for t in (mean, variance)] for _ in "ab"]
        parts = [t.clone().requires_grad_() for t in (rows, weight, bias)]

        def run(x: Tensor, m: Tensor, v: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return F.batch_norm(x, m, v, w, b, training, 0.3)

        with Together():
            y = torch.func.vmap(run, dims)(parts[0], *moved[0], *parts[1:])
        ours = torch.autograd.grad(y.square().sum(), parts)
        values: list[Any] = [parts[0], *moved[1], *parts[1:]]
        wanted = torch.stack([run(*[t if d is None else t[m] for t, d in zip(values, dims, strict=True)]) for m in range(M)])
        torch.testing.assert_close(y, wanted, rtol=1e-9, atol=1e-9)
        for a, b in zip(ours, torch.autograd.grad(wanted.square().sum(), parts), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
        for a, b in zip(*moved, strict=True):
            torch.testing.assert_close(a, b)
            assert not training or not torch.equal(a, mean if a is moved[0][0] else variance)
