"""Noise of each pixel and channel by itself; and the randomness of all corruptions, one generator for each image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multitudes.data.corruptions.grids import Array

Rngs = Sequence[np.random.Generator]
"""One for each image of a batch: what an image becomes does not depend on those beside it."""


def normal(rngs: Rngs, *shape: int) -> Array:
    """Standard normal numbers, ``[N, ...]``."""
    return np.stack([rng.standard_normal(shape, dtype=np.float32) for rng in rngs])


def uniform(rngs: Rngs, low: float, high: float, *shape: int) -> Array:
    """Uniform numbers, ``[N, ...]``, in double precision."""
    return np.stack([rng.uniform(low, high, shape) for rng in rngs])


def gaussian_noise(x: Array, rngs: Rngs, spread: float) -> Array:
    """x + σ ε."""
    return x + spread * normal(rngs, *x.shape[1:])


def shot_noise(x: Array, rngs: Rngs, photons: float) -> Array:
    """As many photons as come by chance, Poisson(λ x) / λ, when λ are expected of white."""
    return np.stack([rng.poisson(image * photons) for rng, image in zip(rngs, x, strict=True)]).astype(np.float32) / photons


def impulse_noise(x: Array, rngs: Rngs, share: float) -> Array:
    """Salt and pepper: so large a share of values becomes 0 or 1, either as often."""
    drawn = np.stack([rng.random(x.shape[1:], dtype=np.float32) for rng in rngs])
    return np.where(drawn < share, (drawn < share / 2).astype(np.float32), x)


def speckle_noise(x: Array, rngs: Rngs, spread: float) -> Array:
    """x + x σ ε."""
    return x + x * spread * normal(rngs, *x.shape[1:])
