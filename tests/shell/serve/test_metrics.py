"""Metrics: rates are those of the last rows, and the alarm is neither late nor easily given."""

from __future__ import annotations

import numpy as np
import pytest

from multitudes.shell.serve.description import Reference
from multitudes.shell.serve.metrics import WINDOW, Recent, Watch


def test_the_share_is_that_of_the_last_rows() -> None:
    flags = np.random.default_rng(0).random(777) < 0.3
    recent, place = Recent(100), 0
    for size in (1, 7, 92, 50, 300, 100, 227):
        recent.add(flags[place : place + size])
        place += size
        last = flags[max(0, place - 100) : place]
        assert (recent.rows, recent.share) == (len(last), pytest.approx(last.mean()))
    assert Recent().share == 0


def watch(score: str = "entropy") -> Watch:
    return Watch(Reference(score, {0.05: 0.05, 0.5: 0.5, 0.95: 0.95}))


@pytest.mark.parametrize("score", ["entropy", "confidence"])
def test_the_alarm(score: str) -> None:
    """Uniform scores are like the reference; then come others."""
    rng, seen = np.random.default_rng(0), watch(score)
    alarms = 0
    for _ in range(300):
        seen.add(rng.random(17))
        alarms += seen.alarm
    assert alarms == 0
    assert seen.recent.share == pytest.approx(0.05, abs=0.02)
    strange = rng.random(WINDOW // 5) * 0.1 + (0.0 if score == "confidence" else 0.9)
    seen.add(strange)
    assert seen.alarm
    assert seen.expected == 0.05


def test_few_rows_give_no_alarm() -> None:
    seen = watch()
    seen.add(np.ones(49))
    assert not seen.alarm
    seen.add(np.ones((1, 4, 4)))
    assert seen.alarm


@pytest.mark.parametrize("score", ["entropy", "confidence"])
def test_scores_that_are_nan_are_strange(score: str) -> None:
    """A network that answers NaN must not look healthy."""
    seen = watch(score)
    seen.add(np.full(60, np.nan))
    seen.add(np.full(60, 0.5))
    assert (seen.recent.share, seen.alarm) == (0.5, True)
