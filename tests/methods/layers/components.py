"""Small networks with patches, and their members by hand: the component that each parameter takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.models import MLP

X, Y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2])


IMAGES = torch.randn(3, 3, 8, 8, dtype=torch.float64)


K = 3


KINDS = pytest.mark.parametrize("kind", [mt.EMP, mt.ECMP])


def perceptron() -> nn.Module:
    return MLP(5, (8, 6), 3, norm="hidden").double()


def net_of(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).double()


def patched(net: nn.Module, x: Tensor, **settings: Any) -> list[str]:
    """The layers of a model that get components."""
    planned = mt.plan(net, mt.EMP(**settings), x)
    assert not planned.refused
    return [entry.name for entry in planned.converted if entry.name]


def chosen(components: Tensor, draws: dict[str, Tensor], name: str, d: int, sigma: float = 0.0) -> Tensor:
    """Σ_k 1[Z = k] ∘ (M_k + σ ε) of one parameter for the draw d, term by term."""
    layer, _, key = name.rpartition(".")
    z = draws[f"{layer}.choice"][d] if f"{layer}.choice" in draws else draws[f"{layer}.{key}_choice"][d]
    total = torch.zeros_like(components[0])
    for k in range(len(components)):
        noise = draws[f"{layer}.{key}_noise"][d] if sigma else 0.0
        total = total + (z == k).to(components.dtype) * (components[k] + sigma * noise)
    return total


def leaves(ens: mt.Ensemble) -> dict[str, Tensor]:
    """Copies of all parameters, which take gradients of their own."""
    return {name: p.detach().clone().requires_grad_() for name, p in ens.named_parameters()}


def gradients(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in tensors.items()}
