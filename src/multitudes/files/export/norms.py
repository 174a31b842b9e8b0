"""Folds BatchNorm into the layer before it: with running statistics it is a scale and a shift of that layer's outputs."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, fx

from multitudes.files.export.products import CONVOLUTIONS
from multitudes.files.export.trace import MemberGraph

NORM = "_native_batch_norm_legit_no_training"


def fold_norms(graph: MemberGraph) -> int:
    """Multiplies BatchNorm's scale into the weights of the layer before it, in place. Returns how many norms are folded.

    A norm stays if its layer's output is read elsewhere, if other operations read the weights, if the weights are computed
    (from draws), or if members have norms of their own behind shared weights.
    """
    norms = [node for node in graph.graph.nodes if node.op == "call_function" and name_of(node) == NORM]
    return sum(_fold(graph, norm) for norm in norms)


def name_of(node: Any) -> str:
    """Returns the name of a node's operation, without its overload; nothing for other things."""
    return str(getattr(getattr(node, "target", None), "__name__", "")).split(".")[0]


def _fold(graph: MemberGraph, norm: fx.Node) -> bool:
    layer, gain, offset, mean, var, _, eps = norm.args
    assert isinstance(layer, fx.Node)
    vectors: list[Any] = [one for one in (gain, offset, mean, var) if one is not None]
    if layer.op != "call_function" or name_of(layer) not in (*CONVOLUTIONS, "linear") or len(layer.users) != 1:
        return False
    weight: Any = layer.args[1]
    bias: Any = layer.args[2] if len(layer.args) > 2 else None
    stored = [weight, *vectors, *([] if bias is None else [bias])]
    if any(one.name not in graph.tensors or len(one.users) != 1 for one in stored):
        return False
    own = weight.name in graph.owned
    if not own and any(one.name in graph.owned for one in vectors):
        return False
    transposed, grouped = "transpose" in name_of(layer), groups_of(layer) != 1
    if (transposed and grouped) or (name_of(layer) == "linear" and layer.meta["val"].ndim != 2):
        return False
    if any(len(user.users) for user in norm.users if user.target is operator.getitem and user.args[1] != 0):
        return False
    scale, shift = _scale_and_shift(graph, gain, offset, mean, var, float(eps))  # type: ignore[arg-type]
    _write(graph, layer, (weight, bias, mean), (scale, shift), transposed)
    for user in list(norm.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(layer)
        graph.graph.erase_node(user)
    graph.graph.erase_node(norm)
    return True


def groups_of(layer: fx.Node) -> int:
    """Returns the number of groups of a convolution; 1 of a linear layer."""
    return int(layer.args[6]) if len(layer.args) > 6 else 1  # type: ignore[arg-type]


def _scale_and_shift(graph: MemberGraph, gain: Any, offset: Any, mean: Any, var: Any, eps: float) -> tuple[Tensor, Tensor]:
    """Returns weight / √(var + eps), and bias − mean · scale, in double precision: ``[D]`` or ``[M, D]``."""
    read = {name: graph.tensors[one.name].double() for name, one in (("mean", mean), ("var", var))}
    scale = (read["var"] + eps).rsqrt()
    scale = scale if gain is None else scale * graph.tensors[gain.name].double()
    shift = -read["mean"] * scale
    return scale, shift if offset is None else shift + graph.tensors[offset.name].double()


def _write(
    graph: MemberGraph, layer: fx.Node, places: tuple[Any, Any, Any], affine: tuple[Tensor, Tensor], transposed: bool
) -> None:
    """Writes the layer's new weight, and its new bias in the place of the norm's mean."""
    weight, bias, place = places
    scale, shift = affine
    before = graph.tensors[weight.name]
    own = weight.name in graph.owned
    rank = before.ndim - own
    axis = 1 if transposed else 0
    sizes = [-1 if at == axis else 1 for at in range(rank)]
    wide = scale.reshape(*scale.shape[:-1], *sizes) if own and scale.ndim == 2 else scale.reshape(sizes)
    graph.tensors[weight.name] = (before.double() * wide).to(before.dtype)
    whole = shift
    if bias is not None:
        whole = graph.tensors[bias.name].double() * scale + shift
    graph.tensors[place.name] = whole.to(before.dtype)
    if whole.ndim == 2:
        graph.owned.add(place.name)
    arguments: list[Any] = list(layer.args) + [None] * max(0, 3 - len(layer.args))
    arguments[2] = place
    layer.args = tuple(arguments)
    graph.sizes.update({name: tuple(graph.tensors[name].shape) for name in (weight.name, place.name)})
