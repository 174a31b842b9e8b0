"""Graph networks of torch-geometric: nodes are the rows, and the edges have no batch axis."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine.inputs import Inputs
from multitudes.shell.census.networks import Network

NODES, FEATURES, WIDTH, CLASSES = 6, 8, 16, 5
FAMILIES = {"gcn": "GCN", "gat": "GAT", "graphsage": "GraphSAGE", "gin": "GIN"}
"""The classes of `torch_geometric.nn.models` by family."""


class NodeClassifier(nn.Module):
    """Layers of message passing written one by one, with a linear head: ``[N, F]`` and edges ``[2, E]`` → ``[N, K]``."""

    def __init__(self, kind: str, width: int = WIDTH) -> None:
        super().__init__()
        self.kind = kind
        nets = import_module("torch_geometric.nn")
        if kind == "GINConv":
            first, second = (
                nets.GINConv(nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width)))
                for size in (FEATURES, width)
            )
        else:
            first, second = (getattr(nets, kind)(size, width) for size in (FEATURES, width))
        self.first, self.second = first, second
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Passes messages twice."""
        x = self.norm(self.first(x, edge_index)).relu()
        return self.head(self.second(x, edge_index).relu())


def _graph(_: nn.Module) -> Inputs:
    ring = torch.arange(NODES)
    edges = torch.cat([torch.stack([ring, ring.roll(1)]), torch.stack([ring.roll(1), ring])], 1)
    return Inputs(torch.randn(NODES, FEATURES), edges)


def _basic(kind: str) -> nn.Module:
    models: Any = import_module("torch_geometric.nn.models")
    return getattr(models, kind)(FEATURES, WIDTH, 2, CLASSES, dropout=0.1)


@functools.cache
def networks() -> list[Network]:
    """Lists torch-geometric's own networks, and classifiers written with its layers."""
    axis = (0, None)
    basic = [
        Network("geometric", family, kind, functools.partial(_basic, kind), _graph, axis) for family, kind in FAMILIES.items()
    ]
    layers = {"gcn": "GCNConv", "gat": "GATConv", "graphsage": "SAGEConv", "gin": "GINConv"}
    by_hand = [
        Network("geometric", f"{family}_by_hand", kind, functools.partial(NodeClassifier, kind), _graph, axis)
        for family, kind in layers.items()
    ]
    return basic + by_hand
