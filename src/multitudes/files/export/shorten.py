"""Shortens an ONNX graph: a transpose of a transpose is one operation, as is a reshape of a reshape."""

from __future__ import annotations

from typing import Any

import numpy as np


def shorten(model: Any) -> None:
    """Reads around transposes and reshapes that another one follows, in place; operations that nothing reads then go."""
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    sizes = {one.name: one for one in graph.initializer}
    ranks = {one.name: len(one.type.tensor_type.shape.dim) for one in (*graph.input, *graph.value_info)}
    for node in graph.node:
        before = makers.get(node.input[0]) if node.input else None
        if before is None:
            continue
        if node.op_type == "Tile" and before.op_type == "Expand" and _is_same(before, ranks, sizes):
            node.input[0] = before.input[0]
        if before.op_type != node.op_type:
            continue
        if node.op_type == "Transpose":
            first, second = _order(before), _order(node)
            if first and second:
                node.input[0] = before.input[0]
                node.attribute[0].ints[:] = [first[axis] for axis in second]
        elif node.op_type == "Reshape" and _is_whole(node, sizes):
            node.input[0] = before.input[0]
    _skip_identities(graph, makers)
    _drop_unread(graph)


def _order(node: Any) -> list[int]:
    return list(node.attribute[0].ints) if len(node.attribute) == 1 else []


def _is_whole(reshape: Any, sizes: dict[str, Any]) -> bool:
    """Whether a reshape says all its sizes itself: a 0 would be one of its input's."""
    stored = _read(reshape.input[1], sizes)
    return stored is not None and bool(np.all(stored != 0))


def _is_same(expand: Any, ranks: dict[str, int], sizes: dict[str, Any]) -> bool:
    """Whether an expansion changes nothing: to ones, along the axes that are there."""
    ones, rank = _read(expand.input[1], sizes), ranks.get(expand.input[0], 0)
    return ones is not None and len(ones) <= rank and bool(np.all(ones == 1))


def _read(name: str, sizes: dict[str, Any]) -> Any:
    from onnx import numpy_helper

    return numpy_helper.to_array(sizes[name]) if name in sizes else None


def _skip_identities(graph: Any, makers: dict[str, Any]) -> None:
    """Reads the input of a transpose that changes nothing instead of its output. An output of the graph keeps its name."""
    given = {one.name for one in (*graph.input, *graph.initializer)}
    for node in graph.node:
        if node.op_type != "Transpose" or _order(node) != sorted(_order(node)) or not _order(node):
            continue
        source, name = node.input[0], node.output[0]
        outputs = {one.name for one in graph.output}
        if name in outputs and (source in outputs or source in given):
            continue
        old, new = (source, name) if name in outputs else (name, source)
        for other in graph.node:
            other.input[:] = [new if one == old else one for one in other.input]
        if name in outputs:
            maker = makers[source]
            maker.output[:] = [name if one == source else one for one in maker.output]
            makers[name] = maker
            node.input[0], node.output[0] = name, f"{name}.unread"


def _drop_unread(graph: Any) -> None:
    """Removes operations whose results nothing reads, and tensors that only these read."""
    read = {one.name for one in graph.output}
    kept = []
    for node in reversed(graph.node):
        if read & set(node.output):
            read |= set(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    stored = [one for one in graph.initializer if one.name in read]
    del graph.initializer[:]
    graph.initializer.extend(stored)
