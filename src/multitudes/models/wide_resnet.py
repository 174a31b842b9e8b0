"""WideResNet: wide, shallow residual networks with pre-activation blocks.

Zagoruyko, Komodakis, "Wide Residual Networks", BMVC 2016, https://arxiv.org/abs/1605.07146
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.models.network import Network, he


class PreActivation(nn.Module):
    """Norm, activation and convolution, twice; the shortcut convolves the activated input where shapes change."""

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
    """WideResNet-depth-widen for 32×32 images.

    bias and late_stride (the stride in a block's second convolution) give the variant of the Packed-Ensembles tables.
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
            raise InputError(f"WideResNet(depth={depth}): the depth must be 6 n + 4, as 16 or 28")
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
        """He initialisation of convolutions, torch's of the last layer."""
        he(self.modules())

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, channels, H, W]`` → ``[B, classes]``"""
        x = self.group3(self.group2(self.group1(self.conv1(x))))
        x = F.relu(self.bn(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
