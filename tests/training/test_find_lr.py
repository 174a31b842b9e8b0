"""find_lr: the losses of plain loops with growing rates, on a copy of the ensemble."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training.small import TRAIN, X, Y, made

import multitudes as mt
from multitudes.engine.seeds import generator_states
from multitudes.training.find_lr import LearningRates


def test_losses_are_those_of_plain_loops() -> None:
    ens = made(mt.Deep(members=2))
    before = {name: value.clone() for name, value in ens.state_dict().items()}
    found = mt.find_lr(ens, DataLoader(TRAIN, 50), mt.Recipe(momentum=0.5), low=1e-4, high=0.1, steps=6)
    rates = [1e-4 * 1000 ** (step / 5) for step in range(6)]
    assert found.rates == pytest.approx(rates)
    totals = torch.zeros(6)
    for m in range(2):
        net = ens.member(m).train()
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)
        for step, rate in enumerate(rates):
            rows = slice(50 * (step % 4), 50 * (step % 4) + 50)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(X[rows]), Y[rows])
            totals[step] += loss.detach()
            loss.backward()
            optimizer.step()
    average, smooth = 0.0, []
    for step, total in enumerate(totals.tolist()):
        average = 0.9 * average + 0.1 * total
        smooth.append(average / (1 - 0.9 ** (step + 1)))
    assert found.losses == pytest.approx(smooth, rel=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in ens.state_dict().items())


def test_nothing_random_moves() -> None:
    ens = made(mt.MCDropout(members=2, p=0.5))
    states, generator = generator_states(), ens.generator.get_state()
    mt.find_lr(ens, TRAIN, mt.Recipe(batch=50), steps=3)
    assert generator_states() == states
    assert torch.equal(ens.generator.get_state(), generator)


def test_the_search_ends_where_the_loss_rises() -> None:
    """Squares of a linear map: rates above 2 over the curvature diverge, and the suggestion is far below."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    ens = mt.ensemble(nn.Linear(4, 1), mt.Deep(members=2), x, task="regression", check=False)
    found = mt.find_lr(
        ens, TensorDataset(x, x.sum(1, keepdim=True)), mt.Recipe(batch=64, momentum=0), low=1e-4, high=1e4, steps=80
    )
    curvature = (
        2 * torch.linalg.eigvalsh(torch.cat([x, torch.ones(64, 1)], 1).T @ torch.cat([x, torch.ones(64, 1)], 1) / 64)[-1]
    )
    assert found.rates[-1] < 1e4 and not found.note
    assert 1e-3 < found.suggested < 2 / float(curvature)


@pytest.mark.parametrize(
    ("losses", "note"),
    [((3.0, 2.0, 1.0), "larger high="), ((1.0, 2.0, 3.0), "smaller low="), ((2.0, 1.0, 3.0), "")],
)
def test_the_suggestion_is_a_tenth_of_the_best(losses: Any, note: str) -> None:
    found = LearningRates((0.1, 1.0, 10.0), losses)
    assert found.suggested == pytest.approx((0.1, 1.0, 10.0)[losses.index(1.0)] / 10)
    assert (note in found.note) and bool(found.note) == bool(note)
    assert f"lr={found.suggested:.2g}" in str(found)


@pytest.mark.parametrize(
    ("options", "match"), [({"low": 1, "high": 0.1}, "must be below"), ({"steps": 0}, "steps"), ({"low": 0}, "low")]
)
def test_refusals(options: Any, match: str) -> None:
    with pytest.raises(mt.InputError, match=match):
        mt.find_lr(made(), TRAIN, **options)
    with pytest.raises(mt.InputError, match="not finite"):
        mt.find_lr(made(), TensorDataset(X * float("nan"), Y), mt.Recipe(batch=50))
