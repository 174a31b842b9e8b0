"""Box plots of a score on corrupted inputs, by severity.

Durasov, Bagautdinov, Baque, Fua, "Masksembles for Uncertainty Estimation", CVPR 2021, Fig. 6, https://arxiv.org/abs/2012.08334
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Look, Style, Theme, look
from multitudes.figures.values import Floats, Numbers, named_runs, read

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def corruption(
    runs: Mapping[str, Mapping[int, Numbers]], *, score: str = "accuracy", theme: Theme = "light", ax: Axes | None = None
) -> Figure:
    """Draws one box plot per run and severity, over the corruptions.

    `runs` maps a name to {severity: values}, with one value per corruption. As in the paper, a box spans the first to the third
    quartile, its line and marker are the median, and its whiskers end at the smallest and the largest value.
    """
    colours = look(theme)
    values = {name: _by_severity(name, run) for name, run in named_runs(runs, '{"single": {1: [...], 2: [...]}}')}
    severities = sorted({severity for run in values.values() for severity in run})
    below: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, -0.18), "frameon": False, "ncols": 2}
    where = {"loc": "best"} if ax is not None else below
    ax = canvas.axes_or_new(ax, 3.8 + 0.11 * len(values), colours)
    width, handles = 0.8 / len(values), []  # type: float, list[tuple[Artist, Artist]]
    for index, run in enumerate(values.values()):
        middles = [severities.index(severity) + width * (index - (len(values) - 1) / 2) for severity in run]
        handles.append(_boxes(ax, list(run.values()), middles, 0.78 * width, colours.style(index), colours))
    canvas.style_axes(
        ax,
        colours,
        title=f"{score[:1].upper()}{score[1:]} on corrupted inputs",
        x="Severity of the corruption",
        y=f"{score[:1].upper()}{score[1:]}",
        grid="y",
    )
    ax.set_xticks(range(len(severities)), [str(severity) for severity in severities])
    ax.set_xlim(-0.5, len(severities) - 0.5)
    canvas.legend(ax, colours, handles=handles, labels=list(values), **where)
    return canvas.figure_of(ax)


def _by_severity(name: str, run: Mapping[int, Numbers]) -> dict[int, Floats]:
    """Returns the values of a run in the order of severity."""
    if not isinstance(run, Mapping) or not run:
        raise InputError(f"{name!r} must be a dict of severity to values, {{1: [...], 2: [...]}}, not {run!r:.60}")
    return {severity: read(run[severity], f"severity {severity} of {name!r}", "N") for severity in sorted(run)}


def _boxes(
    ax: Axes,
    values: list[Floats],
    middles: list[float],
    width: float,
    style: Style,
    look: Look,
) -> tuple[Artist, Artist]:
    """Draws the boxes of a run. Returns one box and one marker for the legend.

    `ax.boxplot` is not used: it reads all of matplotlib's settings, which makes matplotlib look for a display.
    """
    x = np.array(middles)
    least, first, median, third, most = np.array([np.quantile(array, (0, 0.25, 0.5, 0.75, 1)) for array in values]).T
    box = ax.bar(x, third - first, width, first, facecolor=f"{style.colour}59", edgecolor=style.colour, linewidth=1.2)
    for inner, outer in ((first, least), (third, most)):
        ax.vlines(x, inner, outer, color=style.colour, linewidth=1.2)
        ax.hlines(outer, x - width / 4, x + width / 4, color=style.colour, linewidth=1.2)
    ax.hlines(median, x - width / 2, x + width / 2, color=look.ink, linewidth=1.4)
    edge: dict[str, Any] = {"color": style.colour, "markeredgecolor": look.paper, "markeredgewidth": 0.6}
    markers = ax.plot(x, median, style.marker, markersize=4.5, zorder=3, **edge)
    return box[0], markers[0]
