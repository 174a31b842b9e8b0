"""Pointwise operations on the images of all members: values, gradients, and what is changed in place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.engine.kernels import Together
from multitudes.engine.kernels.convolution import known_beside

M = 3


def block(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A residual block that changes tensors in place, also one that another name still has."""
    h = F.conv2d(x, first, padding=1)
    skip = h
    h = F.relu(h, inplace=True)
    g = F.conv2d(h, second, padding=1)
    g += skip
    g = F.silu(g, inplace=True)
    k = F.conv2d(g, second, padding=1)
    k.mul_(g).add_(h)
    return torch.relu_(k) * g + F.gelu(k, approximate="tanh") + F.hardswish(g)


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
def test_values_and_gradients_are_those_of_members(last: bool) -> None:
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64).to(memory_format=layout)
    tensors = [torch.randn(M, 4, inputs, 3, 3, dtype=torch.float64, requires_grad=True) for inputs in (3, 4)]
    with Together():
        found = torch.func.vmap(lambda *own: block(x, *own))(*tensors)
    wanted = torch.stack([block(x, *(t[m] for t in tensors)) for m in range(M)])
    torch.testing.assert_close(found, wanted)
    noise = torch.randn_like(wanted)
    for ours, plain in zip(*(torch.autograd.grad((y * noise).sum(), tensors) for y in (found, wanted)), strict=True):
        torch.testing.assert_close(ours, plain)


def test_between_convolutions_images_keep_four_axes() -> None:
    """No view is taken apart and put together: backward has the operations of one wide network."""
    x, kernels = torch.randn(2, 3, 4, 4), [torch.randn(M, 4, inputs, 3, 3, requires_grad=True) for inputs in (3, 4)]
    net = nn.ReLU(inplace=True)
    with Together():
        y = torch.func.vmap(lambda a, b: F.conv2d(net(F.conv2d(x, a, padding=1)), b).sum())(*kernels)
    steps, todo = [], [y.grad_fn]
    while todo:
        step = todo.pop()
        if step is not None:
            steps.append(type(step).__name__)
            todo += [one for one, _ in step.next_functions]
    assert steps.count("ConvolutionBackward0") == 2 and steps.count("ReluBackward0") == 1
    assert not [name for name in steps if name in ("CopySlices", "AsStridedBackward0", "CloneBackward0")]
    assert steps.count("ViewBackward0") <= 3  # of two kernels and of the result


def test_an_image_is_known_only_as_the_view_that_was_made() -> None:
    """An operation without a rule gives a tensor of its own."""
    x, kernel = torch.randn(2, 3, 4, 4), torch.randn(M, 4, 3, 3, 3)
    seen: list[Tensor | None] = []

    def run(own: Tensor) -> Tensor:
        y = F.conv2d(x, own)
        for value in (y, y + y, y.tanh(), y[:, :2]):
            seen.append(known_beside(torch._C._functorch.get_unwrapped(value)))
        return y

    with Together():
        torch.func.vmap(run)(kernel)
    assert [one is not None for one in seen] == [True, True, False, False]
