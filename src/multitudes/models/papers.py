"""The networks of the papers' tables, by name. Further arguments go to the class, as in resnet18(classes=100)."""

from __future__ import annotations

from typing import Any

from multitudes.models.mlp import MLP
from multitudes.models.pyramidnet import PyramidNet
from multitudes.models.resnet import ResNet
from multitudes.models.wide_resnet import WideResNet


def resnet18(**arguments: Any) -> ResNet:
    """ResNet-18 for CIFAR; with stem="imagenet", classes=1000 for ImageNet."""
    return ResNet(18, **arguments)


def resnet50(**arguments: Any) -> ResNet:
    """ResNet-50 for CIFAR; with stem="imagenet", classes=1000 for ImageNet."""
    return ResNet(50, **arguments)


def resnet50x2(**arguments: Any) -> ResNet:
    """ResNet-50 with all widths doubled, for ImageNet: the wide network of the MIMO paper."""
    return ResNet(50, **{"stem": "imagenet", "classes": 1000, "width": 2.0, **arguments})


def resnet50x4(**arguments: Any) -> ResNet:
    """ResNet-50 with all widths times four, for ImageNet."""
    return ResNet(50, **{"stem": "imagenet", "classes": 1000, "width": 4.0, **arguments})


def resnext50(**arguments: Any) -> ResNet:
    """ResNeXt-50 32×4d, for ImageNet."""
    return ResNet(50, **{"stem": "imagenet", "classes": 1000, "groups": 32, "group_width": 4, **arguments})


def wideresnet16_4(**arguments: Any) -> WideResNet:
    """WideResNet-16-4 of the Masksembles paper."""
    return WideResNet(16, 4, **arguments)


def wideresnet28_10(**arguments: Any) -> WideResNet:
    """WideResNet-28-10. With bias=True, late_stride=True it is the variant in the tables of Packed-Ensembles."""
    return WideResNet(28, 10, **arguments)


def pyramidnet110_270(**arguments: Any) -> PyramidNet:
    """PyramidNet-110 of the EMP paper, with α = 270 and basic blocks, for CIFAR-100."""
    return PyramidNet(110, 270, **arguments)


def emp_mlp(**arguments: Any) -> MLP:
    """MLP of 100 layers with 100 units, without biases and with BatchNorm: Table 3 of the EMP paper."""
    return MLP(1, (100,) * 99, 100, **{"bias": False, "norm": "hidden", **arguments})


def emp_regression(inputs: int, hidden: int = 50, **arguments: Any) -> MLP:
    """MLP of the EMP paper for UCI; hidden=100 for Protein and Year, outputs=2 for Energy and Naval.

    For EMP and ECMP: BatchNorm with γ = 0.2 after the input and after the hidden layer. For MCDropout, norm="none",
    dropout=0.005: dropout in these places. For the explicit ensemble, norm="none".
    """
    return MLP(inputs, (hidden,), **{"outputs": 1, "norm": "all", "gamma": 0.2, **arguments})


def packed_regression(inputs: int, hidden: int = 200, **arguments: Any) -> MLP:
    """MLP of Packed-Ensembles for UCI, with a mean and a variance as outputs; hidden=400 for Protein."""
    return MLP(inputs, (hidden,), **{"outputs": 2, **arguments})


def mimo_mlp(**arguments: Any) -> MLP:
    """MLP with hidden layers of 32 and 128 units for functions of one variable: Fig. 2 of the MIMO paper."""
    return MLP(1, (32, 128), **{"outputs": 1, **arguments})


def masksembles_mlp(**arguments: Any) -> MLP:
    """MLP with one hidden layer of 100 units for two classes in the plane: Fig. 4 of the Masksembles paper."""
    return MLP(2, (100,), **{"outputs": 2, **arguments})
