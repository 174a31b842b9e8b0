"""Tables: scores as a person reads them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from multitudes.scores.meaning import CRITERIA, SPREADS, meaning

if TYPE_CHECKING:
    from multitudes.scores.scores import Scores

ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}


def tables(scores: Scores) -> list[Table]:
    """Those of the whole, then of detection with a row for each criterion, then of corruptions with one for each of them."""
    return [_whole(scores), *_detection(scores), *_corruptions(scores)]


def printed(found: list[Table], width: int = 118) -> str:
    """Tables as text."""
    console = Console(file=io.StringIO(), width=width)
    for table in found:
        console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.rstrip()


def _whole(scores: Scores) -> Table:
    bounds = bool(scores.intervals)
    table = Table("score", "value", *(["interval"] if bounds else []), "what it is", title=_title(scores))
    for column in table.columns[1 : 3 if bounds else 2]:
        column.justify = "right"
    for name in scores:
        if not _placed(name):
            table.add_row(
                *_named(name), _shown(scores[name]), *([_interval(scores, name)] if bounds else []), meaning(name).about
            )
    return table


def _title(scores: Scores) -> str:
    return f"{scores.examples:,} examples of {scores.task}" if scores.examples else scores.task


def _placed(name: str) -> bool:
    """Whether a score stands in a table of detection or of corruptions."""
    last = name.rpartition("/")
    return last[2] in (*CRITERIA, *SPREADS) or name.count("/") == 2


def _named(name: str) -> list[str]:
    return [f"{name}{ARROWS[meaning(name).better]}"]


def _detection(scores: Scores) -> list[Table]:
    """A table for each set out of distribution."""
    sets: dict[str, dict[str, dict[str, str]]] = {}
    for key in scores:
        *front, kind, criterion = key.split("/") if "/" in key else ["", "", ""]
        if criterion in (*CRITERIA, *SPREADS):
            cell = _shown(scores[key]) + (f"\n{_interval(scores, key)}" if key in scores.intervals else "")
            sets.setdefault("/".join(front), {}).setdefault(criterion, {})[kind] = cell
    found = []
    for name, rows in sets.items():
        kinds = list(next(iter(rows.values())))
        heads = [f"{kind}{ARROWS[meaning(kind).better]}" for kind in kinds]
        table = Table("criterion", *heads, title=f"out of distribution{f': {name}' if name else ''}")
        for column in table.columns[1:]:
            column.justify = "right"
        for criterion, cells in rows.items():
            table.add_row(criterion, *(cells[kind] for kind in kinds))
        found.append(table)
    return found


def _corruptions(scores: Scores) -> list[Table]:
    """A table of accuracies, with a row for each corruption and a column for each severity."""
    rows: dict[str, dict[int, float]] = {}
    for key in scores:
        name, _, rest = key.partition("/")
        severity, _, kind = rest.partition("/")
        if kind == "accuracy" and severity.isdigit():
            rows.setdefault(name, {})[int(severity)] = scores[key]
    if not rows:
        return []
    severities = sorted({severity for row in rows.values() for severity in row})
    table = Table("corruption", *map(str, severities), title="accuracy by severity")
    for name, row in rows.items():
        table.add_row(name, *(_shown(row[s]) if s in row else "" for s in severities))
    return [table]


def _shown(value: float) -> str:
    return f"{value:.4f}"


def _interval(scores: Scores, name: str) -> str:
    if name not in scores.intervals:
        return ""
    low, high = scores.intervals[name]
    return f"{_shown(low)} – {_shown(high)}"
