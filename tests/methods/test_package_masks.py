"""Networks with layers of the masksembles package keep their outputs; the file was written with the package itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import multitudes as mt

FILE = Path(__file__).parents[1] / "files" / "foreign" / "masksembles.safetensors"


class Masksembles1D(nn.Module):
    """Stands for the package's layer: the rows of member m, which lie together, times mask m."""

    def __init__(self, masks: Tensor) -> None:
        super().__init__()
        self.register_buffer("masks", masks, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        masks = self.masks.repeat_interleave(len(x) // len(self.masks), 0)
        return x * masks.view(*masks.shape, *(1 for _ in x.shape[2:]))


class Masksembles2D(Masksembles1D):
    """The same for images."""


def network() -> tuple[nn.Module, Tensor, Tensor]:
    """The network of the file, its inputs and the package's outputs."""
    found = load_file(FILE)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), Masksembles2D(found["state.3.masks"]), nn.Conv2d(12, 12, 3),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), Masksembles1D(found["state.8.masks"]), nn.Linear(12, 4),
    )  # fmt: skip
    state = {name.removeprefix("state."): value for name, value in found.items() if name.startswith("state.")}
    net.load_state_dict({name: value for name, value in state.items() if not name.endswith("masks")})
    return net.eval(), found["x"], found["outputs"]


def test_outputs_are_the_packages() -> None:
    net, x, expected = network()
    ens = mt.Masksembles.from_package(net, x, seed=0)
    torch.testing.assert_close(ens(x), expected, rtol=1e-4, atol=1e-5)
    assert isinstance(ens.member(0)[3], nn.Identity)
    torch.testing.assert_close(ens.compact()(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_masks_that_would_change_the_outputs_are_refused() -> None:
    """A mask before BatchNorm: a dropped channel is no zero behind it."""
    net, x, _ = network()
    moved = nn.Sequential(net[0], net[3], net[1], net[2], *net[4:])
    with pytest.raises(mt.ConversionError, match="do not stand in front"):
        mt.Masksembles.from_package(moved, x)
    with pytest.raises(mt.InputError, match="no layer of the masksembles package"):
        mt.Masksembles.from_package(nn.Linear(3, 2), torch.randn(2, 3))
    with pytest.raises(mt.ConversionError, match="no linear layer or convolution behind 10"):
        mt.Masksembles.from_package(nn.Sequential(*net, Masksembles1D(torch.ones(2, 4))), x)
