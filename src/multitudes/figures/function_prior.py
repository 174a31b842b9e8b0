"""Functions of one variable, and the spread of many.

Chang et al., "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019, Fig. 3,
https://arxiv.org/abs/1905.09453
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import Numbers, named_runs, read

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def function_prior(
    x: Numbers,
    values: Numbers | Mapping[str, Numbers],
    *,
    curves: int = 3,
    columns: int | None = None,
    theme: Theme = "light",
    ax: Axes | None = None,
) -> Figure:
    """Draws the first `curves` functions of values ``[D, N]`` over x ``[N]``, and bands of one and two deviations over all.

    Give values as a dict, {"dropout": values, ...}, to draw one panel per name, `columns` panels to a row.
    """
    colours = look(theme)
    sizes: dict[str, int] = {}
    if curves < 0:
        raise InputError(f"curves={curves} must be 0 or more")
    across = read(x, "x", "N", sizes)
    runs = named_runs(values, '{"dropout": values}') if isinstance(values, Mapping) else [("", values)]
    draws = {n: read(run, f"values{f' of {n!r}' if n else ''}", "D N", {"N": sizes["N"]}) for n, run in runs}
    panels, order = canvas.make_panels(len(draws), ax, columns, 3.8, colours), across.argsort()
    for panel, (name, rows) in zip(panels, draws.items(), strict=True):
        mean, spread = rows.mean(0)[order], rows.std(0)[order]
        for times, alpha in ((2, 0.14), (1, 0.22)):
            label = f"±{times} standard deviation{'s' if times > 1 else ''} of all {len(rows)}"
            low, high = mean - times * spread, mean + times * spread
            panel.fill_between(across[order], low, high, color=colours.colours[0], alpha=alpha, linewidth=0, label=label)
        for index, row in enumerate(rows[:curves]):
            style = colours.style(index + 1)
            panel.plot(across[order], row[order], color=style.colour, linewidth=1.3)
        canvas.style_axes(panel, colours, title=name or "Functions")
    canvas.outer_labels(panels, colours, "x", "f(x)")
    figure = canvas.figure_of(panels[0])
    if ax is None:
        handles, names = panels[0].get_legend_handles_labels()
        canvas.legend(figure, colours, handles=handles, labels=names, loc="outside lower center", ncols=1, frameon=False)
    else:
        canvas.legend(ax, colours, loc="best")
    return figure
