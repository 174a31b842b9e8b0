"""Divergence of a layer with masked weights, and its upper bound, over the share of weights kept.

Laurent et al., "Packed-Ensembles for Efficient Uncertainty Estimation", ICLR 2023, supplement, Fig. 5,
https://arxiv.org/abs/2210.09184
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

MOST = 6
"""Largest number of units that can be told apart in one panel."""


def kl_bound(
    p: Numbers,
    bound: Numbers,
    kl: Numbers,
    *,
    names: Sequence[str] | None = None,
    theme: Theme = "light",
    ax: Axes | None = None,
) -> Figure:
    """Draws the bound ``[C, P]`` of each unit as a line over p ``[P]``, and its divergence ``[C, P]`` as a thin dotted line.

    `names` are the units' names, by default unit 0, 1, ...
    """
    colours = look(theme)
    sizes: dict[str, int] = {}
    p = read(p, "p", "P", sizes)
    upper, exact = read(bound, "bound", "C P", sizes), read(kl, "kl", "C P", sizes)
    labels = [f"unit {unit}" for unit in range(len(upper))] if names is None else [legend_text(name) for name in names]
    if len(labels) != len(upper):
        raise InputError(f"names has {len(labels)} names for {len(upper)} units: give one name per unit")
    if len(upper) > MOST:
        raise InputError(f"there are {len(upper)} units, too many to tell apart: choose at most {MOST}, as in weight[:{MOST}]")
    panel, order = canvas.axes_or_new(ax, 4.0, colours), p.argsort()
    for unit, label in enumerate(labels):
        style = colours.style(unit)
        panel.plot(p[order], upper[unit, order], color=style.colour, linewidth=1.8, label=label)
        panel.plot(p[order], exact[unit, order], color=style.colour, linewidth=1.2, linestyle=":")
    panel.plot([], [], color=colours.muted, linewidth=1.2, linestyle=":", label="divergence itself")
    canvas.style_axes(panel, colours, title="Bound of the divergence", x="p: share of weights kept", y="KL divergence in nats")
    panel.set_xlim(0, 1)
    if bool((upper > 0).any()):
        panel.set_yscale("log")
    canvas.legend(panel, colours, loc="lower left")
    return canvas.figure_of(panel)
