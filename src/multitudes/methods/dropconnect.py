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
from multitudes.engine.draws import (
    Drawing,
    add_seeds,
    bake_draws,
    bake_weights,
    drawing_layers,
    drawn_names,
    make_drawing,
    run_with,
    stored_weight,
)
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import detached_copy, join_name
from multitudes.engine.state import SEEDS
from multitudes.ensemble import Ensemble
from multitudes.method import Batch, Criterion, Given, Layout, Method
from multitudes.methods.layers.priors import DropPrior
from multitudes.settings import Count, Rate


@dataclass(frozen=True, kw_only=True)
class DropConnect(DropPrior, Method):
    """One network; a mask over weights for each member and layer: ``[M, B, ...]``."""

    members: Count = 10

    p: Rate = 0.1
    """The fraction of weights that are dropped."""

    reduction: Literal["sum", "mean"] = "mean"
    """How the losses of several draws become one."""

    shares_weights: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    origin: ClassVar[str] = "drawn by the seed"

    def prepare(self, given: Given) -> nn.Module:
        """Adds masks to the weights of every known layer."""
        new = detached_copy(given.model, {})
        for _, layer in list(known_layers(new)):
            connect(layer, self.p)
        without_fast_path(new, Connected)
        add_seeds(new)
        return new

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own masks and seed."""
        layers = dict(drawing_layers(structure.model))
        because = dict.fromkeys(layers, f"each weight dropped with probability {self.p:g}")
        return Layout(tensors=drawn_names(structure.model) | {SEEDS}, because=because)

    def bake(self, member: nn.Module) -> None:
        """Multiplies the masks into the weights."""
        bake_draws(member)

    def neutral(self) -> DropConnect:
        """Returns settings for one member that drops nothing."""
        return replace(self, members=1, p=0.0)

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """Prepares a training step with one draw for all rows."""
        whole = super().batch(inputs, target, rng, per_member, count)
        if per_member:
            return whole
        return replace(whole, kwargs={**whole.kwargs, "draws": torch.randint(2**62, (1,), generator=rng).tolist()})

    def loss(self, outputs: Any, batch: Batch, criterion: Criterion) -> Tensor:
        """Returns the mean loss over draws; with separate data for each member, combines the members' losses."""
        if "draws" not in batch.kwargs:
            return super().loss(outputs, batch, criterion)
        losses = [criterion(tree.take(outputs, d), batch.target) for d in range(len(tree.tensors(outputs)[0]))]
        return torch.stack(losses).mean()

    def kept_rates(self, ensemble: Ensemble) -> dict[str, float]:
        """Returns 1 − p for each weight with a mask, by name."""
        layers: Any = drawing_layers(ensemble.template)
        return {join_name(name, key): 1 - layer.p for name, layer in layers for key in layer.replaced}

    def effective_size(self, ensemble: Ensemble) -> int:
        """Returns 2 to the power of the number of masked weights."""
        layers: Any = dict(drawing_layers(ensemble.template)).values()
        weights = sum(stored_weight(layer, key).numel() for layer in layers for key in layer.replaced)
        return int(2**weights)


class Connected(Drawing):
    """Mixin of a layer with masked weights."""

    replaced: tuple[str, ...]
    """Names of the weights with a mask; dotted if a child holds the weight."""
    p: float

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws masks, True for the weights to keep."""
        found = {}
        for key in self.replaced:
            found[_mask(key)] = torch.rand(stored_weight(self, key).shape, generator=generator) >= self.p
        return found

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the layer with its masked weights."""
        return run_with(self, self.weights(), super().forward, *args, **kwargs)  # type: ignore[misc]

    def bake(self) -> None:
        """Turns the layer back into its plain class, with the masked weights as its parameters."""
        bake_weights(self, self.weights())

    def weights(self) -> dict[str, Tensor]:
        """Returns the masked weights W ∘ mask / (1 − p), by name."""
        return {key: stored_weight(self, key) * getattr(self, _mask(key)) / (1 - self.p) for key in self.replaced}


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
