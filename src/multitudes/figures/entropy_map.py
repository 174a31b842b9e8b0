"""Entropy of a classifier over a two-dimensional input space.

Durasov, Bagautdinov, Baque, Fua, "Masksembles for Uncertainty Estimation", CVPR 2021, Fig. 4, https://arxiv.org/abs/2012.08334
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Look, Theme, look
from multitudes.figures.values import Floats, Numbers, entropy_limit, named_runs, pair, read, read_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def entropy_map(
    x: Numbers,
    y: Numbers,
    entropy: Numbers | Mapping[str, Numbers],
    points: tuple[Numbers, Numbers] | None = None,
    *,
    top: float | None = None,
    columns: int | None = None,
    theme: Theme = "light",
    ax: Axes | None = None,
) -> Figure:
    """Draws entropy ``[H, G]`` over a grid x ``[G]``, y ``[H]``, with training points (xy ``[P, 2]``, labels ``[P]``).

    Give entropy as a dict, {"single": entropy, ...}, to draw one panel per name, `columns` panels to a row. All panels share
    one colour scale. It ends at `top`, by default the largest entropy; for K classes log K is a good choice.
    """
    colours, sizes = look(theme), {}  # type: Look, dict[str, int]
    x, y = _rising(x, "x", "G", sizes), _rising(y, "y", "H", sizes)
    runs = named_runs(entropy, '{"single": entropy}') if isinstance(entropy, Mapping) else [("", entropy)]
    maps = {name: read(run, f"entropy{f' of {name!r}' if name else ''}", "H G", sizes) for name, run in runs}
    limit = entropy_limit(list(maps.values()), top)
    where = None if points is None else _points(points)
    panels = canvas.make_panels(len(maps), ax, columns, 3.8, colours)
    for panel, (name, values) in zip(panels, maps.items(), strict=True):
        mesh = panel.pcolormesh(
            x, y, values, shading="nearest", cmap=canvas.scale(colours), vmin=0, vmax=limit, rasterized=True
        )
        if where is not None:
            _scatter(panel, *where, colours)
        canvas.style_axes(panel, colours, title=name or "Entropy of the prediction", grid=None)
        panel.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    rows = math.ceil(len(panels) / (columns or 2))
    canvas.outer_labels(panels, colours, "First input", "Second input")
    canvas.colour_bar(mesh, panels, "Entropy in nats", colours, aspect=20 * rows, pad=0.02)
    return canvas.figure_of(panels[0])


def _rising(values: Numbers, name: str, axes: str, sizes: dict[str, int]) -> Floats:
    grid = read(values, name, axes, sizes)
    if len(grid) < 2 or (np.diff(grid) <= 0).any():
        raise InputError(f"{name} must be strictly increasing, like torch.linspace(-5, 5, 200)")
    return grid


def _points(points: Any) -> tuple[Floats, NDArray[np.int64]]:
    sizes: dict[str, int] = {"2": 2}
    xy, labels = pair(points, "points", "(xy [P, 2], labels [P])")
    return read(xy, "xy of points", "P 2", sizes), read_labels(labels, "labels of points", "P", sizes)


def _scatter(ax: Axes, xy: Floats, labels: NDArray[np.int64], look: Look) -> None:
    """Draws the points with one colour and marker per class."""
    for index, label in enumerate(np.unique(labels)):
        style, mine = look.style(index), xy[labels == label]
        ax.scatter(mine[:, 0], mine[:, 1], s=16, color=style.colour, marker=style.marker, edgecolors=look.paper, linewidths=0.6)
