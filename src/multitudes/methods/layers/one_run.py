"""One run: members that are made of a single training run (SWAG, Snapshot) or around its result (Laplace).

One network is trained, as if it were alone. Member m is that network with a shift added to some of its tensors, θ + Δ_m. Shifts
are draws: zero until training has ended, and zero in every training step. `ens.finish(data)`, which `fit` calls, makes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from multitudes.conversion.anatomy.known_layers import without_fast_path
from multitudes.conversion.anatomy.refusals import untie
from multitudes.conversion.anatomy.structure import Structure
from multitudes.engine import tree
from multitudes.engine.converted import Formed, check_names
from multitudes.engine.draws import (
    Drawing,
    add_seeds,
    bake_draws,
    bake_parameters,
    drawing_layers,
    drawn_names,
    make_drawing,
    remove_draws,
)
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import join_name, light_copy
from multitudes.engine.sharding import full_tensor
from multitudes.engine.state import SEEDS
from multitudes.method import Batch, Criterion, Given, Layout, Method
from multitudes.terminal import step

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble

STATISTICS = ("running_mean", "running_var")
"""BatchNorm's buffers. In training mode BatchNorm writes into them, so then they have no shift."""

FEW = 65_537
"""The largest number of shifts that are drawn one by one for a tensor in a trial."""
STEP = 7
"""How many numbers a row of a large tensor of shifts differs by from the row before."""


class Shifted(Formed, Drawing):
    """Mixin of a module whose tensors in `formed_keys` are shifted for each member, wherever they are read."""

    lasting: tuple[str, ...] = ()
    """Shifts that no seed can make again: they are stored with the ensemble."""
    notes: tuple[str, ...] = ()
    """Buffers that the method has added, from which shifts are made."""

    def form(self, key: str, stored: Tensor) -> Tensor:
        """Returns θ + Δ. A variance stays positive."""
        layer: Any = self
        return stored if key in STATISTICS and layer.training else self.shifted(key, stored)

    def shifted(self, key: str, stored: Tensor) -> Tensor:
        """Returns a tensor with its shift."""
        value = stored + getattr(self, shift_name(key))
        return value.clamp(min=0) if key == "running_var" else value

    def stored(self) -> dict[str, Tensor]:
        """Returns the tensors without their shifts, by name; shards are gathered."""
        layer: Any = self
        return {key: full_tensor({**layer._parameters, **layer._buffers}[key].detach()) for key in self.formed_keys}

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns a member's shifts, zero unless training has ended: one zero, seen in every place."""
        found = {shift_name(key): torch.zeros((), dtype=t.dtype).expand(t.shape) for key, t in self.stored().items()}
        return {key: found[key] for key in self.draws}

    def draw_for_trial(self, generator: torch.Generator, members: int) -> dict[str, Tensor]:
        """Draws small shifts of parameters; statistics have none, as a training step would overwrite them."""
        shapes, none = {shift_name(key): value.shape for key, value in self.stored().items()}, set(map(shift_name, STATISTICS))
        return {
            key: torch.zeros((members, *shapes[key])) if key in none else _small((members, *shapes[key]), generator)
            for key in self.draws
        }

    def bake(self) -> None:
        """Turns the module back into its plain class, with its shifts in its tensors."""
        layer: Any = self
        values = {key: self.shifted(key, value) for key, value in self.stored().items()}
        bake_parameters(layer, {key: value for key, value in values.items() if key in layer._parameters})
        for key in values.keys() & layer._buffers.keys():
            layer._buffers[key] = values[key].clone()
        for key in (*self.lasting, *self.notes):
            delattr(layer, key)
        remove_draws(layer)


def _small(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draws numbers around zero, ``[M, ...]``, since shifts of one sign add up over a layer's inputs.

    A large tensor is a view of few numbers: each of its rows begins `STEP` numbers after the one before, and takes no memory.
    """
    if math.prod(shape) <= FEW or len(shape) < 3:
        return (torch.rand(tuple(shape), generator=generator) - 0.5) / 10
    members, rows, *rest = shape
    inner = [math.prod(rest[axis + 1 :]) for axis in range(len(rest))]
    each = STEP * (rows - 1) + math.prod(rest)
    numbers = (torch.rand(members * each, generator=generator) - 0.5) / 10
    return numbers.as_strided((members, rows, *rest), (each, STEP, *inner))


def shift_name(key: str) -> str:
    """Returns the name of a tensor's shift."""
    return f"shift_{key}"


def tensors_to_shift(part: nn.Module, statistics: bool = True) -> list[str]:
    """Names the parameters of a module, and BatchNorm's running statistics."""
    keys = [key for key, p in part._parameters.items() if p is not None and (p.is_floating_point() or p.is_complex())]
    norm = statistics and isinstance(part, _NormBase) and part.track_running_stats
    return [*keys, *(key for key in STATISTICS if norm and part._buffers.get(key) is not None)]


def add_shifts(
    part: Any, kind: type[Shifted], keys: Sequence[str], notes: Mapping[str, Tensor], lasting: Sequence[str] = ()
) -> None:
    """Gives a module shifts of zero for these tensors, in place, and the buffers `notes`; `lasting` shifts are stored."""
    names = tuple(map(shift_name, lasting))
    values = {shift_name(key): torch.zeros_like({**part._parameters, **part._buffers}[key].detach()) for key in keys}
    check_names(part, [*values, *notes])
    make_drawing(part, kind, formed_keys=tuple(keys), lasting=names, notes=tuple(notes))
    part.draws = tuple(name for name in values if name not in names)
    for name, value in values.items():
        part.register_buffer(name, value, persistent=name in names)
    for name, value in notes.items():
        part.register_buffer(name, value)


def tied_parts(model: nn.Module) -> dict[str, str]:
    """Names the modules that hold a tensor of another module, with the reason to refuse them."""
    first: dict[int, str] = {}
    tied = {}
    for name, part in model.named_modules():
        for key, parameter in part._parameters.items():
            full = join_name(name, key)
            if parameter is not None and first.setdefault(id(parameter), full) != full:
                tied[name] = f"its {key} is tied to {first[id(parameter)]}, and would be shifted twice: {untie(full)}"
    return tied


@dataclass(frozen=True, kw_only=True)
class OneRun:
    """Behaviour that methods of one training run share."""

    reduction: Literal["sum", "mean"] = "mean"
    """How losses become one, if members have separate data; otherwise there is one network to train."""

    shares_weights: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    origin: ClassVar[str] = "the given network, until training has ended"

    def prepare(self, given: Given) -> nn.Module:
        """Adds shifts to every parameter and to BatchNorm's statistics, and room for what they are made of."""
        parts = {name: tensors_to_shift(part) for name, part in given.model.named_modules()}
        return self.converted(given, {name: keys for name, keys in parts.items() if keys})

    def converted(self, given: Given, parts: Mapping[str, Sequence[str]]) -> nn.Module:
        """Returns a copy of the model in which these tensors, by module, have shifts."""
        new = light_copy(given.model)
        step("the members' tensors")
        for name, keys in parts.items():
            self.convert(new.get_submodule(name), keys)
        without_fast_path(new, Shifted)
        add_seeds(new)
        return new

    def convert(self, part: nn.Module, keys: Sequence[str]) -> None:
        """Gives one module its shifts, in place."""
        raise NotImplementedError

    def refused(self, structure: Structure) -> dict[str, str]:
        """Refuses tied tensors."""
        return tied_parts(structure.model)

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own shifts and seed."""
        layers: Any = dict(shifted_parts(structure.model))
        stored = {join_name(name, key) for name, layer in layers.items() for key in layer.lasting}
        because = dict.fromkeys(layers, "shifted for each member once training has ended")
        return Layout(tensors=drawn_names(structure.model) | stored | {SEEDS}, because=because)

    def bake(self, member: nn.Module) -> None:
        """Adds the shifts to the tensors."""
        bake_draws(member)

    def drawn_for_step(self, network: nn.Module, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Returns shifts of zero: the network itself is trained."""
        names, buffers = drawn_names(network), dict(network.named_buffers())
        return {name: torch.zeros_like(buffers[name][: len(seeds)]) for name in names}

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """Prepares a training step of one network."""
        whole = Method.batch(self, inputs, target, rng, per_member, count)  # type: ignore[arg-type]
        return whole if per_member else Batch(whole.inputs, {**whole.kwargs, "draws": [0]}, target, per_member, count)

    def loss(self, outputs: Any, batch: Batch, criterion: Criterion) -> Tensor:
        """Returns the network's loss; with separate data for each member, combines the losses by `reduction`."""
        if "draws" not in batch.kwargs:
            return Method.loss(self, outputs, batch, criterion)  # type: ignore[arg-type]
        return criterion(tree.take(outputs, 0), batch.target)

    def before_training(self, ensemble: Ensemble) -> None:
        """Removes the shifts of an earlier run, and what they were made of."""
        self.forget(ensemble)
        ensemble.redraw()

    def forget(self, ensemble: Ensemble) -> None:
        """Sets the buffers that shifts are made of, and the shifts that are stored, to zero."""
        with torch.no_grad():
            for _, layer in shifted_parts(ensemble.template):
                for key in (*layer.lasting, *layer.notes):
                    layer.get_buffer(key).zero_()

    def after_training(self, ensemble: Ensemble, batches: Iterable[tuple[Inputs, Any]]) -> None:
        """Makes the members."""
        raise NotImplementedError


def shifted_parts(network: nn.Module) -> list[tuple[str, Any]]:
    """Returns the modules with shifts, by name."""
    return [(name, part) for name, part in drawing_layers(network) if isinstance(part, Shifted)]
