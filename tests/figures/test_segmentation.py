"""Segmentation: the four images show the arguments, and a label has one colour in both label images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from multitudes.errors import InputError
from multitudes.figures import segmentation

H, W = 4, 6
IMAGE = torch.rand(3, H, W, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(H * W).reshape(H, W) % 3
GUESS = torch.where(torch.arange(W) < 3, LABELS, 0)
ENTROPY = torch.linspace(0, 1, H * W).reshape(H, W)


def test_images_show_the_arguments() -> None:
    image, truth, guess, doubt = (ax.images[0] for ax in segmentation(IMAGE, LABELS, GUESS, ENTROPY).axes)
    np.testing.assert_array_equal(image.get_array(), IMAGE.double().permute(1, 2, 0))
    np.testing.assert_array_equal(truth.get_array(), LABELS)
    np.testing.assert_array_equal(guess.get_array(), GUESS)
    np.testing.assert_array_equal(doubt.get_array(), ENTROPY.double())
    assert doubt.get_clim() == (0, 1)


def test_a_label_has_the_same_colour_in_truth_and_prediction() -> None:
    """Also if the prediction lacks the last class."""
    figure = segmentation(IMAGE, LABELS, torch.zeros(H, W), ENTROPY, classes=["sky", "road", "car"])
    _, truth, guess, _ = (ax.images[0] for ax in figure.axes)
    for label in range(3):
        assert truth.to_rgba(label) == guess.to_rgba(label)
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["sky", "road", "car"]
    colours = [handle.get_facecolor() for handle in legend.get_patches()]
    assert colours == [truth.to_rgba(label) for label in range(3)]
    assert len(set(colours)) == 3


def test_many_classes_have_different_colours() -> None:
    labels = torch.arange(H * W).reshape(H, W)
    truth = segmentation(IMAGE, labels, labels, ENTROPY).axes[1].images[0]
    assert len({truth.to_rgba(label) for label in range(H * W)}) == H * W


def test_ignored_pixels_are_blank_and_not_counted() -> None:
    labels = LABELS.clone()
    labels[:, 3:] = 255
    figure = segmentation(IMAGE, labels, GUESS, ENTROPY, ignore=255)
    _, truth, guess, _ = figure.axes
    np.testing.assert_array_equal(np.ma.getmaskarray(truth.images[0].get_array()), labels == 255)
    assert guess.get_title(loc="left") == "Prediction: 100.0% correct"
    right = float((LABELS == GUESS).double().mean())
    assert segmentation(IMAGE, LABELS, GUESS, ENTROPY).axes[2].get_title(loc="left") == f"Prediction: {right:.1%} correct"
    assert right < 1


def test_bytes_and_grey_images_are_taken() -> None:
    grey = (IMAGE[:1] * 255).round().to(torch.uint8)
    for image in (grey, grey.numpy()):
        shown = segmentation(image, LABELS, GUESS, ENTROPY).axes[0].images[0]
        np.testing.assert_allclose(shown.get_array(), grey[0] / 255.0, rtol=1e-6)
        assert shown.get_clim() == (0, 1)


@pytest.mark.parametrize(("columns", "rows"), [(4, 1), (2, 2), (1, 4)])
def test_pictures_stand_in_columns(columns: int, rows: int) -> None:
    figure = segmentation(IMAGE, LABELS, GUESS, ENTROPY, columns=columns)
    figure.draw_without_rendering()
    places = [ax.get_position() for ax in figure.axes]
    assert len({round(place.x0, 3) for place in places}) == columns
    assert len({round(place.y0, 3) for place in places}) == rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": IMAGE.permute(1, 2, 0)}, r"image must be \[3, H, W\]"),
        ({"image": IMAGE * 3 - 1}, "image must be in 0 to 1"),
        ({"labels": LABELS[1:]}, r"labels .*\[H, W\] with H = 4"),
        ({"predicted": GUESS + 0.5}, "predicted must be integers"),
        ({"labels": LABELS - 1}, "a label is negative.*ignore="),
        ({"classes": ["sky", "road"]}, "label 2 .*classes"),
        ({"labels": LABELS * 0, "ignore": 0}, "every pixel .*ignore=0"),
        ({"entropy": -ENTROPY}, "entropy is negative"),
        ({"top": 0.0}, "top=0.0"),
        ({"columns": 3}, "columns=3"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"image": IMAGE, "labels": LABELS, "predicted": GUESS, "entropy": ENTROPY}
    with pytest.raises(InputError, match=message):
        segmentation(**(arguments | change))
