"""Two curves that only the report draws: a score by severity, and the coverage of prediction intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import legend_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def severities(runs: Mapping[str, Mapping[int, float]], *, score: str, theme: Theme = "light") -> Figure:
    """Draws a score over the severity of the corruption (0: clean), one line per run."""
    colours = look(theme)
    ax = canvas.axes_or_new(None, 3.8, colours)
    for index, (name, run) in enumerate(runs.items()):
        style = colours.style(index)
        ax.plot(
            list(run),
            list(run.values()),
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markersize=6,
            markeredgecolor=colours.paper,
            markeredgewidth=0.6,
            label=legend_text(name),
        )
    canvas.style_axes(ax, colours, title=f"{score} on corrupted inputs", x="Severity of the corruption (0: clean)", y=score)
    ax.set_xticks(sorted({severity for run in runs.values() for severity in run}))
    _below(ax, len(runs), theme)
    return canvas.figure_of(ax)


def coverage(runs: Mapping[str, Mapping[float, float]], *, theme: Theme = "light") -> Figure:
    """Draws the share of targets inside central prediction intervals over the nominal level, one line per run."""
    colours = look(theme)
    ax = canvas.axes_or_new(None, 4.2, colours)
    ax.plot([0, 1], [0, 1], color=colours.muted, linewidth=1, linestyle=(0, (4, 3)), label="perfect coverage", zorder=1)
    for index, (name, run) in enumerate(runs.items()):
        style = colours.style(index)
        ax.plot(list(run), list(run.values()), color=style.colour, linestyle=style.line, linewidth=1.8, label=legend_text(name))
    canvas.style_axes(
        ax, colours, title="Coverage of intervals", x="Nominal level of the interval", y="Share of targets inside"
    )
    ax.set(xlim=(0, 1), ylim=(0, 1.01))
    _below(ax, len(runs) + 1, theme)
    return canvas.figure_of(ax)


def _below(ax: Axes, count: int, theme: Theme) -> None:
    """Adds a legend below the axes and makes the figure taller by its height."""
    figure, colours = canvas.figure_of(ax), look(theme)
    figure.set_figheight(figure.get_figheight() + 0.22 * ((count + 1) // 2))
    handles, labels = ax.get_legend_handles_labels()
    across = 2 if max(map(len, labels)) <= 24 else 1
    canvas.legend(figure, colours, handles=handles, labels=labels, loc="outside lower center", frameon=False, ncols=across)
