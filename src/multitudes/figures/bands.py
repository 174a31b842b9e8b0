"""Predictive bands of a one-dimensional regression.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, Fig. 2, https://arxiv.org/abs/2010.06610
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Look, Theme, look
from multitudes.figures.values import Floats, Numbers, named_runs, pair, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def bands(
    x: Numbers,
    mean: Numbers | Mapping[str, Numbers],
    variance: Numbers | Mapping[str, Numbers],
    members: Numbers | Mapping[str, Numbers] | None = None,
    data: tuple[Numbers, Numbers] | None = None,
    *,
    columns: int | None = None,
    theme: Theme = "light",
    ax: Axes | None = None,
) -> Figure:
    """Draws the mean ``[N]`` over x ``[N]`` with bands of one and two standard deviations.

    Optional: the curve of each member ``[M, N]`` and the training data (x, y). Give `mean`, `variance` and `members` as dicts,
    {"single": mean, ...}, to draw one panel per name, `columns` panels to a row.
    """
    colours, sizes = look(theme), {}  # type: Look, dict[str, int]
    x = read(x, "x", "N", sizes)
    runs = [_run(*run, sizes) for run in _by_name(mean, variance, members)]
    points = None if data is None else _points(data)
    panels = canvas.make_panels(len(runs), ax, columns, 4.0, colours)
    order = x.argsort()
    for panel, (name, middle, spread, curves) in zip(panels, runs, strict=True):
        _draw(panel, x[order], middle[order], spread[order], curves[:, order], colours)
        if points is not None:
            panel.plot(*points, linestyle="", marker="o", markersize=3, color=colours.ink, label="data", zorder=4)
        canvas.style_axes(panel, colours, title=name or "Prediction and uncertainty")
    canvas.outer_labels(panels, colours, "x", "y")
    figure = canvas.figure_of(panels[0])
    if ax is None:
        handles, names = panels[0].get_legend_handles_labels()
        place = {"loc": "outside lower center", "ncols": 3 if figure.get_figwidth() > canvas.WIDTH else 2}
        canvas.legend(figure, colours, handles=handles, labels=names, frameon=False, **place)
    else:
        canvas.legend(ax, colours, loc="best")
    return figure


def _by_name(mean: Any, variance: Any, members: Any) -> list[tuple[str, Any, Any, Any]]:
    """Returns (name, mean, variance, members) of each panel."""
    if not isinstance(mean, Mapping):
        return [("", mean, variance, members)]
    for argument, values in (("variance", variance), ("members", members)):
        if values is not None and (not isinstance(values, Mapping) or set(values) != set(mean)):
            raise InputError(f"{argument} must be a dict with the same names as mean: {', '.join(map(repr, mean))}")
    runs = zip(mean, named_runs(mean, '{"single": mean}'), strict=True)
    return [(name, run, variance[key], None if members is None else members[key]) for key, (name, run) in runs]


def _run(name: str, mean: Any, variance: Any, members: Any, sizes: dict[str, int]) -> tuple[str, Floats, Floats, Floats]:
    """Returns name, mean ``[N]``, standard deviation ``[N]`` and member curves ``[M, N]`` after checking them."""
    of = f" of {name!r}" if name else ""
    middle, square = read(mean, f"mean{of}", "N", sizes), read(variance, f"variance{of}", "N", sizes)
    if (square < 0).any():
        raise InputError(f"variance{of} is negative in {(square < 0).sum()} places: give the variance, std ** 2")
    curves = np.empty((0, len(middle))) if members is None else read(members, f"members{of}", "M N", {"N": sizes["N"]})
    return name, middle, np.sqrt(square), curves


def _points(data: Any) -> tuple[Floats, Floats]:
    x, y = pair(data, "data", "(x [P], y [P])")
    sizes: dict[str, int] = {}
    return read(x, "x of data", "P", sizes), read(y, "y of data", "P", sizes)


def _draw(ax: Axes, x: Floats, mean: Floats, spread: Floats, curves: Floats, look: Look) -> None:
    first, second = look.style(0), look.style(1)
    ax.plot(x, mean, color=first.colour, linewidth=2, label="mean", zorder=3)
    for width, alpha, zorder in ((1, 0.38, 1.1), (2, 0.2, 1.0)):
        label = f"±{width} standard deviation{'s' * (width > 1)}"
        lower, upper = mean - width * spread, mean + width * spread
        ax.fill_between(x, lower, upper, color=first.colour, alpha=alpha, linewidth=0, label=label, zorder=zorder)
    for index, curve in enumerate(curves):
        label = "_" if index else "members"
        ax.plot(x, curve, color=second.colour, linewidth=0.8, alpha=0.8, label=label, zorder=2)
