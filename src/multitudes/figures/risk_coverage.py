"""Risk–coverage curve: error rate among the most confident predictions.

Geifman, El-Yaniv, "Selective Classification for Deep Neural Networks", NeurIPS 2017, https://arxiv.org/abs/1705.08500
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import confidence_and_correct
from multitudes.scores import selective

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def risk_coverage(
    runs: Mapping[str, tuple[Any, Any]], *, ignore: int | None = None, theme: Theme = "light", ax: Axes | None = None
) -> Figure:
    """Draws the risk (error rate among the accepted examples) over the coverage (share of accepted examples). Lower is better.

    `runs` maps a name to (confidence ``[N]``, correct ``[N]``) or (prediction, targets). Targets equal to `ignore` do not
    count. The legend shows the area under the curve (AURC) of each run.
    """
    colours, checked = look(theme), confidence_and_correct(runs, ignore)
    panel = canvas.axes_or_new(ax, 3.8, colours)
    for index, (name, (confidence, correct)) in enumerate(checked.items()):
        style = colours.style(index)
        coverage, risk = selective.risk_coverage(confidence, correct)
        label = f"{name}: AURC {selective.aurc(confidence, correct):.4f}"
        panel.plot(coverage.numpy(), risk.numpy(), color=style.colour, linestyle=style.line, linewidth=1.8, label=label)
    coverage_label, risk_label = "Coverage: share of examples accepted", "Risk: error rate among them"
    canvas.style_axes(panel, colours, title="Risk and coverage", x=coverage_label, y=risk_label)
    panel.set_xlim(0, 1)
    panel.set_ylim(bottom=0)
    if ax is None:
        canvas.runs_legend(panel, colours, len(checked))
    else:
        canvas.legend(panel, colours, loc="upper left")
    return canvas.figure_of(panel)
