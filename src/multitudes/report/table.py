"""The tables: a line for each group, a column for each score and cost, to be sorted by any of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from multitudes.report.groups import COSTS, Group, Value, leaders, ratios
from multitudes.report.sources import CRITERION, ood_sets
from multitudes.report.wording import cost, number, ratio, safe, title
from multitudes.scores.meaning import ARROWS, CRITERIA, SPREADS, meaning

FIRST = (
    "accuracy", "exact_match", "miou", "rmse", "lpd", "nll", "gaussian_nll", "crps", "brier", "ece", "aurc", "coverage",
    "interval_width", "cAcc", "cNLL", "cECE", "mCE", "rAcc", "rNLL", "rECE", "stability",
)  # fmt: skip
"""What stands in the first table, in this order; the rest is in the second."""

LIMITED = {"gaussian_nll": "lpd"}
"""What is left out of the first table where there is the other, which says it better."""

SIGN = '<span class="sign" aria-hidden="true"></span>'
"""Which way a column is sorted."""


class Column(NamedTuple):
    """A column of numbers."""

    key: str
    title: str
    about: str
    better: str
    """higher, lower, or nothing."""

    cost: bool = False


def columns(groups: Sequence[Group]) -> tuple[list[Column], list[Column]]:
    """The columns of the first table, and those of the second: all scores but those of single corruptions."""
    keys = list(dict.fromkeys(key for group in groups for key in group.first.scores if not re.search(r"/\d+/", key)))
    sets = list(dict.fromkeys(name for group in groups for name in ood_sets(group.first)))
    detection = [key for key in keys if key.rpartition("/")[2] in (*CRITERIA, *SPREADS)]
    first = [key for key in FIRST if key in keys and LIMITED.get(key) not in keys]
    first += [key for key in keys if "/" in key and key.rpartition("/")[2] in FIRST and key not in detection]
    first += _detected(detection)
    made = {key: Column(key, title(key, sets), meaning(key).about, meaning(key).better) for key in keys}
    costs = [name for name in (*COSTS, *_others(groups)) if any(group.cost(name) is not None for group in groups)]
    spent = [Column(name, title(name), _about_cost(name), "lower", True) for name in costs]
    return [*(made[key] for key in first), *spent], [made[key] for key in keys if key not in first]


def _detected(keys: Sequence[str]) -> list[str]:
    """The AUROC of each foreign set, by the first criterion that there is."""
    found: dict[str, str] = {}
    for criterion in (*CRITERION, *CRITERIA, *SPREADS):
        for key in keys:
            *front, kind, last = key.split("/")
            if kind == "auroc" and last == criterion:
                found.setdefault("/".join(front), key)
    return list(found.values())


def _others(groups: Sequence[Group]) -> list[str]:
    """Costs of other names, the single network's apart."""
    names = dict.fromkeys(name for group in groups for row in group.rows for name in row.cost)
    return [name for name in names if name not in COSTS and name.removeprefix("single_") not in COSTS]


def _about_cost(name: str) -> str:
    return {
        "parameters": "numbers that are learned",
        "multiply_adds": "of one call",
        "memory": "the weights, and what a training step keeps for backward",
        "latency": "of one call without gradients",
        "seconds": "the time that training took",
    }.get(name, "")


def table(
    groups: Sequence[Group],
    shown: Sequence[Column],
    name: str,
    caption: str,
    sorted_by: str | None = None,
    colours: Mapping[str, int] | None = None,
) -> str:
    """A table that scrolls by itself where it is too wide, with headers that sort it.

    `sorted_by` says which column it is sorted by already; `colours` which groups have which colour in figures.
    """
    best = {column.key: set() if column.cost else {g.label for g in leaders(groups, column.key)} for column in shown}
    times = {column.key: ratios(groups, column.key) for column in shown if column.cost}
    heads = "".join(_head(column, column.key == sorted_by) for column in shown)
    lines = []
    for group in groups:
        cells = [
            _spent(group, column, times[column.key]) if column.cost else _cell(group, column, group.label in best[column.key])
            for column in shown
        ]
        lines.append(
            f'<tr><th scope="row" data-value="{safe(group.label)}">{_called(group, colours or {})}</th>{"".join(cells)}</tr>'
        )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{name}-caption"><table id="{name}">'
        f'<caption id="{name}-caption">{caption}</caption><thead><tr>'
        f'<th scope="col"><button type="button" data-first="ascending">Method{SIGN}</button></th>'
        f"{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _called(group: Group, colours: Mapping[str, int]) -> str:
    shade = f' style="--shade: var(--run-{colours[group.label]})"' if group.label in colours else ""
    dot = f'<span class="dot"{shade}></span>' if colours else ""
    seeds = f'<span class="range">{len(group.rows)} seeds</span>' if len(group.rows) > 1 else ""
    return f'<span class="name" title="{safe(group.first.method or group.label)}">{dot}{safe(group.label)}</span>{seeds}'


def _head(column: Column, is_sorted: bool) -> str:
    order = "descending" if column.better == "higher" else "ascending"
    arrow = f'<span class="better" title="{column.better} is better">{ARROWS[column.better]}</span>' if column.better else ""
    now = f' aria-sort="{order}"' if is_sorted else ""
    about = f' title="{safe(column.about)}"' if column.about else ""
    return (
        f'<th scope="col"{about}{now}><button type="button" data-first="{order}">{_titled(column)}'
        f"{'' if column.cost else arrow}{SIGN}</button></th>"
    )


def _titled(column: Column) -> str:
    """A title of two parts takes two lines: AUROC, and of what."""
    head, space, rest = column.title.partition(" ")
    return f'<span class="of">{safe(rest)}</span>{safe(head)}' if space and "/" in column.key else safe(column.title)


def _cell(group: Group, column: Column, best: bool) -> str:
    value = group.value(column.key)
    if value is None:
        return '<td class="none">–</td>'
    shown = f"<strong>{number(value.mean)}</strong>" if best else number(value.mean)
    span = f'<span class="range">{_range(value)}</span>' if _range(value) else ""
    return f'<td data-value="{_sortable(value.mean)}">{shown}{span}</td>'


def _range(value: Value) -> str:
    """How far a number can be trusted, in small."""
    if value.spread is not None:
        return f"± {number(value.spread, value.mean)}" if math.isfinite(value.spread) else ""
    return f"{number(value.low, value.mean)} – {number(value.high, value.mean)}" if value.low < value.high else ""


def _spent(group: Group, column: Column, times: Mapping[str, float]) -> str:
    value = group.cost(column.key)
    if value is None:
        return '<td class="none">–</td>'
    against = times.get(group.label)
    plain = cost(column.key, value)
    shown = plain if against is None else f'{ratio(against)}<span class="range">{plain}</span>'
    return f'<td data-value="{_sortable(value)}">{shown}</td>'


def _sortable(value: float) -> str:
    """A number as the page's script reads it; NaN is nothing, and stays last."""
    if math.isnan(value):
        return ""
    return repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def glossary(shown: Sequence[Column]) -> str:
    """What the columns are, in words."""
    lines = (
        f"<div><dt>{safe(column.title)}</dt><dd>{safe(column.about)}{_side(column)}</dd></div>"
        for column in shown
        if column.about
    )
    return f'<dl class="glossary">{"".join(lines)}</dl>'


def _side(column: Column) -> str:
    return f"; {column.better} is better" if column.better and not column.cost else ""


def legend(groups: Sequence[Group], shown: Sequence[Column]) -> str:
    """What is bold, and what the small numbers are."""
    parts = []
    ranges = any(len(group.rows) == 1 and group.first.scores.intervals for group in groups)
    seeds = any(len(group.rows) > 1 for group in groups)
    if len(groups) > 1:
        near = ", and what lies within the best’s interval" if ranges or seeds else ""
        parts.append(f"Bold is the best of a column{near}.")
    if seeds:
        parts.append("± is the standard deviation over seeds.")
    if ranges:
        parts.append("Ranges are bootstrap intervals over test examples.")
    if any(column.cost and ratios(groups, column.key) for column in shown):
        parts.append("× is against the single network.")
    return " ".join([*parts, "Headers sort."])
