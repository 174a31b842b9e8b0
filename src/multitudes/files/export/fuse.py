"""Fuses convolutions of a frozen graph with what follows them, the addition of a residual and ReLU, and where it is faster with
the selection of channels before them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from multitudes.engine.kernels.fused import FUSED
from multitudes.files.export.norms import groups_of, name_of
from multitudes.files.export.trace import MemberGraph

DEFAULTS: tuple[Any, ...] = (None, [1, 1], [0, 0], [1, 1], 1)
"""Bias, stride, padding, dilation and groups, where a convolution is called without them."""


def fuse(graph: fx.Graph) -> int:
    """Replaces 2-D convolutions, the additions after them and the ReLUs after those. Returns how many were replaced."""
    found = [node for node in graph.nodes if node.target is F.conv2d and not isinstance(_arguments(node)[4], str)]
    for node in found:
        last, other, relu = node, None, False
        if (after := _only_user(last)) is not None and (other := _added(after, last)) is not None:
            last = after
        if (after := _only_user(last)) is not None and after.target is F.relu and after.args == (last,):
            last, relu = after, True
        x, kernel, bias, *how = _arguments(node)
        with graph.inserting_before(last):
            new = graph.call_function(FUSED, (x, kernel, bias, other, relu, *how))
        new.meta = last.meta
        last.replace_all_uses_with(new)
    graph.eliminate_dead_code()
    return len(found)


def read_all_channels(graph: MemberGraph, strided: bool) -> int:
    """Lets 1 × 1 convolutions read all channels where they read selected ones, in place: other channels have zero weights.

    The copy of the selected channels takes longer on a GPU than these products. On a CPU it does so for `strided` ones only:
    they read a quarter of the pixels, all of which are copied. Returns how many selections are gone.
    """
    found = [node for node in graph.graph.nodes if name_of(node) == "conv2d" and groups_of(node) == 1]
    found = [node for node in found if not strided or all(step > 1 for step in _arguments(node)[3])]
    return sum(_read_all_channels(graph, node) for node in found)


def _read_all_channels(graph: MemberGraph, node: fx.Node) -> bool:
    select: Any = node.args[0]
    kernel: Any = node.args[1]
    if name_of(select) != "index_select" or kernel.name not in graph.owned or len(kernel.users) != 1:
        return False
    x, axis, index = select.args
    weight = graph.tensors[kernel.name]
    if axis not in (1, -3) or index.name not in graph.tensors or weight.shape[-2:] != (1, 1):
        return False
    places = graph.tensors[index.name].expand(len(weight), -1)[:, None, :, None, None].expand_as(weight)
    channels = int(x.meta["val"].shape[1])
    whole = weight.new_zeros(*weight.shape[:2], channels, 1, 1).scatter(2, places, weight)
    graph.tensors[kernel.name], graph.sizes[kernel.name] = whole, tuple(whole.shape)
    node.args = (x, *node.args[1:])
    return True


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    return (*node.args, *DEFAULTS[len(node.args) - 2 :])


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _added(node: fx.Node, to: fx.Node) -> fx.Node | None:
    """Returns what a node adds to another one of the same shape and dtype; None if it does something else."""
    if node.target is not torch.add or node.kwargs or len(node.args) != 2:
        return None
    other = node.args[1] if node.args[0] is to else node.args[0]
    if not isinstance(other, fx.Node) or other is to:
        return None
    given, result = (one.meta.get("val") for one in (other, to))
    if given is None or result is None or given.shape != result.shape or given.dtype != result.dtype:
        return None
    return other
