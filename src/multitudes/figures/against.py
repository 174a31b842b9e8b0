"""Our numbers against those that a paper prints: one dot for each, with the line on which both are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import named_runs, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACROSS = 4
"""Panels in a row."""


def against(scores: Mapping[str, Sequence[tuple[float, float]]], *, theme: Theme = "light") -> Figure:
    """Draws a panel for each score: pairs (theirs, ours) as dots, and the line of equal numbers."""
    colours, named = look(theme), dict(named_runs(scores, '{"accuracy": [(94.0, 94.1)]}'))
    across = min(len(named), ACROSS)
    rows = -(-len(named) // across)
    figure = canvas.new_figure(2.6 * across + 0.4, 2.7 * rows, colours)
    panels = list(figure.subplots(rows, across, squeeze=False).flat)
    for panel, (name, pairs) in zip(panels, named.items(), strict=False):
        points = read(pairs, f"pairs of {name!r}", "N P", {"P": 2})
        low, high = float(points.min()), float(points.max())
        room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
        ends = np.array([low - room, high + room])
        panel.plot(ends, ends, color=colours.muted, linewidth=1, linestyle="--", zorder=1)
        panel.scatter(points[:, 0], points[:, 1], s=26, color=colours.colours[0], alpha=0.75, linewidths=0, zorder=2)
        canvas.style_axes(panel, colours, title=name, x="Paper", y="Ours")
        panel.set(xlim=ends, ylim=ends, aspect="equal")
    for spare in panels[len(named) :]:
        spare.remove()
    return figure
