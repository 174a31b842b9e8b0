"""Convolutions of members: every way, layout and place of the member axis against one convolution per member."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.engine.kernels import Together, products
from multitudes.engine.kernels.convolution import WAYS, beside, product, product_beside, without_groups
from multitudes.engine.kernels.products import product_of_pixels
from multitudes.engine.kernels.ways import Convolution, forced

M, B = 3, 2
PLAIN = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CASES = {
    "one pixel": (2, 1, 1, 0, 1, 1),
    "one pixel, strided": (2, 1, 2, 0, 1, 1),
    "three pixels": (2, 3, 1, 1, 1, 1),
    "strided": (2, 3, 2, 1, 1, 1),
    "dilated": (2, 3, 1, 2, 2, 1),
    "groups": (2, 3, 1, 1, 1, 2),
    "a line": (1, 3, 1, 1, 1, 1),
    "a volume": (3, 3, 1, 1, 1, 1),
}
"""Axes, kernel size, stride, padding, dilation and groups."""


def numbers(*shape: int, last: bool = False) -> Tensor:
    """Random numbers ``[..., C, image]``, with the channels of a pixel beside each other if `last`."""
    if not last:
        return torch.randn(shape, dtype=torch.float64)
    at = 2 if len(shape) == 5 else 1
    moved = (*shape[:at], *shape[at + 1 :], shape[at])
    return torch.randn(moved, dtype=torch.float64).movedim(-1, at)


def assert_as_alone(x: Tensor, x_dim: int | None, kernel: Tensor, k_dim: int | None, bias: Tensor | None, case: str) -> None:
    """Values and gradients of vmap under our rules, and of one call per member."""
    axes, _, *how = CASES[case]
    given = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, kernel)]
    own = bias is not None and bias.ndim == 2
    with Together():
        y = torch.func.vmap(
            lambda a, b, c: PLAIN[axes](a, b, c, *how), (x_dim, k_dim, 0 if own else None)
        )(*given, bias)  # fmt: skip
    plain = [t.clone().requires_grad_() for t in (x, kernel)]
    wanted = torch.stack(
        [
            PLAIN[axes](
                plain[0] if x_dim is None else plain[0].select(x_dim, m),
                plain[1] if k_dim is None else plain[1].select(k_dim, m),
                bias[m] if own else bias,  # type: ignore[index]
                *how,
            )
            for m in range(M)
        ]
    )
    torch.testing.assert_close(y, wanted, rtol=1e-10, atol=1e-10)
    weights = torch.randn_like(wanted)
    for a, b in zip(torch.autograd.grad(y, given, weights), torch.autograd.grad(wanted, plain, weights), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def made(case: str, last: bool) -> tuple[Tensor, Tensor, Convolution]:
    axes, size, stride, padding, dilation, groups = CASES[case]
    x = numbers(M, B, 4, *[5] * axes, last=last and axes == 2)
    kernel = numbers(M, 6, 4 // groups, *[size] * axes, last=last and axes == 2)
    return x, kernel, Convolution.of(x.movedim(0, 1), kernel, [stride], [padding], [dilation], groups)


POSSIBLE = [(way, case, last) for case in CASES for last in (False, True) for way in made(case, last)[2].possible]


@pytest.mark.parametrize(("way", "case", "last"), POSSIBLE)
def test_every_way(way: str, case: str, last: bool) -> None:
    x, kernel, _ = made(case, last)
    with forced(way):
        assert_as_alone(x, 0, kernel, 0, numbers(M, 6), case)
        assert_as_alone(x.movedim(0, 1), 1, kernel, 0, None, case)


def test_all_ways_are_tried() -> None:
    assert {way for way, _, _ in POSSIBLE} == set(WAYS)


def test_the_product_is_one_of_the_ways() -> None:
    """For kernels of one pixel where channels come last, and not otherwise."""
    x, kernel = numbers(B, M, 4, 5, 5), numbers(M, 6, 4, 1, 1)
    assert "product" not in Convolution.of(x, kernel, [1, 1], [0, 0], [1, 1], 1).possible
    pixels = torch.randn(B, 5, 5, M, 4).movedim((-2, -1), (1, 2))
    assert Convolution.of(pixels, kernel, [1, 1], [0, 0], [1, 1], 1).possible[0] == "product"
    assert "product" in Convolution.of(pixels, kernel, [2, 2], [0, 0], [1, 1], 1).possible
    assert "product" not in Convolution.of(pixels, kernel, [1, 1], [1, 1], [1, 1], 1).possible


def test_a_kernel_without_groups() -> None:
    kernel, x = numbers(M, 6, 2, 3, 3), numbers(B, 4, 5, 5)
    dense = without_groups(kernel, 2)
    assert dense.shape == (M, 6, 4, 3, 3)
    for own, wide in zip(kernel, dense, strict=True):
        torch.testing.assert_close(F.conv2d(x, wide), F.conv2d(x, own, groups=2))


@pytest.mark.parametrize("small", [True, False], ids=["one wide gradient", "batched gradient"])
@pytest.mark.parametrize("steps", [[1, 1], [2, 2]], ids=str)
def test_the_product_of_pixels(small: bool, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, gradients and second gradients; what a device runs in place of a batched product."""
    monkeypatch.setattr(products, "SMALL", 10**6 if small else 0)
    pixels = torch.randn(B, 5, 5, M, 4, dtype=torch.float64).movedim((-2, -1), (1, 2)).requires_grad_()
    kernel, bias = numbers(M, 6, 4, 1, 1).requires_grad_(), numbers(M, 6).requires_grad_()
    y = product_beside(pixels, kernel.flatten(2), bias, steps)
    assert beside(y).is_contiguous(memory_format=torch.channels_last)
    other, dim = product(pixels, kernel, bias, steps)
    torch.testing.assert_close(y, other.movedim(dim, 1))
    weights = torch.randn_like(y)
    wanted = torch.autograd.grad(other.movedim(dim, 1), (pixels, kernel, bias), weights)
    for a, b in zip(torch.autograd.grad(y, (pixels, kernel, bias), weights), wanted, strict=True):
        torch.testing.assert_close(a, b)
    x = torch.randn(2, 3, M * 4, dtype=torch.float64).movedim(-1, 1).requires_grad_()
    own = numbers(M, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(product_of_pixels, (x, own))
    assert torch.autograd.gradgradcheck(product_of_pixels, (x, own))
    torch.library.opcheck(torch.ops.multitudes.product_of_pixels, (x, own))


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("case", ["three pixels", "groups"])
def test_what_members_share(case: str, last: bool) -> None:
    """A common input, a common kernel, a bias of members or none."""
    groups = CASES[case][-1]
    common, own = numbers(B, 4, 5, 5, last=last), numbers(M, B, 4, 5, 5, last=last)
    kernel, kernels = numbers(6, 4 // groups, 3, 3, last=last), numbers(M, 6, 4 // groups, 3, 3, last=last)
    for bias in (None, numbers(6), numbers(M, 6)):
        assert_as_alone(common, None, kernels, 0, bias, case)
        assert_as_alone(own, 0, kernel, None, bias, case)
        assert_as_alone(own.movedim(0, 1), 1, kernel, None, bias, case)


def test_channels_stay_last() -> None:
    """Each member's output of a convolution in that layout is in that layout, whatever the way."""
    x, kernel = numbers(M, B, 4, 5, 5, last=True), numbers(M, 6, 4, 3, 3, last=True)
    for way in ("grouped", "each", "block"):
        with forced(way), Together():
            y = torch.func.vmap(lambda a, b: F.conv2d(a, b, padding=1))(x, kernel)
        assert y.stride(2) == 1, way


def test_padding_by_name() -> None:
    x, kernel = numbers(M, B, 4, 5, 5), numbers(M, 6, 4, 3, 3)
    for padding in ("same", "valid"):
        with Together():
            y = torch.func.vmap(lambda a, b, p=padding: F.conv2d(a, b, padding=p))(x, kernel)
        wanted = torch.stack([F.conv2d(a, b, padding=padding) for a, b in zip(x, kernel, strict=True)])
        torch.testing.assert_close(y, wanted)


def test_complex_numbers() -> None:
    """They are torch's business, which splits them into real and imaginary parts."""
    x, kernel = numbers(M, B, 4, 5, 5) + 1j * numbers(M, B, 4, 5, 5), numbers(M, 6, 4, 3, 3) * (1 + 2j)
    with Together():
        y = torch.func.vmap(lambda a, b: F.conv2d(a, b))(x, kernel)
    torch.testing.assert_close(y, torch.stack([F.conv2d(a, b) for a, b in zip(x, kernel, strict=True)]))
