"""A test of the tests: each law catches the faults that it is there for.

Every fault is planted into a working ensemble, an executor or a verb; the law, which holds without it, must fail.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from laws import LAWS, carrying, compare, graphs, meaning
from laws.compare import owned
from laws.trials import FAST
from torch import Tensor
from zoo import ZOO

import multitudes as mt
from multitudes.conversion.plan import Plan
from multitudes.engine import EXECUTORS, Engine, run_loop, run_vmap, tree
from multitudes.engine.modules import named_tensors

Patch = pytest.MonkeyPatch
Change = Callable[[Engine, mt.Inputs, Any], Any]


def executor(name: str, change: Change) -> Callable[[Patch], None]:
    """An executor whose output is changed."""
    run = {"loop": run_loop, "vmap": run_vmap}[name]

    def broken(engine: Engine, inputs: mt.Inputs, *args: Any, **options: Any) -> Any:
        return change(engine, inputs, run(engine, inputs, *args, **options))

    return lambda patch: patch.setitem(EXECUTORS, name, broken)


def each(function: Callable[[Tensor], Tensor]) -> Change:
    """A change of every tensor of an output."""
    return lambda engine, inputs, output: tree.apply(function, output)


def converted(change: Callable[[mt.Ensemble], Any]) -> Callable[[Patch], None]:
    """A change of every ensemble that a law converts for itself."""
    convert = compare.convert

    def broken(*args: Any, **options: Any) -> mt.Ensemble:
        ens = convert(*args, **options)
        change(ens)
        return ens

    def plant(patch: Patch) -> None:
        for module in (meaning, carrying, graphs):
            patch.setattr(module, "convert", broken)

    return plant


def verb(name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[Patch], None]:
    """A verb of the library, wrapped."""
    return lambda patch: patch.setattr(mt, name, change(getattr(mt, name)))


def of_ensemble(name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[Patch], None]:
    """A function of ensembles, wrapped."""
    return lambda patch: patch.setattr(mt.Ensemble, name, change(getattr(mt.Ensemble, name)))


def leak(how: Callable[[Tensor], Tensor]) -> Callable[[Patch], None]:
    """Member 0's first own tensor reaches into the outputs of the others."""

    def change(engine: Engine, inputs: mt.Inputs, output: Tensor) -> Tensor:
        own = next(tensor for name, tensor in named_tensors(engine.template) if name in engine.owned)
        return torch.cat([output[:1], output[1:] + how(own[0])])

    return executor("loop", change)


def shared_biases(patch: Patch) -> None:
    """All members use the bias of member 0."""
    loop = sys.modules["multitudes.engine.loop"]
    slices = loop.slices

    def broken(engine: Engine) -> Iterator[dict[str, Tensor]]:
        parts = list(slices(engine))
        for part in parts:
            yield {name: parts[0][name] if name.endswith("bias") else tensor for name, tensor in part.items()}

    patch.setattr(loop, "slices", broken)


def counted_twice(engine: Engine, inputs: mt.Inputs, output: Any) -> Any:
    """Everything is run a second time, and its statistics are taken again."""
    run_loop(engine, inputs)
    return output


def without_statistics(patch: Patch) -> None:
    """vmap forgets the statistics of the batch."""

    def broken(engine: Engine, inputs: mt.Inputs, *args: Any, **options: Any) -> Any:
        before = {name: buffer.clone() for name, buffer in engine.buffers().items()}
        output = run_vmap(engine, inputs, *args, **options)
        for name, buffer in engine.buffers().items():
            buffer.data.copy_(before[name])
        return output

    patch.setitem(EXECUTORS, "vmap", broken)


def first_inputs_for_all(patch: Patch) -> None:
    """per_member=True is taken, and member 0's inputs are given to everyone."""

    def broken(engine: Engine, inputs: mt.Inputs, per_member: bool = False) -> Any:
        return run_loop(engine, mt.Inputs(inputs.args[0][0]) if per_member else inputs)

    patch.setitem(EXECUTORS, "loop", broken)


def other_rows(patch: Patch) -> None:
    """Each row is given to the next member."""
    module = sys.modules["multitudes.engine.run"]
    run = module.run_loop_rows
    patch.setattr(module, "run_loop_rows", lambda engine, call, members: run(engine, call, (members + 1) % engine.members))


def same_start(ens: mt.Ensemble) -> None:
    """Members 1 and 3 start alike."""
    with torch.no_grad():
        for name in owned(ens):
            tensor = dict(named_tensors(ens))[name]
            tensor[3] = tensor[1]


def rolled_in_the_file(save: Callable[..., None]) -> Callable[..., None]:
    """Members are written in another order."""

    def broken(ens: mt.Ensemble, path: Any) -> None:
        twin = copy.deepcopy(ens)
        with torch.no_grad():
            for name, tensor in named_tensors(twin):
                if name in owned(twin):
                    tensor.copy_(tensor.roll(1, 0))
        save(twin, path)

    return broken


def user_model_used(ensemble: Callable[..., mt.Ensemble]) -> Callable[..., mt.Ensemble]:
    """A layer of the given model ends up in the ensemble."""

    def broken(model: torch.nn.Module, *args: Any, **options: Any) -> mt.Ensemble:
        ens = ensemble(model, *args, **options)
        with torch.no_grad():
            next(model.parameters()).mul_(1.01)
        return ens

    return broken


def hook_left(plan: Callable[..., Plan]) -> Callable[..., Plan]:
    """A hook stays on the given model."""

    def broken(model: torch.nn.Module, *args: Any, **options: Any) -> Plan:
        model.register_forward_hook(lambda *_: None)
        return plan(model, *args, **options)

    return broken


def fixed_sizes(engine: Engine, inputs: mt.Inputs, output: Tensor) -> Tensor:
    """The number of rows becomes a constant of the graph."""
    return output + torch.zeros(inputs.tensors()[0].shape[0].__index__(), dtype=output.dtype)[:, None]


def graph_break(engine: Engine, inputs: mt.Inputs, output: Tensor) -> Tensor:
    """The graph is broken in the middle of a call."""
    torch._dynamo.graph_break()
    return output


def then(change: Callable[[Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A verb whose answer is changed afterwards."""
    return lambda verb: lambda *args, **options: change(verb(*args, **options))


def shifted(ens: mt.Ensemble) -> None:
    """The weights are not those of the given model."""
    ens.load_state_dict({name: tensor + 0.01 for name, tensor in ens.state_dict().items()})


def interleaved(output: Tensor) -> Tensor:
    """Members and rows are mixed up when the output is taken apart."""
    return output.flatten(0, 1).view(output.shape[1], output.shape[0], -1).transpose(0, 1)


def off_in_chunks(engine: Engine, inputs: mt.Inputs, output: Tensor) -> Tensor:
    """Running a few members at once gives something else."""
    return output if engine.chunk is None else 1.001 * output


def without_running(load: Callable[..., Any]) -> Callable[..., Any]:
    """Running statistics are not loaded."""

    def broken(self: mt.Ensemble, state: dict[str, Tensor]) -> Any:
        return load(self, {**self.state_dict(), **{name: t for name, t in state.items() if "running" not in name}})

    return broken


@dataclass(frozen=True)
class Fault:
    """A fault, the law that must catch it, and where."""

    law: str
    name: str
    plant: Callable[[Patch], None]
    kind: type[mt.Method] = mt.Deep
    case: str = "resnet"
    error: type[Exception] = AssertionError


half = each(lambda t: 0.5 * t + 0.5 * t.detach())

FAULTS = [
    Fault("members_first", "members second", executor("loop", each(lambda t: t.transpose(0, 1)))),
    Fault("members_first", "a member left out", executor("loop", each(lambda t: t[1:]))),
    Fault("unit", "other weights", converted(shifted)),
    Fault("unit", "half the gradient", executor("loop", half)),
    Fault("member", "members in another order", executor("loop", each(lambda t: t.roll(1, 0)))),
    Fault("member", "biases shared", shared_biases),
    Fault("member", "half the gradient", executor("loop", half)),
    Fault("member", "a trunk counted twice", executor("vmap", counted_twice), kind=mt.MultiHead),
    Fault("rows", "rows told apart by their place", executor("loop", each(lambda t: t + torch.arange(t.shape[1])[:, None]))),
    Fault("rows", "rows interleaved with members", executor("loop", each(interleaved))),
    Fault("batching", "rows less their mean", executor("loop", each(lambda t: t - t.mean(1, keepdim=True)))),
    Fault("by_rows", "rows for the next member", other_rows),
    Fault("per_member", "one input for all members", first_inputs_for_all),
    Fault("no_leak", "a leak with a gradient", leak(lambda w: 0.1 * w.sum())),
    Fault("no_leak", "a leak without one", leak(lambda w: 0.1 * w.detach().sum())),
    Fault("no_leak", "a leak that only NaN shows", leak(lambda w: torch.relu(-w.detach().abs().sum()))),
    Fault("executors", "vmap a little off", executor("vmap", each(lambda t: t * (1 + 1e-6)))),
    Fault("executors", "vmap with half the gradient", executor("vmap", half)),
    Fault("executors", "vmap without statistics", without_statistics),
    Fault("chunk", "chunks that differ", executor("loop", off_in_chunks)),
    Fault("distinct", "two members alike", converted(same_start)),
    Fault("untouched", "the given weights changed", verb("ensemble", user_model_used), case="cnn"),
    Fault("untouched", "a hook left behind", verb("plan", hook_left), case="cnn"),
    Fault("modes", "the mode forgotten", verb("ensemble", then(lambda ens: ens.eval())), case="cnn"),
    Fault("modes", "the dtype forgotten", verb("ensemble", then(lambda ens: ens.float())), case="cnn"),
    Fault("modes", "frozen layers thawed", verb("ensemble", then(lambda ens: ens.requires_grad_(True))), case="cnn"),
    Fault("state_dict", "statistics not loaded", of_ensemble("load_state_dict", without_running)),
    Fault("save_load", "members rolled in the file", verb("save", rolled_in_the_file)),
    Fault("save_load", "the mode not saved", verb("load", then(lambda ens: ens.eval()))),
    Fault("deepcopy", "a copy that is the same", of_ensemble("__deepcopy__", lambda _: lambda self, memo: self)),
    Fault("training", "loss is not the split form", of_ensemble("loss", then(lambda loss: loss / 4))),
    Fault("training", "nothing is trained", of_ensemble("param_groups", lambda groups: lambda self, lr: groups(self, lr=0.0))),
    Fault("public", "no reference", lambda patch: patch.setattr(sys.modules[mt.Deep.__module__], "__doc__", "Deep.")),
    Fault("public", "not exported", lambda patch: patch.setattr(mt, "Deep", mt.Single)),
    Fault("export", "the batch size fixed", executor("loop", fixed_sizes), case="cnn", error=Exception),
    Fault("compile", "a graph break", executor("loop", graph_break), case="cnn", error=torch._dynamo.exc.Unsupported),
    Fault("compile_sizes", "a graph for each size", executor("loop", fixed_sizes), case="cnn"),
]


@pytest.fixture
def own_conversions() -> Iterator[None]:
    """Ensembles that a fault may spoil are not kept for others."""
    compare._converted.cache_clear()
    yield
    compare._converted.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.law}: {fault.name}")
def test_the_law_catches_its_fault(fault: Fault, monkeypatch: Patch, own_conversions: None) -> None:
    """It holds without the fault, and fails with it."""
    LAWS[fault.law](fault.kind(), ZOO[fault.case])
    fault.plant(monkeypatch)
    with pytest.raises(fault.error):
        LAWS[fault.law](fault.kind(), ZOO[fault.case])


def test_every_law_has_a_fault_to_catch() -> None:
    """A law that nothing breaks proves nothing."""
    assert {fault.law for fault in FAULTS} == set(LAWS)


def test_every_fault_would_be_caught_by_make_test() -> None:
    """The law that catches it is tried there by the same method on the same network."""
    assert {(fault.kind.__name__, fault.case, fault.law) for fault in FAULTS} <= set(FAST)
