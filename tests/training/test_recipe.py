"""Recipes: checked when they are made; the learning rate goes as it is said to."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.data import Augment
from multitudes.training.recipe import Recipe
from multitudes.training.recipes import recipe


@pytest.mark.parametrize(
    ("fields", "nouns"),
    [
        ({"epochs": 0}, "epochs=0"), ({"epochs": 1.5}, "epochs=1.5"), ({"batch": True}, "batch=True"), ({"lr": -1}, "lr=-1"),
        ({"lr": math.inf}, "lr=inf"), ({"lr": math.nan}, "lr=nan"), ({"optimizer": "lars"}, "optimizer.*sgd"),
        ({"schedule": "step"}, "multistep"), ({"clip": 0}, "clip=0"), ({"clip": math.inf}, "clip=inf"),
        ({"ema": 1.0}, "below 1"), ({"ema": "no"}, "ema"), ({"momentum": 1.0}, "momentum=1.0.*below 1"),
        ({"precision": "16"}, "'32', 'bf16' or 'fp16'"), ({"best": "all"}, "best"), ({"augment": 3}, "augment=3"),
        ({"augment": Augment}, "augment.*class"), ({"seed": -1}, "seed"),
        ({"compile": 1}, "compile=1"), ({"nesterov": None}, "nesterov"),
        ({"epochs": 0, "lr": -1, "best": "all"}, "epochs.*lr.*best"),
        ({"schedule": "multistep"}, "milestones="), ({"batch": 10, "accumulate": 3}, "batch=10, accumulate=3"),
        ({"nesterov": True, "momentum": 0}, "momentum=0"), ({"nesterov": True, "optimizer": "adam"}, "optimizer='adam'"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum.*sgd"), ({"decay": 0.5}, "decay.*multistep"),
        ({"schedule": "onecycle", "warmup": 1}, "warmup=0"), ({"milestones": (2, 5)}, "milestones.*multistep"),
        ({"milestones": (2,), "decay": 0.5}, "milestones.*decay"),
        ({"clip_by": "all"}, "clip_by needs clip="), ({"clip": 1, "clip_by": "shared"}, "'member' or 'all'"),
        ({"threshold": 0.2}, "loss='bce'"), ({"loss": "bce", "threshold": 2}, "from 0 to 1"), ({"loss": "nll"}, "'bce'"),
        *(({"schedule": "multistep", "milestones": wrong}, "milestones must")
          for wrong in ((5, 2), (2, 2), (0, 2), (2.5,), (True,), "25", 25, ("2",), None, (math.nan,))),
    ],
)  # fmt: skip
def test_bad_settings(fields: dict[str, Any], nouns: str) -> None:
    with pytest.raises(mt.InputError, match=nouns):
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


@pytest.mark.slow
def test_schedules_are_torchs() -> None:
    """Multistep by epochs, cosine by steps."""
    lr = torch.optim.lr_scheduler
    multi = Recipe(epochs=8, lr=0.3, schedule="multistep", milestones=(2, 5), decay=0.2)
    assert rates(7, multi) == pytest.approx(by_torch(7, multi, lambda o: lr.MultiStepLR(o, [14, 35], 0.2)))
    cosine = Recipe(epochs=4, lr=0.3, schedule="cosine")
    assert rates(7, cosine) == pytest.approx(by_torch(7, cosine, lambda o: lr.CosineAnnealingLR(o, 28)))
    cycles = replace(cosine, cycles=2)
    assert rates(7, cycles) == pytest.approx(by_torch(7, cycles, lambda o: lr.CosineAnnealingWarmRestarts(o, 14)))
    assert rates(3, Recipe(epochs=2, lr=0.3)) == [0.3] * 6


@pytest.mark.parametrize(("epochs", "steps"), [(1, 1), (2, 1), (1, 3), (4, 1), (10, 10), (3, 7), (75, 4)])
def test_one_cycle_is_torchs(epochs: int, steps: int) -> None:
    """At each step, from 1/25 of the rate over the rate to 1e-4 of that, with few steps too."""
    cycle, total = Recipe(epochs=epochs, lr=0.3, schedule="onecycle"), epochs * steps
    theirs = by_torch(steps, cycle, lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.3, total, cycle_momentum=False))
    assert rates(steps, cycle) == pytest.approx(theirs, rel=1e-9)
    if total > 9:
        assert rates(steps, cycle)[0] == pytest.approx(0.3 / 25)
    assert rates(steps, cycle)[-1] == pytest.approx(0.3 / 25 / 1e4)


@pytest.mark.parametrize("warm", [1, 4, 6, 11])
def test_warmup_is_torchs(warm: int) -> None:
    """LinearLR to the whole rate at the last of its steps, times MultiStepLR; CosineAnnealingLR begins after it."""
    lr = torch.optim.lr_scheduler

    def rise(optimizer: Any) -> Any:
        return lr.LinearLR(optimizer, 1 / warm, total_iters=warm - 1) if warm > 1 else lr.ConstantLR(optimizer, 1.0)

    flat = Recipe(epochs=6, lr=0.3, warmup=warm / 4)
    assert rates(4, flat) == pytest.approx(by_torch(4, flat, rise))
    multi = replace(flat, schedule="multistep", milestones=(2, 5), decay=0.2)
    both = by_torch(4, multi, lambda o: lr.ChainedScheduler([rise(o), lr.MultiStepLR(o, [8, 20], 0.2)]))
    assert rates(4, multi) == pytest.approx(both)
    cosine = replace(flat, schedule="cosine")
    falls = Recipe(epochs=24 - warm, lr=0.3)
    after = by_torch(1, falls, lambda o: lr.CosineAnnealingLR(o, 24 - warm))
    assert rates(4, cosine) == pytest.approx([*rates(4, flat)[:warm], *after])


def test_warmup_rises_in_even_steps() -> None:
    """By hand: a sixth more at each, and a milestone within the warm-up counts."""
    found = rates(4, Recipe(epochs=3, lr=1.0, warmup=1.5))
    assert found == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 1, 1, 1, 1, 1, 1])
    late = rates(4, Recipe(epochs=3, lr=1.0, schedule="multistep", milestones=(1, 2), warmup=1.5))
    assert late == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 0.5 / 6, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01])


def test_settings_are_json() -> None:
    """All fields, a list for milestones, the augmentation with its own settings or its name."""
    made = Recipe(schedule="multistep", milestones=[2, 5], augment=Augment(crop=2))
    assert made.milestones == (2, 5)
    told = json.loads(json.dumps(made.settings()))
    assert told.keys() == {field.name for field in fields(Recipe)}
    assert told["milestones"] == [2, 5]
    assert told["augment"] == {"kind": "Augment", **json.loads(json.dumps(Augment(crop=2).settings()))}
    assert Recipe(augment=by_torch).settings()["augment"] == "by_torch"


def test_a_papers_recipe_by_name() -> None:
    """As a value, of which another is made."""
    found = recipe("packed/cifar10-resnet18")
    assert isinstance(found, Recipe)
    assert replace(found, epochs=1) != found
    assert replace(found, epochs=1, milestones=(25, 50)).epochs == 1


def test_recipes_are_light() -> None:
    """A recipe of one's own takes neither the papers' nor what trains it."""
    heavy = ("multitudes.training.recipes", "lightning_fabric", "PIL", "scipy")
    code = f"import sys, multitudes.training.recipe as r; r.Recipe(); print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"class_weights": "balanced"}, "class_weights=(1 / torch.bincount(labels)).tolist()"),
        ({"class_weights": {1: 5, 0: 1}}, "in the order of the classes, as in class_weights=(1, 5)"),
        ({"class_weights": {"cat": 5}}, "class_weights=(1, 5)"),
        (
            {"optimizer": torch.optim.Adam},
            "optimizer='sgd'. Your own goes to fit: fit(..., optimizer=lambda parameters: torch.opt",
        ),
        ({"schedule": object()}, "fit(..., scheduler=lambda optimizer: "),
    ],
)
def test_what_other_libraries_take_is_refused_with_the_line_to_type(settings: dict[str, Any], line: str) -> None:
    """A dict of weights was read as the tuple of its keys."""
    with pytest.raises(mt.InputError, match=re.escape(line)):
        Recipe(**settings)
