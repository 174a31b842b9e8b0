"""Pools of members, against torch's own for each member."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.engine.kernels import Together

M = 3
POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": nn.MaxPool2d(2), "max, overlapping": nn.MaxPool2d(3, 2, 1), "max, dilated": nn.MaxPool2d((2, 1), 1, 0, (2, 1)),
    "max, to the end": nn.MaxPool2d(2, 2, ceil_mode=True), "max, by name": lambda x: F.max_pool2d(x, kernel_size=2, stride=1),
    "average": nn.AvgPool2d(2), "average, border": nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "average, divisor": nn.AvgPool2d(2, divisor_override=3), "average of a row": lambda x: F.avg_pool2d(x[0], 2),
    "indices": lambda x: F.max_pool2d(x, 2, return_indices=True)[1].double() * x.sum(),
}  # fmt: skip


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize("kind", POOLS)
def test_values_and_gradients(kind: str, last: bool) -> None:
    """Behind a convolution of members, where they lie beside each other, and on members in front."""
    pool = POOLS[kind]
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64).to(memory_format=layout)
    kernel = torch.randn(M, 4, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    own = torch.randn(M, 2, 4, 5, 5, dtype=torch.float64, requires_grad=True)
    with Together():
        found = torch.func.vmap(lambda k, o: pool(F.conv2d(x, k)) + pool(o))(kernel, own)
    wanted = torch.stack([pool(F.conv2d(x, kernel[m])) + pool(own[m]) for m in range(M)])
    torch.testing.assert_close(found, wanted)
    noise = torch.randn_like(wanted)
    grads = [torch.autograd.grad((y * noise).sum(), (kernel, own)) for y in (found, wanted)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs)
