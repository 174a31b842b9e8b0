"""Computes once what a member's graph would compute from stored tensors in every call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from multitudes.files.export.trace import MemberGraph


@dataclass
class _Constant:
    """A value that depends on no input: ``[M, ...]`` if members have different ones."""

    value: Tensor
    owned: bool


def fold_constants(graph: MemberGraph) -> int:
    """Replaces operations on stored tensors by their results, in place. Returns how many results are stored now."""
    known: dict[fx.Node, _Constant] = {}
    for node in graph.graph.nodes:
        if node.op == "placeholder" and node.name in graph.tensors:
            known[node] = _Constant(graph.tensors[node.name], node.name in graph.owned)
        elif node.op == "call_function" and (value := _computed(node, known)) is not None:
            known[node] = value
    computed = [node for node in known if node.op == "call_function" and any(user not in known for user in node.users)]
    for count, node in enumerate(computed):
        _store(graph, node, known[node], f"p_constant_{count}")
    graph.graph.eliminate_dead_code()
    return len(computed)


def _computed(node: fx.Node, known: dict[fx.Node, _Constant]) -> _Constant | None:
    """Computes an operation of stored tensors, for all members at once; None if it depends on more, or is random."""
    before = node.all_input_nodes
    tags = getattr(node.target, "tags", ())
    if not before or any(one not in known for one in before) or torch.Tag.nondeterministic_seeded in tags:
        return None

    def compute(*tensors: Tensor) -> Any:
        found = dict(zip(before, tensors, strict=True))
        args: Any = fx.map_arg(node.args, found.__getitem__)
        kwargs: Any = fx.map_arg(node.kwargs, found.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    given = [known[one] for one in before]
    owned = any(one.owned for one in given)
    if owned:
        compute = torch.func.vmap(compute, in_dims=tuple(0 if one.owned else None for one in given))
    try:
        value = compute(*(one.value for one in given))
    except (RuntimeError, TypeError, ValueError):  # an operation that vmap does not run, or that returns no tensor
        return None
    return _Constant(value, owned) if isinstance(value, Tensor) else None


def _store(graph: MemberGraph, node: fx.Node, constant: _Constant, name: str) -> None:
    """Puts a stored tensor in the place of a node."""
    with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
        new = graph.graph.placeholder(name)
    new.meta["val"] = constant.value[0] if constant.owned else constant.value
    graph.tensors[new.name], graph.sizes[new.name] = constant.value.contiguous(), tuple(constant.value.shape)
    if constant.owned:
        graph.owned.add(new.name)
    node.replace_all_uses_with(new)
