"""Recommendation: candidates as `recommend` ranks them, with budgets, verdicts, reasons, and the line to type."""

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
    "none": "weights stay as they are",
    "head": "the last layers are trained, the rest is frozen",
    "finetune": "all is trained, from the given weights on",
    "scratch": "all is trained, from new weights on",
}
"""How much training there may be, the least first."""

SHOWN: dict[str, Callable[[float], str]] = {"latency": lambda seconds: f"{seconds * 1e3:.3g} ms", "memory": megabytes}
TIMES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
SIZES = (
    {"b": 1.0}
    | {f"{k}b": 1e3**n for n, k in enumerate("kmgt", 1)}
    | {f"{k}ib": 2.0 ** (10 * n) for n, k in enumerate("kmgt", 1)}
)


@dataclass(frozen=True)
class Limit:
    """At most so much: a multiple of the single network's, or an amount in seconds or bytes."""

    value: float
    ratio: bool

    @classmethod
    def read(cls, name: str, given: Any, units: Mapping[str, float], typed: str) -> Limit | None:
        """A budget as it is typed; None stays None."""
        if given is None:
            return None
        found = re.fullmatch(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*([a-zµμ×]*)\s*", str(given).lower().replace("μ", "µ"))
        unit = found[2] if found else ""
        known = isinstance(given, (int, float)) or unit in units or unit in ("x", "×")
        try:
            value = float(found[1]) if found and known and not isinstance(given, bool) else math.nan
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise InputError(
                f"{name}={given!r}: give a multiple of the single network's, {name}=1.5 or {name}='1.5x', or {name}='{typed}'"
                f" with one of {', '.join(units)}"
            )
        return cls(value * units.get(unit, 1.0), unit not in units)

    def limit(self, single: float) -> float:
        """The most there may be, where the single network has so much."""
        return self.value * single if self.ratio else self.value

    def shown(self, amount: float, single: float, name: str) -> str:
        """An amount as the budget is given."""
        return f"{amount / single:.4g} ×" if self.ratio else SHOWN[name](amount)


@dataclass(frozen=True)
class Candidate:
    """A method with its settings: whether it fits, why, and what it costs."""

    method: Method
    verdict: str
    """fits, too slow, too large, needs training, refused, alike (members would be) or too far (off the network)."""
    reason: str
    needs: str | None = None
    """The least training it takes, one of `LEVELS`; None where that is not known."""
    cost: Cost | None = None
    """As `cost` measures it. What compacts is trained before it does: its memory is the larger of the two."""
    start: str = "fresh"
    compact: bool = False
    """Whether it is `ens.compact()` that predicts."""
    nll: float | None = None
    """The negative log-likelihood to be expected, over the single network's, where a result is known."""
    distance: float | None = None
    """Without training: how far members are off the network's outputs, as a share of these."""
    axis: Any = 0

    @property
    def fits(self) -> bool:
        """Whether it is within budgets and training."""
        return self.verdict == "fits"

    def ratio(self, name: str) -> float | None:
        """latency, memory, parameters or multiply_adds over the single network's; None where it was not measured."""
        single = getattr(self.cost.base, name) if self.cost else 0
        return getattr(self.cost.ensemble, name) / single if self.cost and single else None

    @property
    def label(self) -> str:
        """The method as one would type it, without what is its default."""
        usual = {f.name: f.default for f in dataclasses.fields(self.method)}
        shown = [f"{n}={v!r}" for n, v in self.method.settings().items() if n == "members" or v != usual[n]]
        return f"{type(self.method).__name__}({', '.join(shown)})"

    @property
    def code(self) -> str:
        """The line to type, for a model and an example x."""
        ours = "mt." if type(self.method).__module__.startswith("multitudes.") else ""
        more = (f", start={self.start!r}" if self.start != "fresh" else "") + (
            f", batch_axis={self.axis!r}" if self.axis else ""
        )
        return f"mt.ensemble(model, {ours}{self.label}, x{more})" + ("  # train it, then .compact()" if self.compact else "")


@dataclass(frozen=True)
class Recommendation:
    """Candidates, those that fit first and the best of them first. Printed, it is a table."""

    model: str
    training: str
    latency: Limit | None
    memory: Limit | None
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Method | None:
        """The method to take; None if nothing fits, and `why` says what stands against it."""
        first = self.candidates[0] if self.candidates else None
        return first.method if first and first.fits else None

    @property
    def why(self) -> str:
        """Why the best is the best, with the line to type, or why nothing fits."""
        if self.best is not None:
            return f"{self.candidates[0].code}\n{self.candidates[0].reason}"
        counts = Counter(candidate.verdict for candidate in self.candidates)
        parts = ["nothing fits: " + ", ".join(f"{verdict} {count}" for verdict, count in counts.items())]
        for name, verdict in (("latency", "too slow"), ("memory", "too large")):
            found = [c.ratio(name) for c in self.candidates if c.verdict == verdict]
            least = min((ratio for ratio in found if ratio is not None), default=None)
            parts += [f"the least {name} of what is {verdict} is {least:.2f} × the single network's"] if least else []
        more = {c.needs for c in self.candidates if c.verdict == "needs training"}
        parts += [f"training={level!r} would allow more" for level in LEVELS if level in more][:1]
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
            budget: Limit | None = getattr(self, name)
            most = (
                "any" if budget is None else f"at most {budget.value:g} ×" if budget.ratio else f"at most {shown(budget.value)}"
            )
            head.add_row(name, most + (f"; the single network has {shown(getattr(single, name))}" if single else ""))
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
            said = "" if candidate.fits else f"{candidate.verdict}: "
            name = candidate.label + ".compact()" * candidate.compact + " of copies" * (candidate.start == "copies")
            ends = candidate.fits and not any(other.fits for other in self.candidates[index + 1 :])
            why = shorten(said + candidate.reason, 240, placeholder=" ...")
            table.add_row(name, *cells, candidate.needs or "", why, end_section=ends)
        return table

    def json(self) -> str:
        """Everything, as JSON."""
        found = {
            key: value and dataclasses.asdict(value) for key, value in (("latency", self.latency), ("memory", self.memory))
        }
        listed = [
            {**vars(c), "method": type(c.method).__name__, "settings": c.method.settings(), "code": c.code,
             "cost": c.cost and dataclasses.asdict(c.cost)} for c in self.candidates
        ]  # fmt: skip
        return json.dumps({"model": self.model, "training": self.training, **found, "candidates": listed}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Recommendation:
        """A recommendation as `json` wrote it; its methods must be known here."""
        kinds = {kind.__name__: kind for kind in Method.all()}
        try:
            found = json.loads(text)
            listed = []
            for entry in found["candidates"]:
                method = kinds[entry["method"]](**entry.pop("settings"))
                measured = entry["cost"] and Cost(*(CostRow(**entry["cost"][name]) for name in ("ensemble", "base")))
                entry.pop("code")
                listed.append(Candidate(**{**entry, "method": method, "cost": measured}))
            budgets = [found[name] and Limit(**found[name]) for name in ("latency", "memory")]
            return cls(found["model"], found["training"], budgets[0], budgets[1], tuple(listed))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(f"this is no JSON of a recommendation: {type(error).__name__}: {error}") from error
