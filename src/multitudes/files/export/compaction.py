"""Compaction: whether the graph of the compacted ensemble is the better one."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from multitudes.ensemble import Ensemble
from multitudes.errors import MultitudesError
from multitudes.files.export.norms import name_of
from multitudes.files.export.products import CONVOLUTIONS
from multitudes.files.export.trace import MemberGraph


def compacted(ensemble: Ensemble, small: bool) -> Ensemble | None:
    """Returns an ensemble with the same outputs that computes less, or if `small` has fewer bytes; None if there is none."""
    from multitudes.method import Method

    if ensemble.is_compact or type(ensemble.method).compact is Method.compact or ensemble.members == 1:
        return None
    try:
        smaller = ensemble.compact()
    except MultitudesError:  # a network that it cannot compact runs as it is
        return None
    before, after = ensemble.plan.counts, smaller.plan.counts
    if ensemble.engine.summed:  # MIMO: as many bytes, and less to compute
        return smaller
    if before is None or after is None or (small and after.parameters > before.parameters):
        return None
    return smaller if after.multiply_adds < before.multiply_adds else None


def pays(graph: MemberGraph) -> bool:
    """Whether a compacted member mostly computes in layers that read what is there.

    A linear layer whose inputs each member chooses first gains nothing: the choice copies them, between two transposes, and
    the matrix is the member's own instead of one that all rows share. Convolutions choose channels without a transpose.
    """
    layers = [node for node in graph.graph.nodes if name_of(node) in (*CONVOLUTIONS, "linear")]
    work = {node: _multiply_adds(graph, node) for node in layers}
    chosen = sum(count for node, count in work.items() if name_of(node) == "linear" and name_of(node.args[0]) == "index_select")
    return 2 * chosen <= sum(work.values())


def _multiply_adds(graph: MemberGraph, layer: fx.Node) -> int:
    """Returns the products of one row in a layer."""
    weight: Any = layer.args[1]
    sizes = graph.sizes[weight.name][weight.name in graph.owned :] if weight.name in graph.sizes else weight.meta["val"].shape
    source: Any = layer.args[0]
    each = source if "transpose" in name_of(layer) else layer
    places = math.prod(size for size in each.meta["val"].shape if isinstance(size, int))
    return places * math.prod(sizes[1:])
