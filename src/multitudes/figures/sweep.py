"""Scores over a setting: one panel for each score, one curve for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Theme, look
from multitudes.figures.values import Numbers, named_runs, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sweep(
    scores: Mapping[str, Mapping[str, tuple[Numbers, Numbers]]],
    *,
    setting: str = "setting",
    lines: Mapping[str, Mapping[str, float]] | None = None,
    log: bool = False,
    theme: Theme = "light",
) -> Figure:
    """Draws each score over a setting: {"accuracy": {"packed": (values of the setting ``[N]``, scores ``[N]``)}}.

    `lines` has scores that do not depend on the setting, {"accuracy": {"deep": 0.95}}; log=True makes the axis of the setting
    logarithmic.
    """
    colours, named = look(theme), dict(named_runs(scores, '{"accuracy": {"packed": ([1, 2], [0.8, 0.9])}}'))
    figure = canvas.new_figure(min(3.6 * len(named), 2.2 * canvas.WIDTH) + 0.6, 3.4, colours)
    panels = list(figure.subplots(1, len(named), squeeze=False).flat)
    order: dict[str, int] = {}
    for panel, (score, runs) in zip(panels, named.items(), strict=True):
        if not isinstance(runs, Mapping):
            raise InputError(f"{score!r} must be a dict of runs, {{'packed': (values, scores)}}")
        for name, (x, y) in runs.items():
            style, sizes = colours.style(order.setdefault(name, len(order))), dict[str, int]()
            x, y = read(x, f"setting of {name!r}", "N", sizes), read(y, f"{score} of {name!r}", "N", sizes)
            panel.plot(
                x, y, color=style.colour, linestyle=style.line, marker=style.marker, markersize=5, linewidth=1.8, label=name
            )
        for name, value in (lines or {}).get(score, {}).items():
            style = colours.style(order.setdefault(name, len(order)))
            panel.axhline(value, color=style.colour, linestyle=":", linewidth=1.5, label=name)
        canvas.style_axes(panel, colours, title=score, x=setting)
        if log:
            panel.set_xscale("log")
    handles, names = _legend(panels)
    canvas.legend(
        figure, colours, handles=handles, labels=names, loc="outside lower center", ncols=min(len(names), 4), frameon=False
    )
    return figure


def _legend(panels: Sequence[object]) -> tuple[list[object], list[str]]:
    """Returns the curves of all panels, each name once."""
    found: dict[str, object] = {}
    for panel in panels:
        for handle, name in zip(*panel.get_legend_handles_labels(), strict=True):  # type: ignore[attr-defined]
            found.setdefault(name, handle)
    return list(found.values()), list(found)
