"""Old names: reads scores that were written when they had other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from multitudes.scores.meaning import ALL_CRITERIA

Value = TypeVar("Value")

RENAMED = {"aupr": "aupr_out", "idmi": "mean_mutual_information", "oodmi": "mean_mutual_information"}

OF_OOD_SETS = ("auroc", "aupr", "aupr_in", "fpr95", "fpr95_in", "oodmi")
"""Scores of an OOD set, which had no prefix if it was the only one."""

OF_SHIFTED_SETS = ("rAcc", "rNLL", "rECE", "stability")
"""Scores of a shifted set, which had no prefix if it was the only one."""


def current_name(key: str, ood: str = "ood", shifted: str = "shifted") -> str:
    """Returns the name that a score has now. `ood` and `shifted` name the only set of each kind.

    >>> current_name("aupr/msp", ood="svhn"), current_name("svhn/oodmi")
    ('svhn/aupr_out/msp', 'svhn/mean_mutual_information')
    """
    *sets, kind, criterion = key.split("/") if key.rpartition("/")[2] in ALL_CRITERIA else [*key.split("/"), ""]
    if not sets:
        sets = [ood] if kind in OF_OOD_SETS else [shifted] if kind in OF_SHIFTED_SETS else []
    return "/".join([*sets, RENAMED.get(kind, kind), *([criterion] if criterion else [])])


def current_names(scores: Mapping[str, Value], ood: str = "ood") -> dict[str, Value]:
    """Returns scores by the names that they have now."""
    return {current_name(key, ood): value for key, value in scores.items()}


def with_current_names(content: Mapping[str, Any], ood: str = "ood") -> dict[str, Any]:
    """Returns the JSON of `Scores` in its present form. Format 1 had old names, and no `nll` beside `lpd`."""
    if content["format"] > 1:
        return dict(content)
    scores, intervals = (current_names(content[part], ood) for part in ("scores", "intervals"))
    if "lpd" in scores:
        scores["nll"] = -float(scores["lpd"])
    if "lpd" in intervals:
        intervals["nll"] = [-float(end) for end in reversed(intervals["lpd"])]
    return {**content, "format": 2, "scores": scores, "intervals": intervals}
