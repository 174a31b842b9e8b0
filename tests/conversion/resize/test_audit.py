"""Auditing a resized network: finds weights that would multiply other channels, and mixed heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from multitudes.conversion.anatomy.structure import observe
from multitudes.conversion.resize.audit import changes_lost, without_channels
from multitudes.conversion.resize.pruning import pruned
from multitudes.engine.inputs import Inputs
from multitudes.methods.packed import important_and_random


class Tied(nn.Module):
    """Its output layer is its embedding, while another layer stands between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.inner, self.out = nn.Embedding(50, 32), nn.Linear(32, 32), nn.Linear(32, 50, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(F.relu(self.inner(self.embed(ids))))


class Heads(nn.Module):
    """Attention by hand, with a fixed number of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(4))
        self.out = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q, k, v = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.out(((q @ k.transpose(-1, -2)).softmax(-1) @ v).transpose(1, 2).flatten(2))


class Mixed(nn.Module):
    """Puts channels into another order, by a function of no module."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x.flip(1) if self.how == "flip" else F.channel_shuffle(x, 4) if self.how == "shuffle" else x
        x = F.relu(self.second(x))
        return self.head(x.permute(0, 2, 3, 1).flatten(1) if self.how == "last" else x.flatten(1))


IMAGES = torch.randn(3, 3, 4, 4)


@pytest.mark.parametrize(
    ("net", "x", "why"),
    [
        (Tied(), torch.randint(50, (3, 6)), "other channels"),
        (Heads(), torch.randn(3, 5, 32), "its heads would be mixed"),
        (Mixed("flip"), IMAGES, "other channels"),
        (Mixed("shuffle"), IMAGES, "other channels"),
        (Mixed("last"), IMAGES, "other channels|does not run"),
    ],
    ids=["tied", "heads", "flip", "shuffle", "channels last"],
)
def test_weights_in_wrong_places_are_refused(net: nn.Module, x: Tensor, why: str) -> None:
    """Where weights are kept; where they start anew, shapes are all there is, and attention by hand is taken."""
    with pytest.raises(mt.ConversionError, match=rf"({why})(.|\n)*pretrained=False"):
        mt.ensemble(net, mt.Packed(pretrained=True), x, seed=0)
    if not isinstance(net, Mixed):
        mt.ensemble(net, mt.Packed(), x, seed=0)


def test_what_is_right_passes() -> None:
    """The same network without a mix of channels keeps its weights; norms over channels and attention are no obstacle."""
    net = Mixed("none")
    thin = pruned(observe(net, mt.Inputs(IMAGES)), 0.5, important_and_random(3))
    assert thin.first.out_channels == 8
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    whole = nn.Sequential(nn.Linear(5, 16), nn.LayerNorm(16), layer, nn.Linear(16, 3))
    mt.ensemble(whole, mt.Packed(pretrained=True), torch.randn(3, 4, 5), seed=0)


def test_a_layer_that_sees_the_data_is_not_excused_by_an_example_of_zeros() -> None:
    """Files are loaded with such an example: a layer that keeps its width there must be reported there too."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    assert without_channels(net, net, Inputs(torch.zeros(3, 4)), ["0"]) == set()
    assert without_channels(net, net, Inputs(torch.ones(3, 4)), ["0"]) == set()


def test_a_cache_of_tensors_by_device_is_no_change() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    one.cache, other.cache = {"cpu": torch.ones(1)}, {"meta": torch.ones(1)}  # type: ignore[assignment]
    assert not list(changes_lost(one, other))
    other.cache = {"meta": torch.ones(1), "rate": 0.5}  # type: ignore[assignment]
    assert list(changes_lost(one, other))
