"""Noise that is independent for each pixel and channel; and random numbers for all corruptions, one generator per image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from multitudes.data.corruptions.grids import Array

Rngs = Sequence[np.random.Generator]
"""One generator per image of a batch: the result for an image does not depend on the others."""


def normal(rngs: Rngs, *shape: int) -> Array:
    """Draws standard normal numbers, ``[N, ...]``."""
    return np.stack([rng.standard_normal(shape, dtype=np.float32) for rng in rngs])


def uniform(rngs: Rngs, low: float, high: float, *shape: int) -> Array:
    """Draws uniform numbers in double precision, ``[N, ...]``."""
    return np.stack([rng.uniform(low, high, shape) for rng in rngs])


def gaussian_noise(x: Array, rngs: Rngs, spread: float) -> Array:
    """Adds Gaussian noise: x + σ ε, with σ = spread."""
    return x + spread * normal(rngs, *x.shape[1:])


def shot_noise(x: Array, rngs: Rngs, photons: float) -> Array:
    """Replaces x by Poisson(λ x) / λ, where λ = photons is the expected count of photons for white."""
    return np.stack([rng.poisson(image * photons) for rng, image in zip(rngs, x, strict=True)]).astype(np.float32) / photons


def impulse_noise(x: Array, rngs: Rngs, share: float) -> Array:
    """Sets a fraction `share` of the values to 0 or 1 (salt and pepper), both equally often."""
    drawn = np.stack([rng.random(x.shape[1:], dtype=np.float32) for rng in rngs])
    return np.where(drawn < share, (drawn < share / 2).astype(np.float32), x)


def speckle_noise(x: Array, rngs: Rngs, spread: float) -> Array:
    """Adds noise in proportion to the value: x + x σ ε, with σ = spread."""
    return x + x * spread * normal(rngs, *x.shape[1:])
