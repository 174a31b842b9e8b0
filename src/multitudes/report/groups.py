"""Groups: rows that differ only in their seed become one line, with mean and standard deviation."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, NamedTuple

from multitudes.errors import InputError
from multitudes.prediction.prediction import Prediction
from multitudes.report.row import Row
from multitudes.scores.meaning import ALL_CRITERIA, meaning
from multitudes.scores.scores import Scores

PRIMARY = ("miou", "nll", "accuracy", "rmse")
"""Scores that rank the groups, in order of preference: those that reward honest probabilities before the plain ones."""

BEST = "best"
"""The last part of a key that stands for the OOD criterion that is best for a group: `svhn/auroc/best`."""

COSTS = ("step", "latency", "parameters", "multiply_adds", "memory", "seconds")


class Value(NamedTuple):
    """A score of a group: mean and interval."""

    mean: float
    low: float
    high: float
    """Ends of the interval: mean ± standard deviation over seeds; for one seed its bootstrap interval, if any, or the mean."""
    seeds: int

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for one seed."""
        return self.high - self.mean if self.seeds > 1 else None

    @property
    def error(self) -> float | None:
        """Standard error of the mean over seeds; None for one seed."""
        return None if self.spread is None else self.spread / math.sqrt(self.seeds)


@dataclass(frozen=True, eq=False)
class Group:
    """Rows that differ only in their seed."""

    label: str
    """Name of the group, unique within a report."""

    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        """The row with the lowest seed. It represents the group wherever one run is shown."""
        return self.rows[0]

    @property
    def is_single(self) -> bool:
        """Whether this is the single network, the baseline of the others."""
        return self.first.method.startswith("Single(")

    def value(self, key: str, variant: str | None = None) -> Value | None:
        """Returns a score's mean and deviation over seeds (one seed: value and interval); None unless all rows have it.

        `variant` takes the score from the rows' variant of this name. A key that ends in `BEST` is the score by the criterion
        that serves this group best.
        """
        if key.endswith(f"/{BEST}"):
            own_key = self.best_criterion(key)
            return None if own_key is None else self.value(own_key, variant)
        every = [row.scores if variant is None else row.variants.get(variant) for row in self.rows]
        own = [scores for scores in every if scores is not None and key in scores]
        if len(own) < len(every):
            return None
        values = [scores[key] for scores in own]
        if len(values) == 1:
            return Value(values[0], *own[0].intervals.get(key, (values[0], values[0])), 1)
        middle, spread = mean(values), deviation(values)
        return Value(middle, middle - spread, middle + spread, len(values))

    def best_criterion(self, key: str) -> str | None:
        """Returns the key of the best OOD criterion for a key such as `svhn/auroc/best`; None if the rows have none."""
        front = key.removesuffix(BEST)
        keys = [one for one in self.first.scores if one.startswith(front) and one.removeprefix(front) in ALL_CRITERIA]
        known = {one: value.mean for one in keys if (value := self.value(one)) is not None and not math.isnan(value.mean)}
        return max(known, key=lambda one: known[one]) if known else None

    def cost(self, key: str) -> float | None:
        """Returns the mean of a cost over seeds. `seconds` is the training time."""
        costs = [row.seconds if key == "seconds" else row.cost.get(key) for row in self.rows]
        known = [value for value in costs if value is not None and math.isfinite(value)]
        return mean(known) if known else None

    def shifted(self, key: str) -> dict[int, float]:
        """Returns the mean of a score over corruptions and seeds, by severity (0: clean)."""
        by_seed: dict[int, list[float]] = {}
        for row in self.rows:
            for severity, values in _of_corruptions(row.scores, key).items():
                by_seed.setdefault(severity, []).append(mean(values))
        clean = self.value(key)
        means = {severity: mean(values) for severity, values in by_seed.items()}
        if means and clean is not None:
            means.setdefault(0, clean.mean)
        return {severity: means[severity] for severity in sorted(means) if math.isfinite(means[severity])}


def grouped(rows: Sequence[Row | Scores]) -> list[Group]:
    """Groups rows that differ only in their seed, in the order of their first rows. Plain scores are named run 1, run 2, ..."""
    if isinstance(rows, (str, PathLike)):
        raise InputError("the rows come first, then the path: report(rows, path)")
    if isinstance(rows, (Row, Scores)) or not isinstance(rows, Sequence):
        line = "[scores]" if isinstance(rows, Scores) else "[mt.score(pred)]" if isinstance(rows, Prediction) else "[run]"
        raise InputError(f"rows must be a list of Row or Scores, not a {type(rows).__name__}: for one run pass {line}")
    if not rows:
        raise InputError("rows is empty: give at least one Row or Scores")
    by_kind: dict[tuple[Any, ...], list[Row]] = {}
    seen: dict[tuple[Any, ...], int] = {}
    for index, one in enumerate(rows):
        if not isinstance(one, (Row, Scores)):
            line = ": pass [mt.score(pred)]" if isinstance(one, Prediction) else ""
            raise InputError(f"rows[{index}] must be a Row or Scores, not a {type(one).__name__}{line}")
        row = one if isinstance(one, Row) else Row(name=f"run {index + 1}", method="", scores=one)
        kind = (row.name, row.method, row.scores.task, json.dumps(_without_seed(row.settings), sort_keys=True))
        key = (*kind, row.seed)
        again = seen[key] = seen.get(key, -1) + 1  # a repeated seed starts another group
        by_kind.setdefault((*kind, again), []).append(row)
    labels: dict[str, int] = {}
    groups = []
    for alike in by_kind.values():
        name = " ".join(alike[0].name.split())
        labels[name] = labels.get(name, 0) + 1
        label = name if labels[name] == 1 else f"{name} ({labels[name]})"
        groups.append(Group(label, tuple(sorted(alike, key=lambda row: row.seed))))
    return groups


def by_job(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Returns the groups of each job by its name: those of one task, data and job, whose scores can be compared.

    A setting that some rows lack divides nothing. Labels are unique within a job.
    """
    known = [name for name in ("data", "job") if all(isinstance(group.first.settings.get(name), str) for group in groups)]
    jobs: dict[tuple[str, ...], list[Row]] = {}
    for group in groups:
        key = (*(group.first.settings[name] for name in known), group.first.scores.task)
        jobs.setdefault(key, []).extend(group.rows)
    if len(jobs) == 1:
        return {next(iter(jobs))[0]: list(groups)}
    short = len({key[0] for key in jobs}) == len(jobs)
    return {key[0] if short else f"{key[0]} ({', '.join(key[1:])})": grouped(rows) for key, rows in jobs.items()}


def primary(groups: Sequence[Group]) -> str | None:
    """Returns the key of the score that ranks the groups: the one that most groups have."""
    counts = {key: sum(group.value(key) is not None for group in groups) for key in PRIMARY}
    best = max(PRIMARY, key=lambda key: counts[key])
    return best if counts[best] else None


def ranked(groups: Sequence[Group], key: str | None, variant: str | None = None) -> list[Group]:
    """Sorts groups by a score, or by that of a variant, best first; groups without it come last."""
    if key is None:
        return list(groups)
    sign = -1 if meaning(key).better == "higher" else 1

    def place(group: Group) -> tuple[bool, float]:
        value = group.value(key, variant)
        known = value is not None and not math.isnan(value.mean)
        return not known, sign * value.mean if known and value else 0.0

    return sorted(groups, key=place)


def leaders(groups: Sequence[Group], key: str, variant: str | None = None) -> list[Group]:
    """Returns the best group and those whose mean lies within its interval; none if the score has no better direction."""
    known = [group for group in ranked(groups, key, variant) if not math.isnan(_mean(group, key, variant))]
    if not meaning(key).better or len(known) < 2:
        return []
    low, high = _interval(known[0], key, variant)
    return [group for group in known if low <= _mean(group, key, variant) <= high]


def ratios(groups: Sequence[Group], key: str) -> Mapping[str, float]:
    """Returns the cost of each group relative to the single network, by label.

    Where one group is of `Single`, its cost is the baseline of all groups of the same network, and its own ratio is 1.
    Otherwise the baseline is the single network's cost in the group's rows, which each run measured itself.
    """
    singles = [group for group in groups if group.is_single]
    common = singles[0] if len(singles) == 1 else None
    by_label = {}
    for group in groups:
        value, single = group.cost(key), group.cost(f"single_{key}")
        if common is not None and key != "seconds" and _same_network(group, common):
            single = common.cost(key) or single
        if value is not None and single:
            by_label[group.label] = value / single
    return by_label


def _same_network(group: Group, single: Group) -> bool:
    """Whether a group's network is that of the single group, as far as the number of parameters tells."""
    return group.is_single or group.cost("single_parameters") in (None, single.cost("parameters"))


def mean(values: Sequence[float]) -> float:
    """Returns the arithmetic mean; infinities and NaN are allowed."""
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else sum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """Returns the sample standard deviation; NaN if a value is not finite."""
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def _interval(group: Group, key: str, variant: str | None) -> tuple[float, float]:
    """Returns the interval, widened to include the mean, because a bootstrap interval may not."""
    value = group.value(key, variant)
    assert value is not None
    low, high = (value.mean if math.isnan(end) else end for end in (value.low, value.high))
    return min(low, value.mean), max(high, value.mean)


def _mean(group: Group, key: str, variant: str | None) -> float:
    value = group.value(key, variant)
    return math.nan if value is None else value.mean


def _of_corruptions(scores: Scores, key: str) -> dict[int, list[float]]:
    """Returns a score of each corruption by severity, from the keys of `mt.score(shift=...)`: `fog/3/accuracy`."""
    by_severity: dict[int, list[float]] = {}
    for name, value in scores.items():
        parts = name.split("/")
        if len(parts) == 3 and parts[2] == key and parts[1].isdigit():
            by_severity.setdefault(int(parts[1]), []).append(value)
    return by_severity


def corruptions(group: Group, key: str) -> dict[int, list[float]]:
    """Returns a score of each corruption by severity, for the first seed."""
    return _of_corruptions(group.first.scores, key)


def _seedless(settings: Any) -> Any:
    """Removes the keys of seeds from nested settings."""
    if isinstance(settings, Mapping):
        return {name: _seedless(value) for name, value in settings.items() if name != "seed"}
    return [_seedless(value) for value in settings] if isinstance(settings, (list, tuple)) else settings


def _without_seed(settings: Mapping[str, Any]) -> Any:
    """Returns the settings that rows of a group share. With a time budget the number of epochs is measured and may differ."""
    shared = _seedless(settings)
    if "budget" in shared and isinstance(shared.get("recipe"), Mapping):
        shared["recipe"] = {name: value for name, value in shared["recipe"].items() if name not in ("epochs", "milestones")}
    return shared
