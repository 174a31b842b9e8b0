"""Thin networks on tokens: attention, recurrence, embeddings, and loose parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AttentionBlock(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2, self.mlp = nn.LayerNorm(width), nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A vision transformer whose class token and position embedding are parameters of its own."""

    def __init__(self, classes: int = 5, width: int = 8, patches: int = 4) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, patches + 1, width))
        self.blocks = nn.Sequential(AttentionBlock(width), AttentionBlock(width), AttentionBlock(width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


class Encoder(nn.Module):
    """torch's own encoder on token ids; in eval mode its layers take a fused path."""

    def __init__(self, classes: int = 5, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(ids)).mean(1))


class LSTM(nn.Module):
    """A recurrent classifier: the last step of two layers."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class InPlace(nn.Module):
    """Writes into fresh tensors, into its input, and through an activation in place."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.embed, self.act = nn.Linear(4, 6), nn.ReLU(inplace=True)
        self.position = nn.Parameter(0.1 * torch.randn(4, 4))
        self.mix, self.head = nn.Linear(6, 6), nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        x += self.position
        h = self.act(self.embed(x))
        z = h.new_zeros(h.shape[0], h.shape[1] + 1, h.shape[2])
        z[:, 1:] = h
        z[:, 0] = self.mix(h).mean(1)
        z.mul_(0.5)
        return self.head(z.sum(1))


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self, tokens: int = 7, width: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(F.layer_norm(self.body(self.embed(ids)), (6,)))


def hugging_face_vit() -> nn.Module:
    """A small ViT of the transformers library, whose outputs are objects."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 12}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=5))


def hugging_face_bert() -> nn.Module:
    """A small BERT of the transformers library, called with ids and an attention mask."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}
    return BertForSequenceClassification(BertConfig(**sizes, vocab_size=11, max_position_embeddings=8, num_labels=5))
