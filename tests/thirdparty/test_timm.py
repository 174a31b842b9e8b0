"""timm's networks: every method converts them, `check` holds, and Packed's members are what was asked for.

Runs in an environment of its own, by `make zoo`: nothing here skips, and a network that is refused is a failure. Large
networks are made narrower by timm's own arguments where laws are tried; `resize` is tried on all of them as they are.
`make zoo` tries every pair of network and method, `make zoo-few` in CI the pairs of `FEW`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from laws.compare import owned
from torch import nn

import multitudes as mt

CLASSES, ROWS, MEMBERS = 10, 3, 2


@dataclass(frozen=True)
class Entry:
    """A network of the zoo, and what is expected of it."""

    head: str
    """Its classifier, where MultiHead's members part."""
    split: str
    """Where TreeNet's branches begin: the last stages, with at least a third of the blocks."""
    way: str = "timm's constructor"
    """How it is resized."""
    size: int = 32
    """The side of the images."""
    sized: bool = False
    """Whether the network is made for one size of images."""
    smaller: dict[str, Any] = field(default_factory=dict)
    """timm's arguments for fewer weights."""
    ratio: float = 1.0
    """Where timm takes none: how wide the network is made."""
    multiple: int = 1
    """What timm's constructor rounds widths to."""


ZOO = {
    "resnet18": Entry("fc", "layer3", smaller={"layers": (1, 1, 1, 1)}),
    "densenet121": Entry("classifier", "features.denseblock3", smaller={"block_config": (2, 2, 4, 2)}),
    "convnext_atto": Entry("head.fc", "stages.2"),
    "tf_efficientnet_b0": Entry("classifier", "blocks.4", multiple=8),
    "mobilenetv3_small_100": Entry("classifier", "blocks.4", multiple=8),
    "regnetx_002": Entry("head.fc", "s4", "channels"),
    "resnext50_32x4d": Entry("fc", "layer3", smaller={"layers": (1, 1, 1, 1)}),
    "vgg11_bn": Entry("head.fc", "features.25", smaller={"mlp_ratio": 1 / 32}, ratio=0.5),
    "mixer_s16_224": Entry("head", "blocks.5", sized=True, ratio=0.25),
    "vit_tiny_patch16_224": Entry("head", "blocks.8", sized=True, smaller={"embed_dim": 96}),
    "swin_tiny_patch4_window7_224": Entry("head.fc", "layers.2", size=56, sized=True, smaller={"embed_dim": 48}),
}

METHODS = {
    "Single": mt.Single(),
    "Deep": mt.Deep(members=MEMBERS),
    "MultiHead": mt.MultiHead(members=MEMBERS),
    "TreeNet": mt.TreeNet(members=MEMBERS),
    "Packed": mt.Packed(members=MEMBERS, alpha=1),
    "BatchEnsemble": mt.BatchEnsemble(members=MEMBERS),
    "Masksembles": mt.Masksembles(members=MEMBERS),
    "EMP": mt.EMP(members=MEMBERS),
    "ECMP": mt.ECMP(members=MEMBERS),
    "MCDropout": mt.MCDropout(members=MEMBERS),
    "DropConnect": mt.DropConnect(members=MEMBERS),
    "MIMO": mt.MIMO(members=MEMBERS),
}


def made(name: str, **options: Any) -> nn.Module:
    """A network for the zoo's number of classes and size of images."""
    entry = ZOO[name]
    given = {"num_classes": CLASSES, **({"img_size": entry.size} if entry.sized else {}), **options}
    return timm.create_model(name, **given).eval()


def smaller(name: str) -> nn.Module:
    """A network of the same parts, on which laws are proved in seconds."""
    net, ratio = made(name, **ZOO[name].smaller), ZOO[name].ratio
    return net if ratio == 1 else mt.resize(net, ratio, images(name), seed=0)


def images(name: str) -> torch.Tensor:
    return torch.randn(ROWS, 3, ZOO[name].size, ZOO[name].size)


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def widths(net: nn.Module) -> dict[str, tuple[int, int, int]]:
    """Inputs, outputs and groups of every layer."""
    found = {}
    for name, part in net.named_modules():
        if isinstance(part, nn.Linear):
            found[name] = (part.in_features, part.out_features, 1)
        elif isinstance(part, nn.Conv2d):
            found[name] = (part.in_channels, part.out_channels, part.groups)
    return found


def heads(net: nn.Module) -> dict[str, tuple[int, int]]:
    """Number and width of the heads of every attention."""
    parts = {name: part for name, part in net.named_modules() if hasattr(part, "num_heads") and hasattr(part, "qkv")}
    return {name: (part.num_heads, part.qkv.out_features // 3 // part.num_heads) for name, part in parts.items()}


def assert_halved(net: nn.Module, thin: nn.Module, entry: Entry) -> None:
    """Every width but those of images, patches and classes is half of what it was; of groups and heads there are as many."""
    before, after = widths(net), widths(thin)
    assert before.keys() == after.keys()
    first = next(iter(before))
    for name, (inputs, outputs, groups) in before.items():
        depthwise = groups > 1 and groups == outputs
        patches = "mlp_tokens" in name  # the mixer's layers over patches, of which there are as many as before
        wide_in, wide_out = (inputs + 1) // 2, (outputs + 1) // 2
        expected = (
            inputs if name == first or (patches and name.endswith("fc1")) else wide_in,
            outputs if name == entry.head or (patches and name.endswith("fc2")) else wide_out,
            wide_out if depthwise else groups,
        )
        if entry.multiple > 1:  # timm rounds these widths to multiples, and at least to one
            assert all(0.7 * b <= a <= 1.4 * b + entry.multiple for a, b in zip(after[name], expected, strict=True)), name
        else:
            assert after[name] == expected, name
    assert {n: h for n, (h, _) in heads(thin).items()} == {n: h for n, (h, _) in heads(net).items()}
    for name, (_, width) in heads(net).items():
        part = thin.get_submodule(name)
        assert heads(thin)[name][1] == width // 2
        assert math.isclose(part.scale, (width // 2) ** -0.5)


@pytest.mark.parametrize("name", ZOO)
def test_resize_halves_every_width(name: str) -> None:
    """The network as timm makes it; about a quarter of the weights stay."""
    net = made(name)
    thin = mt.resize(net, 0.5, images(name), seed=0)
    assert thin.resizing.way == ZOO[name].way
    assert thin(images(name)).shape == (ROWS, CLASSES)
    if ZOO[name].multiple == 1:
        assert_halved(net, thin, ZOO[name])
        assert 0.25 <= count(thin) / count(net) <= 0.28
    else:
        rounded = {layer: (exact, width) for layer, (exact, width) in thin.resizing.rounded.items() if width % 8 == 0}
        assert rounded == thin.resizing.rounded
        assert 0.25 <= count(thin) / count(net) <= 0.4


def test_resize_keeps_what_the_user_gave() -> None:
    """Numbers of blocks and classes and the size of images, which the architecture's name does not tell."""
    net = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32, num_classes=7).eval()
    thin = mt.resize(net, 0.5, torch.randn(2, 3, 32, 32), seed=0)
    assert thin.resizing.way == "timm's constructor"
    assert dict(thin.named_modules()).keys() == dict(net.named_modules()).keys()
    assert 0.25 <= count(thin) / count(net) <= 0.3


def test_attention_is_found() -> None:
    """So that the heads are compared at all."""
    assert {h for h, _ in heads(made("vit_tiny_patch16_224")).values()} == {3}
    assert {h for h, _ in heads(made("swin_tiny_patch4_window7_224")).values()} == {3, 6, 12, 24}


FEW = list(zip([*ZOO, next(iter(ZOO))], METHODS, strict=True))
"""The first network with the first method, the second with the second, and so on: each of both at least once."""


def pairs() -> list[Any]:
    """Every network with every method; those that are not of `FEW` are slow."""
    every = [(name, method) for name in ZOO for method in METHODS]
    return [pytest.param(*pair, marks=[] if pair in FEW else [pytest.mark.slow]) for pair in every]


@pytest.mark.parametrize(("name", "method"), pairs())
def test_every_method_converts_it(name: str, method: str, tmp_path: Path) -> None:
    """Converted, proved, and for what owns all its weights saved and loaded."""
    entry, settings = ZOO[name], METHODS[method]
    net, x = smaller(name), images(name)
    ens = mt.ensemble(net, settings, x, seed=0)
    assert ens(x).shape == (settings.members, ROWS, CLASSES)
    mt.check(ens, x)
    if method == "MultiHead":
        assert {n.rpartition(".")[0] for n in owned(ens)} == {entry.head}
    if method == "TreeNet":
        assert f"branches begin at {entry.split}" in ens.plan.notes
    if method == "Packed":
        assert_halved(net, ens.member(0), entry)
    if method in ("Deep", "Packed"):
        file = tmp_path / "a.multitude"
        mt.save(ens, file)
        loaded = mt.load(file, smaller(name))
        assert torch.equal(loaded(x), ens(x))


def test_dropconnect_leaves_gains_alone() -> None:
    """A weight that is normalised and scaled by a gain: weights are dropped, gains are not."""
    from timm.layers import ScaledStdConv2d

    net = nn.Sequential(ScaledStdConv2d(3, 8, 3), nn.Flatten(), nn.Linear(128, 3)).double()
    ens = mt.ensemble(net, mt.DropConnect(members=MEMBERS, p=0.5), torch.randn(3, 3, 4, 4).double(), seed=0)
    assert {name for name, _ in ens.named_buffers()} - {"draw_seeds"} == {"0.weight_mask", "2.weight_mask"}
    assert all(torch.equal(ens.member(m)[0].gain, net[0].gain) for m in range(MEMBERS))


def with_another_head(net: nn.Module) -> nn.Module:
    net.head = nn.Sequential(nn.Linear(net.head.in_features, 32), nn.GELU(), nn.Linear(32, 7))
    return net


def with_another_classifier(net: nn.Module) -> nn.Module:
    net.fc = nn.Linear(net.fc.in_features, 7)
    return net


def with_checkpointing(net: nn.Module) -> nn.Module:
    net.set_grad_checkpointing()
    return net


def expansion(mlp: Any) -> float:
    return mlp.fc1.out_features / mlp.fc1.in_features


Probe = Callable[[Any], Any]
RESNET, MIXER, VIT, SWIN = "resnet18", "mixer_s16_224", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"

CHANGES: dict[str, tuple[Callable[[], nn.Module], Probe]] = {
    "resnet classifier": (lambda: with_another_classifier(made(RESNET)), lambda net: net.fc.out_features),
    "resnet drop_rate": (lambda: made(RESNET, drop_rate=0.3), lambda net: net.drop_rate),
    "resnet in_chans": (lambda: made(RESNET, in_chans=1), lambda net: net.conv1.in_channels),
    "resnet drop_path_rate": (lambda: made(RESNET, drop_path_rate=0.3), lambda net: net.layer4[1].drop_path.drop_prob),
    "mixer head": (lambda: with_another_head(made(MIXER)), lambda net: (len(net.head), net.head[-1].out_features)),
    "mixer img_size": (lambda: made(MIXER, img_size=32), lambda net: net.stem.img_size),
    "mixer mlp_ratio": (lambda: made(MIXER, mlp_ratio=(1, 2)), lambda net: expansion(net.blocks[0].mlp_channels)),
    "vit head": (lambda: with_another_head(made(VIT)), lambda net: (len(net.head), net.head[-1].out_features)),
    "vit classes": (lambda: made(VIT, num_classes=7), lambda net: net.head.out_features),
    "vit in_chans": (lambda: made(VIT, in_chans=1), lambda net: net.patch_embed.proj.in_channels),
    "vit img_size": (lambda: made(VIT, img_size=64), lambda net: net.patch_embed.img_size),
    "vit drop_rate": (lambda: made(VIT, drop_rate=0.3), lambda net: net.head_drop.p),
    "vit attn_drop_rate": (lambda: made(VIT, attn_drop_rate=0.3), lambda net: net.blocks[0].attn.attn_drop.p),
    "vit drop_path_rate": (lambda: made(VIT, drop_path_rate=0.3), lambda net: net.blocks[-1].drop_path1.drop_prob),
    "vit qkv_bias": (lambda: made(VIT, qkv_bias=False), lambda net: net.blocks[0].attn.qkv.bias is None),
    "vit global_pool": (lambda: made(VIT, global_pool="avg"), lambda net: net.global_pool),
    "vit mlp_ratio": (lambda: made(VIT, mlp_ratio=2), lambda net: expansion(net.blocks[0].mlp)),
    "vit num_heads": (lambda: made(VIT, num_heads=6), lambda net: net.blocks[0].attn.num_heads),
    "vit depth": (lambda: made(VIT, depth=2), lambda net: len(net.blocks)),
    "vit dynamic_img_size": (lambda: made(VIT, dynamic_img_size=True), lambda net: net.dynamic_img_size),
    "vit checkpointing": (lambda: with_checkpointing(made(VIT)), lambda net: net.grad_checkpointing),
    "swin drop_path_rate": (
        lambda: made(SWIN, drop_path_rate=0.4),
        lambda net: round(net.layers[-1].blocks[-1].drop_path1.drop_prob, 6),
    ),
    "swin window_size": (lambda: made(SWIN, window_size=4), lambda net: net.layers[0].blocks[0].window_size),
    "swin classes": (lambda: made(SWIN, num_classes=7), lambda net: net.head.fc.out_features),
    "swin in_chans": (lambda: made(SWIN, in_chans=1), lambda net: net.patch_embed.proj.in_channels),
    "swin depths": (lambda: made(SWIN, depths=(1, 1, 1, 1)), lambda net: [len(stage.blocks) for stage in net.layers]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_user_changed_is_kept_or_refused(change: str) -> None:
    """Never lost without a word, although timm could make the network as it is by default; Packed resizes alike."""
    make, probe = CHANGES[change]
    net = make()
    first = next(part for part in net.modules() if isinstance(part, nn.Conv2d))
    side = next((p.img_size[0] for p in net.modules() if getattr(p, "img_size", None)), 32)
    x = torch.randn(ROWS, first.in_channels, side, side)
    try:
        thin = mt.resize(net, 0.5, x, seed=0)
    except mt.ConversionError as error:
        assert type(net).__name__ in str(error)
        assert "factory" in str(error)
        return
    assert probe(thin) == probe(net)
    assert thin(x).shape == net(x).shape
    assert {name for name, _ in thin.named_parameters()} == {name for name, _ in net.named_parameters()}
    assert count(thin) < 0.3 * count(net)
