"""ViT: torch's own pre-norm encoder behind patches, a class token and positions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import multitudes as mt
from multitudes.conversion.anatomy.structure import block_starts, observe
from multitudes.models import ViT
from multitudes.models.network import nearest
from multitudes.models.vit import Block


def test_a_block_is_a_layer_of_torchs_encoder() -> None:
    """With the norm first, GELU and no dropout: the same weights give the same numbers."""
    ours = Block(12, 3, 20).double()
    theirs = nn.TransformerEncoderLayer(12, 3, 20, 0.0, "gelu", batch_first=True, norm_first=True).double()
    names = {"self_attn": "attention", "linear1": "fc1", "linear2": "fc2", "norm1": "norm1", "norm2": "norm2"}
    for theirs_name, ours_name in names.items():
        part = theirs.get_submodule(theirs_name)
        for p in part.parameters():
            nn.init.normal_(p)
        ours.get_submodule(ours_name).load_state_dict(part.state_dict())
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))


def test_patches_come_in_order_and_the_token_answers() -> None:
    """Without blocks it is the head of the normed class token; with one, patches may move if their positions move along."""
    net, x = ViT(image=8, size=12, depth=0).double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    answer = net.head(net.norm(net.token + net.positions[:, :1]))[:, 0]
    torch.testing.assert_close(net(x), answer.expand(2, -1))
    net = ViT(image=8, size=12, depth=1).double()
    before = net(x)
    with torch.no_grad():
        net.positions.copy_(net.positions[:, [0, 2, 1, 4, 3]])  # left and right patches of both rows
    torch.testing.assert_close(net(torch.cat([x[..., 4:], x[..., :4]], -1)), before)
    assert not torch.allclose(net(x), before)


@settings(max_examples=15)
@given(
    heads=st.integers(1, 4), size=st.integers(1, 8), eighths=st.integers(1, 24), ratio=st.integers(1, 4), grid=st.integers(1, 3)
)
def test_sizes(heads: int, size: int, eighths: int, ratio: int, grid: int) -> None:
    """The stream is the nearest multiple of the heads, and hidden units are scaled from `ratio` times as many."""
    net = ViT(image=4 * grid, patch=4, size=heads * size, heads=heads, depth=1, ratio=ratio, width=eighths / 8, classes=7)
    hidden = nearest(ratio * heads * size * eighths / 8)
    width, block = nearest(heads * size * eighths / 8, heads), net.blocks[0]
    assert net.embed.out_channels == net.token.shape[-1] == net.head.in_features == width
    assert net.positions.shape == (1, grid * grid + 1, width)
    assert (block.attention.num_heads, block.attention.embed_dim, block.fc1.out_features) == (heads, width, hidden)
    assert net(torch.randn(2, 3, 4 * grid, 4 * grid)).shape == (2, 7)


def test_initialisation() -> None:
    """Matrices, token and positions with a deviation of 0.02, biases at zero; none is drawn further than two units."""
    net = ViT(size=96, heads=3, depth=2)
    named = dict(net.named_parameters())
    for name in (
        "token",
        "positions",
        "blocks.1.attention.in_proj_weight",
        "blocks.0.attention.out_proj.weight",
        "blocks.1.fc1.weight",
    ):
        assert named[name].std().item() == pytest.approx(0.02, rel=0.25), name
    assert not any(p.any() for name, p in named.items() if name.endswith("bias") and "embed" not in name)
    assert all(p.eq(1).all() for name, p in named.items() if "norm" in name and name.endswith("weight"))


def test_block_starts() -> None:
    """Attention, and the first layer of every perceptron."""
    net = ViT(image=8, size=12, depth=2)
    found = block_starts(observe(net, mt.Inputs(torch.randn(2, 3, 8, 8))))
    assert {"blocks.0.fc1", "blocks.1.fc1"} <= found
    assert not {"embed", "head", "blocks.0.fc2", "blocks.1.fc2"} & found
