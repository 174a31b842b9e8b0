"""Networks of the census that need torch alone: as users write them, with numbers in `forward` and all that goes with it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.engine.inputs import Inputs
from multitudes.shell.census.networks import ROWS, Network

CLASSES = 5


def mlp() -> nn.Module:
    """A perceptron with BatchNorm and dropout."""
    return nn.Sequential(
        nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, CLASSES)
    )


class ConvNet1d(nn.Module):
    """Convolutions over time, as for waves and signals: ``[B, 2, T]`` → ``[B, K]``."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv1d(2, width, 7, stride=2, padding=3)
        self.norm = nn.BatchNorm1d(width)
        self.body = nn.ModuleList(nn.Conv1d(width, width, 3, padding=2**i, dilation=2**i) for i in range(3))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Adds dilated convolutions to a residual stream."""
        x = F.relu(self.norm(self.stem(x)))
        for layer in self.body:
            x = x + F.relu(layer(x))
        return self.head(x.mean(2))


class ConvNet3d(nn.Module):
    """Convolutions over volumes or videos: ``[B, 1, D, H, W]`` → ``[B, K]``."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv3d(1, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU(), nn.MaxPool3d(2),
            nn.Conv3d(width, 2 * width, 3, padding=1), nn.InstanceNorm3d(2 * width, affine=True), nn.LeakyReLU(0.1),
        )  # fmt: skip
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Averages over the volume."""
        return self.head(self.features(x).mean((2, 3, 4)))


def double_conv(inputs: int, outputs: int) -> nn.Module:
    """Makes two convolutions with BatchNorm, a U-Net's block."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    """A U-Net with transposed convolutions: ``[B, 3, H, W]`` → ``[B, K, H, W]``."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = double_conv(3, width), double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join2, self.join1 = double_conv(4 * width, 2 * width), double_conv(2 * width, width)
        self.head = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Concatenates what comes up with what went down."""
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.bottom(F.max_pool2d(two, 2))
        x = self.join2(torch.cat([self.up2(x), two], 1))
        return self.head(self.join1(torch.cat([self.up1(x), one], 1)))


class AttentionUNet(nn.Module):
    """A U-Net by interpolation, with GroupNorm and a gate on what it concatenates: ``[B, 3, H, W]`` → ``[B, K, H, W]``."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encode, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(4, width)
        self.bottom = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.gate = nn.Conv2d(3 * width, 1, 1)
        self.decode, self.head = nn.Conv2d(3 * width, width, 3, padding=1), nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Interpolates the lower level, and weighs the upper one by a map."""
        top = F.silu(self.norm(self.encode(x)))
        low = F.interpolate(F.silu(self.bottom(top)), scale_factor=2.0, mode="nearest")
        gate = torch.sigmoid(self.gate(torch.cat([top, low], 1)))
        return self.head(F.silu(self.decode(torch.cat([top * gate, low], 1))))


class Recurrent(nn.Module):
    """A classifier of sequences by LSTM or GRU: ``[B, T]`` ids → ``[B, K]``."""

    def __init__(self, kind: str = "LSTM", width: int = 16, both: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, width)
        self.cell: Any = getattr(nn, kind)(width, width, num_layers=2, batch_first=True, bidirectional=both)
        self.head = nn.Linear(2 * width if both else width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        """Classifies by the last step."""
        steps, _ = self.cell(self.embed(ids))
        return self.head(steps[:, -1])


class VisionTransformer(nn.Module):
    """A vision transformer as written by hand: fused qkv, heads by `view`, a class token: ``[B, 3, 16, 16]`` → ``[B, K]``."""

    def __init__(self, width: int = 32, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Classifies by the class token."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class AttentionBlock(nn.Module):
    """A block of attention and perceptron, with norms before both."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, N, C]`` → ``[B, N, C]``"""
        count, steps, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(count, steps, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        mixed = ((q @ k.transpose(-2, -1)) * self.size**-0.5).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(count, steps, width))
        return x + self.mlp(self.norm2(x))


class TokenTransformer(nn.Module):
    """torch's own encoder layers on tokens and learned places: ``[B, T]`` ids → ``[B, K]``."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(30, width), nn.Embedding(16, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        """Classifies by the mean over tokens."""
        x = self.embed(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.encoder(x).mean(1))


class NestedResidual(nn.Module):
    """Residual branches inside residual branches, one module used twice: ``[B, 3, H, W]`` → ``[B, K]``."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.outer, self.inner = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.short = nn.Conv2d(width, 2 * width, 1, 2)
        self.long = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.ReLU())
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Adds the inner branch to the outer one, and both to the stream, twice."""
        x = self.stem(x)
        for _ in range(2):
            outer = self.outer(F.relu(x))
            x = x + self.norm(outer + F.relu(self.inner(outer)))
        return self.head((self.long(x) + self.short(x)).mean((2, 3)))


class Tabular(nn.Module):
    """A perceptron on categories and numbers, two arguments: ``[B, 3]`` ids and ``[B, 4]`` → ``[B, K]``."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.categories = nn.ModuleList(nn.Embedding(7, 8) for _ in range(3))
        self.body = nn.Sequential(
            nn.Linear(3 * 8 + 4, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """Concatenates the embeddings and the numbers."""
        parts = [embed(ids[:, i]) for i, embed in enumerate(self.categories)]
        return self.head(self.body(torch.cat([*parts, numbers], 1)))


def _floats(*shape: int) -> Callable[[nn.Module], Inputs]:
    return lambda _: Inputs(torch.randn(ROWS, *shape))


def _ids(_: nn.Module) -> Inputs:
    return Inputs(torch.randint(30, (ROWS, 8)))


def _both(_: nn.Module) -> Inputs:
    return Inputs(torch.randint(7, (ROWS, 3)), torch.randn(ROWS, 4))


CATALOGUE: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Inputs]]] = {
    "mlp": (mlp, _floats(12)),
    "convnet_1d": (ConvNet1d, _floats(2, 64)),
    "convnet_3d": (ConvNet3d, _floats(1, 8, 8, 8)),
    "unet": (UNet, _floats(3, 16, 16)),
    "unet_attention": (AttentionUNet, _floats(3, 16, 16)),
    "lstm": (lambda: Recurrent("LSTM"), _ids),
    "lstm_bidirectional": (lambda: Recurrent("LSTM", both=True), _ids),
    "gru": (lambda: Recurrent("GRU"), _ids),
    "vit_by_hand": (VisionTransformer, _floats(3, 16, 16)),
    "transformer_encoder": (TokenTransformer, _ids),
    "nested_residual": (NestedResidual, _floats(3, 16, 16)),
    "tabular": (Tabular, _both),
}


@functools.cache
def networks() -> list[Network]:
    """Lists the catalogue."""
    return [Network("own", name, name, build, inputs) for name, (build, inputs) in CATALOGUE.items()]
