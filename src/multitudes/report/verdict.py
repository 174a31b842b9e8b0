"""The first sentences of the page: what ensembles gain over the single network, at what cost, and where they fail.

A method is clearly better than the single network in a score if the intervals of the two do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from multitudes.report.groups import Group, ranked, ratios
from multitudes.report.table import auroc_keys
from multitudes.report.wording import counted, listed, number, ratio, safe, title, title_in_sentence
from multitudes.scores.meaning import meaning

PROPER = ("nll", "lpd")
"""Scores that reward honest probabilities, by which ensembles are judged: of classes, of numbers."""

BESIDE = ("ece", "rmse")
"""Scores that the first sentence names beside the proper one."""

BEST, LAST, CALIBRATED = "best epoch", "last epoch", "calibrated"
VARIANTS = {
    "nll": {
        BEST: "at the epoch of its lowest validation NLL",
        LAST: "after its last epoch",
        CALIBRATED: "after temperature scaling",
    },
    "lpd": {
        BEST: "at the epoch of its highest validation density",
        LAST: "after its last epoch",
        CALIBRATED: "after scaling of its variances",
    },
}
"""How a variant's name reads in a sentence about the single network, by the proper score."""


class Compared(NamedTuple):
    """How many ensembles are clearly better and clearly worse than the single network in a score."""

    better: list[Group]
    worse: list[Group]
    of: int
    """Number of ensembles that have the score."""


def verdict(groups: Sequence[Group]) -> str:
    """Returns a few sentences as HTML; empty unless ensembles are compared with one single network by a proper score."""
    singles = [group for group in groups if group.is_single]
    others = [group for group in groups if not group.is_single]
    key = next((key for key in PROPER if all(group.value(key) is not None for group in groups)), None)
    if len(singles) != 1 or not others or key is None:
        return ""
    single = singles[0]
    rest = f"{_counts(single, others, key)}{_elsewhere(groups, single, others)}"
    return f'{_headline(groups, single, others, key)} <span class="rest">{rest}</span>'


def compared(single: Group, others: Sequence[Group], key: str, variant: str | None = None) -> Compared:
    """Compares ensembles with the single network, or with a variant of it.

    Another epoch is taken for the ensembles as well; calibration is for the single network alone.
    """
    mine = single.value(key, variant)
    values = {g.label: value for g in others if (value := g.value(key, None if variant == CALIBRATED else variant)) is not None}
    if mine is None:
        return Compared([], [], 0)
    above = [group for group in others if group.label in values and values[group.label].low > mine.high]
    below = [group for group in others if group.label in values and values[group.label].high < mine.low]
    return Compared(*((above, below) if meaning(key).better == "higher" else (below, above)), len(values))


def _headline(groups: Sequence[Group], single: Group, others: Sequence[Group], key: str) -> str:
    """Names the best ensemble with its gain and cost, and says where the gain vanishes and what is no better."""
    better = compared(single, others, key).better
    mine = single.value(key)
    assert mine is not None
    if not better:
        none = "<strong>No ensemble is clearly better calibrated</strong> than the single network"
        return f"{none}, whose {_named(key)} is {number(mine.mean)}."
    best = ranked(better, key)[0]
    gains = listed([text for score in (key, *BESIDE) if (text := _instead(best, single, score))])
    known = {variant: words for variant, words in VARIANTS[key].items() if single.value(key, variant) is not None}
    gone = [words for variant, words in known.items() if not compared(single, others, key, variant).better]
    lasts = ", but " + " and ".join(gone) + " the single network does as well" if gone else ""
    accuracy = _instead(best, single, "accuracy")
    return (
        f"<strong>{safe(best.label)}</strong> is better calibrated than the single network, {gains}, at {_times(groups, best)}"
        f"{lasts}{f'; {accuracy}' if accuracy else ''}."
    )


def _named(key: str) -> str:
    return safe(title_in_sentence(key))


def _instead(group: Group, single: Group, key: str) -> str:
    """Returns a score of a group and of the single network in words; empty if one of them lacks it."""
    own, other = group.value(key), single.value(key)
    return "" if own is None or other is None else f"{_named(key)} {number(own.mean)} instead of {number(other.mean)}"


def _times(groups: Sequence[Group], group: Group) -> str:
    """Returns the cost of a group as multiples of the single network's: measured times if there are any."""
    names = {
        "step": "training time",
        "latency": "prediction time",
        "multiply_adds": "multiply-adds",
        "parameters": "parameters",
    }
    parts = [
        f"{ratio(times[group.label])} its {words}"
        for name, words in names.items()
        if group.label in (times := ratios(groups, name))
    ]
    return listed(parts[:2]) if parts else "a cost that was not measured"


def _counts(single: Group, others: Sequence[Group], key: str) -> str:
    """Says how many ensembles are clearly better than the single network, as it is and used otherwise."""
    plain = compared(single, others, key)
    text = f"By {_named(key)} {len(plain.better)} of {counted(plain.of, 'ensemble')} are clearly better than the single network"
    for variant, words in VARIANTS[key].items():
        mine = single.value(key, variant)
        if mine is not None:
            text += f"; {words} it has {number(mine.mean)}, and {len(compared(single, others, key, variant).better)} are"
    return f"{text}."


def _elsewhere(groups: Sequence[Group], single: Group, others: Sequence[Group]) -> str:
    """Says how many ensembles are clearly better and clearly worse in accuracy, under corruption, and in OOD detection."""
    sets = list(dict.fromkeys(name for group in groups for name in group.first.ood))
    detection = auroc_keys([key for key in single.first.scores if "auroc/" in key])
    parts = []
    for key, variant in [("accuracy", None), ("cNLL", None), ("cNLL", CALIBRATED), *((key, None) for key in detection)]:
        result = compared(single, others, key, variant)
        if result.of:
            against = " against the calibrated single network" if variant else ""
            parts.append(f"{safe(title(key, sets))}{against} {len(result.better)} better, {len(result.worse)} worse")
    return f" Other scores, clearly: {'; '.join(parts)}." if parts else ""
