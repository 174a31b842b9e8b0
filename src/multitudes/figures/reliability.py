"""Reliability diagram: accuracy by confidence.

Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, https://arxiv.org/abs/1706.04599
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import confidence_and_correct
from multitudes.scores import calibration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reliability(
    runs: Mapping[str, tuple[Any, Any]],
    bins: int = 15,
    drop: int = 0,
    *,
    ignore: int | None = None,
    theme: Theme = "light",
) -> Figure:
    """Draws accuracy over confidence in bins, with the gap to the diagonal as a vertical line, and the examples per bin below.

    `runs` maps a name to (confidence ``[N]``, correct ``[N]``) or (prediction, targets). Targets equal to `ignore` do not
    count. The legend shows the expected calibration error (ECE) of each run. Bins with at most `drop` examples are left out of
    the curve and of the ECE; the bars show all examples. The EMP paper uses bins=20, drop=5.
    """
    if drop < 0:
        raise InputError(f"drop={drop} must be at least 0: bins with at most so many examples are left out")
    colours, checked = look(theme), confidence_and_correct(runs, ignore)
    figure = canvas.new_figure(canvas.WIDTH, 5.6, colours)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    upper.plot([0, 1], [0, 1], color=colours.muted, linewidth=1, linestyle=(0, (4, 3)), label="perfect calibration", zorder=1)
    for index, (name, (confidence, correct)) in enumerate(checked.items()):
        style, binned = colours.style(index), calibration.reliability(confidence, correct, bins)
        some = binned.count > drop
        sure, right = binned.confidence[some].numpy(), binned.accuracy[some].numpy()
        label = f"{name}: ECE {calibration.ece(confidence, correct, bins, drop):.3f}"
        upper.vlines(sure, right, sure, color=style.colour, linewidth=2.5, alpha=0.35, zorder=2)
        upper.plot(
            sure, right, color=style.colour, linestyle=style.line, marker=style.marker, markersize=5, linewidth=1.6, label=label
        )
        width = 0.86 / bins / len(checked)
        left = binned.lower.numpy() + 0.07 / bins + index * width
        lower.bar(left, binned.count.numpy(), width, align="edge", color=style.colour, label=name)
    canvas.style_axes(upper, colours, title="Reliability", y="Accuracy")
    canvas.style_axes(lower, colours, x="Confidence", y="Examples", grid="y")
    upper.set(xlim=(0, 1), ylim=(0, 1))
    upper.tick_params(bottom=False)
    lower.yaxis.get_major_locator().set_params(nbins=3)
    canvas.runs_legend(upper, colours, len(checked))
    return figure
