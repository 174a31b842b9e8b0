"""Heat map of the disagreement between each pair of members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Look, Theme, look
from multitudes.figures.values import Floats, Numbers, legend_text, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

READABLE = 16
"""Largest number of members whose cells have room for numbers."""


def disagreement(
    matrix: Numbers,
    *,
    names: Sequence[str] | None = None,
    label: str = "Share of examples on which they differ",
    title: str = "Disagreement of members",
    theme: Theme = "light",
    ax: Axes | None = None,
) -> Figure:
    """Draws the matrix ``[M, M]`` as a heat map. With up to 16 members each cell shows its number.

    `names` are the members' names, by default 0, 1, ...; `label` is the label of the colour bar, and `title` the
    figure's title.
    """
    colours, values = look(theme), read(matrix, "matrix", "M M", {})
    members = range(len(values)) if names is None else list(names)
    if len(members) != len(values):
        raise InputError(f"names has {len(members)} names for {len(values)} members: give one name per member")
    ax = canvas.axes_or_new(ax, 4.3, colours)
    low, high = min(0.0, float(values.min())), float(values.max())
    image = ax.imshow(values, cmap=canvas.scale(colours), vmin=low, vmax=high if high > low else low + 1)
    canvas.style_axes(ax, colours, title=legend_text(title), x="Member", y="Member", grid=None)
    step = 1 if len(values) <= READABLE else math.ceil(len(values) / 10)
    shown = range(0, len(values), step)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_ticks(shown, [legend_text(members[i]) for i in shown])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    if len(values) <= READABLE:
        _numbers(ax, image, values, colours)
    canvas.colour_bar(image, [ax], label, colours)
    return canvas.figure_of(ax)


def _numbers(ax: Axes, image: AxesImage, matrix: Floats, look: Look) -> None:
    """Writes the number into each cell, in the darker or lighter colour, whichever contrasts more."""
    size = min(canvas.SIZE, 76 / len(matrix))
    digits = 2 if matrix.max() >= 0.095 or not matrix.max() > 0 else 3 if matrix.max() >= 0.0095 or len(matrix) > 10 else 4
    light, dark = sorted((look.ink, look.paper), key=_lightness, reverse=True)
    for (row, column), value in zip(((r, c) for r in range(len(matrix)) for c in range(len(matrix))), matrix.flat, strict=True):
        red, green, blue, _ = image.cmap(image.norm(value))
        on_light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
        text = f"{value:.{digits}f}" if len(matrix) <= 10 else f"{value:.{digits}f}".replace("0.", ".", 1)
        ax.text(column, row, text, ha="center", va="center", fontsize=size, color=dark if on_light else light)


def _lightness(colour: str) -> float:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue
