"""idx files, from small files of the same format."""

from __future__ import annotations

import gzip
import hashlib
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

import multitudes as mt
from multitudes import data
from multitudes.data.sources import Source

module = sys.modules[data.mnist.__module__]  # the function has the module's name

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 28, 28)).astype(np.uint8)
LABELS = np.array([3, 0, 9, 1], np.uint8)


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    """An array as an idx file."""
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}i", *array.shape) + array.tobytes()


def write(folder: Path, stem: str = "t10k", packed: bool = True, images: bytes = b"", labels: bytes = b"") -> Path:
    """The two files of a split."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("images-idx3", images or idx(IMAGES)), ("labels-idx1", labels or idx(LABELS))):
        path = folder / f"{stem}-{name}-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion_mnist", "fashion-mnist"),
        ("kmnist", "kmnist"),
        ("notmnist", "notmnist"),
    ],
)
def test_files_are_read_packed_or_not(tmp_path: Path, name: str, folder: str, packed: bool) -> None:
    write(tmp_path / folder, packed=packed)
    found = getattr(data, name)("test", tmp_path, **({} if name == "notmnist" else {"verify": False}))
    np.testing.assert_array_equal(found.inputs.numpy()[:, 0], IMAGES)
    assert (found.targets.tolist(), found.shape, len(found.classes)) == ([3, 0, 9, 1], (1, 28, 28), 10)


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", 0.1307, 0.3081),
        ("fashion_mnist", 0.2860, 0.3530),
        ("kmnist", 0.1918, 0.3483),
        ("notmnist", 0.1307, 0.3081),
    ],
)
def test_images_are_normalised_by_the_training_images(tmp_path: Path, name: str, mean: float, std: float) -> None:
    """notMNIST by those of MNIST."""
    write(tmp_path)
    found = getattr(data, name)("test", tmp_path, **({} if name == "notmnist" else {"verify": False}))
    assert (found.mean.tolist(), found.std.tolist()) == (pytest.approx([mean]), pytest.approx([std]))


@pytest.mark.parametrize("packed", [True, False], ids=["gz", "plain"])
@pytest.mark.parametrize("part", ["images-idx3", "labels-idx1"])
@pytest.mark.parametrize("known", [module.MNIST, module.FASHION, module.KMNIST], ids=lambda known: known.name)
def test_another_known_set_is_not_notmnist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Source, part: str, packed: bool
) -> None:
    """Known by a checksum: of the contents, or of the packed file; even under the name of the other split."""
    write(tmp_path, packed=packed)
    stored = next(tmp_path.glob(f"t10k-{part}*")).read_bytes()
    content = gzip.decompress(stored) if packed and known is not module.KMNIST else stored
    of_train = next(name for name in known.md5 if name.startswith(f"train-{part}"))
    assert len(data.notmnist("test", tmp_path)) == 4
    monkeypatch.setitem(known.md5, of_train, hashlib.md5(content).hexdigest())
    with pytest.raises(mt.FileError, match=rf"t10k-{part}.* is not of notmnist: it is the {of_train} of {known.name}"):
        data.notmnist("test", tmp_path)


def test_training_and_test_files_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, "train", labels=idx(LABELS[::-1].copy()))
    write(tmp_path, "t10k")
    assert data.mnist("train", tmp_path, verify=False).targets.tolist() == [1, 9, 0, 3]
    assert data.mnist("test", tmp_path, verify=False).targets.tolist() == [3, 0, 9, 1]


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "kmnist"])
def test_other_files_than_the_published_are_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    with pytest.raises(mt.FileError, match=r"t10k-images-idx3-ubyte\.gz is not the published file"):
        getattr(data, name)("test", tmp_path)


WRONG = {
    "truncated": ({"images": idx(IMAGES)[:-5]}, r"images.*damaged: 3,131 bytes follow a header that promises \[4, 28, 28\]"),
    "too long": ({"labels": idx(LABELS) + b"!"}, "labels.*damaged: 5 bytes"),
    "labels as images": ({"images": idx(LABELS)}, "images.* is no idx file of bytes with 3 axes: it begins with 00 00 08 01"),
    "another type": ({"labels": idx(LABELS, kind=9)}, "labels.* is no idx file"),
    "a few bytes": ({"labels": b"\0"}, "labels.* is no idx file"),
    "negative": ({"labels": b"\0\0\x08\x01\xff\xff\xff\xff"}, "damaged"),
    "label 10": ({"labels": idx(LABELS + 1)}, "labels.* has a label 10: there are 0 to 9"),
    "fewer labels": ({"labels": idx(LABELS[:3])}, "4 images and 3 labels"),
    "empty": ({"images": idx(IMAGES[:0]), "labels": idx(LABELS[:0])}, "holds no images"),
}


@pytest.mark.parametrize("case", WRONG)
def test_damaged_files_are_named(tmp_path: Path, case: str) -> None:
    files, message = WRONG[case]
    write(tmp_path, packed=False, **files)
    with pytest.raises(mt.FileError, match=message):
        data.mnist("test", tmp_path, verify=False)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(mt.FileError, match=r"train-images-idx3-ubyte\.gz or train-images-idx3-ubyte.*zalandoresearch"):
        data.fashion_mnist("train", tmp_path)
    write(tmp_path).joinpath("t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(mt.FileError, match="lacks t10k-labels"):
        data.mnist("test", tmp_path)
