"""Fuses convolutions with what follows them in a frozen graph: the addition of a residual, and ReLU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from multitudes.engine.kernels.fused import FUSED

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
