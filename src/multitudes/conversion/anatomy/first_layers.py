"""The first layers of a network, which read its inputs, and the norms before them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from multitudes.conversion.anatomy.graph import outputs_first, walk
from multitudes.conversion.anatomy.structure import Structure, is_norm
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import detached_copy


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
    probe = detached_copy(structure.model, {}).eval().requires_grad_(False)
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


def norms_before(structure: Structure, layers: set[str]) -> set[str]:
    """Names the norms that run before these layers, or lie upstream of them."""
    norms = {n for n, part in structure.model.named_modules() if is_norm(part) and n in structure.order}
    earliest = min((structure.order[n] for n in layers), default=0)
    before = {n for n in norms if structure.order[n] < earliest}
    for node, (name, _) in structure.produced_by.items():
        if name in layers:
            before |= {structure.produced_by[n][0] for n in outputs_first((node,)) if n in structure.produced_by} & norms
    return before


def reaches_around(model: nn.Module, inputs: Inputs, first: set[str]) -> str | None:
    """Returns a reason for refusal if an input reaches the outputs without passing through these layers, else None."""
    probe = detached_copy(model, {}).eval()
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs.tensors()]
    call = inputs.refill([leaf.clone() for leaf in leaves])  # clones, since forward may write into its inputs
    leaf_ids = {id(leaf) for leaf in leaves}
    ends: set[Any] = set()
    for name in first:
        probe.get_submodule(name).register_forward_hook(lambda _, __, output: ends.add(output.grad_fn))
    with torch.enable_grad():
        output = probe(*call.args, **call.kwargs)
    nodes = walk([t.grad_fn for t in tree.tensors(output)], stop=ends.__contains__)
    around = any(id(getattr(node, "variable", None)) in leaf_ids for node in nodes)
    return "an input reaches the output without passing through the first layer" if around else None
