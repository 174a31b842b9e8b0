"""Figures of trained rows, drawn from their JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from multitudes import figures
from multitudes.shell.reproduce.catalog import find_item
from multitudes.shell.reproduce.comparison import pairs
from multitudes.shell.reproduce.item import Column
from multitudes.shell.reproduce.results import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 6
"""Largest number of runs in a figure of boxes."""


def mean(result: Result, column: Column) -> float | None:
    """Returns the mean of a row's runs in a column; None if it has none."""
    values = result.values(column)
    return sum(values) / len(values) if values else None


def by_severity(result: Result, score: str) -> dict[int, list[float]]:
    """Returns a score of a row on corrupted images: {severity: one value for each corruption}."""
    found: dict[int, list[float]] = {}
    for name, value in result.runs[0].scores.items():
        parts = name.split("/")
        if len(parts) == 3 and parts[1].isdigit() and parts[2] == score:
            found.setdefault(int(parts[1]), []).append(value)
    return dict(sorted(found.items()))


def severities(results: Sequence[Result]) -> dict[str, Figure]:
    """Boxes of accuracy and ECE over corruptions, by severity."""
    drawn = {}
    for score, name in (("accuracy", "accuracy"), ("ece", "ECE")):
        runs = {one.label: values for one in results[:MOST] if (values := by_severity(one, score))}
        if runs:
            drawn[name.lower()] = figures.corruption(runs, score=name)
    return drawn


def over_severity(results: Sequence[Result]) -> dict[str, Figure]:
    """Mean accuracy and ECE over corruptions as curves over the severity."""
    scores = {}
    for score, name in (("accuracy", "Accuracy"), ("ece", "ECE")):
        runs = {one.label: values for one in results if (values := by_severity(one, score))}
        scores[name] = {label: (list(own), [sum(v) / len(v) for v in own.values()]) for label, own in runs.items()}
    return {"severity": figures.sweep(scores, setting="Severity of the corruption")} if scores["ECE"] else {}


def over_setting(
    groups: Mapping[str, Sequence[tuple[float, Result]]],
    columns: Mapping[str, Column],
    setting: str,
    lines: Mapping[str, Result] | None = None,
    log: bool = False,
) -> dict[str, Figure]:
    """Columns over a setting: a curve for each group of (setting, row); `lines` are rows that have no such setting."""
    scores: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    levels: dict[str, dict[str, float]] = {}
    for heading, column in columns.items():
        for name, rows in groups.items():
            points = sorted((at, value) for at, row in rows if (value := mean(row, column)) is not None)
            if points:
                scores.setdefault(heading, {})[name] = ([x for x, _ in points], [y for _, y in points])
        for name, row in (lines or {}).items():
            if (value := mean(row, column)) is not None:
                levels.setdefault(heading, {})[name] = value
    return {"curves": figures.sweep(scores, setting=setting, lines=levels, log=log)} if scores else {}


def against(results: Sequence[Result]) -> dict[str, Figure]:
    """Ours against theirs, a panel for each column."""
    found = pairs(find_item(results[0].item), results)
    return {"against": figures.against(found)} if found else {}
