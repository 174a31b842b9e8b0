"""The tables: one line per group, one sortable column per score and cost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from multitudes.report.groups import BEST, COSTS, Group, Value, leaders, ratios
from multitudes.report.sources import CRITERION
from multitudes.report.wording import cost, number, ratio, safe, title, title_parts
from multitudes.scores.meaning import ALL_CRITERIA, ARROWS, meaning

FIRST = (
    "miou", "nll", "ece", "accuracy", "exact_match", "rmse", "gaussian_nll", "crps", "brier", "aurc", "coverage",
    "interval_width", "cAcc", "cNLL", "cECE", "mCE", "rAcc", "rNLL", "rECE", "stability",
)  # fmt: skip
"""Scores of the first table, in this order; the second table has the others."""

LEADING = 3
"""Number of scores before OOD detection and the costs in the first table, so that a screen shows these. The others follow."""

SETS = 2
"""Number of OOD sets before the costs."""

VARIED = ("nll", "ece", "cNLL", "cECE", "accuracy", "rmse")
"""Scores of the table of variants, in this order."""

LIMITED = {"gaussian_nll": "nll"}
"""Scores that the first table leaves out if it has a more telling one: {left out: more telling}."""

SIGN = '<span class="sign" aria-hidden="true"></span>'
"""Placeholder of the arrow that shows how a column is sorted; CSS fills it."""


class Column(NamedTuple):
    """A column of numbers."""

    key: str
    title: str
    about: str
    better: str
    """"higher", "lower" or ""."""

    cost: bool = False
    variant: str | None = None
    """The variant of the rows that the numbers are of; None for the rows' own scores."""

    of: str = ""
    """What the numbers are of, above the title: a variant."""


def columns(groups: Sequence[Group]) -> tuple[list[Column], list[Column]]:
    """Returns the columns of the first and of the second table. Scores of single corruptions are left out."""
    keys = list(dict.fromkeys(key for group in groups for key in group.first.scores if not re.search(r"/\d+/|/r?CE$", key)))
    detection = [key for key in keys if key.rpartition("/")[2] in ALL_CRITERIA]
    first = [key for key in FIRST if key in keys and LIMITED.get(key) not in keys]
    first += [key for key in keys if "/" in key and key.rpartition("/")[2] in FIRST and key not in detection]
    common = auroc_keys(detection)
    scores = {key: Column(key, title(key), meaning(key).about, meaning(key).better) for key in keys}
    costs = [name for name in (*COSTS, *_other_costs(groups)) if any(group.cost(name) is not None for group in groups)]
    spent = [Column(name, title(name), _about_cost(name), "lower", True) for name in costs]
    told, best = [scores[key] for key in common], [column for key in common for column in _best_column(key, groups)]
    leading, others = ([scores[key] for key in part] for part in (first[:LEADING], first[LEADING:]))
    clock = [column for column in spent if column.key == "seconds"]
    measured = [column for column in spent if column not in clock]
    return [*leading, *told[:SETS], *measured, *told[SETS:], *best, *clock, *others], [
        scores[key] for key in keys if key not in (*first, *common)
    ]


def halves(first: Sequence[Column]) -> tuple[list[Column], list[Column]]:
    """Divides the columns of the first table after costs and OOD detection: what a screen shows at once, and other scores."""
    told = [place for place, column in enumerate(first, 1) if column.cost or "/auroc/" in column.key]
    end = max(told, default=len(first))
    return list(first[:end]), list(first[end:])


def _best_column(key: str, groups: Sequence[Group]) -> list[Column]:
    """Returns the column of each method's best OOD criterion beside the common one; none if no method has several."""
    best = f"{key.rpartition('/')[0]}/{BEST}"
    if all(group.best_criterion(best) in (None, key) for group in groups):
        return []
    about = "AUROC by the OOD score that is best for the method, whose name is below; chosen on these very sets"
    return [Column(best, title(best), about, meaning(key).better)]


def variant_columns(groups: Sequence[Group]) -> list[Column]:
    """Returns the columns of the table of variants: each main score of the rows, then of every variant."""
    names = list(dict.fromkeys(name for group in groups for row in group.rows for name in row.variants))
    epochs = {str(group.first.settings.get("epoch", "")) for group in groups}
    own = f"{epochs.pop()} epoch" if len(epochs) == 1 and epochs != {""} else "as above"
    keys = [key for key in VARIED if any(key in one for group in groups for one in group.first.variants.values())]
    return [
        Column(key, title(key), meaning(key).about, meaning(key).better, variant=name, of=name or own)
        for key in keys
        for name in (None, *names)
        if names and any(group.value(key, name) is not None for group in groups)
    ]


def auroc_keys(keys: Sequence[str]) -> list[str]:
    """Returns the key of one AUROC per OOD set, by the preferred OOD score."""
    by_set: dict[str, str] = {}
    for criterion in (*CRITERION, *ALL_CRITERIA):
        for key in keys:
            *front, kind, last = key.split("/")
            if kind == "auroc" and last == criterion:
                by_set.setdefault("/".join(front), key)
    return list(by_set.values())


def _other_costs(groups: Sequence[Group]) -> list[str]:
    """Returns the names of costs beyond `COSTS`."""
    names = dict.fromkeys(name for group in groups for row in group.rows for name in row.cost)
    return [name for name in names if name not in COSTS and name.removeprefix("single_") not in COSTS]


def _about_cost(name: str) -> str:
    return {
        "parameters": "number of parameters",
        "multiply_adds": "multiply-adds of one forward pass",
        "memory": "weights, and activations kept for the backward pass of a training step",
        "latency": "measured time of one forward pass without gradients",
        "step": "measured time of one training step",
        "seconds": "training time",
    }.get(name, "")


def table(
    groups: Sequence[Group],
    shown: Sequence[Column],
    name: str,
    caption: str,
    sorted_by: str | None = None,
    colours: Mapping[str, int] | None = None,
) -> str:
    """Returns a table as HTML. Headers sort it, and it scrolls sideways if it is too wide.

    `sorted_by` is the column that `groups` are sorted by; `colours` maps labels to the colour indices of the figures.
    """
    best = {c: set() if c.cost else {g.label for g in leaders(groups, c.key, c.variant)} for c in shown}
    times = {column.key: ratios(groups, column.key) for column in shown if column.cost}
    heads = "".join(_head(column, column.key == sorted_by) for column in shown)
    lines = []
    for group in groups:
        cells = [
            _cost_cell(group, column, times[column.key]) if column.cost else _cell(group, column, group.label in best[column])
            for column in shown
        ]
        lines.append(
            f'<tr><th scope="row" data-value="{safe(group.label)}">{_row_name(group, colours or {})}</th>{"".join(cells)}</tr>'
        )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{name}-caption"><table id="{name}">'
        f'<caption id="{name}-caption">{caption}</caption><thead><tr>'
        f'<th scope="col"><button type="button" data-first="ascending">Method{SIGN}</button></th>'
        f"{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _row_name(group: Group, colours: Mapping[str, int]) -> str:
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
    """Puts a title of two parts on two lines: the OOD set above AUROC, the variant above the score."""
    head, rest = title_parts(column.key) if "/" in column.key else (column.title, column.of)
    return f'<span class="of">{safe(rest)}</span>{safe(head)}' if rest else safe(head)


def _cell(group: Group, column: Column, best: bool) -> str:
    value = group.value(column.key, column.variant)
    if value is None:
        return '<td class="none">–</td>'
    shown = f"<strong>{number(value.mean)}</strong>" if best else number(value.mean)
    error = "" if value.error is None else f' title="standard error {number(value.error, value.mean)}"'
    below = _criterion(group, column.key) or _range(value)
    span = f'<span class="range wraps"{error}>{below}</span>' if below else ""
    return f'<td data-value="{_sortable(value.mean)}">{shown}{span}</td>'


def _criterion(group: Group, key: str) -> str:
    """Returns the name of the OOD criterion that is best for a group; empty for other scores."""
    own = group.best_criterion(key) if key.endswith(f"/{BEST}") else None
    return "" if own is None else safe(title(own.rpartition("/")[2]).lower() if own.rpartition("/")[2] != "msp" else "MSP")


def _range(value: Value) -> str:
    """Returns the standard deviation over seeds, or the bootstrap interval."""
    if value.spread is not None:
        return f"± {number(value.spread, value.mean)}" if math.isfinite(value.spread) else ""
    return f"{number(value.low, value.mean)} – {number(value.high, value.mean)}" if value.low < value.high else ""


def _cost_cell(group: Group, column: Column, times: Mapping[str, float]) -> str:
    value = group.cost(column.key)
    if value is None:
        return '<td class="none">–</td>'
    relative = times.get(group.label)
    plain = cost(column.key, value)
    shown = plain if relative is None else f'{ratio(relative)}<span class="range">{plain}</span>'
    return f'<td data-value="{_sortable(value)}">{shown}</td>'


def _sortable(value: float) -> str:
    """Returns a number as the script of the page reads it. NaN is empty and sorts last."""
    if math.isnan(value):
        return ""
    return repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def glossary(shown: Sequence[Column]) -> str:
    """Returns the meaning of each column as HTML."""
    lines = (
        f"<div><dt>{safe(column.title)}</dt><dd>{safe(column.about)}{_side(column)}</dd></div>"
        for column in shown
        if column.about
    )
    return f'<dl class="glossary">{"".join(lines)}</dl>'


def _side(column: Column) -> str:
    return f"; {column.better} is better" if column.better and not column.cost else ""


def legend(groups: Sequence[Group], shown: Sequence[Column]) -> str:
    """Explains bold numbers, ±, ranges and ×."""
    parts = []
    ranges = any(len(group.rows) == 1 and group.first.scores.intervals for group in groups)
    seeds = any(len(group.rows) > 1 for group in groups)
    if len(groups) > 1:
        near = ", and values within its interval" if ranges or seeds else ""
        parts.append(f"Bold: the best of a column{near}.")
    if seeds:
        parts.append("±: standard deviation over seeds.")
    if ranges:
        parts.append("Ranges: bootstrap intervals over test examples.")
    if any(column.cost and ratios(groups, column.key) for column in shown):
        parts.append("×: relative to the single network.")
    if any(column.key.endswith(f"/{BEST}") for column in shown):
        parts.append("AUROC (best): by the OOD score that is best for the method, whose name is below it.")
    return " ".join([*parts, "Click a header to sort."])
