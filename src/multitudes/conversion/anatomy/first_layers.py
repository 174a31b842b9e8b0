"""The first layers of a network in the autograd graph: no other layer is upstream of them."""

from __future__ import annotations

from typing import Any

import torch

from multitudes.conversion.anatomy.graph import outputs_first
from multitudes.conversion.anatomy.structure import Structure, probe_of
from multitudes.engine import tree


def first_layers(structure: Structure) -> set[str]:
    """Names the layers that read the network's inputs: they have no other layer upstream."""
    layers = set(structure.layers())
    nodes = {node: name for node, (name, _) in structure.produced_by.items() if name in layers}
    names = set(nodes.values())
    for node, name in nodes.items():
        if any(nodes.get(other, name) != name for other in outputs_first((node,))):
            names.discard(name)
    return _reading_inputs(structure, names)


def _reading_inputs(structure: Structure, names: set[str]) -> set[str]:
    """Drops layers whose input does not depend on the network's inputs, but on a learned query, say."""
    if len(names) < 2:
        return names
    probe = probe_of(structure).requires_grad_(False)
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in structure.inputs.tensors()]
    call = structure.inputs.refill([leaf.clone() for leaf in leaves])  # clones, since forward may write into its inputs
    reading: set[str] = set()

    def look(name: str, inputs: Any) -> None:
        if any(t.requires_grad or not t.is_floating_point() for t in tree.tensors(inputs)):
            reading.add(name)

    for name in names:
        part = probe.get_submodule(name)
        part.register_forward_pre_hook(lambda _, args, kwargs, name=name: look(name, (args, kwargs)), with_kwargs=True)
    with torch.enable_grad():
        probe(*call.args, **call.kwargs)
    return reading or names
