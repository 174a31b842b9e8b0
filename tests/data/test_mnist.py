"""idx files, from small files of the same format."""

from __future__ import annotations

import gzip
import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from data import small_sets as small

from multitudes import data
from multitudes.data.sources import Source
from multitudes.errors import FileError

module = sys.modules[data.mnist.__module__]  # the function has the module's name


@pytest.mark.parametrize(
    ("name", "folder", "packed", "mean", "std"),
    [
        ("mnist", "mnist", True, 0.1307, 0.3081),
        ("mnist", "MNIST/raw", False, 0.1307, 0.3081),
        ("fashion_mnist", "fashion-mnist", False, 0.2860, 0.3530),
        ("kmnist", "kmnist", True, 0.1918, 0.3483),
        ("notmnist", "notmnist", False, 0.1307, 0.3081),
    ],
)
def test_files_are_read_packed_or_not(tmp_path: Path, name: str, folder: str, packed: bool, mean: float, std: float) -> None:
    """And normalised by the published training images, notMNIST by those of MNIST."""
    small.mnist(tmp_path / folder, packed=packed)
    loaded = getattr(data, name)("test", tmp_path, **({} if name == "notmnist" else {"verify": False}))
    np.testing.assert_array_equal(loaded.inputs.numpy()[:, 0], small.DIGITS)
    assert (loaded.targets.tolist(), loaded.shape, len(loaded.classes)) == ([3, 0, 9, 1], (1, 28, 28), 10)
    assert (loaded.mean.tolist(), loaded.std.tolist()) == (pytest.approx([mean]), pytest.approx([std]))


@pytest.mark.parametrize(
    ("known", "part", "packed"),
    [
        (module.MNIST, "images-idx3", True),
        (module.FASHION, "labels-idx1", False),
        (module.KMNIST, "images-idx3", True),
        (module.KMNIST, "labels-idx1", False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_another_known_set_is_not_notmnist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Source, part: str, packed: bool
) -> None:
    """It is recognised by the MD5 of the content or of the packed file, also under the name of the other split."""
    small.mnist(tmp_path, packed=packed)
    stored = next(tmp_path.glob(f"t10k-{part}*")).read_bytes()
    content = gzip.decompress(stored) if packed and known is not module.KMNIST else stored
    of_train = next(name for name in known.md5 if name.startswith(f"train-{part}"))
    assert len(data.notmnist("test", tmp_path)) == 4
    monkeypatch.setitem(known.md5, of_train, hashlib.md5(content).hexdigest())
    with pytest.raises(FileError, match=rf"t10k-{part}.*notmnist.*{of_train} from {known.name}"):
        data.notmnist("test", tmp_path)


def test_training_and_test_files_are_told_apart(tmp_path: Path) -> None:
    small.mnist(tmp_path, "train", labels=small.idx(small.DIGIT_LABELS[::-1].copy()))
    small.mnist(tmp_path, "t10k")
    assert data.mnist("train", tmp_path, verify=False).targets.tolist() == [1, 9, 0, 3]
    assert data.mnist("test", tmp_path, verify=False).targets.tolist() == [3, 0, 9, 1]
