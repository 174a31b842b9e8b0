"""counts: parameters of variational methods and of this package's methods, for one network.

Table 1 of Chang et al., "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019,
https://arxiv.org/abs/1905.09453. Rows of methods that this package does not have are the paper's multiples of the network's N
parameters; the others are counted on the converted network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from multitudes.conversion.draft import make_draft
from multitudes.engine.call_form import call_of
from multitudes.engine.modules import on_meta
from multitudes.engine.program import without_values
from multitudes.engine.undisturbed import undisturbed
from multitudes.errors import InputError
from multitudes.method import Method
from multitudes.methods import ECMP, EMP, Deep, DropConnect, MCDropout
from multitudes.settings import Count, check_value
from multitudes.terminal import rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multitudes.figures.theme import Theme

MULTIPLES = {"mean-field Gaussian": 2, "PBP": 2, "MNFG": 300}
"""Parameters of methods that this package does not have, as multiples of the network's (Table 1)."""


@dataclass(frozen=True)
class CountRow:
    """The parameters of one method."""

    name: str
    """The method, with its settings if it was counted."""
    parameters: int
    """Number of parameters."""
    overhead: float
    """Parameters beyond the network's own, as a share of these: 1.0 for twice as many."""
    source: str
    """"table": the paper's multiple of N; "counted": counted on the converted network."""


@dataclass(frozen=True)
class ParameterCounts:
    """The parameters of a network, and of each method on it."""

    parameters: int
    """Parameters of the network, N."""
    rows: tuple[CountRow, ...]
    """One row for each method."""

    def __str__(self) -> str:
        from rich.table import Table

        table = Table("method", "parameters", "overhead", "source")
        for row in self.rows:
            table.add_row(row.name, f"{row.parameters:,}", f"{100 * row.overhead:.3g} %", row.source)
        return rendered([table])

    def figure(self, theme: Theme = "light") -> Figure:
        """Draws the parameters of each method as multiples of the network's."""
        from multitudes.figures import counts as draw

        return draw({row.name: row.parameters / self.parameters for row in self.rows}, theme=theme)


@undisturbed
def counts(model: nn.Module, example: Any, *, components: int = 5, methods: Sequence[Method] | None = None) -> ParameterCounts:
    """Counts the parameters of variational methods on a network. Nothing is trained, and the model is not changed.

    example     a batch that the model takes
    components  K: components of each patched layer of EMP and ECMP, and members of the explicit ensemble
    methods     methods to count; by default dropout, DropConnect, EMP and ECMP with norms and output patched, and Deep

    Networks are counted on the meta device, so large ones take no memory.
    """
    check_value("components", components, Count)
    base = sum(p.numel() for p in model.parameters())
    if not base:
        raise InputError(f"this {type(model).__name__} has no parameters to count")
    ours: dict[str, Method] = {
        "dropout": MCDropout(), "DropConnect": DropConnect(), "EMP": EMP(components=components),
        "ECMP": ECMP(components=components), "explicit ensemble": Deep(members=components),
    }  # fmt: skip
    rows = [CountRow(name, times * base, times - 1.0, "table") for name, times in MULTIPLES.items()]
    network = on_meta(model)
    inputs = without_values(call_of(model, example))
    for name, method in (ours if methods is None else {str(method): method for method in methods}).items():
        rows.append(_counted(name, network, method, inputs, base))
    return ParameterCounts(base, tuple(rows))


def _counted(name: str, model: nn.Module, method: Method, example: Any, base: int) -> CountRow:
    """Counts the parameters of a method on a network on the meta device."""
    options: Any = {"keep": (), "at": None, "seed": 0, "start": "fresh", "batch_axis": 0, "chunk": None}
    draft = make_draft(model, method, example, **options)
    if draft.plan.refused:
        refused = ", ".join(entry.name for entry in draft.plan.refused)
        raise InputError(f"{method} cannot convert {refused}, so it has no count: leave it out with methods=[...]")
    total = sum(parameter.numel() for parameter in draft.stack(method.members).parameters().values())
    return CountRow(name, total, total / base - 1, "counted")
