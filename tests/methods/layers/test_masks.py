"""Masks: equal numbers of ones, no column unused, every such matrix as likely as every other, in milliseconds."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import multitudes as mt
from multitudes.methods.layers.masks import columns_per_one, effective_scale, masks_of, ones_for, overlap


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_masks(matrix: Tensor, members: int, features: int) -> None:
    """Ones and zeros, as many ones in each row, none of the columns empty."""
    assert matrix.shape == (members, features)
    assert set(matrix.unique().tolist()) <= {0.0, 1.0}
    assert len(set(matrix.sum(1).tolist())) == 1
    assert bool((matrix.sum(0) > 0).all())


@pytest.mark.slow
@settings(max_examples=150)
@given(features=st.integers(2, 4096), members=st.integers(2, 16), scale=st.floats(1, 12), seed=st.integers(0, 2**31))
def test_every_setting_has_masks(features: int, members: int, scale: float, seed: int) -> None:
    """Of any width, number and scale."""
    assert_masks(mt.masks(features, members, scale, rng(seed)), members, features)


@pytest.mark.parametrize(("members", "scale"), [(4, 2.0), (16, 6.0), (16, 10.0), (2, 1.1), (8, 1.1), (16, 1e6)])
@pytest.mark.parametrize("features", [3, 7, 16, 64, 1024, 4095, 4096])
def test_they_take_milliseconds(features: int, members: int, scale: float) -> None:
    """Less than 50, the best of three, where searches need seconds or never end."""
    seconds = []
    for seed in range(3):
        start = time.process_time()
        mt.masks(features, members, scale, rng(seed))
        seconds.append(time.process_time() - start)
    assert min(seconds) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("members", "features", "ones"), [(3, 4, 2), (2, 5, 3), (4, 4, 2), (3, 6, 2), (2, 4, 2), (3, 3, 1)])
def test_every_matrix_is_as_likely(members: int, features: int, ones: int) -> None:
    """Against all of them, enumerated: the chi-square statistic lies within five deviations of its mean."""
    rows = list(itertools.combinations(range(features), ones))
    valid = [m for m in itertools.product(rows, repeat=members) if len(set().union(*m)) == features]
    draws, generator, found = 12 * len(valid), rng(1), Counter()
    for _ in range(draws):
        matrix = masks_of(features, members, ones, generator)
        found[tuple(tuple(row.nonzero().flatten().tolist()) for row in matrix)] += 1
    assert set(found) <= set(valid)
    freedom = len(valid) - 1
    statistic = sum((found[m] - 12) ** 2 / 12 for m in valid)
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("scale", [1.5, 2.0, 3.0, 4.0])
def test_the_overlap_is_that_of_the_paper(scale: float) -> None:
    """A mean IoU of 1 / (2 S − 1), on wide layers."""
    found = [overlap(mt.masks(512, 4, scale, rng(seed))) for seed in range(20)]
    assert sum(found) / 20 == pytest.approx(1 / (2 * scale - 1), abs=0.01)


def test_the_ends_of_the_scale() -> None:
    """At 1 all are ones; without bound, disjoint where the number of masks divides the width."""
    assert bool(mt.masks(37, 5, 1.0).all())
    apart = mt.masks(40, 5, 1e9, rng())
    assert apart.sum(1).tolist() == [8.0] * 5
    assert bool((apart.sum(0) == 1).all())
    assert overlap(apart) == 0
    assert overlap(mt.masks(37, 1, 3.0)) == 1


def test_how_many_ones() -> None:
    """Of the paper's settings, and as many more as leave no column unused."""
    assert ones_for(32, 4, 2.0) == 17
    assert [ones_for(3, 4, 1.0), ones_for(7, 2, 10.0)] == [3, 4]
    assert columns_per_one(4, 2.0) == 2 * (1 - 0.5**4)
    assert effective_scale(512, 4, ones_for(512, 4, 2.0)) == pytest.approx(2, abs=0.01)
    assert effective_scale(40, 5, 8) == math.inf
    assert effective_scale(40, 5, 40) == pytest.approx(1)


def test_the_seed_says_everything() -> None:
    """And global randomness is left alone when a generator is given."""
    state = torch.get_rng_state()
    assert torch.equal(mt.masks(64, 4, 2.0, rng(3)), mt.masks(64, 4, 2.0, rng(3)))
    assert not torch.equal(mt.masks(64, 4, 2.0, rng(3)), mt.masks(64, 4, 2.0, rng(4)))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, 4, 2.0), "features=0"),
        ((2.5, 4, 2.0), "features=2.5"),
        ((10, 0, 2.0), "members=0"),
        ((10, True, 2.0), "members=True"),
        ((10, 4, 0.5), "scale=0.5"),
        ((10, 4, float("nan")), "scale=nan"),
        ((10, 4, float("inf")), "scale=inf"),
    ],
)
def test_bad_input(arguments: tuple[Any, ...], says: str) -> None:
    """Named, with what to give."""
    with pytest.raises(mt.InputError, match=says):
        mt.masks(*arguments)


def test_what_cannot_be_filled() -> None:
    """More columns than ones, or fewer than one mask has."""
    with pytest.raises(mt.InputError, match=r"features=9.*4 masks of 2 ones"):
        masks_of(9, 4, 2)
    with pytest.raises(mt.InputError, match="from 5 to 20"):
        masks_of(4, 4, 5)
