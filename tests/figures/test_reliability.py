"""The reliability diagram: points, gaps and bars equal those of scores.calibration."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from multitudes.errors import InputError
from multitudes.figures import reliability
from multitudes.scores import calibration

N, BINS = 200, 8


@pytest.fixture
def runs() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Two runs of different length; the second leaves bins empty."""
    sure, timid = torch.rand(N), torch.rand(N // 2) * 0.5
    return {"sure": (sure, torch.rand(N) < sure), "timid": (timid, torch.rand(N // 2) < 0.6)}


def test_points_gaps_and_bars_are_those_of_the_bins(runs: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    upper, lower = reliability(runs, bins=BINS).axes
    diagonal, *lines = upper.lines
    assert diagonal.get_xydata().tolist() == [[0, 0], [1, 1]]  # type: ignore[union-attr]
    for (confidence, correct), line, gaps, bars in zip(runs.values(), lines, upper.collections, lower.containers, strict=True):
        bins = calibration.reliability(confidence, correct, BINS)
        some = bins.count > 0
        assert 0 < int(some.sum()) <= BINS
        sure, right = bins.confidence[some].numpy(), bins.accuracy[some].numpy()
        np.testing.assert_array_equal(line.get_xdata(), sure)
        np.testing.assert_array_equal(line.get_ydata(), right)
        ends = [segment.tolist() for segment in gaps.get_segments()]  # type: ignore[attr-defined]
        assert ends == [[[s, r], [s, s]] for s, r in zip(sure.tolist(), right.tolist(), strict=True)]
        assert [bar.get_height() for bar in bars] == bins.count.tolist()


def test_bars_stand_in_their_bin_and_beside_each_other(runs: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    lower = reliability(runs, bins=BINS).axes[1]
    first, second = lower.containers
    for index, (one, other) in enumerate(zip(first, second, strict=True)):
        assert index / BINS <= one.get_x() < one.get_x() + one.get_width() <= other.get_x() + 1e-12
        assert other.get_x() + other.get_width() <= (index + 1) / BINS


def test_the_legend_has_the_calibration_error(runs: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    (legend,) = reliability(runs, bins=BINS).legends
    expected = [f"{name}: ECE {calibration.ece(*run, BINS):.3f}" for name, run in runs.items()]
    assert [text.get_text() for text in legend.get_texts()][1:] == expected
    assert calibration.ece(*runs["sure"], BINS) != calibration.ece(*runs["timid"], BINS)


def test_bins_of_few_examples_are_left_out() -> None:
    """As in the EMP paper: no point, no gap and no part in the ECE; the bars still show them."""
    confidence = torch.tensor([0.12] * 5 + [0.52] * 6 + [0.97] * 9, dtype=torch.float64)
    correct = torch.tensor([1] * 5 + [0, 1] * 3 + [1] * 8 + [0])
    figure = reliability({"a": (confidence, correct)}, bins=20, drop=5)
    upper, lower = figure.axes
    np.testing.assert_allclose(upper.lines[1].get_xydata(), [[0.52, 0.5], [0.97, 8 / 9]])
    assert len(upper.collections[0].get_segments()) == 2  # type: ignore[attr-defined]
    heights = [bar.get_height() for bar in lower.containers[0]]
    assert [heights[n] for n in (2, 10, 19)] == [5, 6, 9]
    (legend,) = figure.legends
    error = (6 * 0.02 + 9 * (0.97 - 8 / 9)) / 15
    assert legend.get_texts()[1].get_text() == f"a: ECE {error:.3f}"


def test_bad_input_is_refused() -> None:
    good = {"a": ([0.5], [1])}
    with pytest.raises(InputError, match="bins=0"):
        reliability(good, bins=0)
    with pytest.raises(InputError, match="drop=-1"):
        reliability(good, drop=-1)
    with pytest.raises(InputError, match="confidence"):
        reliability({"a": ([1.5], [1])})
    with pytest.raises(InputError, match="runs must be a dict"):
        reliability(([0.5], [1]))  # type: ignore[arg-type]
