"""Known layers: their products, where their channels are, and who is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from zoo import ZOO

import multitudes as mt
from multitudes.conversion.anatomy.formed_weights import unknown_layers
from multitudes.conversion.anatomy.known_layers import along_channels, channels, known_layers, product_of
from multitudes.conversion.anatomy.structure import observe


class Doubling(nn.Linear):
    """A subclass with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Named(nn.Linear):
    """A subclass that inherits its forward."""


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Linear(4, 6), torch.randn(3, 5, 4)),
        (Named(4, 6), torch.randn(3, 4)),
        (nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), torch.randn(3, 4, 8)),
        (nn.Conv2d(4, 6, 3, 2, groups=2), torch.randn(3, 4, 8, 8)),
        (nn.Conv3d(4, 6, 2), torch.randn(3, 4, 3, 3, 3)),
        (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), torch.randn(3, 4, 8)),
        (nn.ConvTranspose2d(4, 6, 3, 2, dilation=2), torch.randn(3, 4, 8, 8)),
        (nn.ConvTranspose3d(4, 6, 2), torch.randn(3, 4, 3, 3, 3)),
    ],
)
def test_a_product_is_the_layer_without_its_bias(layer: nn.Module, x: Tensor) -> None:
    product = product_of(layer)
    assert product is not None
    assert channels(layer) == (4, 6)
    y = product(layer, x)
    torch.testing.assert_close(y + along_channels(layer, layer.bias, y), layer(x))


def test_rows_have_values_of_their_own() -> None:
    """Also where a row has several entries on the first axis, as windows make of it."""
    values = torch.randn(3, 4)
    x = torch.randn(3, 4, 2, 2)
    assert torch.equal(x * along_channels(nn.Conv2d(4, 1, 1), values, x), x * values[:, :, None, None])
    x = torch.randn(6, 5, 4)
    assert torch.equal(x * along_channels(nn.Linear(4, 1), values, x), x * values.repeat_interleave(2, 0)[:, None])


def test_a_forward_of_its_own_is_not_the_parents() -> None:
    """For a method of another package, which knows known layers only, it is an unknown one; keep= leaves it whole."""
    net = nn.Sequential(Doubling(4, 6), nn.ReLU(), nn.Linear(6, 3))
    assert product_of(net[0]) is None
    reasons = unknown_layers(observe(net, mt.Inputs(torch.randn(2, 4))))
    assert reasons == {"0": "Doubling is an unknown layer: its forward is not that of Linear"}
    ens = mt.ensemble(net, mt.BatchEnsemble(), torch.randn(2, 4), keep=["0"])
    assert "0.alpha" not in dict(ens.named_parameters())


@pytest.mark.slow
def test_tokens_and_tables_are_no_layers_and_loose_matrices_are() -> None:
    """Parameters that are only added are shared; matrices are refused."""

    class Loose(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.matrix = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(4, 4))
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu((x + self.table) @ self.matrix))

    reasons = unknown_layers(observe(Loose(), mt.Inputs(torch.randn(2, 5, 4))))
    assert reasons == {"": "Loose is an unknown layer: it multiplies by matrix"}
    for case in ("vit", "hugging_face_vit", "convnext", "in_place"):
        assert unknown_layers(observe(ZOO[case].model(), ZOO[case].example())) == {}


def test_attention_is_known_as_a_whole() -> None:
    """Its output projection is no layer beside it."""
    layer = nn.TransformerEncoderLayer(8, 2, 12)
    assert [name for name, _ in known_layers(layer)] == ["self_attn", "linear1", "linear2"]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize("method", [mt.Deep(members=3), mt.BatchEnsemble(members=3), mt.DropConnect(members=3)], ids=str)
@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
def test_weights_that_hooks_compute(norm: str, method: mt.Method) -> None:
    """The authors of WaveNet, TCN and SNGAN norm weights by hooks. Factors and masks act on the computed weight.

    On the stored one, the norm would cancel what is common to an output channel.
    """
    torch.manual_seed(0)
    wrap = getattr(nn.utils, norm)
    net = nn.Sequential(wrap(nn.Linear(4, 12)), nn.ReLU(), wrap(nn.Linear(12, 12)), nn.ReLU(), nn.Linear(12, 3)).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    ens = mt.ensemble(net, method, x, seed=0).eval()
    with torch.no_grad():
        for name, parameter in ens.named_parameters():  # as after a step: what a hook wrote before is old
            parameter.mul_(1.1 if name.endswith(("_g", "gamma")) else 1.0)
    members = [ens.member(m).eval()(x) for m in range(3)]
    torch.testing.assert_close(ens(x), torch.stack(members))
    assert not torch.allclose(members[0], members[1])
    ens.train()
    ens.loss(x, torch.tensor([0, 1, 2, 0, 1]), nn.functional.cross_entropy).backward()
    dead = [n for n, p in ens.named_parameters() if p.grad is None or not p.grad.any()]
    assert not dead


def pruned() -> nn.Sequential:
    """A network in which torch's pruning computes the weight and bias of the second layer, and the weight of the last."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
    for place, key in ((2, "weight"), (2, "bias"), (4, "weight")):
        prune.l1_unstructured(net[place], key, 0.5)
    return net


@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=2), mt.DropConnect(members=2), mt.Masksembles(members=2)], ids=str)
def test_members_of_pruned_layers(method: mt.Method) -> None:
    """What is pruned stays zero, and a member is a plain network that runs."""
    ens, x = mt.ensemble(pruned(), method, torch.randn(4, 4), seed=0).eval(), torch.randn(5, 4)
    for m, output in enumerate(ens(x)):
        member = ens.member(m).eval()
        torch.testing.assert_close(output, member(x))
        assert (member[2].weight == 0).sum() >= 72


@pytest.mark.parametrize("method", [mt.EMP(), mt.Laplace()], ids=str)
def test_refusals_of_pruned_layers_name_what_to_type(method: mt.Method) -> None:
    net = pruned()
    with pytest.raises(
        mt.errors.ConversionError, match=r"torch\.nn\.utils\.prune\.remove\(model\.get_submodule\('4'\), 'weight'\)"
    ):
        mt.ensemble(net, method, torch.randn(4, 4))
    prune.remove(net.get_submodule("4"), "weight")
    assert mt.ensemble(net, method, torch.randn(4, 4))


@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=2), mt.DropConnect(members=2), mt.Masksembles(members=2)], ids=str)
def test_reading_a_spectral_norm_moves_nothing(method: mt.Method) -> None:
    """Each read in training mode is a step of the power iteration: conversion moved its vectors, and so did `member`."""
    torch.manual_seed(0)
    wrap = nn.utils.parametrizations.spectral_norm
    net = nn.Sequential(
        wrap(nn.Conv2d(3, 16, 3)), nn.ReLU(), wrap(nn.Conv2d(16, 8, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    )
    x = torch.randn(3, 3, 6, 6)
    ens = mt.ensemble(net.train(), method, x, seed=0)
    given, vectors = dict(net.named_buffers()), [n for n, _ in ens.named_buffers() if n.endswith(("_u", "_v"))]
    assert len(vectors) == 4
    for name in vectors:
        torch.testing.assert_close(ens.get_buffer(name), given[name], rtol=0, atol=0)
    member = ens.train().member(1).eval()
    torch.testing.assert_close(member(x), ens.eval()(x)[1])
    before = ens.get_buffer(vectors[0]).clone()
    ens.train()(x)
    once = net.train()(x) is not None and dict(net.named_buffers())[vectors[0]]
    assert not torch.equal(before, once)
    torch.testing.assert_close(ens.get_buffer(vectors[0]), once)
