"""Entry: where a network's inputs go in: the layers that stand on them, and what comes around or before these."""

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
    """The layers that no other layer comes before: those on the network's inputs."""
    layers = set(structure.layers())
    nodes = {node: name for node, (name, _) in structure.produced_by.items() if name in layers}
    found = set(nodes.values())
    for node, name in nodes.items():
        if any(nodes.get(other, name) != name for other in outputs_first((node,))):
            found.discard(name)
    return _fed(structure, found)


def _fed(structure: Structure, names: set[str]) -> set[str]:
    """Those of the layers that are given something of the network's inputs; a learned query's layer is not."""
    if len(names) < 2:
        return names
    probe = detached_copy(structure.model, {}).eval().requires_grad_(False)
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in structure.inputs.tensors()]
    own = structure.inputs.refill([leaf.clone() for leaf in leaves])  # which forward may write into
    found: set[str] = set()

    def look(name: str, given: Any) -> None:
        if any(t.requires_grad or not t.is_floating_point() for t in tree.tensors(given)):
            found.add(name)

    for name in names:
        part = probe.get_submodule(name)
        part.register_forward_pre_hook(lambda _, args, kwargs, name=name: look(name, (args, kwargs)), with_kwargs=True)
    with torch.enable_grad():
        probe(*own.args, **own.kwargs)
    return found or names


def norms_before(structure: Structure, layers: set[str]) -> set[str]:
    """The norms that stand before these layers."""
    norms = {n for n, part in structure.model.named_modules() if is_norm(part) and n in structure.order}
    earliest = min((structure.order[n] for n in layers), default=0)
    found = {n for n in norms if structure.order[n] < earliest}
    for node, (name, _) in structure.produced_by.items():
        if name in layers:
            found |= {structure.produced_by[n][0] for n in outputs_first((node,)) if n in structure.produced_by} & norms
    return found


def reaches_around(model: nn.Module, inputs: Inputs, first: set[str]) -> str | None:
    """What of the input comes to the outputs without passing through these layers, if anything does."""
    probe = detached_copy(model, {}).eval()
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs.tensors()]
    own = inputs.refill([leaf.clone() for leaf in leaves])  # which forward may write into
    given = {id(leaf) for leaf in leaves}
    cut: set[Any] = set()
    for name in first:
        probe.get_submodule(name).register_forward_hook(lambda _, __, output: cut.add(output.grad_fn))
    with torch.enable_grad():
        output = probe(*own.args, **own.kwargs)
    nodes = walk([t.grad_fn for t in tree.tensors(output)], stop=cut.__contains__)
    around = any(id(getattr(node, "variable", None)) in given for node in nodes)
    return "its input reaches the output around the first layer" if around else None
