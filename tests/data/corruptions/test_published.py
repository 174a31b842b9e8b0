"""Every number is that of the authors' scripts, which are written down here again, and every number is used.

The scripts are ImageNet-C/create_c/make_cifar_c.py and make_imagenet_c.py of https://github.com/hendrycks/robustness. Each
column of a row here is one severity, and each line of a corruption one of its numbers, in the order in which the scripts have
them. Frost deviates on purpose: its two weights are the published ones, but what they weigh is generated ice, where the scripts
cut from photographs.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pictures import pictures

from multitudes.data.corruptions import spatter
from multitudes.data.corruptions.corrupt import NAMES, corrupt
from multitudes.data.corruptions.published import CIFAR, EXTRA, IMAGENET, SEVERITIES, SMALL, STANDARD, level

Rows = dict[str, list[list[float]]]

SIDE_32, SIDE_224 = 32, 224
"""The images that the scripts are for."""

CIFAR_SCRIPT: Rows = {
    "gaussian_noise": [[0.04, 0.06, 0.08, 0.09, 0.10]],
    "shot_noise": [[500, 250, 100, 75, 50]],
    "impulse_noise": [[0.01, 0.02, 0.03, 0.05, 0.07]],
    "speckle_noise": [[0.06, 0.10, 0.12, 0.16, 0.20]],
    "gaussian_blur": [[0.4, 0.6, 0.7, 0.8, 1.0]],
    "glass_blur": [[0.05, 0.25, 0.4, 0.25, 0.4], [1, 1, 1, 1, 1], [1, 1, 1, 2, 2]],
    "defocus_blur": [[0.3, 0.4, 0.5, 1, 1.5], [0.4, 0.5, 0.6, 0.2, 0.1]],
    "motion_blur": [[6, 6, 6, 8, 9], [1, 1.5, 2, 2, 2.5]],
    "zoom_blur": [[1.06, 1.11, 1.16, 1.21, 1.26], [0.01, 0.01, 0.01, 0.01, 0.01]],
    "fog": [[0.2, 0.5, 0.75, 1, 1.5], [3, 3, 2.5, 2, 1.75]],
    "frost": [[1, 1, 0.9, 0.85, 0.75], [0.2, 0.3, 0.4, 0.4, 0.45]],
    "snow": [
        [0.1, 0.1, 0.15, 0.25, 0.3],
        [0.2, 0.2, 0.3, 0.3, 0.3],
        [1, 1, 1.75, 2.25, 1.25],
        [0.6, 0.5, 0.55, 0.6, 0.65],
        [8, 10, 10, 12, 14],
        [3, 4, 4, 6, 12],
        [0.95, 0.9, 0.9, 0.85, 0.8],
    ],
    "spatter": [
        [0.62, 0.65, 0.65, 0.65, 0.65],
        [0.1, 0.1, 0.3, 0.1, 0.1],
        [0.7, 0.8, 1, 0.7, 0.5],
        [0.7, 0.7, 0.69, 0.69, 0.68],
        [0.5, 0.5, 0.5, 0.6, 0.6],
        [0, 0, 0, 1, 1],
    ],
    "contrast": [[0.75, 0.5, 0.4, 0.3, 0.15]],
    "brightness": [[0.05, 0.10, 0.15, 0.20, 0.30]],
    "saturate": [[0.3, 0.1, 1.5, 2, 2.5], [0, 0, 0, 0.1, 0.2]],
    "jpeg_compression": [[80, 65, 58, 50, 40]],
    "pixelate": [[0.95, 0.9, 0.85, 0.75, 0.65]],
    "elastic_transform": [  # in pixels, of 32
        [0, 1.6, 2.56, 3.2, 3.2],
        [0, 6.4, 1.92, 1.28, 0.96],
        [2.56, 2.24, 1.92, 1.6, 0.96],
    ],
}

IMAGENET_SCRIPT: Rows = {
    "gaussian_noise": [[0.08, 0.12, 0.18, 0.26, 0.38]],
    "shot_noise": [[60, 25, 12, 5, 3]],
    "impulse_noise": [[0.03, 0.06, 0.09, 0.17, 0.27]],
    "speckle_noise": [[0.15, 0.20, 0.35, 0.45, 0.60]],
    "gaussian_blur": [[1, 2, 3, 4, 6]],
    "glass_blur": [[0.7, 0.9, 1, 1.1, 1.5], [1, 2, 2, 3, 4], [2, 1, 3, 2, 2]],
    "defocus_blur": [[3, 4, 6, 8, 10], [0.1, 0.5, 0.5, 0.5, 0.5]],
    "motion_blur": [[10, 15, 15, 15, 20], [3, 5, 8, 12, 15]],
    "zoom_blur": [[1.11, 1.16, 1.21, 1.26, 1.31], [0.01, 0.01, 0.02, 0.02, 0.03]],
    "fog": [[1.5, 2, 2.5, 2.5, 3], [2, 2, 1.7, 1.5, 1.4]],
    "frost": [[1, 0.8, 0.7, 0.65, 0.6], [0.4, 0.6, 0.7, 0.7, 0.75]],
    "snow": [
        [0.1, 0.2, 0.55, 0.55, 0.55],
        [0.3, 0.3, 0.3, 0.3, 0.3],
        [3, 2, 4, 4.5, 2.5],
        [0.5, 0.5, 0.9, 0.85, 0.85],
        [10, 12, 12, 12, 12],
        [4, 4, 8, 8, 12],
        [0.8, 0.7, 0.7, 0.65, 0.55],
    ],
    "spatter": [
        [0.65, 0.65, 0.65, 0.65, 0.67],
        [0.3, 0.3, 0.3, 0.3, 0.4],
        [4, 3, 2, 1, 1],
        [0.69, 0.68, 0.68, 0.65, 0.65],
        [0.6, 0.6, 0.5, 1.5, 1.5],
        [0, 0, 0, 1, 1],
    ],
    "contrast": [[0.4, 0.3, 0.2, 0.1, 0.05]],
    "brightness": [[0.1, 0.2, 0.3, 0.4, 0.5]],
    "saturate": [[0.3, 0.1, 2, 5, 20], [0, 0, 0, 0.1, 0.2]],
    "jpeg_compression": [[25, 18, 15, 10, 7]],
    "pixelate": [[0.6, 0.5, 0.4, 0.3, 0.25]],
    "elastic_transform": [  # in pixels, of 224, though the script multiplied by 244
        [488, 488, 12.2, 17.08, 29.28],
        [170.8, 19.52, 2.44, 2.44, 2.44],
        [24.4, 48.8, 4.88, 4.88, 4.88],
    ],
}

BOTH = [pytest.param(CIFAR_SCRIPT, SIDE_32, id="cifar"), pytest.param(IMAGENET_SCRIPT, SIDE_224, id="imagenet")]


@pytest.mark.parametrize("table", [CIFAR, IMAGENET, CIFAR_SCRIPT, IMAGENET_SCRIPT])
def test_nineteen_corruptions(table: dict[str, object]) -> None:
    assert sorted(table) == sorted((*STANDARD, *EXTRA))
    assert len(table) == 19


@pytest.mark.parametrize(("script", "side"), BOTH)
def test_all_severities_are_as_published(script: Rows, side: int) -> None:
    """All five rows, number for number; the lengths of elastic_transform are shares of the side here, and pixels there."""
    for name in NAMES:
        unit = side if name == "elastic_transform" else 1
        ours = [[unit * number for number in level(name, severity, side)] for severity in SEVERITIES]
        assert len((CIFAR if side == SIDE_32 else IMAGENET)[name]) == 5
        np.testing.assert_allclose(ours, np.transpose(script[name]), rtol=1e-12, atol=0, err_msg=name)


@pytest.mark.parametrize(
    ("name", "severity", "width", "numbers"),
    [
        ("gaussian_noise", 4, 28, (0.09,)),
        ("gaussian_noise", 4, 64, (0.09,)),
        ("gaussian_noise", 4, 65, (0.26,)),
        ("gaussian_noise", 4, 640, (0.26,)),
    ],
)
def test_small_images_have_cifars_numbers(name: str, severity: int, width: int, numbers: tuple[float, ...]) -> None:
    """Up to 64 pixels of width."""
    assert SMALL == 64
    assert level(name, severity, width) == numbers


WITHOUT_EFFECT = {("elastic_transform", "cifar", 1, 1)}
"""Name, variant, severity and place of the only number that does nothing: how smooth moves are, where nothing moves."""


@pytest.mark.parametrize("variant", ["cifar", "imagenet"])
@pytest.mark.parametrize("name", NAMES)
def test_every_number_is_used(name: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another number in the table, at any place of any row, the same image with the same seed comes out otherwise."""
    table, images = (CIFAR, pictures(1)) if variant == "cifar" else (IMAGENET, pictures(1, height=48, width=66))
    published = table[name]
    for severity in SEVERITIES:
        expected, row = corrupt(images, name, severity), published[severity - 1]
        for place, number in enumerate(row):
            changed = False
            for other in (number + 1, number / 4, 0):
                new = (*row[:place], other, *row[place + 1 :])
                monkeypatch.setitem(table, name, (*published[: severity - 1], new, *published[severity:]))
                changed = changed or not torch.equal(corrupt(images, name, severity), expected)
                monkeypatch.setitem(table, name, published)
                if changed:
                    break
            assert changed == ((name, variant, severity, place) not in WITHOUT_EFFECT), (severity, place)


@pytest.mark.parametrize("width", [32, 66])
@pytest.mark.parametrize("name", NAMES)
def test_each_severity_takes_its_own_row(name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script = CIFAR_SCRIPT if width == SIDE_32 else IMAGENET_SCRIPT
    asked: list[tuple[float, ...]] = []

    def recorded(x: np.ndarray, rngs: object, *numbers: float) -> np.ndarray:
        asked.append(numbers)
        return x

    monkeypatch.setitem(corrupt.__globals__["FUNCTIONS"], name, recorded)
    for severity in SEVERITIES:
        corrupt(pictures(1, width=width), name, severity)
    side = (SIDE_32 if width == SIDE_32 else SIDE_224) if name == "elastic_transform" else 1
    np.testing.assert_allclose(np.array(asked) * side, np.transpose(script[name]), rtol=1e-12, atol=0)


def test_colours_and_reach_of_spatter_are_as_published() -> None:
    """Pale turquoise water and brown mud, as bytes; distances count up to 20 pixels; the light falls from the upper left."""
    assert [round(255 * part, 9) for part in (*spatter.WATER, *spatter.MUD)] == [175, 238, 238, 63, 42, 20]
    assert spatter.FAR == 20
    assert spatter.RELIEF.tolist() == [[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]
