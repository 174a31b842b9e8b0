"""ResNets: with basic blocks (18, 34), bottlenecks (50, 101, 152), and ResNeXt's grouped bottlenecks.

He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, https://arxiv.org/abs/1512.03385
Xie, Girshick, Dollár, Tu, He, "Aggregated Residual Transformations for Deep Neural Networks", CVPR 2017,
https://arxiv.org/abs/1611.05431

The CIFAR stem is a 3×3 convolution without pooling, the ImageNet stem a 7×7 convolution of stride 2 with max pooling.
Bottlenecks have their stride in the 3×3 convolution.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.models.network import Network, he_init

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class Basic(nn.Module):
    """Block of two 3×3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, C, H, W]`` → ``[B, D, H/stride, W/stride]``"""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """Block of 1×1, 3×3 and 1×1 convolutions and a shortcut; the 3×3 one is grouped in ResNeXt."""

    expansion = 4

    def __init__(self, inputs: int, inner: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, C, H, W]`` → ``[B, D, H/stride, W/stride]``"""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(Network):
    """ResNet, or ResNeXt with groups > 1, of depth 18, 34, 50, 101 or 152.

    stem                 "cifar" or "imagenet"
    groups, group_width  number of groups (ResNeXt's cardinality) and width of each: 32 and 4 in ResNeXt-50 32×4d
    """

    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def __init__(
        self,
        depth: int = 18,
        *,
        classes: int = 10,
        stem: Literal["cifar", "imagenet"] = "cifar",
        width: float = 1.0,
        groups: int = 1,
        group_width: int = 64,
        channels: int = 3,
    ) -> None:
        super().__init__(locals())
        if depth not in DEPTHS:
            raise InputError(f"ResNet(depth={depth}): choose from {', '.join(map(str, DEPTHS))}")
        if groups > 1 and depth < 50:
            raise InputError(
                f"ResNet(depth={depth}, groups={groups}): grouped convolutions need bottleneck blocks: give depth 50, "
                "101 or 152, or groups=1"
            )
        if stem not in ("cifar", "imagenet"):
            raise InputError(f"ResNet(stem={stem!r}): give 'cifar' or 'imagenet'")
        block = Basic if depth < 50 else Bottleneck
        first = self.scaled(64)
        kernel, stride, padding = (3, 1, 1) if stem == "cifar" else (7, 2, 3)
        self.conv1 = nn.Conv2d(channels, first, kernel, stride, padding, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.pool = nn.Identity() if stem == "cifar" else nn.MaxPool2d(3, 2, 1)
        inputs = first
        for stage, (count, planes) in enumerate(zip(DEPTHS[depth], (64, 128, 256, 512), strict=True), start=1):
            inner = self.scaled(planes * groups * group_width // 64, groups)
            outputs = self.scaled(planes * block.expansion)
            strides = [1 if stage == 1 else 2] + [1] * (count - 1)
            blocks = []
            for stride in strides:
                blocks.append(block(inputs, inner, outputs, stride, groups))
                inputs = outputs
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialises convolutions by He's rule, the last layer as torch does."""
        he_init(self.modules())

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, channels, H, W]`` → ``[B, classes]``"""
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
