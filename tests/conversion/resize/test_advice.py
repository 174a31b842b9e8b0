"""What a refusal tells to type: the call of this very network, with its widths multiplied by the ratio."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.structure import run_example
from multitudes.conversion.resize.advice import advice
from multitudes.engine.inputs import Inputs


class Given(nn.Module):
    """Widths among arguments that equal other arguments: 16 is a width and a size of images."""

    def __init__(
        self, width: int = 8, inner: tuple[int, ...] = (16,), size: int = 16, rate: float = 0.0, classes: int = 5
    ) -> None:
        super().__init__()
        self.width, self.inner, self.size, self.rate = width, inner, size, rate
        self.first = nn.Linear(4, width)
        self.second = nn.Linear(width, inner[0])
        self.head = nn.Linear(inner[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu()).relu())


class Stream(nn.Module):
    """A network without a last layer: its output is the sum of what its layers add."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_widths_are_tried_and_not_taken_by_value() -> None:
    text = advice(run_example(Given(size=16, classes=3), Inputs(torch.randn(2, 4)), 0))
    assert "Given(width=round(8 * ratio), inner=(round(16 * ratio),), classes=3)" in text and "size" not in text


def test_a_network_without_a_last_layer_is_told_to_have_one() -> None:
    text = advice(run_example(Stream(), Inputs(torch.randn(2, 4)), 0))
    assert "3 layers are added up" in text and "a last layer of its own" in text


def test_transformers_are_written_with_their_configuration() -> None:
    hf = pytest.importorskip("transformers")
    config = hf.ViTConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=40, image_size=32, num_labels=5
    )
    text = advice(run_example(hf.ViTForImageClassification(config), Inputs(torch.randn(2, 3, 32, 32)), 0))
    call = text.partition("lambda ratio: ")[2].rpartition(", mt.Packed")[0]
    thin = eval(call, {"ratio": 0.5, "ViTConfig": hf.ViTConfig, "ViTForImageClassification": hf.ViTForImageClassification})
    assert thin.config.hidden_size == 12 and thin.config.intermediate_size == 20 and thin.config.num_attention_heads == 3
    assert thin(torch.randn(2, 3, 32, 32)).logits.shape == (2, 5)


class Attending(nn.Module):
    """A width that heads divide, and channels that are split so that it is refused."""

    def __init__(self, width: int = 24, num_heads: int = 3, classes: int = 5) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, width), nn.Linear(width, classes)
        self.attention = nn.MultiheadAttention(width, num_heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(self.attention(x, x, x)[0].mean(1))


class Fixed(nn.Module):
    """A network whose widths are no arguments."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, classes))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def test_widths_are_rounded_to_what_heads_divide() -> None:
    text = advice(run_example(Attending(), Inputs(torch.randn(2, 6, 4)), 0))
    assert "Attending(width=3 * round(8 * ratio))" in text


def test_a_network_without_widths_among_its_arguments_is_named() -> None:
    text = advice(run_example(Fixed(), Inputs(torch.randn(2, 4)), 0))
    assert "Let Fixed take its width" in text
