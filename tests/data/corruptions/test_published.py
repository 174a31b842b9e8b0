"""The tables are whole, and numbers are those of the authors' scripts."""

from __future__ import annotations

import pytest

from multitudes.data.corruptions.published import CIFAR, IMAGENET, Levels, level
from multitudes.scores.shift import EXTRA, STANDARD


@pytest.mark.parametrize("table", [CIFAR, IMAGENET])
def test_nineteen_corruptions_of_five_severities(table: dict[str, Levels]) -> None:
    assert sorted(table) == sorted((*STANDARD, *EXTRA))
    for name, levels in table.items():
        assert len(levels) == 5, name
        assert len({len(numbers) for numbers in levels}) == 1, name
        assert len(set(levels)) == 5, name
    assert [len(table[name][0]) for name in CIFAR] == [len(CIFAR[name][0]) for name in CIFAR]


@pytest.mark.parametrize(
    ("name", "severity", "width", "numbers"),
    [
        ("gaussian_noise", 4, 32, (0.09,)),
        ("gaussian_noise", 4, 64, (0.09,)),
        ("gaussian_noise", 4, 65, (0.26,)),
        ("gaussian_noise", 4, 224, (0.26,)),
        ("glass_blur", 3, 32, (0.4, 1, 1)),
        ("glass_blur", 3, 224, (1, 2, 3)),
        ("jpeg_compression", 5, 28, (40,)),
        ("jpeg_compression", 5, 224, (7,)),
    ],
)
def test_small_images_have_cifars_numbers(name: str, severity: int, width: int, numbers: tuple[float, ...]) -> None:
    """Up to 64 pixels of width."""
    assert level(name, severity, width) == numbers


def test_imagenets_elastic_lengths_are_as_published() -> None:
    """Multiples of 244, for images of 224."""
    assert [224 * share for share in level("elastic_transform", 2, 224)] == pytest.approx([244 * 2, 244 * 0.08, 244 * 0.2])
