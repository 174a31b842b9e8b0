"""The OOD figure: histograms with common bins, and the ROC of scores.detection."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from multitudes.errors import InputError
from multitudes.figures import ood
from multitudes.figures.theme import look
from multitudes.scores import detection

BINS = 12


@pytest.fixture
def runs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Two runs with more examples in than out of distribution, on different scales."""
    return {"single": (torch.randn(80), torch.randn(30) + 1), "packed": (torch.randn(80), 5 * torch.randn(30) + 9)}


@pytest.mark.parametrize("columns", [1, 2])
def test_histograms_hold_shares_and_curves_the_roc(runs: dict[str, tuple[torch.Tensor, torch.Tensor]], columns: int) -> None:
    *histograms, curves = ood(runs, bins=BINS, columns=columns).axes
    for (inside, outside), ax, line in zip(runs.values(), histograms, curves.lines[:-1], strict=True):
        edges = np.linspace(float(min(inside.min(), outside.min())), float(max(inside.max(), outside.max())), BINS + 1)
        for values, drawn in zip((inside, outside), ax.patches[::2], strict=True):
            share, at, _ = drawn.get_data()  # type: ignore[attr-defined]
            np.testing.assert_allclose(at, edges, rtol=1e-6)
            np.testing.assert_allclose(share, np.histogram(values.double(), at)[0] / len(values))
            assert share.sum() == pytest.approx(1)
        score, out = torch.cat([inside, outside]).double(), torch.arange(110) >= 80
        fpr, tpr = detection.roc(score, out)
        np.testing.assert_array_equal(line.get_xdata(), fpr)
        np.testing.assert_array_equal(line.get_ydata(), tpr)
    legend = curves.get_legend()
    assert legend is not None
    expected = [f"{n}: AUROC {detection.auroc(torch.cat(run), torch.arange(110) >= 80):.3f}" for n, run in runs.items()]
    assert [text.get_text() for text in legend.get_texts()] == expected


def test_few_runs_have_histograms_and_all_have_a_curve(runs: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Curves keep the colour of their histogram, and no legend lies over the curves."""
    figure = ood(runs, name="svhn", histograms=1)
    histogram, curves = figure.axes
    assert curves.get_title(loc="left") == "Detection of svhn (ROC)"
    assert [line.get_color() for line in curves.lines[:-1]] == [look("light").style(index).colour for index in range(len(runs))]
    figure.draw_without_rendering()
    for ax in (histogram, curves):
        legend = ax.get_legend()
        assert legend is not None
        assert not any(legend.get_window_extent().overlaps(other.get_window_extent()) for other in figure.axes)
    with pytest.raises(InputError, match="histograms=0"):
        ood(runs, histograms=0)


@pytest.mark.slow
def test_the_roc_stands_beside_or_below(runs: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    for columns, beside in ((2, True), (1, False)):
        figure = ood(runs, columns=columns)
        figure.draw_without_rendering()
        first, *_, curves = (ax.get_position() for ax in figure.axes)
        assert (curves.x0 > first.x1) == beside
        assert (curves.y1 < first.y0) != beside


def test_the_score_has_its_name_below_the_last_histogram(runs: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    assert [ax.get_xlabel() for ax in ood(runs, score="entropy").axes] == ["", "Entropy", "False positive rate"]


def test_equal_scores_are_drawn_too() -> None:
    """A constant score gives one full bin per histogram, and the diagonal as the ROC."""
    histogram, curves = ood({"flat": ([1.0, 1.0], [1.0])}, bins=3).axes
    for drawn in histogram.patches[::2]:
        assert drawn.get_data()[0].tolist() == [0, 1, 0]  # type: ignore[attr-defined]
    assert curves.lines[0].get_xydata().tolist() == [[0, 0], [1, 1]]  # type: ignore[union-attr]


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="score_out of 'a' is empty"):
        ood({"a": ([1.0], [])})
    with pytest.raises(InputError, match="score_in of 'a' is NaN"):
        ood({"a": ([float("nan")], [1.0])})
    for wrong in ({"bins": 0}, {"columns": 3}):
        with pytest.raises(InputError, match=r"bins=.*columns="):
            ood({"a": ([1.0], [2.0])}, **wrong)
