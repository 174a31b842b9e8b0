"""CIFAR-10 and CIFAR-100 from their binary versions: rows of one or two labels and 3072 bytes of an image, plane by plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from multitudes.data.dataset import Data
from multitudes.data.sources import Root, Source, check_labels, check_split
from multitudes.errors import FileError, InputError

PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
PIXELS = 3 * 32 * 32

CIFAR10 = Source(
    "cifar10", PAGE, "cifar-10-binary.tar.gz", ("cifar-10-batches-bin",),
    {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25", "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421", "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d", "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)  # fmt: skip
CIFAR100 = Source(
    "cifar100", PAGE, "cifar-100-binary.tar.gz", ("cifar-100-binary",),
    {"train.bin": "6172c7755cfe09b2fe270c85cebc1b15", "test.bin": "4499cfba6c016c1be1438163640a0898"},
)  # fmt: skip
CLASSES10 = "airplane automobile bird cat deer dog frog horse ship truck".split()
NORMAL10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of each channel over the training images."""
NORMAL100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def cifar10(split: str = "train", root: Root = None, *, verify: bool = True) -> Data:
    """CIFAR-10: 3×32×32 images in 10 classes, "train" (50,000) or "test" (10,000).

    Reads the binary version, data_batch_*.bin and test_batch.bin, from the folder cifar-10-batches-bin in `root` or
    MULTITUDES_DATA. `verify` checks the files' MD5. Images are normalised by the mean and deviation of the training images.

    >>> test = cifar10("test")  # doctest: +SKIP
    """
    train = check_split("cifar10", split, ("train", "test")) == "train"
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] if train else ["test_batch.bin"]
    folder = CIFAR10.folder(root, files)
    parts = [_read(CIFAR10, folder / name, 1, verify) for name in files]
    images, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    check_labels(folder, len(images), labels, 0, 9)
    return Data(images, labels[:, 0], f"cifar10 {split}", CLASSES10, *NORMAL10)


def cifar100(split: str = "train", root: Root = None, *, labels: str = "fine", verify: bool = True) -> Data:
    """CIFAR-100: 3×32×32 images, "train" (50,000) or "test" (10,000), with 100 "fine" or 20 "coarse" labels.

    Reads the binary version, train.bin and test.bin, from the folder cifar-100-binary in `root` or MULTITUDES_DATA; class names
    from the text files beside them, if they are there. `verify` checks the files' MD5. Images are normalised by the mean and
    deviation of the training images.

    >>> test = cifar100("test", labels="coarse")  # doctest: +SKIP
    """
    check_split("cifar100", split, ("train", "test"))
    if labels not in ("fine", "coarse"):
        raise InputError(f"cifar100: labels={labels!r}: give 'fine' (100 classes) or 'coarse' (20)")
    folder = CIFAR100.folder(root, [f"{split}.bin"])
    images, both = _read(CIFAR100, folder / f"{split}.bin", 2, verify)
    count = 100 if labels == "fine" else 20
    targets = both[:, 1 if labels == "fine" else 0]
    check_labels(folder / f"{split}.bin", len(images), targets, 0, count - 1)
    return Data(images, targets, f"cifar100 {split}", _names(folder / f"{labels}_label_names.txt", count), *NORMAL100)


def _read(source: Source, path: Path, labels: int, verify: bool) -> tuple[Tensor, Tensor]:
    """Reads images ``[N, 3, 32, 32]`` and `labels` labels of each, ``[N, labels]``."""
    rows = np.frombuffer(bytearray(source.content(path, verify)), np.uint8)
    if not len(rows) or len(rows) % (labels + PIXELS):
        raise FileError(
            f"{path} is damaged: {len(rows):,} bytes are not a multiple of the {labels + PIXELS} bytes of an image. "
            f"Unpack {source.get} again"
        )
    rows = rows.reshape(-1, labels + PIXELS)
    images = torch.from_numpy(rows[:, labels:].copy()).view(-1, 3, 32, 32)
    return images, torch.from_numpy(rows[:, :labels].copy())


def _names(path: Path, count: int) -> list[str]:
    """Reads the class names. If the file is missing, they are the numbers 0, 1, ..."""
    names = path.read_text().split() if path.is_file() else [str(i) for i in range(count)]
    if len(names) != count:
        raise FileError(f"{path} has {len(names)} class names instead of {count}: unpack the dataset again")
    return names
