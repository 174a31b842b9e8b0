"""Network: a model that knows its arguments, and can be made again at any width."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import multitudes as mt
from multitudes import models
from multitudes.models.network import Network, he_init

EVERY: dict[str, Callable[..., Network]] = {
    "ResNet": models.ResNet,
    "WideResNet": lambda **more: models.WideResNet(10, 2, **more),
    "PyramidNet": lambda **more: models.PyramidNet(8, 12, **more),
    "SmallCNN": models.SmallCNN,
    "LeNet": models.LeNet,
    "ViT": models.ViT,
    "MLP": models.MLP,
}


class Wide(Network):
    """One hidden layer, which must be divided by `multiple`."""

    def __init__(self, hidden: int, multiple: int = 1, *, width: float = 1.0) -> None:
        super().__init__(locals())
        self.hidden = self.scaled(hidden, multiple)


def on_meta(build: Callable[..., Network], **arguments: Any) -> Network:
    """A network as shapes only."""
    with torch.device("meta"):
        return build(**arguments)


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    """Of all that is in a state dict."""
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


WIDTHS = [0, -1.0, math.nan, math.inf, True, "1", None]

REFUSED: list[tuple[Callable[..., Network], dict[str, Any], str]] = [
    *((EVERY[name], {"width": width}, rf"{name}\(width={width!r}\)") for name, width in zip(EVERY, WIDTHS, strict=True)),
    (models.ResNet, {"depth": 20}, r"depth=20\).* 18, 34, 50, 101, 152"),
    (models.ResNet, {"depth": 18, "groups": 2}, "groups=2.* 50"),
    (models.ResNet, {"stem": "mnist"}, "stem='mnist'.*'cifar' or 'imagenet'"),
    (models.WideResNet, {"depth": 4}, r"depth=4\).*6 n \+ 4"),
    (models.WideResNet, {"depth": 27}, r"depth=27\).*6 n \+ 4"),
    (models.PyramidNet, {"depth": 9}, r"depth=9\).*6 n \+ 2"),
    (models.MLP, {"norm": "batch"}, "norm='batch'.*'none', 'hidden' or 'all'"),
]


@pytest.mark.parametrize(("build", "arguments", "noun"), REFUSED)
def test_bad_arguments_are_refused(build: Callable[..., Network], arguments: dict[str, Any], noun: str) -> None:
    with pytest.raises(mt.InputError, match=noun):
        build(**arguments)


@pytest.mark.parametrize("name", EVERY)
def test_a_network_knows_its_arguments(name: str) -> None:
    """With them it is made again, and nothing else is among them."""
    net = on_meta(EVERY[name], width=0.5)
    assert net.arguments["width"] == 0.5
    assert not {"self", "__class__"} & net.arguments.keys()
    assert shapes(on_meta(type(net), **net.arguments)) == shapes(net)


@pytest.mark.parametrize("ratio", [0.25, 3])
@pytest.mark.parametrize("name", EVERY)
def test_resized_is_the_constructor_at_that_width(name: str, ratio: float) -> None:
    """Ratios multiply the width that a network has; the network itself stays."""
    net = on_meta(EVERY[name], width=0.5)
    before = shapes(net)
    with torch.device("meta"):
        new = net.resized(ratio)
    assert type(new) is type(net)
    assert shapes(new) == shapes(on_meta(EVERY[name], width=0.5 * ratio)) != before
    assert shapes(net) == before


@pytest.mark.parametrize("name", EVERY)
def test_inputs_and_outputs_have_no_part_in_the_width(name: str) -> None:
    """The first layer reads, and the last layer gives, as many channels at every width."""
    narrow, wide = (
        [m for m in on_meta(EVERY[name], width=width).modules() if isinstance(m, (nn.Linear, nn.Conv2d))] for width in (0.5, 2)
    )
    assert narrow[0].weight.shape[1] == wide[0].weight.shape[1]
    assert narrow[-1].weight.shape[0] == wide[-1].weight.shape[0]
    assert 4 * narrow[0].weight.shape[0] == wide[0].weight.shape[0]
    assert 4 * narrow[-1].weight.shape[1] == wide[-1].weight.shape[1]


@given(hidden=st.integers(1, 300), sixteenths=st.integers(1, 64), multiple=st.integers(1, 9))
def test_a_hidden_width_is_the_nearest_multiple(hidden: int, sixteenths: int, multiple: int) -> None:
    """At least one; halves go up."""
    found, asked = Wide(hidden, multiple, width=sixteenths / 16).hidden, hidden * sixteenths / 16
    assert found % multiple == 0
    assert found >= multiple
    assert found == multiple or -multiple / 2 < found - asked <= multiple / 2


def test_he_initialisation() -> None:
    """Convolutions by their outputs, with biases at zero; linear layers as torch starts them, norms at one and zero."""
    parts = [nn.Conv2d(16, 64, 3), nn.Conv2d(64, 16, 3, bias=False), nn.Linear(400, 100), nn.BatchNorm2d(4)]
    for part in parts:
        for p in part.parameters():
            nn.init.constant_(p, 7)
    parts[3].running_mean.fill_(3)
    he_init(parts)
    for conv in parts[:2]:
        deviation = math.sqrt(2 / (conv.out_channels * 9))
        assert conv.weight.std().item() == pytest.approx(deviation, rel=0.05)
        assert conv.weight.abs().max() > 2.5 * deviation  # normal, not uniform
    assert not parts[0].bias.any()
    assert parts[2].weight.abs().max().item() == pytest.approx(400**-0.5, rel=0.01)
    assert parts[3].weight.eq(1).all()
    assert not parts[3].running_mean.any()


@pytest.mark.parametrize("name", ["ResNet", "WideResNet", "PyramidNet", "ViT", "MLP"])
def test_members_start_as_the_network_starts(name: str) -> None:
    """What `init_weights` draws is what the constructor draws, tensor by tensor; none is missed."""
    torch.manual_seed(1)
    net = EVERY[name](width=0.25) if name != "ViT" else models.ViT(size=24, depth=1)
    first = {n: p.detach().clone() for n, p in net.named_parameters()}
    torch.manual_seed(2)
    net.init_weights()
    for n, p in net.named_parameters():
        constant = len(first[n].unique()) == 1 and first[n].numel() > 1
        assert torch.equal(p, first[n]) == constant, n
        if p.numel() > 500:
            assert p.std().item() == pytest.approx(first[n].std().item(), rel=0.15), n
