"""How a network reads its inputs: the layers on them, and what else depends on them.

Autograd cannot follow whole numbers, such as token ids, masks and positions. So the example runs through a copy, and every
tensor is marked with the inputs that it depends on, and with whether it went through a layer that reads them.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.graph import walk
from multitudes.conversion.anatomy.structure import Structure, rerun
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs
from multitudes.engine.listening import Listening, Quick, result_of
from multitudes.engine.modules import copy_with

HIDDEN, WEIGHT, INPUT = 1, 2, 4
"""Marks: went through a first layer; depends on a parameter; depends on input k (shifted left by k)."""
SHAPES_ONLY = ("_like", "new_zeros", "new_ones", "new_empty", "new_full")
"""Operations that read the shape of a tensor, but not its values."""
LOOKUPS = ("mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "embedding", "index", "index_select", "gather")
"""Operations that multiply with a matrix, or look up rows in it."""


@dataclass(frozen=True)
class InputReads:
    """The layers that read a network's inputs, and the inputs that are read beside them."""

    first: frozenset[str]
    """Layers that read inputs, and nothing that another layer has made of them."""
    both: frozenset[str]
    """Those of them that also run on hidden activations."""
    beside: tuple[str, ...]
    """Inputs that reach the outputs on another way than through these layers (masks, ids that choose a token), by name."""
    alone: frozenset[int]
    """Inputs that a first layer reads without another, by their places."""
    loose: str | None
    """A parameter that is multiplied with an input, or looked up by it, outside of layers; None if there is none."""
    calls: dict[str, tuple[Any, Any]]
    """Arguments of the first call of each first layer: (args, kwargs)."""
    structure: Structure = field(compare=False, repr=False)
    """The network's structure."""

    @functools.cached_property
    def around(self) -> str | None:
        """An input that a first layer reads, and that also reaches the outputs with a gradient around first layers, or None.

        An input that first layers read only together with others, such as edges that mix nodes before a layer, does not
        count. The example is run when this property is first read.
        """
        ways = rerun(self.structure, functools.partial(_around, self.first)) if self.first else set()
        return next((name for k, name in enumerate(input_names(self.structure.inputs)) if k in ways & self.alone), None)


def input_reads(structure: Structure) -> InputReads:
    """Runs the example through a copy of the model in eval mode, once, and follows what depends on its inputs."""
    known = structure.worked_out
    if "input reads" not in known:
        known["input reads"] = rerun(structure, functools.partial(_follow, structure))
    reads: InputReads = known["input reads"]
    return reads


def _follow(structure: Structure, probe: nn.Module, call: Inputs) -> InputReads:
    """Follows what depends on the inputs of a call; `probe` is a copy of the model for one run."""
    probe.requires_grad_(False)
    layers = [name for name in structure.layers() if any(True for _ in probe.get_submodule(name).parameters())]
    marks = Marks()
    for name, parameter in probe.named_parameters():
        marks.add(parameter, WEIGHT)
        marks.names[marks.key(parameter)] = name
    for k, tensor in enumerate(call.tensors()):
        marks.add(tensor, INPUT << k)
    watch = Watch(marks)
    for name in layers:
        part = probe.get_submodule(name)
        part.register_forward_pre_hook(lambda _, args, kwargs, name=name: watch.enter(name, args, kwargs), with_kwargs=True)
        part.register_forward_hook(lambda _, __, output, name=name: watch.leave(name, output))
    with torch.inference_mode(False), torch.no_grad(), marks:
        output = probe(*call.args, **call.kwargs)
    reached = marks.of(output) // INPUT
    names = input_names(structure.inputs)
    return InputReads(
        first=frozenset(watch.first),
        both=frozenset(watch.first & watch.others),
        beside=tuple(name for k, name in enumerate(names) if reached >> k & 1),
        alone=frozenset(k for k in range(len(names)) if watch.alone >> k & 1),
        loose=marks.loose,
        calls=watch.calls,
        structure=structure,
    )


def input_names(inputs: Inputs) -> list[str]:
    """Names the tensors of a call: by keyword, or "input 0" by position."""
    named = [(f"input {name}", leaf) for name, leaf in tree.leaves(inputs.args)] + list(tree.leaves(inputs.kwargs))
    return [name for name, leaf in named if isinstance(leaf, Tensor)]


class Marks(Listening):
    """Marks tensors in a with-block by what they depend on. A mark belongs to memory, so views and writes keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[int, int] = {}
        self.alive: list[Tensor] = []
        self.names: dict[int, str] = {}
        self.inside = 0
        self.loose: str | None = None

    @staticmethod
    def key(tensor: Tensor) -> int:
        """Returns a number that is the same for all views of a memory."""
        return tensor.untyped_storage()._cdata

    def add(self, tensor: Tensor, mark: int) -> None:
        """Adds a mark to a tensor; the tensor is kept, so that its memory is not used again."""
        self.alive.append(tensor)
        self.marks[self.key(tensor)] = self.marks.get(self.key(tensor), 0) | mark

    def of(self, values: Any) -> int:
        """Returns all marks of the tensors in nested values."""
        found = 0
        for tensor in tree.tensors(values):
            found |= self.marks.get(self.key(tensor), 0) if tensor.layout is torch.strided else 0
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = result_of(func, args, kwargs)
        name = func.overloadpacket.__name__
        if name.endswith(SHAPES_ONLY) or name in SHAPES_ONLY:
            return output
        if name in LOOKUPS and not self.inside:
            self._look_for_loose(args)
        mark = self.of((args, kwargs))
        written = [
            value for argument, value in _arguments(func, args, kwargs) if argument.alias_info and argument.alias_info.is_write
        ]
        for tensor in tree.tensors((output, written)) if mark else ():
            if tensor.layout is torch.strided:
                self.add(tensor, mark)
        return output

    def _look_for_loose(self, args: Any) -> None:
        """Notes a parameter that meets an input which went through no layer."""
        tensors = tree.tensors(args)
        marks = [self.of(tensor) for tensor in tensors]
        if any(mark >= INPUT and not mark & HIDDEN for mark in marks):
            weights = [t for t, mark in zip(tensors, marks, strict=True) if mark == WEIGHT and t.ndim > 1]
            self.loose = self.loose or next((self.names.get(self.key(t), "a parameter") for t in weights), None)


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the arguments of an operation, as its schema describes them, with their values."""
    for index, argument in enumerate(func._schema.arguments):
        if index < len(args):
            yield argument, args[index]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


class Watch:
    """Sorts layers by what they are called with, while the example runs."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.first: set[str] = set()
        self.others: set[str] = set()
        self.calls: dict[str, tuple[Any, Any]] = {}
        self.alone = 0  # bits of the inputs that a layer reads without another
        self.reading: list[bool] = []

    def enter(self, name: str, args: Any, kwargs: Any) -> None:
        """Sees the arguments of a layer's call."""
        mark = self.marks.of((args, kwargs))
        reads = mark >= INPUT and not mark & HIDDEN
        if reads:
            self.first.add(name)
            inputs = mark // INPUT
            self.alone |= inputs if inputs & (inputs - 1) == 0 else 0
            self.calls.setdefault(name, tree.apply(torch.Tensor.clone, (args, kwargs)))
        elif mark:
            self.others.add(name)
        self.reading.append(reads)
        self.marks.inside += 1

    def leave(self, name: str, output: Any) -> None:
        """Marks the output of a first layer as hidden: it no longer is an input's own."""
        self.marks.inside -= 1
        if self.reading.pop():
            for tensor in tree.tensors(output):
                self.marks.alive.append(tensor)
                self.marks.marks[self.marks.key(tensor)] = HIDDEN


def _around(first: Collection[str], probe: nn.Module, inputs: Inputs) -> set[int]:
    """Returns the inputs that reach the outputs with a gradient, but not through these layers."""
    leaves = [t.detach().clone().requires_grad_(t.is_floating_point()) for t in inputs.tensors()]
    call = inputs.refill([leaf.clone() for leaf in leaves])  # clones, since forward may write into its inputs
    ends: set[Any] = set()

    def stop(_: Any, __: Any, output: Any) -> Any:
        own = tree.apply(Tensor.clone, output)  # what writes into a view passes by the view's place in the graph
        ends.update(tensor.grad_fn for tensor in tree.tensors(own))
        return own

    for name in first:
        probe.get_submodule(name).register_forward_hook(stop)
    with torch.inference_mode(False), torch.enable_grad(), Quick():
        output = probe(*call.args, **call.kwargs)
    nodes = walk([t.grad_fn for t in tree.tensors(output)], stop=ends.__contains__)
    met = {id(getattr(node, "variable", None)) for node in nodes}
    return {k for k, leaf in enumerate(leaves) if id(leaf) in met}


def is_additive(layer: nn.Module, call: tuple[Any, Any]) -> bool:
    """Checks on the arguments of a call that a layer's output is a sum over summands of its weight and bias.

    So it is for a product with the weight, and for rows of a table, but not if the weight is normalised first.
    """
    sets = [_random_tensors(layer, seed) for seed in (0, 1)]
    sets.append({name: sets[0][name] + sets[1][name] for name in sets[0]})
    args, kwargs = tree.apply(_in_double, call)
    with torch.no_grad():
        copies = [copy_with(layer, {n: nn.Parameter(value) for n, value in values.items()}).double() for values in sets]
        outputs = [tree.tensors(copy(*args, **kwargs)) for copy in copies]
    return all(torch.allclose(a + b, c) for a, b, c in zip(*outputs, strict=True))


def _in_double(tensor: Tensor) -> Tensor:
    """Returns a tensor in double precision; one without values, on the meta device, gets random ones, or zeros for ids."""
    wide = tensor.double() if tensor.is_floating_point() else tensor
    if not wide.is_meta:
        return wide
    if not wide.is_floating_point():
        return torch.zeros(wide.shape, dtype=wide.dtype)
    return torch.randn(wide.shape, generator=torch.Generator().manual_seed(0), dtype=wide.dtype)


def _random_tensors(layer: nn.Module, seed: int) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    parameters = dict(layer.named_parameters())
    values = {n: torch.rand(p.shape, generator=rng, dtype=torch.float64).sub_(0.5) for n, p in parameters.items()}
    return {n: value if parameters[n].is_meta else value.to(parameters[n].device) for n, value in values.items()}
