"""DropConnect: one network with random weights dropped; each member is one draw.

Wan, Zeiler, Zhang, LeCun, Fergus, "Regularization of Neural Networks using DropConnect", ICML 2013,
https://proceedings.mlr.press/v28/wan13.html; as an ensemble: Mobiny et al., 2019, https://arxiv.org/abs/1906.04569

Weights are W ∘ Z / (1 − p), with Z ~ Bernoulli(1 − p) for each weight of linear layers and convolutions; biases are kept. A
training step uses one draw. At prediction each member keeps its own draw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.known_layers import known_layers, without_fast_path
from multitudes.conversion.anatomy.structure import Structure
from multitudes.engine import tree
from multitudes.engine.draws import Replaced, add_seeds, bake_draws, drawing_layers, drawn_names, make_drawing
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import detached_copy
from multitudes.engine.state import SEEDS
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.method import Batch, Criterion, Given, Layout, Method


@dataclass(frozen=True, kw_only=True)
class DropConnect(Method):
    """A mask over weights for each member and layer: ``[M, B, ...]``."""

    members: int = 10

    p: float = 0.1
    """The fraction of weights that are dropped."""

    reduction: Literal["sum", "mean"] = "mean"
    """How the losses of several draws become one."""

    shares_weights: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    origin: ClassVar[str] = "drawn by the seed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.p, bool) or not isinstance(self.p, (int, float)) or not 0 <= self.p < 1:
            raise InputError(f"DropConnect(p={self.p!r}): give a number from 0 on and below 1")

    def prepare(self, given: Given) -> nn.Module:
        """Adds masks to the weights of every known layer."""
        new = detached_copy(given.model, {})
        for _, layer in list(known_layers(new)):
            connect(layer, self.p)
        without_fast_path(new, Connected)
        add_seeds(new)
        return new

    def layout(self, structure: Structure) -> Layout:
        """Gives members the masks and the seeds."""
        layers = dict(drawing_layers(structure.model))
        because = dict.fromkeys(layers, f"each weight dropped with probability {self.p:g}")
        return Layout(tensors=drawn_names(structure.model) | {SEEDS}, because=because)

    def bake(self, member: nn.Module) -> None:
        """Multiplies the masks into the weights."""
        bake_draws(member)

    def neutral(self) -> DropConnect:
        """One member that drops nothing."""
        return replace(self, members=1, p=0.0)

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """One draw for the whole step."""
        whole = super().batch(inputs, target, rng, per_member, count)
        if per_member:
            return whole
        return replace(whole, kwargs={**whole.kwargs, "draws": torch.randint(2**62, (1,), generator=rng).tolist()})

    def loss(self, outputs: Any, batch: Batch, criterion: Criterion) -> Tensor:
        """The mean over draws."""
        if "draws" not in batch.kwargs:
            return super().loss(outputs, batch, criterion)
        losses = [criterion(tree.take(outputs, d), batch.target) for d in range(len(tree.tensors(outputs)[0]))]
        return torch.stack(losses).mean()

    def effective_size(self, ensemble: Ensemble) -> int:
        """2 to the number of masked weights."""
        layers = dict(drawing_layers(ensemble.template)).values()
        weights = sum(layer.stored(key).numel() for layer in layers for key in layer.replaced)  # type: ignore[attr-defined]
        return int(2**weights)


class Connected(Replaced):
    """Mixin of a layer with masked weights."""

    p: float

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws which weights are kept."""
        found = {}
        for key in self.replaced:
            found[_mask(key)] = torch.rand(self.stored(key).shape, generator=generator) >= self.p
        return found

    def formed(self, key: str) -> Tensor:
        """The weights that are kept, scaled by 1 / (1 − p)."""
        kept: Tensor = self.stored(key) * getattr(self, _mask(key)) / (1 - self.p)
        return kept


def _mask(key: str) -> str:
    return f"{key.replace('.', '_')}_mask"


def connect(layer: Any, p: float) -> None:
    """Adds masks of ones to a layer's weights, in place."""
    keys = tuple(key for key, _ in layer.named_parameters() if key.endswith("weight"))
    make_drawing(layer, Connected, replaced=keys, p=p)
    layer.draws = tuple(map(_mask, keys))
    for key, parameter in list(layer.named_parameters()):
        if key in keys:
            ones = torch.ones(parameter.shape, dtype=torch.bool, device=parameter.device)
            layer.register_buffer(_mask(key), ones, persistent=False)
