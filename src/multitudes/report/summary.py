"""The top of the page: one sentence with the best method and its cost, cards of the best scores, and a warning."""

from __future__ import annotations

import math
from collections.abc import Sequence

from multitudes.report.groups import BEST, Group, leaders, primary, ranked, ratios
from multitudes.report.table import Column
from multitudes.report.wording import cost, counted, listed, number, ratio, safe, title, title_in_sentence
from multitudes.scores.meaning import meaning

KINDS = {
    "classes": "classification", "binary": "binary classification", "multilabel": "multi-label classification",
    "gaussian": "regression", "regression": "regression",
}  # fmt: skip

HIGHLIGHTS = ("accuracy", "miou", "rmse", "nll", "ece", "crps", "auroc", "cAcc")
"""Scores with a card at the top of the page, in this order."""


def summary(groups: Sequence[Group]) -> str:
    """Returns one sentence as HTML: the best method, its score and its cost."""
    key = primary(groups)
    order = ranked(groups, key)
    best = order[0]
    value = None if key is None else best.value(key)
    where = f"{_data(groups)}{_seeds(groups)}"
    name = f"<strong>{safe(best.label)}</strong>{' (the single network)' if best.is_single else ''}"
    methods = counted(len(groups), "method")
    if key is None or value is None or math.isnan(value.mean):
        return f"{name if len(groups) == 1 else methods}{where}."
    result = f"{safe(title_in_sentence(key))} {number(value.mean)}{_deviation(value.spread)}{_costs(groups, best)}."
    if len(groups) == 1:
        return f"{name}{where}: {result}"
    return f"Best of {methods}{where}: {name}, with {result}{_cheaper(groups, key, best)}"


def _data(groups: Sequence[Group]) -> str:
    """Returns the name of the data or the task, the number of examples and the network."""
    names, networks = (distinct(groups, name) for name in ("data", "network"))
    sizes = sorted({group.first.scores.examples for group in groups if group.first.scores.examples})
    kinds = list(dict.fromkeys(KINDS.get(group.first.scores.task, group.first.scores.task) for group in groups))
    data = f" on {safe(names[0])}" if len(names) == 1 else f" for {safe(listed(kinds))}"
    examples = f" ({counted(sizes[0], 'example')})" if len(sizes) == 1 else ""
    network = f" with {safe(networks[0])}" if len(networks) == 1 else ""
    return f"{data}{examples}{network}"


def distinct(groups: Sequence[Group], name: str) -> list[str]:
    """Returns the distinct values of a setting; empty unless every group has it."""
    values = [group.first.settings.get(name) for group in groups]
    return list(dict.fromkeys(map(str, values))) if all(isinstance(value, (str, int)) for value in values) else []


def _seeds(groups: Sequence[Group]) -> str:
    counts = {len(group.rows) for group in groups}
    return f", {counts.pop()} seeds each" if len(counts) == 1 and counts != {1} else ""


def _deviation(spread: float | None) -> str:
    return f" ± {number(spread)}" if spread is not None and math.isfinite(spread) else ""


def _costs(groups: Sequence[Group], group: Group) -> str:
    """Returns the cost of a group, relative to the single network if that is known."""
    names = ("multiply_adds", "parameters")
    if group.is_single:
        return ""
    relative = {name: value for name in names if (value := ratios(groups, name).get(group.label)) is not None}
    if relative:
        parts = [f"{ratio(value)} the {title(name).lower()}" for name, value in relative.items()]
        return f" at {listed(parts)} of the single network"
    plain = [f"{cost(name, value)} {title(name).lower()}" for name in names if (value := group.cost(name)) is not None]
    if plain:
        return f" at {listed(plain)}"
    seconds = group.cost("seconds")
    return f" after {cost('seconds', seconds)} of training" if seconds is not None else ""


def _cheaper(groups: Sequence[Group], key: str, best: Group) -> str:
    """Names the cheapest group whose score lies within the interval of the best, if it costs less than 80 % of the best."""
    for name in ("multiply_adds", "parameters"):
        price = ratios(groups, name)
        known = [group for group in leaders(groups, key) if group.label in price]
        if best.label not in price or not known:
            continue
        cheapest = min(known, key=lambda group: price[group.label])
        if price[cheapest.label] < 0.8 * price[best.label]:
            times = f"{ratio(price[cheapest.label])} the {title(name).lower()}"
            return f" <strong>{safe(cheapest.label)}</strong> lies within its interval at {times}."
        return ""
    return ""


def highlights(groups: Sequence[Group], shown: Sequence[Column]) -> str:
    """Returns cards with the best method of each main score."""
    if len(groups) < 2:
        return ""
    cards: list[str] = []
    for column in sorted(
        (c for c in shown if not c.cost and _place(c.key) is not None and not c.key.endswith(BEST)),
        key=lambda c: _place(c.key) or 0,
    ):
        best = leaders(groups, column.key)
        if not best or len(cards) == 5:
            continue
        value = best[0].value(column.key)
        assert value is not None
        others = f' <span class="others">and {len(best) - 1} more</span>' if len(best) > 1 else ""
        side = "highest" if meaning(column.key).better == "higher" else "lowest"
        cards.append(
            f"<div><dt>{safe(column.title)}, {side}</dt><dd><b>{number(value.mean)}</b>"
            f'<span class="winner">{safe(best[0].label)}{others}</span></dd></div>'
        )
    return f'<dl class="highlights">{"".join(cards)}</dl>' if cards else ""


def _place(key: str) -> int | None:
    return next((HIGHLIGHTS.index(part) for part in key.split("/") if part in HIGHLIGHTS), None)


def warning(groups: Sequence[Group]) -> str:
    """Returns a warning if the runs of a job differ in number of examples or budget."""
    different = []
    sizes = {group.first.scores.examples for group in groups} - {0}
    if len(sizes) > 1:
        different.append(f"numbers of examples ({', '.join(f'{size:,}' for size in sorted(sizes))})")
    budgets = distinct(groups, "budget")
    if len(budgets) > 1:
        different.append(f"budgets ({', '.join(budgets)})")
    if not different:
        return ""
    return f'<p class="warning">Compare with care: these runs have different {safe(listed(different))}.</p>'
