"""Small networks: LeNet and SmallCNN, of the sizes that are known of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import multitudes as mt
from multitudes.conversion.anatomy.structure import block_starts, observe
from multitudes.models import LeNet, SmallCNN


def count(net: nn.Module) -> int:
    """Of its parameters."""
    return sum(p.numel() for p in net.parameters())


def test_counts() -> None:
    """LeNet-5 with all connections has 61,706; SmallCNN has convolutions of 16, 32 and 32 filters."""
    assert count(LeNet()) == 61_706
    assert count(SmallCNN()) == (27 * 16 + 16) + (9 * 16 * 32 + 32) + (9 * 32 * 32 + 32) + (16 * 32 * 10 + 10)
    assert [SmallCNN().get_submodule(f"conv{i}").out_channels for i in (1, 2, 3)] == [16, 32, 32]


def test_lenet_by_hand() -> None:
    """On pictures of 28×28: no pixel is dropped or repeated by its last pooling."""
    net, x = LeNet(), torch.randn(2, 1, 28, 28)
    h = F.max_pool2d(F.conv2d(x, net.conv1.weight, net.conv1.bias, padding=2).relu(), 2)
    h = F.max_pool2d(F.conv2d(h, net.conv2.weight, net.conv2.bias).relu(), 2)
    assert h.shape == (2, 16, 5, 5)
    torch.testing.assert_close(net(x), net.fc3(net.fc2(net.fc1(h.flatten(1)).relu()).relu()))


@pytest.mark.parametrize("size", [28, 32, 48])
def test_any_size_of_picture(size: int) -> None:
    """And any number of channels and classes."""
    for kind in (LeNet, SmallCNN):
        assert kind(channels=2, classes=7)(torch.randn(3, 2, size, size)).shape == (3, 7)


@pytest.mark.parametrize("kind", [LeNet, SmallCNN])
def test_widths(kind: type[LeNet | SmallCNN]) -> None:
    """Half the width is a little more than a quarter of the parameters; a tiny one still runs."""
    assert 0.25 < count(kind(width=0.5)) / count(kind()) < 0.5
    tiny = kind(width=0.001)
    assert all(1 in part.weight.shape[:2] for part in tiny.modules() if isinstance(part, nn.Conv2d))
    assert tiny(torch.randn(2, tiny.arguments["channels"], 28, 28)).shape == (2, 10)


def test_there_is_no_residual_block() -> None:
    """So that none of its layers is the first of one."""
    assert block_starts(observe(SmallCNN(), mt.Inputs(torch.randn(2, 3, 32, 32)))) == set()
