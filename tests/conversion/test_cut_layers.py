"""Cut layers: channels read, given and carried, and networks in the shape of a file."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from laws.compare import assert_same
from torch import Tensor, nn

from multitudes.conversion.cut_layers import (
    ChannelCut,
    CutLayer,
    Link,
    cuttable,
    empty_compact_network,
    update_sizes,
    width,
    without_channels,
)

KEPT = torch.tensor([[1, 2, 4], [0, 3, 5]])
LAYERS: dict[str, tuple[Any, Tensor]] = {
    "linear": (nn.Linear(6, 4), torch.randn(2, 6)),
    "tokens": (nn.Linear(6, 4, bias=False), torch.randn(2, 3, 6)),
    "conv1d": (nn.Conv1d(6, 4, 3, padding=1), torch.randn(2, 6, 5)),
    "conv2d": (nn.Conv2d(6, 4, 3, padding=1), torch.randn(2, 6, 5, 5)),
    "transposed": (nn.ConvTranspose2d(6, 4, 3, 2), torch.randn(2, 6, 5, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("m", [0, 1])
def test_a_layer_reads_what_is_kept(name: str, m: int) -> None:
    """As if the other channels were zero."""
    layer, x = LAYERS[name][0].double(), LAYERS[name][1].double()
    net = nn.Sequential(layer)
    axis = -1 if isinstance(layer, nn.Linear) else 1
    zeroed = torch.zeros_like(x).index_copy(axis, KEPT[m], x.index_select(axis, KEPT[m]))
    thin = without_channels(net, m, [ChannelCut("0", KEPT, before=True)])
    assert isinstance(thin[0], CutLayer)
    assert width(thin[0], reads=True) == 3
    assert_same(thin(x), net(zeroed))
    assert width(net[0], reads=True) == 6


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_what_is_kept(name: str) -> None:
    """And zeros where the others were, which are a channel of the thin layer."""
    layer, x = LAYERS[name][0].double(), LAYERS[name][1].double()
    axis, kept = (-1 if isinstance(layer, nn.Linear) else 1), torch.tensor([[3, 1]]).sort().values
    whole = layer(x)
    expected = torch.zeros_like(whole).index_copy(axis, kept[0], whole.index_select(axis, kept[0]))
    for own in (None, (layer.weight, layer.bias)):
        thin = without_channels(nn.Sequential(layer), 0, [ChannelCut("0", kept, before=False, whole=own)])
        assert width(thin[0], reads=False) == (2 + 1 if own is None else 4)
        assert_same(thin(x), expected)


def test_constants_are_carried_over_the_border() -> None:
    """Dropped channels that always say 2 and 3 say so inside, and nothing where the image is padded."""
    first, second = nn.Conv2d(3, 6, 3, padding=1).double(), nn.Conv2d(6, 4, 3, padding=1).double()
    dropped = [c for c in range(6) if c not in KEPT[0].tolist()]
    values = torch.arange(2.0, 2.0 + len(dropped)).double()
    with torch.no_grad():
        first.weight[dropped] = 0
        first.bias[dropped] = values
    constants = torch.zeros(2, 6).double()
    constants[0, dropped] = values
    cut = ChannelCut("0", KEPT, before=False, link=Link("0", "1", ()), constants=constants)
    x = torch.randn(2, 3, 5, 5).double()
    thin = without_channels(nn.Sequential(first, second), 0, [cut])
    assert_same(thin(x), second(first(x)))
    assert len(dropped) > 1 and width(thin[1], reads=True) == KEPT.shape[1] + 1


def test_numbers_are_those_of_the_tensors() -> None:
    """What a layer prints is what it holds."""
    conv = nn.ConvTranspose2d(6, 4, 3, groups=2)
    update_sizes(conv)
    assert (conv.in_channels, conv.out_channels) == (6, 4)
    norm = nn.BatchNorm1d(6)
    norm.weight = nn.Parameter(torch.ones(3))
    update_sizes(norm)
    assert norm.num_features == 3


def test_cuttable() -> None:
    """Known layers without groups."""
    assert cuttable(nn.Conv2d(4, 4, 3))
    assert not cuttable(nn.Conv2d(4, 4, 3, groups=2))
    assert not cuttable(nn.MultiheadAttention(4, 2))
    assert not cuttable(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))


def test_a_network_in_the_shape_of_a_file() -> None:
    """Only names and shapes are taken: a plain network becomes cut where the file has what only cut layers have."""
    net = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4, bias=False))
    thin = without_channels(net, 1, [ChannelCut("2", KEPT, before=True)])
    tensors = {name: tensor[None].expand(2, *tensor.shape) for name, tensor in thin.state_dict().items()}
    shell = empty_compact_network(net, tensors, frozenset(tensors))
    assert {n: t.shape for n, t in shell.state_dict().items()} == {n: t.shape for n, t in thin.state_dict().items()}
    shell.load_state_dict(thin.state_dict())
    x = torch.randn(2, 5)
    assert_same(shell(x), thin(x), tight=False)
