"""The trial: which executors are right for this template, and what forbids the others.

A few members are run on the example by the loop, in training and in eval mode, forward and backward, and then by the
others; an executor is proven where outputs, gradients and buffers agree. It is done on copies, in double precision where
the model can run in it, with dropout off.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from multitudes import tree
from multitudes.engine.fold import forbidden, run_fold
from multitudes.engine.loop import own_inputs, remembering, run_loop, slices, turn
from multitudes.engine.outcome import (
    Outcome,
    copied,
    difference,
    fresh_inputs,
    precise,
    run,
    run_reference,
    undone,
)
from multitudes.engine.replay import Replay
from multitudes.engine.state import MODES, Engine, Traits, bake, batch_norms, call, named_tensors
from multitudes.engine.vmap import run_vmap
from multitudes.errors import RunError
from multitudes.inputs import Inputs

SAME_NOISE = ("fractional_max_pool",)
"""Operations that vmap gives the same randomness for all members without a word."""


def settle(engine: Engine, inputs: Inputs) -> None:
    """Finds the traits of the engine's template and the executors that are right for it, and picks among them."""
    trial, inputs = precise(engine, inputs)
    loop = _try_loop(trial, inputs)
    engine.traits, engine.why = trial.traits, {}
    for mode in MODES:
        proven = ["loop"]
        for name, executor in (("vmap", run_vmap), ("fold", run_fold)):
            why = _forbids(name, executor, trial, inputs, mode, loop.get(mode))
            if why is None:
                proven.append(name)
            else:
                engine.why.setdefault(name, why)
        engine.proven[mode] = tuple(proven)
    pick(engine)


def few_members(engine: Engine, count: int) -> Engine:
    """The first members as an engine of their own."""
    parts = {n: t[:count] for n, t in named_tensors(engine.template) if n in engine.owned}
    template = bake(engine.template, parts)
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
    engine.traits = Traits(mutates=_writes_inputs(engine, inputs))
    outcomes: dict[str, Outcome] = {}
    for mode in reversed(MODES):
        try:
            try:
                outcomes[mode] = run_reference(engine, inputs, mode)
            except Exception:
                engine.traits = replace(engine.traits, copies=True)
                outcomes[mode] = run_reference(engine, inputs, mode)
        except Exception as error:
            if mode == "eval":
                raise RunError(f"the members cannot be run one by one: {type(error).__name__}: {error}") from error
            engine.traits = replace(engine.traits, copies=False)  # the base model fails too, for example BatchNorm on one value
    coupled, reassigned = _watch(engine, inputs)
    engine.traits = replace(engine.traits, coupled=coupled, reassigned=reassigned)
    return outcomes


def _writes_inputs(engine: Engine, inputs: Inputs) -> bool:
    own = fresh_inputs(inputs)
    try:
        with undone(engine.template, "eval"), torch.no_grad():
            run_loop(engine, own)
    except RuntimeError:
        return True
    return not all(torch.equal(a, b) for a, b in zip(own.tensors(), inputs.tensors(), strict=True))


def _watch(engine: Engine, inputs: Inputs) -> tuple[frozenset[str], frozenset[str]]:
    """The shared BatchNorm layers that see what depends on members, and the buffers that forward replaces."""
    watched = replace(engine, template=copied(engine.template))
    memory: Replay | None = None
    coupled: set[str] = set()
    reassigned: set[str] = set()

    def look(name: str, args: tuple[Any, ...]) -> None:
        if memory is not None and not all(memory.is_shared(tensor) for tensor in tree.tensors(args)):
            coupled.add(name)

    for name, norm in batch_norms(watched.template).items():
        if name in engine.shared_norms:
            norm.register_forward_pre_hook(lambda _, args, name=name: look(name, args))
    for mode in MODES:
        memory = remembering(watched, inputs, per_member=False)
        try:
            with undone(watched.template, mode), torch.no_grad():
                for m, tensors in enumerate(slices(watched)):
                    with turn(memory, m):
                        _, entries = call(watched, tensors, own_inputs(watched, inputs, False, m))
                    reassigned |= set(entries)
        except Exception:  # a mode the model cannot be run in is reported by the trial itself
            continue
    return frozenset(coupled), frozenset(reassigned)


def _forbids(
    name: str, executor: Callable[..., Any], engine: Engine, inputs: Inputs, mode: str, loop: Outcome | None
) -> str | None:
    """What keeps an executor from being right in a mode; None if nothing does."""
    if loop is None:
        return f"the model does not run in {mode} mode on this example"
    if not engine.owned:
        return "nothing carries a member axis"
    trap = _vmap_trap(engine, mode) if name == "vmap" else _fold_trap(engine, mode)
    if trap:
        return trap
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            outcome = run(executor, engine, inputs, mode)
    except Exception as error:
        return _operation(error)
    slow = [str(warning.message) for warning in heard if "batching rule" in str(warning.message)]
    if slow:
        return f"{_named(slow[0])} would be run member by member"
    if name == "fold" and mode == "train" and engine.traits.coupled:
        return None  # the loop says something else there: fold is the meaning
    if loop.random:
        return _noise_differs(executor, engine, inputs, mode)
    odd = difference(outcome, loop)
    return odd and f"{odd} from the loop's"


def _vmap_trap(engine: Engine, mode: str) -> str | None:
    hooked = [n for n, part in engine.template.named_modules() if part._forward_hooks or part._forward_pre_hooks]
    if hooked:
        return f"hooks on {hooked[0] or 'the model'} would see all members at once"
    if engine.traits.copies:
        return "forward is run again during backward (checkpointing)"
    if engine.traits.coupled and mode == "train":
        return f"shared BatchNorm {sorted(engine.traits.coupled)[0]} needs the rows of all members"
    return None


def _fold_trap(engine: Engine, mode: str) -> str | None:
    if mode == "train" and engine.shared_norms and not engine.traits.coupled:
        return "the trunk's BatchNorm would count each row once for every member"
    return forbidden(engine) if mode == "train" else None


def _noise_differs(executor: Callable[..., Any], engine: Engine, inputs: Inputs, mode: str) -> str | None:
    """With equal members, noise must tell them apart where the loop's does: some operations repeat theirs silently."""
    own = {n: t[:1].expand_as(t) for n, t in named_tensors(engine.template) if n in engine.owned}
    equal = replace(engine, template=bake(engine.template, own))
    traps = [op for op in _operations(equal, inputs, mode) if any(trap in op for trap in SAME_NOISE)]
    if traps:
        return f"aten::{traps[0]} would draw the same noise for all members"
    expected, found = (run(how, equal, inputs, mode).values for how in (run_loop, executor))
    for a, b in zip(expected, found, strict=True):
        if not torch.equal(a[0], a[1]) and torch.equal(b[0], b[1]):
            return "its noise is the same for all members"
    return None


def _operations(engine: Engine, inputs: Inputs, mode: str) -> list[str]:
    """The names of the operations that one pass is made of."""
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Listen():
        run(run_loop, engine, inputs, mode)
    return names


def _operation(error: Exception) -> str:
    """The operation that an error names, and what it says."""
    text = " ".join(str(error).split())
    first = text.split(". ")[0][:160]
    named = _named(text)
    return f"{named}: {first}" if named not in first else first or type(error).__name__


def _named(text: str) -> str:
    found = re.search(r"aten::[\w.]+", text)
    return found.group(0).rstrip(".") if found else ""
