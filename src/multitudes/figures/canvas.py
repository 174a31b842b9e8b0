"""Canvas: figures and axes in a theme's colours, made without pyplot and without matplotlib's global settings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from multitudes.errors import InputError
from multitudes.figures import theme
from multitudes.figures.theme import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

SIZE = 10.5
"""Of text, in points: a figure five inches wide can still be read on a telephone."""

WIDTH = 5.0
"""Of a figure with one panel, in inches."""

FEW = 5
"""Runs whose legend covers none of them, as a rule."""


def new_figure(width: float, height: float, look: Look) -> Figure:
    """An empty figure, in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("figures need matplotlib: pip install 'multitudes[figures]'") from error
    figure = Figure(figsize=(width, height), layout="constrained", facecolor=look.paper)
    layout = figure.get_layout_engine()
    assert layout is not None
    layout.set(w_pad=0.08, h_pad=0.08)  # type: ignore[call-arg]
    return figure


def axes_or_new(ax: Axes | None, height: float, look: Look) -> Axes:
    """The axes given, or those of a new figure."""
    if ax is None:
        return new_figure(WIDTH, height, look).add_subplot()
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise InputError(f"ax must be the Axes of one panel: it is {type(ax).__name__}")
    return ax


def make_panels(count: int, ax: Axes | None, columns: int | None, height: float, look: Look) -> list[Axes]:
    """One panel each for `count`, in rows of `columns`, with common axes; or the axes given, if it is one."""
    if columns is not None and columns < 1:
        raise InputError(f"columns={columns}: at least one")
    if ax is not None and count > 1:
        raise InputError(f"ax takes one panel, and {count} are given: leave ax out, or draw them one by one")
    if count == 1:
        return [axes_or_new(ax, height, look)]
    across = min(count, columns or 2)
    rows = math.ceil(count / across)
    figure = new_figure(WIDTH * across**0.68, height * rows * (0.85 if across > 1 else 0.75), look)
    found: list[Axes] = list(figure.subplots(rows, across, sharex=True, sharey=True, squeeze=False).flat)
    for spare in found[count:]:
        spare.remove()
    return found[:count]


def outer_labels(panels: list[Axes], look: Look, x: str, y: str) -> None:
    """What the axes are, below the lowest panels and left of the leftmost."""
    specs = [panel.get_subplotspec() if len(panels) > 1 else None for panel in panels]
    taken = {(spec.rowspan.start, spec.colspan.start) for spec in specs if spec is not None}
    for panel, spec in zip(panels, specs, strict=True):
        if spec is None or (spec.rowspan.start + 1, spec.colspan.start) not in taken:
            panel.set_xlabel(x, color=look.ink, fontsize=SIZE)
            panel.tick_params(labelbottom=True)
        if spec is None or spec.colspan.start == 0:
            panel.set_ylabel(y, color=look.ink, fontsize=SIZE)


def figure_of(ax: Axes) -> Figure:
    """The figure that axes stand in."""
    found: Figure = ax.figure.figure
    return found


def style_axes(ax: Axes, look: Look, *, title: str = "", x: str = "", y: str = "", grid: str | None = "both") -> None:
    """Axes in a theme's colours, with no more lines than are needed."""
    ax.set_facecolor(look.paper)
    ax.set_title(title, loc="left", color=look.ink, fontsize=SIZE + 0.5, fontweight="bold")
    ax.set_xlabel(x, color=look.ink, fontsize=SIZE)
    ax.set_ylabel(y, color=look.ink, fontsize=SIZE)
    ax.tick_params(which="both", color=look.muted, labelcolor=look.ink, labelsize=SIZE - 1)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(look.muted)
    ax.set_axisbelow(True)
    ax.grid(visible=False)
    if grid:
        ax.grid(visible=True, axis=grid, color=look.grid, linewidth=0.8)  # type: ignore[arg-type]


def style_image_axes(ax: Axes, look: Look, title: str = "") -> None:
    """Axes of a picture: a title, and neither ticks nor spines."""
    style_axes(ax, look, grid=None)
    ax.set_title(title, loc="left", color=look.ink, fontsize=SIZE)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)


def legend(place: Axes | Figure, look: Look, **where: Any) -> None:
    """A legend in the theme's colours."""
    found = place.legend(
        labelcolor=look.ink, fontsize=SIZE - 1, facecolor=look.paper, edgecolor=look.grid, framealpha=0.85, **where
    )
    found.get_title().set(color=look.ink, fontsize=SIZE - 1)


def runs_legend(ax: Axes, look: Look, count: int) -> None:
    """A legend of runs: in the upper left while there are few, else below the axes, which make room in a figure of ours."""
    if count <= FEW:
        legend(ax, look, loc="upper left")
        return
    figure = figure_of(ax)
    figure.set_figheight(figure.get_figheight() + 0.22 * count)
    handles, labels = ax.get_legend_handles_labels()
    legend(figure, look, handles=handles, labels=labels, loc="outside lower center", frameon=False)


def scale(look: Look) -> ListedColormap:
    """The theme's scale of colours, as matplotlib takes it."""
    from matplotlib.colors import ListedColormap

    return ListedColormap(theme.scale(look), name="multitudes")


def colour_bar(source: ScalarMappable, axes: list[Axes], label: str, look: Look, **where: Any) -> None:
    """The scale of colours beside the axes that it holds for; as high as the axes, if these are one picture's."""
    place = {"ax": axes} if len(axes) > 1 or where else {"cax": axes[0].inset_axes((1.03, 0, 0.05, 1))}
    bar = figure_of(axes[0]).colorbar(source, **place, **where)
    bar.set_label(label, color=look.ink, fontsize=SIZE)
    bar.ax.tick_params(color=look.muted, labelcolor=look.ink, labelsize=SIZE - 1)
    bar.outline.set_visible(False)
