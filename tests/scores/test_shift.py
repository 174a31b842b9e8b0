"""Scores under shift, by hand: mean corruption errors and the stability of frames."""

from __future__ import annotations

import pytest
import torch

import multitudes as mt
from multitudes.data.corruptions.published import EXTRA, STANDARD
from multitudes.scores.shift import ALEXNET, Errors, corruption_errors, mean_corruption_error, stability


def test_the_corruptions() -> None:
    """There are 15 standard corruptions and 4 others."""
    assert len(STANDARD) == len(set(STANDARD)) == 15
    assert len(EXTRA) == 4
    assert not set(STANDARD) & set(EXTRA)


def test_mce_and_rmce_by_hand() -> None:
    """mCE is the mean ratio of errors; rmCE is the mean ratio of increases over each run's clean error.

    Ensemble Model Patching prints another denominator of rCE, but means E_c − E_clean of the baseline.
    """
    own = Errors(0.1, {name: 0.2 + 0.01 * n for n, name in enumerate(STANDARD)})
    base = Errors(0.2, {name: 0.5 + 0.02 * n for n, name in enumerate(STANDARD)})
    mce = sum((0.2 + 0.01 * n) / (0.5 + 0.02 * n) for n in range(15)) / 15
    rmce = sum((0.1 + 0.01 * n) / (0.3 + 0.02 * n) for n in range(15)) / 15
    each = corruption_errors(own, base)
    assert mean_corruption_error(each) == pytest.approx((mce, rmce))
    assert list(each) == list(STANDARD)
    assert each["shot_noise"] == pytest.approx((0.21 / 0.52, 0.11 / 0.32))
    assert each["jpeg_compression"].rce == pytest.approx(0.24 / 0.58)


def test_a_run_is_its_own_baseline() -> None:
    """A run against itself has 1 and 1; AlexNet's errors are those of the authors' table."""
    assert mean_corruption_error(corruption_errors(ALEXNET, ALEXNET)) == pytest.approx((1, 1))
    assert round(ALEXNET.clean, 3) == 0.435
    rounded = {name: round(100 * error) for name, error in ALEXNET.corrupted.items()}
    assert [rounded[name] for name in ("gaussian_noise", "shot_noise", "impulse_noise")] == [89, 89, 92]
    assert [rounded[name] for name in ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur")] == [82, 83, 79, 80]
    assert [rounded[name] for name in ("snow", "frost", "fog", "brightness")] == [87, 83, 82, 56]
    assert [rounded[name] for name in ("contrast", "elastic_transform", "pixelate", "jpeg_compression")] == [85, 65, 72, 61]


def test_the_other_four_do_not_count() -> None:
    """Extra corruptions and unknown names do not change mCE."""
    more = Errors(ALEXNET.clean, {**ALEXNET.corrupted, **dict.fromkeys(EXTRA, 0.9), "rain": 0.9})
    assert mean_corruption_error(corruption_errors(more, ALEXNET)) == pytest.approx((1, 1))


def test_corruptions_that_are_missing() -> None:
    """Missing corruptions of the run or the baseline are named."""
    less = Errors(0.1, {name: 0.5 for name in STANDARD if name not in ("fog", "snow")})
    for pair in ((less, ALEXNET), (ALEXNET, less)):
        with pytest.raises(mt.InputError, match="snow, fog"):
            corruption_errors(*pair)


@pytest.mark.parametrize("error", [0.0, 0.25])
def test_a_baseline_that_cannot_divide(error: float) -> None:
    """A baseline without errors, or as good on corrupted as on clean data, is refused with the corruption's name."""
    base = Errors(0.25, {**dict.fromkeys(STANDARD, 0.5), "fog": error})
    with pytest.raises(mt.InputError, match="under fog"):
        corruption_errors(ALEXNET, base)


def test_stability_is_that_of_the_worst_frame() -> None:
    """Stability agrees with a loop over anchors, in any order."""
    correct, anchor = torch.rand(60) < 0.8, torch.randint(-5, 10, (60,)) * 3
    groups = {a: [bool(c) for c, b in zip(correct, anchor.tolist(), strict=True) if a == b] for a in anchor.tolist()}
    expected = sum(all(group) for group in groups.values()) / len(groups)
    assert 0 < expected < 1
    assert stability(correct, anchor) == pytest.approx(expected)
    order = torch.randperm(60)
    assert stability(correct[order], anchor[order]) == pytest.approx(expected)


def test_stability_of_single_frames_is_accuracy() -> None:
    """With one frame per anchor, stability is accuracy; with one anchor it is 0 or 1."""
    correct = torch.tensor([1.0, 0.0, 1.0, 1.0])
    assert stability(correct, torch.arange(4)) == 0.75
    assert stability(correct, torch.zeros(4)) == 0
    assert stability(torch.ones(4), torch.zeros(4)) == 1


def test_frames_that_do_not_fit_their_anchors() -> None:
    """Anchors must be one per frame."""
    with pytest.raises(mt.InputError, match=r"anchor .*\[3\] and \[2\]"):
        stability(torch.ones(3), torch.zeros(2))
    with pytest.raises(mt.InputError, match="anchor"):
        stability(torch.ones(0), torch.zeros(0))
