"""Masksembles: one network; each member uses a fixed subset of its channels.

Durasov, Bagautdinov, Baque, Fua, "Masksembles for Uncertainty Estimation", CVPR 2021, https://arxiv.org/abs/2012.08334

Masks are drawn once (§3.2, ``mt.masks``) and kept as buffers; nothing is rescaled. In training the rows of a batch are
divided among members, one mask for each row in all layers; at prediction every member sees every row. The scale S sets how much
masks overlap: with S = 1 all members are the network itself, with S → ∞ they have no channel in common.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.first_layers import first_layers, layers_on_constants
from multitudes.conversion.anatomy.formed_weights import (
    RECURRENT,
    formed_weights,
    layers_by_name,
    mostly_shared,
    shared_matrices,
)
from multitudes.conversion.anatomy.known_layers import (
    PRODUCTS,
    FormedAttention,
    along_channels,
    channels,
    over_channels,
    projections,
    restore_layer,
    restore_projections,
    weight_of,
    without_fast_path,
)
from multitudes.conversion.anatomy.structure import Structure, last_layers
from multitudes.conversion.compact import compact_members
from multitudes.conversion.convert import ensemble
from multitudes.conversion.resize.resize import resized
from multitudes.engine.converted import Formed, convert_layer
from multitudes.engine.draws import bake_parameters
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import inside, join_name, light_copy
from multitudes.engine.seeds import member_seed
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError, InputError
from multitudes.method import Batch, Given, Layout, Method, split_rows
from multitudes.methods.layers.masks import columns_per_one, effective_scale, masks_of, ones_for, overlap
from multitudes.methods.layers.package_masks import with_package_masks, without_mask_layers
from multitudes.models.network import nearest
from multitudes.settings import Count, above, at_least, check_rules, explained


@explained
@dataclass(frozen=True, kw_only=True)
class Masksembles(Method):
    """One network; a mask over channels for each member and layer: ``[M, B, ...]``."""

    scale: Annotated[float, at_least(1)] = 2.0
    """S, at least 1: the larger, the less the masks overlap."""

    width: Literal["same", "grow"] = "same"
    """"same" masks the layers as they are; "grow" widens them, so that each mask keeps `capacity` of the given channels."""

    capacity: Annotated[float, above(0)] = 1.0
    """With width="grow", the channels that each mask keeps, as a fraction of the given layer's."""

    position: Literal["before", "after"] = "before"
    """Whether masks stand before each layer (not on the network's input) or after it (not on the network's output)."""

    feed: Literal["all", "part"] = "part"
    """In training, "all": each member sees every row; "part": the rows are divided among members."""

    fewest: Count = 10
    """Layers with fewer channels get no masks, unless at= names them: their masks would be equal or empty."""

    of: Count | None = None
    """Set by `subset`: the number of members that the layers were widened for."""

    reduction: Literal["sum", "mean"] = "mean"
    """The members' losses are averaged, since they share their weights."""

    shares_weights: ClassVar[bool] = True
    origin: ClassVar[str] = "masks by the seed"
    layer_settings: ClassVar[tuple[str, ...]] = ("scale",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rules(self, (self.width == "same" and self.capacity != 1.0, "width capacity", "capacity is for width='grow'"))

    def prepare(self, given: Given) -> nn.Module:
        """Widens the model if width="grow", and adds masks, which are all ones at first."""
        grows = self.width == "grow" and self.ratio != 1
        new = light_copy(resized(given.structure, given.factory, self.ratio, given.seed) if grows else given.model)
        structure = given.structure
        left_out = set(first_layers(structure) if self.position == "before" else last_layers(structure)[0])
        left_out |= layers_on_constants(structure)  # their output is a table without rows: it is shared, as other tables are
        called = _called(structure, layers_by_name(structure), left_out)
        axes = self._mask_axes(structure)
        for name in [n for n, _ in new.named_modules() if n in called or n in axes]:
            layer: Any = new.get_submodule(name)
            said = [method.scale for module, method in given.at.items() if inside(name, [module])]
            width = self._width(layer, axes.get(name, {}))
            narrow = width < self.fewest and not said
            if name in left_out or narrow:
                continue
            if said or not grows:
                ones = ones_for(width, self.members, said[-1] if said else self.scale)
            else:
                wanted = nearest(self.capacity * self._width(given.model.get_submodule(name), axes.get(name, {})))
                ones = min(width, max(wanted, math.ceil(width / self.members)))
            mask(layer, self.position, ones, axes.get(name))
        without_fast_path(new, Masked)
        unheard = [n for n in given.at if not any(isinstance(part, Masked) for part in new.get_submodule(n).modules())]
        if unheard and len(unheard) == len(given.at):
            raise InputError(
                f"at={sorted(given.at)}: these modules have no layer with masks; name linear layers, convolutions or attention"
            )
        if not any(isinstance(part, Masked) for part in new.modules()):
            raise ConversionError(self._nothing_to_mask(called - left_out, axes, new))
        for layer, key, own in _sites(new, given.seed):
            layer.overlap[key] = overlap(_table(getattr(layer, key).numel(), self.members, layer.ones, own))
        return new

    def _nothing_to_mask(self, layers: Collection[str], axes: Mapping[str, Any], network: nn.Module) -> str:
        """Says why no layer has masks, and what to type instead; `layers` are those that could have masks."""
        where = "after the first" if self.position == "before" else "before the last"
        widest = max((self._width(network.get_submodule(name), axes.get(name, {})) for name in layers), default=0)
        if widest < 2:
            instead = "Use a method for any network: mt.Deep(members=4)"
            return f"nothing to mask: no layer {where} has two channels or more. {instead}"
        return (
            f"nothing to mask: no layer {where} has {self.fewest} channels or more; Masksembles(fewest=2) masks narrower layers"
        )

    @property
    def ratio(self) -> float:
        """The factor by which layers are widened, so that each mask keeps `capacity` of the given channels."""
        members = self.of or self.members
        return self.capacity * columns_per_one(members, self.scale) if self.width == "grow" else 1.0

    def refused(self, structure: Structure) -> dict[str, str]:
        """Refuses weights for which no rule is known, if they are most of the model."""
        return mostly_shared(structure, {name: formed_weights(structure)[name] for name in self._mask_axes(structure)})

    def _mask_axes(self, structure: Structure) -> dict[str, dict[str, int]]:
        """Returns for modules that are not known layers the weights whose inputs are masked, and their axis of inputs.

        A layer with a forward of its own that does more than multiply by its weight has none: its input itself is masked.
        """
        if self.position == "after":
            return {}
        return {
            name: axes
            for name, keys in formed_weights(structure).items()
            if (axes := input_axes(structure, name, keys)) is not None
        }

    def _width(self, layer: Any, axes: Mapping[str, int] = MappingProxyType({})) -> int:
        """Returns the number of channels that a layer's mask covers."""
        if axes:
            key, axis = next(iter(axes.items()))
            return int(layer._parameters[key].shape[axis])
        if isinstance(layer, nn.MultiheadAttention):
            return layer.embed_dim
        if isinstance(layer, nn.RNNBase):  # its one input has no channel to drop
            return layer.input_size
        return channels(layer)[0 if self.position == "before" else 1]

    def start(self, given: Given, network: nn.Module, m: int) -> nn.Module:
        """Returns a copy of the network with the masks of member m."""
        new = light_copy(network)
        for layer, key, own in _sites(new, given.seed):
            buffer = getattr(layer, key)
            buffer.copy_(_table(buffer.numel(), self.members, layer.ones, own)[m])
        return new

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own masks. The plan states their number of ones, and why a layer has no masks."""
        masked = {name: formed_weights(structure)[name] for name in self._mask_axes(structure)}
        tensors: set[str] = set()
        because = shared_matrices(structure, masked)
        ends = first_layers(structure) if self.position == "before" else last_layers(structure)[0]
        for name, layer in structure.model.named_modules():
            if isinstance(layer, Masked):
                tensors |= {join_name(name, key) for key in masks_in(layer)}
                features = layer.own_mask.shape[-1]
                scale = effective_scale(features, self.members, layer.ones)
                iou = sum(layer.overlap.values()) / len(layer.overlap)
                because[name] = f"masks of {layer.ones} ones in {features}, scale {scale:.3g}, IoU {iou:.2f}"
        constant = layers_on_constants(structure)
        for name, layer in layers_by_name(structure).items():
            if name not in because and name in constant:
                because[name] = "on constants: its output is a table without rows"
            elif name not in because and name in ends:
                because[name] = f"on the network's {'input' if self.position == 'before' else 'output'}"
            elif name not in because and self._width(layer) < self.fewest:
                because[name] = f"{self._width(layer)} channels, fewer than fewest={self.fewest}"
        resizing = getattr(structure.model, "resizing", None)
        note = f"{resizing}: the given weights are not used" if resizing and self.width == "grow" else ""
        return Layout(tensors=frozenset(tensors), because=because, note=note)

    def subset(self, count: int) -> Masksembles:
        """Returns settings for fewer members with layers of the same width."""
        return replace(self, members=count, of=self.of or self.members)

    def bake(self, member: nn.Module) -> None:
        """Multiplies the masks into the weights."""
        for layer in member.modules():
            if isinstance(layer, Masked):
                layer.work_in()

    def compact(self, ensemble: Ensemble) -> Ensemble:
        """Removes from each member the channels that its masks drop."""
        masked = {name: layer.own_mask for name, layer in ensemble.template.named_modules() if isinstance(layer, Masked)}
        return compact_members(ensemble, masked, self.position)

    def neutral(self) -> Masksembles:
        """Returns settings for one member whose masks are all ones."""
        return replace(self, members=1, scale=1.0, width="same", capacity=1.0, of=None)

    def batch(self, inputs: Inputs, target: Any, rng: torch.Generator, per_member: bool, count: int) -> Batch:
        """Prepares a training step; with feed="part" each row goes to one member."""
        whole = super().batch(inputs, target, rng, per_member, count)
        return whole if per_member or self.feed == "all" else split_rows(whole, self.members, rng)

    @staticmethod
    def from_package(model: nn.Module, example: Any, **options: Any) -> Ensemble:
        """Converts a network with layers of the `masksembles` package, with its weights and masks; its outputs are the same.

        Its mask layers are left out, and the layers behind them have the masks. `options` are those of `mt.ensemble`.
        """
        plain, masks = without_mask_layers(model)
        method = Masksembles(members=len(next(iter(masks.values()))), fewest=1)
        ens = ensemble(plain, method, example, **options)
        return with_package_masks(ens, model, masks, example)


@functools.lru_cache(maxsize=1024)
def _table(features: int, members: int, ones: int, seed: int) -> Tensor:
    return masks_of(features, members, ones, torch.Generator().manual_seed(seed)).bool()


class Masked:
    """Mixin of a layer with a mask; it is placed before the layer's own class."""

    ones: int
    overlap: dict[str, float]
    reported = ("overlap",)

    @property
    def own_mask(self) -> Tensor:
        """The mask on the inputs or outputs."""
        mask: Tensor = getattr(self, masks_in(self)[0])
        return mask

    def work_in(self) -> None:
        """Turns this layer into a plain one, with the mask multiplied into its weights."""
        raise NotImplementedError


ELSE = "members_mask"
"""The name of the mask of a layer that has something of its own called mask, as autoregressive layers have."""


def masks_in(layer: Any) -> list[str]:
    """Returns the names of a layer's masks."""
    return [ELSE] if ELSE in layer._buffers else [key for key in ("mask", "mask_out") if key in layer._buffers]


def _called(structure: Structure, layers: Collection[str], left_out: Collection[str]) -> set[str]:
    """Names the layers that the example runs, and those that stand beside one that may have masks, in a list.

    Which experts run is decided by values: with other weights it would be others.
    """
    run = {name for name in layers if name in structure.order}
    roles = {_role(name) for name in run if name not in left_out}
    return run | {name for name in layers if name not in run and _role(name) in roles}


def _role(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _sites(network: nn.Module, seed: int) -> Iterator[tuple[Any, str, int]]:
    """Yields for each mask its layer, its name, and its seed."""
    for index, layer in enumerate(part for part in network.modules() if isinstance(part, Masked)):
        for key in masks_in(layer):
            yield layer, key, member_seed(seed, 2 * index + (key == "mask_out"))


def _unmasked(layer: Any) -> None:
    for key in masks_in(layer):
        delattr(layer, key)
    del layer.ones, layer.overlap


class MaskedBefore(Masked):
    """Mixin that masks the inputs of a layer."""

    takes_rows = True

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Runs the layer on masked inputs; shapes are those of the plain layer."""
        layer: Any = self
        return super().forward(input * along_channels(layer, self.own_mask, input), *args, **kwargs)  # type: ignore[misc]

    def work_in(self) -> None:
        """Turns this layer into a plain one, with the mask multiplied into its weights."""
        layer: Any = self
        weight = over_channels(layer, weight_of(layer), self.own_mask, self.own_mask.new_ones(channels(layer)[1]))
        _unmasked(layer)
        restore_layer(layer, weight, layer.bias)


class MaskedAfter(Masked):
    """Mixin that masks the outputs of a layer."""

    takes_rows = True

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Runs the layer and masks its outputs; shapes are those of the plain layer."""
        layer: Any = self
        y = super().forward(input, *args, **kwargs)  # type: ignore[misc]
        return y * along_channels(layer, self.own_mask, y)

    def work_in(self) -> None:
        """Turns this layer into a plain one, with the mask multiplied into its weights."""
        layer: Any = self
        weight = over_channels(layer, weight_of(layer), self.own_mask.new_ones(channels(layer)[0]), self.own_mask)
        bias = None if layer.bias is None else layer.bias * self.own_mask
        _unmasked(layer)
        restore_layer(layer, weight, bias)


class MaskedInput(MaskedBefore):
    """Mixin that masks the inputs of a layer with a forward of its own. No weight can hold the mask."""

    def work_in(self) -> None:
        """Turns this layer into a plain one if it masks nothing."""
        layer: Any = self
        if bool((self.own_mask == 1).all()):
            _unmasked(layer)
            layer.__class__ = type(layer).made_of[1]


class MaskedWeights(Formed, Masked):
    """Mixin of a module whose weights are formed: those that multiply dropped inputs are zero."""

    axes: dict[str, int]
    """For each formed weight, its axis of inputs, counted from the last."""

    def form(self, key: str, stored: Tensor) -> Tensor:
        """Returns the member's weight."""
        return stored * self.own_mask.view(-1, *(1 for _ in range(-1 - self.axes[key])))

    def work_in(self) -> None:
        """Turns this module into its plain class, with the mask multiplied into its weights."""
        layer: Any = self
        weights = self.formed()
        _unmasked(layer)
        del layer.axes, layer.formed_keys
        layer.__class__ = type(layer).made_of[1]
        bake_parameters(layer, weights)


def input_axes(structure: Structure, name: str, keys: Sequence[str]) -> dict[str, int] | None:
    """Returns the axis of inputs of each weight of a module that reads the module's input.

    Empty if the input itself can be masked, as that of a convolution with a forward of its own; None if neither is known.
    """
    part: Any = structure.model.get_submodule(name)
    if isinstance(part, RECURRENT):
        return {key: -1 for key in keys if key in ("weight_ih", "weight_ih_l0", "weight_ih_l0_reverse")}
    known = {key: structure.summed_axes.get(join_name(name, key)) for key in keys}
    if isinstance(part, nn.Linear) and name not in structure.order:
        known = {"weight": -1}
    axes = {key: axis for key, axis in known.items() if axis is not None}
    sizes = {key: part._parameters[key].shape[axis] for key, axis in axes.items()}
    first = next(iter(sizes.values()), 0)
    if not axes and isinstance(part, tuple(PRODUCTS)) and name in structure.takes_tensor:
        return {}
    return {key: axes[key] for key, size in sizes.items() if size == first} or None


class MaskedAttention(Masked, FormedAttention):
    """Attention with a mask on its inputs and a mask before its output projection."""

    mask_out: Tensor

    def weights(self) -> tuple[list[Tensor], Tensor]:
        """Returns the masked weights of query, key and value, and of the output projection."""
        read = [w * self.own_mask if w.shape[1] == self.embed_dim else w for w in projections(self)]
        return read, self.out_proj.weight * self.mask_out

    def work_in(self) -> None:
        """Turns this module into plain attention, with the masks multiplied into its weights."""
        weights, out = self.weights()
        _unmasked(self)
        restore_projections(self, weights, out)


class AttentionMaskedAfter(Masked, nn.MultiheadAttention):
    """Attention with a mask on its outputs."""

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Runs attention and masks its outputs; shapes are those of plain attention."""
        output, maps = super().forward(*args, **kwargs)
        return output * self.own_mask, maps

    def work_in(self) -> None:
        """Turns this module into plain attention, with the mask multiplied into its weights."""
        out, bias = self.out_proj.weight * self.own_mask[:, None], self.out_proj.bias
        if bias is not None:
            self.out_proj.bias = nn.Parameter((bias * self.own_mask).detach(), requires_grad=bias.requires_grad)
        weights = projections(self)
        _unmasked(self)
        restore_projections(self, weights, out)


def mask(layer: Any, position: str, ones: int, axes: dict[str, int] | None = None) -> None:
    """Adds masks to a layer, in place: all ones at first, later with `ones` ones each.

    axes        for a module that is not a known layer, the axis of inputs of each weight to form; see `input_axes`
    """
    weight = next(layer.parameters())
    attention, before = isinstance(layer, nn.MultiheadAttention), position == "before"
    if axes:
        size = layer._parameters[next(iter(axes))].shape[next(iter(axes.values()))]
        kind: type[Masked] = MaskedWeights
    elif attention:
        size, kind = layer.embed_dim, MaskedAttention if before else AttentionMaskedAfter
    else:
        size = channels(layer)[0 if before else 1]
        kind = MaskedAfter if not before else MaskedBefore if axes is None else MaskedInput
    formed: dict[str, Any] = {"axes": axes, "formed_keys": tuple(axes)} if axes else {}
    convert_layer(layer, kind, ones=ones, overlap={}, **formed)
    one = ELSE if hasattr(layer, "mask") else "mask"
    for key in ("mask", "mask_out") if attention and before else (one,):
        layer.register_buffer(key, torch.ones(size, dtype=weight.dtype, device=weight.device))
