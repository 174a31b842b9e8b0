"""SVHN, cropped house numbers, from its .mat files; scipy reads them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multitudes.data.dataset import Data
from multitudes.data.sources import Root, Source, check_labels, check_split
from multitudes.errors import FileError

SVHN = Source("svhn", "http://ufldl.stanford.edu/housenumbers/", "its .mat files (format 2, cropped digits)", ("svhn", "SVHN"))
NORMAL = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
"""Mean and standard deviation of each channel over the training images."""


def svhn(split: str = "test", root: Root = None) -> Data:
    """SVHN: house numbers, 3×32×32 in 10 classes, "train" (73,257), "test" (26,032) or "extra" (531,131).

    Reads train_32x32.mat, test_32x32.mat or extra_32x32.mat from the folder svhn or SVHN in `root` or MULTITUDES_DATA. Label 10
    of the files is the digit 0. Images are normalised by the mean and deviation of the training images. As an
    out-of-distribution (OOD) set it needs the normalisation of the training set, here CIFAR-10:

    >>> ood = svhn("test").like(cifar10("test"))  # doctest: +SKIP
    """
    name = f"{check_split('svhn', split, ('train', 'test', 'extra'))}_32x32.mat"
    path = SVHN.folder(root, [name]) / name
    images, labels = _read(path)
    check_labels(path, len(images), labels, 1, 10)
    return Data(images, labels % 10, f"svhn {split}", tuple("0123456789"), *NORMAL)


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Reads images ``[N, 3, 32, 32]`` from X ``[32, 32, 3, N]``, and labels ``[N]`` from y ``[N, 1]``."""
    try:
        scipy_io = importlib.import_module("scipy.io")
    except ImportError as error:
        raise FileError("SVHN's .mat files need scipy: pip install 'multitudes[data]'") from error
    try:
        arrays: dict[str, Any] = scipy_io.loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # scipy raises many kinds of errors on damaged files
        raise FileError(f"{path} is not a complete .mat file of version 5: {error}. Get it again from {SVHN.page}") from error
    x, y = arrays.get("X"), arrays.get("y")
    if x is None or y is None or x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
        shape = "missing" if x is None else f"{list(x.shape)} {x.dtype}"
        raise FileError(f"{path} is not SVHN's format 2: X is {shape}, not [32, 32, 3, N] uint8. Get it again from {SVHN.page}")
    return torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1))), torch.from_numpy(y.astype(np.int64).reshape(-1))
