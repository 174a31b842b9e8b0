"""Makes figures and axes in a theme's colours, without pyplot and without matplotlib's global settings."""

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
"""Font size in points. A figure five inches wide stays readable on a phone."""

WIDTH = 5.0
"""Width of a figure with one panel, in inches."""


def new_figure(width: float, height: float, look: Look) -> Figure:
    """Returns an empty figure of this size in inches."""
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
    """Returns `ax`, or the axes of a new figure if it is None."""
    if ax is None:
        return new_figure(WIDTH, height, look).add_subplot()
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise InputError(f"ax must be one matplotlib Axes, not {type(ax).__name__}: for an array of axes pass axes[0]")
    return ax


def make_panels(count: int, ax: Axes | None, columns: int | None, height: float, look: Look) -> list[Axes]:
    """Returns `count` panels with shared axes, `columns` to a row. If count is 1 and `ax` is given, the panel is `ax`."""
    if columns is not None and columns < 1:
        raise InputError(f"columns={columns} must be at least 1")
    if ax is not None and count > 1:
        raise InputError(f"ax= takes one panel, but there are {count}: leave out ax=, or draw one panel at a time")
    if count == 1:
        return [axes_or_new(ax, height, look)]
    across = min(count, columns or 2)
    rows = math.ceil(count / across)
    figure = new_figure(WIDTH * across**0.68, height * rows * (0.85 if across > 1 else 0.75), look)
    panels: list[Axes] = list(figure.subplots(rows, across, sharex=True, sharey=True, squeeze=False).flat)
    for spare in panels[count:]:
        spare.remove()
    return panels[:count]


def outer_labels(panels: list[Axes], look: Look, x: str, y: str) -> None:
    """Labels the x axis of the lowest panel of each column, and the y axis of the leftmost panel of each row."""
    specs = [panel.get_subplotspec() if len(panels) > 1 else None for panel in panels]
    taken = {(spec.rowspan.start, spec.colspan.start) for spec in specs if spec is not None}
    for panel, spec in zip(panels, specs, strict=True):
        if spec is None or (spec.rowspan.start + 1, spec.colspan.start) not in taken:
            panel.set_xlabel(x, color=look.ink, fontsize=SIZE)
            panel.tick_params(labelbottom=True)
        if spec is None or spec.colspan.start == 0:
            panel.set_ylabel(y, color=look.ink, fontsize=SIZE)


def figure_of(ax: Axes) -> Figure:
    """Returns the figure that holds `ax`, also from inside a subfigure."""
    figure: Figure = ax.figure.figure
    return figure


def style_axes(ax: Axes, look: Look, *, title: str = "", x: str = "", y: str = "", grid: str | None = "both") -> None:
    """Sets title, labels, grid and the theme's colours, and hides the upper and right spines."""
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
    """Styles axes that show an image: a title, no ticks, no spines."""
    style_axes(ax, look, grid=None)
    ax.set_title(title, loc="left", color=look.ink, fontsize=SIZE)
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)


def legend(place: Axes | Figure, look: Look, **where: Any) -> None:
    """Adds a legend in the theme's colours."""
    box = place.legend(
        labelcolor=look.ink, fontsize=SIZE - 1, facecolor=look.paper, edgecolor=look.grid, framealpha=0.85, **where
    )
    box.get_title().set(color=look.ink, fontsize=SIZE - 1)


def runs_legend(ax: Axes, look: Look, count: int) -> None:
    """Adds the legend of runs below the axes, where it hides no curve, and makes the figure taller by its height."""
    figure = figure_of(ax)
    figure.set_figheight(figure.get_figheight() + 0.22 * count)
    handles, labels = ax.get_legend_handles_labels()
    legend(figure, look, handles=handles, labels=labels, loc="outside lower center", frameon=False)


def scale(look: Look) -> ListedColormap:
    """Returns the theme's colour scale as a matplotlib colormap."""
    from matplotlib.colors import ListedColormap

    return ListedColormap(theme.scale(look), name="multitudes")


def colour_bar(source: ScalarMappable, axes: list[Axes], label: str, look: Look, **where: Any) -> None:
    """Adds a colour bar for `axes`. Beside a single image it has the height of the image."""
    place = {"ax": axes} if len(axes) > 1 or where else {"cax": axes[0].inset_axes((1.03, 0, 0.05, 1))}
    bar = figure_of(axes[0]).colorbar(source, **place, **where)
    bar.set_label(label, color=look.ink, fontsize=SIZE)
    bar.ax.tick_params(color=look.muted, labelcolor=look.ink, labelsize=SIZE - 1)
    bar.outline.set_visible(False)
