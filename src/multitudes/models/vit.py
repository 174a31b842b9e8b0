"""A small Vision Transformer.

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021, https://arxiv.org/abs/2010.11929
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.models.network import Network


class Block(nn.Module):
    """Block of attention and an MLP, each with a norm before it and a residual connection around it."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size)
        self.attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(size)
        self.fc1 = nn.Linear(size, hidden)
        self.fc2 = nn.Linear(hidden, size)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, T, C]`` → ``[B, T, C]``"""
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(Network):
    """Vision Transformer with a class token, learned positions and pre-norm blocks.

    image, patch  side of the image and of a patch, in pixels
    size          width of the tokens; `width` scales it to a multiple of `heads`
    ratio         hidden units of an MLP = ratio × token width
    """

    def __init__(
        self,
        *,
        classes: int = 10,
        image: int = 32,
        patch: int = 4,
        size: int = 192,
        depth: int = 6,
        heads: int = 3,
        ratio: float = 4.0,
        width: float = 1.0,
        channels: int = 3,
    ) -> None:
        super().__init__(locals())
        hidden = self.scaled(round(ratio * size))
        size = self.scaled(size, heads)
        self.embed = nn.Conv2d(channels, size, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, size))
        self.positions = nn.Parameter(torch.zeros(1, (image // patch) ** 2 + 1, size))
        self.blocks = nn.Sequential(*(Block(size, heads, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, classes)
        self.init_weights()

    def init_weights(self) -> None:
        """Initialises matrices, token and positions by a truncated normal with deviation 0.02, biases with zero."""
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=0.02)
                nn.init.zeros_(part.bias)
            elif isinstance(part, nn.LayerNorm):
                part.reset_parameters()
            elif isinstance(part, nn.MultiheadAttention):
                nn.init.trunc_normal_(part.in_proj_weight, std=0.02)
                nn.init.zeros_(part.in_proj_bias)
        self.embed.reset_parameters()
        nn.init.trunc_normal_(self.token, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, channels, image, image]`` → ``[B, classes]``"""
        x = self.embed(x).flatten(2).transpose(1, 2)  # [B, T, C]
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])
