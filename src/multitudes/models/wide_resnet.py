"""WideResNet: wide, shallow residual networks with pre-activation blocks.

Zagoruyko, Komodakis, "Wide Residual Networks", BMVC 2016, https://arxiv.org/abs/1605.07146
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.models.network import Network, he_init


class PreActivation(nn.Module):
    """Block of norm, ReLU and convolution, twice; where shapes change, the shortcut is a convolution of the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float, bias: bool, late_stride: bool) -> None:
        super().__init__()
        early, late = (1, stride) if late_stride else (stride, 1)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, early, 1, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, late, 1, bias=bias)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=bias)
        self.activates_shortcut = not same

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, C, H, W]`` → ``[B, D, H/stride, W/stride]``"""
        a = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.dropout(self.conv1(a)))))
        return y + self.shortcut(a if self.activates_shortcut else x)


class WideResNet(Network):
    """WideResNet for 32×32 images. `depth` is 6 n + 4; `widen` multiplies the widths of ResNet.

    dropout            rate between the convolutions of a block
    bias, late_stride  biases in convolutions; the stride in the second convolution of a block. Both are True in the
                       tables of Packed-Ensembles
    """

    group1: nn.Sequential
    group2: nn.Sequential
    group3: nn.Sequential

    def __init__(
        self,
        depth: int = 28,
        widen: int = 10,
        *,
        classes: int = 10,
        dropout: float = 0.0,
        width: float = 1.0,
        bias: bool = False,
        late_stride: bool = False,
        channels: int = 3,
    ) -> None:
        super().__init__(locals())
        if depth < 10 or (depth - 4) % 6:
            raise InputError(f"WideResNet(depth={depth}): give 6 n + 4, such as 16 or 28")
        inputs = self.scaled(16)
        self.conv1 = nn.Conv2d(channels, inputs, 3, 1, 1, bias=bias)
        for group, (planes, stride) in enumerate(((16, 1), (32, 2), (64, 2)), start=1):
            outputs = self.scaled(planes * widen)
            blocks = []
            for index in range((depth - 4) // 6):
                blocks.append(PreActivation(inputs, outputs, stride if index == 0 else 1, dropout, bias, late_stride))
                inputs = outputs
            setattr(self, f"group{group}", nn.Sequential(*blocks))
        self.bn = nn.BatchNorm2d(inputs)
        self.fc = nn.Linear(inputs, classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialises convolutions by He's rule, the last layer as torch does."""
        he_init(self.modules())

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, channels, H, W]`` → ``[B, classes]``"""
        x = self.group3(self.group2(self.group1(self.conv1(x))))
        x = F.relu(self.bn(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
