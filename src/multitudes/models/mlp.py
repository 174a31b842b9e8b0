"""Multilayer perceptrons of the papers: for 1-D and tabular regression, for 2-D toy data, and EMP's deep one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from multitudes.errors import InputError
from multitudes.models.network import Network


class MLP(Network):
    """Linear layers with ReLU in between.

    norm="hidden" puts BatchNorm behind every hidden layer and before its ReLU, "all" behind the input too; its γ starts at
    `gamma`. A `dropout` rate puts dropout behind the input and every hidden layer.
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
            raise InputError(f"MLP(norm={norm!r}): say 'none', 'hidden' or 'all'")
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
        """As torch starts layers, with BatchNorm's γ as it is set."""
        for part in self.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
            elif isinstance(part, nn.BatchNorm1d):
                part.reset_parameters()
                nn.init.constant_(part.weight, self.arguments["gamma"])

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, inputs]`` → ``[B, outputs]``"""
        return self.layers(x)
