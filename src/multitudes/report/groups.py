"""Groups: rows that differ by their seed alone are one line, with a mean and a spread."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from multitudes.errors import InputError
from multitudes.report.row import Row
from multitudes.scores.meaning import meaning
from multitudes.scores.scores import Scores

PRIMARY = ("miou", "accuracy", "lpd", "rmse")
"""What runs are ranked by: the first of these that they have."""

COSTS = ("parameters", "multiply_adds", "memory", "latency", "seconds")


class Value(NamedTuple):
    """A score of a group."""

    mean: float
    low: float
    high: float
    """Ends of the interval: a standard deviation over seeds, or the bootstrap's over examples; else the mean."""
    seeds: int

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds, where there are several."""
        return self.high - self.mean if self.seeds > 1 else None


@dataclass(frozen=True, eq=False)
class Group:
    """Rows that differ by their seed alone."""

    label: str
    """What the group is called; no two are called alike."""

    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        """The row of the first seed: what is shown of one run is shown of this."""
        return self.rows[0]

    @property
    def is_single(self) -> bool:
        """Whether it is one network, against which others are held."""
        return self.first.method.startswith("Single(")

    def value(self, key: str) -> Value | None:
        """A score over seeds, if all of them have it."""
        if not all(key in row.scores for row in self.rows):
            return None
        found = [row.scores[key] for row in self.rows]
        if len(found) == 1:
            return Value(found[0], *self.first.scores.intervals.get(key, (found[0], found[0])), 1)
        middle, spread = mean(found), deviation(found)
        return Value(middle, middle - spread, middle + spread, len(found))

    def cost(self, key: str) -> float | None:
        """A cost, the mean over seeds; `seconds` is the time of training."""
        found = [row.seconds if key == "seconds" else row.cost.get(key) for row in self.rows]
        known = [value for value in found if value is not None and math.isfinite(value)]
        return mean(known) if known else None

    def shifted(self, key: str) -> dict[int, float]:
        """A score of the corrupted test set by severity, 0 for the clean one; the mean over seeds and corruptions."""
        found: dict[int, list[float]] = {}
        for row in self.rows:
            own = {severity: [scores[key]] for severity, scores in row.shifted.items() if key in scores}
            for severity, values in (own or _of_corruptions(row.scores, key)).items():
                found.setdefault(severity, []).append(mean(values))
        clean = self.value(key)
        by_severity = {severity: mean(values) for severity, values in found.items()}
        if by_severity and clean is not None:
            by_severity.setdefault(0, clean.mean)
        return {severity: by_severity[severity] for severity in sorted(by_severity) if math.isfinite(by_severity[severity])}


def grouped(given: Sequence[Row | Scores]) -> list[Group]:
    """Groups in the order of their first row. Plain scores are called run 1, run 2, ..."""
    if isinstance(given, (Row, Scores)) or not isinstance(given, Sequence):
        raise InputError(f"report([rows, ...]) takes several rows, as a list: not {type(given).__name__}")
    if not given:
        raise InputError("there is nothing to report: give at least one row, or scores")
    found: dict[tuple[Any, ...], list[Row]] = {}
    seen: dict[tuple[Any, ...], int] = {}
    for index, one in enumerate(given):
        if not isinstance(one, (Row, Scores)):
            raise InputError(f"a report is of rows and scores, and number {index + 1} is {type(one).__name__}")
        row = one if isinstance(one, Row) else Row(name=f"run {index + 1}", method="", scores=one)
        kind = (row.name, row.method, row.scores.task, json.dumps(_alike(row.settings), sort_keys=True))
        key = (*kind, row.seed)
        again = seen[key] = seen.get(key, -1) + 1  # the same seed twice is not two seeds
        found.setdefault((*kind, again), []).append(row)
    labels: dict[str, int] = {}
    groups = []
    for rows in found.values():
        name = " ".join(rows[0].name.split())
        labels[name] = labels.get(name, 0) + 1
        label = name if labels[name] == 1 else f"{name} ({labels[name]})"
        groups.append(Group(label, tuple(sorted(rows, key=lambda row: row.seed))))
    return groups


def primary(groups: Sequence[Group]) -> str | None:
    """The score that they are ranked by: one that all have, or else as many as can be."""
    counts = {key: sum(group.value(key) is not None for group in groups) for key in PRIMARY}
    best = max(PRIMARY, key=lambda key: counts[key])
    return best if counts[best] else None


def ranked(groups: Sequence[Group], key: str | None) -> list[Group]:
    """The best first, those without a number last."""
    if key is None:
        return list(groups)
    sign = -1 if meaning(key).better == "higher" else 1

    def place(group: Group) -> tuple[bool, float]:
        value = group.value(key)
        known = value is not None and not math.isnan(value.mean)
        return not known, sign * value.mean if known and value else 0.0

    return sorted(groups, key=place)


def leaders(groups: Sequence[Group], key: str) -> list[Group]:
    """The best by its mean, and those whose mean lies inside of its interval; none where none is better."""
    known = [group for group in ranked(groups, key) if not math.isnan(_mean(group, key))]
    if not meaning(key).better or len(known) < 2:
        return []
    low, high = _interval(known[0], key)
    return [group for group in known if low <= _mean(group, key) <= high]


def ratios(groups: Sequence[Group], key: str) -> Mapping[str, float]:
    """A cost against the single network's, by label: as the row knows it, or as the report's row of `Single` has it."""
    singles = {value for group in groups if group.is_single if (value := group.cost(key)) is not None}
    common = singles.pop() if len(singles) == 1 else None
    found = {}
    for group in groups:
        value = group.cost(key)
        single = group.cost(f"single_{key}") or (common if key != "seconds" else None)
        if value is not None and single:
            found[group.label] = value / single
    return found


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean, also of what is not finite."""
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def _interval(group: Group, key: str) -> tuple[float, float]:
    """The interval, in which the mean lies too: that of a bootstrap need not hold it."""
    value = group.value(key)
    assert value is not None
    low, high = (value.mean if math.isnan(end) else end for end in (value.low, value.high))
    return min(low, value.mean), max(high, value.mean)


def _mean(group: Group, key: str) -> float:
    value = group.value(key)
    return math.nan if value is None else value.mean


def _of_corruptions(scores: Scores, key: str) -> dict[int, list[float]]:
    """A score under each corruption, by severity, as `mt.score(shift=...)` has it: `fog/3/accuracy`."""
    found: dict[int, list[float]] = {}
    for name, value in scores.items():
        parts = name.split("/")
        if len(parts) == 3 and parts[2] == key and parts[1].isdigit():
            found.setdefault(int(parts[1]), []).append(value)
    return found


def corruptions(group: Group, key: str) -> dict[int, list[float]]:
    """A score under each corruption by severity, of the first seed."""
    return _of_corruptions(group.first.scores, key)


def _seedless(settings: Any) -> Any:
    """Settings without seeds, at whatever depth."""
    if isinstance(settings, Mapping):
        return {name: _seedless(value) for name, value in settings.items() if name != "seed"}
    return [_seedless(value) for value in settings] if isinstance(settings, (list, tuple)) else settings


def _alike(settings: Mapping[str, Any]) -> Any:
    """What rows of a group have in common: how many epochs a budget came to is measured, and may differ by the seed."""
    found = _seedless(settings)
    if "budget" in found and isinstance(found.get("recipe"), Mapping):
        found["recipe"] = {name: value for name, value in found["recipe"].items() if name not in ("epochs", "milestones")}
    return found
