"""What a search for widths found is in the file: loading makes the members' network again without a search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.conversion.anatomy.structure import observe
from multitudes.conversion.resize import found, resize
from multitudes.conversion.resize.constructors import recipe_of
from multitudes.errors import ConversionError

ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Unstored(nn.Module):
    """Its width and depth are no attributes: they are found by value."""

    def __init__(self, width: int, depth: int = 1) -> None:
        super().__init__()
        self.read, self.head = nn.Linear(4, width), nn.Linear(width, 2)
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x).relu()
        for layer in self.body:
            h = layer(h).relu()
        return self.head(h)


class InCode(nn.Module):
    """Its widths are written in its code."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.middle, self.head = nn.Linear(4, 128), nn.Linear(128, 256), nn.Linear(256, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.read(x).relu()).relu())


def no_search(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("the widths are searched for")


BUILT: dict[str, tuple[Callable[[], nn.Module], mt.Packed]] = {
    "arguments found by value": (lambda: Unstored(12, 3), mt.Packed(members=2, alpha=1)),
    "numbers in code": (InCode, mt.Packed(members=2, alpha=1)),
    "groups": (InCode, mt.Packed(members=2, alpha=1, gamma=2)),
}


@pytest.mark.parametrize("name", BUILT)
def test_loading_does_not_search(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search is limited in time, so on a slower machine it could find something else than what was saved."""
    build, method = BUILT[name]
    ens = mt.ensemble(build(), method, ROWS, seed=0, check=False).eval()
    mt.save(ens, tmp_path / "a")
    monkeypatch.setattr(resize, "Search", no_search)
    back = mt.load(tmp_path / "a", build())
    torch.testing.assert_close(back(ROWS), ens(ROWS), rtol=0, atol=0)
    assert back.template.resizing == ens.template.resizing
    mt.save(back, tmp_path / "b")
    torch.testing.assert_close(mt.load(tmp_path / "b", build())(ROWS), ens(ROWS), rtol=0, atol=0)


def test_a_constructor_that_is_another_one_now_is_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is believed only where it makes the saved network."""
    ens = mt.ensemble(Unstored(12, 3), mt.Packed(members=2, alpha=1), ROWS, seed=0, check=False).eval()
    mt.save(ens, tmp_path / "a")

    def changed(self: Any, dim: int, depth: int = 1) -> None:
        before(self, dim, depth)

    before = Unstored.__init__
    monkeypatch.setattr(Unstored, "__init__", changed)
    recipe = recipe_of(observe(Unstored(12, 3), mt.Inputs(ROWS)))
    assert recipe is not None
    with pytest.raises(ConversionError, match="other arguments now"):
        found.recipe_from(ens.template.resizing.found, Unstored(12, 3), None)
    torch.testing.assert_close(mt.load(tmp_path / "a", Unstored(12, 3))(ROWS), ens(ROWS), rtol=0, atol=0)


def test_arguments_that_are_no_literals_are_not_written() -> None:
    """Then loading searches."""
    recipe = recipe_of(observe(Unstored(12, 3), mt.Inputs(ROWS)))
    assert recipe is not None
    text = found.text_of(recipe, {("width",): 6})
    assert text
    with pytest.raises(ConversionError, match="other values than numbers"):
        found.recipe_from(text.replace("6", "'a path that the constructor would read'"), Unstored(12, 3), None)
    assert not found.text_of(recipe.with_values({("depth",): "3"}), {("width",): 6})
    assert not found.text_of(recipe, {("width",): float("inf")})
