"""A moving average of weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.training.weight_average import WeightAverage


def test_it_follows() -> None:
    """By the decay, and stands in for the weights for the time of a block."""
    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2), torch.randn(2, 3), seed=0)
    first = {name: p.detach().clone() for name, p in ens.named_parameters()}
    moving = WeightAverage(ens, 0.75)
    with torch.no_grad():
        for p in ens.parameters():
            p.add_(1)
    moving.update()
    for name, value in moving.values.items():
        torch.testing.assert_close(value, first[name] + 0.25)
    with pytest.raises(RuntimeError), moving.swapped_in():
        torch.testing.assert_close(ens.get_parameter("weight"), first["weight"] + 0.25)
        raise RuntimeError
    torch.testing.assert_close(ens.get_parameter("weight"), first["weight"] + 1)
    moving.copy_to_weights()
    torch.testing.assert_close(ens.get_parameter("weight"), first["weight"] + 0.25)
