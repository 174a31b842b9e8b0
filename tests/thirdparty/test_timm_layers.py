"""timm's layers with a forward of their own, as members that share weights see them: taught, shared, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from timm import layers
from torch import Tensor, nn

import multitudes as mt

CONVOLUTIONS = ("Conv2dSame", "StdConv2d", "StdConv2dSame", "ScaledStdConv2d", "ScaledStdConv2dSame")
NORMS = ("LayerNorm2d", "BatchNormAct2d")
MEMBERS = 3
METHODS = {"BatchEnsemble": mt.BatchEnsemble(members=MEMBERS), "Masksembles": mt.Masksembles(members=MEMBERS, fewest=8)}
X = torch.randn(4, 3, 9, 9, dtype=torch.float64)


def convolutions(kind: str) -> nn.Module:
    """Two of a kind, of which the second has groups and a stride, with biases and gains that are not as they were made."""
    make = getattr(layers, kind)
    net = nn.Sequential(
        make(3, 8, 3, bias=True), nn.Tanh(), make(8, 12, 3, stride=2, groups=2, bias=True), nn.Tanh(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip
    return shaken(net)


def normed(kind: str) -> nn.Module:
    """A norm behind two convolutions, of which the second has members by every method."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3), getattr(layers, kind)(8), nn.Conv2d(8, 12, 3),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip
    return shaken(net)


def shaken(net: nn.Module) -> nn.Module:
    """The same network in double precision, each of its parameters moved."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return net.double().eval()


def formed(layer: Any, x: Tensor) -> Tensor:
    """A member's convolution by the weight that it stands for, written out."""
    weight = layer.weight
    if "Std" in type(layer).__name__:
        flat = weight.flatten(1)
        flat = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, unbiased=False, keepdim=True) + layer.eps).sqrt()
        weight = flat.reshape_as(weight)
    if hasattr(layer, "gain"):
        weight = weight * layer.gain * weight[0].numel() ** -0.5 * 1.0
    padding = (layer.kernel_size[0] - 1) // 2
    if type(layer).__name__.endswith("Same"):
        side, stride = x.shape[-1], layer.stride[0]
        missing = max((-(-side // stride) - 1) * stride + layer.kernel_size[0] - side, 0)
        x, padding = F.pad(x, [missing // 2, missing - missing // 2] * 2), 0
    if hasattr(layer, "mask"):
        x = x * layer.mask[:, None, None]
    if hasattr(layer, "alpha"):
        alpha = layer.alpha.view(layer.groups, 1, -1).expand(-1, layer.out_channels // layer.groups, -1)
        weight = weight * layer.gamma[:, None, None, None] * alpha.reshape(layer.out_channels, -1, 1, 1)
    return F.conv2d(x, weight, layer.bias, layer.stride, padding, 1, layer.groups)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_convolution_is_taught(kind: str, method: str) -> None:
    """Converted, with neutral settings the layer itself, and each member the convolution by its own weight."""
    net = convolutions(kind)
    neutral = mt.ensemble(net, METHODS[method].neutral(), X, start="copies")
    torch.testing.assert_close(neutral(X)[0], net(X))
    ens = mt.ensemble(net, METHODS[method], X, seed=0).eval()
    assert mt.check(ens, X).laws
    assert {"2", "6"} <= {entry.name for entry in ens.plan.converted}
    for m in range(MEMBERS):
        member: Any = ens.member(m)
        h = torch.tanh(formed(member[0], X))
        h = torch.tanh(formed(member[2], h)).mean((2, 3))
        torch.testing.assert_close(ens(X)[m], member[6](h))
    assert not torch.allclose(ens(X)[0], ens(X)[1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", NORMS)
def test_a_norm_is_shared(kind: str, method: str) -> None:
    """In training too, where BatchNorm takes the rows of all members together."""
    net = normed(kind)
    neutral = mt.ensemble(net, METHODS[method].neutral(), X, start="copies")
    torch.testing.assert_close(neutral(X)[0], net(X))
    ens = mt.ensemble(net, METHODS[method], X, seed=0)
    assert mt.check(ens, X).laws
    assert "3" not in {entry.name for entry in ens.plan.converted}
    members: list[Any] = [ens.member(m).train() for m in range(MEMBERS)]
    norm = members[0][3]
    together = norm(torch.cat([member[:3](X) for member in members])).chunk(MEMBERS)
    expected = torch.stack([member[4:](h) for member, h in zip(members, together, strict=True)])
    torch.testing.assert_close(ens.train()(X), expected)
    torch.testing.assert_close(dict(ens.template[3].named_buffers()), dict(norm.named_buffers()))


class Odd(layers.Conv2dSame):
    """A forward of its own, of which nothing is known."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class OddStd(layers.StdConv2d):
    """The same of another kind."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flip(2))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [Odd, OddStd])
def test_a_forward_of_its_own_runs(kind: type[nn.Module], method: str) -> None:
    """Never treated as the layer that it inherits from: its own forward runs, on masked inputs or with formed weights."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), kind(8, 8, 3), nn.Flatten(2), nn.Linear(49, 5)).double()
    ens = mt.ensemble(net, METHODS[method], X, seed=0).eval()
    layer: Any = ens.template[1]
    for m in range(MEMBERS):
        member: Any = ens.member(m)
        plain = kind(8, 8, 3).double()
        plain.load_state_dict(net[1].state_dict())
        hidden = member[0](X)
        if method == "Masksembles":
            hidden = hidden * layer.mask[m][:, None, None]
        else:
            plain.weight.data *= (layer.weight_alpha * layer.weight_gamma)[m].detach()
        torch.testing.assert_close(ens(X)[m], member[3](plain(hidden).flatten(2)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["beit_base_patch16_224", "levit_128s"])
def test_weights_read_by_others_and_caches(name: str) -> None:
    """BEiT multiplies by the weight of a layer that it does not call, LeViT keeps what it computes from a table."""
    sizes = {"depth": 2, "embed_dim": 24, "num_heads": 2, "img_size": 32} if name.startswith("beit") else {"img_size": 64}
    net = timm.create_model(name, num_classes=5, **sizes).eval()
    x = torch.randn(2, 3, sizes["img_size"], sizes["img_size"])
    method = mt.BatchEnsemble(members=2) if name.startswith("beit") else mt.Deep(members=2)
    ens = mt.ensemble(net, method, x, seed=0, check=False).eval()
    plain = [ens.member(m).eval() for m in range(2)]
    torch.testing.assert_close(ens(x), torch.stack([member(x) for member in plain]), rtol=1e-3, atol=1e-4)
    if name.startswith("beit"):
        layer: Any = ens.template.blocks[0].attn.qkv
        by_hand = net.blocks[0].attn.qkv.weight * layer.weight_alpha[1] * layer.weight_gamma[1]
        torch.testing.assert_close(plain[1].blocks[0].attn.qkv.weight, by_hand)
