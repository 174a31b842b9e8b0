"""The risk–coverage figure: its curves equal those of scores.selective."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from multitudes.errors import InputError
from multitudes.figures import risk_coverage
from multitudes.scores import selective


def test_curves_and_areas_are_those_of_the_scores() -> None:
    runs = {name: (torch.rand(50), torch.rand(50) < 0.7) for name in ("single", "packed")}
    figure = risk_coverage(runs)
    ax = figure.axes[0]
    for run, line in zip(runs.values(), ax.lines, strict=True):
        coverage, risk = selective.risk_coverage(*run)
        np.testing.assert_array_equal(line.get_xdata(), coverage)
        np.testing.assert_array_equal(line.get_ydata(), risk)
    (legend,) = figure.legends
    expected = [f"{name}: AURC {selective.aurc(*run):.4f}" for name, run in runs.items()]
    assert [text.get_text() for text in legend.get_texts()] == expected
    assert len({line.get_color() for line in ax.lines}) == len({line.get_linestyle() for line in ax.lines}) == 2


def test_it_draws_into_the_axes_of_the_caller() -> None:
    """The size of the figure stays, even with many runs."""
    figure = Figure(figsize=(4, 3))
    runs = {f"run {index}": ([0.5, 0.6], [1, 0]) for index in range(7)}
    assert risk_coverage(runs, ax=figure.subplots()) is figure
    assert figure.get_size_inches().tolist() == [4, 3]
    assert len(figure.axes[0].lines) == len(runs)
    assert figure.axes[0].get_legend() is not None


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"'a'.*pair"):
        risk_coverage({"a": [0.5, 0.6, 0.7]})  # type: ignore[dict-item]
