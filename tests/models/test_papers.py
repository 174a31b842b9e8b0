"""The papers' networks by name: each is what its paper describes, and takes further arguments."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes import models
from multitudes.models.network import Network


def layers(net: nn.Module, *kinds: type[nn.Module]) -> list[nn.Module]:
    """All parts of these kinds."""
    return [part for part in net.modules() if isinstance(part, kinds)]


def built(build: Callable[..., Network], **arguments: object) -> Network:
    """A network as shapes only."""
    with torch.device("meta"):
        return build(**arguments)


@pytest.mark.parametrize(
    ("build", "kind", "expected"),
    [
        (models.resnet18, models.ResNet, {"depth": 18, "stem": "cifar", "classes": 10, "width": 1.0}),
        (models.resnet50, models.ResNet, {"depth": 50, "stem": "cifar", "classes": 10, "width": 1.0}),
        (models.resnet50x2, models.ResNet, {"depth": 50, "stem": "imagenet", "classes": 1000, "width": 2.0}),
        (models.resnet50x4, models.ResNet, {"depth": 50, "stem": "imagenet", "classes": 1000, "width": 4.0}),
        (models.resnext50, models.ResNet, {"depth": 50, "stem": "imagenet", "groups": 32, "group_width": 4, "classes": 1000}),
        (models.wideresnet16_4, models.WideResNet, {"depth": 16, "widen": 4, "classes": 10, "bias": False}),
        (models.wideresnet28_10, models.WideResNet, {"depth": 28, "widen": 10, "classes": 10, "late_stride": False}),
        (models.pyramidnet110_270, models.PyramidNet, {"depth": 110, "alpha": 270, "classes": 100}),
    ],
)
def test_image_networks(build: Callable[..., Network], kind: type, expected: dict[str, object]) -> None:
    """By what they are made of; classes and width can be given."""
    net = built(build)
    assert type(net) is kind
    assert {key: net.arguments[key] for key in expected} == expected
    assert built(build, classes=7, width=0.5).fc.out_features == 7


@pytest.mark.parametrize(
    ("build", "depth", "shortcuts"),
    [
        (models.resnet18, 18, False),
        (models.resnet50, 50, False),
        (models.resnext50, 50, False),
        (models.pyramidnet110_270, 110, False),
        (models.wideresnet16_4, 16, True),
        (models.wideresnet28_10, 28, True),
    ],
)
def test_depths_are_numbers_of_layers(build: Callable[..., Network], depth: int, shortcuts: bool) -> None:
    """As each paper counts: most all but the shortcuts; WideResNets the three shortcuts too, but not the last layer."""
    named = [(name, part) for name, part in built(build).named_modules() if isinstance(part, (nn.Conv2d, nn.Linear))]
    counted = [part for name, part in named if (isinstance(part, nn.Conv2d) if shortcuts else "shortcut" not in name)]
    assert len(counted) == depth


def test_the_deep_perceptron() -> None:
    """EMP's: a hundred linear layers without biases, BatchNorm behind the first 99."""
    net = built(models.emp_mlp)
    linear = layers(net, nn.Linear)
    assert [(part.in_features, part.out_features) for part in linear] == [(1, 100), *[(100, 100)] * 99]
    assert all(part.bias is None for part in linear)
    assert len(layers(net, nn.BatchNorm1d)) == 99


@pytest.mark.parametrize("hidden", [50, 100])
def test_emp_regression(hidden: int) -> None:
    """BatchNorm behind the input and behind the hidden layer, its γ at 0.2."""
    net = models.emp_regression(13, hidden)
    assert [type(part) for part in net.layers] == [nn.BatchNorm1d, nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert [part.num_features for part in layers(net, nn.BatchNorm1d)] == [13, hidden]
    assert all(part.weight.eq(0.2).all() for part in layers(net, nn.BatchNorm1d))
    assert net(torch.randn(4, 13)).shape == (4, 1)
    assert models.emp_regression(13).layers[1].out_features == 50


D7 = {
    "EMP": ({}, "BatchNorm1d Linear BatchNorm1d ReLU Linear"),
    "MCDropout": ({"norm": "none", "dropout": 0.005}, "Dropout Linear ReLU Dropout Linear"),
    "Deep": ({"norm": "none"}, "Linear ReLU Linear"),
}


@pytest.mark.parametrize("method", D7)
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_three_networks_of_emps_regression(method: str, outputs: int) -> None:
    """Appendix D.7: BatchNorm, dropout in its places, or neither; Energy and Naval have two targets."""
    arguments, kinds = D7[method]
    net = models.emp_regression(8, outputs=outputs, **arguments)
    assert [type(part).__name__ for part in net.layers] == kinds.split()
    assert net(torch.randn(4, 8)).shape == (4, outputs)


def test_mcdropout_drops_where_the_paper_does() -> None:
    """After the input and after the hidden layer with p = 0.005, and nowhere else: masks over 8 inputs and 50 units."""
    net = models.emp_regression(8, outputs=2, norm="none", dropout=0.005)
    ens = mt.ensemble(net, mt.MCDropout(members=3, p=0.005), torch.randn(4, 8), task="regression", seed=0)
    dropping = {name: part for name, part in ens.template.named_modules() if getattr(part, "draws", None)}
    assert {name: part.rate for name, part in dropping.items()} == {"layers.0": 0.005, "layers.3": 0.005}
    masks = {name: tuple(buffer.shape) for name, buffer in ens.template.named_buffers() if "mask" in name}
    assert sorted(shape[-1] for shape in masks.values()) == [8, 50]


@pytest.mark.parametrize(
    ("net", "sizes"),
    [
        (models.packed_regression(8), [(8, 200), (200, 2)]),
        (models.packed_regression(9, 400), [(9, 400), (400, 2)]),
        (models.mimo_mlp(), [(1, 32), (32, 128), (128, 1)]),
        (models.masksembles_mlp(), [(2, 100), (100, 2)]),
    ],
    ids=["UCI", "Protein", "MIMO", "Masksembles"],
)
def test_plain_perceptrons(net: nn.Module, sizes: list[tuple[int, int]]) -> None:
    """Linear layers with biases, and ReLU in between, nothing else."""
    linear = layers(net, nn.Linear)
    assert [(part.in_features, part.out_features) for part in linear] == sizes
    assert all(part.bias is not None for part in linear)
    assert len(net.layers) == 2 * len(sizes) - 1


def test_arguments_of_the_paper_can_be_overridden() -> None:
    """What a name says is a default."""
    assert models.mimo_mlp(outputs=3).layers[-1].out_features == 3
    assert models.packed_regression(8, outputs=4).layers[-1].out_features == 4
    assert models.emp_regression(8, gamma=0.5).layers[0].weight.eq(0.5).all()
    assert built(models.resnet50x2, width=1.0, stem="cifar").conv1.kernel_size == (3, 3)
    assert built(models.resnext50, classes=5, channels=1).conv1.in_channels == 1
