"""MNIST, Fashion-MNIST, KMNIST and notMNIST from idx files, gzipped or not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from multitudes.data.dataset import Data
from multitudes.data.sources import Root, Source, check_labels, check_split, find_file
from multitudes.errors import FileError

Normal = tuple[tuple[float, ...], tuple[float, ...]]

NORMAL_MNIST: Normal = (0.1307,), (0.3081,)
"""Mean and standard deviation of the training images."""
NORMAL_FASHION: Normal = (0.2860,), (0.3530,)
NORMAL_KMNIST: Normal = (0.1918,), (0.3483,)
FASHION_CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
DIGITS = tuple("0123456789")

# MD5 of the unpacked content for MNIST and Fashion-MNIST, so that repacked files pass; of the packed files for KMNIST.
MNIST = Source(
    "mnist", "https://yann.lecun.com/exdb/mnist/", "the four idx files", ("mnist", "MNIST/raw"),
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
)  # fmt: skip
FASHION = Source(
    "fashion_mnist", "https://github.com/zalandoresearch/fashion-mnist", "the four idx files",
    ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw"),
    {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
    },
)  # fmt: skip
KMNIST = Source(
    "kmnist", "https://codh.rois.ac.jp/kmnist/", "Kuzushiji-MNIST as four idx files", ("kmnist", "KMNIST/raw"),
    {
        "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
        "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
        "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
        "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
    },
)  # fmt: skip
NOTMNIST = Source(
    "notmnist", "https://github.com/davidflanagan/notMNIST-to-MNIST", "the idx files", ("notmnist", "notMNIST"),
    confusable=(MNIST, FASHION, KMNIST),
)  # fmt: skip


def mnist(split: str = "train", root: Root = None, *, verify: bool = True) -> Data:
    """MNIST: handwritten digits, 1×28×28, "train" (60,000) or "test" (10,000).

    Reads the idx files (train-images-idx3-ubyte, ... with or without .gz) from the folder mnist or MNIST/raw in `root` or
    MULTITUDES_DATA. `verify` checks their MD5. Images are normalised by the mean and deviation of the training images.

    >>> test = mnist("test")  # doctest: +SKIP
    """
    return _read(MNIST, split, root, verify, DIGITS, NORMAL_MNIST)


def fashion_mnist(split: str = "train", root: Root = None, *, verify: bool = True) -> Data:
    """Fashion-MNIST: clothes, 1×28×28 in 10 classes, "train" (60,000) or "test" (10,000). `fashion` needs no files.

    Reads the idx files (as `mnist`) from the folder fashion-mnist, fashion_mnist or FashionMNIST/raw in `root` or
    MULTITUDES_DATA. `verify` checks their MD5. Images are normalised by the mean and deviation of the training images.

    >>> test = fashion_mnist("test")  # doctest: +SKIP
    """
    return _read(FASHION, split, root, verify, FASHION_CLASSES, NORMAL_FASHION)


def kmnist(split: str = "train", root: Root = None, *, verify: bool = True) -> Data:
    """Kuzushiji-MNIST: ten cursive Japanese characters, 1×28×28, "train" (60,000) or "test" (10,000).

    Reads the idx files (as `mnist`) from the folder kmnist or KMNIST/raw in `root` or MULTITUDES_DATA. `verify` checks the MD5
    of packed files. Images are normalised by the mean and deviation of the training images.

    >>> test = kmnist("test")  # doctest: +SKIP
    """
    classes = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
    return _read(KMNIST, split, root, verify, classes, NORMAL_KMNIST)


def notmnist(split: str = "test", root: Root = None) -> Data:
    """notMNIST: the letters A to J, 1×28×28, "train" or "test"; an out-of-distribution (OOD) set for MNIST, normalised like it.

    Reads the idx files (as `mnist`) from the folder notmnist or notMNIST in `root` or MULTITUDES_DATA. Files of MNIST,
    Fashion-MNIST and KMNIST, which have the same names, are recognised by their MD5 and refused.

    >>> ood = notmnist("test")  # doctest: +SKIP
    """
    return _read(NOTMNIST, split, root, False, tuple("ABCDEFGHIJ"), NORMAL_MNIST)


def _read(source: Source, split: str, root: Root, verify: bool, classes: tuple[str, ...], normal: Normal) -> Data:
    stem = {"train": "train", "test": "t10k"}[check_split(source.name, split, ("train", "test"))]
    names = [f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"]
    folder = source.folder(root, [f"{name}.gz|{name}" for name in names])
    image_file, label_file = (find_file(folder, f"{name}.gz|{name}") or folder for name in names)
    images, labels = read_idx(source, image_file, 3, verify), read_idx(source, label_file, 1, verify)
    check_labels(label_file, len(images), labels, 0, len(classes) - 1)
    return Data(images.unsqueeze(1), labels, f"{source.name} {split}", classes, *normal)


def read_idx(source: Source, path: Path, axes: int, verify: bool) -> Tensor:
    """Reads an idx file of bytes: 0, 0, type 8, number of axes, their sizes as big-endian int32, then the bytes."""
    content = source.content(path, verify)
    start = 4 + 4 * axes
    if len(content) < start or content[:4] != bytes([0, 0, 8, axes]):
        raise FileError(
            f"{path} is not an idx file with {axes} axes of bytes (begins with {content[:4].hex(' ')}): get {source.get} again"
        )
    sizes = [int(size) for size in np.frombuffer(content, ">i4", axes, 4)]
    if min(sizes) < 0 or len(content) != start + math.prod(sizes):
        raise FileError(
            f"{path} is damaged: its header says {sizes}, but {len(content) - start:,} bytes follow. Get {source.get} again"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).copy()).view(sizes)
