"""Proves how summed first layers (MIMO) run with other inputs for each slot, and that an ensemble with them can train.

One slot after another is the reference: with the same inputs in all slots it must agree with a plain call. vmap must agree
with it on inputs that differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from multitudes.engine import tree
from multitudes.engine.choose import DROPOUTS
from multitudes.engine.inputs import Inputs, count_rows, fresh_inputs, stack_slots, take_rows
from multitudes.engine.loop import output_axes, run_loop
from multitudes.engine.modules import batch_norms
from multitudes.engine.proof.outcome import (
    Outcome,
    close,
    difference,
    doubled,
    is_random,
    restored,
    run_executor,
    run_reference,
    trainable_copy,
    without_modules,
)
from multitudes.engine.slots import members_on_sums, noise_state, run_last_slot, run_slots_in_turn, sums_of_slots
from multitudes.engine.state import Engine
from multitudes.engine.vmap import run_vmap
from multitudes.errors import RunError

DEPENDENT = "in another order of rows, each row has another output, so rows depend on each other or on their places"
"""Why a network cannot take other examples in other slots. No implementation of MIMO could."""


def prove_slots(
    engine: Engine,
    example: Inputs,
    trial: Engine,
    inputs: Inputs,
    plain: Mapping[str, Outcome],
    trains: bool = True,
    quick: bool = False,
) -> None:
    """Finds how slots with different inputs run, and sets the engine's traits. Raises RunError if they cannot train.

    trial   the engine without dropout, in double precision if it is small; `inputs` is the example for it
    plain   the outcome of the loop in each mode to try: eval mode is enough if training runs the same program
    trains  whether the given network runs in training mode on the example; if not, its ensemble need not either
    quick   the network is large: on different inputs only outputs are compared, not gradients
    """
    if _decided(_obstacle_of_rows, trial, inputs, {"eval": plain["eval"]}, quick):
        raise RunError(
            f"{DEPENDENT} (nodes of one graph?), but MIMO puts examples in different orders into its slots. "
            "Use another method, such as MultiHead or BatchEnsemble"
        )
    trial.traits = replace(trial.traits, slot_norms=norms_of_slots(trial, inputs))
    engine.traits = replace(engine.traits, slot_norms=trial.traits.slot_norms)
    why, step = _training_step(engine, example, run_vmap) if trains else (None, None)  # first: dropout fails at once
    same = "train" not in plain and not engine.shared_norms and not _drops(engine)  # training runs what eval mode runs
    known = step if quick and same else None
    forward = quick and "train" in plain  # where gradients are compared
    obstacle = functools.partial(_obstacle_of_vmap, quick=quick, known=known, forward=forward)
    why = why or _decided(obstacle, trial, inputs, plain, quick)
    if why is not None:
        why = _decided(_obstacle_of_turns, trial, inputs, plain, quick)
        why = why or (_training_step(engine, example, run_slots_in_turn, backward=not quick)[0] if trains else None)
        engine.traits = replace(engine.traits, slots_in_turn=why is None)
    else:
        engine.traits = replace(engine.traits, vmap_per_member=True)
    if why is not None:
        raise RunError(
            f"it could not train with a different example in each slot: {why}. "
            "Change this part of the model, or use another method, such as MultiHead"
        )


def check_slots(engine: Engine, inputs: Inputs, plain: Callable[[], Outcome]) -> None:
    """Runs the last slot forward in eval mode, in turn. Raises RunError if it differs from what the others were compared with.

    If the traits say vmap, that is vmap's output on inputs that differ; otherwise a `plain` call with the same inputs.
    """
    if engine.traits.vmap_per_member:
        slots = different_inputs(engine, inputs)
        with restored(engine.template, "eval"), torch.no_grad():
            expected = tree.tensors(run_vmap(engine, fresh_inputs(slots), per_member=True))
    else:
        slots, loop = stack_slots([inputs] * engine.members, engine.batch_axis), plain()
        expected = loop.values
        if loop.random:
            return
    with restored(engine.template, "eval"), torch.no_grad():
        last = tree.tensors(run_last_slot(engine, fresh_inputs(slots)))
    if not all(close(a, b[-1:]) for a, b in zip(last, expected, strict=True)):
        raise RunError("output differs in the last slot")


def _decided(
    obstacle: Callable[..., str | None], trial: Engine, inputs: Inputs, plain: Mapping[str, Outcome], large: bool
) -> str | None:
    """Returns why slots are not right in some mode, or None. Double precision decides if those of a large network differ."""
    try:
        why = next((text for mode, loop in plain.items() if (text := obstacle(trial, inputs, mode, loop))), None)
        precise = doubled(trial, inputs) if why and large else None
        if precise is None:
            return why
        return next((text for mode in plain if (text := obstacle(*precise, mode, run_reference(*precise, mode)))), None)
    except Exception as error:
        return _text(error)


def different_inputs(engine: Engine, inputs: Inputs) -> Inputs:
    """Makes other inputs for each member: rows in another order, and one row replaced, so that their mean differs too.

    Of inputs with a single row, members take rows of the engine's example in turn.
    """
    count, calls = count_rows(inputs, engine.batch_axis), []
    several = several_rows(engine, inputs)
    for m in range(engine.members):
        index = torch.arange(count)
        index[m % count] = (m + 1) % count if count > 1 else m % count_rows(several, engine.batch_axis)
        calls.append(take_rows(several, engine.batch_axis, index.roll(m)))
    return stack_slots(calls, engine.batch_axis)


def several_rows(engine: Engine, inputs: Inputs) -> Inputs:
    """Returns the inputs, or the rows of the engine's example in their precision if they have a single row."""
    if engine.example is None or count_rows(inputs, engine.batch_axis) > 1:
        return inputs
    pairs = zip(engine.example.tensors(), inputs.tensors(), strict=True)
    return inputs.refill([tensor.to(like.dtype) for tensor, like in pairs])


def _obstacle_of_rows(engine: Engine, inputs: Inputs, mode: str, plain: Outcome) -> str | None:
    """Returns that outputs do not follow their rows, as those of the nodes of one graph; None if they do.

    Slots hold examples in different orders.
    """
    rows = several_rows(engine, inputs)
    if (count := count_rows(rows, engine.batch_axis)) < 2:
        return None
    order = torch.tensor([1, 0, *range(2, count)])  # rolled, the nodes of a ring would follow too
    with restored(engine.template, mode), torch.enable_grad():  # as the outcome was computed
        moved = run_loop(engine, take_rows(rows, engine.batch_axis, order))
        values = plain.values if rows is inputs else tree.tensors(run_loop(engine, fresh_inputs(rows)))
    for axis, a, b in zip(output_axes(engine, moved), values, tree.tensors(moved), strict=True):
        if axis is not None and a.ndim > axis + 1 and a.shape[axis + 1] == count:
            a = a.index_select(axis + 1, order.to(a.device))
        if a.shape == b.shape and not close(b, a) and not is_random(engine, inputs, mode):
            return "output differs in another order of rows"
    return None


def norms_of_slots(engine: Engine, inputs: Inputs) -> frozenset[str]:
    """Names the shared BatchNorm layers whose input differs between members if slots hold different inputs."""
    if not engine.shared_norms:
        return frozenset()
    slots = different_inputs(engine, inputs)
    seen: dict[str, list[Any]] = {}
    twin = replace(engine, template=trainable_copy(engine.template))
    with restored(twin.template, "eval"), torch.no_grad():
        buffers = {n: b.clone() for n, b in twin.buffers().items() if n not in twin.owned}
        sums = sums_of_slots(twin, slots, buffers, noise_state())
        for name, norm in batch_norms(twin.template).items():
            if name in twin.shared_norms:
                norm.register_forward_pre_hook(lambda _, args, name=name: seen.setdefault(name, []).append(args[0].clone()))
        for _ in members_on_sums(twin, slots, sums, buffers, noise_state()):
            pass
    differ = set()
    for name, values in seen.items():
        once = len(values) // engine.members  # calls of this norm in one pass
        if any(not torch.equal(a, b) for a, b in zip(values, values[once:], strict=False)):
            differ.add(name)
    return frozenset(differ)


def _obstacle_of_turns(engine: Engine, inputs: Inputs, mode: str, plain: Outcome, backward: bool = True) -> str | None:
    """Returns why one slot after another is not right; None if it agrees with a plain call on equal inputs."""
    if mode == "train" and engine.traits.slot_norms:
        return f"BatchNorm {min(engine.traits.slot_norms)} sees other rows in each slot, which needs vmap"
    equal = stack_slots([inputs] * engine.members, engine.batch_axis)
    with _without_norms(engine, mode):
        plain = _loop(engine, inputs, mode, plain)
        slots = run_executor(run_slots_in_turn, engine, equal, mode, backward)
    differs = None if plain.random else difference(slots, plain)
    return differs and f"with equal inputs in all slots, {differs} from that of a plain call"


def _obstacle_of_vmap(
    engine: Engine, inputs: Inputs, mode: str, plain: Outcome, quick: bool, known: Outcome | None, forward: bool
) -> str | None:
    """Returns why vmap is not right for slots.

    None if it agrees with a plain call on equal inputs, and with one slot after another on different inputs. `known` is its
    outcome on different inputs. `forward`: in eval mode it runs forward only.
    """
    if plain.random and mode == "train":  # nothing to compare, and a step has been taken
        return None
    equal, other = stack_slots([inputs] * engine.members, engine.batch_axis), different_inputs(engine, inputs)
    vmap = functools.partial(run_vmap, per_member=True)
    with _without_norms(engine, mode):
        plain = _loop(engine, inputs, mode, plain)
        if forward and mode == "eval":
            differs = difference(run_executor(vmap, engine, equal, mode, backward=False), replace(plain, gradients={}))
        else:
            differs = difference(run_executor(vmap, engine, equal, mode), plain)
        if quick:
            differs = differs or _other_outputs(engine, other, mode, known)
        else:
            turns = run_executor(run_slots_in_turn, engine, other, mode)
            differs = differs or difference(run_executor(vmap, engine, other, mode), turns)
    return f"under vmap, {differs}" if differs and not plain.random else None


def _loop(engine: Engine, inputs: Inputs, mode: str, known: Outcome) -> Outcome:
    """Returns the outcome of the loop; it is run again if norms were taken out of the network."""
    return run_reference(engine, inputs, mode) if mode == "train" and engine.shared_norms else known


def _other_outputs(engine: Engine, slots: Inputs, mode: str, known: Outcome | None) -> str | None:
    """Compares the outputs of vmap with those of one slot after another. `known` is vmap's outcome, if it was run."""

    def run(executor: Any) -> list[Tensor]:
        with restored(engine.template, mode), torch.no_grad():
            return tree.tensors(executor(engine, fresh_inputs(slots)))

    turns = run(run_slots_in_turn)
    same = known is not None and [t.dtype for t in known.values] == [t.dtype for t in turns]
    outputs = known.values if known is not None and same else run(functools.partial(run_vmap, per_member=True))
    return None if all(close(a, b) for a, b in zip(outputs, turns, strict=True)) else "output differs"


def _without_norms(engine: Engine, mode: str) -> Any:
    """Takes shared BatchNorm layers out of the network in training: over few rows they amplify rounding errors."""
    return without_modules(engine.template, engine.shared_norms if mode == "train" else frozenset())


def _training_step(engine: Engine, example: Inputs, executor: Any, backward: bool = True) -> tuple[str | None, Outcome | None]:
    """Takes a training step in the model's own precision and with dropout. Returns its error, or its outcome.

    It is forward only, without `backward`, if that ran before without dropout and vmap takes no part in it.
    """
    twin = replace(engine, template=trainable_copy(engine.template))
    slots = different_inputs(engine, example)
    try:
        return None, run_executor(functools.partial(executor, per_member=True), twin, slots, "train", backward)
    except Exception as error:
        return _text(error), None


def _drops(engine: Engine) -> bool:
    """Whether a dropout module of the network drops anything in training."""
    return any(isinstance(part, DROPOUTS) and part.p > 0 for part in engine.template.modules())


def _text(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
