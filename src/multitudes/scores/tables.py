"""Tables: scores as rich tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from multitudes.scores.meaning import ALL_CRITERIA, ARROWS, ERROR_NOTE, OOD_NOTE, meaning

if TYPE_CHECKING:
    from multitudes.scores.scores import Scores

WRONG = "wrong predictions"
"""Title of the table of detected errors."""

RELATIVE = ("CE", "rCE")
"""Errors of a corruption relative to a baseline."""


def tables(scores: Scores) -> list[Table]:
    """Returns tables of the whole dataset, of detected errors, of each OOD set, and of corruptions."""
    return [_main_table(scores), *_detection_tables(scores), *_corruption_tables(scores)]


def _main_table(scores: Scores) -> Table:
    bounds = bool(scores.intervals)
    table = Table("score", "value", *(["interval"] if bounds else []), "what it is", title=_title(scores))
    for column in table.columns[1 : 3 if bounds else 2]:
        column.justify = "right"
    for name in scores:
        if not _in_other_table(name):
            interval = [_interval(scores, name)] if bounds else []
            table.add_row(_with_arrow(name), _number(scores[name]), *interval, meaning(name).about)
    return table


def _title(scores: Scores) -> str:
    return f"{scores.examples:,} examples, task {scores.task}" if scores.examples else f"task {scores.task}"


def _in_other_table(name: str) -> bool:
    """Whether a score belongs to a table of detection or of corruptions."""
    return name.rpartition("/")[2] in (*ALL_CRITERIA, *RELATIVE) or name.count("/") == 2


def _with_arrow(name: str) -> str:
    return f"{name} {ARROWS[meaning(name).better]}".rstrip()


def _detection_tables(scores: Scores) -> list[Table]:
    """Returns a table of detected errors and one of each OOD set, with a row per criterion."""
    sets: dict[str, dict[str, dict[str, str]]] = {}
    for key in scores:
        *front, kind, criterion = key.split("/") if "/" in key else ["", "", ""]
        if criterion in ALL_CRITERIA:
            cell = _number(scores[key]) + (f"\n{_interval(scores, key)}" if key in scores.intervals else "")
            name = f"out of distribution: {'/'.join(front)}"
            title = WRONG if kind.startswith("error_") else name
            sets.setdefault(title, {}).setdefault(criterion, {})[kind] = cell
    tables_of_sets = []
    for title, rows in sets.items():
        kinds = list(next(iter(rows.values())))
        table = Table("criterion", *map(_with_arrow, kinds), title=title, caption=ERROR_NOTE if title == WRONG else OOD_NOTE)
        for column in table.columns[1:]:
            column.justify = "right"
        for criterion, cells in rows.items():
            table.add_row(criterion, *(cells[kind] for kind in kinds))
        tables_of_sets.append(table)
    return tables_of_sets


def _corruption_tables(scores: Scores) -> list[Table]:
    """Returns a table with a row per corruption: accuracy by severity, and CE and rCE if any; none without corruptions."""
    rows: dict[str, dict[str, float]] = {}
    for key in scores:
        name, _, rest = key.partition("/")
        severity, _, kind = rest.partition("/")
        if rest in RELATIVE or (kind == "accuracy" and severity.isdigit()):
            rows.setdefault(name, {})[severity] = scores[key]
    if not rows:
        return []
    severities = sorted({column for row in rows.values() for column in row} - {*RELATIVE}, key=int)
    columns = [*severities, *(column for column in RELATIVE if any(column in row for row in rows.values()))]
    table = Table("corruption", *columns, title="accuracy by severity")
    for name, row in rows.items():
        table.add_row(name, *(_number(row[column]) if column in row else "" for column in columns))
    return [table]


def _number(value: float) -> str:
    return f"{value:.4f}"


def _interval(scores: Scores, name: str) -> str:
    if name not in scores.intervals:
        return ""
    low, high = scores.intervals[name]
    return f"{_number(low)} – {_number(high)}"
