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
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def ood(
    runs: Mapping[str, tuple[Numbers, Numbers]],
    bins: int = 30,
    *,
    score: str = "score",
    name: str = "",
    histograms: int | None = None,
    columns: int = 2,
    theme: Theme = "light",
) -> Figure:
    """Draws a histogram of in- and out-of-distribution scores for each run, and the ROC curves of all runs.

    `runs` maps a name to (score_in ``[N]``, score_out ``[M]``), larger for more out-of-distribution. `score` is the
    name of the score, such as "entropy", and `name` that of the out-of-distribution set. Only the first `histograms` runs have
    a histogram; None for all. columns=1 puts the ROC below the histograms. The legend shows the AUROC of each run.
    """
    colours, every = look(theme), _scores(runs)
    if bins < 1 or columns not in (1, 2):
        raise InputError(f"bins={bins} must be at least 1, and columns={columns} must be 1 or 2")
    if histograms is not None and histograms < 1:
        raise InputError(f"histograms={histograms} must be at least 1, or None for all runs")
    scores = dict(list(every.items())[:histograms])
    tall = max(3.7, 0.5 + 1.7 * len(scores)) + 0.22 * len(every)
    figure = (
        canvas.new_figure(7.8, tall, colours)
        if columns == 2
        else canvas.new_figure(canvas.WIDTH, 4.2 + 1.9 * len(scores) + 0.22 * len(every), colours)
    )
    if columns == 2:
        grid = figure.add_gridspec(len(scores), 2)
        places, last = [grid[row, 0] for row in range(len(scores))], grid[:, 1]
    else:
        grid = figure.add_gridspec(len(scores) + 1, 1, height_ratios=[*[1.0] * len(scores), 2.2])
        places, last = [grid[row, 0] for row in range(len(scores))], grid[len(scores), 0]
    panels, curves = [figure.add_subplot(place) for place in places], figure.add_subplot(last)
    kinds: list[tuple[Artist, Artist]] = []
    for index, (ax, (run, (inside, outside))) in enumerate(zip(panels, scores.items(), strict=True)):
        kinds.append(_histogram(ax, inside, outside, bins, colours.style(index), colours))
        canvas.style_axes(ax, colours, title=run, x=score.capitalize() if ax is panels[-1] else "", y="Share", grid="y")
    for index, (run, (inside, outside)) in enumerate(every.items()):
        _roc(curves, run, inside, outside, colours.style(index))
    curves.plot([0, 1], [0, 1], color=colours.muted, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    canvas.style_axes(
        curves,
        colours,
        title=f"Detection of {name} (ROC)" if name else "Detection (ROC)",
        x="False positive rate",
        y="True positive rate",
    )
    curves.set(xlim=(0, 1), ylim=(0, 1.01))
    _kinds_legend(panels[-1], kinds, colours)
    canvas.legend(curves, colours, loc="upper left", bbox_to_anchor=(0, -0.12 if columns == 2 else -0.22), frameon=False)
    return figure


def _scores(runs: Mapping[str, tuple[Numbers, Numbers]]) -> dict[str, tuple[Floats, Floats]]:
    scores = {}
    for name, run in named_runs(runs, '{"single": (score_in, score_out)}'):
        inside, outside = pair(run, name, "(score_in [N], score_out [M])")
        scores[name] = read(inside, f"score_in of {name!r}", "N"), read(outside, f"score_out of {name!r}", "M")
    return scores


def _histogram(ax: Axes, inside: Floats, outside: Floats, bins: int, style: Style, look: Look) -> tuple[Artist, Artist]:
    """Draws the share of examples per bin, in and out of distribution, with common bins. Returns both for the legend."""
    edges = np.histogram_bin_edges(np.concatenate([inside, outside]), bins)
    areas: list[Artist] = []
    for values, colour in ((inside, look.muted), (outside, style.colour)):
        share = np.histogram(values, edges)[0] / len(values)
        areas.append(ax.stairs(share, edges, fill=True, color=colour, alpha=0.45))
        ax.stairs(share, edges, color=colour, linewidth=1.3)
    return areas[0], areas[1]


def _kinds_legend(ax: Axes, kinds: list[tuple[Artist, Artist]], look: Look) -> None:
    """Adds one legend for all histograms below the last one: grey, and the colours of the runs."""
    from matplotlib.legend_handler import HandlerTuple

    handles = [kinds[0][0], tuple(outside for _, outside in kinds)]
    canvas.legend(
        ax,
        look,
        handles=handles,
        labels=["in distribution", "out of distribution"],
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
        loc="upper left",
        bbox_to_anchor=(0, -0.36),
        frameon=False,
    )


def _roc(ax: Axes, name: str, inside: Floats, outside: Floats, style: Style) -> None:
    score = torch.from_numpy(np.concatenate([inside, outside]))
    out = torch.arange(len(score)) >= len(inside)
    fpr, tpr = detection.roc(score, out)
    label = f"{name}: AUROC {detection.auroc(score, out):.3f}"
    ax.plot(fpr.numpy(), tpr.numpy(), color=style.colour, linestyle=style.line, linewidth=1.8, label=label)
