"""The lead: in one sentence what was compared on what, which did best, and at what cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from multitudes.report.groups import Group, leaders, primary, ranked, ratios
from multitudes.report.table import Column
from multitudes.report.wording import cost, counted, listed, number, ratio, safe, title, title_in_sentence
from multitudes.scores.meaning import meaning

KINDS = {
    "classes": "classification", "binary": "yes or no", "multilabel": "several labels", "gaussian": "regression",
    "regression": "regression",
}  # fmt: skip

HIGHLIGHTS = ("accuracy", "miou", "rmse", "lpd", "nll", "ece", "crps", "auroc", "cAcc")
"""What is worth a card at the top, in this order."""


def summary(groups: Sequence[Group]) -> str:
    """The sentence, as HTML."""
    key = primary(groups)
    order = ranked(groups, key)
    best = order[0]
    value = None if key is None else best.value(key)
    where = f"{_data(groups)}{_seeds(groups)}"
    if key is None or value is None or math.isnan(value.mean):
        return f"{_who(groups)}{where}."
    shown = f"{safe(title_in_sentence(key))} {number(value.mean)}{_trust(value.spread)}"
    spent = _spent(groups, best)
    if len(groups) == 1:
        return f"<strong>{safe(best.label)}</strong>{where}: {shown}{spent}."
    compared = (
        f"Of {counted(len(groups), 'method')} compared{where}, <strong>{safe(best.label)}</strong> did best: {shown}{spent}"
    )
    return f"{compared}{_cheaper(groups, key, best)}."


def _who(groups: Sequence[Group]) -> str:
    return f"<strong>{safe(groups[0].label)}</strong>" if len(groups) == 1 else f"{counted(len(groups), 'method')} compared"


def _data(groups: Sequence[Group]) -> str:
    """On what: the data's name, how many examples, and the network."""
    names, networks = (distinct(groups, name) for name in ("data", "network"))
    sizes = sorted({group.first.scores.examples for group in groups if group.first.scores.examples})
    many = f"{counted(sizes[0], 'example')}" if len(sizes) == 1 else ""
    if len(names) == 1:
        found = f" on {safe(names[0])}{f' ({many})' if many else ''}"
    else:
        kinds = list(dict.fromkeys(KINDS.get(group.first.scores.task, group.first.scores.task) for group in groups))
        found = f" on {many} of {safe(listed(kinds))}" if many else f" at {safe(listed(kinds))}"
    return f"{found} with {safe(networks[0])}" if len(networks) == 1 else found


def distinct(groups: Sequence[Group], name: str) -> list[str]:
    """What the settings say of this, if all say it."""
    found = [group.first.settings.get(name) for group in groups]
    return list(dict.fromkeys(map(str, found))) if all(isinstance(value, (str, int)) for value in found) else []


def _seeds(groups: Sequence[Group]) -> str:
    counts = {len(group.rows) for group in groups}
    return f", {counts.pop()} seeds each" if len(counts) == 1 and counts != {1} else ""


def _trust(spread: float | None) -> str:
    return f" ± {number(spread)}" if spread is not None and math.isfinite(spread) else ""


def _spent(groups: Sequence[Group], group: Group) -> str:
    """At what cost, against the single network if that is known."""
    names = ("multiply_adds", "parameters")
    against = {name: found for name in names if (found := ratios(groups, name).get(group.label)) is not None}
    if group.is_single:
        return ", and is the single network itself"
    if against:
        parts = [f"{ratio(value)} the {title(name).lower()}" for name, value in against.items()]
        return f", at {listed(parts)} of the single network"
    plain = [f"{cost(name, value)} {title(name).lower()}" for name in names if (value := group.cost(name)) is not None]
    if plain:
        return f", at {listed(plain)}"
    seconds = group.cost("seconds")
    return f", after {cost('seconds', seconds)} of training" if seconds is not None else ""


def _cheaper(groups: Sequence[Group], key: str, best: Group) -> str:
    """The cheapest of those that lie within the interval of the best, if it is cheaper."""
    for name in ("multiply_adds", "parameters"):
        price = ratios(groups, name)
        known = [group for group in leaders(groups, key) if group.label in price]
        if best.label not in price or not known:
            continue
        cheapest = min(known, key=lambda group: price[group.label])
        if price[cheapest.label] < 0.8 * price[best.label]:
            return f"; <strong>{safe(cheapest.label)}</strong>, at {ratio(price[cheapest.label])}, lies within its interval"
        return ""
    return ""


def highlights(groups: Sequence[Group], shown: Sequence[Column]) -> str:
    """Who is best at what, as cards."""
    if len(groups) < 2:
        return ""
    cards: list[str] = []
    for column in sorted((c for c in shown if not c.cost and _place(c.key) is not None), key=lambda c: _place(c.key) or 0):
        found = leaders(groups, column.key)
        if not found or len(cards) == 5:
            continue
        value = found[0].value(column.key)
        assert value is not None
        others = f' <span class="others">and {len(found) - 1} more</span>' if len(found) > 1 else ""
        side = "highest" if meaning(column.key).better == "higher" else "lowest"
        cards.append(
            f"<div><dt>{safe(column.title)}, {side}</dt><dd><b>{number(value.mean)}</b>"
            f'<span class="winner">{safe(found[0].label)}{others}</span></dd></div>'
        )
    return f'<dl class="highlights">{"".join(cards)}</dl>' if cards else ""


def _place(key: str) -> int | None:
    return next((HIGHLIGHTS.index(part) for part in key.split("/") if part in HIGHLIGHTS), None)


def warning(groups: Sequence[Group]) -> str:
    """What makes a comparison unfair, said before it."""
    found = []
    tasks = {group.first.scores.task for group in groups}
    data = distinct(groups, "data")
    sizes = {group.first.scores.examples for group in groups} - {0}
    if len(tasks) > 1:
        found.append(f"of different tasks ({', '.join(sorted(tasks))})")
    if len(data) > 1:
        found.append(f"on different data ({', '.join(data)})")
    elif len(sizes) > 1:
        found.append(f"on different numbers of examples ({', '.join(f'{size:,}' for size in sorted(sizes))})")
    budgets = distinct(groups, "budget")
    if len(budgets) > 1:
        found.append(f"by different budgets ({', '.join(budgets)})")
    return f'<p class="warning">These runs are {safe(listed(found))}: compare them with care.</p>' if found else ""
