"""Uncertainty: statistics of each example against scipy and explicit loops over members."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from torch import Tensor

import multitudes as mt
from multitudes.prediction import uncertainty


def members(count: int, rows: int, classes: int, seed: int = 0) -> Tensor:
    """Logits ``[M, N, K]``."""
    return torch.randn(count, rows, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3


def said(logits: Tensor) -> dict[str, Tensor]:
    """Statistics of members with these logits."""
    logs = logits.log_softmax(-1)
    return uncertainty.of_probs(logs.exp(), uncertainty.mixture(logs.exp()), logs.argmax(-1))


@pytest.mark.parametrize(("count", "rows", "classes"), [(4, 30, 10), (2, 5, 2), (7, 6, 3), (1, 4, 5), (3, 4, 1)])
def test_entropies_are_scipys(count: int, rows: int, classes: int) -> None:
    """Entropies are scipy's, and the mutual information is the members' mean KL divergence to the mixture."""
    probs = members(count, rows, classes).softmax(-1)
    found, mean = said(probs.log()), probs.mean(0).numpy()
    total, each = scipy.stats.entropy(mean, axis=-1), scipy.stats.entropy(probs.numpy(), axis=-1).mean(0)
    np.testing.assert_allclose(found["entropy"], total, atol=1e-12)
    np.testing.assert_allclose(found["expected_entropy"], each, atol=1e-12)
    from_mixture = np.mean([scipy.stats.entropy(p.numpy(), mean, axis=-1) for p in probs], 0)
    np.testing.assert_allclose(found["mutual_information"], from_mixture, atol=1e-12)
    np.testing.assert_array_equal(found["labels"], mean.argmax(-1))
    np.testing.assert_allclose(found["confidence"], mean.max(-1), atol=1e-15)


@pytest.mark.parametrize(("count", "classes"), [(2, 2), (5, 2), (4, 10), (9, 3), (3, 3), (1, 4)])
def test_votes_are_counted_member_by_member(count: int, classes: int) -> None:
    """Votes are counted right with more members than classes, and with fewer."""
    logits = members(count, 40, classes)
    found, votes = said(logits), logits.argmax(-1).T.tolist()
    majority = [1 - max(Counter(row).values()) / count for row in votes]
    pairs = [[a != b for a, b in itertools.combinations(row, 2)] for row in votes]
    assert found["variation_ratio"].tolist() == pytest.approx(majority, abs=1e-6)
    assert found["disagreement"].tolist() == pytest.approx([sum(p) / max(1, len(p)) for p in pairs], abs=1e-6)


def test_members_that_are_all_but_alike() -> None:
    """Rounding makes no mutual information negative."""
    logits = (members(1, 2000, 10) + 1e-5 * members(4, 2000, 10, seed=1)).float()
    assert bool((said(logits)["mutual_information"] >= 0).all())


def test_certainty_and_ignorance() -> None:
    """Probabilities of exactly 0 and 1 have no entropy and no NaN; members that contradict each other have log 2."""
    probs = torch.eye(3, dtype=torch.float64)[[0, 1]][:, None]
    found = uncertainty.of_probs(probs, probs.mean(0), torch.tensor([[0], [1]]))
    assert float(found["expected_entropy"]) == 0
    assert float(found["entropy"]) == float(found["mutual_information"]) == pytest.approx(math.log(2))
    assert float(found["disagreement"]) == 1
    uniform = said(torch.zeros(4, 1, 5, dtype=torch.float64))
    assert float(uniform["entropy"]) == pytest.approx(math.log(5))
    assert float(uniform["mutual_information"]) == 0


@settings(max_examples=50)
@given(
    count=st.integers(1, 6), rows=st.integers(1, 4), classes=st.integers(1, 8), scale=st.floats(0, 300),
    single=st.booleans(), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_bounds(count: int, rows: int, classes: int, scale: float, single: bool, seed: int) -> None:
    """0 ≤ mutual information ≤ entropy of the mean ≤ log K, from uniform members to certain ones."""
    logits = members(count, rows, classes, seed) * scale
    found = said(logits.float() if single else logits)
    slack = 1e-5 if single else 1e-12
    assert all(bool(value.isfinite().all()) for value in found.values())
    assert bool((found["mutual_information"] >= 0).all())
    assert bool((found["mutual_information"] <= found["entropy"] + slack).all())
    assert bool((found["entropy"] <= math.log(classes) + slack).all())
    for name in ("confidence", "variation_ratio", "disagreement"):
        assert bool(((found[name] >= 0) & (found[name] <= 1)).all()), name


@settings(max_examples=50)
@given(
    count=st.integers(1, 9), rows=st.integers(1, 4), classes=st.integers(1, 8), single=st.booleans(), seed=st.integers(0, 2**31)
)
def test_copies_of_one_member_know_nothing_of_each_other(count: int, rows: int, classes: int, single: bool, seed: int) -> None:
    """Their mixture is the member, and mutual information and disagreement are exactly 0, in any precision."""
    one = members(1, rows, classes, seed)
    logs = (one.float() if single else one).log_softmax(-1)
    copies = logs.repeat(count, 1, 1)
    assert torch.equal(uncertainty.mixture(copies.exp()), logs[0].exp())
    found = uncertainty.of_probs(copies.exp(), uncertainty.mixture(copies.exp()), copies.argmax(-1))
    for name in ("mutual_information", "disagreement", "variation_ratio"):
        assert not bool(found[name].any()), name


@settings(max_examples=30)
@given(count=st.integers(1, 5), rows=st.integers(1, 5), classes=st.integers(2, 8), seed=st.integers(0, 2**31))
def test_orders_have_no_meaning(count: int, rows: int, classes: int, seed: int) -> None:
    """Permuted classes, members and rows have the same statistics."""
    logits, generator = members(count, rows, classes, seed), torch.Generator().manual_seed(seed)
    turn, row, order = (torch.randperm(n, generator=generator) for n in (count, rows, classes))
    found, moved = said(logits), said(logits[turn][:, row][:, :, order])
    for name, value in found.items():
        expected = order.argsort()[value[row]] if name == "labels" else value[row]
        torch.testing.assert_close(moved[name], expected, atol=1e-12, rtol=1e-9)


def test_scores_before_the_softmax() -> None:
    """The largest of the mean logits; the energy is minus scipy's logsumexp, averaged over members."""
    logits = members(4, 10, 5)
    logs = logits.log_softmax(-1)
    found = uncertainty.of_logits(logits, logs, logs.argmax(-1))
    np.testing.assert_allclose(found["max_logit"], logits.numpy().mean(0).max(-1))
    np.testing.assert_allclose(found["energy"], -scipy.special.logsumexp(logits.numpy(), axis=-1).mean(0))


def test_a_class_that_is_ruled_out() -> None:
    """Classes masked by logits of −∞ do not change the statistics."""
    logits = members(3, 6, 5)
    masked = torch.cat([logits, torch.full((3, 6, 2), -math.inf, dtype=torch.float64)], -1)
    logs, plain = masked.log_softmax(-1), logits.log_softmax(-1)
    found = uncertainty.of_logits(masked, logs, logs.argmax(-1))
    for name, value in uncertainty.of_logits(logits, plain, plain.argmax(-1)).items():
        torch.testing.assert_close(found[name], value)
    for name, value in said(logits).items():
        torch.testing.assert_close(said(masked)[name], value)


def test_the_log_of_the_mixture() -> None:
    """The log of the mixture is scipy's, also where probabilities underflow."""
    logs = members(4, 6, 3).log_softmax(-1) * 300
    expected = scipy.special.logsumexp(logs.numpy(), axis=0) - math.log(4)
    np.testing.assert_allclose(uncertainty.pooled_log_probs(logs), expected)


def test_a_calibrated_mixture_is_what_is_shown() -> None:
    """Confidence and entropy are those of the calibrated mixture; the members' statistics do not change."""
    probs = members(3, 5, 4).softmax(-1)
    mean, labels = probs.mean(0), probs.argmax(-1)
    shown = (mean.log() / 2).softmax(-1)
    found, plain = uncertainty.of_probs(probs, mean, labels, shown), uncertainty.of_probs(probs, mean, labels)
    torch.testing.assert_close(found["confidence"], shown.amax(-1))
    np.testing.assert_allclose(found["entropy"], scipy.stats.entropy(shown.numpy(), axis=-1))
    for name in ("expected_entropy", "mutual_information", "variation_ratio", "disagreement"):
        assert torch.equal(found[name], plain[name])


def test_members_far_apart() -> None:
    """N(−5, 1) and N(5, 1) have a standard deviation of √26 = 5.10, 1 of it aleatoric variance and 25 epistemic."""
    pred = mt.Prediction(mean=torch.tensor([[-5.0], [5.0]]), variance=torch.ones(2, 1))
    assert float(pred.std) == pytest.approx(5.10, abs=0.001)
    assert float(pred.std) == pytest.approx(math.sqrt(26))
    found = uncertainty.moments(torch.tensor([[-5.0], [5.0]]), torch.ones(2, 1))
    assert {name: float(value) for name, value in found.items()} == {"mean": 0, "aleatoric": 1, "epistemic": 25}


def test_moments() -> None:
    """Aleatoric is the mean variance, epistemic the variance of the means, by numpy."""
    mean, variance = members(4, 6, 2), members(4, 6, 2, seed=1) ** 2
    found = uncertainty.moments(mean, variance)
    np.testing.assert_allclose(found["mean"], mean.numpy().mean(0))
    np.testing.assert_allclose(found["aleatoric"], variance.numpy().mean(0))
    np.testing.assert_allclose(found["epistemic"], mean.numpy().var(0))
    assert not bool(uncertainty.moments(mean, None)["aleatoric"].any())


def test_moments_far_from_zero() -> None:
    """Means of about 2020 in single precision: a difference of squares would lose all digits."""
    mean = torch.tensor([[2019.0], [2021.0]])
    assert float(uncertainty.moments(mean, None)["epistemic"]) == 1


def test_densities_are_scipys() -> None:
    """Density and distribution function of a Gaussian are scipy's."""
    x, mean, variance = members(1, 5, 3)[0], members(1, 5, 3, seed=1)[0], members(1, 5, 3, seed=2)[0] ** 2
    expected = scipy.stats.norm.logpdf(x, mean, variance.sqrt())
    np.testing.assert_allclose(uncertainty.log_normal(x, mean, variance), expected)
    np.testing.assert_allclose(uncertainty.normal_cdf(x), scipy.stats.norm.cdf(x), atol=1e-14)


def test_a_point_has_no_density_elsewhere() -> None:
    """A variance of 0: minus infinity, and not NaN."""
    assert float(uncertainty.log_normal(torch.tensor(1.0), torch.tensor(0.0), torch.tensor(0.0))) == -math.inf


@pytest.mark.parametrize("level", [0.001, 0.025, 0.3, 0.5, 0.9, 0.975, 0.9999])
def test_quantiles_of_a_mixture(level: float) -> None:
    """Quantiles are those of scipy's root finder, for members near and far apart, wide and narrow."""
    mean = torch.tensor([[-5.0, 0.0, 100.0, 1e-3], [5.0, 0.1, -100.0, 0.0], [0.0, 0.2, 3.0, -1e-3]], dtype=torch.float64)
    variance = torch.tensor([[1.0, 1.0, 1e-4, 1e-8], [1.0, 4.0, 25.0, 1e-6], [0.5, 0.1, 1e-2, 1e-7]], dtype=torch.float64)
    found = uncertainty.quantile(level, mean, variance)
    for n in range(4):
        centres, widths = mean[:, n].numpy(), variance[:, n].sqrt().numpy()

        def off(x: float, centres: np.ndarray = centres, widths: np.ndarray = widths) -> float:
            return float(scipy.stats.norm.cdf(x, centres, widths).mean()) - level

        low, high = float((centres - 10 * widths).min()), float((centres + 10 * widths).max())
        assert float(found[n]) == pytest.approx(scipy.optimize.brentq(off, low, high, xtol=1e-13), abs=1e-9)


def test_quantiles_of_one_member() -> None:
    """The quantile of one member is its Gaussian's; a point mass has its point."""
    found = uncertainty.quantile(0.9, torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0, 0.0]]))
    assert found.tolist() == pytest.approx([scipy.stats.norm.ppf(0.9, 1, 2), 2.0])
