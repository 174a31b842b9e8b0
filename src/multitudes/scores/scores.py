"""Scores: a run's scores by name, with their meaning, intervals, and what they were counted from."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch

from multitudes.errors import FileError, InputError
from multitudes.scores.evidence import Evidence, Settings, errors_in
from multitudes.scores.shift import Errors

FORMAT = 1


class Difference(NamedTuple):
    """By how much one run's score exceeds another's on the same examples."""

    value: float
    low: float
    high: float
    chance: float
    """How often, if there were no difference, one as large would be seen: the bootstrap's two-sided p-value."""


class Scores(Mapping[str, float]):
    """Scores by name: `scores["nll"]`. Printed, they are a table.

    `intervals` has bounds by name, where they were asked for; `members` each member's own scores.
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
        self.members = {name: list(found) for name, found in (members or {}).items()}
        self.evidence = evidence

    @classmethod
    def of(cls, evidence: Evidence) -> Scores:
        """The scores that follow from the evidence."""
        return cls(
            evidence.scores(), task=evidence.task, settings=evidence.settings, examples=len(evidence),
            members=evidence.per_member(), evidence=evidence,
        )  # fmt: skip

    def __getitem__(self, name: str) -> float:
        if name not in self._values:
            from difflib import get_close_matches

            near = get_close_matches(name, self._values, n=3, cutoff=0.4)
            raise KeyError(f"there is no score {name!r}" + (f"; there are {', '.join(near)}" if near else ""))
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scores) and self.json() == other.json()

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def merge(cls, parts: Sequence[Scores]) -> Scores:
        """The scores of a set from those of its parts, equal to those of the whole.

        A set out of distribution may be cut into parts as well, or be the same for all of them.
        """
        found = [part.evidence for part in parts if part.evidence is not None]
        if not parts or len(found) < len(parts):
            raise InputError("only scores that mt.score gave can be merged; read from a file they have no examples any more")
        return cls.of(Evidence.cat(found))

    def with_intervals(self, samples: int = 1000, *, level: float = 0.95, seed: int = 0) -> Scores:
        """The same with bootstrap intervals: examples are drawn again, with replacement, so often.

        Scores that are sums over all examples (classwise_ece, miou, exact_match) have none.
        """
        evidence = self._needed("intervals")
        _enough(samples, level)
        generator = torch.Generator().manual_seed(seed)
        drawn = [evidence.resampled(generator).scores() for _ in range(samples)]
        return Scores(
            self, task=self.task, settings=self.settings, examples=self.examples, members=self.members, evidence=evidence,
            intervals={name: _central([one[name] for one in drawn], level) for name in drawn[0] if name in self},
        )  # fmt: skip

    def compare(self, other: Scores, samples: int = 1000, *, level: float = 0.95, seed: int = 0) -> dict[str, Difference]:
        """By how much these exceed another run's scores on the same examples: a paired bootstrap, score by score."""
        own, its = self._needed("a comparison"), other._needed("a comparison")
        _enough(samples, level)
        if _sizes(own) != _sizes(its):
            raise InputError("a paired comparison needs the same examples in both runs, in the same order")
        drawn: dict[str, list[float]] = {}
        for sample in range(samples):
            pair = [e.resampled(torch.Generator().manual_seed(seed * 1_000_003 + sample)).scores() for e in (own, its)]
            for name in pair[0].keys() & pair[1].keys():
                drawn.setdefault(name, []).append(_less(pair[0][name], pair[1][name]))
        found = {}
        for name in (name for name in self if name in drawn):
            low, high = _central(drawn[name], level)
            below = sum(not d > 0 for d in drawn[name]) + 1
            above = sum(not d < 0 for d in drawn[name]) + 1
            chance = min(1.0, 2 * min(below, above) / (samples + 1))
            found[name] = Difference(_less(self[name], other[name]), low, high, chance)
        return found

    def errors(self) -> Errors:
        """The run as a baseline of corruptions."""
        if "accuracy" not in self:
            raise InputError("a baseline needs accuracies")
        return errors_in(self)

    def _needed(self, what: str) -> Evidence:
        if self.evidence is None:
            raise InputError(f"{what} needs the examples, and scores that were read from a file have none: score again")
        return self.evidence

    def json(self) -> str:
        """Everything but the examples, as JSON; numbers that JSON lacks are words."""
        found = {
            "format": FORMAT, "task": self.task, "settings": dataclasses.asdict(self.settings), "examples": self.examples,
            "scores": {name: _plain(value) for name, value in self._values.items()},
            "intervals": {name: [_plain(low), _plain(high)] for name, (low, high) in self.intervals.items()},
            "members": {name: [_plain(value) for value in values] for name, values in self.members.items()},
        }  # fmt: skip
        return json.dumps(found, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scores:
        """Scores as `json` wrote them."""
        try:
            found = json.loads(text)
            if found["format"] > FORMAT:
                raise FileError("these scores were written in a newer format: update multitudes")
            return cls(
                {name: float(value) for name, value in found["scores"].items()}, task=found["task"],
                settings=Settings(**found["settings"]), examples=int(found["examples"]),
                intervals={name: (float(low), float(high)) for name, (low, high) in found["intervals"].items()},
                members={name: [float(value) for value in values] for name, values in found["members"].items()},
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(f"this is no JSON of scores: {type(error).__name__}: {error}") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the JSON to a file."""
        from multitudes.storage import write

        write(Path(path), self.json().encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Scores:
        """The scores in a file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"cannot read {path}: {error}") from error

    def tables(self) -> list[Any]:
        """The scores as tables of rich: those of the whole, of detection by criterion, of corruptions by severity."""
        from multitudes.scores.tables import tables

        return tables(self)

    def __str__(self) -> str:
        from multitudes.scores.tables import printed

        return printed(self.tables())

    def __repr__(self) -> str:
        first = [name for name in ("accuracy", "nll", "ece", "rmse", "lpd") if name in self]
        return f"Scores({', '.join(f'{name}={self[name]:.4f}' for name in first)}, {len(self)} in all)"


def _central(values: Sequence[float], level: float) -> tuple[float, float]:
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


def _enough(samples: int, level: float) -> None:
    if samples < 2 or not 0 < level < 1:
        raise InputError(f"at least two samples and a level between 0 and 1: {samples} and {level}")


def _less(a: float, b: float) -> float:
    """a − b, and 0 for what is equally infinite."""
    return 0.0 if a == b else a - b


def _sizes(evidence: Evidence) -> list[Any]:
    """How many examples of what there are."""
    ood = [(name, len(next(iter(columns.values())))) for name, columns in evidence.ood.items()]
    return [len(evidence), ood, [(key, len(shift)) for key, shift in evidence.shifts.items()]]


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
