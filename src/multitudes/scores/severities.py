"""Scores by severity: each corrupted set is scored alone, then averaged over corruptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from multitudes.errors import InputError
from multitudes.prediction.prediction import Prediction
from multitudes.scores.score import score


def mean_over_corruptions(
    sets: Mapping[tuple[str, int], Any] | Iterable[tuple[tuple[str, int], Any]], **options: Any
) -> dict[int, dict[str, float]]:
    """Returns the scores of corrupted sets by severity, each averaged over corruptions. `options` are those of `score`.

    sets   predictions with targets, or (prediction, targets), by corruption and severity: {("fog", 3): pred}. An iterable of
           such items, ((name, severity), pred), needs only one prediction in memory at a time

    Each set is scored alone: in a pool, overconfidence under one corruption would hide underconfidence under another.

    >>> import torch
    >>> sure, unsure = (Prediction(probs=torch.tensor([[[p, 1 - p]] * 2]), targets=torch.tensor([0, 1])) for p in (0.9, 0.6))
    >>> print(f"{mean_over_corruptions({('fog', 1): sure, ('snow', 1): unsure})[1]['ece']:.2f}")
    0.25
    """
    each: dict[int, dict[str, dict[str, float]]] = {}
    for (name, severity), given in sets.items() if isinstance(sets, Mapping) else sets:
        if name in each.setdefault(severity, {}):
            raise InputError(f"sets has {name!r} at severity {severity} twice: give each set once")
        parts = (given,) if isinstance(given, Prediction) else given
        each[severity][name] = dict(score(*parts, **options))
    _check_complete({severity: set(named) for severity, named in each.items()})
    return {severity: _means(list(each[severity].values())) for severity in sorted(each)}


def _check_complete(names: Mapping[int, set[str]]) -> None:
    """Refuses severities with different corruptions: their means could not be compared."""
    whole = set().union(*names.values())
    if missing := [f"{name} at {severity}" for severity in sorted(names) for name in sorted(whole - names[severity])]:
        raise InputError(
            f"every severity needs the same corruptions, but sets lacks {', '.join(missing)}: add these, or remove the others"
        )


def _means(scores: list[dict[str, float]]) -> dict[str, float]:
    """Returns the mean of every score that all sets have."""
    return {key: sum(one[key] for one in scores) / len(scores) for key in scores[0] if all(key in one for one in scores)}
