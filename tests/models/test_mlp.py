"""MLP: linear layers with ReLU in between, norms and dropout where they are asked for."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import multitudes as mt
from multitudes.models import MLP
from multitudes.models.network import nearest


@settings(max_examples=15)
@given(
    hidden=st.lists(st.integers(1, 20), max_size=4),
    inputs=st.integers(1, 5),
    outputs=st.integers(1, 5),
    eighths=st.integers(1, 24),
)
def test_sizes(hidden: list[int], inputs: int, outputs: int, eighths: int) -> None:
    """Hidden ones times the width; inputs and outputs as they are."""
    net = MLP(inputs, hidden, outputs, width=eighths / 8)
    sizes = [inputs, *(nearest(size * eighths / 8) for size in hidden), outputs]
    linear = [part for part in net.modules() if isinstance(part, nn.Linear)]
    assert [(part.in_features, part.out_features) for part in linear] == list(itertools.pairwise(sizes))
    assert net(torch.randn(3, inputs)).shape == (3, outputs)


def test_by_hand() -> None:
    """The output is that of two matrix products and a ReLU."""
    net, x = MLP(3, (5,), 2).double(), torch.randn(4, 3, dtype=torch.float64)
    (a, b), (c, d) = ((part.weight, part.bias) for part in (net.layers[0], net.layers[2]))
    torch.testing.assert_close(net(x), (x @ a.T + b).clamp(min=0) @ c.T + d)


@pytest.mark.parametrize(
    ("norm", "dropout", "kinds"),
    [
        ("none", 0.0, "Linear ReLU Linear"),
        ("hidden", 0.0, "Linear BatchNorm1d ReLU Linear"),
        ("all", 0.0, "BatchNorm1d Linear BatchNorm1d ReLU Linear"),
        ("none", 0.3, "Dropout Linear ReLU Dropout Linear"),
        ("all", 0.3, "BatchNorm1d Dropout Linear BatchNorm1d ReLU Dropout Linear"),
    ],
)
def test_norms_and_dropout(norm: str, dropout: float, kinds: str) -> None:
    """Behind the input and behind hidden layers, never behind the output."""
    net = MLP(3, (5,), 2, norm=norm, dropout=dropout)
    assert [type(part).__name__ for part in net.layers] == kinds.split()
    assert all(part.p == 0.3 for part in net.layers if isinstance(part, nn.Dropout))


def test_without_biases() -> None:
    """In no layer, the last included."""
    assert all(part.bias is None for part in MLP(3, (5,), 2, bias=False).modules() if isinstance(part, nn.Linear))


def test_gamma_is_where_every_start_begins() -> None:
    """The norms' γ is as it is set, also in fresh members, and their β zero."""
    net = MLP(3, (5,), 2, norm="all", gamma=0.2)
    ens = mt.ensemble(net, mt.Deep(members=3), torch.randn(4, 3), seed=0)
    for name in ("layers.0", "layers.2"):
        assert net.get_parameter(f"{name}.weight").eq(0.2).all()
        assert ens.get_parameter(f"{name}.weight").eq(0.2).all()
        assert not ens.get_parameter(f"{name}.bias").any()
    assert len(ens.get_parameter("layers.1.weight").detach().flatten(1).unique(dim=0)) == 3
