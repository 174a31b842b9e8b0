"""Share of weights above a threshold, by tensor.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, Fig. 9, https://arxiv.org/abs/2010.06610
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import Floats, named_runs, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

READABLE = 40
"""Largest number of tensors whose names all have room."""


def weight_share(
    shares: Mapping[str, Any],
    total: float | None = None,
    *,
    threshold: float | None = None,
    theme: Theme = "light",
    ax: Axes | None = None,
) -> Figure:
    """Draws the share of each tensor as a bar, by name: ``[M]`` for one share per member, also shown as dots, or one number.

    `total` is drawn as a line, and `threshold` named below the axis.
    """
    colours, values = look(theme), {name: _row(share, name) for name, share in named_runs(shares, '{"fc.weight": share}')}
    panel = canvas.axes_or_new(ax, 1.3 + 0.21 * min(len(values), READABLE), colours)
    kinds = {"members' own": [len(row) > 1 for row in values.values()], "shared": [len(row) == 1 for row in values.values()]}
    for index, (label, mine) in enumerate(kinds.items()):
        colour, places = colours.style(index).colour, np.flatnonzero(mine)
        rows = [row for row, is_mine in zip(values.values(), mine, strict=True) if is_mine]
        if rows:
            panel.barh(places, [row.mean() for row in rows], height=0.7, color=colour, alpha=0.45, label=label)
        for place, row in zip(places, rows, strict=True):
            if len(row) > 1:
                panel.plot(row, np.full(len(row), place), linestyle="", marker="o", markersize=3.5, color=colour)
    if total is not None:
        panel.axvline(total, color=colours.ink, linewidth=1.2, linestyle="--", label=f"all weights: {total:.3f}")
    x = "Share of weights above the threshold" if threshold is None else f"Share of weights with |w| > {threshold:g}"
    canvas.style_axes(panel, colours, title="Weights in use", x=x, grid="x")
    step = math.ceil(len(values) / READABLE)
    panel.set_yticks(range(0, len(values), step), list(values)[::step])
    panel.set(xlim=(0, 1.02), ylim=(len(values) - 0.4, -0.6))
    figure = canvas.figure_of(panel)
    if ax is None:
        handles, names = panel.get_legend_handles_labels()
        canvas.legend(
            figure, colours, handles=handles, labels=names, loc="outside lower center", ncols=len(names), frameon=False
        )
    else:
        canvas.legend(panel, colours, loc="best")
    return figure


def _row(share: Any, name: str) -> Floats:
    """Returns the shares of a tensor, ``[M]``, or ``[1]`` for one number."""
    values = np.atleast_1d(np.asarray(share, dtype=np.float64))
    row = read(values, f"share of {name!r}", "M", {})
    if ((row < 0) | (row > 1)).any():
        raise InputError(f"share of {name!r} must be from 0 to 1")
    return row
