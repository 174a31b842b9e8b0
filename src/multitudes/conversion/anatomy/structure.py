"""What running the example tells about a model: the order in which its layers run, and which stand last.

Registration order says nothing about that (a head may be registered first), so the example is run once through a copy
with gradients on, and the autograd graph is walked back from the outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from multitudes.conversion.anatomy.graph import outputs_first, walk
from multitudes.conversion.anatomy.parameter_reads import ParameterReads
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import detached_copy, named_tensors, owning_module
from multitudes.errors import InputError

NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
PRODUCTS = ("MmBackward0", "AddmmBackward0", "BmmBackward0", "LinearBackward0", "ConvolutionBackward0", "CdistBackward0")
SEEN_THROUGH = """View UnsafeView Reshape ReshapeAlias Expand Select Slice Unsqueeze Squeeze Permute Transpose T ToCopy Repeat
    Clone Index IndexSelect Narrow Split SplitWithSizes Unbind Alias UpsampleBicubic2D UpsampleBilinear2D""".split()
"""Operations that leave a tensor's entries what they are: names of their autograd nodes."""
ENTRYWISE = "Add Sub Mul Cat Stack Embedding Where".split()
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(frozen=True)
class Structure:
    """A model as the example ran through it."""

    model: nn.Module
    order: dict[str, int]
    """When each module was first called, by name; modules that were never called are missing."""
    output_nodes: tuple[Any, ...]
    """Autograd nodes of the outputs."""
    produced_by: dict[Any, tuple[str, int]]
    """Autograd nodes that a module's output came from: the module's name, and when."""
    names: dict[int, str]
    """Names of the parameters of the copy that ran, by identity."""
    inputs_of: dict[str, list[tuple[Any, ...]]]
    """For each call of a module, the autograd nodes of the tensors that it was given."""
    read_elsewhere: set[str]
    """Parameters that are read outside the forward of the module that they belong to."""
    functional_dropout: set[str]
    """Modules whose forward calls a dropout function with a rate above 0, dropout modules apart."""
    inputs: Inputs
    """The example."""

    def started(self, name: str) -> int | None:
        """When the first call in a module's subtree happened; None if none did."""
        inside = [at for n, at in self.order.items() if name == "" or n == name or n.startswith(f"{name}.")]
        return min(inside, default=None)

    def layers(self) -> list[str]:
        """Modules that own a matrix themselves and are not made of such modules, in the order in which they run."""
        found = [n for n, module in self.model.named_modules() if is_layer(module) and n in self.order]
        return sorted(found, key=self.order.__getitem__)

    def walk_back(self, stop: Callable[[str, int], bool], loose: bool = False) -> tuple[set[str], set[str]]:
        """Walks from the outputs back to the modules where `stop(module, when)` holds.

        Returns these modules, and the parameters met on the way. With `loose` the walk also ends at a product with a matrix
        that a larger module holds itself: that product is a layer too.
        """
        return self._walk(self.output_nodes, stop, loose)

    def feeding(self, stop: Callable[[str, int], bool]) -> set[str]:
        """The parameters upstream of the modules where `stop(module, when)` holds."""
        return self._walk([node for node, origin in self.produced_by.items() if stop(*origin)], lambda *_: False, False)[1]

    def _walk(self, nodes: Iterable[Any], stop: Callable[[str, int], bool], loose: bool) -> tuple[set[str], set[str]]:
        def is_module(node: Any) -> bool:
            return node in self.produced_by and stop(*self.produced_by[node])

        def is_loose(node: Any) -> bool:
            return loose and node.name() in PRODUCTS and bool(self._factors(node, loose))

        reached: set[str] = set()
        met: set[str] = set()
        for node in walk(nodes, stop=lambda node: is_module(node) or is_loose(node)):
            if is_module(node):
                reached.add(self.produced_by[node][0])
            else:
                met |= self._factors(node, loose)
        return reached, met

    def _factors(self, node: Any, loose: bool) -> set[str]:
        """The parameters that an operation reads; with `loose` also those that a product's factors are computed from."""
        names = {name for source, _ in node.next_functions if (name := self._parameter(source))}
        if loose and node.name() in PRODUCTS:
            names |= {name for source, _ in node.next_functions for name in self._weights(source)}
        return names

    def unregistered_weights(self) -> list[list[int]]:
        """Shapes of weights that the outputs depend on and the model does not register."""
        leaves = [getattr(node, "variable", None) for node in walk(self.output_nodes)]
        return [list(leaf.shape) for leaf in leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in self.names]

    def _weights(self, node: Any) -> set[str]:
        """The parameters that a node is computed from; none if a module's output is among its sources."""
        names: set[str] = set()
        for source in walk([node]):
            if source in self.produced_by:
                return set()
            names |= {self.names[i] for i in [id(getattr(source, "variable", None))] if i in self.names}
        return names

    def _parameter(self, node: Any) -> str | None:
        while node is not None and node.name() in ("TBackward0", "TransposeBackward0", "PermuteBackward0", "ViewBackward0"):
            node = node.next_functions[0][0]
        variable = getattr(node, "variable", None)
        return None if variable is None else self.names.get(id(variable))


def is_layer(module: nn.Module) -> bool:
    """Whether a module owns a matrix itself, and nothing inside it owns one (attention and recurrent modules count)."""
    if isinstance(module, NORMS) or not any(p.ndim >= 2 for p in own_tensors(module).values()):
        return False
    inner = any(isinstance(p, nn.Parameter) and owning_module(n) != "" for n, p in named_tensors(module))
    return not inner or isinstance(module, nn.MultiheadAttention)


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: one of torch's norms, or one that is called so and has a scale, and a shift, of its own."""
    if isinstance(module, NORMS):
        return True
    own = own_tensors(module)
    alone = own.keys() == dict(named_tensors(module)).keys() and bool(own) and all(t.ndim <= 1 for t in own.values())
    return alone and "norm" in type(module).__name__.lower()


def own_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that belong to a module itself, parametrized ones included."""
    return {name: tensor for name, tensor in named_tensors(module) if owning_module(name) == ""}


def observe(model: nn.Module, inputs: Inputs) -> Structure:
    """Runs the example through a copy of the model, in eval mode."""
    probe = detached_copy(model, {}).eval()
    for parameter in probe.parameters():
        if parameter.is_floating_point() or parameter.is_complex():
            parameter.requires_grad_(True)
    order: dict[str, int] = {}
    produced_by: dict[Any, tuple[str, int]] = {}
    inputs_of: dict[str, list[tuple[Any, ...]]] = {}
    clock = itertools.count()

    def enter(name: str, given: Any) -> None:
        order.setdefault(name, next(clock))
        nodes = tuple(tensor.grad_fn for tensor in tree.tensors(given) if tensor.grad_fn is not None)
        inputs_of.setdefault(name, []).append(nodes)

    def leave(name: str, output: Any) -> None:
        now = next(clock)
        for tensor in tree.tensors(output):
            if tensor.grad_fn is not None:
                produced_by.setdefault(tensor.grad_fn, (name, now))  # the innermost module, whose hook runs first, keeps it

    for name, module in probe.named_modules():
        module.register_forward_pre_hook(lambda _, args, kwargs, name=name: enter(name, (args, kwargs)), with_kwargs=True)
        module.register_forward_hook(lambda _, __, output, name=name: leave(name, output))
    reading = ParameterReads(probe)
    with torch.enable_grad(), reading:
        own = inputs.refill([tensor.detach().clone() for tensor in inputs.tensors()])
        output = probe(*own.args, **own.kwargs)
    made_now = sorted(dict(probe.named_buffers()).keys() - dict(model.named_buffers()).keys())
    if made_now:
        raise InputError(f"forward makes {', '.join(made_now)} on its first call: run the model once, then convert it")
    names = {id(parameter): name for name, parameter in probe.named_parameters()}
    ends = tuple(tensor.grad_fn for tensor in tree.tensors(output) if tensor.grad_fn is not None)
    structure = Structure(
        model, order, ends, produced_by, names, inputs_of, reading.read_elsewhere, reading.functional_dropout, inputs
    )
    strays = structure.unregistered_weights()
    if strays:
        raise InputError(
            f"forward uses weights that no module of the model registers, of shapes {strays}: put layers into an nn.ModuleList "
            "and weights into an nn.ParameterList, and let no function hold on to the model itself"
        )
    return structure


def last_layers(structure: Structure) -> tuple[set[str], set[str]]:
    """The layers met first on the way back from the outputs, and the loose parameters behind them."""
    layers = set(structure.layers())
    return structure.walk_back(lambda module, _: module in layers, loose=True)


def heads(structure: Structure) -> tuple[set[str], set[str]]:
    """The classifier that a timm model names itself, or else the last layers, and the loose parameters behind them."""
    named = _named_by_config(structure)
    return (named, set()) if named is not None else last_layers(structure)


def _named_by_config(structure: Structure) -> set[str] | None:
    """The classifier that a timm model names itself."""
    config = getattr(structure.model, "pretrained_cfg", None)
    named = config.get("classifier") if isinstance(config, dict) else getattr(config, "classifier", None)
    if not named:
        return None
    heads = {named} if isinstance(named, str) else set(named)
    modules = dict(structure.model.named_modules())
    return heads if all(name in modules and list(modules[name].parameters()) for name in heads) else None


def blocks(model: nn.Module) -> list[str]:
    """The repeated parts of a network: elements of containers that are made of layers, innermost; without any, its layers."""
    found = []
    for name, module in model.named_modules():
        if not isinstance(module, CONTAINERS):
            continue
        for key, part in module.named_children():
            if any(is_layer(inner) for inner in part.modules() if inner is not part):
                found.append(f"{name}.{key}" if name else key)
    innermost = [n for n in found if not any(other.startswith(f"{n}.") for other in found)]
    return innermost or [name for name, module in model.named_modules() if is_layer(module)]


def last_third(structure: Structure) -> str:
    """The first of the children that run last and hold at least a third of the blocks.

    A child that would leave less than a third to the rest is opened, and the search goes on among its own children.
    """
    names = blocks(structure.model)

    def held(module: str) -> int:
        return sum(n == module or module == "" or n.startswith(f"{module}.") for n in names)

    def search(module: str, after: int) -> str:
        prefix = f"{module}." if module else ""
        inside = structure.model.get_submodule(module).named_children()
        children = [prefix + key for key, _ in inside if structure.started(prefix + key) is not None]
        for child in sorted(children, key=structure.started, reverse=True):  # type: ignore[arg-type]
            here = held(child)
            if 3 * (after + here) >= len(names):
                opens = 3 * (after + here) > 2 * len(names) and child not in names
                return search(child, after) if opens else child
            after += here
        return module

    return search("", 0)


def block_starts(structure: Structure) -> set[str]:
    """The first layers of every residual block: those on the longer ways of its sum that no other layer of it comes before.

    A residual sum joins ways that part at a common tensor, and the way with the fewest layers is the shortcut. They are found
    in the autograd graph, so that a residual network shows its blocks however it is written.
    """
    order = outputs_first(structure.output_nodes)
    place = {node: index for index, node in enumerate(order)}
    users: dict[Any, int] = {}
    for node in order:
        for source, _ in node.next_functions:
            users[source] = users.get(source, 0) + 1
    layers = set(structure.layers())
    made = {node: name for node, (name, _) in structure.produced_by.items() if name in layers}
    starts: set[str] = set()
    for node in order:
        ways = _summands(node, users)
        if len(ways) < 2:
            continue
        behind = [set(outputs_first((way,))) for way in ways]
        fork = min((place[n] for n in set.intersection(*behind)), default=len(order))
        between = [{n: made[n] for n in way if place[n] < fork and n in made} for way in behind]
        fewest = min(len(set(way.values())) for way in between)
        for way in between if fork < len(order) else ():
            if len(set(way.values())) > fewest:
                starts |= {name for n, name in way.items() if not (set(outputs_first((n,))) - {n}) & way.keys()}
    return starts


def _summands(node: Any, users: dict[Any, int]) -> list[Any]:
    """What a sum adds up, sums in it that serve nothing else included; nothing for what is no sum."""
    kind = node.name().removesuffix("Backward0").removesuffix("Backward1")
    parts = [source for source, _ in node.next_functions if source is not None]
    if kind in ("Sum", "Mean") and len(parts) == 1 and parts[0].name() in ("StackBackward0", "CatBackward0"):
        return [source for source, _ in parts[0].next_functions if source is not None]
    if kind not in ("Add", "Sub", "Lerp", "Addcmul"):
        return []
    found = []
    for part in parts:
        inner = _summands(part, users) if users.get(part) == 1 else []
        found += inner or [part]
    return [part for part in found if "AccumulateGrad" not in part.name()]


def additive_parameters(structure: Structure) -> set[str]:
    """The parameters that are only ever added, scaled entry by entry or put beside something: tokens, positions, scales."""
    consumers: dict[Any, list[Any]] = {}
    for node in outputs_first(structure.output_nodes):
        for source, _ in node.next_functions:
            consumers.setdefault(source, []).append(node)
    found = set()
    for leaf in consumers:
        name = structure.names.get(id(getattr(leaf, "variable", None)))
        if name is not None and _only_added(leaf, consumers):
            found.add(name)
    return found


def _only_added(leaf: Any, consumers: dict[Any, list[Any]]) -> bool:
    queue, seen = [leaf], set()
    while queue:
        for user in consumers.get(queue.pop(), []):
            kind = user.name().removesuffix("Backward0").removesuffix("Backward1")
            if kind in SEEN_THROUGH and user not in seen:
                seen.add(user)
                queue.append(user)
            elif kind not in (*SEEN_THROUGH, *ENTRYWISE):
                return False
    return True
