"""Selective prediction against all orders of equal confidences and all thresholds."""

from __future__ import annotations

import itertools
import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from multitudes.scores.selective import aurc, risk_coverage, threshold_for

ANSWERS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6)
"""Confidences in quarters, so that some are equal, and whether the predictions are right."""


def columns(answers: list[tuple[int, bool]]) -> tuple[Tensor, Tensor]:
    """Confidence and correctness as tensors."""
    return torch.tensor([c / 4 for c, _ in answers], dtype=torch.float64), torch.tensor([bool(t) for _, t in answers])


def by_permutations(answers: list[tuple[int, bool]]) -> list[float]:
    """The risk at each coverage, averaged over all orders in which confidence does not rise."""
    orders = [o for o in itertools.permutations(answers) if all(a[0] >= b[0] for a, b in itertools.pairwise(o))]
    return [sum(sum(not t for _, t in o[:n]) / n for o in orders) / len(orders) for n in range(1, len(answers) + 1)]


@settings(max_examples=40)
@given(answers=ANSWERS)
def test_equal_confidences_come_in_any_order(answers: list[tuple[int, bool]]) -> None:
    """Equal confidences count with the mean over all their orders."""
    coverage, risk = risk_coverage(*columns(answers))
    expected = by_permutations(answers)
    assert coverage.tolist() == pytest.approx([n / len(answers) for n in range(1, len(answers) + 1)])
    assert risk.tolist() == pytest.approx(expected)
    assert aurc(*columns(answers)) == pytest.approx(sum(expected) / len(expected))


def test_against_a_slow_loop() -> None:
    """Without ties, AURC is the mean risk of the sorted examples."""
    confidence, correct = torch.rand(300, dtype=torch.float64), torch.rand(300) < 0.7
    answers = sorted(zip(confidence.tolist(), correct.tolist(), strict=True), reverse=True)
    risks = [sum(not t for _, t in answers[:n]) / n for n in range(1, 301)]
    assert aurc(confidence, correct) == pytest.approx(sum(risks) / 300, abs=1e-9)


def test_the_ends() -> None:
    """AURC is 0 if all are right and 1 if all are wrong; it is lower if errors have low confidence."""
    confidence = torch.arange(10) / 10
    assert aurc(confidence, torch.ones(10)) == 0
    assert aurc(confidence, torch.zeros(10)) == 1
    assert aurc(torch.ones(10), torch.arange(10) % 2) == pytest.approx(0.5)
    known, unknown = aurc(confidence, torch.arange(10) >= 5), aurc(confidence, torch.arange(10) < 5)
    assert known == pytest.approx(sum((n - 5) / n for n in range(6, 11)) / 10)
    assert known < 0.5 < unknown


@settings(max_examples=40)
@given(answers=ANSWERS, wanted=st.integers(0, 60))
def test_thresholds_are_those_that_a_search_finds(answers: list[tuple[int, bool]], wanted: int) -> None:
    """Thresholds are those of a search over all confidences; 60 is divisible by all lengths, so limits are met exactly."""
    confidence, correct = columns(answers)
    tried = {t: [c for a, c in zip(confidence.tolist(), correct.tolist(), strict=True) if a >= t] for t in confidence.tolist()}
    allowed = [t for t, kept in tried.items() if 60 * sum(not c for c in kept) <= wanted * len(kept)]
    assert threshold_for(confidence, correct, wanted / 60, None) == min(allowed, default=math.inf)
    enough = [t for t, kept in tried.items() if 60 * len(kept) >= wanted * len(answers)]
    assert threshold_for(confidence, correct, None, wanted / 60) == max(enough)


def test_equal_confidences_are_answered_together() -> None:
    """Of three equal ones the first would keep the error low enough, but no threshold separates it from the others."""
    confidence, correct = torch.tensor([0.9, 0.5, 0.5, 0.5]), torch.tensor([1, 1, 0, 0])
    assert threshold_for(confidence, correct, 0.4, None) == pytest.approx(0.9)
    assert threshold_for(confidence, correct, 0.5, None) == pytest.approx(0.5)
    assert threshold_for(confidence, correct, None, 0.3) == pytest.approx(0.5)


def test_a_coverage_that_is_met_exactly_is_enough() -> None:
    """3 of 10 are 30 %, also if 30 % is 0.1 + 0.2, which is rounded to more than 0.3."""
    confidence = torch.arange(1, 11, dtype=torch.float64) / 10
    assert 0.1 + 0.2 > 0.3
    assert threshold_for(confidence, torch.ones(10), None, 0.1 + 0.2) == 0.8


def test_an_error_that_is_met_exactly_is_allowed() -> None:
    """An error that is met exactly is allowed, whatever the rounding."""
    for count in range(1, 30):
        for wrong in range(count + 1):
            found = threshold_for(torch.full((count,), 0.5), torch.arange(count) >= wrong, wrong / count, None)
            assert found == 0.5, (wrong, count)
