"""Cut layers: those of a network without some of its channels, with the same outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from multitudes.conversion.anatomy.known_layers import CONVOLUTIONS, TRANSPOSED, channel_axis, product_of
from multitudes.conversion.anatomy.structure import own_tensors
from multitudes.engine.converted import converted_class
from multitudes.engine.modules import as_same_kind, detached_copy, owning_module

ADDED = ("reads", "gives", "one")
"""What a cut layer has beside its own tensors: the channels it reads, where those it gives belong, and the channel of ones."""


@dataclass(frozen=True)
class Link:
    """Two layers, the first of which feeds the second alone, and the norms between them."""

    source: str
    target: str
    norms: tuple[str, ...]


@dataclass(frozen=True)
class ChannelCut:
    """What becomes of a layer with masks."""

    layer: str
    kept: Tensor
    """For each member, the channels that its mask leaves, ``[M, ones]``."""
    before: bool
    """Whether the mask stands on what the layer reads, or on what it gives."""
    link: Link | None = None
    """The layers between which the channels go on both sides."""
    whole: tuple[Tensor, Tensor | None] | None = None
    """Of a layer that computes once for all members, and whose output is masked afterwards: its weight and bias."""
    constants: Tensor | None = None
    """For each member, what the link's target reads in each channel that is dropped, ``[M, C]``, if that is not zero."""


def cuttable(layer: nn.Module) -> bool:
    """Whether single channels can be taken out of a layer: a known one, without groups, whose weight is its own."""
    return product_of(layer) is not None and getattr(layer, "groups", 1) == 1 and not hasattr(layer, "parametrizations")


def width(layer: Any, reads: bool) -> int:
    """How many channels a layer reads or gives."""
    return int(layer.weight.shape[_weight_axis(layer, reads)])


def _weight_axis(layer: nn.Module, reads: bool) -> int:
    return int(reads) ^ int(isinstance(layer, TRANSPOSED))


def without_channels(member: nn.Module, m: int, cuts: list[ChannelCut]) -> nn.Module:
    """A copy of member m without these channels."""
    new = detached_copy(member, {})
    for cut in cuts:
        layer, kept = new.get_submodule(cut.layer), cut.kept[m]
        if cut.link is None and cut.before:
            _take(layer, kept, reads=True)
            _as_cut_layer(layer)
            layer.register_buffer("reads", kept.clone())
            continue
        if cut.link is None:
            every = width(layer, reads=False)
            if cut.whole is None:
                _take(layer, kept, reads=False)
                given = torch.arange(len(kept), device=kept.device)
            else:
                _put(layer, *cut.whole)
                given = kept
            _as_cut_layer(layer)
            nothing = torch.full((every,), width(layer, reads=False), device=kept.device)  # behind the last: a channel of zeros
            layer.register_buffer("gives", nothing.scatter(0, kept, given))
            continue
        source, target = new.get_submodule(cut.link.source), new.get_submodule(cut.link.target)
        if cut.constants is not None:
            _carry(target, kept, cut.constants[m])
        else:
            _take(target, kept, reads=True)
        _take(source, kept, reads=False)
        for name in cut.link.norms:
            _take_norm(new.get_submodule(name), kept)
    return new


def _carry(layer: Any, kept: Tensor, constants: Tensor) -> None:
    """A layer reads the channels that are kept, and what the others always say: as its bias, or by a channel of ones."""
    axis = _weight_axis(layer, reads=True)
    weight = layer.weight.detach()
    shape = [-1 if at == axis else 1 for at in range(weight.ndim)]
    said = (weight * constants.to(weight).view(shape)).sum(axis, keepdim=True)
    _take(layer, kept, reads=True)
    if isinstance(layer, nn.Linear):
        bias = said.flatten() if layer.bias is None else layer.bias.detach() + said.flatten()
        layer.bias = nn.Parameter(bias, requires_grad=layer.weight.requires_grad)
        return
    layer.weight = as_same_kind(layer.weight, torch.cat([layer.weight.detach(), said], axis))
    _as_cut_layer(layer)
    layer.register_buffer("one", weight.new_ones(1))
    update_sizes(layer)


def _put(layer: Any, weight: Tensor, bias: Tensor | None) -> None:
    layer.weight = as_same_kind(layer.weight, weight.detach().to(layer.weight, copy=True))
    if bias is not None:
        layer.bias = as_same_kind(layer.bias, bias.detach().to(layer.bias, copy=True))


def _take(layer: Any, kept: Tensor, reads: bool) -> None:
    layer.weight = as_same_kind(layer.weight, layer.weight.detach().index_select(_weight_axis(layer, reads), kept))
    if not reads and layer.bias is not None:
        layer.bias = as_same_kind(layer.bias, layer.bias.detach()[kept])
    update_sizes(layer)


def _take_norm(norm: Any, kept: Tensor) -> None:
    for key, tensor in own_tensors(norm).items():
        if tensor.ndim and tensor.numel() > 1:
            setattr(norm, key, as_same_kind(tensor, tensor.detach()[kept]))
    update_sizes(norm)


def update_sizes(layer: Any) -> None:
    """Makes a layer's numbers those of its tensors."""
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = layer.weight.shape
    elif isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED)):
        layer.in_channels = width(layer, reads=True) * (layer.groups if not isinstance(layer, TRANSPOSED) else 1)
        layer.out_channels = width(layer, reads=False) * (layer.groups if isinstance(layer, TRANSPOSED) else 1)
    elif isinstance(layer, _BatchNorm):
        layer.num_features = next((len(t) for t in (layer.weight, layer.running_mean) if t is not None), layer.num_features)
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = len(layer.weight)


class CutLayer:
    """A layer without some of its channels: what is in its class before the layer's own."""

    _buffers: dict[str, Tensor | None]

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Shape: as that of the whole layer."""
        axis, (reads, gives, one) = channel_axis(self), map(self._buffers.get, ADDED)
        x = input if reads is None else input.index_select(axis, reads)
        x = x if one is None else torch.cat([x, one.expand(_ones_channel(x, axis))], axis)
        y: Tensor = super().forward(x, *args, **kwargs)  # type: ignore[misc]
        if gives is None:
            return y
        return torch.cat([y, y.new_zeros(_ones_channel(y, axis))], axis).index_select(axis, gives)


def _ones_channel(x: Tensor, axis: int) -> list[int]:
    return [*x.shape[:axis], 1, *(x.shape[axis + 1 :] if axis != -1 else ())]


def _as_cut_layer(layer: nn.Module) -> None:
    if not isinstance(layer, CutLayer):
        layer.__class__ = converted_class(CutLayer, type(layer))


def empty_compact_network(network: nn.Module, tensors: Mapping[str, Tensor], owned: frozenset[str]) -> nn.Module:
    """A plain network in the shape of a compacted ensemble's tensors, whose values it does not have yet."""
    new = detached_copy(network, {})
    for name, tensor in tensors.items():
        part, key = new.get_submodule(owning_module(name)), name.rpartition(".")[2]
        value = (tensor[0] if name in owned else tensor).clone()
        if key in ADDED and isinstance(part, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)):
            _as_cut_layer(part)
            part.register_buffer(key, value)
        elif key in part._parameters:
            before = part._parameters[key]
            part.register_parameter(key, nn.Parameter(value, requires_grad=before is None or before.requires_grad))
        elif key in part._buffers:
            part._buffers[key] = value
    for part in new.modules():
        update_sizes(part)
    return new
