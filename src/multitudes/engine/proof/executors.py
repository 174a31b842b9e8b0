"""Proves executors: finds out which ones are right for a template, and why the others are not.

The loop and then the other executors run a few members on the example: in training and eval mode, forward and backward.
An executor is proven if its outputs, gradients and buffers agree with the loop's. All runs use copies, in double precision if
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

from multitudes.engine import tree
from multitudes.engine.fold import forbidden, learn_output, learn_rows, run_fold
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.loop import OUTPUT, members, run_loop
from multitudes.engine.modules import batch_norms, detached_copy, hooked, join_name, named_tensors, owning_module
from multitudes.engine.proof.independence import leaks
from multitudes.engine.proof.outcome import (
    Outcome,
    close,
    difference,
    in_double,
    restored,
    run_executor,
    run_plain,
    run_reference,
    trainable_copy,
    without_modules,
)
from multitudes.engine.proof.slots import different_inputs, prove_slots
from multitudes.engine.replay import Replay
from multitudes.engine.state import MODES, Engine, Traits, shared_write
from multitudes.engine.vmap import run_vmap
from multitudes.errors import RunError

SAME_NOISE = ("fractional_max_pool",)
"""Operations for which vmap silently draws the same noise for all members."""


def prove_executors(engine: Engine, inputs: Inputs) -> None:
    """Finds the traits of the engine's template and the executors that are right for it, and picks one for each mode."""
    example = inputs
    trial, inputs = in_double(engine, inputs)
    loop = _try_loop(trial, inputs)
    trial.row_axes = _output_axes(trial, inputs)
    _check_independence(trial, inputs)
    engine.traits, engine.why = trial.traits, {}
    for mode in reversed(MODES):  # eval first: the loop is always a reference there
        proven = ["loop"]
        for name, executor in (("vmap", run_vmap), ("fold", run_fold)):
            why = _obstacle(name, executor, trial, inputs, mode, loop.get(mode))
            if why is None and name == "vmap":
                why = _error_on_example(executor, replace(engine, traits=trial.traits), example, mode)
            if why is None:
                proven.append(name)
                trial.proven[mode] = tuple(proven)
            else:
                engine.why.setdefault(name, why)
        trial.proven[mode] = engine.proven[mode] = tuple(proven)
    engine.row_axes = trial.row_axes
    engine.traits = replace(
        engine.traits,
        vmap_per_member=not engine.summed and _vmap_is_right_per_member(trial, inputs),
        fold_per_member=_fold_is_right_per_member(trial, inputs),
    )
    if engine.summed:
        prove_slots(engine, example, trial, inputs)
    pick(engine)


def _output_axes(engine: Engine, inputs: Inputs) -> dict[str, list[Any]]:
    """Returns the batch axes of the outputs; empty if they are unclear, or the model runs at one batch size only."""
    twin = _copy(engine)
    try:
        with restored(twin.template, "eval"):
            return {OUTPUT: learn_output(twin, fresh_inputs(inputs))}
    except Exception:
        return {}


def _copy(engine: Engine) -> Engine:
    """Copies an engine for one run. If forward stores tensors on modules, they are discarded with the copy."""
    return replace(engine, template=trainable_copy(engine.template))


def _error_on_example(executor: Callable[..., Any], engine: Engine, inputs: Inputs, mode: str) -> str | None:
    """Runs an executor in the model's own precision and with dropout, unlike the comparison. Returns its error, or None."""
    try:
        run_executor(executor, _copy(engine), inputs, mode)
    except Exception as error:
        return _reason(error)
    return None


def _vmap_is_right_per_member(engine: Engine, inputs: Inputs) -> bool:
    """Checks that vmap agrees with the loop when each member has its own inputs.

    In training, shared norms are taken out of the network for this check.
    """
    if not all("vmap" in engine.proven[mode] for mode in MODES):
        return False
    slots = different_inputs(engine, inputs)
    for mode in MODES:
        norms = engine.shared_norms if mode == "train" else frozenset()  # with these the loop gives another result
        try:
            with warnings.catch_warnings(), without_modules(engine.template, norms):
                warnings.simplefilter("error")
                loop, vmap = (
                    run_executor(functools.partial(how, per_member=True), engine, slots, mode) for how in (run_loop, run_vmap)
                )
        except Exception:
            return False
        if difference(vmap, loop):
            return False
    return True


def _fold_is_right_per_member(engine: Engine, inputs: Inputs) -> bool:
    """Checks that fold agrees with the loop in training when each member has its own inputs.

    Shared norms are taken out of the network for this check.
    """
    if not engine.shared_norms or not engine.owned or "fold" not in engine.proven["eval"] or forbidden(engine):
        return False
    slots, twin = different_inputs(engine, inputs), _copy(engine)
    try:
        with without_modules(twin.template, engine.shared_norms):
            loop, fold = (
                run_executor(functools.partial(how, per_member=True), twin, slots, "train") for how in (run_loop, run_fold)
            )
    except Exception:
        return False
    return difference(fold, loop) is None


def first_members(engine: Engine, count: int) -> Engine:
    """Returns an engine with copies of the first `count` members."""
    parts = {n: t[:count] for n, t in named_tensors(engine.template) if n in engine.owned | engine.summed}
    template = detached_copy(engine.template, parts)
    return replace(engine, template=template, members=min(count, engine.members), why={}, proven=dict(engine.proven))


def pick(engine: Engine) -> None:
    """Picks a proven executor for each mode without timing them.

    On a CPU the loop is as fast as vmap if members own everything; if they share a trunk, vmap computes it once.
    """
    device = next((t.device.type for _, t in named_tensors(engine.template)), "cpu")
    prefers = "vmap" if device not in ("cpu", "meta") or engine.shares else "loop"
    for mode in MODES:
        engine.picked[mode] = prefers if prefers in engine.proven[mode] else "loop"


def _try_loop(engine: Engine, inputs: Inputs) -> dict[str, Outcome]:
    """Runs the loop in each mode, and sets the traits that the loop needs. Returns the outcome of each mode that runs."""
    engine.traits = Traits(written_buffers=_buffers_without_norms(engine))
    engine.traits = replace(engine.traits, mutates=_writes_inputs(engine, inputs))
    outcomes: dict[str, Outcome] = {}
    for mode in reversed(MODES):
        before = engine.traits
        for copies, no_replay in ((False, False), (True, False), (True, True)):
            engine.traits = replace(
                before,
                copy_per_member=before.copy_per_member or copies,
                no_replay=before.no_replay or no_replay,
            )
            try:
                outcomes[mode] = run_reference(engine, inputs, mode)
                break
            except Exception as error:
                problem = error
        else:
            engine.traits = before
            if mode == "eval":
                raise RunError(
                    "the model fails on the example in eval mode, even member by member (give an example that it can run): "
                    f"{type(problem).__name__}: {problem}"
                ) from problem
    _find_written_buffers(engine, inputs)
    _find_wrong_statistics(engine, inputs, outcomes)
    engine.traits = replace(engine.traits, random="train" in outcomes and outcomes["train"].random)
    if engine.traits.no_replay:  # this was not known in the first runs
        outcomes = {mode: run_reference(engine, inputs, mode) for mode in outcomes}
    return outcomes


def _find_wrong_statistics(engine: Engine, inputs: Inputs, outcomes: dict[str, Outcome]) -> None:
    """Marks shared norms as coupled whose statistics differ from those of a single network (a checkpointed trunk)."""
    if "train" not in outcomes or not engine.shared_norms or not engine.owned:
        return
    member = {n: t[0] for n, t in named_tensors(engine.template) if n in engine.owned}
    plain = run_plain(detached_copy(engine.template, member), inputs, "train").buffers
    wrong = {n for n, b in outcomes["train"].buffers.items() if n not in engine.owned and not close(b, plain[n])}
    norms = frozenset(name for name in engine.shared_norms if any(owning_module(n) == name for n in wrong))
    engine.traits = replace(engine.traits, coupled=engine.traits.coupled | norms)


def _check_independence(engine: Engine, inputs: Inputs) -> None:
    """Raises an error if one member's tensors affect another member's output."""
    for tried, leak in leaks(engine, inputs, "loop", run_loop):
        if leak:
            raise RunError(f"members are not independent ({tried}): {leak}. Forward must not store values for later calls")


def _writes_inputs(engine: Engine, inputs: Inputs) -> bool:
    copies = fresh_inputs(inputs)
    try:
        with restored(engine.template, "eval"), torch.no_grad():
            run_loop(engine, copies)
    except Exception:
        return True
    return not all(torch.equal(a, b) for a, b in zip(copies.tensors(), inputs.tensors(), strict=True))


def _find_written_buffers(engine: Engine, inputs: Inputs) -> None:
    """Runs one pass in each mode, and sets traits from it: buffers that forward writes, coupled norms, replay.

    Raises an error if an operation of a single member writes into a shared buffer.
    """
    watched = _copy(engine)
    replay: Replay | None = None
    coupled: set[str] = set()
    changed: set[str] = set()

    def look(name: str, args: tuple[Any, ...]) -> None:
        if engine.owned and (replay is None or not all(replay.is_shared(tensor) for tensor in tree.tensors(args))):
            coupled.add(name)

    for name, norm in batch_norms(watched.template).items():
        if name in engine.shared_norms:
            norm.register_forward_pre_hook(lambda _, args, name=name: look(name, args))
    for mode in MODES:
        shared = {n: t for n, t in named_tensors(watched.template) if n not in engine.owned}
        replay = Replay(shared)
        replay.disabled = engine.traits.no_replay
        try:
            with restored(watched.template, mode), torch.no_grad():
                for _, entries in members(watched, inputs, replay=replay):
                    changed |= set(entries)
        except Exception:  # prove_executors reports a mode in which the model cannot run
            continue
        clashes = [name for name in replay.clashes if name in shared]
        if clashes and engine.members > 1:
            raise RunError(shared_write(clashes[0]))
        engine.traits = replace(
            engine.traits,
            no_replay=engine.traits.no_replay or replay.disabled,
            data_dependent=engine.traits.data_dependent or replay.data_dependent,
            ragged=engine.traits.ragged or replay.ragged,
        )
        if replay.disabled and engine.owned:
            coupled |= engine.shared_norms
    engine.traits = replace(
        engine.traits, coupled=frozenset(coupled), written_buffers=frozenset(changed) & _buffers_without_norms(engine)
    )


def _buffers_without_norms(engine: Engine) -> frozenset[str]:
    norms = {join_name(name, key) for name, norm in batch_norms(engine.template).items() for key in norm._buffers}
    return frozenset(engine.buffers()) - norms


def _obstacle(
    name: str,
    executor: Callable[..., Any],
    engine: Engine,
    inputs: Inputs,
    mode: str,
    loop: Outcome | None,
) -> str | None:
    """Returns why an executor is not right in a mode; None if it is right."""
    if loop is None:
        return f"the model does not run in {mode} mode on this example"
    if not engine.owned:
        return "no tensor has a member axis"
    known = _vmap_obstacle(engine, mode) if name == "vmap" else _fold_obstacle(engine, mode)
    if known:
        return known
    twin = _copy(engine)
    try:
        if name == "fold" and set(engine.row_axes) <= {OUTPUT}:
            with restored(engine.template, "eval"):
                twin.row_axes = engine.row_axes = {**engine.row_axes, **learn_rows(engine, fresh_inputs(inputs))}
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            outcome = run_executor(executor, twin, inputs, mode)
    except Exception as error:
        return _reason(error)
    slow = [str(warning.message) for warning in heard if "batching rule" in str(warning.message)]
    if slow:
        return f"{_operation_in(slow[0])} would run member by member"
    if engine.traits.coupled and mode == "train":  # the loop gives another result with these norms: compare without them
        if name == "fold" and "vmap" in engine.proven["train"] and (differs := _difference_from_vmap(twin, inputs, outcome)):
            return differs
        with without_modules(twin.template, engine.traits.coupled):
            outcome, loop = run_executor(executor, twin, inputs, mode), run_reference(twin, inputs, mode)
    if loop.random:
        return _noise_obstacle(executor, engine, inputs, mode)
    differs = difference(outcome, loop)
    return differs and f"{differs} from the loop's"


def _difference_from_vmap(engine: Engine, inputs: Inputs, outcome: Outcome) -> str | None:
    """Returns how fold's outcome differs from vmap's; None if it agrees. With coupled norms the loop is no reference."""
    differs = difference(outcome, run_executor(run_vmap, _copy(engine), inputs, "train")) if not outcome.random else None
    return differs and f"{differs} from vmap's"


def _vmap_obstacle(engine: Engine, mode: str) -> str | None:
    names = hooked(engine.template)
    if names:
        return f"hooks on {names[0] or 'the model'} would see all members at once"
    if engine.traits.copy_per_member:
        return "backward runs forward again (checkpointing)"
    bare = [n for n in engine.traits.coupled if (norm := batch_norms(engine.template)[n]).weight is norm.running_mean is None]
    if bare and mode == "train":
        return f"the shared BatchNorm {sorted(bare)[0]} has no tensor that identifies it (affine=False, no running statistics)"
    return None


def _fold_obstacle(engine: Engine, mode: str) -> str | None:
    if engine.traits.data_dependent:
        return "a member's values decide which operations run, and fold puts all members into one batch"
    return forbidden(engine) if mode == "train" else None


def _noise_obstacle(executor: Callable[..., Any], engine: Engine, inputs: Inputs, mode: str) -> str | None:
    """Returns why an executor's noise is wrong; None if it is right.

    With equal members, noise must differ between members exactly where the loop's does: some operations silently repeat it.
    """
    copies = {n: t[:1].expand_as(t) for n, t in named_tensors(engine.template) if n in engine.owned}
    equal = replace(engine, template=detached_copy(engine.template, copies))
    repeating = [op for op in _operations(equal, inputs, mode) if any(name in op for name in SAME_NOISE)]
    if repeating:
        return f"aten::{repeating[0]} would draw the same noise for all members"
    if engine.members == 1:
        return None
    expected, values = (run_executor(how, equal, inputs, mode).values for how in (run_loop, executor))
    for a, b in zip(expected, values, strict=True):
        if torch.equal(a[0], a[1]) != torch.equal(b[0], b[1]):
            how = "differs between" if torch.equal(a[0], a[1]) else "is the same for all"
            return f"its noise {how} members, unlike the loop's"
    return None


def _operations(engine: Engine, inputs: Inputs, mode: str) -> list[str]:
    """Returns the names of the operations of one pass."""
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Listen(TorchDispatchMode):
        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # True would import the compiler

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Listen():
        run_executor(run_loop, engine, inputs, mode)
    return names


def _reason(error: Exception) -> str:
    """Returns the first 200 characters of an error's text, and the aten operation that it names, if any."""
    text = " ".join(str(error).split())[:200] or type(error).__name__
    operation = _operation_in(" ".join(str(error).split()))
    return text if operation in text else f"{operation}: {text}"


def _operation_in(text: str) -> str:
    match = re.search(r"aten::[\w.]+", text)
    return match.group(0).rstrip(".") if match else ""
