"""Scores: the scores of a run by name, with confidence intervals, comparisons and files."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from multitudes.errors import FileError, InputError
from multitudes.scores.comparison import Comparison, Difference
from multitudes.scores.evidence import Evidence, Settings, errors_in
from multitudes.scores.old_names import with_current_names
from multitudes.scores.shift import Errors
from multitudes.terminal import rendered

FORMAT = 2
"""2: names as in `meaning.py`, and OOD sets always by name. 1: see `old_names.py`."""

CALIBRATION_ERRORS = ("ece", "mce", "ace", "cECE", "rECE")
"""Scores that grow when examples are drawn with repetition: repeated examples make bins look less calibrated."""


class Scores(Mapping[str, float]):
    """Scores by name: `scores["nll"]`, `scores["svhn/auroc/msp"]`. `help(mt.score)` explains every name.

    `print(scores)` shows tables with each score's direction (↑ higher is better, ↓ lower is better) and meaning.
    `intervals` has the confidence intervals by name, if they were computed; `members` has the scores of each member.
    """

    def __init__(
        self,
        values: Mapping[str, float],
        *,
        task: str,
        settings: Settings | None = None,
        examples: int = 0,
        intervals: Mapping[str, tuple[float, float]] | None = None,
        members: Mapping[str, list[float]] | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        self._values = {str(name): float(value) for name, value in values.items()}
        self.task = task
        self.settings = settings or Settings()
        self.examples = examples
        self.intervals = {name: (float(low), float(high)) for name, (low, high) in (intervals or {}).items()}
        self.members = {name: list(each) for name, each in (members or {}).items()}
        self.evidence = evidence

    @classmethod
    def of(cls, evidence: Evidence) -> Scores:
        """Computes the scores from evidence."""
        return cls(
            evidence.scores(),
            task=evidence.task,
            settings=evidence.settings,
            examples=len(evidence),
            members=evidence.per_member(),
            evidence=evidence,
        )

    def __getitem__(self, name: str) -> float:
        if name not in self._values:
            from difflib import get_close_matches

            near = [one for one in self._values if one.startswith(name)][:1] if len(name) > 2 else []  # acc: accuracy
            near += [one for one in get_close_matches(name, self._values, n=3, cutoff=0.6) if one not in near]
            known = f"similar names: {', '.join(near)}" if near else f"there are {', '.join(self._values)}"
            raise KeyError(f"there is no score {name!r}; {known}")
        return self._values[name]

    if not TYPE_CHECKING:  # a type checker that saw it would take every attribute for one

        def __getattr__(self, name: str) -> Any:
            hint = f": a score is read as scores[{name!r}]" if name in vars(self).get("_values", {}) else ""
            if name.startswith(("to_", "as_", "df", "values")):
                hint = ": dict(scores) has all values by name, and pandas.Series(dict(scores)) is a column of them"
            raise AttributeError(f"Scores has no attribute {name!r}{hint}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scores) and self.json() == other.json()

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def merge(cls, parts: Sequence[Scores]) -> Scores:
        """Merges the scores of parts of a dataset into those of the whole.

        Each part may have its own part of the out-of-distribution set, or all may have the same set.
        """
        evidence = [part.evidence for part in parts if part.evidence is not None]
        if not parts or len(evidence) < len(parts):
            raise InputError("merge needs scores that mt.score returned: scores read from a file have no data per example")
        return cls.of(Evidence.cat(evidence))

    def with_intervals(self, samples: int = 1000, *, level: float = 0.95, seed: int = 0) -> Scores:
        """Returns the scores with bootstrap confidence intervals: percentiles over `samples` resampled datasets.

        Resampling makes calibration errors larger, so their intervals are moved by the mean difference to the score.
        classwise_ece, miou, exact_match, and balanced_accuracy and f1 of pixels have no interval: they are computed from totals
        over all examples, which cannot be resampled. class_auroc and class_aupr have none for more than a million
        probabilities, examples times classes: it would take too long.
        """
        evidence = self._require_evidence("with_intervals")
        _check_bootstrap(samples, level)
        generator = torch.Generator().manual_seed(seed)
        drawn = [evidence.resampled(generator).scores() for _ in range(samples)]
        return Scores(
            self,
            task=self.task,
            settings=self.settings,
            examples=self.examples,
            members=self.members,
            evidence=evidence,
            intervals={name: _interval(name, self[name], [d[name] for d in drawn], level) for name in drawn[0] if name in self},
        )

    def compare(self, other: Scores, samples: int = 1000, *, level: float = 0.95, seed: int = 0) -> Comparison:
        """Compares two runs on the same examples by a paired bootstrap: self minus other for each score. Print it for a table.

        `scores.compare(other)["nll"]` is a Difference: value, low and high of its confidence interval, p_value.
        """
        if not isinstance(other, Scores):
            raise InputError(f"compare takes other scores, not a {type(other).__name__}: scores.compare(mt.score(prediction))")
        evidence, others = self._require_evidence("compare"), other._require_evidence("compare")
        _check_bootstrap(samples, level)
        if _example_counts(evidence) != _example_counts(others):
            raise InputError(
                "compare needs two runs on the same examples in the same order, but the numbers of examples differ"
            )
        drawn: dict[str, list[float]] = {}
        for sample in range(samples):
            pair = [e.resampled(torch.Generator().manual_seed(seed * 1_000_003 + sample)).scores() for e in (evidence, others)]
            for name in pair[0].keys() & pair[1].keys():
                drawn.setdefault(name, []).append(_subtract(pair[0][name], pair[1][name]))
        differences = {}
        for name in (name for name in self if name in drawn):
            low, high = _percentiles(drawn[name], level)
            below = sum(not d > 0 for d in drawn[name]) + 1
            above = sum(not d < 0 for d in drawn[name]) + 1
            p_value = min(1.0, 2 * min(below, above) / (samples + 1))
            differences[name] = Difference(_subtract(self[name], other[name]), low, high, p_value)
        return Comparison(differences)

    def errors(self) -> Errors:
        """Returns the run's errors on clean and corrupted data, as a baseline of mCE."""
        if "accuracy" not in self:
            raise InputError(
                "a baseline needs accuracies, but these are scores of a regression: pass scores of a classification"
            )
        return errors_in(self)

    def _require_evidence(self, caller: str) -> Evidence:
        if self.evidence is None:
            raise InputError(f"{caller} needs data per example, which scores read from a file do not have: call mt.score again")
        return self.evidence

    def json(self) -> str:
        """Returns everything but the examples as JSON; infinities and NaN become strings."""
        content = {
            "format": FORMAT,
            "task": self.task,
            "settings": dataclasses.asdict(self.settings),
            "examples": self.examples,
            "scores": {name: json_number(value) for name, value in self._values.items()},
            "intervals": {name: [json_number(low), json_number(high)] for name, (low, high) in self.intervals.items()},
            "members": {name: [json_number(value) for value in values] for name, values in self.members.items()},
        }
        return json.dumps(content, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scores:
        """Reads scores from JSON that `json` wrote."""
        try:
            content = json.loads(text)
            if content["format"] > FORMAT:
                raise FileError("these scores were written in a newer format: update multitudes")
            content = with_current_names(content)
            return cls(
                {name: float(value) for name, value in content["scores"].items()},
                task=content["task"],
                settings=Settings(**content["settings"]),
                examples=int(content["examples"]),
                intervals={name: (float(low), float(high)) for name, (low, high) in content["intervals"].items()},
                members={name: [float(value) for value in values] for name, values in content["members"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(
                f"this JSON does not hold scores: {type(error).__name__}: {error}. Write it with scores.json() or scores.save"
            ) from error

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the scores to a JSON file, without the examples."""
        from multitudes.storage import write

        write(Path(path), self.json().encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Scores:
        """Reads scores from a file that `save` wrote."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read {path}: {error}") from error

    def tables(self) -> list[Any]:
        """Returns the scores as rich tables: the whole dataset, detected errors and OOD examples by criterion, corruptions."""
        from multitudes.scores.tables import tables

        return tables(self)

    def __str__(self) -> str:
        return rendered(self.tables(), width=118)

    def __repr__(self) -> str:
        main = [name for name in ("accuracy", "nll", "ece", "rmse") if name in self]
        return f"Scores({', '.join(f'{name}={self[name]:.4f}' for name in main)}, {len(self)} in all)"


def _interval(name: str, score: float, drawn: Sequence[float], level: float) -> tuple[float, float]:
    """Returns the interval of a score. That of a calibration error is moved by the bias of resampling, down to 0."""
    low, high = _percentiles(drawn, level)
    if name.rpartition("/")[2] not in CALIBRATION_ERRORS:
        return low, high
    bias = sum(drawn) / len(drawn) - score
    return max(0.0, low - bias), high - bias


def _percentiles(values: Sequence[float], level: float) -> tuple[float, float]:
    """Returns the ends of the central interval that holds a share `level` of the values. NaN does not count, ∞ does."""
    ordered = torch.tensor([v for v in values if not math.isnan(v)], dtype=torch.float64)
    if not len(ordered):
        return math.nan, math.nan
    ordered = ordered.sort().values
    ends = []
    for share in ((1 - level) / 2, (1 + level) / 2):
        at = share * (len(ordered) - 1)
        a, b, part = float(ordered[math.floor(at)]), float(ordered[math.ceil(at)]), at - math.floor(at)
        ends.append(a if a == b else (1 - part) * a + part * b)
    return ends[0], ends[1]


def _check_bootstrap(samples: int, level: float) -> None:
    if samples < 2 or not 0 < level < 1:
        raise InputError(f"a bootstrap needs at least 2 samples and a level between 0 and 1, not {samples} and {level}")


def _subtract(a: float, b: float) -> float:
    """Returns a − b, and 0 if both are the same infinity."""
    return 0.0 if a == b else a - b


def _example_counts(evidence: Evidence) -> list[Any]:
    """Returns the numbers of examples: of the dataset, each OOD set and each shifted set."""
    ood = [(name, len(next(iter(columns.values())))) for name, columns in evidence.ood.items()]
    return [len(evidence), ood, [(key, len(shift)) for key, shift in evidence.shifts.items()]]


def json_number(value: float) -> float | str:
    """Returns a number for JSON, which has no infinities and no NaN: these become strings."""
    return value if math.isfinite(value) else str(value)
