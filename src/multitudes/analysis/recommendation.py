"""Recommendation: the candidates of `recommend` with verdicts, reasons and costs, and the code to type."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from multitudes.conversion.cost import Cost, CostRow
from multitudes.errors import FileError, InputError
from multitudes.method import Method
from multitudes.terminal import megabytes, rendered

if TYPE_CHECKING:
    from rich.table import Table

LEVELS = {
    "none": "keep the weights",
    "head": "train the last layers, freeze the rest",
    "finetune": "train all, from the given weights",
    "scratch": "train all, from new weights",
}
"""Amounts of training, the least first."""

SHOWN: dict[str, Callable[[float], str]] = {"latency": lambda seconds: f"{seconds * 1e3:.3g} ms", "memory": megabytes}
TIMES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
SIZES = (
    {"b": 1.0}
    | {f"{k}b": 1e3**n for n, k in enumerate("kmgt", 1)}
    | {f"{k}ib": 2.0 ** (10 * n) for n, k in enumerate("kmgt", 1)}
)

OVERHEAD = 2.0
"""A candidate whose `overhead` is at least this gets a note."""


@dataclass(frozen=True)
class Limit:
    """An upper limit: a multiple of the single network's value, or an amount in seconds or bytes."""

    value: float
    ratio: bool
    """Whether `value` is a multiple."""

    @classmethod
    def read(cls, name: str, limit: Any, units: Mapping[str, float], example: str) -> Limit | None:
        """Parses an argument of `recommend`; None stays None."""
        if limit is None:
            return None
        match = re.fullmatch(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*([a-zµμ×]*)\s*", str(limit).lower().replace("μ", "µ"))
        unit = match[2] if match else ""
        known = isinstance(limit, (int, float)) or unit in units or unit in ("x", "×")
        try:
            value = float(match[1]) if match and known and not isinstance(limit, bool) else math.nan
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise InputError(
                f"{name}={limit!r} is not a limit: type a multiple of the single network's, {name}=1.5 or {name}='1.5x', "
                f"or an amount, {name}='{example}', in one of {', '.join(units)}"
            )
        return cls(value * units.get(unit, 1.0), unit not in units)

    def amount(self, single: float) -> float:
        """Returns the limit in seconds or bytes, given the single network's value."""
        return self.value * single if self.ratio else self.value

    def shown(self, amount: float, single: float, name: str) -> str:
        """Formats an amount in the way the limit was typed: as a multiple, or with its unit."""
        return f"{amount / single:.4g} ×" if self.ratio else SHOWN[name](amount)


@dataclass(frozen=True)
class Candidate:
    """A method with its settings, whether it fits and why, and its cost."""

    method: Method
    verdict: str
    """fits, too slow, too large, needs training, refused, alike (members stay equal) or too far (from the network)."""
    reason: str
    needs: str | None = None
    """How much training the method needs at least, one of `LEVELS`; None if unknown."""
    cost: Cost | None = None
    """The result of `cost`. With `compact`, memory is the larger of two: training before it, and prediction after it."""
    start: str = "fresh"
    compact: bool = False
    """Whether predictions come from `ens.compact()`."""
    nll: float | None = None
    """Published negative log-likelihood relative to the single network's; None if there is none."""
    distance: float | None = None
    """Distance of untrained members from the network's outputs, relative to the outputs."""
    axis: Any = 0
    output: str | None = None
    """The one output that the ensemble returns; None for all."""

    @property
    def fits(self) -> bool:
        """Whether the method meets the limits on latency, memory and training."""
        return self.verdict == "fits"

    def ratio(self, name: str) -> float | None:
        """Returns latency, memory, parameters or multiply_adds relative to the single network's; None if not measured."""
        single = getattr(self.cost.base, name) if self.cost else 0
        return getattr(self.cost.ensemble, name) / single if self.cost and single else None

    @property
    def overhead(self) -> float:
        """Its latency relative to what its multiply-adds, at least those of the single network, would take; 0 if unknown."""
        latency, work = self.ratio("latency"), self.ratio("multiply_adds")
        return 0.0 if latency is None or work is None else latency / max(work, 1.0)

    @property
    def label(self) -> str:
        """The method as code, with `members` and the settings that are not defaults."""
        return self.method.as_typed().removeprefix("mt.")

    @property
    def code(self) -> str:
        """The line of code that makes this ensemble from `model` and an example `x`."""
        more = (f", start={self.start!r}" if self.start != "fresh" else "") + (
            f", batch_axis={self.axis!r}" if self.axis else ""
        )
        if self.output is not None:
            more += f", output={int(self.output) if self.output.isdigit() else self.output!r}"
        return f"mt.ensemble(model, {self.method.as_typed()}, x{more})" + (
            "  # train it, then .compact()" if self.compact else ""
        )


@dataclass(frozen=True)
class Recommendation:
    """Candidates, best first; those that do not fit come last. Prints as a table."""

    model: str
    training: str
    latency: Limit | None
    memory: Limit | None
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Method | None:
        """The best method that fits; None if none does (`why` then has the reasons)."""
        first = self.candidates[0] if self.candidates else None
        return first.method if first and first.fits else None

    @property
    def why(self) -> str:
        """The code and the reason of the best candidate, or the reasons why none fits."""
        if self.best is not None:
            return f"{self.candidates[0].code}\n{self.candidates[0].reason}"
        counts = Counter(candidate.verdict for candidate in self.candidates)
        parts = ["nothing fits: " + ", ".join(f"{verdict} {count}" for verdict, count in counts.items())]
        for name, verdict in (("latency", "too slow"), ("memory", "too large")):
            ratios = [c.ratio(name) for c in self.candidates if c.verdict == verdict]
            least = min((ratio for ratio in ratios if ratio is not None), default=None)
            parts += [f"the lowest {name} is {least:.2f} × the single network's"] if least else []
        more = {c.needs for c in self.candidates if c.verdict == "needs training"}
        parts += [f"training={level!r} would allow more methods" for level in LEVELS if level in more][:1]
        return "; ".join(parts)

    def __str__(self) -> str:
        return f"{rendered([self._head(), self._table()])}\n{self.candidates[0].code if self.best else self.why}"

    def _head(self) -> Table:
        from rich.table import Table

        head = Table("", "", show_header=False, box=None, pad_edge=False)
        head.add_row("model", self.model)
        head.add_row("training", f"{self.training}: {LEVELS[self.training]}")
        single = next((c.cost.base for c in self.candidates if c.cost), None)
        for name, shown in SHOWN.items():
            limit: Limit | None = getattr(self, name)
            most = "any" if limit is None else f"at most {limit.value:g} ×" if limit.ratio else f"at most {shown(limit.value)}"
            head.add_row(name, most + (f"; the single network has {shown(getattr(single, name))}" if single else ""))
        if costly := list(dict.fromkeys(type(c.method).__name__ for c in self.candidates if c.overhead >= OVERHEAD)):
            head.add_row(
                "note", f"{', '.join(costly)}: latency is far above multiply-adds; small layers cost more per multiply-add"
            )
        return head

    def _table(self) -> Table:
        from rich.table import Table

        table = Table("method", "latency", "memory", "parameters", "multiply-adds", "training", "why")
        table.columns[0].max_width, table.columns[0].overflow = 32, "fold"
        for column in table.columns[1:5]:
            column.justify = "right"
        for index, candidate in enumerate(self.candidates):
            ratios = [candidate.ratio(name) for name in ("latency", "memory", "parameters", "multiply_adds")]
            cells = ["" if ratio is None else f"{ratio:.2f} ×" for ratio in ratios]
            verdict = "" if candidate.fits else f"{candidate.verdict}: "
            name = candidate.label + ".compact()" * candidate.compact + " of copies" * (candidate.start == "copies")
            ends = candidate.fits and not any(other.fits for other in self.candidates[index + 1 :])
            why = shorten(verdict + candidate.reason, 240, placeholder=" ...")
            table.add_row(name, *cells, candidate.needs or "", why, end_section=ends)
        return table

    def json(self) -> str:
        """Returns the whole recommendation as JSON."""
        limits = {
            key: value and dataclasses.asdict(value) for key, value in (("latency", self.latency), ("memory", self.memory))
        }
        listed = [
            {**vars(c), "method": type(c.method).__name__, "settings": c.method.settings(), "code": c.code,
             "cost": c.cost and dataclasses.asdict(c.cost)} for c in self.candidates
        ]  # fmt: skip
        return json.dumps({"model": self.model, "training": self.training, **limits, "candidates": listed}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Recommendation:
        """Reads a recommendation from the text that `json` returned. The classes of its methods must be imported."""
        kinds = {kind.__name__: kind for kind in Method.all()}
        try:
            content = json.loads(text)
            listed = []
            for entry in content["candidates"]:
                method = kinds[entry["method"]](**entry.pop("settings"))
                measured = entry["cost"] and Cost(*(CostRow(**entry["cost"][name]) for name in ("ensemble", "base")))
                entry.pop("code")
                listed.append(Candidate(**{**entry, "method": method, "cost": measured}))
            limits = [content[name] and Limit(**content[name]) for name in ("latency", "memory")]
            return cls(content["model"], content["training"], limits[0], limits[1], tuple(listed))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(
                f"this is not the JSON of a Recommendation: {type(error).__name__}: {error}. Pass the text of found.json()"
            ) from error
