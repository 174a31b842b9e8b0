"""Folds the vectors around a layer into it: members' factors, norms that follow them, masks of channels.

What follows a convolution or a linear layer, channel by channel, is a scale a and a shift b; what precedes it is a factor r:

    a ∘ (W ∗ (r ∘ x)) + b = (a ∘ W ∘ r) ∗ x + b

Where members own a or r, a ∘ W ∘ r is a weight of each member. A runtime computes it from constants, once, when it loads the
file. So the file has one W, and the graph is as short as the single network's.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from multitudes.files.export.norms import NORM, groups_of, name_of
from multitudes.files.export.products import CONVOLUTIONS
from multitudes.files.export.trace import MemberGraph

LARGEST = 2**28
"""Most bytes of members' weights that a runtime is made to form from shared ones.

A kernel of each member is read from memory for each row, a scale and a shift of each member read and write the activations. So
forming pays for small kernels behind large images, and costs for large ones: `python benchmarks/export.py --limits` measures
ResNet-18 with 20 draws. More than this makes it slower again, and loads for seconds.
"""
FEW = 64
"""Most products of one output of a layer that is run for each member instead of once: those of a first layer on colours."""

aten: Any = torch.ops.aten


@dataclass
class _Layer:
    """A layer and the vectors around it: nodes that depend on no input."""

    node: fx.Node
    last: fx.Node
    """The last of the operations that scale and shift the layer's output."""
    source: Any
    """The input, before it is multiplied by `factor`."""
    scale: fx.Node | None = None
    shift: fx.Node | None = None
    factor: fx.Node | None = None

    @property
    def weight(self) -> Any:
        return self.node.args[1]


def fold_factors(graph: MemberGraph, most: int) -> None:
    """Folds the vectors around layers, in place.

    most   shared kernels and members' vectors become kernels of members, smallest first, as long as all of these together
           have at most so many bytes; otherwise a scale and a shift of each member follow the convolution
    """
    folding = _Folding(graph)
    nodes = list(graph.graph.nodes)
    layers = [layer for node in nodes if (layer := folding.layer(node)) is not None]
    formed = folding.formed(layers, most)
    for node in nodes:
        if (layer := folding.layer(node)) is not None:  # anew: its input may be a layer that was just replaced
            folding.rewrite(layer, node in formed)
    graph.graph.eliminate_dead_code()


class _Folding:
    """The graph of a member, and what is known of its nodes."""

    def __init__(self, graph: MemberGraph) -> None:
        self.graph = graph
        stored = graph.tensors
        self.variable = _depending(graph.graph, lambda name: name not in stored)
        """Nodes that depend on the inputs."""
        self.own = _depending(graph.graph, lambda name: name in graph.owned)
        """Nodes that depend on the member."""

    def layer(self, node: fx.Node) -> _Layer | None:
        """Returns a layer with the vectors around it; None for another node, and for a layer that stays as it is."""
        if name_of(node) not in (*CONVOLUTIONS, "linear") or node.args[1] in self.variable:
            return None
        grouped = groups_of(node) != 1
        bias: Any = node.args[2] if len(node.args) > 2 else None
        if bias in self.variable or (grouped and "transpose" in name_of(node)):
            return None
        layer = _Layer(node, node, node.args[0], shift=bias)
        while (after := self._take_after(layer)) is not None:
            layer.last = after
        before: Any = node.args[0]
        if not grouped and name_of(before) == "mul" and len(before.users) == 1:
            self._take_factor(layer, before)
        vectors = [layer.scale, layer.shift, layer.factor, layer.weight]
        changed = layer.last is not node or layer.factor is not None
        return layer if changed and any(one in self.own for one in vectors) else None

    def _take_factor(self, layer: _Layer, product: fx.Node) -> None:
        """Takes the vector by which a layer's input is multiplied."""
        for source, vector in (product.args, product.args[::-1]):
            if self._is_vector(vector, layer.node, of_input=True):
                layer.source, layer.factor = source, vector  # type: ignore[assignment]

    def _take_after(self, layer: _Layer) -> fx.Node | None:
        """Takes the operation after a layer into its scale and shift, and returns it; None if it is none of these."""
        last = layer.last
        if len(last.users) != 1:
            return None
        (user,) = last.users
        if name_of(user) in ("mul", "add") and not user.kwargs:
            vector: Any = user.args[1] if user.args[0] is last else user.args[0]
            if not self._is_vector(vector, layer.node):
                return None
            with self.graph.graph.inserting_before(user):
                vector = self._flat(vector)
                if name_of(user) == "mul":
                    layer.scale = self._joined(aten.mul.Tensor, layer.scale, vector)
                    layer.shift = None if layer.shift is None else self._made(aten.mul.Tensor, layer.shift, vector)
                else:
                    layer.shift = self._joined(aten.add.Tensor, layer.shift, vector)
            return user
        return self._take_norm(layer, user) if name_of(user) == NORM else None

    def _take_norm(self, layer: _Layer, norm: fx.Node) -> fx.Node | None:
        """Takes a BatchNorm after a layer: (z − mean) · scale + offset."""
        if name_of(layer.node) == "linear" and layer.node.meta["val"].ndim != 2:
            return None
        _, gain, offset, mean, var, _, eps = norm.args
        read = [user for user in norm.users if user.target is operator.getitem and user.args[1] == 0]
        others = [user for user in norm.users if user not in read and user.users]
        if len(read) != 1 or others or any(one in self.variable for one in (gain, offset, mean, var)):
            return None
        with self.graph.graph.inserting_before(norm):
            scale = self._made(aten.rsqrt.default, self._made(aten.add.Scalar, var, eps))
            scale = scale if gain is None else self._made(aten.mul.Tensor, scale, gain)
            below = mean if layer.shift is None else self._made(aten.sub.Tensor, mean, layer.shift)
            moved = self._made(aten.mul.Tensor, below, scale)
            layer.shift = self._made(aten.neg.default, moved) if offset is None else self._made(aten.sub.Tensor, offset, moved)
            layer.scale = self._joined(aten.mul.Tensor, layer.scale, scale)
        return read[0]

    def formed(self, layers: Sequence[_Layer], most: int) -> set[fx.Node]:
        """Returns the layers whose shared weights and vectors become weights of members: the smallest, up to `most` bytes.

        The smallest kernels have the largest images, where a scale and a shift cost most.
        """
        growing = sorted((self._bytes(layer), place) for place, layer in enumerate(layers) if self._grows(layer))
        whole = itertools.accumulate(size for size, _ in growing)
        return {layers[place].node for total, (_, place) in zip(whole, growing, strict=True) if total <= most}

    def _bytes(self, layer: _Layer) -> int:
        return 4 * self.graph.members * math.prod(self._shape(layer.weight) or [])

    def _grows(self, layer: _Layer) -> bool:
        """Whether a shared kernel would become one of each member. A layer that runs once for all members stays shared, unless
        it is about as cheap as the scale and the shift.

        So does the matrix of a linear layer that sees one vector of each row: for few rows its product takes the time in which
        it is read. One that sees many, as in a transformer, is like a convolution.
        """
        if layer.weight in self.own or not (layer.scale in self.own or layer.factor in self.own):
            return False
        if layer.source in self.own or layer.factor in self.own:
            return name_of(layer.node) != "linear" or layer.node.meta["val"].ndim > 2
        shape = self._shape(layer.weight) or []
        return math.prod(shape) // shape[int("transpose" in name_of(layer.node))] <= FEW

    def rewrite(self, layer: _Layer, merge: bool) -> None:
        """Replaces a layer and the vectors around it by one layer, which `merge` may give weights of members, or by a layer, a
        product and a sum.
        """
        node, weight, shift, rest = layer.node, layer.weight, layer.shift, layer.node.args[3:]
        vectors = layer.scale in self.own or layer.factor in self.own
        rank = len(self._shape(weight) or [])
        with self.graph.graph.inserting_before(layer.last.next):
            if weight in self.own or not vectors or merge:
                axis = int("transpose" in name_of(node))
                for vector, at in ((layer.scale, axis), (layer.factor, 1 - axis)):
                    if vector is not None:
                        sizes = [-1 if place == at else 1 for place in range(rank)]
                        weight = self._made(aten.mul.Tensor, weight, self._made(aten.view.default, vector, sizes))
                new = self._made(node.target, layer.source, weight, shift, *rest)
                new.meta["val"] = layer.last.meta.get("val")
            else:
                new = self._made(node.target, node.args[0], weight, shift if layer.scale is None else None, *rest)
                new.meta["val"] = node.meta["val"]
                sizes = [-1, *(1 for _ in range(rank - 2))]
                for vector, combine in ((layer.scale, aten.mul.Tensor), (shift, aten.add.Tensor)):
                    if layer.scale is not None and vector is not None:
                        new = self._made(combine, new, self._made(aten.view.default, vector, sizes))
        layer.last.replace_all_uses_with(new)

    def _made(self, target: Any, *args: Any) -> fx.Node:
        """Adds an operation to the graph."""
        node = self.graph.graph.call_function(target, args)
        for known in (self.own, self.variable):
            if any(before in known for before in node.all_input_nodes):
                known.add(node)
        return node

    def _joined(self, target: Any, one: fx.Node | None, other: fx.Node) -> fx.Node:
        return other if one is None else self._made(target, one, other)

    def _flat(self, vector: fx.Node) -> fx.Node:
        return vector if len(self._shape(vector) or []) == 1 else self._made(aten.view.default, vector, [-1])

    def _is_vector(self, value: Any, node: fx.Node, of_input: bool = False) -> bool:
        """Whether a value has one entry for each channel of a layer's output or input, along the axis of the channels."""
        weight, shape = self._shape(node.args[1]), self._shape(value)
        if value in self.variable or shape is None or weight is None or self._dtype(value) != self._dtype(node.args[1]):
            return False
        rank = len(weight) - 1  # of an example: channels, and pixels
        at = int(of_input != ("transpose" in name_of(node)))
        return len(shape) >= rank and shape[-rank] == weight[at] == math.prod(shape)

    def _shape(self, node: Any) -> Sequence[int] | None:
        """Returns the shape that one member sees; None if it is not known."""
        if not isinstance(node, fx.Node):
            return None
        if node.op == "placeholder" and node.name in self.graph.sizes:
            return self.graph.sizes[node.name][node.name in self.graph.owned :]
        value = node.meta.get("val")
        return tuple(value.shape) if isinstance(value, torch.Tensor) else None

    def _dtype(self, node: Any) -> Any:
        stored = self.graph.tensors.get(node.name) if node.op == "placeholder" else None
        return (node.meta["val"] if stored is None else stored).dtype


def _depending(graph: fx.Graph, begins: Any) -> set[Any]:
    """Returns the nodes that depend on placeholders of some names."""
    found: set[Any] = set()
    for node in graph.nodes:
        if begins(node.name) if node.op == "placeholder" else any(before in found for before in node.all_input_nodes):
            found.add(node)
    return found
