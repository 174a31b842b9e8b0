"""corrupt: the 19 corruptions of CIFAR-10-C and ImageNet-C at five severities, on images of any size.

Hendrycks, Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019,
https://arxiv.org/abs/1903.12261

These are not the files that the authors published: the numbers are theirs, but the code, the random draws and the frost, which
is generated here and was photographed there, are not, nor are results rounded down. Scores on the one are not to be compared
with scores on the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from multitudes.data.corruptions import blur, digital, noise, weather
from multitudes.data.corruptions.grids import Array
from multitudes.data.corruptions.published import EXTRA, STANDARD, level
from multitudes.data.corruptions.spatter import spatter
from multitudes.errors import InputError
from multitudes.settings import at_least, between, check

SEVERITIES = (1, 2, 3, 4, 5)

NAMES = (*STANDARD, *EXTRA)

AT_ONCE = 1 << 22
"""Values that are worked on at a time: what comes out does not depend on it."""

FUNCTIONS: dict[str, Callable[..., Array]] = {
    name: getattr(next(module for module in (noise, blur, weather, digital) if hasattr(module, name)), name)
    for name in NAMES
    if name != "spatter"
} | {"spatter": spatter}

Key = TypeVar("Key")
Value = TypeVar("Value")


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0, *, start: int = 0) -> Tensor:
    """Images with a corruption of severity 1 to 5: ``[N, C, H, W]``, grey or RGB, uint8 or floats from 0 to 1, as they were.

    The numbers are those published for CIFAR-10-C up to 64 pixels of width, and those of ImageNet-C from 65 on. These are not
    the published files: scores on them are not to be compared with scores on CIFAR-10-C.

    Each image has random numbers of its own, from the seed, the corruption, the severity and its index; `start` is the index of
    the first, so that a set corrupted in pieces is the set corrupted at once. Work is done on the CPU in single precision.

    >>> import torch
    >>> images = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
    >>> corrupt(images, "contrast", 5).float().mean()
    tensor(128.)
    """
    _check_images(images)
    _check_choice(name, severity)
    check("seed", seed, int)
    check("start", start, Annotated[int, at_least(0)])
    stream = int.from_bytes(hashlib.sha256(f"{seed}/{name}/{severity}".encode()).digest()[:8], "big") << 64
    numbers = level(name, severity, images.shape[-1])
    found = torch.empty_like(images, device="cpu", requires_grad=False)
    step = max(1, AT_ONCE // images[:1].numel()) if images.numel() else 1
    for at in range(0, len(images), step):
        part = images[at : at + step].detach().cpu()
        rngs = [np.random.Generator(np.random.Philox(key=stream + start + at + i)) for i in range(len(part))]
        whole = part.dtype == torch.uint8
        values = part.to(torch.float32).contiguous().numpy() / np.float32(255 if whole else 1)
        made = FUNCTIONS[name](values, rngs, *numbers).clip(0, 1)
        found[at : at + step] = torch.from_numpy(np.rint(made * 255) if whole else made)
    return found.to(images.device)


def corruptions(
    images: Tensor, names: Iterable[str] = NAMES, severities: Iterable[int] = SEVERITIES, seed: int = 0, *, start: int = 0
) -> Mapping[str, Mapping[int, Tensor]]:
    """Images under many corruptions, ``{name: {severity: images}}``, each made when it is asked for and not kept.

    What `score` takes as shift= is then, for images x with targets y::

        {name: {s: (predict(ens, x), y) for s, x in found.items()} for name, found in corruptions(images).items()}
    """
    if isinstance(names, str):
        raise InputError(f"names={names!r}: give a list, [{names!r}]")
    names, severities = tuple(names), tuple(severities)
    _check_images(images)
    for name in names:
        for severity in severities:
            _check_choice(name, severity)

    def made(name: str) -> Mapping[int, Tensor]:
        return Late(severities, lambda severity: corrupt(images, name, severity, seed, start=start))

    return Late(names, made)


@dataclass(frozen=True)
class Late(Mapping[Key, Value]):
    """A mapping whose values are made when they are asked for."""

    keys_: tuple[Key, ...]
    make: Callable[[Key], Value]

    def __getitem__(self, key: Key) -> Value:
        if key not in self.keys_:
            raise KeyError(key)
        return self.make(key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys_)

    def __len__(self) -> int:
        return len(self.keys_)


def _check_choice(name: Any, severity: Any) -> None:
    if name not in NAMES:
        near = get_close_matches(str(name), NAMES, n=1, cutoff=0.0)[0]
        raise InputError(f"there is no corruption {name!r} (nearest: {near!r}); there are {', '.join(NAMES)}")
    check("severity", severity, Annotated[int, between(min(SEVERITIES), max(SEVERITIES))])


def _check_images(images: Any) -> None:
    if not isinstance(images, Tensor):
        raise InputError(f"images must be a tensor [N, C, H, W]: it is {type(images).__name__}")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[1:]:
        raise InputError(f"images must be [N, C, H, W] with 1 or 3 channels: they are {list(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise InputError(f"images must be uint8, or floats from 0 to 1: they are {images.dtype}")
    if images.is_floating_point() and not bool(((images >= 0) & (images <= 1)).all()):
        raise InputError("images must lie between 0 and 1: corrupt them before they are normalised, or give uint8")
