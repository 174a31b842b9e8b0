"""SVHN, cropped house numbers, from its .mat files; scipy reads them."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multitudes.data.dataset import Data
from multitudes.data.sources import Root, Source, chosen, same_count
from multitudes.errors import FileError

SVHN = Source("svhn", "http://ufldl.stanford.edu/housenumbers/", "its .mat files (format 2, cropped digits)", ("svhn", "SVHN"))
NORMAL = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
"""Mean and standard deviation of the training images, channel by channel."""


def svhn(split: str = "test", root: Root = None) -> Data:
    """SVHN, "train" (73,257), "test" (26,032) or "extra" (531,131); its label 10 is the digit 0.

    As foreign to CIFAR-10 it is normalised as that is: `data.svhn().like(data.cifar10("test"))`.
    """
    name = f"{chosen('svhn', split, ('train', 'test', 'extra'))}_32x32.mat"
    path = SVHN.folder(root, [name]) / name
    images, labels = _read(path)
    same_count(str(path), len(images), len(labels))
    if int(labels.min()) < 1 or int(labels.max()) > 10:
        wrong = int(labels.max()) if int(labels.max()) > 10 else int(labels.min())
        raise FileError(f"{path} has a label {wrong}: there are 1 to 10, where 10 is the digit 0")
    return Data(images, labels % 10, f"svhn {split}", tuple("0123456789"), *NORMAL)


def _read(path: Path) -> tuple[Tensor, Tensor]:
    """Images ``[N, 3, 32, 32]`` of X ``[32, 32, 3, N]``, and labels ``[N]`` of y ``[N, 1]``."""
    try:
        reader = importlib.import_module("scipy.io")
    except ImportError as error:
        raise FileError("SVHN's .mat files are read by scipy: pip install 'multitudes[data]'") from error
    try:
        found: dict[str, Any] = reader.loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # scipy raises what the bytes lead it to
        raise FileError(f"{path} is no whole .mat file of version 5: {error}. Get it again from {SVHN.page}") from error
    x, y = found.get("X"), found.get("y")
    if x is None or y is None or x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
        shape = "nothing" if x is None else f"{list(x.shape)} {x.dtype}"
        raise FileError(f"{path} is not SVHN's format 2: X is {shape}, not [32, 32, 3, N] uint8")
    return torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1))), torch.from_numpy(y.astype(np.int64).reshape(-1))
