"""PyramidNet: residual networks that get a little wider in every block.

Han, Kim, Kim, "Deep Pyramidal Residual Networks", CVPR 2017, https://arxiv.org/abs/1610.02915

Block k of N = (depth − 2) / 2 has round(16 + k α / N) channels; shortcuts pool and pad with zero channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.models.network import Network, he_init


class Pyramidal(nn.Module):
    """Block of norm, convolution, norm, ReLU, convolution, norm; the shortcut is pooled and padded with zero channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.pool = nn.AvgPool2d(2, 2, ceil_mode=True) if stride == 2 else nn.Identity()
        self.pad = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, C, H, W]`` → ``[B, D, H/stride, W/stride]``"""
        y = self.bn3(self.conv2(F.relu(self.bn2(self.conv1(self.bn1(x))))))
        return y + F.pad(self.pool(x), (0, 0, 0, 0, 0, self.pad))


class PyramidNet(Network):
    """PyramidNet with basic blocks for 32×32 images. `depth` is 6 n + 2; all blocks together add `alpha` channels."""

    group1: nn.Sequential
    group2: nn.Sequential
    group3: nn.Sequential

    def __init__(
        self,
        depth: int = 110,
        alpha: int = 270,
        *,
        classes: int = 100,
        width: float = 1.0,
        channels: int = 3,
    ) -> None:
        super().__init__(locals())
        if (depth - 2) % 6:
            raise InputError(f"PyramidNet(depth={depth}): give 6 n + 2, such as 110")
        count = (depth - 2) // 2
        widths = [self.scaled(round(16 + k * alpha / count)) for k in range(count + 1)]
        self.conv1 = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        for group in range(3):
            first = group * count // 3
            blocks = [
                Pyramidal(widths[k], widths[k + 1], 2 if group and k == first else 1) for k in range(first, first + count // 3)
            ]
            setattr(self, f"group{group + 1}", nn.Sequential(*blocks))
        self.bn2 = nn.BatchNorm2d(widths[-1])
        self.fc = nn.Linear(widths[-1], classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialises convolutions by He's rule, the last layer as torch does."""
        he_init(self.modules())

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, channels, H, W]`` → ``[B, classes]``"""
        x = self.group3(self.group2(self.group1(self.bn1(self.conv1(x)))))
        x = F.relu(self.bn2(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
