"""Cost and quality of methods, as discs.

Laurent et al., "Packed-Ensembles for Efficient Uncertainty Estimation", ICLR 2023, Fig. 1, https://arxiv.org/abs/2210.09184
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.labels import Box, Disc, distance, place
from multitudes.figures.theme import Look, Theme, look
from multitudes.figures.values import Floats, legend_text, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEYS = ("name", "cost", "quality", "size")
LARGEST = 700.0
"""Area of the largest disc, in square points."""


def cost_quality(
    methods: Iterable[Mapping[str, Any]],
    *,
    cost: str = "cost",
    quality: str = "quality",
    size: str = "size",
    log: bool = False,
    theme: Theme = "light",
    ax: Axes | None = None,
) -> Figure:
    """Draws a labelled disc per method: cost on the x axis, quality on the y axis, size as the disc's area.

    `methods` holds dicts {"name": ..., "cost": ..., "quality": ..., "size": ...}, with the number of the method's colour under
    "style", if you like, or None for grey. The arguments `cost`, `quality` and `size` are the labels of these numbers, such as
    cost="multiply-adds (G)". log=True makes the cost axis logarithmic.
    """
    colours, rows = look(theme), list(methods)
    names, costs, qualities, sizes = _read(rows, log)
    shades = [colours.muted if (one := row.get("style", 0)) is None else colours.style(one).colour for row in rows]
    areas = LARGEST * sizes / sizes.max()
    ax = canvas.axes_or_new(ax, 4.4, colours)
    if log:
        ax.set_xscale("log")
    ax.scatter(costs, qualities, s=areas, color=shades, alpha=0.65, edgecolors=colours.paper, linewidths=0.8)
    ax.margins(0.14, 0.16)
    canvas.style_axes(ax, colours, title="Cost and quality", x=_capital(cost), y=_capital(quality))
    _size_legend(ax, sizes, size, colours)
    _label(ax, names, costs, qualities, areas, colours)
    return canvas.figure_of(ax)


def _read(rows: list[Mapping[str, Any]], log: bool) -> tuple[list[str], Floats, Floats, Floats]:
    if not rows:
        raise InputError("methods is empty: give at least one method")
    for row in rows:
        if not isinstance(row, Mapping) or not set(KEYS) <= set(row):
            raise InputError(f"each method must be a dict with the keys {', '.join(KEYS)}, not {row!r:.80}")
    costs, qualities, sizes = (read([row[key] for row in rows], key, "N") for key in KEYS[1:])
    if (sizes <= 0).any() or (log and (costs <= 0).any()):
        raise InputError("the size of a method must be above 0" + (", and so must cost with log=True" if log else ""))
    return [legend_text(row["name"]) for row in rows], costs, qualities, sizes


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _round_numbers(sizes: Floats) -> list[float]:
    """Returns up to three round numbers (1, 20, 300) within the range of the sizes, or the largest size if there is none."""
    smallest, largest = float(sizes.min()), float(sizes.max())
    powers = range(math.floor(math.log10(smallest)), math.ceil(math.log10(largest)) + 1)
    candidates = [digit * 10.0**power for power in powers for digit in (1, 2, 3, 4, 5)]
    inside = [number for number in candidates if smallest <= number <= largest * (1 + 1e-9)]
    if not inside:
        return [largest]
    middle = min(inside, key=lambda number: abs(math.log(number**2 / (inside[0] * inside[-1]))))
    return sorted({inside[0], middle, inside[-1]})


def _size_legend(ax: Axes, sizes: Floats, label: str, look: Look) -> None:
    """Adds a legend of discs with round sizes below the axes."""
    from matplotlib.transforms import ScaledTranslation

    below = ax.transAxes + ScaledTranslation(0, -3.9 * canvas.SIZE / 72, canvas.figure_of(ax).dpi_scale_trans)
    numbers = _round_numbers(sizes)
    handles = [ax.scatter([], [], s=LARGEST * number / sizes.max(), color=look.muted, alpha=0.65) for number in numbers]
    radius = math.sqrt(LARGEST * numbers[-1] / sizes.max() / math.pi) / (canvas.SIZE - 1)  # in text heights
    height = max(0.7 + (radius - 0.36) / 0.35, 1.0)  # 35 % of the part above 0.7 lie below the baseline of the text
    canvas.legend(
        ax,
        look,
        handles=handles,
        labels=[f"{number:,.10g}" for number in numbers],
        title=f"Area: {label}",
        ncols=len(handles),
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        frameon=False,
        borderaxespad=0,
        handletextpad=0.4,
        borderpad=0,
        alignment="left",
        handleheight=height,
        handlelength=2 * radius,
        scatteryoffsets=[0.36 / (height - 0.35 * (height - 0.7))],
    )


def _label(ax: Axes, names: list[str], costs: Floats, qualities: Floats, areas: Floats, look: Look) -> None:
    """Writes the names beside the discs. A name that is far from its disc gets a line to it."""
    figure = canvas.figure_of(ax)
    texts = [
        ax.annotate(name, (x, y), color=look.ink, fontsize=canvas.SIZE - 1)
        for name, x, y in zip(names, costs, qualities, strict=True)
    ]
    figure.draw_without_rendering()  # computes the layout, so that the position of the axes is known
    points = 72 / figure.dpi
    extents = [text.get_window_extent() for text in texts]
    middles = ax.transData.transform(np.column_stack([costs, qualities])) * points
    radii = np.sqrt(areas / math.pi)
    discs = [Disc(x, y, r, e.width * points, e.height * points) for (x, y), r, e in zip(middles, radii, extents, strict=True)]
    corners = ax.get_window_extent()
    room = Box(corners.x0 * points + 2, corners.y0 * points + 2, corners.x1 * points, corners.y1 * points)
    for text, name, x, y, disc, box in zip(texts, names, costs, qualities, discs, place(discs, room), strict=True):
        text.remove()
        offset = (box.left + box.right) / 2 - disc.x, (box.bottom + box.top) / 2 - disc.y
        line = {"arrowstyle": "-", "color": look.muted, "linewidth": 0.8, "shrinkA": 0, "shrinkB": disc.radius}
        ax.annotate(
            name,
            (x, y),
            offset,
            textcoords="offset points",
            ha="center",
            va="center",
            color=look.ink,
            fontsize=canvas.SIZE - 1,
            arrowprops=line if distance(disc, box) > disc.height * 0.6 else None,
        )
