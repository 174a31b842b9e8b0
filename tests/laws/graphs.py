"""Laws of ensembles as graphs: exported with a free batch size, compiled without a break."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from zoo import Case

import multitudes as mt
from laws.compare import assert_same, call, convert, run_by


def law_export(method: mt.Method, case: Case) -> None:
    """`torch.export` leaves the batch size free: the exported program is right at another one."""
    ens, x = convert(method, case), case.example()
    axes = case.batch_axis if isinstance(case.batch_axis, tuple) else [case.batch_axis] * len(x.tensors())
    batch = Dim("batch", min=2, max=64)
    free = tuple(None if axis is None else {axis: batch} for axis in axes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The tensor attributes")  # torch's own LSTM assigns its weights in forward
        program = torch.export.export(Positional(ens, x), tuple(x.tensors()), dynamic_shapes={"tensors": free}).module()
    for rows in (3, 5):
        other = case.example(rows)
        assert_same(program(*other.tensors()), call(ens, other))


class Positional(nn.Module):
    """Calls a network with tensors by position alone: torch cannot be told which axes of keyword arguments are free."""

    def __init__(self, net: nn.Module, inputs: mt.Inputs) -> None:
        super().__init__()
        self.net, self.inputs = net, inputs

    def forward(self, *tensors: Tensor) -> Any:
        call = self.inputs.refill([tensor.clone() for tensor in tensors])
        return self.net(*call.args, **call.kwargs)


class Counting:
    """A backend that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.graphs += 1
        return graph.forward


def law_compile(method: mt.Method, case: Case) -> None:
    """At a fixed batch size it compiles into one graph, in eval mode and in training by the split form."""
    for training in (False, True):
        ens = convert(method, case).train(training)
        twin, x = convert(method, case).train(training), case.example()
        torch._dynamo.reset()
        backend = Counting()
        net = torch.compile(ens, backend=backend, fullgraph=True)
        if not training:
            assert_same(call(net, x), call(twin, x))
        else:
            y = case.target(call(case.model(), x))
            batch = ens.batch(x, y)
            torch.manual_seed(0)
            loss = ens.reduce(net(*batch.inputs, **batch.kwargs), batch, case.criterion)
            torch.manual_seed(0)
            expected = twin.loss(x, y, case.criterion)
            assert_same(loss, expected)
            loss.backward()
            expected.backward()
            assert_same({n: p.grad for n, p in ens.named_parameters()}, {n: p.grad for n, p in twin.named_parameters()})
            assert_same(dict(ens.named_buffers()), dict(twin.named_buffers()))
        assert backend.graphs == 1, f"{backend.graphs} graphs"


def law_compile_sizes(method: mt.Method, case: Case) -> None:
    """Over several batch sizes the compiled loop takes no more graphs than the compiled base model."""
    ens, model = _graphs(run_by(convert(method, case), "loop"), case), _graphs(case.model(), case)
    assert ens <= model, f"{ens} graphs, and {model} for the base model"


def _graphs(net: nn.Module, case: Case) -> int:
    torch._dynamo.reset()
    backend = Counting()
    compiled = torch.compile(net, backend=backend)
    for rows in (3, 5, 4, 7, 6):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The .grad attribute")  # tracing looks at that of members' slices
            found = call(compiled, case.example(rows))
        assert_same(found, call(net, case.example(rows)))
    return backend.graphs
