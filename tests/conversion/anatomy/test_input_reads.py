"""What reads a network's inputs, of whole numbers too: layers, masks beside them, ways around them, loose matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from multitudes.conversion.anatomy.input_reads import InputReads, input_reads, is_additive
from multitudes.conversion.anatomy.structure import observe
from multitudes.engine.inputs import Inputs

IDS = torch.tensor([[1, 2, 0], [3, 0, 0]])


class Words(nn.Module):
    """Tables on ids, on places counted from ids, on counted places, on a table of zeros, and what follows."""

    def __init__(self) -> None:
        super().__init__()
        names = ("words", "counted", "places", "kinds")
        self.tables = nn.ModuleDict({name: nn.Embedding(6, 4) for name in names})
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        t = self.tables
        places = torch.zeros(ids.shape, dtype=torch.long)
        places[:, 1:] = (ids[:, 1:] != 0).cumsum(1)  # written in place
        h = (
            t["words"](ids.clone().view(2, -1))
            + t["counted"](places)
            + t["places"](torch.arange(3))
            + t["kinds"](torch.zeros_like(ids))
        )
        return self.head(self.mix(h * mask[..., None]).sum(1))


def reads(net: nn.Module, *inputs: Tensor, **more: Tensor) -> InputReads:
    return input_reads(observe(net, Inputs(*inputs, **more)))


def test_whole_numbers_are_followed() -> None:
    """Through comparisons, sums, views and writes in place, but not where only a shape is read; a mask is beside layers."""
    found = reads(Words(), IDS, mask=torch.ones(2, 3))
    assert found.first == {"tables.words", "tables.counted"}
    assert (found.both, found.beside, found.around, found.loose) == (frozenset(), ("mask",), None, None)


class Ways(nn.Module):
    """Ways of an input: around the first layer, by a loose matrix or table, or in two calls of a layer."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.second, self.head, self.way = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2), way
        self.matrix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.first(edges @ x).relu() + self.second(x)
        if self.way == "around":
            h = h + x
        if self.way == "matrix":
            h = h + x @ self.matrix
        if self.way == "weight":
            h = h + F.linear(x, self.first.weight)
        if self.way == "table":
            h = h + self.matrix[(x[:, :, 0] > 0).long()]
        if self.way == "twice":
            h = self.first(h)
        return self.head((edges @ h).mean(1))


@pytest.mark.parametrize("way", ["edges", "around", "matrix", "weight", "table", "twice"])
def test_ways_of_an_input(way: str) -> None:
    """Edges that mix rows before a layer and behind it are beside; data may not go around, nor meet a loose matrix."""
    found = reads(Ways(way), torch.randn(2, 3, 4), torch.rand(2, 3, 3))
    assert found.first == {"first", "second"}
    assert "input 1" in found.beside
    assert found.both == ({"first"} if way == "twice" else set())
    assert (found.around is not None) == (way in ("around", "matrix", "weight"))
    assert found.loose == {"matrix": "matrix", "table": "matrix", "weight": "first.weight"}.get(way)


class AddedInPlace(nn.Module):
    """Places are written into the output of the first layer, which is a view of what the product wrote (NaFlexVit)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head, self.places = nn.Linear(4, 6), nn.Linear(6, 2), nn.Parameter(torch.randn(3, 6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h.add_(self.places)
        return self.head(h.relu().mean(1))


def test_what_is_written_into_the_first_layers_output_is_no_way_around_it() -> None:
    found = reads(AddedInPlace(), torch.randn(2, 3, 4))
    assert (found.first, found.around) == ({"first"}, None)


@pytest.mark.parametrize(
    ("layer", "x", "adds"),
    [
        (nn.Linear(4, 3), torch.randn(2, 4), True),
        (nn.Embedding(5, 3, padding_idx=1), torch.tensor([0, 1, 4]), True),
        (nn.EmbeddingBag(5, 3, mode="max"), torch.tensor([[0, 1, 4]]), False),
        (nn.PReLU(4), torch.tensor([[1.0, -1.0, 2.0, -2.0]]), False),
        (nn.Linear(4, 3, device="meta"), torch.empty(2, 4, device="meta"), True),
    ],
)  # fmt: skip
def test_what_adds_up_over_its_weight(layer: nn.Module, x: Tensor, adds: bool) -> None:
    """Products and rows do; a maximum and an activation do not. Layers without values are tried with some."""
    assert is_additive(layer, ((x,), {})) is adds
