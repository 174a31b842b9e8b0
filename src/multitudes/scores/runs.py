"""Scores over runs: mean, standard deviation and standard error over seeds or splits."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from multitudes.errors import InputError


class Spread(NamedTuple):
    """A score over several runs."""

    mean: float
    deviation: float
    """Sample standard deviation, with n − 1 in its denominator: how much runs differ. NaN for one run."""
    error: float
    """Standard error, deviation / √n: how uncertain the mean is. NaN for one run."""
    runs: int

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.error:.4f}"


def spread(values: Sequence[float]) -> Spread:
    """Returns mean, standard deviation and standard error of a score's values in several runs.

    >>> print(spread([0.9, 0.8, 0.7]))
    0.8000 ± 0.0577
    """
    if not values:
        raise InputError("values is empty: give the score of at least one run")
    finite = all(map(math.isfinite, values))
    mean = math.fsum(values) / len(values) if finite else sum(values) / len(values)
    deviation = statistics.stdev(values) if finite and len(values) > 1 else math.nan
    return Spread(mean, deviation, deviation / math.sqrt(len(values)), len(values))


def over_runs(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Returns the `spread` of every score that all runs have, by name. Runs are the `Scores` of seeds or splits.

    >>> over_runs([{"rmse": 1.0}, {"rmse": 3.0}])["rmse"].error
    1.0
    """
    if isinstance(runs, Mapping) or not runs:
        raise InputError("runs must be a list of Scores, one for each seed or split: over_runs([scores_0, scores_1])")
    return {name: spread([run[name] for run in runs]) for name in runs[0] if all(name in run for run in runs)}
