"""Loss, accuracy or disagreement over a plane through members in weight space.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, Fig. 3, https://arxiv.org/abs/2010.06610
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Look, Theme, look
from multitudes.figures.values import Floats, Numbers, legend_text, named_runs, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def landscape(
    x: Numbers,
    y: Numbers,
    values: Numbers | Mapping[str, Numbers],
    anchors: Numbers,
    *,
    names: Sequence[str] | None = None,
    label: str = "Loss",
    columns: int | None = None,
    theme: Theme = "light",
    ax: Axes | None = None,
) -> Figure:
    """Draws values ``[H, G]`` over a grid x ``[G]``, y ``[H]`` as colours and contours, with the anchors ``[A, 2]``.

    Give values as a dict to draw one panel per name, `columns` panels to a row. `names` are the anchors' names, and `label`
    that of the colour bar. All panels share one colour scale.
    """
    colours, sizes = look(theme), {"2": 2}
    across, up = read(x, "x", "G", sizes), read(y, "y", "H", sizes)
    runs = named_runs(values, '{"loss": values}') if isinstance(values, Mapping) else [("", values)]
    maps = {name: read(run, f"values{f' of {name!r}' if name else ''}", "H G", sizes) for name, run in runs}
    points = read(anchors, "anchors", "A 2", sizes)
    labels = [legend_text(name) for name in (range(len(points)) if names is None else names)]
    if len(labels) != len(points):
        raise InputError(f"names has {len(labels)} names for {len(points)} anchors: give one name per anchor")
    low, high = min(v.min() for v in maps.values()), max(v.max() for v in maps.values())
    levels = np.linspace(low, high if high > low else low + 1, 13)
    panels = canvas.make_panels(len(maps), ax, columns or 3, 4.0, colours)
    for panel, (name, grid) in zip(panels, maps.items(), strict=True):
        drawn = panel.contourf(across, up, grid, levels=levels, cmap=canvas.scale(colours))
        panel.contour(across, up, grid, levels=levels, colors=colours.muted, linewidths=0.4)
        canvas.style_axes(panel, colours, title=name or f"{label} around the members", grid=None)
        panel.set_aspect("equal")
        _anchors(panel, points, labels, colours)
    canvas.outer_labels(panels, colours, "Distance in weight space", "")
    canvas.colour_bar(drawn, panels, label, colours, shrink=0.8, pad=0.03, format="%.3g")
    return canvas.figure_of(panels[0])


def _anchors(ax: Axes, points: Floats, names: Sequence[str], look: Look) -> None:
    """Marks the anchors and writes their names beside them, on the background's colour."""
    middle = (ax.get_xlim()[0] + ax.get_xlim()[1]) / 2
    for index, ((x, y), name) in enumerate(zip(points, names, strict=True)):
        style = look.style(index)
        ax.plot([x], [y], marker=style.marker, color=look.paper, markersize=9, markeredgecolor=look.ink, linestyle="")
        box = {"facecolor": look.paper, "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        place: dict[str, Any] = {"xytext": (8, 8) if x <= middle else (-8, 8), "ha": "left" if x <= middle else "right"}
        ax.annotate(name, (x, y), textcoords="offset points", color=look.ink, fontsize=canvas.SIZE - 1, bbox=box, **place)
