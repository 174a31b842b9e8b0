"""CIFAR's binary versions, from small files of the same format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data import small_sets as small

from multitudes import data


def test_cifar10_reads_its_files_in_order(tmp_path: Path) -> None:
    root = small.cifar10(tmp_path)
    train = data.cifar10("train", root, verify=False)
    assert train.targets.tolist() == [1, 0, 9, 2, 0, 9, 3, 0, 9, 4, 0, 9, 5, 0, 9]
    assert (train.shape, train.classes and train.classes[9]) == ((3, 32, 32), "truck")
    expected = small.cifar_rows([[4], [0], [9]], 4)[1, 1:].reshape(3, 32, 32)
    np.testing.assert_array_equal(train.inputs.numpy()[10], expected)
    assert data.cifar10("test", root / "cifar-10-batches-bin", verify=False).targets.tolist() == [7, 8]


def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    root = small.cifar100(tmp_path)
    fine = data.cifar100("train", root, verify=False)
    assert (fine.targets.tolist(), len(fine.classes or ())) == ([99, 40], 100)
    coarse = data.cifar100("train", root, labels="coarse", verify=False)
    assert (coarse.targets.tolist(), (coarse.classes or ())[3]) == ([19, 3], "coarse3")
    np.testing.assert_array_equal(fine.inputs.numpy()[1].reshape(-1), small.cifar_rows([[19, 99], [3, 40]])[1, 2:])


@pytest.mark.parametrize("split", ["train", "test"])
def test_images_are_normalised_by_the_training_images(split: str, tmp_path: Path) -> None:
    """Mean and standard deviation over the published training images, to four digits."""
    ten = data.cifar10(split, small.cifar10(tmp_path), verify=False)
    assert ten.mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465])
    assert ten.std.tolist() == pytest.approx([0.2470, 0.2435, 0.2616])
    hundred = data.cifar100(split, small.cifar100(tmp_path), verify=False)
    assert hundred.mean.tolist() == pytest.approx([0.5071, 0.4865, 0.4409])
    assert hundred.std.tolist() == pytest.approx([0.2673, 0.2564, 0.2762])
