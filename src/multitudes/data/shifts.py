"""Published corrupted sets, CIFAR-10-C, CIFAR-100-C and ImageNet-C: {corruption: {severity: Data}}, opened when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from multitudes.data.cifar import CLASSES10, NORMAL10, NORMAL100
from multitudes.data.dataset import Data
from multitudes.data.folders import existing, folder
from multitudes.data.sources import Root, Source
from multitudes.errors import FileError, InputError

Array = np.ndarray[Any, Any]
K = TypeVar("K")
V = TypeVar("V")

SEVERITIES = (1, 2, 3, 4, 5)
CIFAR10_C = Source("cifar_c", "https://zenodo.org/records/2535967", "CIFAR-10-C.tar", ("CIFAR-10-C",))
CIFAR100_C = Source("cifar_c", "https://zenodo.org/records/3555552", "CIFAR-100-C.tar", ("CIFAR-100-C",))


class Opened(Mapping[K, V]):
    """Values that are made when they are asked for, and not kept."""

    def __init__(self, keys: Sequence[K], value: Callable[[K], V]) -> None:
        self._keys, self._value = tuple(keys), value

    def __getitem__(self, key: K) -> V:
        if key not in self._keys:
            raise KeyError(f"there is no {key!r}: {', '.join(map(str, self._keys))}")
        return self._value(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"Opened({', '.join(map(str, self._keys))})"


def cifar_c(root: Root = None, *, classes: int = 10) -> Mapping[str, Mapping[int, Data]]:
    """CIFAR-10-C, or CIFAR-100-C with classes=100: name.npy of five severities one after the other, and labels.npy."""
    if classes not in (10, 100):
        raise InputError(f"cifar_c: classes={classes}: there are CIFAR-10-C (10) and CIFAR-100-C (100)")
    place = (CIFAR10_C if classes == 10 else CIFAR100_C).folder(root, ["labels.npy"])
    names = sorted(path.stem for path in place.glob("*.npy") if path.stem != "labels")
    if not names:
        raise FileError(f"{place} holds labels.npy, but no corruption: gaussian_noise.npy and others belong there")
    return Opened(names, lambda name: Opened(SEVERITIES, lambda severity: _severity(place, name, severity, classes)))


def imagenet_c(root: str | PathLike[str], *, size: int = 224, resize: int | None = None) -> Mapping[str, Mapping[int, Data]]:
    """ImageNet-C, a folder CORRUPTION/SEVERITY/WORDNET-ID for each class; its images are already 224×224."""
    place = existing(Path(root).expanduser())
    found = {part.name: _severities(part) for part in sorted(place.iterdir()) if part.is_dir()}
    found = {name: severities for name, severities in found.items() if severities}
    if not found:
        raise FileError(
            f"{place} holds no folders such as gaussian_noise/1. Get ImageNet-C from https://zenodo.org/records/2235448"
        )
    side = size if resize is None else resize

    def opened(name: str, severity: int) -> Data:
        return folder(
            place / name / str(severity), classes="imagenet", size=size, resize=side, name=f"imagenet {name} {severity}"
        )  # fmt: skip

    return Opened(list(found), lambda name: Opened(found[name], lambda severity: opened(name, severity)))


def _severities(part: Path) -> list[int]:
    return [severity for severity in SEVERITIES if (part / str(severity)).is_dir()]


def _severity(place: Path, name: str, severity: int, classes: int) -> Data:
    images, labels = _array(place / f"{name}.npy"), _array(place / "labels.npy")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (32, 32, 3):
        raise FileError(f"{place / name}.npy is {list(images.shape)} {images.dtype}, not [N, 32, 32, 3] uint8")
    if labels.ndim != 1 or len(labels) != len(images) or not len(images) or len(images) % len(SEVERITIES):
        raise FileError(f"{place / name}.npy has {len(images)} images for {len(labels)} labels of five severities")
    count = len(images) // len(SEVERITIES)
    rows = slice((severity - 1) * count, severity * count)
    targets = torch.from_numpy(labels[rows].astype(np.int64))
    if int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise FileError(
            f"{place / 'labels.npy'} has labels from {int(targets.min())} to {int(targets.max())}, not 0 to {classes - 1}"
        )
    pixels = torch.from_numpy(np.ascontiguousarray(images[rows].transpose(0, 3, 1, 2)))
    names, normal = (CLASSES10, NORMAL10) if classes == 10 else ([str(k) for k in range(100)], NORMAL100)
    return Data(pixels, targets, f"cifar{classes} {name} {severity}", names, *normal)


def _array(path: Path) -> Array:
    """An array left on disk, of which a part is read."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(f"{path} is not a whole .npy file of numbers: {error}") from error
