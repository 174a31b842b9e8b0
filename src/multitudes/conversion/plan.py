"""Plan: what a conversion does with every module of a model, how the ensemble runs, and its cost."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from multitudes.method import Method
from multitudes.terminal import megabytes, rendered

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Entry:
    """A module that holds tensors itself, and the reason why it is converted, shared or refused."""

    name: str
    type: str
    reason: str
    parameters: int = 0


@dataclass(frozen=True)
class Counts:
    """Parameters and multiply-adds of the ensemble and of the base model, for the example's number of rows."""

    parameters: int
    base_parameters: int
    multiply_adds: int
    base_multiply_adds: int
    parameters_each: int
    """Parameters that one more member adds."""
    multiply_adds_each: int
    """Multiply-adds that one more member adds."""

    def with_fewer(self, fewer: int) -> Counts:
        """Returns the counts after removing `fewer` members."""
        return replace(
            self,
            parameters=self.parameters - fewer * self.parameters_each,
            multiply_adds=self.multiply_adds - fewer * self.multiply_adds_each,
        )


@dataclass(frozen=True)
class Plan:
    """Every module as converted, shared or refused; the executors; how each tensor is initialised; the cost."""

    model: str
    method: Method
    converted: tuple[Entry, ...]
    shared: tuple[Entry, ...]
    refused: tuple[Entry, ...]
    executor: dict[str, str] = field(default_factory=dict)
    """The executor of each mode, "train" and "eval"."""
    proven: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each mode, the executors that gave the same results as the loop on the example."""
    why: dict[str, str] = field(default_factory=dict)
    """For each executor that is not proven, the reason: usually an operation of the model."""
    init: dict[str, str] = field(default_factory=dict)
    """The rule by which each tensor with a member axis is initialised."""
    memory: dict[str, int] = field(default_factory=dict)
    """Estimated peak memory in bytes of each mode, for the example's number of rows."""
    counts: Counts | None = None
    notes: tuple[str, ...] = ()
    example: dict[str, Any] = field(default_factory=dict)
    """Description of the example: its structure, shapes and dtypes."""
    at: dict[str, Method] = field(default_factory=dict)
    """The method with other settings, for each module that at= matches."""
    keep: tuple[str, ...] = ()
    """Modules that keep= matches: they are left unconverted."""
    proof: str = field(default="", compare=False)
    """What was run to prove the members and the executors: how many members, on which inputs, in which precision."""
    seconds: dict[str, float] = field(default_factory=dict, compare=False)
    """How long each step of planning and proving took."""

    def cost_line(self) -> str:
        """Returns parameters and multiply-adds, as multiples of the base model's, in one line."""
        if self.counts is None:
            return "cost unknown"
        c = self.counts
        work = f", {c.multiply_adds / c.base_multiply_adds:.2f} × multiply-adds" if c.base_multiply_adds else ""
        return f"{c.parameters:,} parameters ({c.parameters / max(c.base_parameters, 1):.2f} × single){work}"

    def __str__(self) -> str:
        return rendered(self._tables())

    def _tables(self) -> list[Any]:
        from rich.table import Table

        head = Table("", "", show_header=False, box=None, pad_edge=False)
        head.add_row("model", self.model)
        head.add_row("method", str(self.method))
        for name, other in self.at.items():
            head.add_row(f"at {name}", ", ".join(f"{key}={getattr(other, key)!r}" for key in other.layer_settings))
        for note in self.notes:
            head.add_row("note", note)
        if self.executor:
            names = list(dict.fromkeys(self.executor.values()))
            used = names if len(names) == 1 else [f"{name} in {mode}" for mode, name in self.executor.items()]
            head.add_row("executor", ", ".join(used))
            head.add_row("proven", "; ".join(f"{', '.join(names)} in {mode}" for mode, names in self.proven.items()))
        for name, reason in self.why.items():
            head.add_row(f"why not {name}", reason)
        if self.proof:
            head.add_row("proved by", f"{self.proof}; {self._time()}")
        if self.counts is not None:
            head.add_row("cost", self.cost_line())
        if self.memory:
            head.add_row("memory", "about " + ", ".join(f"{megabytes(size)} in {mode}" for mode, size in self.memory.items()))
        return [head, self._modules(), *([self._rules()] if self.init else [])]

    def _time(self) -> str:
        """Returns the seconds in all, and the longest steps."""
        longest = sorted(self.seconds.items(), key=lambda item: -item[1])[:3]
        steps = ", ".join(f"{seconds:.1f} s for {what}" for what, seconds in longest if seconds >= 0.1)
        return f"{sum(self.seconds.values()):.1f} s" + (f" ({steps})" if steps else "")

    def _modules(self) -> Table:
        from rich.table import Table

        table = Table("module", "type", "parameters", "plan", "reason", title="modules", title_justify="left")
        groups = {"refused": self.refused, "converted": self.converted, "shared": self.shared}
        for group, entries in groups.items():
            for entry in entries:
                table.add_row(entry.name or "(the model)", entry.type, f"{entry.parameters:,}", group, entry.reason)
        return table

    def _rules(self) -> Table:
        from rich.table import Table

        table = Table("initialisation", "tensors", title="how member tensors start", title_justify="left")
        for rule in dict.fromkeys(self.init.values()):
            names = [name for name, r in self.init.items() if r == rule]
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            table.add_row(rule, ", ".join(names[:3]) + more)
        return table
