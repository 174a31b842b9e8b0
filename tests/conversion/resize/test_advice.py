"""What a refusal tells to type: the call of this very network, with its widths multiplied by the ratio."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
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


class Generated(nn.Module):
    """A weight that another network makes: what makes it grows with the square of the width."""

    def __init__(self, width: int = 8, code: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.code, self.maker = nn.Parameter(torch.randn(code)), nn.Linear(code, width * width)
        self.first, self.head = nn.Linear(4, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.head((x @ self.maker(self.code).view(x.shape[1], -1)).relu())


class Coded(nn.Module):
    """Arguments that are no widths: a number of rounds, and the width of an output."""

    def __init__(self, rounds: int = 4, latent: int = 6) -> None:
        super().__init__()
        self.first, self.mean, self.rounds = nn.Linear(4, 16), nn.Linear(16, latent), rounds

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(self.rounds):
            x = x.view(-1, 4, 4).softmax(-1).flatten(1)
        return self.mean(x)


def test_widths_that_other_layers_do_not_follow_are_named_with_their_values() -> None:
    """The line had dots for the values."""
    x = torch.randn(2, 4)
    text = advice(run_example(Generated(width=16), Inputs(x), 0))
    assert "Generated(width=round(16 * ratio), code=round(4 * ratio))" in text
    factory = eval(text.partition("mt.ensemble(")[2].rpartition(", mt.Packed")[0], {"Generated": Generated})
    assert mt.ensemble(factory, mt.Packed(members=4), x).members == 4


def test_arguments_that_are_no_widths_are_not_in_the_line() -> None:
    text = advice(run_example(Coded(), Inputs(torch.randn(2, 4)), 0))
    assert "Let Coded take its width" in text and "rounds" not in text and "latent" not in text


class Polynomials(nn.Module):
    """A KAN whose functions are polynomials: the degree runs with half as many too, and is no width."""

    def __init__(self, sizes: tuple[int, ...] = (4, 12, 3), degree: int = 4) -> None:
        super().__init__()
        shapes = [(few, many, degree + 1) for few, many in itertools.pairwise(sizes)]
        self.coefficients = nn.ParameterList([nn.Parameter(torch.randn(shape)) for shape in shapes])
        self.degree = degree

    def forward(self, x: Tensor) -> Tensor:
        for part in self.coefficients:
            powers = torch.stack([x.tanh() ** n for n in range(self.degree + 1)], -1)
            x = torch.einsum("bid,iod->bo", powers, part)
        return x


def test_the_degree_of_polynomials_is_no_width() -> None:
    x = torch.randn(2, 4)
    text = advice(run_example(Polynomials(), Inputs(x), 0))
    assert "Polynomials(sizes=(4, round(12 * ratio), 3))" in text
    factory = eval(text.partition("mt.ensemble(")[2].rpartition(", mt.Packed")[0], {"Polynomials": Polynomials})
    assert mt.ensemble(factory, mt.Packed(members=4), x).members == 4
