"""Conditional variances: units that see one slot, the other, or both, with values by hand; and a wide plain network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from multitudes.analysis import conditional_variance
from multitudes.errors import InputError

pytestmark = pytest.mark.slow


class Product(nn.Module):
    """Units a of a linear layer, a ReLU, and a second layer of its square roots; all inputs are positive."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.first(x)))


def by_hand() -> mt.Ensemble:
    """Two slots and three units: 2 x_0, 3 x_1 and x_0 − x_1 + 1."""
    ens = mt.ensemble(Product(), mt.MIMO(members=2), torch.rand(3, 1), seed=0, check=False)
    p = dict(ens.named_parameters())
    with torch.no_grad():
        p["first.weight"].copy_(torch.tensor([[[2.0], [0.0], [1.0]], [[0.0], [3.0], [-1.0]]]))
        p["first.bias"].copy_(torch.tensor([0.0, 0.0, 1.0]))
    return ens


def test_units_that_see_one_slot_or_both() -> None:
    """The variance of 0, 1, 5 is 42/9; a factor counts by its square, and a linear unit does not care what the rest is."""
    x = torch.tensor([[0.0], [1.0], [5.0]])
    for contexts in (None, 4):
        result = conditional_variance(by_hand(), x, contexts=contexts)
        np.testing.assert_allclose(result.variance, 42 / 9 * np.array([[4, 0, 1], [0, 9, 1]]), atol=1e-5)
    np.testing.assert_allclose(result.share, [[1, 0, 0.5], [0, 1, 0.5]], atol=1e-7)
    assert result.names == ("first",)
    assert result.layer.tolist() == [0, 0, 0]
    assert len(result.figure(theme="dark").axes) == 2


class Gated(nn.Module):
    """A second activation multiplies what the slots sum to: it depends on the context."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 4, 1)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Conv1d(4, 3, 2)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        return self.head(F.gelu(self.second(x)).mean(-1))


def test_the_network_is_the_one_with_inputs_side_by_side() -> None:
    """Three slots: a plain network whose first layer has all inputs as channels, and every combination of examples."""
    torch.manual_seed(0)
    x = torch.randn(3, 2, 5).double()
    net = Gated().double()
    net.norm.running_var.uniform_(0.5, 2)
    ens = mt.ensemble(net, mt.MIMO(members=3), x, seed=1, check=False)
    result = conditional_variance(ens, x, contexts=None)
    p = {name: value.detach() for name, value in [*ens.named_parameters(), *ens.named_buffers()]}
    wide = torch.cat(list(p["first.weight"]), 1)
    for slot in range(3):
        sums: list[Any] = [0.0, 0.0]
        for a, b in ((a, b) for a in range(3) for b in range(3)):
            parts = [x[[a] * 3], x[[b] * 3]]
            parts.insert(slot, x)
            first = F.conv1d(torch.cat(parts, 1), wide, p["first.bias"])
            statistics = p["norm.running_mean"], p["norm.running_var"], p["norm.weight"], p["norm.bias"]
            first = F.batch_norm(first, *statistics)
            second = F.conv1d(first.tanh(), p["second.weight"], p["second.bias"])
            for k, values in enumerate((first, second)):
                sums[k] = sums[k] + values.numpy().var(0).mean(-1) / 9
        np.testing.assert_allclose(result.variance[slot], np.concatenate(sums), rtol=1e-9)
    assert result.names == ("norm", "second")
    assert result.layer.tolist() == [0] * 4 + [1] * 3


def test_contexts_are_drawn_from_the_seed() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 2, 5)
    ens = mt.ensemble(Gated(), mt.MIMO(members=2), x, seed=1, check=False).train()
    first, again, other = (conditional_variance(ens, x, contexts=3, seed=seed).variance for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert ens.training
    assert ens.template.norm.training  # type: ignore[union-attr]


def test_tokens_have_their_units_last() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))
    x = torch.randn(4, 3, 2)
    ens = mt.ensemble(net, mt.MIMO(members=2), x, seed=0, check=False)
    assert conditional_variance(ens, x, channel_axis=-1).variance.shape == (2, 4)
    assert conditional_variance(ens, x).variance.shape == (2, 3)


def test_bad_input_is_refused() -> None:
    x = torch.rand(3, 1)
    with pytest.raises(InputError, match="MultiHead has one: use MIMO"):
        conditional_variance(mt.ensemble(Product(), mt.MultiHead(members=2), x, check=False), x)
    with pytest.raises(InputError, match=r"has one: convert with mt.MIMO\(members=2\)"):
        conditional_variance(mt.ensemble(Product(), mt.MIMO(members=1), x, check=False), x)
    with pytest.raises(InputError, match="no unit varies: give at least two"):
        conditional_variance(by_hand(), x[:1])
    with pytest.raises(InputError, match="contexts must be"):
        conditional_variance(by_hand(), x, contexts=0)
    linear = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))
    with pytest.raises(InputError, match="no activation function"):
        conditional_variance(mt.ensemble(linear, mt.MIMO(members=2), x, check=False), x)
