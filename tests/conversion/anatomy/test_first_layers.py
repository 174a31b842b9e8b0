"""Where inputs go in: layers on them, and what is around and before these."""

from __future__ import annotations

import torch
from laws.compare import summed
from torch import Tensor, nn
from torch.nn import functional as F

import multitudes as mt
from multitudes.conversion.anatomy.first_layers import first_layers, norms_before, reaches_around
from multitudes.conversion.anatomy.structure import observe
from multitudes.engine.inputs import Inputs


class Latent(nn.Module):
    """A learned query attends to what the network is given: the query's layer stands on no input."""

    def __init__(self) -> None:
        super().__init__()
        self.latent = nn.Parameter(torch.randn(1, 4, 8))
        self.q, self.k, self.head = nn.Linear(8, 8), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.k(x)
        queries = self.q(self.latent.expand(len(x), -1, -1))
        return self.head(F.scaled_dot_product_attention(queries, keys, keys).mean(1))


class Two(nn.Module):
    """Two inputs, one of them of whole numbers, and a way around the first layer."""

    def __init__(self, around: bool = False) -> None:
        super().__init__()
        self.table, self.layer, self.head, self.around = nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 3), around

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        h = torch.relu(self.table(ids) + self.layer(x))
        return self.head(h + x if self.around else h)


def test_layers_on_the_inputs() -> None:
    """Those that no other comes before, and that something of the input reaches."""
    x = torch.randn(2, 5, 6)
    assert first_layers(observe(Latent(), Inputs(x))) == {"k"}
    two = Inputs(torch.tensor([0, 4]), torch.randn(2, 8))
    assert first_layers(observe(Two(), two)) == {"table", "layer"}
    plain = nn.Sequential(nn.Flatten(), nn.Linear(30, 4), nn.ReLU(), nn.Linear(4, 2))
    assert first_layers(observe(plain, Inputs(x))) == {"1"}


def test_a_querys_layer_has_no_slots() -> None:
    """MIMO widens the layer that reads the input alone; the layer of the query stays as it was given."""
    net, x = Latent(), torch.randn(4, 5, 6)
    ens = mt.ensemble(net, mt.MIMO(members=3), x, seed=0)
    assert summed(ens) == {"k.weight"}
    torch.testing.assert_close(ens.get_parameter("q.weight"), net.q.weight)


def test_ways_around() -> None:
    """The input may not come to the output but through the first layers."""
    two = Inputs(torch.tensor([0, 4]), torch.randn(2, 8))
    assert reaches_around(Two(), two, {"layer", "table"}) is None
    assert "first layer" in str(reaches_around(Two(around=True), two, {"layer", "table"}))


def test_norms_before_layers() -> None:
    """A norm on the input itself, and none behind the first layer."""
    net = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    structure = observe(net, Inputs(torch.randn(3, 6)))
    assert norms_before(structure, first_layers(structure)) == {"0"}
