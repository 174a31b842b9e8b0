"""Cut layers: layers without some of their channels. The network has the same outputs as with masks on these channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from multitudes.conversion.anatomy.known_layers import CONVOLUTIONS, TRANSPOSED, channel_axis, product_of, without_norm
from multitudes.conversion.anatomy.structure import own_tensors
from multitudes.engine.converted import converted_class
from multitudes.engine.kernels.select import select_channels
from multitudes.engine.modules import as_same_kind, detached_copy, owning_module

ADDED = ("reads", "places", "keeps")
"""Buffers that a cut layer adds.

reads   the input channels that the layer gathers
places  for each output channel, its place in the outputs of the thin layer, of which the last is zeros
keeps   for each output channel 1, or 0 where a mask drops it; for a layer that is computed once for all members
"""


@dataclass(frozen=True)
class Link:
    """Two layers and the norms between them. The output of the first layer goes only to the second."""

    source: str
    target: str
    norms: tuple[str, ...]


@dataclass(frozen=True)
class ChannelCut:
    """How a layer with masks is cut."""

    layer: str
    kept: Tensor
    """For each member, the channels that its mask keeps, ``[M, ones]``."""
    before: bool
    """Whether the mask is on the layer's input; else it is on its output."""
    link: Link | None = None
    """The link to cut: both of its layers lose the channels. None cuts only the layer with the mask."""
    whole: tuple[Tensor, Tensor | None] | None = None
    """Uncut weight and bias, for a layer that is computed once for all members and masked at its output."""
    constants: Tensor | None = None
    """For each member, the constant inputs of the link's second layer in dropped channels, ``[M, C]``; None if all are 0."""


def cuttable(layer: nn.Module) -> bool:
    """Whether single channels can be removed from a layer: its type is torch's, and it has no groups or parametrizations."""
    plain = isinstance(layer, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)) and product_of(layer) is not None
    return plain and getattr(layer, "groups", 1) == 1 and without_norm("", layer) is None


def width(layer: Any, reads: bool) -> int:
    """Returns the number of input channels (`reads`) or output channels of a layer."""
    return int(layer.weight.shape[_weight_axis(layer, reads)])


def _weight_axis(layer: nn.Module, reads: bool) -> int:
    """Returns the axis of the input channels (`reads`) or output channels in a layer's weight."""
    return int(reads) ^ int(isinstance(layer, TRANSPOSED))


def without_channels(member: nn.Module, m: int, cuts: list[ChannelCut]) -> nn.Module:
    """Returns a copy of member m without the channels that the cuts drop."""
    new = detached_copy(member, {})
    for cut in cuts:
        if cut.link is not None:
            _cut_link(new, cut.link, cut.kept[m], None if cut.constants is None else cut.constants[m])
        elif cut.before:
            _cut_inputs(new.get_submodule(cut.layer), cut.kept[m])
        else:
            _cut_outputs(new.get_submodule(cut.layer), cut.kept[m], cut.whole)
    return new


def _cut_inputs(layer: nn.Module, kept: Tensor) -> None:
    _keep_channels(layer, kept, reads=True)
    _as_cut_layer(layer)
    layer.register_buffer("reads", kept.clone())


def _cut_outputs(layer: nn.Module, kept: Tensor, whole: tuple[Tensor, Tensor | None] | None) -> None:
    channels = width(layer, reads=False)
    _as_cut_layer(layer)
    if whole is not None:
        _set_weights(layer, *whole)
        layer.register_buffer("keeps", torch.zeros(channels).to(whole[0]).index_fill(0, kept, 1))
        return
    _keep_channels(layer, kept, reads=False)
    _add_zero_channel(layer)
    places = torch.full((channels,), len(kept), device=kept.device)
    layer.register_buffer("places", places.index_copy(0, kept, torch.arange(len(kept), device=kept.device)))


def _cut_link(network: nn.Module, link: Link, kept: Tensor, constants: Tensor | None) -> None:
    target = network.get_submodule(link.target)
    if constants is not None:
        kept = _carried(target, kept, constants)
    _keep_channels(target, kept, reads=True)
    _keep_channels(network.get_submodule(link.source), kept, reads=False)
    for name in link.norms:
        _keep_norm_channels(network.get_submodule(name), kept)


def _carried(layer: Any, kept: Tensor, constants: Tensor) -> Tensor:
    """Sums up what dropped channels, which are constant, contribute to a layer. Returns the channels that it must read.

    The bias of a Linear layer takes the sum. For other layers one dropped channel stays, the one with the largest constant,
    with weights that give the sum; so it is right at a padded border too.
    """
    axis = _weight_axis(layer, reads=True)
    weight = layer.weight.detach()
    shape = [-1 if at == axis else 1 for at in range(weight.ndim)]
    total = (weight * constants.to(weight).view(shape)).sum(axis)
    if isinstance(layer, nn.Linear):
        bias = total if layer.bias is None else layer.bias.detach() + total
        layer.bias = nn.Parameter(bias, requires_grad=layer.weight.requires_grad)
        return kept
    dropped = torch.ones(len(constants), dtype=torch.bool, device=kept.device).index_fill(0, kept, False)
    carrier = (constants.abs() + dropped.to(constants)).argmax()  # one of those that are dropped
    value = constants[carrier].to(weight)
    weight = weight.clone()
    weight.select(axis, int(carrier)).copy_(torch.where(value == 0, 0, total / value))
    layer.weight = as_same_kind(layer.weight, weight)
    return torch.cat([kept, carrier.view(1)])


def _set_weights(layer: Any, weight: Tensor, bias: Tensor | None) -> None:
    layer.weight = as_same_kind(layer.weight, weight.detach().to(layer.weight, copy=True))
    if bias is not None:
        layer.bias = as_same_kind(layer.bias, bias.detach().to(layer.bias, copy=True))


def _keep_channels(layer: Any, kept: Tensor, reads: bool) -> None:
    """Keeps only these input channels (`reads`) or output channels."""
    layer.weight = as_same_kind(layer.weight, layer.weight.detach().index_select(_weight_axis(layer, reads), kept))
    if not reads and layer.bias is not None:
        layer.bias = as_same_kind(layer.bias, layer.bias.detach()[kept])
    update_sizes(layer)


def _add_zero_channel(layer: Any) -> None:
    """Adds an output channel of zeros, the last."""
    axis = _weight_axis(layer, reads=False)
    weight = layer.weight.detach()
    layer.weight = as_same_kind(layer.weight, torch.cat([weight, torch.zeros_like(weight.narrow(axis, 0, 1))], axis))
    if layer.bias is not None:
        layer.bias = as_same_kind(layer.bias, torch.cat([layer.bias.detach(), layer.bias.new_zeros(1)]))
    update_sizes(layer)


def _keep_norm_channels(norm: Any, kept: Tensor) -> None:
    for key, tensor in own_tensors(norm).items():
        if tensor.ndim and tensor.numel() > 1:
            setattr(norm, key, as_same_kind(tensor, tensor.detach()[kept]))
    update_sizes(norm)


def update_sizes(layer: Any) -> None:
    """Sets in_channels, out_features and the like to the sizes of the layer's tensors."""
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
    """Mixin, placed before the layer's class, for a layer with channels removed. Inputs and outputs have the uncut shape."""

    _buffers: dict[str, Tensor | None]

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Gathers input channels, runs the thin layer, and spreads its output channels."""
        axis, (reads, places, keeps) = channel_axis(self), map(self._buffers.get, ADDED)
        x = input if reads is None else select_channels(input, axis, reads)
        y: Tensor = super().forward(x, *args, **kwargs)  # type: ignore[misc]
        if keeps is not None:
            return y * keeps.to(y.dtype).view(-1, *(1 for _ in range(-axis - 1)))
        return y if places is None else select_channels(y, axis, places)


def _as_cut_layer(layer: nn.Module) -> None:
    if not isinstance(layer, CutLayer):
        layer.__class__ = converted_class(CutLayer, type(layer))


def empty_compact_network(network: nn.Module, tensors: Mapping[str, Tensor], owned: frozenset[str]) -> nn.Module:
    """Returns a copy of a plain network as the first member of a compact ensemble with these `tensors`.

    A layer becomes a cut layer if `tensors` has the buffers of one for it.
    """
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
