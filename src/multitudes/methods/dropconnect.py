"""DropConnect: one network, whose weights are dropped at random, each member with a draw of its own.

Wan, Zeiler, Zhang, LeCun, Fergus, "Regularization of Neural Networks using DropConnect", ICML 2013,
https://proceedings.mlr.press/v28/wan13.html; as an ensemble: Mobiny et al., 2019, https://arxiv.org/abs/1906.04569

W ∘ Z / (1 − p) with Z ~ Bernoulli(1 − p) for each weight of linear layers and convolutions; biases stay. A training step has
one draw, and each member at prediction one that stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.known_layers import known_layers, unknown_layers, without_fast_path
from multitudes.conversion.anatomy.structure import Structure
from multitudes.engine import tree
from multitudes.engine.draws import Replaced, add_seeds, bake_draws, drawing_layers, drawn_member, drawn_names, make_drawing
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import Factory, detached_copy
from multitudes.engine.seeds import member_seed
from multitudes.engine.state import SEEDS
from multitudes.ensemble import Ensemble
from multitudes.method import Batch, Criterion, Layout, Method
from multitudes.settings import Count, Rate


@dataclass(frozen=True, kw_only=True)
class DropConnect(Method):
    """A mask over weights for each member and layer: ``[M, B, ...]``."""

    members: Count = 10

    p: Rate = 0.1
    """How many of the weights are dropped."""

    reduction: Literal["sum", "mean"] = "mean"
    """How draws' losses are joined, where there are several."""

    shares_weights: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    origin: ClassVar[str] = "drawn by the seed"

    def refused(self, structure: Structure) -> dict[str, str]:
        """Layers that own a matrix, and of which nothing is known."""
        return unknown_layers(structure)

    def prepare(
        self, model: nn.Module, factory: Factory | None, inputs: Inputs, seed: int, at: Mapping[str, DropConnect]
    ) -> nn.Module:
        """The model with masks of ones over its weights."""
        new = detached_copy(model, {})
        for _, layer in list(known_layers(new)):
            connect(layer, self.p)
        without_fast_path(new, Connected)
        add_seeds(new)
        return new

    @property
    def keeps_weights(self) -> bool:
        """Members start with the given weights."""
        return True

    def start(
        self,
        model: nn.Module,
        network: nn.Module,
        inputs: Inputs,
        seed: int,
        m: int,
        at: Mapping[str, DropConnect],
    ) -> nn.Module:
        """Member m's masks."""
        return drawn_member(network, member_seed(seed, m))

    def layout(self, structure: Structure) -> Layout:
        """The masks, and the seeds."""
        layers = dict(drawing_layers(structure.model))
        because = dict.fromkeys(layers, f"each weight dropped with probability {self.p:g}")
        return Layout(tensors=drawn_names(structure.model) | {SEEDS}, because=because)

    def bake(self, member: nn.Module) -> None:
        """Works masks into weights."""
        bake_draws(member)

    def neutral(self) -> DropConnect:
        """Nothing dropped."""
        return replace(self, members=1, p=0.0)

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """One draw for the step."""
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
        """Each weight may be there or not."""
        layers = dict(drawing_layers(ensemble.template)).values()
        weights = sum(layer.stored(key).numel() for layer in layers for key in layer.replaced)  # type: ignore[attr-defined]
        return int(2**weights)


class Connected(Replaced):
    """A layer with a mask over its weights."""

    p: float

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """For each weight, whether it stays."""
        found = {}
        for key in self.replaced:
            found[_mask(key)] = torch.rand(self.stored(key).shape, generator=generator) >= self.p
        return found

    def formed(self, key: str) -> Tensor:
        """The weights that stay, as large as all were together."""
        kept: Tensor = self.stored(key) * getattr(self, _mask(key)) / (1 - self.p)
        return kept


def _mask(key: str) -> str:
    return f"{key.replace('.', '_')}_mask"


def connect(layer: Any, p: float) -> None:
    """Gives a layer masks of ones over its weights, in place."""
    keys = tuple(key for key, _ in layer.named_parameters() if key.endswith("weight"))
    make_drawing(layer, Connected, replaced=keys, p=p)
    layer.draws = tuple(map(_mask, keys))
    for key, parameter in list(layer.named_parameters()):
        if key in keys:
            ones = torch.ones(parameter.shape, dtype=torch.bool, device=parameter.device)
            layer.register_buffer(_mask(key), ones, persistent=False)
