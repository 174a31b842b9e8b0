"""Small networks: LeNet, and the SmallCNN with which the MIMO paper studies the loss landscape."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.models.network import Network


class LeNet(Network):
    """LeNet-5 with ReLU, for images of at least 28×28.

    LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition", 1998.
    """

    def __init__(self, *, classes: int = 10, width: float = 1.0, channels: int = 1) -> None:
        super().__init__(locals())
        first, second, third, fourth = (self.scaled(planes) for planes in (6, 16, 120, 84))
        self.conv1 = nn.Conv2d(channels, first, 5, padding=2)
        self.conv2 = nn.Conv2d(first, second, 5)
        self.fc1 = nn.Linear(second * 25, third)
        self.fc2 = nn.Linear(third, fourth)
        self.fc3 = nn.Linear(fourth, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, channels, H, W]`` → ``[B, classes]``"""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.adaptive_max_pool2d(F.relu(self.conv2(x)), 5)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))))


class SmallCNN(Network):
    """CNN of three convolutions with 16, 32 and 32 filters and a linear layer.

    Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, https://arxiv.org/abs/2010.06610
    """

    def __init__(self, *, classes: int = 10, width: float = 1.0, channels: int = 3) -> None:
        super().__init__(locals())
        first, second, third = (self.scaled(planes) for planes in (16, 32, 32))
        self.conv1 = nn.Conv2d(channels, first, 3, padding=1)
        self.conv2 = nn.Conv2d(first, second, 3, padding=1)
        self.conv3 = nn.Conv2d(second, third, 3, padding=1)
        self.fc = nn.Linear(third * 16, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, channels, H, W]`` → ``[B, classes]``"""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.adaptive_avg_pool2d(F.relu(self.conv3(x)), 4)
        return self.fc(torch.flatten(x, 1))
