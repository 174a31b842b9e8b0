"""Noise: layers whose parameters W are drawn from N(M, σ²), eq. 3 of "Ensemble Model Patching"; M is the stored parameter."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine.draws import Drawing, add_draws, bake_weights, make_drawing, run_with, stored_weight
from multitudes.engine.modules import inside


class Noisy(Drawing):
    """Mixin of a layer with Gaussian noise around its parameters."""

    replaced: tuple[str, ...]
    """Names of the parameters with noise; dotted if a child holds the parameter."""
    sigma: float

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws the noise ε of each parameter."""
        return {
            noise_name(key): torch.randn(stored_weight(self, key).shape, generator=generator, dtype=torch.float32, device="cpu")
            for key in self.replaced
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the layer with M + σ ε as its parameters."""
        return run_with(self, self.weights(), super().forward, *args, **kwargs)  # type: ignore[misc]

    def bake(self) -> None:
        """Turns the layer back into its plain class, with M + σ ε as its parameters."""
        bake_weights(self, self.weights())

    def weights(self) -> dict[str, Tensor]:
        """Returns M + σ ε, by name."""
        return {key: stored_weight(self, key) + self.sigma * getattr(self, noise_name(key)) for key in self.replaced}


def noise_name(key: str) -> str:
    """Returns the name of the buffer with a parameter's noise."""
    return f"{key.replace('.', '_')}_noise"


def noisy_keys(network: nn.Module, apart: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """Names the modules whose trainable parameters get noise, each with these parameters; not the modules in `apart`.

    torch's attention reads the parameters of its child itself, so they belong to it.
    """
    attention = [name for name, part in network.named_modules() if isinstance(part, nn.MultiheadAttention)]
    found = {}
    for name, part in network.named_modules():
        if name in apart or (name not in attention and inside(name, attention)):
            continue
        held = part.named_parameters(recurse=name in attention)
        keys = tuple(key for key, p in held if p.requires_grad and p.is_floating_point())
        if keys:
            found[name] = keys
    return found


def add_noise(network: nn.Module, sigma: float, apart: Collection[str]) -> None:
    """Gives all trainable parameters noise, in place, except those of the modules named in `apart`."""
    for name, keys in noisy_keys(network, apart).items():
        layer: Any = network.get_submodule(name)
        make_drawing(layer, Noisy, replaced=keys, sigma=sigma)
        add_draws(layer, {noise_name(key): torch.zeros_like(stored_weight(layer, key).detach()) for key in keys})
