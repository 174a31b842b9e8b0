"""Recipes: checked when they are made; the learning rate goes as it is said to."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.recipes import RECIPES, Recipe, recipe


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"epochs": 0}, "epochs=0"), ({"epochs": 1.5}, "epochs=1.5"), ({"batch": True}, "batch=True"), ({"lr": -1}, "lr=-1"),
        ({"lr": math.inf}, "lr=inf"), ({"optimizer": "lamb"}, "sgd"), ({"schedule": "step"}, "multistep"),
        ({"schedule": "multistep"}, "milestones="), ({"clip": 0}, "clip=0"), ({"ema": 1.0}, "below 1"), ({"ema": "no"}, "ema"),
        ({"batch": 10, "accumulate": 3}, "must be equal"), ({"precision": "16"}, "'32' or 'bf16' or 'fp16'"),
        ({"best": "all"}, "best"), ({"augment": 3}, "function"), ({"seed": -1}, "seed=-1"), ({"compile": "yes"}, "compile"),
    ],
)  # fmt: skip
def test_bad_settings(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(mt.InputError, match=says):
        Recipe(**fields)


def rates(steps: int, recipe: Recipe) -> list[float]:
    """The rate at each step."""
    return [recipe.lr * recipe.factor(step, steps) for step in range(recipe.epochs * steps)]


def by_torch(steps: int, recipe: Recipe, make: Any) -> list[float]:
    """The rate at each step, as one of torch's schedules has it."""
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=recipe.lr)
    schedule, found = make(optimizer), []
    for _ in range(recipe.epochs * steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_schedules_are_torchs() -> None:
    """Multistep by epochs, cosine by steps."""
    lr = torch.optim.lr_scheduler
    multi = Recipe(epochs=8, lr=0.3, schedule="multistep", milestones=(2, 5), decay=0.2)
    assert rates(7, multi) == pytest.approx(by_torch(7, multi, lambda o: lr.MultiStepLR(o, [14, 35], 0.2)))
    cosine = Recipe(epochs=4, lr=0.3, schedule="cosine")
    assert rates(7, cosine) == pytest.approx(by_torch(7, cosine, lambda o: lr.CosineAnnealingLR(o, 28)))
    assert rates(3, Recipe(epochs=2, lr=0.3)) == [0.3] * 6


def test_warmup_rises_to_the_schedule() -> None:
    """In even steps, and then all is as without."""
    found = rates(4, Recipe(epochs=3, lr=1.0, warmup=1.5))
    assert found == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1, 1, 1, 1, 1, 1])
    late = rates(4, Recipe(epochs=4, lr=1.0, schedule="multistep", milestones=(2,), warmup=1.0))
    assert late[:4] == pytest.approx([0.25, 0.5, 0.75, 1])
    assert late[8:] == pytest.approx([0.1] * 8)


def test_one_cycle_rises_and_falls() -> None:
    """Once, from little to the rate and to nothing."""
    found = rates(10, Recipe(epochs=10, lr=1.0, schedule="onecycle"))
    top = max(range(100), key=found.__getitem__)
    assert 25 <= top <= 35
    assert found[top] == pytest.approx(1.0, abs=0.01)
    assert found[0] < 0.05
    assert found[-1] < 0.01
    assert found[: top + 1] == sorted(found[: top + 1])
    assert found[top:] == sorted(found[top:], reverse=True)


@pytest.mark.parametrize("name", list(RECIPES))
def test_papers_recipes(name: str) -> None:
    """By name, as JSON, and with other settings."""
    found = recipe(name)
    assert json.loads(json.dumps(found.settings()))["epochs"] == found.epochs
    assert replace(found, epochs=1).epochs == 1


def test_the_supplements_table() -> None:
    """Table 4 of the Packed-Ensembles supplement."""
    small, large = recipe("packed/cifar10-resnet18"), recipe("packed/cifar10-resnet50")
    assert (small.epochs, small.batch, small.lr, small.weight_decay, small.decay) == (75, 128, 0.05, 5e-4, 0.1)
    assert small.milestones == (25, 50)
    assert (large.epochs, large.lr, large.decay, large.milestones) == (200, 0.1, 0.2, (60, 120, 160))


def test_an_unknown_name() -> None:
    with pytest.raises(mt.InputError, match=r"nearest is 'packed/cifar10-resnet18'"):
        recipe("packed/cifar10-resnet-18")
