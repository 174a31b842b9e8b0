"""torch.compile: one graph without breaks whose length does not depend on M, for all batch sizes; also under autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd

import multitudes as mt
from multitudes import models

M = 3
NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "resnet": (lambda: models.resnet18(width=0.0625), (3, 8, 8)),
    "vit": (lambda: models.ViT(size=24, heads=2, depth=1, image=8), (3, 8, 8)),
}


@pytest.fixture(autouse=True)
def no_graphs_of_other_tests() -> None:
    torch._dynamo.reset()


def together(network: str, method: mt.Method) -> mt.Ensemble:
    make, shape = NETWORKS[network]
    ens = mt.ensemble(make(), method, torch.randn(2, *shape))
    ens.prove_later(["vmap"])
    assert "vmap" in ens.engine.proven["eval"]
    ens.engine.picked.update(eval="vmap")
    return ens.eval()


class Graphs:
    """A backend that keeps the graphs of dynamo and runs them."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, graph: fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.lengths.append(sum(node.op not in ("placeholder", "output") for node in graph.graph.nodes))
        return graph


@pytest.mark.slow
def test_one_graph_for_all_batch_sizes() -> None:
    """A second one at most, once the size is known to vary; values are those of the plain call."""
    ens, graphs = together("resnet", mt.Deep(members=M)), Graphs()
    run = torch.compile(ens, backend=graphs, fullgraph=True)
    for rows in (2, 3, 5, 7):
        x = torch.randn(rows, 3, 8, 8)
        with torch.no_grad():
            torch.testing.assert_close(run(x), ens(x), rtol=1e-4, atol=1e-5)
    assert len(graphs.lengths) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("method", [mt.Deep(members=M), mt.MultiHead(members=M)], ids=["Deep", "MultiHead"])
def test_the_length_does_not_grow_with_members(method: mt.Method) -> None:
    """Beside the operations of one network there is one for each tensor of members, and one to take it apart again."""
    found = {}
    for count in (2, 6):
        graphs = Graphs()
        ens = together("resnet", type(method)(members=count))
        with torch.no_grad():
            torch.compile(ens, backend=graphs, fullgraph=True)(torch.randn(2, 3, 8, 8))
        found[count] = graphs.lengths
    assert found[2] == found[6]


@pytest.mark.slow
def test_under_autocast() -> None:
    """Compiled and plain calls agree, with products in the lower precision."""
    torch.set_default_dtype(torch.float32)
    ens, x = together("vit", mt.Deep(members=M)), torch.randn(2, 3, 8, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, wanted = torch.compile(ens, backend="aot_eager", fullgraph=True)(x), ens(x)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=2**-6, atol=2**-6)


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True])
def test_activations_of_modules_are_images_of_all_members(in_place: bool) -> None:
    """With four axes, for which the compiler knows channels last."""
    parts = [(nn.Conv2d(3, 4, 1), nn.ReLU(inplace=in_place)), (nn.Conv2d(4, 4, 1), nn.SiLU()), (nn.Conv2d(4, 4, 1), nn.GELU())]
    net = nn.Sequential(*(layer for part in parts for layer in part), nn.Flatten(), nn.Linear(64, 2))
    ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(2, 3, 4, 4)).to(memory_format=torch.channels_last).eval()
    ens.prove_later(["vmap"])
    ens.engine.picked.update(eval="vmap")
    axes: dict[str, int] = {}

    def keep(graph: fx.GraphModule, inputs: list[Tensor]) -> Any:
        found = {str(node.target): node.meta["val"].ndim for node in graph.graph.nodes if node.op == "call_function"}
        axes.update(
            {name.split(".")[1]: ndim for name, ndim in found.items() if name.split(".")[1] in ("relu", "silu", "gelu")}
        )
        return make_boxed_func(graph.forward)

    x = torch.randn(3, 3, 4, 4).to(memory_format=torch.channels_last)
    with torch.no_grad():
        found = torch.compile(ens, backend=aot_autograd(fw_compiler=keep))(x)
        torch.testing.assert_close(found, ens(x), rtol=1e-4, atol=1e-5)
    assert axes == {"relu": 4, "silu": 4, "gelu": 4}
