"""Inputs that a network concatenates with the outputs of its layers are no channels to remove."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt

pytestmark = pytest.mark.slow


class Branches(nn.Module):
    """Learned branches, and a raw input among them at a given place."""

    def __init__(self, branches: int, place: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Embedding(7, 8) for _ in range(branches)])
        self.hidden, self.out = nn.Linear(8 * branches + 3, 20), nn.Linear(20, 2)
        self.place = place

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        parts = [part(ids) for part in self.parts]
        parts.insert(self.place, numbers)
        return self.out(self.hidden(torch.cat(parts, 1)).relu())


class Images(nn.Module):
    """The image itself between two convolutions of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 12, 3, padding=1)
        self.c, self.out = nn.Conv2d(23, 10, 1), nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.c(torch.cat([self.a(x), x, self.b(x)], 1)).relu().mean((2, 3)))


PLACES = [(branches, place) for branches in (1, 2, 3) for place in range(branches + 1)]
IDS, NUMBERS = torch.arange(6) % 7, torch.randn(6, 3)


@pytest.mark.parametrize(("branches", "place"), PLACES)
def test_a_raw_input_beside_branches_keeps_its_columns(branches: int, place: int) -> None:
    """The thin network is the given one with half of every width, and all three columns of the raw input."""
    thin = mt.resize(Branches(branches, place), 0.5, (IDS, NUMBERS))
    assert [part.embedding_dim for part in thin.parts] == [4] * branches  # type: ignore[union-attr]
    assert thin.hidden.weight.shape == (10, 4 * branches + 3)  # type: ignore[union-attr]
    assert thin.out.weight.shape == (2, 10)  # type: ignore[union-attr]


@pytest.mark.parametrize(("branches", "place"), PLACES)
def test_kept_weights_still_multiply_what_they_did(branches: int, place: int) -> None:
    """By hand: the columns of the raw input are at its place, and those of branches are columns of the given weights."""
    torch.manual_seed(0)
    model = Branches(branches, place)
    ens = mt.ensemble(model, mt.Packed(pretrained=True, members=2, alpha=1), (IDS, NUMBERS), check=False)
    member = ens.member(0)
    start = 4 * place
    kept = member.hidden.weight[:, start : start + 3]  # type: ignore[union-attr, index]
    rows = [row.tolist() for row in model.hidden.weight[:, 8 * place : 8 * place + 3]]
    assert all(row.tolist() in rows for row in kept)  # type: ignore[union-attr]


def test_an_image_between_convolutions_of_it() -> None:
    thin = mt.resize(Images(), 0.5, torch.randn(2, 3, 6, 6))
    assert thin.c.weight.shape == (5, 4 + 3 + 6, 1, 1)  # type: ignore[union-attr]
