"""Canvas: new figures or the caller's axes, and panels with labels on the outside only."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import look

LIGHT = look("light")


def test_the_axes_of_the_caller_are_used() -> None:
    figure = Figure()
    ax = figure.subplots()
    assert canvas.axes_or_new(ax, 3, LIGHT) is ax
    assert canvas.figure_of(ax) is figure
    assert canvas.make_panels(1, ax, None, 3, LIGHT) == [ax]


def test_axes_of_a_subfigure_belong_to_the_whole_figure() -> None:
    figure = Figure()
    assert canvas.figure_of(figure.subfigures(1, 2)[0].subplots()) is figure


def test_wrong_axes_and_columns_are_refused() -> None:
    with pytest.raises(InputError, match="Axes, not ndarray"):
        canvas.axes_or_new(Figure().subplots(1, 2), 3, LIGHT)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"ax=.* 2"):
        canvas.make_panels(2, Figure().subplots(), None, 3, LIGHT)
    with pytest.raises(InputError, match="columns=0"):
        canvas.make_panels(2, None, 0, 3, LIGHT)


@pytest.mark.parametrize(
    ("columns", "below", "left"), [(None, [1, 2], [0, 2]), (1, [2], [0, 1, 2]), (3, [0, 1, 2], [0]), (9, [0, 1, 2], [0])]
)
def test_only_outer_panels_have_labels(columns: int | None, below: list[int], left: list[int]) -> None:
    """Also if the last row is not full."""
    panels = canvas.make_panels(3, None, columns, 3, LIGHT)
    canvas.outer_labels(panels, LIGHT, "x", "y")
    assert len(canvas.figure_of(panels[0]).axes) == 3
    assert [index for index, panel in enumerate(panels) if panel.get_xlabel()] == below
    assert [index for index, panel in enumerate(panels) if panel.get_ylabel()] == left
    assert [i for i, panel in enumerate(panels) if panel.xaxis.get_tick_params()["labelbottom"]] == below


def test_one_panel_has_both_labels() -> None:
    panels = canvas.make_panels(1, None, None, 3, LIGHT)
    canvas.outer_labels(panels, LIGHT, "x", "y")
    assert (panels[0].get_xlabel(), panels[0].get_ylabel()) == ("x", "y")


def test_a_legend_goes_below_the_axes_of_a_taller_figure() -> None:
    """Over no curve, however few there are."""
    for count in (1, 6):
        ax = canvas.axes_or_new(None, 3, LIGHT)
        for index in range(count):
            ax.plot([0, 1], [index, 1], label=f"run {index}")
        canvas.runs_legend(ax, LIGHT, count)
        figure = canvas.figure_of(ax)
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == [f"run {index}" for index in range(count)]
        assert figure.get_figheight() > 3
        figure.draw_without_rendering()
        assert not legend.get_window_extent().overlaps(ax.get_window_extent())


def test_the_scale_is_the_themes() -> None:
    found = canvas.scale(LIGHT)
    assert found.N == 256
    assert found(0.0)[:3] == pytest.approx((1, 1, 1))
