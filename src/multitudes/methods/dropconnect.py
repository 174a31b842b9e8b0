"""DropConnect: one network with random weights dropped; each member is one draw.

Wan, Zeiler, Zhang, LeCun, Fergus, "Regularization of Neural Networks using DropConnect", ICML 2013,
https://proceedings.mlr.press/v28/wan13.html; as an ensemble: Mobiny et al., 2019, https://arxiv.org/abs/1906.04569

Weights are W ∘ Z / (1 − p), with Z ~ Bernoulli(1 − p) for each weight of linear layers and convolutions; biases are kept. A
training step uses one draw. At prediction each member keeps its own draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.formed_weights import formed_weights, layers_by_name, mostly_shared, shared_matrices
from multitudes.conversion.anatomy.known_layers import (
    at_rest,
    is_parametrized,
    norm_hook,
    restore_layer,
    weight_of,
    without_fast_path,
)
from multitudes.conversion.anatomy.structure import Structure
from multitudes.engine import tree
from multitudes.engine.converted import Formed
from multitudes.engine.draws import (
    Drawing,
    add_draws,
    add_seeds,
    bake_draws,
    bake_weights,
    drawing_layers,
    drawn_names,
    make_drawing,
    remove_draws,
    run_with,
    stored_weight,
)
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import join_name, light_copy
from multitudes.engine.state import SEEDS
from multitudes.ensemble import Ensemble
from multitudes.method import Batch, Criterion, Given, Layout, Method
from multitudes.methods.layers.priors import DropPrior
from multitudes.settings import Count, Rate, explained


@explained
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
        new = light_copy(given.model)
        for name in layers_by_name(given.structure):
            layer: Any = new.get_submodule(name)
            if is_parametrized(layer):
                connect(layer, self.p, ["weight"], ConnectedComputed)
            else:
                connect(layer, self.p, [key for key, _ in layer.named_parameters() if key.endswith("weight")], Connected)
        for name, keys in formed_weights(given.structure).items():
            connect(new.get_submodule(name), self.p, keys, ConnectedWeights)
        without_fast_path(new, Connected)
        add_seeds(new)
        return new

    def refused(self, structure: Structure) -> dict[str, str]:
        """Refuses weights for which no rule is known, if they are most of the model."""
        return mostly_shared(structure, formed_weights(structure))

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own masks and seed."""
        layers = dict(drawing_layers(structure.model))
        because = shared_matrices(structure, formed_weights(structure))
        because |= dict.fromkeys(layers, f"each weight dropped with probability {self.p:g}")
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
        weights = sum(math.prod(shape) for layer in layers for shape in layer.shapes.values())
        return int(2**weights)


class Connected(Drawing):
    """Mixin of a layer with masked weights."""

    replaced: tuple[str, ...]
    """Names of the weights with a mask; dotted if a child holds the weight."""
    p: float
    shapes: dict[str, torch.Size]
    """Shapes of these weights."""

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws masks, True for the weights to keep."""
        if self.p == 0:
            return {_mask(key): torch.ones(shape, dtype=torch.bool) for key, shape in self.shapes.items()}
        return {
            _mask(key): torch.rand(shape, generator=generator, dtype=torch.float32, device="cpu") >= self.p
            for key, shape in self.shapes.items()
        }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the layer with its masked weights."""
        return run_with(self, self.weights(), super().forward, *args, **kwargs)  # type: ignore[misc]

    def bake(self) -> None:
        """Turns the layer back into its plain class, with the masked weights as its parameters."""
        bake_weights(self, self.weights())

    def weights(self) -> dict[str, Tensor]:
        """Returns the masked weights W ∘ mask / (1 − p), by name."""
        return {key: self._masked(key, stored_weight(self, key)) for key in self.replaced}

    def _masked(self, key: str, weight: Tensor) -> Tensor:
        mask: Tensor = getattr(self, _mask(key))
        if not torch.compiler.is_compiling():  # exported graphs have no bytes
            mask = mask.view(torch.uint8)  # torch.where, or a product with truth values, takes twice the time on a CPU
        return (weight * mask).div_(1 - self.p)  # in place: no second copy of the weight


class ConnectedWeights(Formed, Connected):
    """Mixin of a module with masked weights that other modules may read."""

    def form(self, key: str, stored: Tensor) -> Tensor:
        """Returns the masked weight W ∘ mask / (1 − p)."""
        return self._masked(key, stored)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the module, which reads masked weights."""
        return super(Connected, self).forward(*args, **kwargs)  # type: ignore[misc]


class ConnectedComputed(Connected):
    """Mixin of a layer that computes its weight by torch's parametrizations: the computed weight is masked."""

    @property
    def weight(self) -> Tensor:
        """The masked weight W ∘ mask / (1 − p)."""
        computed: Tensor = vars(self)["weight"] if "weight" in vars(self) else super().weight  # type: ignore[misc]
        return self._masked("weight", computed)

    @weight.setter
    def weight(self, value: Tensor) -> None:
        vars(self)["weight"] = value  # by the hook of torch.nn.utils.weight_norm

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the layer with its masked weight."""
        return super(Connected, self).forward(*args, **kwargs)  # type: ignore[misc]

    def bake(self) -> None:
        """Turns the layer into a plain one without parametrizations, with the masked weight as its parameter."""
        layer: Any = self
        if norm_hook(layer) is not None:
            self.weight = weight_of(layer)
        with at_rest(layer):
            weight, made_of = self.weight, type(layer)
        remove_draws(layer)
        layer.__class__ = made_of
        restore_layer(layer, weight, layer.bias)


def _mask(key: str) -> str:
    return f"{key.replace('.', '_')}_mask"


def connect(layer: Any, p: float, keys: Sequence[str], kind: type[Connected]) -> None:
    """Adds masks of ones to these weights of a layer, in place."""
    computes = kind is ConnectedComputed
    shapes = {key: (weight_of(layer) if computes else stored_weight(layer, key)).shape for key in keys}
    device = next(layer.parameters()).device
    more = {"formed_keys": tuple(keys)} if kind is ConnectedWeights else {}
    computed = vars(layer).pop("weight", None)  # by a hook, which will set the property of that name
    make_drawing(layer, kind, replaced=tuple(keys), p=p, shapes=shapes, **more)
    if computed is not None:
        layer.weight = computed
    add_draws(layer, {_mask(key): torch.ones(shape, dtype=torch.bool, device=device) for key, shape in shapes.items()})
