"""Histograms and ROC curves of a score for out-of-distribution detection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Look, Style, Theme, look
from multitudes.figures.values import Floats, Numbers, named_runs, pair, read
from multitudes.scores import detection

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def ood(
    runs: Mapping[str, tuple[Numbers, Numbers]],
    bins: int = 30,
    *,
    score: str = "score",
    columns: int = 2,
    theme: Theme = "light",
) -> Figure:
    """Draws a histogram of in- and out-of-distribution scores for each run, and the ROC curves of all runs.

    `runs` maps a name to (score_in ``[N]``, score_out ``[M]``), larger for more out-of-distribution. `score` is the
    name of the score, such as "entropy". columns=1 puts the ROC below the histograms. The legend shows the AUROC of each run.
    """
    colours, scores = look(theme), _scores(runs)
    if bins < 1 or columns not in (1, 2):
        raise InputError(f"bins={bins} must be at least 1, and columns={columns} must be 1 or 2")
    tall = max(3.7, 0.5 + 1.7 * len(scores))
    figure = (
        canvas.new_figure(7.8, tall, colours)
        if columns == 2
        else canvas.new_figure(canvas.WIDTH, 4.2 + 1.9 * len(scores), colours)
    )
    if columns == 2:
        grid = figure.add_gridspec(len(scores), 2)
        places, last = [grid[row, 0] for row in range(len(scores))], grid[:, 1]
    else:
        grid = figure.add_gridspec(len(scores) + 1, 1, height_ratios=[*[1.0] * len(scores), 2.2])
        places, last = [grid[row, 0] for row in range(len(scores))], grid[len(scores), 0]
    histograms, curves = [figure.add_subplot(place) for place in places], figure.add_subplot(last)
    for index, (ax, (name, (inside, outside))) in enumerate(zip(histograms, scores.items(), strict=True)):
        _histogram(ax, inside, outside, bins, colours.style(index), colours)
        canvas.style_axes(ax, colours, title=name, x=score.capitalize() if ax is histograms[-1] else "", y="Share", grid="y")
        _roc(curves, name, inside, outside, colours.style(index))
    curves.plot([0, 1], [0, 1], color=colours.muted, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    canvas.style_axes(curves, colours, title="Detection (ROC)", x="False positive rate", y="True positive rate")
    curves.set(xlim=(0, 1), ylim=(0, 1.01))
    canvas.legend(curves, colours, loc="lower right")
    return figure


def _scores(runs: Mapping[str, tuple[Numbers, Numbers]]) -> dict[str, tuple[Floats, Floats]]:
    scores = {}
    for name, run in named_runs(runs, '{"single": (score_in, score_out)}'):
        inside, outside = pair(run, name, "(score_in [N], score_out [M])")
        scores[name] = read(inside, f"score_in of {name!r}", "N"), read(outside, f"score_out of {name!r}", "M")
    return scores


def _histogram(ax: Axes, inside: Floats, outside: Floats, bins: int, style: Style, look: Look) -> None:
    """Draws the share of examples per bin, in and out of distribution, with common bins."""
    edges = np.histogram_bin_edges(np.concatenate([inside, outside]), bins)
    kinds = (("in distribution", inside, look.muted), ("out of distribution", outside, style.colour))
    for label, values, colour in kinds:
        share = np.histogram(values, edges)[0] / len(values)
        ax.stairs(share, edges, fill=True, color=colour, alpha=0.45, label=label)
        ax.stairs(share, edges, color=colour, linewidth=1.3)
    ax.set_ylim(0, ax.dataLim.ymax * 1.35)  # room for the legend above
    canvas.legend(ax, look, loc="upper right", ncols=2, columnspacing=1.2, handlelength=1.4)


def _roc(ax: Axes, name: str, inside: Floats, outside: Floats, style: Style) -> None:
    score = torch.from_numpy(np.concatenate([inside, outside]))
    out = torch.arange(len(score)) >= len(inside)
    fpr, tpr = detection.roc(score, out)
    label = f"{name}: AUROC {detection.auroc(score, out):.3f}"
    ax.plot(fpr.numpy(), tpr.numpy(), color=style.colour, linestyle=style.line, linewidth=1.8, label=label)
