"""The trial: which executors are right for this template, and what forbids the others.

A few members are run on the example by the loop, in training and in eval mode, forward and backward, and then by the
others; an executor is proven where outputs, gradients and buffers agree. It is done on copies, in double precision where
the model can run in it, with dropout off.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from multitudes.engine import tree
from multitudes.engine.fold import forbidden, learn_output, learn_rows, run_fold
from multitudes.engine.inputs import Inputs, count_rows, fresh_inputs, stack_slots, take_rows
from multitudes.engine.loop import OUTPUT, members, run_loop
from multitudes.engine.modules import batch_norms, detached_copy, hooked, named_tensors, owning_module
from multitudes.engine.proof.independence import leaks
from multitudes.engine.proof.outcome import (
    Outcome,
    close,
    difference,
    in_double,
    restored,
    run,
    run_plain,
    run_reference,
    trainable_copy,
    without_modules,
)
from multitudes.engine.replay import Replay
from multitudes.engine.state import MODES, Engine, Traits, shared_write
from multitudes.engine.vmap import run_vmap
from multitudes.errors import RunError

SAME_NOISE = ("fractional_max_pool",)
"""Operations that vmap gives the same randomness for all members without a word."""


def prove_executors(engine: Engine, inputs: Inputs) -> None:
    """Finds the traits of the engine's template and the executors that are right for it, and picks among them."""
    example = inputs
    trial, inputs = in_double(engine, inputs)
    loop = _try_loop(trial, inputs)
    trial.row_axes = _output_rows(trial, inputs)
    _nothing_leaks(trial, inputs)
    engine.traits, engine.why = trial.traits, {}
    for mode in reversed(MODES):  # eval first: what is wrong there is not taken for a meaning of its own in training
        proven = ["loop"]
        for name, executor in (("vmap", run_vmap), ("fold", run_fold)):
            why = _forbids(name, executor, trial, inputs, mode, loop.get(mode))
            if why is None and name == "vmap":
                why = _fails(executor, replace(engine, traits=trial.traits), example, mode)
            if why is None:
                proven.append(name)
                trial.proven[mode] = tuple(proven)
            else:
                engine.why.setdefault(name, why)
        trial.proven[mode] = engine.proven[mode] = tuple(proven)
    engine.row_axes = trial.row_axes
    engine.traits = replace(
        engine.traits, vmap_per_member=_takes_slots(trial, inputs), fold_per_member=_folds_slots(trial, inputs)
    )
    pick(engine)


def _output_rows(engine: Engine, inputs: Inputs) -> dict[str, list[Any]]:
    """Where the rows are in outputs; nothing where that cannot be told, or no other batch size runs."""
    own = replace(
        engine, template=trainable_copy(engine.template)
    )  # what a layer keeps from call to call is thrown away with it
    try:
        with restored(own.template, "eval"):
            return {OUTPUT: learn_output(own, fresh_inputs(inputs))}
    except Exception:
        return {}


def _fails(executor: Callable[..., Any], engine: Engine, inputs: Inputs, mode: str) -> str | None:
    """What an executor says in the model's own precision and with its dropout, which the comparison went without."""
    try:
        run(executor, replace(engine, template=trainable_copy(engine.template)), inputs, mode)
    except Exception as error:
        return _operation(error)
    return None


def _takes_slots(engine: Engine, inputs: Inputs) -> bool:
    """Whether vmap is right too where each member has inputs of its own: more is batched then."""
    if engine.summed:
        return _adds_up(engine, inputs)
    if not all("vmap" in engine.proven[mode] for mode in MODES):
        return False
    own = [take_rows(inputs, engine.batch_axis, _turned(engine, inputs, m)) for m in range(engine.members)]
    slots = stack_slots(own, engine.batch_axis)
    for mode in MODES:
        norms = engine.shared_norms if mode == "train" else frozenset()  # with these the loop says something else
        try:
            with warnings.catch_warnings(), without_modules(engine.template, norms):
                warnings.simplefilter("error")
                loop, vmap = (run(functools.partial(how, per_member=True), engine, slots, mode) for how in (run_loop, run_vmap))
        except Exception:
            return False
        if difference(vmap, loop):
            return False
    return True


def _adds_up(engine: Engine, inputs: Inputs) -> bool:
    """Whether vmap, which adds up what slots give, gives for one input in all slots what a call with it gives."""
    slots = stack_slots([inputs] * engine.members, engine.batch_axis)
    for mode in MODES:
        norms = engine.shared_norms if mode == "train" else frozenset()  # over few rows these blow up what is rounded
        try:
            with without_modules(engine.template, norms):
                plain = run_reference(engine, inputs, mode)
                summed = run(functools.partial(run_vmap, per_member=True), engine, slots, mode)
        except Exception as error:
            engine.why.setdefault("vmap", _operation(error))
            return False
        if not plain.random and difference(summed, plain):
            return False
    return True


def _folds_slots(engine: Engine, inputs: Inputs) -> bool:
    """Whether fold is right in training where each member has inputs of its own; compared without the shared norms."""
    if not engine.shared_norms or not engine.owned or "fold" not in engine.proven["eval"] or forbidden(engine):
        return False
    slots = stack_slots(
        [take_rows(inputs, engine.batch_axis, _turned(engine, inputs, m)) for m in range(engine.members)], engine.batch_axis
    )
    own = replace(engine, template=trainable_copy(engine.template))
    try:
        with without_modules(own.template, engine.shared_norms):
            loop, fold = (run(functools.partial(how, per_member=True), own, slots, "train") for how in (run_loop, run_fold))
    except Exception:
        return False
    return difference(fold, loop) is None


def _turned(engine: Engine, inputs: Inputs, m: int) -> Tensor:
    """Rows in another order for each member, one of them in place of another: their mean differs too."""
    count = count_rows(inputs, engine.batch_axis)
    index = torch.arange(count)
    index[m % count] = (m + 1) % count
    return index.roll(m)


def first_members(engine: Engine, count: int) -> Engine:
    """The first members as an engine of their own."""
    parts = {n: t[:count] for n, t in named_tensors(engine.template) if n in engine.owned | engine.summed}
    template = detached_copy(engine.template, parts)
    return replace(engine, template=template, members=min(count, engine.members), why={}, proven=dict(engine.proven))


def pick(engine: Engine) -> None:
    """Chooses among the proven executors without timing them.

    On a CPU the loop is as fast as vmap where members own everything; where they share a trunk vmap walks it once.
    """
    device = next((t.device.type for _, t in named_tensors(engine.template)), "cpu")
    prefers = "vmap" if device not in ("cpu", "meta") or engine.shares else "loop"
    for mode in MODES:
        engine.picked[mode] = prefers if prefers in engine.proven[mode] else "loop"


def _try_loop(engine: Engine, inputs: Inputs) -> dict[str, Outcome]:
    """The loop's outcome in each mode it can run in; the engine is told the traits that this takes."""
    engine.traits = Traits(written_buffers=_buffers(engine))
    engine.traits = replace(engine.traits, mutates=_writes_inputs(engine, inputs))
    outcomes: dict[str, Outcome] = {}
    for mode in reversed(MODES):
        settled = engine.traits
        for copies, blind in ((False, False), (True, False), (True, True)):
            engine.traits = replace(
                settled, copy_per_member=settled.copy_per_member or copies, no_replay=settled.no_replay or blind
            )
            try:
                outcomes[mode] = run_reference(engine, inputs, mode)
                break
            except Exception as error:
                problem = error
        else:
            engine.traits = settled
            if mode == "eval":
                raise RunError(f"the members cannot be run one by one: {type(problem).__name__}: {problem}") from problem
    _watch(engine, inputs)
    _trunk_is_one_networks(engine, inputs, outcomes)
    engine.traits = replace(engine.traits, random="train" in outcomes and outcomes["train"].random)
    if engine.traits.no_replay:  # tried without what is now known
        outcomes = {mode: run_reference(engine, inputs, mode) for mode in outcomes}
    return outcomes


def _trunk_is_one_networks(engine: Engine, inputs: Inputs, outcomes: dict[str, Outcome]) -> None:
    """Statistics of shared norms must be those of one network; else (a trunk run again in backward) they count as coupled."""
    if "train" not in outcomes or not engine.shared_norms or not engine.owned:
        return
    own = {n: t[0] for n, t in named_tensors(engine.template) if n in engine.owned}
    plain = run_plain(detached_copy(engine.template, own), inputs, "train").buffers
    odd = {n for n, b in outcomes["train"].buffers.items() if n not in engine.owned and not close(b, plain[n])}
    norms = frozenset(name for name in engine.shared_norms if any(owning_module(n) == name for n in odd))
    engine.traits = replace(engine.traits, coupled=engine.traits.coupled | norms)


def _nothing_leaks(engine: Engine, inputs: Inputs) -> None:
    """Before anything else is tried: what a layer keeps from call to call may carry one member into another."""
    for tried, found in leaks(engine, inputs, "loop", run_loop):
        if found:
            raise RunError(f"members are not independent ({tried}): {found}")


def _writes_inputs(engine: Engine, inputs: Inputs) -> bool:
    own = fresh_inputs(inputs)
    try:
        with restored(engine.template, "eval"), torch.no_grad():
            run_loop(engine, own)
    except Exception:
        return True
    return not all(torch.equal(a, b) for a, b in zip(own.tensors(), inputs.tensors(), strict=True))


def _watch(engine: Engine, inputs: Inputs) -> None:
    """Follows one pass in each mode: which shared BatchNorm layers see what depends on members, which buffers forward writes.

    A shared buffer that each member would set is refused.
    """
    watched = replace(engine, template=trainable_copy(engine.template))
    memory: Replay | None = None
    coupled: set[str] = set()
    changed: set[str] = set()

    def look(name: str, args: tuple[Any, ...]) -> None:
        if engine.owned and (memory is None or not all(memory.is_shared(tensor) for tensor in tree.tensors(args))):
            coupled.add(name)

    for name, norm in batch_norms(watched.template).items():
        if name in engine.shared_norms:
            norm.register_forward_pre_hook(lambda _, args, name=name: look(name, args))
    for mode in MODES:
        shared = {n: t for n, t in named_tensors(watched.template) if n not in engine.owned}
        memory = Replay(shared)
        memory.blind = engine.traits.no_replay
        try:
            with restored(watched.template, mode), torch.no_grad():
                for _, entries in members(watched, inputs, replay=memory):
                    changed |= set(entries)
        except Exception:  # a mode the model cannot be run in is reported by the trial itself
            continue
        clash = [name for name in memory.clashes if name in shared]
        if clash and engine.members > 1:
            raise RunError(shared_write(clash[0]))
        engine.traits = replace(
            engine.traits,
            no_replay=engine.traits.no_replay or memory.blind,
            data_dependent=engine.traits.data_dependent or memory.steered,
            ragged=engine.traits.ragged or memory.selects,
        )
        if memory.blind and engine.owned:
            coupled |= engine.shared_norms
    engine.traits = replace(engine.traits, coupled=frozenset(coupled), written_buffers=frozenset(changed) & _buffers(engine))


def _buffers(engine: Engine) -> frozenset[str]:
    norms = {f"{name}.{key}" if name else key for name, norm in batch_norms(engine.template).items() for key in norm._buffers}
    return frozenset(engine.buffers()) - norms


def _forbids(
    name: str,
    executor: Callable[..., Any],
    engine: Engine,
    inputs: Inputs,
    mode: str,
    loop: Outcome | None,
) -> str | None:
    """What keeps an executor from being right in a mode; None if nothing does."""
    if loop is None:
        return f"the model does not run in {mode} mode on this example"
    if not engine.owned:
        return "nothing carries a member axis"
    trap = _vmap_trap(engine, mode) if name == "vmap" else _fold_trap(engine, mode)
    if trap:
        return trap
    own = replace(engine, template=trainable_copy(engine.template))  # what vmap leaves behind on self is thrown away with it
    try:
        if name == "fold" and set(engine.row_axes) <= {OUTPUT}:
            with restored(engine.template, "eval"):
                own.row_axes = engine.row_axes = {**engine.row_axes, **learn_rows(engine, fresh_inputs(inputs))}
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            outcome = run(executor, own, inputs, mode)
    except Exception as error:
        return _operation(error)
    slow = [str(warning.message) for warning in heard if "batching rule" in str(warning.message)]
    if slow:
        return f"{_named(slow[0])} would be run member by member"
    if engine.traits.coupled and mode == "train":  # with these norms the loop says something else: compared without them
        if name == "fold" and "vmap" in engine.proven["train"] and (odd := _unlike_vmap(own, inputs, outcome)):
            return odd
        with without_modules(own.template, engine.traits.coupled):
            outcome, loop = run(executor, own, inputs, mode), run_reference(own, inputs, mode)
    if loop.random:
        return _noise_differs(executor, engine, inputs, mode)
    odd = difference(outcome, loop)
    return odd and f"{odd} from the loop's"


def _unlike_vmap(engine: Engine, inputs: Inputs, outcome: Outcome) -> str | None:
    """In what fold differs from vmap, where norms are shared: there the two have only each other to be compared with."""
    vmap = replace(engine, template=trainable_copy(engine.template))
    odd = difference(outcome, run(run_vmap, vmap, inputs, "train")) if not outcome.random else None
    return odd and f"{odd} from vmap's"


def _vmap_trap(engine: Engine, mode: str) -> str | None:
    names = hooked(engine.template)
    if names:
        return f"hooks on {names[0] or 'the model'} would see all members at once"
    if engine.traits.copy_per_member:
        return "forward is run again during backward (checkpointing)"
    bare = [n for n in engine.traits.coupled if (norm := batch_norms(engine.template)[n]).weight is norm.running_mean is None]
    if bare and mode == "train":
        return f"the shared BatchNorm {sorted(bare)[0]} has no tensor of its own by which it could be told from others"
    return None


def _fold_trap(engine: Engine, mode: str) -> str | None:
    if engine.traits.data_dependent:
        return "values decide what is computed, and there are several members' in a batch"
    return forbidden(engine) if mode == "train" else None


def _noise_differs(executor: Callable[..., Any], engine: Engine, inputs: Inputs, mode: str) -> str | None:
    """With equal members, noise must tell them apart where the loop's does: some operations repeat theirs silently."""
    own = {n: t[:1].expand_as(t) for n, t in named_tensors(engine.template) if n in engine.owned}
    equal = replace(engine, template=detached_copy(engine.template, own))
    traps = [op for op in _operations(equal, inputs, mode) if any(trap in op for trap in SAME_NOISE)]
    if traps:
        return f"aten::{traps[0]} would draw the same noise for all members"
    if engine.members == 1:
        return None
    expected, found = (run(how, equal, inputs, mode).values for how in (run_loop, executor))
    for a, b in zip(expected, found, strict=True):
        if torch.equal(a[0], a[1]) != torch.equal(b[0], b[1]):
            return f"its noise {'differs between' if torch.equal(a[0], a[1]) else 'is the same for'} members"
    return None


def _operations(engine: Engine, inputs: Inputs, mode: str) -> list[str]:
    """The names of the operations that one pass is made of."""
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Listen(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # or the compiler would be imported

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Listen():
        run(run_loop, engine, inputs, mode)
    return names


def _operation(error: Exception) -> str:
    """The operation that an error names, and what it says."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    named = _named(" ".join(str(error).split()))
    return text if named in text else f"{named}: {text}"


def _named(text: str) -> str:
    found = re.search(r"aten::[\w.]+", text)
    return found.group(0).rstrip(".") if found else ""
