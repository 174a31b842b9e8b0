"""freeze: an ensemble for prediction whose network is the traced graph of a member, with BatchNorm folded.

The graph has no modules and no norms, so a call has less to do, most of all for few rows. Images have channels last. All
executors run it as they run the network that it was made from. Plain calls take shortcuts: small ones are CUDA graphs on a GPU
(`recorded.py`), and one graph of all members runs on a CPU (`prepared.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from multitudes.conversion.plan import Plan
from multitudes.engine import tree
from multitudes.engine.call_form import signature_of
from multitudes.engine.inputs import Inputs, axes, fresh_inputs, take_rows
from multitudes.engine.kernels.fused import FUSED
from multitudes.engine.kernels.select import select_channels
from multitudes.engine.loop import run_loop
from multitudes.engine.proof.executors import first_members, pick, prove_executors, rows_are_apart
from multitudes.engine.proof.outcome import restored
from multitudes.engine.proof.smaller import LARGE
from multitudes.engine.state import Engine
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError, InputError, RunError
from multitudes.files.export.compaction import compacted
from multitudes.files.export.constants import fold_constants
from multitudes.files.export.factors import fold_factors
from multitudes.files.export.fuse import fuse, read_all_channels
from multitudes.files.export.members import IGNORED
from multitudes.files.export.norms import NORM, fold_norms, name_of
from multitudes.files.export.prepared import TOLERANCE
from multitudes.files.export.shortcuts import Shortcuts
from multitudes.files.export.trace import MemberGraph, trace_member

MOST_ON_GPU = 2**32
"""Bytes up to which a GPU holds kernels of members that are formed from shared kernels and members' factors or masks: a pass
over the images for each factor takes longer than reading the kernels."""


def freeze(ensemble: Ensemble, inputs: Inputs) -> Ensemble:
    """Returns the frozen ensemble, for calls like `inputs` with any number of rows."""
    used = compacted(ensemble, small=False) if ensemble.engine.summed else None
    used = ensemble if used is None else used
    with torch.no_grad(), restored(used.template, "eval"):
        wanted = run_loop(used.engine, fresh_inputs(inputs))
    if not isinstance(wanted, Tensor):
        raise InputError("freeze() needs a network that returns one tensor: convert it with ensemble(..., output=...)")
    try:
        graph = trace_member(used, inputs, None)
    except RunError as error:
        raise ConversionError(f"this ensemble cannot be frozen, so use it as it is. {error}") from error
    norms = fold_norms(graph)
    device = next((tensor.device for tensor in inputs.tensors()), torch.device("cpu"))
    fold_factors(graph, MOST_ON_GPU if device.type == "cuda" else 0)
    fold_constants(graph)
    read_all_channels(graph, strided=device.type == "cpu")
    template = FrozenNetwork(graph, inputs, used.engine.batch_axis, list(signature_of(used.base).parameters)).to(device)
    owned = frozenset(f"graph.{name}" for name in graph.owned if hasattr(template.graph, name))
    engine = Engine(
        template.eval(), used.members, owned, batch_axis=used.engine.batch_axis, chunk=used.engine.chunk,
        input_bytes=used.engine.input_bytes, is_traced=True,
    )  # fmt: skip
    engine.refresh()
    engine.example = take_rows(inputs, engine.batch_axis, torch.arange(2))  # for executors that are tried later
    few = first_members(engine, min(engine.members, 2))
    counts = used.plan.counts
    large = counts is not None and 2 * counts.base_multiply_adds > LARGE
    prove_executors(few, inputs, large, apart=rows_are_apart(used.engine))
    engine.adopt(few)
    pick(engine)
    if (before := used.engine.picked["eval"]) in engine.proven["eval"]:
        engine.picked["eval"] = before
    _check_outputs(wanted, engine, inputs)
    new = Ensemble(
        engine, used.method, task=used.task, seed=used.seed, base=used.base, plan=_plan(used.plan, engine, norms), compact=True
    )
    new.calibrator, new.class_axis, new.is_frozen = ensemble.calibrator, ensemble.class_axis, True
    new.shortcuts = shortcuts = Shortcuts()
    new = new.eval().to(memory_format=torch.channels_last) if template.channels_last else new.eval()
    if device.type == "cpu":
        with torch.no_grad():
            shortcuts.run(engine, inputs)  # prepares calls now, not in the first request
    return new


class FrozenNetwork(nn.Module):
    """Runs the graph of one member. It holds the tensors of all members; an executor puts those of one in their place."""

    def __init__(self, graph: MemberGraph, inputs: Inputs, batch_axis: Any, names: Sequence[str]) -> None:
        """`names` are those of the arguments of the network's forward."""
        super().__init__()
        self.names = names
        self.order = list(self._by_name(inputs))
        self.graph = graph_module(graph)
        self.channels_last = any(node.target is FUSED for node in self.graph.graph.nodes)
        self.read = [bool(name) for name in graph.inputs]
        self.sizes = [
            tuple(None if at == axis else size for at, size in enumerate(tensor.shape))
            for tensor, axis in zip(inputs.tensors(), axes(inputs, batch_axis), strict=True)
        ]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the output of one member. Raises InputError if a size other than the number of rows differs."""
        return self.graph(*self.read_tensors(Inputs(*args, **kwargs)))

    def read_tensors(self, call: Inputs) -> list[Tensor]:
        """Returns the tensors of a call that the graph reads, images as it wants them. Raises InputError as `forward` does."""
        given = self._by_name(call)
        order = [name for name in self.order if name in given]
        tensors = tree.tensors([given.pop(name) for name in order] + [*given.values()])
        if len(tensors) != len(self.sizes):
            raise InputError(f"this ensemble is frozen for {len(self.sizes)} input tensors, not {len(tensors)}")
        for tensor, sizes in zip(tensors, self.sizes, strict=True):
            if tensor.ndim != len(sizes) or any(b is not None and a != b for a, b in zip(tensor.shape, sizes, strict=True)):
                wanted = ", ".join("rows" if size is None else str(size) for size in sizes)
                raise InputError(
                    f"this ensemble is frozen for inputs [{wanted}], not {list(tensor.shape)}: freeze the original ensemble "
                    "with such an input, ens.freeze(x)"
                )
        last = torch.channels_last
        tensors = [t.contiguous(memory_format=last) if self.channels_last and t.ndim == 4 else t for t in tensors]
        return [tensor for tensor, read in zip(tensors, self.read, strict=True) if read]

    def _by_name(self, call: Inputs) -> dict[Any, Any]:
        """Returns the arguments of a call by name, or by place if the network's forward has fewer names."""
        places = [*self.names, *range(len(self.names), len(call.args))]
        return {**dict(zip(places, call.args, strict=False)), **call.kwargs}


def graph_module(graph: MemberGraph) -> fx.GraphModule:
    """Returns a module that runs a member's graph and holds its tensors. Layers are functions for which vmap has rules."""
    root, new, found = nn.Module(), fx.Graph(), {}  # type: nn.Module, fx.Graph, dict[fx.Node, Any]
    for node in graph.graph.nodes:
        if node.op == "placeholder" and node.name in graph.tensors:
            if node.users:
                tensor = graph.tensors[node.name].clone()  # training goes on in the memory of the ensemble
                if node.name.startswith("p_") and not _is_statistic(node):  # torch.export's sign of a parameter
                    root.register_parameter(node.name, nn.Parameter(tensor, requires_grad=False))
                else:
                    root.register_buffer(node.name, tensor)
                found[node] = new.get_attr(node.name)
        elif node.op == "placeholder":
            found[node] = new.placeholder(node.name)
        elif node.op == "call_function" and name_of(node) not in IGNORED:
            args, kwargs = (fx.map_arg(given, found.__getitem__) for given in (node.args, node.kwargs))
            found[node] = new.call_function(_function_of(node), args, kwargs)
            found[node].meta = node.meta
    new.output(found[graph.output])
    new.eliminate_dead_code()
    fuse(new)
    return fx.GraphModule(root, new)


def _is_statistic(node: fx.Node) -> bool:
    """Whether a norm reads a tensor as a running mean or variance, which has no gradient: what members draw may be one."""
    norms = (user for user in node.users if "batch_norm" in name_of(user) or "instance_norm" in name_of(user))
    return any(node in norm.args[3:5] for norm in norms)


_FUNCTIONS: dict[str, Any] = {
    "conv1d": F.conv1d, "conv2d": F.conv2d, "conv3d": F.conv3d, "linear": F.linear, "relu": F.relu, "matmul": torch.matmul,
    "scaled_dot_product_attention": F.scaled_dot_product_attention, "add": torch.add, "mul": torch.mul, "gelu": F.gelu,
    "silu": F.silu, "hardswish": F.hardswish, "max_pool2d": F.max_pool2d, "avg_pool2d": F.avg_pool2d,
    "adaptive_avg_pool2d": F.adaptive_avg_pool2d, "index_select": select_channels, "view": torch.reshape,
}  # fmt: skip
"""Functions of torch that take the arguments of an operation of a graph, by its name. Vmap has rules for them; `reshape` also
takes images whose channels come last."""


def _function_of(node: fx.Node) -> Any:
    if node.target is operator.getitem:
        return node.target
    return _norm if name_of(node) == NORM else _FUNCTIONS.get(name_of(node), node.target)


def _norm(
    x: Tensor, gain: Tensor | None, offset: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor]:
    return (F.batch_norm(x, mean, variance, gain, offset, False, momentum, eps),)


def _check_outputs(wanted: Tensor, engine: Engine, inputs: Inputs) -> None:
    """Raises ConversionError if the outputs of members differ by more than rounding."""
    with torch.no_grad():
        found = run_loop(engine, fresh_inputs(inputs))
    largest = float(wanted.abs().max())
    if wanted.shape != found.shape or not torch.allclose(wanted, found, rtol=0, atol=TOLERANCE * largest, equal_nan=True):
        raise ConversionError("the outputs of the frozen ensemble would differ: use the ensemble as it is")


def _plan(plan: Plan, engine: Engine, norms: int) -> Plan:
    """Returns the plan of the frozen ensemble."""
    assert plan.counts is not None, "a plan without counts"
    parameters = dict(engine.template.named_parameters())
    counts = replace(
        plan.counts,
        parameters=sum(p.numel() for p in parameters.values()),
        parameters_each=sum(p[0].numel() for n, p in parameters.items() if n in engine.owned),
    )
    folded = f"{norms} BatchNorm layers are folded into the layers before them" if norms else "no BatchNorm layer to fold"
    notes: Sequence[str] = [note for note in plan.notes if not note.startswith("in training")]
    return replace(plan, init={}, memory={}, counts=counts, notes=(*notes, f"frozen, for prediction: {folded}"))
