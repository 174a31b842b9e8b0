"""CIFAR-10-C, CIFAR-100-C and ImageNet-C as published: {corruption: {severity: Data}}, read on access."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multitudes.data.cifar import CLASSES10, NORMAL10, NORMAL100
from multitudes.data.corruptions.published import SEVERITIES
from multitudes.data.dataset import Data
from multitudes.data.folders import find_folder, folder
from multitudes.data.lazy import LazyMapping
from multitudes.data.sources import Root, Source, check_labels
from multitudes.errors import FileError, InputError

Array = np.ndarray[Any, Any]

CIFAR10_C = Source("cifar_c", "https://zenodo.org/records/2535967", "CIFAR-10-C.tar", ("CIFAR-10-C",))
CIFAR100_C = Source("cifar_c", "https://zenodo.org/records/3555552", "CIFAR-100-C.tar", ("CIFAR-100-C",))


def cifar_c(root: Root = None, *, classes: int = 10) -> Mapping[str, Mapping[int, Data]]:
    """CIFAR-10-C, or CIFAR-100-C with classes=100: CIFAR's test images under corruptions of severity 1 to 5.

    Reads labels.npy and a file such as fog.npy for each corruption, with the five severities one after the other, from the
    folder CIFAR-10-C or CIFAR-100-C in `root` or MULTITUDES_DATA. Images are normalised like CIFAR's training images.

    >>> foggy = cifar_c()["fog"][3]  # doctest: +SKIP
    """
    if classes not in (10, 100):
        raise InputError(f"cifar_c: classes={classes}: give 10 (CIFAR-10-C) or 100 (CIFAR-100-C)")
    place = (CIFAR10_C if classes == 10 else CIFAR100_C).folder(root, ["labels.npy"])
    names = tuple(sorted(path.stem for path in place.glob("*.npy") if path.stem != "labels"))
    if not names:
        raise FileError(f"{place} has labels.npy but no corrupted images: add the published files, such as gaussian_noise.npy")
    return LazyMapping(
        names, lambda name: LazyMapping(SEVERITIES, lambda severity: _read_severity(place, name, severity, classes))
    )


def imagenet_c(root: str | PathLike[str], *, size: int = 224, resize: int | None = None) -> Mapping[str, Mapping[int, Data]]:
    """ImageNet-C: ImageNet's validation images under corruptions of severity 1 to 5, already 224×224.

    Reads the folders CORRUPTION/SEVERITY/WORDNET-ID of `root`; a relative path is looked for in MULTITUDES_DATA too. `size`,
    `resize` and the normalisation are those of `folder`, but `resize` is `size` by default.

    >>> foggy = imagenet_c("imagenet-c")["fog"][3]  # doctest: +SKIP
    """
    place = find_folder(Path(root).expanduser())
    severities = {
        part.name: tuple(severity for severity in SEVERITIES if (part / str(severity)).is_dir())
        for part in sorted(place.iterdir())
    }
    names = tuple(name for name, found in severities.items() if found)
    if not names:
        raise FileError(
            f"{place} has no folders such as gaussian_noise/1. Get ImageNet-C from https://zenodo.org/records/2235448"
        )

    def read(name: str, severity: int) -> Data:
        return folder(
            place / name / str(severity),
            classes="imagenet",
            size=size,
            resize=size if resize is None else resize,
            name=f"imagenet {name} {severity}",
        )

    return LazyMapping(names, lambda name: LazyMapping(severities[name], lambda severity: read(name, severity)))


def _read_severity(place: Path, name: str, severity: int, classes: int) -> Data:
    images, labels = _read_array(place / f"{name}.npy"), _read_array(place / "labels.npy")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (32, 32, 3):
        raise FileError(
            f"{place / name}.npy is {list(images.shape)} {images.dtype}, not [N, 32, 32, 3] uint8: download it again"
        )
    if labels.ndim != 1 or len(images) % len(SEVERITIES):
        raise FileError(
            f"{place / name}.npy has {len(images)} images, labels.npy has {list(labels.shape)}: not five equal severities. "
            "Download both again"
        )
    targets = torch.from_numpy(labels.astype(np.int64))
    check_labels(place / "labels.npy", len(images), targets, 0, classes - 1)
    count = len(images) // len(SEVERITIES)
    rows = slice((severity - 1) * count, severity * count)
    pixels = torch.from_numpy(np.ascontiguousarray(images[rows].transpose(0, 3, 1, 2)))
    names, normal = (CLASSES10, NORMAL10) if classes == 10 else ([str(k) for k in range(100)], NORMAL100)
    return Data(pixels, targets[rows], f"cifar{classes} {name} {severity}", names, *normal)


def _read_array(path: Path) -> Array:
    """Opens a .npy file as a memory map, so that only the rows in use are read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(f"{path} is not a complete .npy file of numbers: {error}. Download it again") from error
