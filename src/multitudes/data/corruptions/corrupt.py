"""corrupt: applies the 19 corruptions of CIFAR-10-C and ImageNet-C at five severities to images of any size.

Hendrycks, Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", ICLR 2019,
https://arxiv.org/abs/1903.12261

The results differ from the published files. The parameters are the authors'. The code and the random numbers are ours, frost is
generated (theirs is photographed), and results are rounded (theirs are rounded down). Do not compare scores on these
images with scores on CIFAR-10-C or ImageNet-C.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from multitudes.data.corruptions import blur, digital, noise, weather
from multitudes.data.corruptions.grids import Array
from multitudes.data.corruptions.published import EXTRA, SEVERITIES, STANDARD, level
from multitudes.data.corruptions.spatter import spatter
from multitudes.data.images import check_images
from multitudes.data.lazy import LazyMapping
from multitudes.errors import InputError
from multitudes.settings import at_least, between, check_value

NAMES = (*STANDARD, *EXTRA)

AT_ONCE = 1 << 22
"""Largest number of values to process at a time, to save memory. Results do not depend on it."""

FUNCTIONS: dict[str, Callable[..., Array]] = {
    name: getattr(next(module for module in (noise, blur, weather, digital) if hasattr(module, name)), name)
    for name in NAMES
    if name != "spatter"
} | {"spatter": spatter}


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0, *, start: int = 0) -> Tensor:
    """Corrupts images ``[N, C, H, W]``, grey or RGB, uint8 or floats from 0 to 1, at severity 1 to 5; dtype and device stay.

    Images up to 64 pixels wide get the published parameters of CIFAR-10-C, wider ones those of ImageNet-C. The results differ
    from the published files: do not compare scores on them with scores on CIFAR-10-C.

    The random numbers of an image depend only on the seed, the corruption, the severity and the index of the image. `start` is
    the index of the first image: use it to corrupt a dataset in pieces. Computation is on the CPU in single precision.

    >>> import torch
    >>> images = torch.full((2, 3, 32, 32), 128, dtype=torch.uint8)
    >>> corrupt(images, "contrast", 5).float().mean()
    tensor(128.)
    """
    check_images(images, unit=True)
    _check_choice(name, severity)
    check_value("seed", seed, int)
    check_value("start", start, Annotated[int, at_least(0)])
    stream = int.from_bytes(hashlib.sha256(f"{seed}/{name}/{severity}".encode()).digest()[:8], "big") << 64
    parameters = level(name, severity, images.shape[-1])
    result = torch.empty_like(images, device="cpu", requires_grad=False)
    step = max(1, AT_ONCE // images[:1].numel()) if images.numel() else 1
    for at in range(0, len(images), step):
        part = images[at : at + step].detach().cpu()
        rngs = [np.random.Generator(np.random.Philox(key=stream + start + at + i)) for i in range(len(part))]
        whole = part.dtype == torch.uint8
        values = part.to(torch.float32).contiguous().numpy() / np.float32(255 if whole else 1)
        corrupted = FUNCTIONS[name](values, rngs, *parameters).clip(0, 1)
        result[at : at + step] = torch.from_numpy(np.rint(corrupted * 255) if whole else corrupted)
    return result.to(images.device)


def corruptions(
    images: Tensor,
    names: Iterable[str] = NAMES,
    severities: Iterable[int] = SEVERITIES,
    seed: int = 0,
    *,
    start: int = 0,
) -> Mapping[str, Mapping[int, Tensor]]:
    """Images under many corruptions, ``{name: {severity: images}}``, computed on each access by `corrupt`.

    For images with targets y, the argument shift= of `score` is::

        {name: {s: (predict(ens, x), y) for s, x in levels.items()} for name, levels in corruptions(images).items()}
    """
    if isinstance(names, str):
        raise InputError(f"names={names!r} must be a list: names=[{names!r}]")
    names, severities = tuple(names), tuple(severities)
    check_images(images, unit=True)
    for name in names:
        for severity in severities:
            _check_choice(name, severity)

    def levels(name: str) -> Mapping[int, Tensor]:
        return LazyMapping(severities, lambda severity: corrupt(images, name, severity, seed, start=start))

    return LazyMapping(names, levels)


def _check_choice(name: Any, severity: Any) -> None:
    if name not in NAMES:
        near = get_close_matches(str(name), NAMES, n=1, cutoff=0.0)[0]
        raise InputError(f"there is no corruption {name!r} (nearest: {near!r}): choose from {', '.join(NAMES)}")
    check_value("severity", severity, Annotated[int, between(min(SEVERITIES), max(SEVERITIES))])
