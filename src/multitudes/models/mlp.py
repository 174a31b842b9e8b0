"""Multilayer perceptrons, as the papers use for toy data and for tabular regression."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.models.network import Network


class MLP(Network):
    """Multilayer perceptron: linear layers with ReLU in between.

    inputs, hidden, outputs  number of input features, hidden units per layer (before `width`) and outputs
    norm     "hidden": BatchNorm after every hidden layer, before its ReLU. "all": after the input too
    gamma    initial γ of BatchNorm
    dropout  rate of dropout after the input and after every hidden layer; 0 for none
    """

    def __init__(
        self,
        inputs: int = 1,
        hidden: Sequence[int] = (32, 128),
        outputs: int = 1,
        *,
        width: float = 1.0,
        bias: bool = True,
        norm: Literal["none", "hidden", "all"] = "none",
        gamma: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(locals())
        if norm not in ("none", "hidden", "all"):
            raise InputError(f"MLP(norm={norm!r}): give 'none', 'hidden' or 'all'")
        sizes = [inputs, *(self.scaled(size) for size in hidden)]
        layers: list[nn.Module] = [nn.BatchNorm1d(inputs)] if norm == "all" else []
        if dropout:
            layers.append(nn.Dropout(dropout))
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after, bias=bias)]
            layers += [nn.BatchNorm1d(after)] if norm != "none" else []
            layers += [nn.ReLU()] + ([nn.Dropout(dropout)] if dropout else [])
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], outputs, bias=bias))
        self.init_weights()

    def init_weights(self) -> None:
        """Initialises layers as torch does, and BatchNorm's γ with `gamma`."""
        for part in self.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
            elif isinstance(part, nn.BatchNorm1d):
                part.reset_parameters()
                nn.init.constant_(part.weight, self.arguments["gamma"])

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, inputs]`` → ``[B, outputs]``"""
        return self.layers(x)
