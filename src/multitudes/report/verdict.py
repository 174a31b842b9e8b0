"""The first sentences of the page: what ensembles gain over the single network, at what cost, and where they fail.

An ensemble is clearly better than the single network by NLL if the mean difference over the test examples, of one seed
each, is more than 1.96 standard errors from 0. In other scores, and over several seeds, the intervals of the two must
not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from multitudes.prediction.values import CLASSES
from multitudes.report.groups import Group, ranked, ratios
from multitudes.report.table import auroc_keys
from multitudes.report.wording import listed, number, ratio, safe, title_in_sentence
from multitudes.scores.meaning import meaning

PROPER = "nll"
"""The score that rewards honest probabilities, by which ensembles are judged."""

BESIDE = ("ece", "rmse")
"""Scores that the first sentence names beside the proper one."""

ERRORS = 1.96
"""Standard errors of a clear difference: 95 %."""

VARIANTS = {
    "best epoch": "at the epoch of the lowest validation NLL",
    "last epoch": "after the last epoch",
    "calibrated": "after temperature scaling",
}
"""How a variant's name reads in a sentence about classes."""

VARIANTS_OF_NUMBERS = {**VARIANTS, "calibrated": "after scaling of variances"}
"""How a variant's name reads in a sentence about a regression."""


class Compared(NamedTuple):
    """The ensembles that are clearly better and clearly worse than the single network in a score, best first."""

    better: list[Group]
    worse: list[Group]
    of: int
    """Number of ensembles that have the score."""


class Verdict(NamedTuple):
    """What a reader should take home, as HTML."""

    first: str
    """The first sentence: the best ensemble's gain and cost, and where its gain vanishes."""

    rest: list[str]
    """Further sentences."""

    def details(self) -> str:
        """Returns the further sentences as a list."""
        return f'<ul class="rest">{"".join(f"<li>{text}</li>" for text in self.rest)}</ul>'


def verdict(groups: Sequence[Group]) -> Verdict | None:
    """Returns the verdict; None unless ensembles are compared with one single network by a proper score."""
    singles = [group for group in groups if group.is_single]
    others = [group for group in groups if not group.is_single]
    complete = all(group.value(PROPER) is not None for group in groups)
    if len(singles) != 1 or not others or not complete or _is_nan(singles[0], PROPER, None):
        return None
    single = singles[0]
    rest = [
        *_elsewhere_better(groups, single, others),
        _counts(single, others),
        _other_scores(single, others),
    ]
    return Verdict(_headline(groups, single, others), [text for text in rest if text])


def compared(single: Group, others: Sequence[Group], key: str, variant: str | None = None) -> Compared:
    """Compares ensembles with the single network, all of them in the same variant."""
    known = [group for group in ranked(others, key, variant) if not _is_nan(group, key, variant)]
    if _is_nan(single, key, variant):
        return Compared([], [], 0)
    gains = {group.label: _gain(single, group, key, variant) for group in known}
    return Compared([g for g in known if gains[g.label] > 0], [g for g in known if gains[g.label] < 0], len(known))


def _is_nan(group: Group, key: str, variant: str | None) -> bool:
    """Whether a group lacks a score, or it is not a number."""
    value = group.value(key, variant)
    return value is None or math.isnan(value.mean)


def _gain(single: Group, group: Group, key: str, variant: str | None) -> int:
    """Returns 1 if the group is clearly better than the single network, −1 if it is clearly worse, else 0."""
    name = variant or ""
    mine, other = single.first.losses.get(name), group.first.losses.get(name)
    alone = len(single.rows) == len(group.rows) == 1
    if mine is None or other is None or mine.shape != other.shape or key != PROPER or not alone:
        return _apart(single, group, key, variant)
    gains = mine.double() - other.double()
    if not bool(gains.isfinite().all()):
        return _apart(single, group, key, variant)
    error = float(gains.std()) / math.sqrt(len(gains))
    return int(float(gains.mean()) > ERRORS * error) - int(float(gains.mean()) < -ERRORS * error)


def _apart(single: Group, group: Group, key: str, variant: str | None) -> int:
    """Returns 1 or −1 if the intervals do not overlap, and the group is better or worse."""
    one, two = single.value(key, variant), group.value(key, variant)
    assert one is not None and two is not None
    sign = 1 if meaning(key).better == "higher" else -1
    return sign * (int(two.low > one.high) - int(two.high < one.low))


def _headline(groups: Sequence[Group], single: Group, others: Sequence[Group]) -> str:
    """Names the best ensemble with its gain and cost, and says where its gain vanishes."""
    better = compared(single, others, PROPER).better
    if not better:
        mine = single.value(PROPER)
        assert mine is not None
        none = "<strong>No ensemble is clearly better</strong> than the single network"
        return f"{none}, whose {_named(PROPER)} is {number(mine.mean)}."
    best = better[0]
    gains = listed([text for score in (PROPER, *BESIDE) if (text := _instead(best, single, score))])
    lost: dict[str, list[str]] = {}
    for variant, words in _variants(single).items():
        result = compared(single, others, PROPER, variant)
        if result.of and best not in result.better and not _is_nan(best, PROPER, variant):
            lost.setdefault("worse" if best in result.worse else "no better", []).append(words)
    vanishes = "".join(f", but {' and '.join(words)} it is {how}" for how, words in lost.items())
    first = f"<strong>{safe(best.label)}</strong> {_claim(best, single)} the single network, {gains}"
    return f"{first}, at {_times(groups, best)}{vanishes}."


def _elsewhere_better(groups: Sequence[Group], single: Group, others: Sequence[Group]) -> list[str]:
    """Names the best ensemble of each variant, with its gain and cost, if it is clearly better than the single network."""
    texts = []
    for variant, words in _variants(single).items():
        if better := compared(single, others, PROPER, variant).better:
            name, gain = f"<strong>{safe(better[0].label)}</strong>", _instead(better[0], single, PROPER, variant)
            texts.append(f"{_capital(words)} {name} is best: {gain}, at {_times(groups, better[0])}.")
    return texts


def _claim(best: Group, single: Group) -> str:
    """Says in words what a better proper score means: better calibration only if the calibration error is lower too."""
    own, other = best.value("ece"), single.value("ece")
    if own is not None and other is not None and own.mean < other.mean:
        return "is better calibrated than"
    return f"has a better {_named(PROPER)} than"


def _capital(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _variants(single: Group) -> Mapping[str, str]:
    """Returns how the names of variants read in a sentence."""
    return VARIANTS if single.first.scores.task in CLASSES else VARIANTS_OF_NUMBERS


def _named(key: str) -> str:
    return safe(title_in_sentence(key))


def _instead(group: Group, single: Group, key: str, variant: str | None = None) -> str:
    """Returns a score of a group and of the single network in words; empty if one of them lacks it."""
    own, other = group.value(key, variant), single.value(key, variant)
    return "" if own is None or other is None else f"{_named(key)} {number(own.mean)} instead of {number(other.mean)}"


def _times(groups: Sequence[Group], group: Group) -> str:
    """Returns the cost of a group as multiples of the single network's: measured times if there are any."""
    names = {
        "step": "training time",
        "latency": "prediction time",
        "multiply_adds": "multiply-adds",
        "parameters": "parameters",
    }
    known = {words: ratios(groups, name).get(group.label) for name, words in names.items()}
    parts = [f"{ratio(times)} its {words}" for words, times in known.items() if times is not None]
    return listed(parts[:2]) if parts else "a cost that was not measured"


def _counts(single: Group, others: Sequence[Group]) -> str:
    """Says how many ensembles are clearly better and worse than the single network, as they are and used otherwise."""
    plain = compared(single, others, PROPER)
    texts = [f"By {_named(PROPER)}, {_than_single(plain, len(others))}."] if plain.of else []
    for variant, words in _variants(single).items():
        if (result := compared(single, others, PROPER, variant)).of:
            texts.append(f"{_capital(words)}: {_better_and_worse(result)}.")
    return " ".join(texts)


def _than_single(result: Compared, count: int) -> str:
    """Returns how many of the ensembles are clearly better and worse than the single network, as half a sentence."""
    if count == 1:
        how = "clearly better" if result.better else "clearly worse" if result.worse else "neither clearly better nor worse"
        return f"the only ensemble is {how} than the single network"
    better, worse = (f"{'are' if len(one) > 1 else 'is'} clearly" for one in (result.better, result.worse))
    return (
        f"{_amount(result.better)} of {count} ensembles {better} better than the single network, and {_amount(result.worse)} "
        f"{worse} worse"
    )


def _amount(groups: Sequence[Group]) -> str:
    return str(len(groups)) if groups else "none"


def _better_and_worse(result: Compared) -> str:
    """Returns the numbers of ensembles in words: 2 better, none worse."""
    return f"{_amount(result.better)} better, {_amount(result.worse)} worse"


def _other_scores(single: Group, others: Sequence[Group]) -> str:
    """Says how many ensembles are clearly better and clearly worse in accuracy, under corruption, and in OOD detection."""
    detection = auroc_keys([key for key in single.first.scores if "auroc/" in key])
    parts = []
    for key, variant in [("accuracy", None), ("cNLL", None), ("cNLL", "calibrated"), *((key, None) for key in detection)]:
        result = compared(single, others, key, variant)
        if result.of:
            after = " after temperature scaling" if variant else ""
            parts.append(f"by {safe(title_in_sentence(key))}{after} {_differing(result)}")
    return f"Other scores against the single network: {'; '.join(parts)}." if parts else ""


def _differing(result: Compared) -> str:
    """Returns how many ensembles differ clearly, as half a sentence: 2 are clearly better and 1 clearly worse."""
    counts = {how: len(own) for how, own in (("better", result.better), ("worse", result.worse)) if own}
    if not counts:
        return "none differs clearly"
    verb = "is" if next(iter(counts.values())) == 1 else "are"
    first, *rest = (f"{count} {{}}clearly {how}" for how, count in counts.items())
    return " and ".join([first.format(f"{verb} "), *(text.format("") for text in rest)])
