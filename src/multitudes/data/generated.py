"""Toy tasks in one or two dimensions from the papers' figures, generated from a seed."""

from __future__ import annotations

import math

import torch

from multitudes.data.dataset import Data
from multitudes.data.sources import check_split
from multitudes.errors import InputError

SPLITS = ("train", "validation", "test")


def generator(seed: int, split: str) -> torch.Generator:
    """Returns a generator with a different seed for each split, so that no example is in two splits."""
    return torch.Generator().manual_seed(seed * len(SPLITS) + SPLITS.index(split))


def check_examples(name: str, examples: int) -> int:
    """Checks that the number of examples is a whole number of at least 1."""
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 1:
        raise InputError(f"{name}: examples={examples!r}: give a whole number of at least 1")
    return examples


def sinusoids(split: str = "train", *, examples: int = 1000, noise: float = 0.25, gap: float = 1.5, seed: int = 0) -> Data:
    """Two noisy sinusoids in the plane as two classes, after Fig. 4 of Masksembles (https://arxiv.org/abs/2012.08334).

    x is uniform in [−5, 5] and y = sin(x) ± gap/2 + ε with ε ~ N(0, noise²); the sign is the class. The paper gives the
    range of x and the kind of noise; amplitude, gap and noise are ours. Inputs are (x, y), ``[N, 2]``, not normalised. Splits
    "train", "validation" and "test" have different examples.

    >>> sinusoids(examples=100)
    Data(sinusoids train: 100 × [2] float32, 2 classes)
    """
    rng = generator(seed, check_split("sinusoids", split, SPLITS))
    count = check_examples("sinusoids", examples)
    if not noise >= 0:
        raise InputError(f"sinusoids: noise={noise}: give a standard deviation of at least 0")
    labels = torch.arange(count) % 2
    x = torch.rand(count, generator=rng) * 10 - 5
    y = x.sin() + gap * (labels - 0.5) + noise * torch.randn(count, generator=rng)
    return Data(torch.stack([x, y], 1), labels, f"sinusoids {split}", ("lower", "upper"))


def noisy_function(split: str = "train", *, examples: int | None = None, seed: int = 0) -> Data:
    """The noisy function of one variable by Blundell et al. (2015), used in MIMO's Fig. 2 (https://arxiv.org/abs/2010.06610).

    y = x + 0.3 sin(2π(x + ε)) + 0.3 sin(4π(x + ε)) + ε with ε ~ N(0, 0.02²), x uniform in [0, 0.5]. By default "train" and
    "validation" have 64 examples and "test" has 3000. Inputs ``[N, 1]`` and targets ``[N, 1]`` are not normalised. For means
    over training sets, draw each with another seed.

    >>> len(noisy_function("test"))
    3000
    """
    rng = generator(seed, check_split("noisy_function", split, SPLITS))
    count = check_examples("noisy_function", (3000 if split == "test" else 64) if examples is None else examples)
    x = torch.rand(count, 1, generator=rng) * 0.5
    eps = 0.02 * torch.randn(count, 1, generator=rng)
    y = x + 0.3 * (2 * math.pi * (x + eps)).sin() + 0.3 * (4 * math.pi * (x + eps)).sin() + eps
    return Data(x, y, f"noisy_function {split}")
