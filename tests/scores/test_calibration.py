"""Calibration errors against torchmetrics and netcal, at the edges of bins and for very few examples."""

from __future__ import annotations

import warnings
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from multitudes.scores import calibration

with warnings.catch_warnings():  # of escapes in their docstrings
    warnings.simplefilter("ignore")
    from netcal.metrics import ECE, MCE


def drawn(count: int, classes: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities ``[N, K]`` of all confidences, and labels that are slightly miscalibrated."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, classes, dtype=torch.float64, generator=generator) * 2
    targets = torch.multinomial((logits / 1.7).softmax(1), 1, generator=generator).squeeze(1)
    return logits.softmax(1), targets


def top(probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Confidences, and whether the labels are right."""
    confidence, labels = probs.max(1)
    return confidence, labels == targets


def netcal(rule: Any, confidence: Tensor, correct: Tensor) -> float:
    """The error measured by netcal."""
    return float(rule.measure(confidence.double().numpy(), correct.long().numpy()))


SETS = {
    "random": top(*drawn(500)),
    "few": top(*drawn(7, seed=1)),
    "one": top(*drawn(1, seed=2)),
    "binary": top(*drawn(200, classes=2, seed=3)),
    "one class": (torch.ones(9, dtype=torch.float64), torch.ones(9, dtype=torch.bool)),
    "sure and wrong": (torch.ones(9, dtype=torch.float64), torch.zeros(9, dtype=torch.bool)),
    "sure": (torch.ones(9, dtype=torch.float64), torch.arange(9) % 4 > 0),
    "never sure": (torch.zeros(9, dtype=torch.float64), torch.arange(9) % 4 > 0),
    "ties": (torch.tensor([0.31, 0.31, 0.72, 0.72, 0.72, 0.9] * 5, dtype=torch.float64), torch.arange(30) % 7 > 2),
}


@pytest.mark.parametrize("bins", [1, 10, 15, 20])
@pytest.mark.parametrize("name", SETS)
def test_ece_and_mce_are_those_of_netcal(name: str, bins: int) -> None:
    """netcal's bins are [i/B, (i+1)/B), the last one closed: results agree except at inner edges."""
    confidence, correct = SETS[name]
    assert calibration.ece(confidence, correct, bins) == pytest.approx(netcal(ECE(bins), confidence, correct), abs=1e-6)
    assert calibration.mce(confidence, correct, bins) == pytest.approx(netcal(MCE(bins), confidence, correct), abs=1e-6)


@pytest.mark.parametrize("bins", [1, 10, 15, 20])
@pytest.mark.parametrize(("count", "classes", "seed"), [(500, 5, 0), (7, 5, 1), (1, 5, 2), (200, 2, 3), (300, 100, 4)])
def test_ece_and_mce_are_those_of_torchmetrics(count: int, classes: int, seed: int, bins: int) -> None:
    """torchmetrics computes in single precision: results agree to 1e-6."""
    probs, targets = drawn(count, classes, seed)
    found = top(probs, targets)
    for rule, norm in ((calibration.ece, "l1"), (calibration.mce, "max")):
        outside = multiclass_calibration_error(probs, targets, num_classes=classes, n_bins=bins, norm=norm)
        assert rule(*found, bins) == pytest.approx(float(outside), abs=1e-6)


def test_a_confidence_of_one_belongs_to_the_last_bin() -> None:
    """netcal does the same. torchmetrics has an extra bin for 1, in which errors of opposite sign do not cancel."""
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.95, 0.05], [0.95, 0.05]], dtype=torch.float64)
    confidence, correct = top(probs, torch.tensor([0, 1, 0, 0]))
    found = calibration.ece(confidence, correct)
    assert found == pytest.approx(0.225) == netcal(ECE(15), confidence, correct)
    outside = multiclass_calibration_error(probs, torch.tensor([0, 1, 0, 0]), num_classes=2, n_bins=15)
    assert float(outside) == pytest.approx(0.275)


def test_an_edge_belongs_to_the_bin_below() -> None:
    """Bins are (i/B, (i+1)/B], whatever the rounding of i/B · B; 0 is in the first."""
    for bins in range(1, 101):
        edges = torch.arange(bins + 1, dtype=torch.float64) / bins
        assert calibration.bin_of(edges, bins).tolist() == [0, *range(bins)], bins
        above = torch.nextafter(edges[:-1], torch.ones(bins, dtype=torch.float64))
        assert calibration.bin_of(above, bins).tolist() == list(range(bins)), bins
        shown = calibration.reliability(edges, torch.ones(bins + 1), bins)
        assert shown.count.tolist() == [2.0] + [1.0] * (bins - 1)
        assert torch.equal(shown.upper, edges[1:])


def test_bins_that_are_left_out() -> None:
    """Ensemble Model Patching has 20 bins, without those of at most 5 examples; against a loop and netcal.

    netcal leaves out such bins, but counts their examples in N.
    """
    confidence, correct = SETS["random"]
    number = (confidence * 20).ceil().long() - 1
    gaps, sizes = [], []
    for index in range(20):
        chosen = number == index
        if chosen.sum() > 5:
            gaps.append(abs(float(correct[chosen].double().mean() - confidence[chosen].mean())))
            sizes.append(int(chosen.sum()))
    assert 0 < sum(sizes) < 500
    expected = sum(gap * size for gap, size in zip(gaps, sizes, strict=True)) / sum(sizes)
    assert calibration.ece(confidence, correct, bins=20, drop=5) == pytest.approx(expected, abs=1e-12)
    assert calibration.mce(confidence, correct, bins=20, drop=5) == pytest.approx(max(gaps), abs=1e-12)
    outside = netcal(ECE(20, sample_threshold=6), confidence, correct) * 500 / sum(sizes)
    assert calibration.ece(confidence, correct, bins=20, drop=5) == pytest.approx(outside, abs=1e-6)
    assert netcal(MCE(20, sample_threshold=6), confidence, correct) == pytest.approx(max(gaps), abs=1e-6)


def test_at_most_means_at_most() -> None:
    """drop=5 leaves out a bin of 5 examples, drop=4 does not; without any bin the error is NaN."""
    confidence, correct = torch.tensor([0.5] * 5 + [0.9] * 6), torch.tensor([1.0] * 5 + [0.0] * 6)
    assert calibration.ece(confidence, correct, 20, drop=5) == pytest.approx(0.9)
    assert calibration.ece(confidence, correct, 20, drop=4) == pytest.approx((5 * 0.5 + 6 * 0.9) / 11)
    assert np.isnan(calibration.ece(confidence, correct, 20, drop=6))
    assert np.isnan(calibration.mce(confidence, correct, 20, drop=6))


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("count", [1, 4, 30, 300, 307])
def test_ace_has_bins_of_equally_many(count: int, bins: int) -> None:
    """Bins are numpy's split of the sorted examples, and netcal's quantile bins if `bins` divides the number of examples.

    netcal's own ACE is another score, the plain mean over bins of equal width.
    """
    confidence, correct = top(*drawn(count, seed=count))
    order = confidence.argsort()
    pairs = zip(np.array_split(confidence[order], bins), np.array_split(correct[order].double(), bins), strict=True)
    expected = sum(abs(float(a.sum() - b.sum())) for a, b in pairs if len(a)) / count
    assert calibration.ace(confidence, correct, bins) == pytest.approx(expected, abs=1e-9)
    if count % bins == 0:
        outside = netcal(ECE(bins, equal_intervals=False), confidence, correct)
        assert calibration.ace(confidence, correct, bins) == pytest.approx(outside, abs=1e-6)


def test_ace_of_equal_confidences() -> None:
    """Examples of equal confidence count as one bin, in any order."""
    confidence = torch.full((60,), 0.7, dtype=torch.float64)
    sorted_one, mixed = torch.arange(60) < 30, torch.arange(60) % 2 == 0
    assert calibration.ace(confidence, sorted_one) == pytest.approx(0.2) == calibration.ace(confidence, mixed)


def test_the_adaptive_diagram() -> None:
    """Counts differ by one at most, bounds are examples, and surplus bins are empty."""
    confidence, correct = top(*drawn(37))
    found = calibration.adaptive(confidence, correct, 5)
    assert found.count.tolist() == [8, 8, 7, 7, 7]
    ordered = confidence.sort().values
    assert found.lower.tolist() == ordered[[0, 8, 16, 23, 30]].tolist()
    assert found.upper.tolist() == ordered[[7, 15, 22, 29, 36]].tolist()
    empty = calibration.adaptive(confidence[:2], correct[:2], 4)
    assert empty.count.tolist() == [1, 1, 0, 0]
    assert empty.lower.isnan().tolist() == empty.confidence.isnan().tolist() == [False, False, True, True]


@pytest.mark.parametrize("bins", [1, 15])
@pytest.mark.parametrize(("count", "classes"), [(400, 5), (100, 2), (1, 3), (50, 1)])
def test_classwise_ece(count: int, classes: int, bins: int) -> None:
    """The classwise ECE is the mean of netcal's ECE of each class."""
    probs, targets = drawn(count, classes)
    each = [netcal(ECE(bins), probs[:, k], targets == k) for k in range(classes)]
    assert calibration.classwise_ece(probs, targets, bins) == pytest.approx(np.mean(each), abs=1e-6)


def test_classwise_bins_add_up() -> None:
    """The sums of parts add up to those of the whole."""
    probs, targets = drawn(90)
    whole = calibration.classwise_bins(probs, targets, 15)
    parts = [calibration.classwise_bins(probs[a:b], targets[a:b], 15) for a, b in ((0, 1), (1, 60), (60, 90))]
    torch.testing.assert_close(sum(parts), whole)
    assert whole.shape == (3, 5, 15)
    assert float(whole[0].sum()) == 450
    assert float(whole[1].sum()) == pytest.approx(90)
    assert float(whole[2].sum()) == 90


def test_classwise_bins_have_the_same_edges() -> None:
    """Bins are (i/B, (i+1)/B], with 0 in the first."""
    probs = torch.tensor([[0.25, 0.75], [0.5, 0.5], [1.0, 0.0]])
    found = calibration.classwise_bins(probs, torch.tensor([0, 0, 1]), 4)
    assert found[0].tolist() == [[1, 1, 0, 1], [1, 1, 1, 0]]
    assert found[2].tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]
    for bins in (25, 50, 100):  # where i/B · B is rounded to more than i
        edges = torch.arange(bins + 1, dtype=torch.float64) / bins
        count = calibration.classwise_bins(edges[:, None], torch.zeros(bins + 1, dtype=torch.int64), bins)[0, 0]
        assert count.tolist() == [2.0] + [1.0] * (bins - 1), bins


def test_the_reliability_diagram() -> None:
    """Bounds, counts and means of each bin; the means of an empty bin are NaN."""
    found = calibration.reliability(torch.tensor([0.1, 0.2, 0.9]), torch.tensor([0.0, 1.0, 1.0]), 4)
    assert found.lower.tolist() == [0.0, 0.25, 0.5, 0.75]
    assert found.upper.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert found.count.tolist() == [2, 0, 0, 1]
    torch.testing.assert_close(found.confidence, torch.tensor([0.15, np.nan, np.nan, 0.9]).double(), equal_nan=True)
    torch.testing.assert_close(found.accuracy, torch.tensor([0.5, np.nan, np.nan, 1.0]).double(), equal_nan=True)


def test_a_million_are_summed_in_double_precision() -> None:
    """A million float32 values of 0.1 have the mean 0.1."""
    confidence = torch.full((1_000_000,), 0.1)
    assert calibration.ece(confidence, torch.zeros(1_000_000)) == pytest.approx(0.1, abs=1e-8)
    classwise = calibration.classwise_bins(confidence[:, None], torch.zeros(1_000_000, dtype=torch.int64), 15)
    assert float(classwise[1].sum()) == pytest.approx(1e5, rel=1e-7)


@settings(max_examples=40)
@given(count=st.integers(1, 60), classes=st.integers(1, 8), bins=st.integers(1, 30), seed=st.integers(0, 2**31))
def test_bounds_and_orders(count: int, classes: int, bins: int, seed: int) -> None:
    """Errors are between 0 and 1, ECE ≤ MCE, and the order of rows and classes does not matter."""
    probs, targets = drawn(count, classes, seed)
    confidence, correct = top(probs, targets)
    found = {rule: rule(confidence, correct, bins) for rule in (calibration.ece, calibration.mce, calibration.ace)}
    assert all(0 <= value <= 1 + 1e-12 for value in found.values())
    assert found[calibration.ece] <= found[calibration.mce] + 1e-12
    generator = torch.Generator().manual_seed(seed)
    rows, order = torch.randperm(count, generator=generator), torch.randperm(classes, generator=generator)
    for rule, value in found.items():
        assert rule(confidence[rows], correct[rows], bins) == pytest.approx(value, abs=1e-9)
    classwise = calibration.classwise_ece(probs, targets, bins)
    assert 0 <= classwise <= 1
    assert calibration.classwise_ece(probs[rows][:, order], order.argsort()[targets[rows]], bins) == pytest.approx(classwise)


@pytest.mark.parametrize("rule", [calibration.ece, calibration.mce, calibration.ace])
def test_who_knows_everything_is_calibrated(rule: Any) -> None:
    """Certain and correct predictions have no calibration error."""
    assert rule(torch.ones(12), torch.ones(12)) == 0
