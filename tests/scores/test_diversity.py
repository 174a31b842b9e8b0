"""Diversity against explicit loops over pairs of members."""

from __future__ import annotations

import itertools
import math

import hypothesis.strategies as st
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from torch import Tensor

from multitudes.scores import diversity


def members(count: int, rows: int, classes: int, seed: int = 0) -> Tensor:
    """Logits ``[M, N, K]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, rows, classes, dtype=torch.float64, generator=generator) * 2


def by_pairs(probs: Tensor) -> list[float]:
    """The mean of scipy's KL over all ordered pairs, for each example."""
    pairs = list(itertools.permutations(range(len(probs)), 2))
    rows = range(probs.shape[1])
    return [sum(float(scipy.stats.entropy(probs[i, n], probs[j, n])) for i, j in pairs) / len(pairs) for n in rows]


@pytest.mark.parametrize(("count", "rows", "classes"), [(2, 5, 3), (4, 20, 10), (5, 1, 2), (3, 7, 1)])
def test_kl_is_the_mean_over_pairs(count: int, rows: int, classes: int) -> None:
    """The formula without a loop over pairs gives the mean over pairs."""
    logs = members(count, rows, classes).log_softmax(-1)
    assert diversity.kl(logs.exp(), logs).tolist() == pytest.approx(by_pairs(logs.exp()), abs=1e-9)


def test_kl_from_what_is_known_already() -> None:
    """`kl_of` gives `kl` from the members' mean entropy and the mixture."""
    logs = members(4, 6, 5).log_softmax(-1)
    probs = logs.exp()
    negentropy = (probs * logs).sum(-1).mean(0)
    torch.testing.assert_close(diversity.kl_of(negentropy, probs.mean(0), logs), diversity.kl(probs, logs))


def test_a_probability_of_zero() -> None:
    """A probability of 0 counts as the smallest positive number: the divergence is finite, and 0 where both are 0."""
    probs = torch.tensor([[[1.0, 0.0, 0.0]], [[0.5, 0.5, 0.0]]], dtype=torch.float64)
    least = math.log(torch.finfo(torch.float64).tiny)
    one = math.log(1 / 0.5)
    other = 0.5 * math.log(0.5) + 0.5 * (math.log(0.5) - least)
    assert float(diversity.kl(probs, probs.log())) == pytest.approx((one + other) / 2)
    kept = torch.tensor([-705.0, -740.0, 0.0], dtype=torch.float64)  # probabilities that are not 0, one of them not even normal
    assert torch.equal(diversity.finite(kept), kept)


@settings(max_examples=30)
@given(count=st.integers(1, 6), rows=st.integers(1, 5), classes=st.integers(1, 7), seed=st.integers(0, 2**31))
def test_copies_of_one_member(count: int, rows: int, classes: int, seed: int) -> None:
    """Copies have no divergence and no disagreement."""
    logs = members(1, rows, classes, seed).log_softmax(-1).repeat(count, 1, 1)
    found = diversity.kl(logs.exp(), logs)
    assert float(found.max()) < 1e-12
    assert not bool(diversity.matrix(logs.argmax(-1)).any())


def test_nearly_equal_members_have_no_negative_divergence() -> None:
    """Their divergence of about 1e-18 is lost in rounding, which may fall below 0."""
    logs = (members(1, 200, 7) + 1e-9 * members(4, 200, 7, seed=1)).log_softmax(-1)
    found = diversity.kl(logs.exp(), logs)
    assert 0 <= float(found.min()) <= float(found.max()) < 1e-12


@settings(max_examples=30)
@given(count=st.integers(2, 5), rows=st.integers(1, 5), classes=st.integers(2, 7), seed=st.integers(0, 2**31))
def test_orders_have_no_meaning(count: int, rows: int, classes: int, seed: int) -> None:
    """The order of classes and members does not matter, and no divergence is negative."""
    logs = members(count, rows, classes, seed).log_softmax(-1)
    generator = torch.Generator().manual_seed(seed)
    order, turn = torch.randperm(classes, generator=generator), torch.randperm(count, generator=generator)
    found = diversity.kl(logs.exp(), logs)
    assert bool((found >= 0).all())
    moved = logs[turn][:, :, order]
    torch.testing.assert_close(diversity.kl(moved.exp(), moved), found)


def test_the_matrix_of_disagreement() -> None:
    """Entry i, j is the disagreement of members i and j, counted pair by pair, also over pixels."""
    labels = torch.randint(3, (4, 6, 2, 2))
    found = diversity.matrix(labels)
    for i, j in itertools.product(range(4), repeat=2):
        apart = sum(a != b for a, b in zip(labels[i].flatten().tolist(), labels[j].flatten().tolist(), strict=True))
        assert float(found[i, j]) == pytest.approx(apart / 24)


def test_one_member_has_nobody_to_differ_from() -> None:
    """One member has diversity 0, not NaN."""
    logs = members(1, 3, 4).log_softmax(-1)
    assert diversity.kl(logs.exp(), logs).tolist() == [0.0] * 3
    assert diversity.matrix(logs.argmax(-1)).tolist() == [[0.0]]
