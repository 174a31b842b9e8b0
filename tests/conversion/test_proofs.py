"""Proofs that are kept: a second conversion proves nothing again, unless something that forward may read has changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.conversion import prove

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A perceptron with a configuration and a list."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.rates = SimpleNamespace(scale=1.0, inner={"shift": 0.0}), [1.0, 2.0]
        self.first, self.head = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x).relu() * self.config.scale)


@pytest.fixture
def proved(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The engines whose executors were proved."""
    engines: list[Any] = []
    original = prove.prove_executors

    def note(few: Any, *args: Any, **kwargs: Any) -> None:
        engines.append(few)
        original(few, *args, **kwargs)

    monkeypatch.setattr(prove, "prove_executors", note)
    return engines


def convert(net: nn.Module, seed: int = 0) -> mt.Ensemble:
    return mt.ensemble(net, mt.Deep(members=3), X, seed=seed)


def test_a_plan_and_another_seed_use_the_same_proof(proved: list[Any]) -> None:
    net = Net()
    mt.plan(net, mt.Deep(members=3), X)
    one, other = convert(net), convert(net, seed=1)
    assert len(proved) == 1 and one.plan.proven == other.plan.proven


@torch.no_grad()
def train(net: Any) -> None:
    net.first.weight.add_(0.1)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a weight": train,
    "what trains": lambda net: net.first.weight.requires_grad_(False),
    "a module": lambda net: setattr(net, "first", nn.Linear(5, 8)),
    "a hook": lambda net: net.first.register_forward_hook(lambda module, args, output: output * 2),
    "a list": lambda net: net.rates.append(3.0),
    "a configuration": lambda net: setattr(net.config, "scale", 2.0),
    "a dict in a configuration": lambda net: net.config.inner.update(shift=1.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_is_proved_again(proved: list[Any], change: str) -> None:
    net = Net()
    convert(net)
    CHANGES[change](net)
    convert(net)
    assert len(proved) == 2


def test_a_plan_says_what_was_proved_and_how_long_it_took() -> None:
    planned = mt.plan(Net(), mt.Deep(members=3), X)
    assert planned.seconds and sum(planned.seconds.values()) > 0
    shown = " ".join(str(planned).split())  # a narrow terminal breaks the line
    assert re.search(
        r"proved by 2 member\(s\) on an input of shape \[4, 5\], in double precision if possible; \d+\.\d s", shown
    )
