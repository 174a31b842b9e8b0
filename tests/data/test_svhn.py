"""SVHN's .mat files, from small files of the same format."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

import multitudes as mt
from multitudes import data

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
LABELS = np.array([1, 10, 9, 5, 10], np.uint8)


def write(folder: Path, images: np.ndarray = IMAGES, labels: np.ndarray = LABELS, name: str = "test", key: str = "X") -> Path:
    """A .mat file of X [32, 32, 3, N] and y [N, 1]."""
    path = folder / f"{name}_32x32.mat"
    savemat(path, {key: images.transpose(1, 2, 3, 0), "y": labels[:, None]}, do_compression=True)
    return path


def test_images_are_turned_and_label_ten_is_the_digit_zero(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    write(tmp_path / "svhn")
    found = data.svhn("test", tmp_path)
    assert found.targets.tolist() == [1, 0, 9, 5, 0]
    np.testing.assert_array_equal(found.inputs.numpy(), IMAGES.transpose(0, 3, 1, 2))
    assert found.mean.tolist() == pytest.approx([0.4377, 0.4438, 0.4728])
    assert found.std.tolist() == pytest.approx([0.1980, 0.2010, 0.1970])


def test_a_truncated_or_foreign_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(mt.FileError, match=r"test_32x32\.mat is no whole \.mat file.*ufldl"):
        data.svhn("test", tmp_path)
    path.write_bytes(b"")
    with pytest.raises(mt.FileError, match=r"is no whole \.mat file"):
        data.svhn("test", tmp_path)
    write(tmp_path, key="Z")
    with pytest.raises(mt.FileError, match="X is nothing"):
        data.svhn("test", tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES, LABELS + 1, "a label 11: there are 1 to 10"),
        (IMAGES, LABELS - 1, "a label 0: there are 1 to 10"),
        (IMAGES[:4], LABELS, "4 images and 5 labels"),
        (IMAGES[:, :28], LABELS, r"X is \[28, 32, 3, 5\] uint8, not \[32, 32, 3, N\]"),
        (IMAGES.astype(np.float64), LABELS, "float64"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str) -> None:
    write(tmp_path, images, labels)
    with pytest.raises(mt.FileError, match=message):
        data.svhn("test", tmp_path)


def test_missing_files_splits_and_scipy_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(mt.FileError, match=r"train_32x32\.mat.*http://ufldl\.stanford\.edu"):
        data.svhn("train", tmp_path)
    with pytest.raises(mt.InputError, match="'train', 'test', 'extra'"):
        data.svhn("val", tmp_path)
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(mt.FileError, match=r"pip install 'multitudes\[data\]'"):
        data.svhn("test", tmp_path)
