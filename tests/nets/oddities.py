"""Small networks, each with one thing that a conversion may stumble over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint


def mlp(*more: nn.Module) -> nn.Sequential:
    """Three linear layers, with `more` behind the first activation."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), *more, nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 5))


class Checkpointed(nn.Module):
    """Recomputes its middle during the backward pass."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 5)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if torch.is_grad_enabled() and x.requires_grad:
            return self.last(checkpoint(self.middle, x, use_reentrant=self.use_reentrant))
        return self.last(self.middle(x))


class Branching(nn.Module):
    """Reads values back to decide what to run: of the data, and of its own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.softplus(self.first(x))
        if h.mean() > 0:
            h = self.middle(h)
        if self.middle.weight.sum().item() > 0:
            h = torch.tanh(h)
        return self.last(h)


class HeadFirst(nn.Module):
    """Registers the layer that runs last before all others."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(6, 5)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.body(x))


class FunctionalDropout(nn.Module):
    """Dropout without a dropout module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.dropout(F.relu(self.first(x)), 0.2, self.training))


class SeveralInputs(nn.Module):
    """Two inputs by position, of which the second has no rows, and one by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.x, self.context, self.last = nn.Linear(4, 6), nn.Linear(2, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor, context: Tensor, *, mask: Tensor | None = None) -> Tensor:
        h = torch.tanh(self.x(x) + self.context(context))
        return self.last(h if mask is None else h * mask)


@dataclass
class Output:
    """What `Structured("dataclass")` returns."""

    scores: Tensor
    features: Tensor
    note: str = "constant"


class Pair(NamedTuple):
    """What `Structured("namedtuple")` returns."""

    scores: Tensor
    features: Tensor


class Structured(nn.Module):
    """Returns its scores together with its features, in a structure of a given kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Linear(6, 5)
        self.kind = kind

    def forward(self, x: Tensor) -> dict[str, Tensor | None] | tuple[Tensor, tuple[Tensor, int]] | Output | Pair:
        features = self.body(x)
        scores = self.head(features)
        if self.kind == "dict":
            return {"scores": scores, "features": features, "nothing": None}
        if self.kind == "tuple":
            return scores, (features, 7)
        return (Output if self.kind == "dataclass" else Pair)(scores, features)


class WeightNorm(nn.Module):
    """A layer whose weight is computed from two parameters by a parametrization."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = weight_norm(nn.Linear(4, 6)), weight_norm(nn.Linear(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.first(x)))


class Table(nn.Module):
    """Uses a buffer that no state dict has, made from its own width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 5)
        self.register_buffer("table", torch.linspace(0.5, 1.5, 6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)) * self.table)


class Reassigning(nn.Module):
    """Keeps a moving average by assigning a new tensor to its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 5)
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.training:
            self.average = 0.9 * self.average + 0.1 * h.detach().mean(0)
        return self.last(torch.tanh(h - self.average))
