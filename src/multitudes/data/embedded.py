"""What comes with multitudes: a part of Fashion-MNIST, and the optical digits, which are foreign to it.

Fashion-MNIST: Xiao, Rasul, Vollgraf (2017), MIT licence. Optical digits: Alpaydin and Kaynak (1998), UCI, CC BY 4.0.
LICENSES.md beside this file has all of it; docs/embed_data.py made the files.
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
from multitudes.data.sources import chosen
from multitudes.errors import FileError

SHA256 = {
    "digits.npz": "b2dab7b501728c22e9119ad76740b2e17c77a231e42d1e592380d90886f1a05e",
    "fashion.npz": "512ab18dd47ba4bf82959a694df7f730140199de1334703c766c7f4c0e9856cc",
    "imagenet.txt": "70002b0ff5de60a3a17a82dbfcff291931f96225ddf941ad2e182fc39e183d15",
    "regression.npz": "2472a3695ba019388dd7a5f472d81a673e1d2743e58da85727b13692f382ac04",
}
"""Of the files that come with multitudes."""


def content(name: str) -> bytes:
    """A file that comes with multitudes, held against its checksum."""
    try:
        found = resources.files("multitudes.data").joinpath("files").joinpath(name).read_bytes()
    except OSError as error:
        raise FileError(f"{name}, which comes with multitudes, cannot be read: {error}. Install multitudes again") from error
    if hashlib.sha256(found).hexdigest() != SHA256[name]:
        raise FileError(f"{name}, which comes with multitudes, is damaged: install multitudes again")
    return found


def stored(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an embedded .npz."""
    with np.load(io.BytesIO(content(name)), allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def fashion(split: str = "train") -> Data:
    """A part of Fashion-MNIST with each class alike: "train" (6,000), "validation" (1,000) or "test" (2,000).

    Training and validation images are from the published training images, test images from the published test images.

    >>> fashion("test")
    Data(fashion test: 2,000 × [1, 28, 28] uint8, 10 classes)
    """
    chosen("fashion", split, ("train", "validation", "test"))
    arrays = stored("fashion.npz")
    images, labels = (torch.from_numpy(arrays[f"{split}_{part}"]) for part in ("images", "labels"))
    return Data(images.unsqueeze(1), labels, f"fashion {split}", FASHION_CLASSES, *NORMAL_FASHION)


def digits() -> Data:
    """1,797 handwritten digits of 8×8 pixels, drawn larger to 28×28 and normalised as `fashion`, to which they are foreign."""
    arrays = stored("digits.npz")
    small = torch.from_numpy(arrays["images"]).float().unsqueeze(1) * (255 / 16)
    images = F.interpolate(small, (28, 28), mode="bilinear", align_corners=False).round().to(torch.uint8)
    return Data(images, torch.from_numpy(arrays["labels"]), "digits", DIGITS, *NORMAL_FASHION)
