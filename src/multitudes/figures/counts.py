"""Parameters of methods, as multiples of the network's.

Chang et al., "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019, Table 1,
https://arxiv.org/abs/1905.09453
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import named_runs, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def counts(ratios: Mapping[str, float], *, theme: Theme = "light", ax: Axes | None = None) -> Figure:
    """Draws a bar for each method: its parameters divided by the network's, on a logarithmic axis that starts at 0.9.

    `ratios` maps the method's name to this number.
    """
    colours, named = look(theme), dict(named_runs(ratios, '{"EMP": 1.18}'))
    values = read(list(named.values()), "ratios", "N")
    if (values <= 0).any():
        raise InputError("ratios must be above 0: parameters divided by the network's")
    panel = canvas.axes_or_new(ax, 1.2 + 0.34 * len(values), colours)
    start = min(0.9, 0.9 * float(values.min()))
    panel.barh(range(len(values)), values - start, left=start, height=0.62, color=colours.colours[0], alpha=0.8)
    for place, value in enumerate(values):
        panel.annotate(
            f"{value:.4g} ×",
            (value, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            color=colours.ink,
            fontsize=canvas.SIZE - 1,
        )
    panel.axvline(1, color=colours.ink, linewidth=1, linestyle="--")
    canvas.style_axes(panel, colours, title="Parameters", x="Parameters, the network = 1", grid="x")
    panel.set_xscale("log")
    panel.set_yticks(range(len(values)), list(named))
    panel.set(xlim=(start, 2.5 * float(values.max())), ylim=(len(values) - 0.4, -0.6))
    return canvas.figure_of(panel)
