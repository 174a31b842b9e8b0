"""Finds last layers that stay as wide as before though they are no outputs, and make a thinner network too large."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from multitudes.conversion.anatomy.first_layers import first_layers, without_inputs
from multitudes.conversion.anatomy.structure import Structure, is_layer, last_layers
from multitudes.conversion.resize.audit import width_of
from multitudes.conversion.resize.widths import ROUNDING
from multitudes.engine.modules import owning_module

LAW = 1.6
"""How many times as large as its ratio says a network may be."""


def unthinned_ends(structure: Structure, new: nn.Module, ratio: float) -> Iterator[str]:
    """Reports last layers as wide as before that are no outputs, if they make the network larger than its ratio says.

    In a hypernetwork one of the last layers makes the weight that multiplies the output of another: both are hidden.
    """
    model, ends = structure.model, last_layers(structure)[0]
    if ratio >= 1 or len(ends) < 2:
        return
    entries = [math.prod(shape[1:]) for shape in structure.output_shapes.values()]
    widths = {name: width_of(model.get_submodule(name)) for name in ends}
    unthinned = {
        name
        for name, width in widths.items()
        if width > ROUNDING and width_of(new.get_submodule(name)) == width and all(count % width for count in entries)
    }
    if not unthinned or not without_inputs(structure, unthinned):
        return
    first, sizes = first_layers(structure), {name: tensor.numel() for name, tensor in new.named_parameters()}
    expected = 0.0
    for name, parameter in model.named_parameters():
        layer = owning_module(name)
        thinner = (parameter.ndim > 1 and layer not in first) + (layer not in ends or layer in unthinned)
        known = is_layer(model.get_submodule(layer)) and name not in structure.tables
        expected += parameter.numel() * ratio**thinner if known else sizes.get(name, 0)
    if sum(sizes.values()) > LAW * expected:
        yield from (f"{name} is as wide as before" for name in sorted(unthinned))
