"""Evidence: per-example columns of a prediction, and the scores computed from them.

A prediction is read once, in pieces, and reduced to a few numbers per example: the columns. Every score is a function of these
columns. So parts of a dataset can be merged, and a bootstrap only resamples rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from multitudes.data.corruptions.published import EXTRA
from multitudes.errors import InputError
from multitudes.prediction.values import CLASSES
from multitudes.scores import by_class, calibration, detection, segmentation, selective
from multitudes.scores.meaning import ALL_CRITERIA, ERROR_CRITERIA
from multitudes.scores.shift import Errors, corruption_errors, mean_corruption_error, stability
from multitudes.settings import Count, above, at_least, below, check_settings

Columns = dict[str, Tensor]

RESAMPLED = 1 << 20
"""The largest number of log odds, examples times classes, that a bootstrap resamples."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the scores, which are arguments of `score`."""

    shown_as: ClassVar[str] = "score"

    bins: Count = 15
    """Number of bins of the calibration errors."""

    drop: Annotated[int, at_least(0)] = 0
    """ECE and MCE leave out bins with at most this many examples."""

    level: Annotated[float, above(0), below(1)] = 0.95
    """Probability of the intervals that coverage and width are computed for."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class Evidence:
    """Columns ``[n]`` or ``[n, M]`` over examples, and sums over all examples."""

    task: str
    settings: Settings
    columns: Columns
    sums: Columns = field(default_factory=dict)
    in_distribution: Columns = field(default_factory=dict)
    """OOD scores of the in-distribution examples, for comparison with `ood`."""
    ood: Mapping[str, Columns] = field(default_factory=dict)
    """OOD scores of each out-of-distribution set, by its name."""
    shifts: Mapping[tuple[str, int | None], Evidence] = field(default_factory=dict)
    """Evidence of shifted sets, by name and severity; the severity is None for sets that have none."""
    baseline: Errors | None = None
    """Error rates of the baseline, for mCE and rmCE."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @classmethod
    def cat(cls, parts: Sequence[Evidence]) -> Evidence:
        """Merges the evidence of parts of a dataset."""
        kinds = {
            (
                part.task,
                part.settings,
                *(tuple(sets) for sets in (part.in_distribution, part.ood, part.shifts)),
                *((name, column.shape[1:]) for name, column in part.columns.items()),
                *((name, total.shape) for name, total in part.sums.items()),
            )
            for part in parts
        }
        if len(kinds) != 1:
            raise InputError("merge needs scores of the same task, settings, members, classes, OOD sets and shifted sets")
        first = parts[0]
        return replace(
            first,
            columns=_concatenated([part.columns for part in parts]),
            sums={name: torch.stack([part.sums[name] for part in parts]).sum(0) for name in first.sums},
            in_distribution=_concatenated([part.in_distribution for part in parts]),
            ood={name: _merged_ood([part.ood[name] for part in parts]) for name in first.ood},
            shifts={key: cls.cat([part.shifts[key] for part in parts]) for key in first.shifts},
        )

    def resampled(self, generator: torch.Generator) -> Evidence:
        """Draws a bootstrap sample: N of the N examples, with replacement.

        All pixels, labels or frames of an example are drawn together. `sums` cannot be resampled and are left out. So are more
        than `RESAMPLED` log odds, which would take too long.
        """
        sample = _bootstrap_rows(self.columns, generator)
        known = self.in_distribution
        paired = known and len(next(iter(known.values()))) == len(self)
        return replace(
            self,
            columns=_take_rows({n: c for n, c in self.columns.items() if n != "log_odds" or c.numel() <= RESAMPLED}, *sample),
            sums={},
            in_distribution=_take_rows(known, *(sample if paired else _bootstrap_rows(known, generator))) if known else {},
            ood={name: _take_rows(columns, *_bootstrap_rows(columns, generator)) for name, columns in self.ood.items()},
            shifts={key: shift.resampled(generator) for key, shift in self.shifts.items()},
        )

    def scores(self) -> dict[str, float]:
        """Computes all scores that the columns allow, by name."""
        if self.task not in CLASSES:
            return {**self._by_rule(REGRESSION_SCORES), **self._ood_scores()}
        scores = self._by_rule(CLASSIFICATION_SCORES)
        return {**scores, **self._error_scores(), **self._ood_scores(), **self._shift_scores(scores)}

    def _by_rule(self, rules: Mapping[str, Rule]) -> dict[str, float]:
        return {name: float(rule(self)) for name, rule in rules.items() if _computable(name, self)}

    @cached_property
    def class_ranking(self) -> tuple[float, float]:
        """AUROC and AUPR of the classes, computed together."""
        odds, targets = self.columns["log_odds"], self.columns["target"]
        if self.task == "multilabel":
            return by_class.by_output(odds, targets, self.columns["output"])
        return by_class.one_vs_rest(odds, targets) if self.task == "classes" else detection.ranking(odds, targets == 1)

    @cached_property
    def class_tallies(self) -> Tensor:
        """Correct labels, predicted labels and targets of each class, ``[3, L, K]``."""
        if "confusion" in self.sums:
            return by_class.tallies_of(self.sums["confusion"])
        columns, classes = self.columns, 0 if self.task == "classes" else 2
        return by_class.tallies(columns["label"], columns["target"], columns.get("output"), classes)

    def _error_scores(self) -> dict[str, float]:
        """Computes how well each criterion ranks wrong above right predictions."""
        wrong, scores = self.columns["correct"] == 0, {}
        columns = {"msp": -self.columns["confidence"], **self.columns}
        single = columns["member_correct"].shape[1] == 1 if "member_correct" in columns else "variation_ratio" not in columns
        for criterion in ERROR_CRITERIA:
            if criterion in columns and not (single and criterion == "mutual_information"):
                pair = detection.ranking(columns[criterion].double(), wrong)
                scores[f"error_auroc/{criterion}"], scores[f"error_aupr/{criterion}"] = pair
        return scores

    def _shift_scores(self, clean: Mapping[str, float]) -> dict[str, float]:
        """Computes the scores of each shifted set, and their means over corruptions; `clean` are the unshifted scores."""
        if not self.shifts:
            return {}
        scores, corrupted = {}, {}
        for (name, severity), shift in self.shifts.items():
            values = shift._by_rule({key: CLASSIFICATION_SCORES[key] for key in SHIFT_SCORES})
            if severity is None:
                scores.update({f"{name}/r{short}": values[key] for key, short in SHIFT_SCORES.items()})
                if "anchor" in shift.columns:
                    scores[f"{name}/stability"] = stability(shift.columns["correct"], shift.columns["anchor"])
            else:
                scores.update({f"{name}/{severity}/{key}": values[key] for key in SHIFT_SCORES})
                corrupted[name, severity] = values
        if counted := [values for (name, _), values in corrupted.items() if name not in EXTRA]:
            for key, short in SHIFT_SCORES.items():
                scores[f"c{short}"] = sum(values[key] for values in counted) / len(counted)
        if self.baseline is not None:
            each = corruption_errors(errors_in({**clean, **scores}), self.baseline)
            scores["mCE"], scores["rmCE"] = mean_corruption_error(each)
            for name, (ce, rce) in each.items():
                scores |= {f"{name}/CE": ce, f"{name}/rCE": rce}
        return scores

    def per_member(self) -> dict[str, list[float]]:
        """Computes the scores of each member: accuracy and NLL, or RMSE."""
        names = {"member_correct": "accuracy", "member_nll": "nll", "member_squares": "rmse"}
        means = {names[name]: column.double().mean(0) for name, column in self.columns.items() if name in names}
        return {name: (value.sqrt() if name == "rmse" else value).tolist() for name, value in means.items()}

    def _ood_scores(self) -> dict[str, float]:
        """Computes the detection scores of every OOD set and criterion."""
        scores: dict[str, float] = {}
        for name, columns in self.ood.items():
            for criterion in (c for c in ALL_CRITERIA if c in columns and c in self.in_distribution):
                score = torch.cat([self.in_distribution[criterion], columns[criterion]]).double()
                is_ood = torch.arange(len(score)) >= len(self.in_distribution[criterion])
                for key, value in _detection_scores(score, is_ood).items():
                    scores[f"{name}/{key}/{criterion}"] = value
            if "mutual_information" in columns:
                scores[f"{name}/mean_mutual_information"] = float(columns["mutual_information"].double().mean())
        return scores


def _detection_scores(score: Tensor, is_ood: Tensor) -> dict[str, float]:
    return {
        "auroc": detection.auroc(score, is_ood),
        "aupr_out": detection.aupr(score, is_ood),
        "fpr95": detection.fpr_at(score, is_ood),
        "aupr_in": detection.aupr(-score, ~is_ood),
        "fpr95_in": detection.fpr_at(-score, ~is_ood),
    }


SHIFT_SCORES = {"accuracy": "Acc", "nll": "NLL", "ece": "ECE"}
"""Scores of shifted sets, and their names in the papers."""


def errors_in(scores: Mapping[str, float]) -> Errors:
    """Returns a run's error on clean data and under each corruption, from its scores by name."""
    errors: dict[str, list[float]] = {}
    severities = set()
    for key, value in scores.items():
        name, _, severity = key.rpartition("/accuracy")[0].rpartition("/")
        if name and severity.isdigit() and key.endswith("/accuracy"):
            errors.setdefault(name, []).append(1 - value)
            severities.add(int(severity))
    means = {name: sum(values) / len(values) for name, values in errors.items()}
    return Errors(1 - scores["accuracy"], means, frozenset(severities))


def _merged_ood(parts: Sequence[Columns]) -> Columns:
    """Merges the OOD columns of several parts: keeps one copy if all parts have equal columns, otherwise concatenates them."""
    first = parts[0]
    same = all(p[n].shape == c.shape and bool(torch.equal(p[n], c)) for p in parts[1:] for n, c in first.items())
    return first if same else _concatenated(parts)


def _concatenated(parts: Sequence[Columns]) -> Columns:
    columns = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if "example" in columns:  # each part counts its examples from 0; anchors have the same numbers in all parts
        ends = [0, *torch.tensor([int(part["example"].max()) + 1 for part in parts]).cumsum(0).tolist()]
        columns["example"] = torch.cat([part["example"] + end for part, end in zip(parts, ends, strict=False)])
    return columns


def _bootstrap_rows(columns: Columns, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws N of the N examples (or anchors) with replacement. Returns their rows, and for each row the number of its draw."""
    if not {"example", "anchor"} & set(columns):
        count = len(next(iter(columns.values())))
        return torch.randint(count, (count,), generator=generator), torch.arange(count)
    _, group = columns["anchor" if "anchor" in columns else "example"].unique(return_inverse=True)
    order, size = group.argsort(stable=True), group.bincount()
    chosen = torch.randint(len(size), (len(size),), generator=generator)
    each = size[chosen]
    start = (size.cumsum(0) - size)[chosen] - (each.cumsum(0) - each)
    rows = order[torch.arange(int(each.sum())) + torch.repeat_interleave(start, each)]
    return rows, torch.repeat_interleave(torch.arange(len(each)), each)


def _take_rows(columns: Columns, rows: Tensor, draw: Tensor) -> Columns:
    """Returns the rows of a bootstrap sample; an example drawn twice counts as two examples."""
    return {name: draw if name in ("example", "anchor") else column[rows] for name, column in columns.items()}


Rule = Callable[[Evidence], Any]


def _mean(column: str) -> Rule:
    return lambda evidence: evidence.columns[column].double().mean()


def _calibration(rule: Callable[..., float], drop: bool = True) -> Rule:
    def calibration_error(evidence: Evidence) -> float:
        options = {"bins": evidence.settings.bins, **({"drop": evidence.settings.drop} if drop else {})}
        return rule(evidence.columns["confidence"], evidence.columns["correct"], **options)

    return calibration_error


CLASSIFICATION_SCORES: dict[str, Rule] = {
    "accuracy": _mean("correct"),
    "exact_match": lambda evidence: evidence.sums["exact"][0] / evidence.sums["exact"][1],
    "top5": _mean("top5"),
    "balanced_accuracy": lambda evidence: by_class.balanced_accuracy(evidence.class_tallies),
    "f1": lambda evidence: by_class.f1(evidence.class_tallies, yes=evidence.task != "classes"),
    "class_auroc": lambda evidence: evidence.class_ranking[0],
    "class_aupr": lambda evidence: evidence.class_ranking[1],
    "nll": _mean("nll"),
    "gibbs_nll": _mean("member_nll"),
    "brier": _mean("brier"),
    "ece": _calibration(calibration.ece),
    "mce": _calibration(calibration.mce),
    "ace": _calibration(calibration.ace, drop=False),
    "classwise_ece": lambda evidence: calibration.classwise(evidence.sums["classwise"]),
    "aurc": lambda evidence: selective.aurc(evidence.columns["confidence"], evidence.columns["correct"]),
    "miou": lambda evidence: segmentation.miou(evidence.sums["confusion"]),
    "disagreement": _mean("disagreement"),
    "kl_diversity": _mean("kl"),
    "member_accuracy": _mean("member_correct"),
    "member_nll": _mean("member_nll"),
    "mean_mutual_information": _mean("mutual_information"),
}

REGRESSION_SCORES: dict[str, Rule] = {
    "rmse": lambda evidence: evidence.columns["squares"].double().mean().sqrt(),
    "mae": lambda evidence: evidence.columns["squares"].double().sqrt().mean(),
    "nll": lambda evidence: -evidence.columns["log_density"].double().mean(),
    "lpd": _mean("log_density"),
    "gaussian_nll": _mean("gaussian_nll"),
    "crps": _mean("crps"),
    "coverage": _mean("covered"),
    "interval_width": _mean("width"),
    "member_rmse": lambda evidence: evidence.columns["member_squares"].double().mean(0).sqrt().mean(),
    "epistemic_std": lambda evidence: evidence.columns["epistemic"].double().sqrt().mean(),
}

OPTIONAL = {
    "exact_match": "exact", "top5": "top5", "balanced_accuracy": "label confusion", "f1": "label confusion",
    "class_auroc": "log_odds", "class_aupr": "log_odds", "nll": "nll log_density", "gibbs_nll": "member_nll",
    "classwise_ece": "classwise", "miou": "confusion", "disagreement": "disagreement", "kl_diversity": "kl",
    "member_accuracy": "member_correct", "member_nll": "member_nll", "mean_mutual_information": "mutual_information",
    "gaussian_nll": "gaussian_nll", "lpd": "log_density", "crps": "crps", "coverage": "covered", "interval_width": "width",
    "member_rmse": "member_squares", "epistemic_std": "epistemic",
}  # fmt: skip
"""Scores that not every prediction has, each with the columns or sums of which it needs one."""


def _computable(name: str, evidence: Evidence) -> bool:
    return name not in OPTIONAL or bool({*OPTIONAL[name].split()} & {*evidence.columns, *evidence.sums})
