"""What a compiled training step keeps for backward: the tensors of one network for each member, and nothing beside them."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.models.resnet import Bottleneck

M = 3


def network() -> nn.Module:
    """A stem, a bottleneck with stride and shortcut, one without."""
    stem = (nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Bottleneck(16, 8, 32, 2, 1), Bottleneck(32, 8, 32, 1, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5))


@pytest.fixture
def saved() -> Any:
    torch._dynamo.reset()
    return importlib.import_module("benchmarks.saved")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, in its own decompositions
@pytest.mark.slow
def test_members_keep_what_one_network_keeps(saved: Any) -> None:
    """No mask of a ReLU beside its result, as if that were lost; only inputs of strided products are kept as copies."""
    torch.set_default_dtype(torch.float32)
    x = torch.randn(16, 3, 16, 16).to(memory_format=torch.channels_last)
    ens = saved.together(mt.ensemble(network(), mt.Deep(members=M), x[:2]))
    found: dict[int, list[Tensor]] = {}
    for count, module in ((1, network()), (M, ens)):
        found[count] = saved.kept(module.to(memory_format=torch.channels_last).train(), x)
    masks = [saved.size([tensor for tensor in tensors if tensor.dtype is torch.bool]) for tensors in found.values()]
    assert masks[1] <= M * masks[0]
    assert saved.size(found[M]) <= 1.06 * M * saved.size(found[1])
