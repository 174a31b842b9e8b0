"""Thin convolutional networks: what conversion must survive in the forward passes of image models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CNN(nn.Sequential):
    """Convolutions, pooling and a linear layer, nothing normalised."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, classes),
        )  # fmt: skip


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the picture's size at stride 1."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)


class Basic(nn.Module):
    """The residual block of two convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, width, stride=stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width), nn.BatchNorm2d(width)
        same = stride == 1 and inputs == width
        self.shortcut = nn.Sequential() if same else nn.Sequential(conv(inputs, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + self.shortcut(x))


class Bottleneck(nn.Module):
    """The residual block of a narrow convolution between two pointwise ones."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        narrow = width // 2
        self.conv1, self.bn1 = conv(inputs, narrow, 1), nn.BatchNorm2d(narrow)
        self.conv2, self.bn2 = conv(narrow, narrow, 3, stride), nn.BatchNorm2d(narrow)
        self.conv3, self.bn3 = conv(narrow, width, 1), nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential(conv(inputs, width, 1, stride), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network with the CIFAR stem and one block in each group."""

    def __init__(self, block: type[nn.Module] = Basic, widths: tuple[int, ...] = (4, 6, 8), classes: int = 5) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(3, widths[0]), nn.BatchNorm2d(widths[0])
        self.groups = nn.ModuleList()
        before = widths[0]
        for i, width in enumerate(widths):
            self.groups.append(nn.Sequential(block(before, width, 2 if i else 1)))
            before = width
        self.fc = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        for group in self.groups:
            x = group(x)
        return self.fc(x.mean((2, 3)))


class PreActivation(nn.Module):
    """The block of a WideResNet: normalise, activate, convolve, twice."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, width, stride=stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), conv(width, width)
        self.shortcut = None if stride == 1 and inputs == width else conv(inputs, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(x))
        skip = x if self.shortcut is None else self.shortcut(h)
        return self.conv2(F.relu(self.bn2(self.conv1(h)))) + skip


class WideResNet(nn.Module):
    """WideResNet-d-k with n = (d − 4) / 6 blocks in each of three groups; 28-10 is `WideResNet(4, 160)`."""

    def __init__(self, blocks: int = 2, width: int = 4, classes: int = 5, stem: int | None = None) -> None:
        super().__init__()
        self.conv1 = conv(3, stem or width)
        self.group1 = self._group(stem or width, width, blocks, 1)
        self.group2 = self._group(width, 2 * width, blocks, 2)
        self.group3 = self._group(2 * width, 4 * width, blocks, 2)
        self.bn = nn.BatchNorm2d(4 * width)
        self.fc = nn.Linear(4 * width, classes)

    @staticmethod
    def _group(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
        first = PreActivation(inputs, width, stride)
        return nn.Sequential(first, *(PreActivation(width, width, 1) for _ in range(blocks - 1)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.group3(self.group2(self.group1(self.conv1(x))))
        return self.fc(F.relu(self.bn(x)).mean((2, 3)))


def wide_resnet_28_10() -> nn.Module:
    """The real WideResNet-28-10 for CIFAR-10, as shapes only."""
    with torch.device("meta"):
        return WideResNet(blocks=4, width=160, classes=10, stem=16)


class Widening(nn.Module):
    """The block of a PyramidNet: a little wider than its input, the shortcut padded with zeros."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, width, stride=stride)
        self.bn2, self.conv2, self.bn3 = nn.BatchNorm2d(width), conv(width, width), nn.BatchNorm2d(width)
        self.pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn3(self.conv2(F.relu(self.bn2(self.conv1(self.bn1(x))))))
        skip = self.pool(x)
        missing = skip.new_zeros(skip.shape[0], h.shape[1] - skip.shape[1], *skip.shape[2:])
        return h + torch.cat([skip, missing], 1)


class PyramidNet(nn.Sequential):
    """Blocks that widen by one or two channels each."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__(
            conv(3, 4), nn.BatchNorm2d(4), Widening(4, 5, 1), Widening(5, 6, 2), Widening(6, 8, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
        )  # fmt: skip


class Growing(nn.Module):
    """The block of a DenseNet: its output is its input and some new channels side by side."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(inputs), conv(inputs, growth)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.bn(x)))], 1)


class DenseNet(nn.Module):
    """Concatenation after every layer, with a transition between two blocks."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = conv(3, 4)
        self.block1 = nn.Sequential(Growing(4, 3), Growing(7, 3))
        self.transition = nn.Sequential(nn.BatchNorm2d(10), nn.ReLU(inplace=True), conv(10, 5, 1), nn.AvgPool2d(2))
        self.block2 = nn.Sequential(Growing(5, 3), Growing(8, 3))
        self.bn = nn.BatchNorm2d(11)
        self.fc = nn.Linear(11, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block2(self.transition(self.block1(self.stem(x))))
        return self.fc(F.relu(self.bn(x), inplace=True).mean((2, 3)))


class UNet(nn.Module):
    """Down, up, and a skip across: class scores for every pixel."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.down = nn.Sequential(conv(3, 4), nn.BatchNorm2d(4), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), conv(4, 8), nn.BatchNorm2d(8), nn.ReLU())
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.head = nn.Conv2d(8, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        return self.head(torch.cat([skip, self.up(self.bottom(skip))], 1))


class ShuffleNet(nn.Module):
    """Grouped convolutions with a channel shuffle between them."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = conv(3, 8)
        self.conv1, self.bn1 = conv(8, 8, groups=2), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = conv(8, 8, groups=4), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(self.stem(x))))
        batch, channels, *size = x.shape
        x = x.view(batch, 2, channels // 2, *size).transpose(1, 2).reshape(batch, channels, *size)
        x = F.relu(self.bn2(self.conv2(F.channel_shuffle(x, 4))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class SqueezeExcite(nn.Module):
    """Each channel scaled by a gate made of all channels' means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.up(F.silu(self.down(x.mean((2, 3), keepdim=True)))).sigmoid()


class MobileNet(nn.Sequential):
    """Depthwise separable convolutions with squeeze-excitation."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__(
            conv(3, 4), nn.BatchNorm2d(4), nn.Hardswish(),
            conv(4, 4, groups=4), nn.BatchNorm2d(4), nn.ReLU6(inplace=True), SqueezeExcite(4), conv(4, 6, 1),
            conv(6, 6, 3, 2, groups=6), nn.BatchNorm2d(6), nn.SiLU(inplace=True), SqueezeExcite(6), conv(6, 8, 1),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes),
        )  # fmt: skip


class ConvNeXtBlock(nn.Module):
    """Depthwise 7×7, then channels last: LayerNorm, two linear layers, and a layer scale of its own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.depthwise(x).permute(0, 2, 3, 1)
        h = self.scale * self.narrow(F.gelu(self.wide(self.norm(h))))
        return x + h.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """A patchified stem, two blocks, and an initialisation of its own."""

    def __init__(self, classes: int = 5, width: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, 2)
        self.blocks = nn.Sequential(ConvNeXtBlock(width), ConvNeXtBlock(width))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.stem(x)).mean((2, 3))))


class GroupNormNet(nn.Sequential):
    """Nothing couples its rows, in training neither."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__(
            conv(3, 4), nn.GroupNorm(2, 4), nn.ReLU(), conv(4, 6, 3, 2), nn.GroupNorm(3, 6), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, classes),
        )  # fmt: skip
