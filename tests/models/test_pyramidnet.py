"""PyramidNet: a little wider in every block, with shortcuts that pool and pad."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import multitudes as mt
from multitudes.conversion.anatomy.structure import block_starts, observe
from multitudes.models import PyramidNet
from multitudes.models.network import nearest
from multitudes.models.pyramidnet import Pyramidal

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@settings(max_examples=10)
@given(per_group=st.integers(1, 4), alpha=st.integers(3, 60), eighths=st.integers(2, 16))
def test_widths_grow_evenly(per_group: int, alpha: int, eighths: int) -> None:
    """Block k of N has round(16 + k α / N) channels, times the width; its convolutions both have that many."""
    with torch.device("meta"):
        net = PyramidNet(6 * per_group + 2, alpha, width=eighths / 8)
    blocks = [*net.group1, *net.group2, *net.group3]
    count = 3 * per_group
    expected = [nearest(round(16 + k * alpha / count) * eighths / 8) for k in range(count + 1)]
    assert [net.conv1.out_channels, *(block.conv2.out_channels for block in blocks)] == expected
    assert [block.conv1.in_channels for block in blocks] == expected[:-1]
    assert net.fc.in_features == net.bn2.num_features == expected[-1]
    assert [block.conv1.stride[0] for block in blocks] == [2 if k in (per_group, 2 * per_group) else 1 for k in range(count)]


@pytest.mark.parametrize("stride", [1, 2])
def test_the_shortcut_pools_and_pads(stride: int) -> None:
    """Where the way through the convolutions gives nothing, the block gives its input, averaged, and zero channels."""
    block, x = Pyramidal(4, 6, stride), torch.randn(2, 4, 8, 8)
    nn.init.zeros_(block.bn3.weight)
    expected = F.pad(x if stride == 1 else F.avg_pool2d(x, 2), (0, 0, 0, 0, 0, 2))
    torch.testing.assert_close(block(x), expected)


def test_a_block_by_hand() -> None:
    """Norm, convolution, norm, activation, convolution, norm: no activation before the first convolution nor at the end."""
    block, x = Pyramidal(3, 3, 1).eval(), torch.randn(2, 3, 4, 4)
    for bn in (block.bn1, block.bn2, block.bn3):
        nn.init.normal_(bn.running_mean)
    y = F.conv2d(block.bn1(x), block.conv1.weight, padding=1)
    y = F.conv2d(block.bn2(y).clamp(min=0), block.conv2.weight, padding=1)
    torch.testing.assert_close(block(x), block.bn3(y) + x)


def test_it_runs_and_trains() -> None:
    """Every parameter gets a gradient."""
    net = PyramidNet(8, 12, classes=7)
    net(X).square().sum().backward()
    assert net(X).shape == (2, 7)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_block_starts() -> None:
    """The first convolution of every block, although shortcuts have no layer."""
    found = block_starts(observe(PyramidNet(14, 12), mt.Inputs(X)))
    assert found == {f"group{group}.{block}.conv1" for group in (1, 2, 3) for block in (0, 1)}
