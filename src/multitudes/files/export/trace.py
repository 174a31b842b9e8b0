"""Traces one member: its operations as a graph, with the tensors of all members for those that it reads."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, axes
from multitudes.engine.modules import detached_copy, named_tensors, plain_attention
from multitudes.engine.selected_output import output_of
from multitudes.ensemble import Ensemble
from multitudes.errors import RunError


@dataclass
class MemberGraph:
    """The operations of one member, and the tensors that it reads: those of all members, or shared ones."""

    graph: fx.Graph
    members: int
    inputs: list[str]
    """Names of the placeholders of the call's tensors, in order; an empty name for a tensor that no operation reads."""
    tensors: dict[str, Tensor]
    """Stored tensors by the names of their placeholders: ``[M, ...]`` for those of members."""
    sizes: dict[str, tuple[int, ...]]
    """Shapes of the stored tensors."""
    owned: set[str]
    """Names of the placeholders whose tensors belong to members."""

    @property
    def output(self) -> Any:
        """The node whose value the graph returns."""
        return next(node for node in self.graph.nodes if node.op == "output").args[0][0]


class _Called(nn.Module):
    """Calls a module with the tensors of a call, in order, and returns one tensor."""

    def __init__(self, module: nn.Module, inputs: Inputs, output: str | None) -> None:
        super().__init__()
        self.module = module
        self.inputs = [inputs]  # in a list: its tensors are no part of the graph
        self.output = output

    def forward(self, *tensors: Tensor) -> Tensor:
        call = self.inputs[0].refill(list(tensors))
        return output_of(tree.without_objects(self.module(*call.args, **call.kwargs)), self.output)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Turns off torch's notes on its own deprecations, and fused attention, in a with-block."""
    with warnings.catch_warnings(), plain_attention(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def free_batch(inputs: Inputs, batch_axis: Any) -> tuple[tuple[Any, ...]]:
    """Returns torch.export's description of tensors whose batch axis is free."""
    rows = Dim("batch", min=1)
    return (tuple({} if axis is None else {axis: rows} for axis in axes(inputs, batch_axis)),)


def traced(module: nn.Module, inputs: Inputs, batch_axis: Any, what: str) -> ExportedProgram:
    """Traces a module that takes the tensors of a call, with a free batch size."""
    try:
        with quiet():
            shapes = free_batch(inputs, batch_axis)
            return torch.export.export(module, tuple(inputs.tensors()), dynamic_shapes=shapes, strict=False)
    except Exception as error:  # whatever a stranger's forward raises when it is traced
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise RunError(
            f"{what} cannot be exported: {first.strip()} An exported graph has one path of operations for every batch size: "
            "remove ifs on values, .item() and sizes fixed to those of the example; instead of len(x), write x.shape[0]"
        ) from error


def trace_member(ensemble: Ensemble, inputs: Inputs, output: str | None) -> MemberGraph:
    """Traces the network of one member on a call. `inputs` must have at least two rows.

    It is traced on the CPU: on a GPU some versions of torch fix the number of rows.
    """
    engine = ensemble.engine
    whole = {**dict(named_tensors(ensemble.template))}
    one = detached_copy(ensemble.template, {n: t[0] for n, t in whole.items() if n in engine.owned}).eval().cpu()
    inputs = inputs.refill([tensor.cpu() for tensor in inputs.tensors()])
    names = {id(tensor): name for name, tensor in named_tensors(one)}
    program = traced(_Called(one, inputs, output), inputs, engine.batch_axis, f"the {type(ensemble.base).__name__}")
    with quiet():
        program = program.run_decompositions({})
    signature = program.graph_signature
    if signature.buffers_to_mutate:
        changed = ", ".join(sorted(name.removeprefix("module.") for name in signature.buffers_to_mutate.values()))
        raise RunError(f"forward changes {changed}, which an exported graph cannot: do so only in training")
    found, owned = {}, set()
    for placeholder, path in {**signature.inputs_to_parameters, **signature.inputs_to_buffers}.items():
        name = names[id(_at(one, path.removeprefix("module.")))]
        found[placeholder] = tensor = whole[name].detach().cpu()
        if name in engine.owned and (engine.members == 1 or _are_equal_numbers(tensor)):  # such as tables of positions
            found[placeholder] = tensor[0]
        elif name in engine.owned:
            owned.add(placeholder)
    for placeholder, path in signature.inputs_to_lifted_tensor_constants.items():
        found[placeholder] = program.constants[path].detach().cpu()
    return MemberGraph(
        program.graph,
        engine.members,
        list(signature.user_inputs),
        found,
        {n: tuple(t.shape) for n, t in found.items()},
        owned,
    )


def _are_equal_numbers(tensor: Tensor) -> bool:
    """Whether whole numbers ``[M, ...]`` are the same for all members."""
    return not (tensor.is_floating_point() or tensor.is_complex()) and bool((tensor == tensor[:1]).all())


def _at(module: nn.Module, path: str) -> Any:
    """Returns the tensor of this name as it is stored: a layer may give another one where it is read."""
    *parts, last = path.split(".")
    part = module.get_submodule(".".join(parts))
    return {**part._buffers, **part._parameters}[last]
