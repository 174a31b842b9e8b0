"""Size and overlap of masks over their scale.

Durasov, Bagautdinov, Baque, Fua, "Masksembles for Uncertainty Estimation", CVPR 2021, Fig. 3, https://arxiv.org/abs/2012.08334
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import Numbers, read
from multitudes.methods.layers.masks import columns_per_one

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def mask_statistics(runs: Mapping[int, tuple[Numbers, Numbers, Numbers]], *, theme: Theme = "light") -> Figure:
    """Draws the size, relative to the ones of a mask, and the mean IoU: measured as dots, expected as curves.

    `runs` maps a number of masks to (scale ``[S]``, size ``[S]``, IoU ``[S]``).
    """
    colours = look(theme)
    if not isinstance(runs, Mapping) or not runs:
        raise InputError("runs must be a dict of the number of masks to (scale, size, iou), {4: (scale, size, iou)}")
    checked = {}
    for members, run in runs.items():
        sizes: dict[str, int] = {}
        parts = zip(("scale", "size", "iou"), run, strict=True)
        checked[int(members)] = [read(values, f"{name} of {members} masks", "S", sizes) for name, values in parts]
        if (checked[int(members)][0] < 1).any():
            raise InputError(f"scale of {members} masks must be at least 1")
    largest = max(2.0, *(float(run[0].max()) for run in checked.values()))
    fine = np.linspace(1, largest, 200)
    figure = canvas.new_figure(1.75 * canvas.WIDTH, 3.7, colours)
    left, right = figure.subplots(1, 2)
    right.plot(fine, 1 / (2 * fine - 1), color=colours.muted, linewidth=1.4, label="expected")
    for index, (members, (scale, size, iou)) in enumerate(checked.items()):
        style = colours.style(index)
        left.plot(fine, [columns_per_one(members, s) for s in fine], color=style.colour, linewidth=1.4)
        marks = {"linestyle": "", "marker": style.marker, "markersize": 6, "color": style.colour}
        left.plot(scale, size, **marks, label=f"{members} masks")
        right.plot(scale, iou, **marks, label=f"{members} masks")
    canvas.style_axes(left, colours, title="Size", x="Scale S", y="Features, relative to one mask")
    canvas.style_axes(right, colours, title="Overlap", x="Scale S", y="Mean IoU of two masks")
    right.set_ylim(0, 1.05)
    left.set_ylim(bottom=0)
    canvas.legend(left, colours, loc="lower right")
    canvas.legend(right, colours, loc="upper right")
    return figure
