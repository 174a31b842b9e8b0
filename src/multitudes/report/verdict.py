"""The first sentences of the page: what ensembles gain over the single network, at what cost, and where they do not.

A method is clearly better than the single network in a score if the intervals of the two do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from multitudes.report.groups import Group, Value, ranked, ratios
from multitudes.report.table import auroc_keys
from multitudes.report.wording import counted, listed, number, ratio, safe, title, title_in_sentence
from multitudes.scores.meaning import meaning

PROPER = ("nll", "lpd")
"""Scores that reward honest probabilities, by which ensembles are judged: of classes, of numbers."""

BESIDE = ("ece", "rmse")
"""Scores that the first sentence names beside the proper one."""

VARIANTS = {
    "best epoch": "at the epoch of the lowest validation NLL",
    "last epoch": "after its last epoch",
    "calibrated": "after temperature scaling",
}
"""How a variant's name reads in a sentence."""


class Compared(NamedTuple):
    """The ensembles that are clearly better and clearly worse than the single network in a score."""

    better: list[Group]
    worse: list[Group]
    of: int
    """Number of ensembles that have the score."""


def verdict(groups: Sequence[Group]) -> str:
    """Returns a few sentences as HTML; empty unless ensembles are compared with one single network in a proper score."""
    single = [group for group in groups if group.is_single]
    others = [group for group in groups if not group.is_single]
    key = next((key for key in PROPER if all(group.value(key) is not None for group in groups)), None)
    if len(single) != 1 or not others or key is None:
        return ""
    return " ".join(
        filter(None, (_headline(groups, single[0], others, key), _lasting(single[0], others, key), _elsewhere(groups, single[0])))
    )


def compared(single: Group, others: Sequence[Group], key: str, variants: tuple[str | None, str | None] = (None, None)) -> Compared:
    """Compares ensembles with the single network; `variants` are those of the single network and of the ensembles."""
    mine = single.value(key, variants[0])
    values = {group.label: value for group in others if (value := group.value(key, variants[1])) is not None}
    if mine is None:
        return Compared([], [], 0)
    higher = meaning(key).better == "higher"
    above = [group for group in others if group.label in values and values[group.label].low > mine.high]
    below = [group for group in others if group.label in values and values[group.label].high < mine.low]
    return Compared(above, below, len(values)) if higher else Compared(below, above, len(values))


def _headline(groups: Sequence[Group], single: Group, others: Sequence[Group], key: str) -> str:
    """Says how many ensembles are clearly better, names the best with its scores and costs, and says if the gain vanishes."""
    better = compared(single, others, key).better
    name = safe(title_in_sentence(key))
    if not better:
        mine = single.value(key)
        assert mine is not None
        return f"<strong>No ensemble is clearly better</strong> than the single network by its {name} of {number(mine.mean)}."
    best = ranked(better, key)[0]
    scores = [text for score in (key, *BESIDE) if (text := _instead(best, single, score))]
    gone = [words for variant, words in VARIANTS.items() if variant in single.first.variants and not _lasts(single, others, key, variant)]
    rest = f", but the single network does as well {listed(gone)}" if gone else ""
    return (
        f"<strong>{len(better)} of {counted(len(others), 'ensemble')}</strong> {'is' if len(better) == 1 else 'are'} clearly better "
        f"than the single network by {name}{rest}. Best is <strong>{safe(best.label)}</strong>: {listed(scores)}{_times(groups, best)}."
    )


def _instead(group: Group, single: Group, key: str) -> str:
    pair = group.value(key), single.value(key)
    if pair[0] is None or pair[1] is None:
        return ""
    return f"{safe(title_in_sentence(key))} {number(pair[0].mean)} instead of {number(pair[1].mean)}"


def _times(groups: Sequence[Group], group: Group) -> str:
    """Returns the measured times of a group, as multiples of the single network's."""
    names = {"training": "training time", "latency": "prediction time"}
    parts = [f"{ratio(times[group.label])} the {words}" for name, words in names.items() if group.label in (times := ratios(groups, name))]
    return f", at {listed(parts)}" if parts else ""


def _lasts(single: Group, others: Sequence[Group], key: str, variant: str) -> bool:
    return bool(compared(single, others, key, _pair(variant)).better)


def _pair(variant: str) -> tuple[str, str | None]:
    """A temperature is fitted for the single network alone; another epoch is taken for all."""
    return variant, None if variant == "calibrated" else variant


def _lasting(single: Group, others: Sequence[Group], key: str) -> str:
    """Says how many ensembles are clearly better than the single network's variants."""
    parts = []
    for variant, words in VARIANTS.items():
        mine = single.value(key, variant)
        if mine is not None:
            clear = compared(single, others, key, _pair(variant))
            parts.append(f"{words} it has {number(mine.mean)}, and {len(clear.better)} of {clear.of} are clearly better")
    return f"The single network can be used otherwise: {'; '.join(parts)}." if parts else ""


def _elsewhere(groups: Sequence[Group], single: Group) -> str:
    """Says how many ensembles are clearly better and clearly worse in accuracy, under corruption, and on OOD data."""
    others = [group for group in groups if not group.is_single]
    sets = list(dict.fromkeys(name for group in groups for name in group.first.ood))
    keys = ["accuracy", "cECE", *auroc_keys([key for key in single.first.scores if "auroc/" in key])]
    parts = []
    for key in keys:
        result = compared(single, others, key)
        if result.of:
            parts.append(f"{safe(title(key, sets))} {len(result.better)} better, {len(result.worse)} worse")
    return f"Other scores, clearly: {'; '.join(parts)}." if parts else ""
