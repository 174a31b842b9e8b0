"""Numbers that follow the width and are stored apart from it: computed anew, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt

X = torch.randn(3, 7, 6)


class Scaled(nn.Module):
    """Attention with one head, whose scale is a buffer; `table` is drawn, and `count` is known to the data alone."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("scale", torch.tensor(1 / math.sqrt(width)))
        self.register_buffer("table", torch.randn(5))
        self.register_buffer("count", torch.tensor(0.0))
        self.read, self.query, self.key = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x)
        weights = (self.query(h) @ self.key(h).transpose(1, 2) * self.scale).softmax(-1)
        return self.head((weights @ h).mean(1)) + self.table.sum() * self.count


@pytest.mark.parametrize("build", [Scaled, lambda: lambda: Scaled()], ids=["a module", "a factory"])
def test_a_buffer_that_the_constructor_computes_follows_the_width(build: Callable[[], Any]) -> None:
    thin = mt.resize(build(), 0.25, X, seed=0)
    torch.testing.assert_close(thin.scale, torch.tensor(1 / 4.0))  # 16 wide


def test_a_buffer_that_was_drawn_or_learnt_is_kept() -> None:
    net = Scaled()
    net.count.fill_(7.0)
    thin = mt.resize(net, 0.25, X, seed=0)
    assert torch.equal(thin.table, net.table)
    assert torch.equal(thin.count, net.count)


class Fixed(nn.Module):
    """Widths in the code of a constructor that cannot be run again: its argument is not known. `what` holds a number."""

    def __init__(self, secret: object, what: str) -> None:
        super().__init__()
        assert type(secret) is object
        self.read, self.query, self.key, self.head = nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        if what == "a buffer":
            self.register_buffer("scale", torch.tensor(1 / math.sqrt(64)))
        elif what == "an attribute":
            self.scale = 64**-0.5
        elif what == "a width":
            self.wide = 64
        else:
            self.scale, self.unused = 0.3, 64**-0.5

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x)
        scale = self.wide**-0.5 if hasattr(self, "wide") else self.scale
        return self.head(((self.query(h) @ self.key(h).transpose(1, 2) * scale).softmax(-1) @ h).mean(1))


@pytest.mark.parametrize("what", ["a buffer", "an attribute", "a width"])
def test_by_channels_a_number_that_follows_the_width_is_refused(what: str) -> None:
    """The attribute that holds it is named; a factory is the way out."""
    net = Fixed(object(), what)
    text = "wide = 64, which is 64" if what == "a width" else "scale = 0.125, which is 1/√64"
    with pytest.raises(mt.ConversionError, match=text) as refusal:
        mt.resize(net, 0.5, X, seed=0)
    assert "lambda ratio" in str(refusal.value)


def test_by_channels_numbers_that_forward_does_not_read_are_no_obstacle() -> None:
    """Another constant may stay: it is no power of a width."""
    thin = mt.resize(Fixed(object(), "another constant"), 0.5, X, seed=0)
    assert thin.resizing.way == "channels"
    assert thin.read.out_features == 32


class Written(nn.Module):
    """All numbers are written in the code of the constructor, the scale too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = 1 / math.sqrt(64)
        self.read, self.query, self.key, self.head = nn.Linear(6, 64), nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    forward = Fixed.forward


def test_a_scale_in_the_code_of_a_constructor_follows_or_is_refused() -> None:
    try:
        thin = mt.resize(Written(), 0.25, X, seed=0)
    except mt.ConversionError as refusal:
        assert "scale = 0.125, which is 1/√64" in str(refusal)
    else:
        assert thin.scale == 0.25
