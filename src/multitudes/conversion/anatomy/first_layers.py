"""The first layers of a network in the autograd graph: no other layer is upstream of them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from multitudes.conversion.anatomy.graph import outputs_first
from multitudes.conversion.anatomy.structure import Structure, rerun
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs
from multitudes.engine.listening import Quick


def first_layers(structure: Structure) -> set[str]:
    """Names the layers that read the network's inputs: they have no other layer upstream."""
    layers = set(structure.layers())
    nodes = {node: name for node, (name, _) in structure.produced_by.items() if name in layers}
    names = set(nodes.values())
    upstream: dict[Any, frozenset[str]] = {}
    for node in reversed(outputs_first(tuple(nodes))):
        above = _two_of(name for source, _ in node.next_functions if source is not None for name in upstream[source])
        if node in nodes and above - {nodes[node]}:
            names.discard(nodes[node])
        upstream[node] = _two_of((*above, nodes[node])) if node in nodes else above
    return _reading_inputs(structure, names)


def _two_of(names: Iterable[str]) -> frozenset[str]:
    """Returns these names, or two of them if there are more: two show that one of them is another than a given one."""
    return frozenset(sorted(set(names))[:2])


def _reading_inputs(structure: Structure, names: set[str]) -> set[str]:
    """Drops layers whose input does not depend on the network's inputs, but on a learned query, say."""
    if len(names) < 2:
        return names
    if "reading inputs" not in structure.worked_out:
        structure.worked_out["reading inputs"] = rerun(structure, functools.partial(_reading, names))
    reading: set[str] = structure.worked_out["reading inputs"]
    return reading or names


def without_inputs(structure: Structure, names: set[str]) -> set[str]:
    """Names those of these layers that do not depend on the network's inputs: they make a weight, or a table."""
    reading: set[str] = rerun(structure, functools.partial(_reading, names))
    return names - reading


def layers_on_constants(structure: Structure) -> set[str]:
    """Names the layers that read neither inputs nor parameters, but constants of forward, such as coordinates of pixels."""
    without_nodes = {name for name in structure.layers() if name in structure.inputs_of and not any(structure.inputs_of[name])}
    if not without_nodes:
        return set()
    if "on constants" not in structure.worked_out:
        reading = rerun(structure, functools.partial(_reading, without_nodes, parameters=True))
        structure.worked_out["on constants"] = without_nodes - reading
    constant: set[str] = structure.worked_out["on constants"]
    return constant


def _reading(names: set[str], probe: nn.Module, inputs: Inputs, parameters: bool = False) -> set[str]:
    """Names those of these layers whose arguments depend on the inputs; `probe` is a copy of the model for one run.

    With `parameters`, also those whose arguments are parameters.
    """
    probe.requires_grad_(False)
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs.tensors()]
    call = inputs.refill([leaf.clone() for leaf in leaves])  # clones, since forward may write into its inputs
    reading: set[str] = set()

    def look(name: str, inputs: Any) -> None:
        tensors = tree.tensors(inputs)
        if any(t.requires_grad or not t.is_floating_point() or (parameters and isinstance(t, nn.Parameter)) for t in tensors):
            reading.add(name)

    for name in names:
        part = probe.get_submodule(name)
        part.register_forward_pre_hook(lambda _, args, kwargs, name=name: look(name, (args, kwargs)), with_kwargs=True)
    with torch.enable_grad(), Quick():
        probe(*call.args, **call.kwargs)
    return reading
