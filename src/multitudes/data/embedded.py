"""Datasets included in the package: a part of Fashion-MNIST, and optical digits that are out-of-distribution (OOD) for it.

Fashion-MNIST: Xiao, Rasul, Vollgraf (2017), MIT licence. Optical digits: Alpaydin and Kaynak (1998), UCI, CC BY 4.0.
LICENSES.md beside this file holds the licences; docs/embed_data.py made the files.
"""

from __future__ import annotations

import hashlib
import io
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from multitudes.data.dataset import Data
from multitudes.data.mnist import DIGITS, FASHION_CLASSES, NORMAL_FASHION
from multitudes.data.sources import check_split
from multitudes.errors import FileError

SHA256 = {
    "digits.npz": "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e",
    "fashion.npz": "512ab18dd47ba4bf82959a694df7f730140199de1334703c766c7f4c0e9856cc",
    "imagenet.txt": "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15",
    "regression.npz": "204f1ba621492b3a864e7861c2b9a2be6398cd86d0406be13dbd0635a8f1c0f8",
}
"""Checksums of the included files."""


def content(name: str) -> bytes:
    """Reads an included file and checks its SHA-256."""
    stored = resources.files("multitudes.data").joinpath("files").joinpath(name).read_bytes()
    if hashlib.sha256(stored).hexdigest() != SHA256[name]:
        raise FileError(f"{name}, a file of the multitudes package, is damaged: install multitudes again")
    return stored


def stored(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of an included .npz file, by name."""
    with np.load(io.BytesIO(content(name)), allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def fashion(split: str = "train") -> Data:
    """Fashion-MNIST, a class-balanced part included in the package: "train" (6,000), "validation" (1,000) or "test" (2,000).

    Images are 1×28×28 in 10 classes, normalised by the mean and deviation of all of Fashion-MNIST's training images. "train"
    and "validation" are from its training images, "test" from its test images. `fashion_mnist` loads the whole dataset.

    >>> fashion("test")
    Data(fashion test: 2,000 × [1, 28, 28] uint8, 10 classes)
    """
    check_split("fashion", split, ("train", "validation", "test"))
    arrays = stored("fashion.npz")
    images, labels = (torch.from_numpy(arrays[f"{split}_{part}"]) for part in ("images", "labels"))
    return Data(images.unsqueeze(1), labels, f"fashion {split}", FASHION_CLASSES, *NORMAL_FASHION)


def digits() -> Data:
    """UCI's optical digits, 1,797 images included in the package: an out-of-distribution (OOD) set for `fashion`.

    The 8×8 images are enlarged to 28×28 and normalised like `fashion`.

    >>> digits()
    Data(digits: 1,797 × [1, 28, 28] uint8, 10 classes)
    """
    arrays = stored("digits.npz")
    small = torch.from_numpy(arrays["images"]).float().unsqueeze(1) * (255 / 16)
    images = F.interpolate(small, (28, 28), mode="bilinear", align_corners=False).round().to(torch.uint8)
    return Data(images, torch.from_numpy(arrays["labels"]), "digits", DIGITS, *NORMAL_FASHION)
