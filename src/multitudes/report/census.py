"""Results of the census: one for each network and method, kept as lines of JSON, and their rates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from multitudes.errors import FileError

OUTCOMES = {
    "ok": "converted, and every comparison holds",
    "refused": "refused, with a reason",
    "wrong": "converted, and a comparison is broken",
    "timeout": "not done in time",
    "memory": "more memory than allowed",
    "error": "an error that is no refusal",
    "impossible": "impossible by definition; not in the rates",
    "not built": "the network itself cannot be built small; not in the rates",
}
"""The outcomes, and what they mean."""

UNCOUNTED = ("impossible", "not built")
"""Outcomes that are left out of the rates."""

GROUPS = {"Deep": 1.0, "Packed": 0.9, "MIMO": 0.95}
"""Methods that are a group of their own, with the rate to reach."""
OTHERS, OTHERS_GOAL = "all other methods", 0.97

LIBRARIES = ("timm", "transformers", "geometric", "own")
"""The libraries in the order of tables."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one network under one method."""

    library: str
    family: str
    network: str
    method: str
    outcome: str
    """A key of `OUTCOMES`."""
    reason: str = ""
    """Why it is not ok: the text of the refusal, or what broke."""
    conversion: float | None = None
    """Seconds of `mt.ensemble`, with its own checks."""
    seconds: float = 0.0
    """Seconds in all: building, converting and comparing."""
    memory: int | None = None
    """Bytes of the process at its peak, beyond those before the network was built."""
    notes: tuple[str, ...] = ()
    """Comparisons that could not be made."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Names the pair: library, network and method."""
        return self.library, self.network, self.method

    def line(self) -> str:
        """Returns the result as a line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


def read_results(path: Path) -> dict[tuple[str, str, str], Result]:
    """Reads a file of results; the last line of a pair counts. A last line that is cut off is ignored."""
    if not path.is_file():
        return {}
    results = {}
    names = {field.name for field in fields(Result)}
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            result = Result(**{key: value for key, value in values.items() if key in names})
        except (ValueError, TypeError, AttributeError) as error:
            if number == len(lines):
                continue  # written until the process ended
            raise FileError(f"{path}, line {number}, is no result of a census: choose another --out") from error
        results[result.key] = result
    return results


class Rate(NamedTuple):
    """How many pairs are ok, of how many that count."""

    ok: int
    tried: int
    left_out: int
    """Pairs that are impossible, or whose network was not built."""

    @property
    def share(self) -> float | None:
        """The share of pairs that are ok; None if none was tried."""
        return self.ok / self.tried if self.tried else None

    @property
    def percent(self) -> str:
        """The share in percent, rounded down: 100 % means all."""
        return f"{100 * self.ok // self.tried}%" if self.tried else "–"

    def __str__(self) -> str:
        return f"{self.ok}/{self.tried}" if self.tried else "–"


def rate(results: Iterable[Result]) -> Rate:
    """Counts results."""
    every = list(results)
    counted = [result for result in every if result.outcome not in UNCOUNTED]
    return Rate(sum(result.outcome == "ok" for result in counted), len(counted), len(every) - len(counted))


def group(method: str) -> str:
    """Returns the group of a method."""
    return method if method in GROUPS else OTHERS


def goal(name: str) -> float:
    """Returns the rate that a group is to reach."""
    return GROUPS.get(name, OTHERS_GOAL)


def rates(results: Sequence[Result]) -> dict[str, dict[str, Rate]]:
    """Returns rates by group of methods, then by library."""
    named = [name for name in LIBRARIES if any(result.library == name for result in results)]
    return {
        name: {library: rate(r for r in results if group(r.method) == name and r.library == library) for library in named}
        for name in (*GROUPS, OTHERS)
        if any(group(result.method) == name for result in results)
    }


def counts(results: Sequence[Result]) -> Mapping[str, int]:
    """Counts the results by outcome; outcomes that do not occur are left out."""
    every = {name: sum(result.outcome == name for result in results) for name in OUTCOMES}
    return {name: count for name, count in every.items() if count}
