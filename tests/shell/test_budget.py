"""Budgets: how they are typed, and how many epochs they pay for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import multitudes as mt
from multitudes.data import Data
from multitudes.models import MLP
from multitudes.shell import budget as budgets
from multitudes.shell.budget import Budget
from multitudes.shell.jobs import Job

G = torch.Generator().manual_seed(0)
DATA = Data(torch.randn(64, 6, generator=G), torch.randint(3, (64,), generator=G))
JOB = Job(
    name="a", network=lambda: MLP(6, (16,), 3, norm="hidden"), train=DATA, test=DATA, recipe=mt.Recipe(epochs=7, batch=16)
)


def converted(method: mt.Method) -> mt.Ensemble:
    torch.manual_seed(0)
    return mt.ensemble(JOB.network(), method, JOB.example, seed=0)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("10 epochs", Budget(10, "epochs")), ("10", Budget(10, "epochs")), ("1 epoch", Budget(1, "epochs")),
        ("2.5s", Budget(2.5, "seconds")), ("30 seconds", Budget(30, "seconds")), ("2E12 FLOPs", Budget(2e12, "flops")),
    ],
)  # fmt: skip
def test_a_budget_is_read_and_printed(text: str, budget: Budget) -> None:
    assert Budget.read(text) == budget
    assert Budget.read(str(budget)) == budget


@pytest.mark.parametrize("text", ["", "ten epochs", "0 epochs", "-1 s", "3 hours", "1.5 epochs", "1.2.3 s", "inf s", "1e400 s"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(mt.InputError, match="--budget"):
        Budget.read(text)


def test_seconds_of_several_inputs_and_of_pixels_without_a_label() -> None:
    class Both(torch.nn.Linear):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return super().forward(a + b)

    several = torch.utils.data.TensorDataset(DATA.inputs, DATA.inputs, DATA.targets)
    pixels = Data(torch.randn(8, 3, 4, 4, generator=G), torch.full((8, 4, 4), 255), ignore=255)
    for network, own in ((lambda: Both(6, 3), several), (lambda: torch.nn.Conv2d(3, 2, 1), pixels)):
        job = replace(JOB, network=network, train=own, test=own)
        assert Budget(5, "seconds").epochs(job.ensemble(mt.Deep(members=2), 0), job, job.recipe) > 1


def test_epochs_are_epochs() -> None:
    assert Budget(5, "epochs").epochs(converted(mt.Deep()), JOB, JOB.recipe) == 5


@pytest.mark.slow
def test_operations_are_counted_as_the_method_trains() -> None:
    """A linear layer has one product forward, one back to its weights and, unless it is the first, one back to its inputs."""
    first, second = 6 * 16, 16 * 3
    step = 2 * 16 * (2 * first + 3 * second)
    for method, times in ((mt.Single(), 1), (mt.Deep(members=3), 3), (mt.EMP(members=5), 1)):
        ens = converted(method)
        assert budgets._operations(ens, JOB, JOB.recipe) == times * step
        assert Budget(4 * 10 * times * step, "flops").epochs(ens, JOB, JOB.recipe) == 10
        with pytest.raises(mt.InputError, match=r"--budget '1 flops'.*one epoch of \w+ takes"):
            Budget(1, "flops").epochs(ens, JOB, JOB.recipe)


def test_seconds_are_timed_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(0, 1000, 3))
    monkeypatch.setattr(budgets.time, "perf_counter", lambda: next(ticks))
    assert budgets._seconds(converted(mt.Single()), JOB, JOB.recipe) == 3 / budgets.TIMED
    assert Budget(100, "seconds").epochs(converted(mt.Single()), JOB, JOB.recipe) == int(100 / (4 * 3 / budgets.TIMED))


@pytest.mark.parametrize("unit", ["seconds", "flops"])
def test_measuring_leaves_the_ensemble_unchanged(unit: str) -> None:
    """Weights, statistics, gradients, mode and random state are restored."""
    ens = converted(mt.MIMO(members=2)).eval()
    before, state, drawn = {n: v.clone() for n, v in ens.state_dict().items()}, torch.get_rng_state(), ens.generator.get_state()
    Budget(1e9, unit).epochs(ens, JOB, replace(JOB.recipe, batches="same"))  # type: ignore[arg-type]
    assert all(torch.equal(value, before[name]) for name, value in ens.state_dict().items())
    assert not ens.training
    assert all(p.grad is None for p in ens.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(ens.generator.get_state(), drawn)
