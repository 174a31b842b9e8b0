"""Where inputs go in: the layers on them."""

from __future__ import annotations

import torch
from laws.compare import summed
from torch import Tensor, nn
from torch.nn import functional as F

import multitudes as mt
from multitudes.conversion.anatomy.first_layers import first_layers, layers_on_constants
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
    """Two inputs, one of them of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.head = nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.table(ids) + self.layer(x)))


class Coordinates(nn.Module):
    """A layer of coordinates, which have one entry for all rows, and BatchNorm, as XCiT has."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.places, self.norm = nn.Conv1d(3, 16, 1), nn.Conv1d(12, 16, 1), nn.BatchNorm1d(16)
        self.mix, self.head = nn.Conv1d(16, 16, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[-1]) * torch.arange(1, 13)[:, None] / 8
        table = self.places(angles.sin()[None])
        return self.head(self.norm(self.mix(self.read(x) + table.repeat(len(x), 1, 1))).mean(-1))


def test_a_layer_of_constants_is_shared() -> None:
    """Its output has no rows, so that fold could not give each member its own; what is learned is not constant."""
    x = torch.randn(4, 3, 5)
    assert layers_on_constants(observe(Coordinates(), Inputs(x))) == {"places"}
    assert not layers_on_constants(observe(Latent(), Inputs(torch.randn(2, 5, 6))))
    ens = mt.ensemble(Coordinates(), mt.Masksembles(members=2), x, seed=0)
    reasons = {entry.name: entry.reason for entry in ens.plan.shared}
    assert reasons["places"] == "on constants: its output is a table without rows"
    batch = ens.batch(x, torch.zeros(4, dtype=torch.long))
    assert ens.train().reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy).isfinite()


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
