"""Helpers of the laws: convert, call, compare; and the one place outside tests/engine that reads `ens.engine`."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from zoo import Case

import multitudes as mt
from multitudes.engine import tree
from multitudes.engine.draws import draw_distinct
from multitudes.engine.modules import named_tensors
from multitudes.methods.layers.one_run import OneRun

SEED = 5
MODES = ("train", "eval")


def convert(method: mt.Method, case: Case, **options: Any) -> mt.Ensemble:
    """The case's model in double precision as an ensemble, in eval mode."""
    return copy.deepcopy(_converted(method, case, tuple(sorted(options.items()))))


def convert_apart(method: mt.Method, case: Case, **options: Any) -> mt.Ensemble:
    """The same with members that differ, also where a method's members would be equal until training has ended."""
    ens = convert(method, case, **options)
    if isinstance(method, OneRun) and method.members > 1:
        draw_distinct(ens.template, ens.engine.owned, ens.members)
        ens.engine.refresh()
    return ens


@functools.lru_cache(maxsize=64)
def _converted(method: mt.Method, case: Case, options: tuple[tuple[str, Any], ...]) -> mt.Ensemble:
    settings = {"seed": SEED, "batch_axis": case.batch_axis, **dict(options)}
    return mt.ensemble(case.model(), method, case.example(), **settings)


def call(net: nn.Module, inputs: mt.Inputs, **more: Any) -> Any:
    """One call on copies of the inputs, with torch's randomness set."""
    own = inputs.refill([tensor.clone() for tensor in inputs.tensors()])
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # the laws also run what is not fast
        return net(*own.args, **own.kwargs, **more)


def gradients(net: nn.Module, output: Any) -> dict[str, Tensor]:
    """Gradients of a number to which each entry of the output contributes in its own way; zeros where there is none."""
    net.zero_grad(set_to_none=True)
    total = sum(_weighted(tensor) for tensor in tree.tensors(output) if tensor.requires_grad)
    if isinstance(total, Tensor):
        total.backward(retain_graph=True)
    found = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in net.named_parameters()}
    net.zero_grad(set_to_none=True)
    return found


def _weighted(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1).double()
    return (flat * torch.linspace(0.5, 1.5, flat.numel(), dtype=torch.float64)).sum()


def slice_of(ens: mt.Ensemble, named: dict[str, Tensor], m: int) -> dict[str, Tensor]:
    """Member m's part of tensors given by name."""
    of_members, of_slots = owned(ens), summed(ens)
    return {n: tensor[m] if n in of_members else tensor[0] if n in of_slots else tensor for n, tensor in named.items()}


def buffers(net: nn.Module) -> dict[str, Tensor]:
    """Copies of all buffers, by name."""
    return {name: buffer.clone() for name, buffer in net.named_buffers()}


def assert_same(found: Any, expected: Any, tight: bool = True) -> None:
    """Two nested values of one structure, equal up to the rounding of double precision."""
    assert type(found) is type(expected), f"{type(found)} in place of {type(expected)}"
    names = [name for name, _ in tree.leaves(expected)]
    assert [name for name, _ in tree.leaves(found)] == names
    assert tree.plain(found) == tree.plain(expected)
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if tight else {"rtol": 1e-6, "atol": 1e-7}
    torch.testing.assert_close(tree.tensors(found), tree.tensors(expected), **tolerance, equal_nan=True)


def assert_exact(found: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    """Equal to the last bit."""
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def without_dropout(net: nn.Module) -> nn.Module:
    """The same network, in which no dropout module drops anything; attention keeps its rate in a number."""
    for part in net.modules():
        if isinstance(part, _DropoutNd):
            part.p = 0.0
        if isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    return net


def run_by(ens: mt.Ensemble, executor: str) -> mt.Ensemble:
    """The same ensemble, run by this executor in both modes."""
    ens.engine.picked = dict.fromkeys(MODES, executor)
    return ens


def prove_only(ens: mt.Ensemble, mode: str, *executors: str) -> mt.Ensemble:
    """The same ensemble, as if no other executors had been proven in this mode."""
    ens.engine.proven[mode] = executors
    return ens


def owned(ens: mt.Ensemble) -> frozenset[str]:
    """Names of the tensors that have a slice for each member."""
    return ens.engine.owned


def summed(ens: mt.Ensemble) -> frozenset[str]:
    """Names of the tensors that have a slice for each slot of MIMO."""
    return ens.engine.summed


def shares(ens: mt.Ensemble) -> bool:
    """Whether members share any tensor."""
    return ens.engine.shares


def shared_norms(ens: mt.Ensemble) -> frozenset[str]:
    """Names of the BatchNorm layers that members share."""
    return ens.engine.shared_norms


def coupled(ens: mt.Ensemble) -> frozenset[str]:
    """Names of the shared BatchNorm layers that normalise the rows of all members together in training."""
    return ens.engine.traits.coupled


def written(ens: mt.Ensemble) -> frozenset[str]:
    """Names of the buffers that forward writes."""
    return ens.engine.traits.written_buffers


def plain_weights(ens: mt.Ensemble) -> bool:
    """Whether each member is the base model with other weights."""
    return ens.engine.traits.plain_weights


def rows_of(case: Case, inputs: mt.Inputs, index: Tensor) -> mt.Inputs:
    """The call with only these rows, in this order."""
    axes = case.batch_axis if isinstance(case.batch_axis, tuple) else [case.batch_axis] * len(inputs.tensors())
    pairs = zip(inputs.tensors(), axes, strict=True)
    return inputs.refill([t if axis is None else t.index_select(axis, index) for t, axis in pairs])


def row_axis(case: Case) -> int:
    """The axis of the rows in one network's output: that of the inputs, if all inputs have the same."""
    return case.batch_axis if isinstance(case.batch_axis, int) else 0


def per_member(case: Case, calls: list[mt.Inputs]) -> mt.Inputs:
    """One call that gives each member its own: every tensor with rows stacked."""
    axes = case.batch_axis if isinstance(case.batch_axis, tuple) else [case.batch_axis] * len(calls[0].tensors())
    columns = zip(*(c.tensors() for c in calls), strict=True)
    return calls[0].refill([col[0] if axis is None else torch.stack(col) for col, axis in zip(columns, axes, strict=True)])


def runs_in(ens: mt.Ensemble, case: Case, mode: str) -> list[str]:
    """The executors to compare with the loop in a mode; none where a shared BatchNorm or noise makes the loop differ."""
    if mode == "train" and (coupled(ens) or case.noisy):
        return []
    return [name for name in ens.plan.proven[mode] if name != "loop"]


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that a conversion could change, except the values of its tensors."""
    found: dict[str, Any] = {}
    for name, part in model.named_modules():
        hooks = sum(len(value) for key, value in vars(part).items() if key.endswith("_hooks"))
        found[name] = (type(part), part.training, hooks, sorted(vars(part)), [id(child) for child in part.children()])
    for name, tensor in named_tensors(model):
        found[f"tensor {name}"] = (id(tensor), tensor.requires_grad, tensor.dtype, tensor.grad is None, tensor.data_ptr())
    return found
