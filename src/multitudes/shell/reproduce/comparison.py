"""Compares ours with theirs: the numbers of an item's rows beside what the paper prints, as a table for terminal and page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from multitudes.shell.reproduce.item import Column, Item, Number
from multitudes.shell.reproduce.results import Result

if TYPE_CHECKING:
    from rich.table import Table


WIDE = 5
"""Largest number of columns that a terminal has room for."""


@dataclass(frozen=True)
class Cell:
    """One number of ours and theirs."""

    ours: float | None
    deviation: float | None
    """Standard deviation, or standard error, over runs; None for one run."""
    theirs: Number | None
    runs: int = 0
    counted: bool = False
    """True if `ours` is the number of runs in which something holds."""

    def shown(self) -> str:
        """Our number with the digits of theirs; without theirs, with the digits that its deviation leaves."""
        if self.ours is None:
            return ""
        if self.counted:
            return f"{self.ours:.0f} of {self.runs}"
        if not self.deviation:
            return number_text(self.ours, self.theirs)
        if self.theirs is None and math.isfinite(self.deviation):
            digits = max(0, 1 - math.floor(math.log10(self.deviation)))
            return f"{self.ours:,.{digits}f} ± {self.deviation:.{digits}f}"
        return f"{number_text(self.ours, self.theirs)} ± {number_text(self.deviation, self.theirs)}"

    def difference(self) -> str:
        """Ours minus theirs."""
        if self.ours is None or self.theirs is None:
            return ""
        rounded = round(self.ours - self.theirs.value, self.theirs.digits) + 0.0  # −0.0 becomes 0.0
        return f"{rounded:+.{self.theirs.digits}f}"


def number_text(value: float, like: Number | None = None) -> str:
    """Returns a number with the digits of a printed one, or with four digits that count."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "∞"
    if like is not None:
        return f"{value:,.{like.digits}f}" if like.digits == 0 else f"{value:.{like.digits}f}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def cell(result: Result, column: Column, theirs: Number | None) -> Cell:
    """Summarises a row's runs in one column."""
    values = result.values(column)
    if not values:
        return Cell(None, None, theirs)
    if column.over == "count":
        return Cell(math.fsum(values), None, theirs, len(values), counted=True)
    mean = math.fsum(values) / len(values)
    square = math.fsum((value - mean) ** 2 for value in values)
    deviation = math.sqrt(square / (len(values) - 1)) if len(values) > 1 else None
    if column.over == "sd":
        return Cell(deviation, None, theirs, len(values))
    if column.over == "error" and deviation is not None:
        deviation /= math.sqrt(len(values))
    return Cell(mean, deviation, theirs, len(values))


def compared(item: Item, results: Sequence[Result]) -> dict[str, dict[str, Cell]]:
    """Returns the cells of an item by row and column: columns that no run has a number in are left out."""
    columns = item.shown_columns()
    if results and not columns:
        columns = {name: Column(name) for name in dict.fromkeys(name for one in results for name in one.runs[0].scores)}
    table = {}
    for one in results:
        theirs = item.beside(one.label, one.scale)
        table[one.label] = {name: cell(one, column, theirs.get(name)) for name, column in columns.items()}
    used = [name for name in columns if any(row[name].ours is not None for row in table.values())]
    return {label: {name: row[name] for name in used} for label, row in table.items()}


def lines(item: Item, results: Sequence[Result], difference: bool = True) -> list[list[str]]:
    """Returns the heading and the rows of the table of ours beside theirs."""
    table = compared(item, results)
    columns = list(next(iter(table.values()), {}))
    theirs = {name: any(row[name].theirs is not None for row in table.values()) for name in columns}
    heading = ["row"]
    for name in columns:
        heading += [name, *(["paper", "±"] if difference else ["paper"])] if theirs[name] else [name]
    made = [heading]
    for label, row in table.items():
        cells = [label]
        for name in columns:
            cells.append(row[name].shown())
            if theirs[name]:
                cells.append("" if row[name].theirs is None else str(row[name].theirs))
                cells += [row[name].difference()] if difference else []
        made.append(cells)
    return made


def rich_table(item: Item, results: Sequence[Result]) -> Table:
    """Formats ours beside theirs for a terminal: one line for each number that the paper prints, if it prints some."""
    from rich.table import Table

    scale = results[0].scale if results else ""
    table = compared(item, results)
    title = f"{item.name}, {scale}: {item.title}"
    printed = any(cell.theirs is not None for row in table.values() for cell in row.values())
    if not printed and len(next(iter(table.values()), {})) <= WIDE:
        heading, *rows = lines(item, results)
        wide = Table(*heading, title=title, title_justify="left")
        for cells in rows:
            wide.add_row(*cells)
        return wide
    long = Table("row", "column", "ours", "paper", "difference", title=title, title_justify="left")
    for label, row in table.items():
        shown = {name: one for name, one in row.items() if one.ours is not None}
        for index, (name, one) in enumerate(shown.items()):
            theirs = "" if one.theirs is None else str(one.theirs)
            long.add_row("" if index else label, name, one.shown(), theirs, one.difference())
    return long


def markdown(item: Item, results: Sequence[Result]) -> str:
    """Formats ours beside theirs for a page."""
    heading, *rows = lines(item, results, difference=False)
    marks = ["---"] + ["---:"] * (len(heading) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heading, marks, *rows))


def pairs(item: Item, results: Sequence[Result]) -> dict[str, list[tuple[float, float]]]:
    """Returns (theirs, ours) of each number that both have, by column."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in compared(item, results).values():
        for name, one in row.items():
            if one.ours is not None and one.theirs is not None and math.isfinite(one.ours):
                found.setdefault(name, []).append((one.theirs.value, one.ours))
    return found
