"""Evidence: what each example contributes to the scores, and the scores that follow from it.

Scores are means and ranks over examples. So a prediction is gone through once, in pieces, and leaves a few numbers for each
example; every score is a function of these columns. Parts put together are the whole, and a bootstrap takes rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from multitudes.data.corruptions.published import EXTRA
from multitudes.errors import InputError
from multitudes.prediction.values import CLASSES
from multitudes.scores import calibration, detection, segmentation, selective
from multitudes.scores.meaning import CRITERIA, SPREADS
from multitudes.scores.shift import Errors, mean_corruption_error, stability

Columns = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How scores are counted."""

    bins: int = 15
    """Bins of the calibration errors."""

    drop: int = 0
    """Bins with at most so many examples are left out of ECE and MCE."""

    level: float = 0.95
    """The share of the mixture that an interval holds."""

    def __post_init__(self) -> None:
        if not isinstance(self.bins, int) or self.bins < 1:
            raise InputError(f"bins={self.bins}: at least one")
        if not isinstance(self.drop, int) or self.drop < 0:
            raise InputError(f"drop={self.drop}: a number of examples")
        if not 0 < self.level < 1:
            raise InputError(f"level={self.level}: a share between 0 and 1")


@dataclass(frozen=True)
class Evidence:
    """Columns ``[n]`` or ``[n, M]`` over examples, sums over all of them, and those of sets out of distribution."""

    task: str
    settings: Settings
    columns: Columns
    sums: Columns = field(default_factory=dict)
    inside: Columns = field(default_factory=dict)
    """How much each example in distribution looks out of it, to be held against `ood`."""
    ood: Mapping[str, Columns] = field(default_factory=dict)
    """The same of each set out of distribution."""
    shifts: Mapping[tuple[str, int | None], Evidence] = field(default_factory=dict)
    """Shifted sets, by name and severity."""
    baseline: Errors | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @classmethod
    def cat(cls, parts: Sequence[Evidence]) -> Evidence:
        """Parts of a set as one."""
        kinds = {
            (p.task, p.settings, *(tuple(d) for d in (p.inside, p.ood, p.shifts)),
             *((n, c.shape[1:]) for n, c in p.columns.items()), *((n, c.shape) for n, c in p.sums.items()))
            for p in parts
        }  # fmt: skip
        if len(kinds) != 1:
            raise InputError("only scores of one kind can be put together: of the same task, settings and sets")
        first = parts[0]
        return replace(
            first,
            columns=_joined([p.columns for p in parts]),
            sums={name: torch.stack([p.sums[name] for p in parts]).sum(0) for name in first.sums},
            inside=_joined([p.inside for p in parts]),
            ood={name: _joined_once([p.ood[name] for p in parts]) for name in first.ood},
            shifts={key: cls.cat([p.shifts[key] for p in parts]) for key in first.shifts},
        )

    def resampled(self, generator: torch.Generator) -> Evidence:
        """As many examples, drawn from these with replacement, pixels and labels with their example; sums have none."""
        draw = _redrawn(self.columns, generator)
        inside = self.inside
        same = inside and len(next(iter(inside.values()))) == len(self)
        return replace(
            self,
            columns=_rows_taken(self.columns, *draw),
            sums={},
            inside=_rows_taken(inside, *(draw if same else _redrawn(inside, generator))) if inside else {},
            ood={name: _rows_taken(columns, *_redrawn(columns, generator)) for name, columns in self.ood.items()},
            shifts={key: shift.resampled(generator) for key, shift in self.shifts.items()},
        )

    def scores(self) -> dict[str, float]:
        """All scores that follow."""
        found = {name: float(rule(self)) for name, rule in _rules(self.task).items() if _fits(name, self)}
        return {**found, **self._detection(), **self._shifted(found)}

    def _shifted(self, clean: Mapping[str, float]) -> dict[str, float]:
        """Scores of shifted sets: each, and the means over corruptions."""
        if not self.shifts:
            return {}
        found, means = {}, {}
        sets = [name for name, severity in self.shifts if severity is None]
        for (name, severity), shift in self.shifts.items():
            own = shift.scores()
            if severity is None:
                front = f"{name}/" if len(sets) > 1 else ""
                found.update({f"{front}r{short}": own[key] for key, short in SHORT.items()})
                if "anchor" in shift.columns:
                    found[f"{front}stability"] = stability(shift.columns["correct"], shift.columns["anchor"])
            else:
                found.update({f"{name}/{severity}/{key}": own[key] for key in SHORT})
                means[name, severity] = own
        if counted := [own for (name, _), own in means.items() if name not in EXTRA]:
            found.update({f"c{short}": sum(own[key] for own in counted) / len(counted) for key, short in SHORT.items()})
        if self.baseline is not None:
            found["mCE"], found["rmCE"] = mean_corruption_error(errors_in({**clean, **found}), self.baseline)
        return found

    def per_member(self) -> dict[str, list[float]]:
        """Scores of each member by itself."""
        names = {"member_correct": "accuracy", "member_nll": "nll", "member_squares": "rmse"}
        found = {names[name]: column.double().mean(0) for name, column in self.columns.items() if name in names}
        return {name: (value.sqrt() if name == "rmse" else value).tolist() for name, value in found.items()}

    def _detection(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, columns in self.ood.items():
            front = f"{name}/" if len(self.ood) > 1 else ""
            for criterion in (c for c in (*CRITERIA, *SPREADS) if c in columns and c in self.inside):
                score = torch.cat([self.inside[criterion], columns[criterion]]).double()
                ood = torch.arange(len(score)) >= len(self.inside[criterion])
                for key, value in _detection_scores(score, ood).items():
                    found[f"{front}{key}/{criterion}"] = value
            if "mutual_information" in columns:
                found[f"{front}oodmi"] = float(columns["mutual_information"].double().mean())
        return found


def _detection_scores(score: Tensor, ood: Tensor) -> dict[str, float]:
    """How well a score tells what is out of distribution."""
    return {
        "auroc": detection.auroc(score, ood),
        "aupr": detection.aupr(score, ood),
        "fpr95": detection.fpr_at(score, ood),
        "aupr_in": detection.aupr(-score, ~ood),
        "fpr95_in": detection.fpr_at(-score, ~ood),
    }


SHORT = {"accuracy": "Acc", "nll": "NLL", "ece": "ECE"}
"""What is asked of shifted sets, and what the papers call it."""


def errors_in(scores: Mapping[str, float]) -> Errors:
    """A run's errors, clean and under each corruption, as its scores have them."""
    found: dict[str, list[float]] = {}
    severities = set()
    for key, value in scores.items():
        name, _, rest = key.rpartition("/accuracy")[0].rpartition("/")
        if name and rest.isdigit() and key.endswith("/accuracy"):
            found.setdefault(name, []).append(1 - value)
            severities.add(int(rest))
    means = {name: sum(errors) / len(errors) for name, errors in found.items()}
    return Errors(1 - scores["accuracy"], means, frozenset(severities))


def _joined_once(parts: Sequence[Columns]) -> Columns:
    """One set that all parts were held against, or the parts of one."""
    first = parts[0]
    same = all(p[n].shape == c.shape and bool(torch.equal(p[n], c)) for p in parts[1:] for n, c in first.items())
    return first if same else _joined(parts)


def _joined(parts: Sequence[Columns]) -> Columns:
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    if "example" in found:  # numbers of their own in each part; an anchor is the same in all
        ends = [0, *torch.tensor([int(part["example"].max()) + 1 for part in parts]).cumsum(0).tolist()]
        found["example"] = torch.cat([part["example"] + end for part, end in zip(parts, ends, strict=False)])
    return found


def _redrawn(columns: Columns, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The rows of as many examples or anchors, drawn with replacement, and of which draw each is."""
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


def _rows_taken(columns: Columns, rows: Tensor, draw: Tensor) -> Columns:
    """What is drawn twice is two."""
    return {name: draw if name in ("example", "anchor") else column[rows] for name, column in columns.items()}


Rule = Callable[[Evidence], Any]


def _mean(column: str) -> Rule:
    return lambda evidence: evidence.columns[column].double().mean()


def _calibration(rule: Callable[..., float], drop: bool = True) -> Rule:
    def found(evidence: Evidence) -> float:
        how: dict[str, Any] = {"bins": evidence.settings.bins, **({"drop": evidence.settings.drop} if drop else {})}
        return rule(evidence.columns["confidence"], evidence.columns["correct"], **how)

    return found


OF_CLASSES: dict[str, Rule] = {
    "accuracy": _mean("correct"),
    "exact_match": lambda evidence: evidence.sums["exact"][0] / evidence.sums["exact"][1],
    "top5": _mean("top5"),
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
    "idmi": _mean("mutual_information"),
}

OF_NUMBERS: dict[str, Rule] = {
    "rmse": lambda evidence: evidence.columns["squares"].double().mean().sqrt(),
    "mae": lambda evidence: evidence.columns["squares"].double().sqrt().mean(),
    "gaussian_nll": _mean("gaussian_nll"),
    "lpd": _mean("log_density"),
    "crps": _mean("crps"),
    "coverage": _mean("covered"),
    "interval_width": _mean("width"),
    "member_rmse": lambda evidence: evidence.columns["member_squares"].double().mean(0).sqrt().mean(),
    "epistemic_std": lambda evidence: evidence.columns["epistemic"].double().sqrt().mean(),
}

NEEDED = {
    "exact_match": "exact", "gibbs_nll": "member_nll", "kl_diversity": "kl", "member_accuracy": "member_correct",
    "idmi": "mutual_information", "classwise_ece": "classwise", "miou": "confusion", "lpd": "log_density",
    "coverage": "covered", "interval_width": "width", "member_rmse": "member_squares", "epistemic_std": "epistemic",
}  # fmt: skip
"""The column or sum that a score is made of, where it has another name; there need not be one."""

OPTIONAL = {"top5", "disagreement", "member_nll", "gaussian_nll", "crps", *NEEDED}


def _rules(task: str) -> dict[str, Rule]:
    return OF_CLASSES if task in CLASSES else OF_NUMBERS


def _fits(name: str, evidence: Evidence) -> bool:
    needed = NEEDED.get(name, name)
    return name not in OPTIONAL or needed in evidence.columns or needed in evidence.sums
