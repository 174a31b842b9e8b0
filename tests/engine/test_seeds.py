"""Seeds: every global generator is seeded in a with-block, and is as before afterwards."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from multitudes.engine.inputs import Inputs
from multitudes.engine.proof.outcome import run_plain
from multitudes.engine.seeds import kept_randomness, seeded


def drawn() -> list[float]:
    return [random.random(), float(numpy.random.rand()), float(torch.rand(()))]


def states() -> list[Any]:
    return [random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]


@pytest.mark.parametrize("fails", [False, True])
def test_generators_are_seeded_and_restored(fails: bool) -> None:
    """Also after an error; the same seed gives the same draws, another seed gives others."""
    before, draws = states(), []
    for seed in (2**61, 2**61, 5):
        try:
            with seeded(seed):
                draws.append(drawn())
                if fails:
                    raise ValueError
        except ValueError:
            assert fails
    assert states() == before
    assert draws[0] == draws[1]
    assert not set(draws[0]) & set(draws[2])


def test_kept_randomness_seeds_nothing() -> None:
    before = states()
    with kept_randomness():
        inside = drawn()
    assert states() == before
    assert drawn() == inside


def test_numpy_is_not_imported_for_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a numpy that somebody has imported has a state worth keeping."""
    monkeypatch.delitem(sys.modules, "numpy.random")
    monkeypatch.delitem(sys.modules, "numpy")
    with seeded(0):
        pass
    assert "numpy" not in sys.modules


class Noisy(nn.Module):
    """Draws from every generator in forward, as networks that mask their inputs in training do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.tensor(numpy.random.rand(*x.shape) > 0.5)
        answer: Tensor = self.layer(x * mask * random.random() + torch.rand_like(x))
        return answer


def test_trial_runs_draw_the_same() -> None:
    """So that two executors can be compared on a network that draws from numpy or python."""
    net, call = Noisy(), Inputs(torch.randn(3, 4))
    one, two = (run_plain(net, call, mode="train").values[0] for _ in range(2))
    assert torch.equal(one, two)
