"""Comparison: the differences between two runs' scores, as a table."""

from __future__ import annotations

from typing import NamedTuple

from multitudes.scores.meaning import ARROWS, meaning
from multitudes.terminal import rendered

CLEAR = 0.05
"""The p-value below which a table calls a run better or worse."""


class Difference(NamedTuple):
    """The difference of a score between two runs on the same examples, with its confidence interval."""

    value: float
    low: float
    high: float
    p_value: float
    """The bootstrap's two-sided p-value: the probability of a difference this large if the runs were equally good."""


class Comparison(dict[str, Difference]):
    """Differences by score, first run minus second: `comparison["nll"].p_value`. Its text is a table."""

    def __str__(self) -> str:
        from rich.table import Table

        note = f"first minus second; better or worse if p < {CLEAR:g}, for each score alone"
        table = Table("score", "difference", "interval", "p-value", "the first is", title="Two runs compared", caption=note)
        for column in table.columns[1:4]:
            column.justify = "right"
        for name, own in self.items():
            arrow = ARROWS[meaning(name).better]
            interval = f"{own.low:+.4f} to {own.high:+.4f}"
            table.add_row(f"{name} {arrow}".rstrip(), f"{own.value:+.4f}", interval, f"{own.p_value:.3f}", verdict(name, own))
        return rendered([table], width=118)

    __repr__ = __str__


def verdict(name: str, difference: Difference) -> str:
    """Returns "better" or "worse" if the first run clearly is, "different" where neither direction is better, else ""."""
    if not difference.p_value < CLEAR:
        return ""
    better = meaning(name).better
    return "different" if not better else "better" if (difference.value > 0) == (better == "higher") else "worse"
