"""Generated tasks: as the formulas say, the same for a seed, different in each split."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from multitudes import data

TASKS = ["sinusoids", "noisy_function"]


def inputs(name: str, *args: Any, **kwargs: Any) -> Tensor:
    """The inputs of a task."""
    found = getattr(data, name)(*args, **kwargs).inputs
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_gives_the_same_and_splits_differ(name: str) -> None:
    torch.manual_seed(5)
    first = inputs(name, "train", examples=10)
    assert torch.equal(first, inputs(name, "train", examples=10))
    others = [inputs(name, s, examples=10, seed=n) for s, n in (("train", 1), ("train", 2), ("test", 0), ("validation", 0))]
    assert not any(torch.equal(first, other) for other in others)
    assert not torch.equal(others[0], others[2])


def test_seeds_of_two_splits_never_meet() -> None:
    sets = [inputs("sinusoids", split, examples=3, seed=n) for split in ("train", "validation", "test") for n in range(4)]
    assert len({tuple(one.flatten().tolist()) for one in sets}) == 12


def test_sinusoids_are_what_the_formula_says() -> None:
    found = data.sinusoids(examples=2000, noise=0.25, gap=1.5)
    x, y = inputs("sinusoids", examples=2000, noise=0.25, gap=1.5).T
    assert -5 <= float(x.min()) < -4.9 < 4.9 < float(x.max()) <= 5
    rest = y - x.sin() - 1.5 * (found.targets - 0.5)
    assert abs(float(rest.std()) - 0.25) < 0.01
    assert abs(float(rest.mean())) < 0.02
    assert torch.bincount(found.targets).tolist() == [1000, 1000]
    clean = inputs("sinusoids", noise=0.0, gap=0.0)
    torch.testing.assert_close(clean[:, 1], clean[:, 0].sin())


def test_the_noisy_function_is_what_the_formula_says() -> None:
    """Near x = 0.4, where the slope in ε is that of the curve, errors are as the first order says."""
    train, test = data.noisy_function("train"), data.noisy_function("test")
    assert (len(train), len(test), train.shape, tuple(train.targets.shape)) == (64, 3000, (1,), (64, 1))
    x, y = data.noisy_function("test", examples=100_000).batch(slice(None))
    assert 0 <= float(x.min()) < 0.001 < 0.499 < float(x.max()) <= 0.5
    centre = x + 0.3 * (2 * math.pi * x).sin() + 0.3 * (4 * math.pi * x).sin()
    slope = 1 + 0.6 * math.pi * (2 * math.pi * x).cos() + 1.2 * math.pi * (4 * math.pi * x).cos()
    eps = ((y - centre) / slope)[slope.abs() > 2]
    assert abs(float(eps.std()) - 0.02) < 0.001
