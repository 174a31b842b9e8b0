"""Squared bias, variance and error of a regression over the number of members.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, Fig. 2, https://arxiv.org/abs/2010.06610
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import Numbers, named_runs, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {"bias": "Squared bias", "variance": "Variance", "error": "Error"}


def bias_variance(members: Sequence[int], runs: Mapping[str, Mapping[str, Numbers]], *, theme: Theme = "light") -> Figure:
    """Draws three panels over the numbers of members ``[K]``: squared bias, variance, and their sum, the error.

    `runs` maps a name to a dict with "bias", "variance" and "error", ``[K]`` each.
    """
    colours = look(theme)
    sizes: dict[str, int] = {}
    counts = read(members, "members", "K", sizes)
    figure = canvas.new_figure(2.1 * canvas.WIDTH, 3.4, colours)
    panels = figure.subplots(1, 3)
    for index, (name, run) in enumerate(named_runs(runs, '{"ensemble": {"bias": ..., "variance": ..., "error": ...}}')):
        style = colours.style(index)
        if not isinstance(run, Mapping) or set(run) != set(PARTS):
            raise InputError(f"{name!r} must be a dict with bias, variance and error")
        for panel, part in zip(panels, PARTS, strict=True):
            values = read(run[part], f"{part} of {name!r}", "K", sizes)
            panel.plot(
                counts,
                values,
                color=style.colour,
                linestyle=style.line,
                marker=style.marker,
                markersize=6,
                linewidth=1.8,
                label=name,
            )
    for panel, title in zip(panels, PARTS.values(), strict=True):
        canvas.style_axes(panel, colours, title=title, x="Members", y="")
        panel.set_ylim(bottom=0)
        panel.set_xticks(sorted(set(counts.astype(int).tolist())))
    panels[0].set_ylabel("Mean squared error", color=colours.ink, fontsize=canvas.SIZE)
    handles, names = panels[0].get_legend_handles_labels()
    canvas.legend(figure, colours, handles=handles, labels=names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure
