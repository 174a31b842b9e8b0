"""Networks whose last layers make a weight, and networks on fixed features: each is thinner by its ratio, or refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt


class Hyper(nn.Module):
    """A small network makes the weights of the last layer."""

    def __init__(self, hidden: int = 32, code: int = 16) -> None:
        super().__init__()
        self.hidden = hidden
        self.first, self.second = nn.Linear(8, hidden), nn.Linear(hidden, hidden)
        self.code = nn.Parameter(torch.randn(code))
        self.make = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.Linear(64, 3 * hidden))

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.first(x).relu()).relu()
        return F.linear(h, self.make(self.code).view(3, self.hidden))


class Reservoir(nn.Module):
    """An echo-state network: a fixed random recurrence, and a readout that is trained."""

    def __init__(self, units: int = 64, hidden: int = 32) -> None:
        super().__init__()
        self.units = units
        self.register_buffer("enter", torch.randn(units, 4) / 2)
        self.register_buffer("step", torch.randn(units, units) * 0.9 / units**0.5)
        self.readout = nn.Sequential(nn.Linear(units, hidden), nn.ReLU(), nn.Linear(hidden, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.units)
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] @ self.enter.t() + h @ self.step.t())
        return self.readout(h)


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.slow
def test_a_hypernetwork_that_would_stay_wide_is_refused_and_its_factory_is_taken() -> None:
    x = torch.randn(4, 8)
    with pytest.raises(mt.ConversionError, match=r"(?s)make.2 is as wide as before.*lambda ratio: Hyper\("):
        mt.ensemble(Hyper(), mt.Packed(members=4, alpha=2), x)
    ens = mt.ensemble(lambda ratio: Hyper(round(32 * ratio)), mt.Packed(members=4, alpha=2), x)
    assert ens(x).shape == (4, 4, 3)


def test_a_last_layer_that_is_summed_up_may_stay() -> None:
    """Two towers: the score is a product of their outputs, and both read data."""

    class Towers(nn.Module):
        def __init__(self, hidden: int = 64, size: int = 32) -> None:
            super().__init__()
            self.hidden, self.size = hidden, size
            self.one, self.other = (nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, size)) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return (self.one(x) * self.other(x)).sum(-1, keepdim=True)

    assert parameters(mt.resize(Towers(), 0.5, torch.randn(4, 8), seed=0)) < 0.6 * parameters(Towers())


def test_a_reservoir_is_as_thin_as_its_readout() -> None:
    net, x = Reservoir(), torch.randn(4, 5, 4)
    ens = mt.ensemble(net, mt.Packed(members=4, alpha=2), x, seed=0)
    member = ens.member(0)
    assert member.get_buffer("step").shape == (32, 32)
    assert member.get_buffer("enter").shape == (32, 4)
    assert parameters(ens) < 1.2 * parameters(net)
    assert ens(x).shape == (4, 4, 3)


@pytest.mark.slow
def test_rows_of_a_table_with_their_numbers_in_a_buffer_are_no_features() -> None:
    """The number of positions doubles a buffer of whole numbers, and the rows of a table."""
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 32, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64}
    config = transformers.AlbertConfig(vocab_size=64, num_hidden_layers=2, num_attention_heads=4, num_labels=5, **sizes)
    net = transformers.AlbertForSequenceClassification(config)
    thin = mt.resize(net, 0.5, torch.randint(1, 64, (3, 8)), seed=0)
    assert thin.albert.embeddings.position_embeddings.weight.shape == (64, 16)
