"""Paths of members through function space during training.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, Fig. 4, https://arxiv.org/abs/2010.06610
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import Numbers, legend_text, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = {"tsne": ("First t-SNE axis", "Second t-SNE axis"), "pca": ("First principal axis", "Second principal axis")}


def trajectories(
    points: Numbers,
    *,
    names: Sequence[str] | None = None,
    label: str = "tsne",
    theme: Theme = "light",
    ax: Axes | None = None,
) -> Figure:
    """Draws the path of each member from points ``[T, M, 2]``: a ring at the start, dots at each time, a large mark at the end.

    `names` are the members' names, by default member 0, 1, ...; `label` names the axes, "tsne" or "pca".
    """
    colours, values = look(theme), read(points, "points", "T M 2", {"2": 2})
    members = [f"member {m}" for m in range(values.shape[1])] if names is None else [legend_text(name) for name in names]
    if len(members) != values.shape[1]:
        raise InputError(f"names has {len(members)} names for {values.shape[1]} members: give one name per member")
    if label not in AXES:
        raise InputError(f"label={label!r} must be {' or '.join(map(repr, AXES))}")
    panel = canvas.axes_or_new(ax, 4.4, colours)
    for index, name in enumerate(members):
        style, path = colours.style(index), values[:, index]
        panel.plot(*path.T, color=style.colour, linestyle=style.line, linewidth=1.4, marker=".", markersize=5)
        panel.plot(*path[:1].T, color=style.colour, marker="o", markersize=9, markerfacecolor="none", linestyle="")
        panel.plot(
            *path[-1:].T,
            color=style.colour,
            marker=style.marker,
            markersize=10,
            markeredgecolor=colours.paper,
            linestyle="",
            label=name,
        )
    canvas.style_axes(panel, colours, title="Members during training", x=AXES[label][0], y=AXES[label][1])
    if ax is None:
        canvas.runs_legend(panel, colours, len(members))
    else:
        canvas.legend(panel, colours, loc="best")
    return canvas.figure_of(panel)
