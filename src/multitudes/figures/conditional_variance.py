"""How much the units of a network with several inputs depend on each input.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, Fig. 4, https://arxiv.org/abs/2010.06610
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Look, Theme, look
from multitudes.figures.values import Floats, Numbers, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 20


def conditional_variance(variance: Numbers, *, theme: Theme = "light") -> Figure:
    """Draws the conditional variance ``[M, U]`` of U units with respect to M inputs. Units that never vary are left out.

    Left, a histogram of each input's share in the sum of a unit's variances. Right, each unit as a dot: for two inputs, its
    variance with respect to each; for more, between corners that stand for the inputs, near those that it depends on.
    """
    colours, values = look(theme), read(variance, "variance", "M U", {})
    if len(values) < 2:
        raise InputError("variance has one input, so there is nothing to compare: give at least two rows")
    if (values < 0).any():
        raise InputError(f"variance is negative in {(values < 0).sum()} places")
    total = values.sum(0)
    if not (total > 0).any():
        raise InputError("no unit varies with any input: there is nothing to draw")
    alive = values[:, total > 0]
    share = alive / alive.sum(0)
    figure = canvas.new_figure(1.75 * canvas.WIDTH, 4.2, colours)
    left, right = figure.subplots(1, 2)
    for index, row in enumerate(share):
        style = colours.style(index)
        heights, edges = np.histogram(row, BINS, (0, 1))
        left.stairs(heights, edges, color=style.colour, linestyle=style.line, linewidth=1.8, label=f"input {index}")
    canvas.style_axes(left, colours, title="What units depend on", x="Share of the input in the unit's variance", y="Units")
    left.set(xlim=(0, 1))
    left.set_ylim(bottom=0)
    canvas.legend(left, colours, loc="upper center")
    (_scatter if len(alive) == 2 else _corners)(right, alive, share, colours)
    return figure


def _scatter(ax: Axes, variance: Floats, share: Floats, look: Look) -> None:
    """Draws the two variances of each unit, coloured by the input that it depends on more."""
    for index in (0, 1):
        style, mine = look.style(index), variance[:, share.argmax(0) == index]
        ax.scatter(mine[0], mine[1], s=14, color=style.colour, marker=style.marker, edgecolors="none", alpha=0.7)
    x, y = "Variance with respect to input 0", "Variance with respect to input 1"
    canvas.style_axes(ax, look, title="Each unit", x=x, y=y)
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)


def _corners(ax: Axes, variance: Floats, share: Floats, look: Look) -> None:
    """Draws each unit between the corners of a polygon, at the mean of the corners weighted by the shares."""
    angles = np.pi / 2 + 2 * np.pi * np.arange(len(share)) / len(share)
    corners = np.stack([np.cos(angles), np.sin(angles)])
    ax.plot(*np.column_stack([corners, corners[:, :1]]), color=look.muted, linewidth=1)
    places = corners @ share
    for index, corner in enumerate(corners.T):
        style, mine = look.style(index), places[:, share.argmax(0) == index]
        ax.scatter(mine[0], mine[1], s=14, color=style.colour, marker=style.marker, edgecolors="none", alpha=0.7)
        side = "center" if abs(corner[0]) < 0.1 else "left" if corner[0] > 0 else "right"
        x, y = 1.1 * corner
        ax.text(x, y, f"input {index}", color=look.ink, fontsize=canvas.SIZE, ha=side, va="center")
    canvas.style_image_axes(ax, look)
    ax.set_title("Each unit", loc="left", color=look.ink, fontsize=canvas.SIZE + 0.5, fontweight="bold")
    ax.set_aspect("equal")
    ax.set(xlim=(-1.6, 1.6), ylim=(-1.3, 1.3))
