"""Proves executors: finds out which ones are right for a template, and why the others are not.

The loop and then the other executors run a few members on a small example: in training and eval mode, forward and backward.
An executor is proven if its outputs, gradients and buffers agree with the loop's. A large network is proved on a shallower copy
if it has one, and runs as a whole forward only.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine.choose import DROPOUTS
from multitudes.engine.draws import draw_distinct, drawing_layers, drawn_names
from multitudes.engine.fold import forbidden, run_fold
from multitudes.engine.inputs import Inputs, add_row, take_rows
from multitudes.engine.listening import Listening
from multitudes.engine.loop import OUTPUT, run_loop
from multitudes.engine.modules import as_same_kind, batch_norms, copy_with, detached_copy, hooked, named_tensors, note_names
from multitudes.engine.proof.independence import changed, quick_leaks
from multitudes.engine.proof.outcome import (
    BUFFER,
    Outcome,
    clean_autograd,
    difference,
    run_executor,
    run_reference,
    trainable_copy,
    without_modules,
)
from multitudes.engine.proof.shallower import shallower
from multitudes.engine.proof.slots import different_inputs, prove_slots, several_rows
from multitudes.engine.proof.tables import with_few_rows
from multitudes.engine.proof.trial import RUNS, SINGLE, Trial, plain_member
from multitudes.engine.proof.whole import run_whole
from multitudes.engine.state import MODES, Engine
from multitudes.engine.vmap import SLOW, run_vmap
from multitudes.errors import RunError, listed
from multitudes.terminal import step

SAME_NOISE = ("fractional_max_pool",)
"""Operations for which vmap silently draws the same noise for all members."""

PER_MEMBER = "per member"
"""Stands for calls with other inputs for each member, among executors to try."""
TOGETHER = "draws together"
"""Stands for training calls of several draws, among executors to try: a training step runs one."""
ALL = frozenset({"vmap", "fold", PER_MEMBER, TOGETHER})
BY_ROWS = ("fold", PER_MEMBER)
"""What calls that run each row by one member may need."""
DEEP = 100
"""So many shared norms amplify rounding errors so much that comparing gradients with them would be in vain."""
SEEDS = 6
"""Trainings in which a random network may mix rows."""
NOT_APART = "rows have other outputs than in smaller batches"
"""Why fold is wrong where rows see each other, which shows on many rows alone."""
MIXES = "rows of other members show"
"""Why fold is wrong in training where a network mixes rows at random."""
LATER = "not tried yet: on this device it would not be chosen; it is tried where it may be, or by ens.tune(x)"
LATER_TOGETHER = "not tried in training yet, where a step runs one draw; it is tried at the first call that runs several"


def prove_executors(
    engine: Engine,
    inputs: Inputs,
    large: bool = False,
    names: Collection[str] | None = None,
    also: Collection[str] = (),
    apart: bool = True,
) -> None:
    """Finds the traits of the engine's template and the executors that are right for it, and picks one for each mode.

    large  the network is large: runs are few, and in its own precision
    names  the executors to try; None tries all, or of a large network those that the engine's device would choose, and `also`
    apart  rows have the outputs that they have in smaller batches; otherwise fold is wrong, which few rows may not show
    """
    tried = frozenset(names) if names is not None else (_needed(engine, bool(also)).union(also) if large else ALL)
    if not drawn_names(engine.template):  # members always train together
        tried |= {TOGETHER}
    if not large:
        _prove(engine, inputs, large, tried)
    elif not _proved_on_few_rows(engine, inputs, tried):
        _prove_large(engine, inputs, tried)
    if not apart:
        engine.proven = {mode: tuple(name for name in proven if name != "fold") for mode, proven in engine.proven.items()}
        engine.why, engine.untried = {**engine.why, "fold": NOT_APART}, engine.untried - {"fold"}
    pick(engine)


def _proved_on_few_rows(engine: Engine, inputs: Inputs, tried: frozenset[str]) -> bool:
    """Proves a large engine on a copy without the rows of tables that are not read. Returns False if the engine must decide."""
    several = several_rows(engine, inputs)
    found = with_few_rows(engine, several, plain_member(engine, 0))
    if found is None:
        return False
    few, rows = found
    few.example = rows
    if several is not inputs:
        rows = take_rows(rows, engine.batch_axis, torch.zeros(1, dtype=torch.long))
    try:
        _prove_large(few, rows, tried)
    except Exception:
        return False
    engine.take_proofs(few)
    return True


def _prove_large(engine: Engine, inputs: Inputs, tried: frozenset[str]) -> None:
    """Proves a large engine, on a shallower copy if it has one."""
    part = shallower(engine, inputs, plain_member(engine, 0))
    if part is None or not _proved_on_part(engine, part, inputs, tried):
        _prove(engine, inputs, True, tried)


def _proved_on_part(engine: Engine, part: Engine, inputs: Inputs, tried: frozenset[str]) -> bool:
    """Proves a large engine on `part`, a shallower copy of it. Returns False if the whole network must decide."""
    try:
        same = _prove(part, inputs, True, tried)
        step("the whole network")
        alone = TOGETHER in part.untried and not same  # a training step runs one draw, as a plain network does
        whole = (_shown_by_eval(engine, inputs, part) if alone else None) or run_whole(engine, inputs, part, same)
    except Exception:
        return False
    engine.take_proofs(part)
    engine.traits, engine.row_axes = whole.traits, whole.row_axes
    return True


def _shown_by_eval(engine: Engine, inputs: Inputs, part: Engine) -> Engine | None:
    """Returns what `run_whole` finds in eval mode; None if a norm sees members in training alone, or something differs."""
    try:
        return run_whole(engine, inputs, part, same=True)
    except Exception:
        return None


def _prove(engine: Engine, inputs: Inputs, large: bool, tried: frozenset[str]) -> bool:
    """Proves executors on the engine as it is. Returns whether training runs nothing else than eval mode does."""
    trial = Trial(engine, inputs, large, pair={"vmap", "fold", TOGETHER} <= tried)
    engine.why, engine.untried = {}, ALL - tried
    for mode in reversed(MODES):  # eval first: the loop is always a reference there
        if mode == "train" and trial.loop("train") is trial.loop("eval"):  # training runs the same program
            trial.engine.proven["train"] = trial.engine.proven["eval"]
        else:
            _prove_mode(trial, engine, mode, tried)
        if "vmap" in trial.engine.proven[mode] and (why := _error_with_dropout(trial.engine, engine, inputs, mode)):
            engine.why.setdefault("vmap", why)
            trial.engine.proven[mode] = tuple(name for name in trial.engine.proven[mode] if name != "vmap")
        engine.proven[mode] = trial.engine.proven[mode]
        trial.forget(mode)
    _prove_gradients(trial, engine)
    for name in ("vmap", "fold"):
        if name in engine.untried:
            never = forbidden(engine) if name == "fold" and engine.shared_norms else None
            engine.why[name] = never or LATER
        elif TOGETHER in engine.untried and name not in engine.proven["train"]:
            engine.why.setdefault(name, LATER_TOGETHER)
    engine.row_axes, engine.traits = trial.engine.row_axes, trial.engine.traits
    if engine.summed:
        step("other inputs for each slot")
        plain = {mode: outcome for mode in MODES if (outcome := trial.loop(mode)) is not None}
        if trial.loop("train") is trial.loop("eval"):
            del plain["train"]
        prove_slots(engine, inputs, trial.engine, trial.inputs, plain, "train" not in trial.failed, quick=large)
        engine.untried -= {PER_MEMBER}
    elif PER_MEMBER in tried:
        _prove_per_member(trial, engine)
    _check_trainable(trial, engine)
    return not trial.trains_apart


def _needed(engine: Engine, by_rows: bool) -> frozenset[str]:
    """Names the executors that this device may choose. Where members train together and share BatchNorm, that needs both.

    A training step of members that are draws runs one of them, by the loop, unless rows have draws of their own (`by_rows`).
    """
    preferred = frozenset({_preferred(engine)} - {"loop"})
    if drawn_names(engine.template) and not by_rows:
        return preferred
    both = frozenset({"vmap", "fold"}) if engine.shared_norms and not forbidden(engine) else preferred
    return both | {TOGETHER}


def needed_by_call(engine: Engine, per_member: bool, rows: bool, several: bool) -> list[str]:
    """Names what a call may need that was left to later: with other inputs per member, with rows=, or of `several` members.

    A compiled call cannot try it itself.
    """
    names = [*(["fold"] if rows else []), PER_MEMBER] if per_member or rows else []
    if TOGETHER in engine.untried and (names or (several and engine.template.training)):
        names += [TOGETHER, *(["fold", "vmap"] if engine.shared_norms else [])]
    return names


def rows_are_apart(engine: Engine) -> bool:
    """Whether rows of this engine's network have the outputs that they have in smaller batches, as far as its example shows."""
    return engine.why.get("fold") != NOT_APART


def prove_later(engine: Engine, names: Collection[str], example: Inputs) -> None:
    """Tries executors that were left to later, and picks again. What was proven before stays."""
    few = first_members(engine, 2)
    if few.members > 1 and any(True for _ in drawing_layers(few.template)):
        draw_distinct(few.template, few.owned, few.members)
        few.refresh()
    with clean_autograd():
        prove_executors(few, example, large=True, names=(ALL - engine.untried) | set(names), apart=rows_are_apart(engine))
    engine.adopt(few)
    pick(engine)


def _prove_mode(trial: Trial, engine: Engine, mode: str, tried: frozenset[str]) -> None:
    proven = ["loop"]
    if mode == "train" and TOGETHER not in tried:
        trial.engine.proven[mode] = ("loop",)
        return
    if mode == "train" and _agree_in_training(trial, tried):
        proven += ["vmap", "fold"]
    elif mode == "train":
        trial.learn_backward()
    for name in ("vmap", "fold"):
        if name not in tried or name in proven:
            continue
        step(f"{name} in {mode} mode")
        why = _obstacle(trial, name, mode)
        if why is None:
            proven.append(name)
            trial.engine.proven[mode] = tuple(proven)
        else:
            engine.why.setdefault(name, why)
            if name == "fold" and mode == "train":
                trial.engine.traits = replace(trial.engine.traits, mixes_rows=_mixes_rows(trial, why))
    trial.engine.proven[mode] = tuple(proven)


def _agree_in_training(trial: Trial, tried: frozenset[str]) -> bool:
    """Whether vmap and fold agree in training with shared norms. Both agree with the loop in eval mode, and run in unlike ways.

    If not, or if the network is small or random, each is compared with the loop, without these norms.
    """
    engine = trial.engine
    if not (trial.large and engine.traits.coupled and {"vmap", "fold"} <= tried & set(engine.proven["eval"])):
        return False
    if _vmap_obstacle(engine, "train") or _fold_obstacle(engine, "train"):
        return False
    step("vmap and fold in train mode")
    try:
        with _quiet_but_slow():
            amplified = len(engine.traits.coupled) > DEEP and trial.agree_softened("vmap", "fold")
            return amplified or (
                not any(trial.outcome(name, "train").drew for name in ("vmap", "fold"))
                and trial.difference("vmap", "fold", "train") is None
            )
    except Exception:
        return False


def _prove_gradients(trial: Trial, engine: Engine) -> None:
    """Proves the gradients of fold in eval mode, if it ran without them there and cannot train."""
    if not _forward_only(trial, "fold", "eval") or "fold" in engine.proven["train"] or "fold" not in engine.proven["eval"]:
        return
    try:
        differs = trial.difference("fold", "loop", "eval")
    except Exception as error:
        differs = _reason(error)
    if differs:
        engine.why.setdefault("fold", f"{differs} from the loop's")
        engine.proven["eval"] = tuple(name for name in engine.proven["eval"] if name != "fold")


def _forward_only(trial: Trial, name: str, mode: str) -> bool:
    """Whether an executor is tried without gradients: fold of a large network in eval mode, if training proves them."""
    return trial.large and name == "fold" and mode == "eval" and trial.trains_apart


@contextlib.contextmanager
def _quiet_but_slow() -> Iterator[None]:
    """Ignores warnings in a with-block, except torch's of an operation that vmap runs member by member: that is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", SLOW)
        yield


def _error_with_dropout(trial: Engine, engine: Engine, inputs: Inputs, mode: str) -> str | None:
    """Runs vmap in the model's own precision and with dropout, unlike the comparison. Returns its error, or None."""
    live = mode == "train" and any(isinstance(part, DROPOUTS) and part.p > 0 for part in engine.template.modules())
    dtypes = [{t.dtype for _, t in named_tensors(e.template)} for e in (trial, engine)]
    if not live and dtypes[0] == dtypes[1]:
        return None
    twin = replace(engine, template=trainable_copy(engine.template), traits=trial.traits)
    try:
        run_executor(run_vmap, twin, inputs, mode)
    except Exception as error:
        return _reason(error)
    return None


def _prove_per_member(trial: Trial, engine: Engine) -> None:
    """Finds whether vmap and fold are right for calls with other inputs for each member."""
    train = trial.loop("train")
    if trial.large and train is not None and train.random:  # executors draw other noise, so nothing could agree with the loop
        return
    step("other inputs for each member")
    few = trial.engine
    vmap = all("vmap" in few.proven[mode] for mode in MODES)
    fold = bool(few.shared_norms and few.owned) and "fold" in few.proven["eval"] and not forbidden(few)
    slots = different_inputs(few, trial.inputs) if vmap or fold else trial.inputs
    if vmap and (few.shared_norms or trial.trains_apart or not trial.large):  # otherwise training runs the same program
        vmap = "vmap" in _right_per_member(trial, slots, "eval", ["vmap"])
    names = [name for name, may in (("vmap", vmap), ("fold", fold)) if may]
    if len(names) == 2 and trial.large and few.traits.coupled and _agree_per_member(trial, slots):
        right = set(names)
    else:
        right = _right_per_member(trial, slots, "train", names) if names else set()
    engine.traits = replace(engine.traits, vmap_per_member="vmap" in right, fold_per_member="fold" in right)


def _agree_per_member(trial: Trial, slots: Inputs) -> bool:
    """Whether vmap and fold agree in training with shared norms when each member has its own inputs (`_agree_in_training`).

    Norms are softened if they had to be without inputs of their own.
    """
    copy = trial.softened if trial.is_soft else trial.copy
    try:
        vmap, fold = (_run_per_member(trial, name, slots, "train", copy=copy) for name in ("vmap", "fold"))
        return difference(vmap, fold, 10 * SINGLE) is None
    except Exception:
        return False


def _run_per_member(
    trial: Trial,
    name: str,
    slots: Inputs,
    mode: str,
    backward: bool = True,
    without: frozenset[str] = frozenset(),
    copy: Callable[[], Engine] | None = None,
) -> Outcome:
    """Runs an executor with other inputs for each member. A warning of vmap, which may run member by member, is an error.

    `copy` makes the engine for the run.
    """
    twin = (copy or trial.copy)()
    with warnings.catch_warnings(), without_modules(twin.template, without):
        warnings.simplefilter("error" if name == "vmap" else "ignore")
        return run_executor(functools.partial(RUNS[name], per_member=True), twin, slots, mode, backward)


def _right_per_member(trial: Trial, slots: Inputs, mode: str, names: Collection[str]) -> set[str]:
    """Returns the executors that agree with the loop when each member has its own inputs.

    In training, shared norms are taken out of the network: with these the loop gives another result. Training proves the
    gradients of a large network, and eval mode with common inputs has proved them there, so it runs forward.
    """
    backward = mode == "train" or not trial.large or not trial.trains_apart
    norms = trial.engine.shared_norms if mode == "train" else frozenset()
    run = functools.partial(_run_per_member, trial, slots=slots, mode=mode, backward=backward, without=norms)
    right: set[str] = set()
    with contextlib.suppress(Exception):
        loop = run("loop")
        for name in names:
            with contextlib.suppress(Exception):
                right |= {name} if difference(run(name), loop) is None else set()
    return right


def _check_trainable(trial: Trial, engine: Engine) -> None:
    """Raises an error if members of a network that trains alone could not be trained. Draws can: a step runs one of them."""
    if "train" in trial.failed or engine.members == 1 or drawn_names(engine.template):
        return
    if engine.traits.coupled and not {"vmap", "fold"} & set(engine.proven["train"]):
        raise RunError(
            f"it could not be trained: BatchNorm {listed(engine.traits.coupled)} is shared by members, so it must see all "
            f"their rows at once. fold cannot run this model ({engine.why.get('fold')}), nor can vmap "
            f"({engine.why.get('vmap')}). Use a method whose members own it, such as mt.Deep(members=4), or another norm, such "
            "as nn.GroupNorm"
        )


def first_members(engine: Engine, count: int, light: bool = False, shared: Collection[str] = ()) -> Engine:
    """Returns an engine with copies of the first `count` members.

    A `light` one has the memory of the parameters that members share. Tensors named in `shared` keep their memory, too.
    """
    ours, values, notes = engine.owned | engine.summed, {}, note_names(engine.template)
    for name, tensor in named_tensors(engine.template):
        value = tensor.detach()[:count] if name in ours else tensor.detach()
        shares = name in notes or name in shared or (light and name not in ours and isinstance(tensor, nn.Parameter))
        values[name] = as_same_kind(tensor, value if shares else value.clone())
    template = copy_with(engine.template, values)
    return replace(engine, template=template, members=min(count, engine.members), why={}, proven=dict(engine.proven))


def _preferred(engine: Engine) -> str:
    """Returns the executor that the engine's device would choose if it is right.

    On a CPU the loop is as fast as vmap if members own everything; if they share a trunk, vmap computes it once.
    """
    device = next((t.device.type for _, t in named_tensors(engine.template)), "cpu")
    return "vmap" if device not in ("cpu", "meta") or engine.shares else "loop"


def pick(engine: Engine) -> None:
    """Picks a proven executor for each mode without timing them: what was measured on this device before, if anything."""
    prefers, measured = _preferred(engine), engine.tuned.get(engine.device_type, {})
    for mode in MODES:
        proven = [name for name in (measured.get(mode), prefers) if name in engine.proven[mode]]
        engine.picked[mode] = proven[0] if proven else "loop"


def _obstacle(trial: Trial, name: str, mode: str) -> str | None:
    """Returns why an executor is not right in a mode; None if it is right."""
    engine, loop, apart = trial.engine, trial.loop(mode), False
    if loop is None:
        return f"the model does not run in {mode} mode on this example"
    if not engine.owned:
        return "no tensor has a member axis"
    known = _vmap_obstacle(engine, mode) if name == "vmap" else _fold_obstacle(engine, mode)
    if known:
        return known
    try:
        if name == "fold" and set(engine.row_axes) <= {OUTPUT}:
            engine.row_axes = {**engine.row_axes, **trial.learned_rows()}
        with _quiet_but_slow():
            apart = mode == "eval" and not loop.random and trial.predicts_apart(name)
            if not _forward_only(trial, name, mode):
                trial.outcome(name, mode)
            elif not apart:
                trial.prediction(name)
    except Exception as error:
        slow = isinstance(error, UserWarning) and re.match(SLOW, str(error))
        return f"{_operation_in(str(error))} would run member by member" if slow else _reason(error)
    if name == "fold" and mode == "train" and loop.random and _mixes_at_random(trial):
        return MIXES
    if engine.traits.coupled and mode == "train":  # the loop gives another result with these norms: compare without them
        if name == "fold" and "vmap" in engine.proven["train"]:  # which agrees with the loop
            differs = trial.difference("fold", "vmap", mode)
            if differs or trial.large:
                return differs and f"{differs} from vmap's"
        loop = _loop_without_coupled(trial, mode)
    if loop.random:
        return _noise_obstacle(RUNS[name], engine, trial.inputs, mode)
    coupled = engine.traits.coupled if mode == "train" else frozenset()
    quick = _forward_only(trial, name, mode)
    if not quick and (differs := trial.difference(name, "loop", mode, coupled)):
        return f"{differs} from the loop's"
    if apart:
        return None
    if mode == "eval" and (wrong := _obstacle_of_predictions(trial, name)):
        return wrong
    if coupled or (mode == "train" and trial.large and name in engine.proven["eval"]):  # these mix members on purpose, or
        return None  # leaks were looked for in eval mode, and in training it agrees with the loop, which has none
    before = (trial.prediction(name) if quick else trial.outcome(name, mode)).values
    ways = ("NaN",) if trial.large else ("NaN", "perturbation")  # the loop, with which it agrees, was tried in both ways
    tried = quick_leaks(trial.copy, trial.inputs, mode, before, name, RUNS[name], not quick, ways)
    return next((leak for _, leak in tried if leak), None)


def _obstacle_of_predictions(trial: Trial, name: str) -> str | None:
    """Returns why an executor is not right without gradients, where torch and layers may run other code."""
    try:
        differs = trial.difference_of_predictions(name)
    except Exception as error:
        return f"without gradients, {_reason(error)}"
    return differs and f"without gradients, {differs} from the loop's"


def _loop_without_coupled(trial: Trial, mode: str) -> Outcome:
    """Returns the outcome of the loop without coupled norms, with `random` set."""
    coupled = trial.engine.traits.coupled
    outcome = trial.outcome("loop", mode, coupled)
    if not outcome.drew:
        return outcome
    twin = trial.copy()
    with without_modules(twin.template, coupled):
        return run_reference(twin, trial.inputs, mode)


def _vmap_obstacle(engine: Engine, mode: str) -> str | None:
    names = hooked(engine.template)
    if names:
        return f"hooks on {names[0] or 'the model'} would see all members at once"
    if engine.traits.copy_per_member:
        return "backward runs forward again (checkpointing)"
    norms = batch_norms(engine.template)
    bare = [n for n in engine.traits.coupled if norms[n]._parameters.get("weight") is None and norms[n].running_mean is None]
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
    Parameters that are zero are moved, since noise on a branch that starts at zero would not show.
    """
    copies = {n: t[:1].expand_as(t) for n, t in named_tensors(engine.template) if n in engine.owned}
    for name, zeros in engine.parameters().items():
        if zeros.is_floating_point() and not bool(zeros.any()):
            copies[name] = _small(zeros[:1] if name in engine.owned else zeros).expand_as(zeros)
    equal = replace(engine, template=detached_copy(engine.template, copies))
    operations, expected = _operations(equal, inputs, mode)
    repeating = [op for op in operations if any(name in op for name in SAME_NOISE)]
    if repeating:
        return f"aten::{repeating[0]} would draw the same noise for all members"
    if engine.members == 1:
        return None
    values = run_executor(executor, equal, inputs, mode, backward=False).values
    for a, b in zip(expected, values, strict=True):
        if torch.equal(a[0], a[1]) != torch.equal(b[0], b[1]):
            how = "differs between" if torch.equal(a[0], a[1]) else "is the same for all"
            return f"its noise {how} members, unlike the loop's"
    return None


def _mixes_rows(trial: Trial, why: str) -> bool:
    """Whether fold is right in eval mode and wrong in training, for the reason `why`, since rows see each other there.

    A buffer that sums up the rows of all members is as intended. Noise tells nothing: mixing at random was tried by itself.
    """
    engine, loop = trial.engine, trial.loop("train")
    if loop is None or "fold" not in engine.proven["eval"] or forbidden(engine):
        return False
    return why == MIXES if loop.random else not why.startswith(BUFFER)


def _mixes_at_random(trial: Trial) -> bool:
    """Whether fold mixes rows of members in some of a few trainings of a random network, without norms that see all rows.

    NaN in the first member's tensors would show in others. A draw may leave rows where they are, so one is not enough.
    """
    engine, inputs = trial.engine, add_row(trial.inputs, trial.engine.batch_axis)
    if engine.members < 2:
        return False
    for seed in range(SEEDS):
        twin = trial.copy()
        with contextlib.suppress(Exception), without_modules(twin.template, engine.traits.coupled), changed(twin, 0, "NaN"):
            values = run_executor(run_fold, twin, inputs, "train", backward=False, seed=seed).values
            if any(bool(value[1:].isnan().any()) for value in values):
                return True
    return False


def _small(zeros: Tensor) -> Tensor:
    """Returns small random numbers, the same at each call, in the shape of a tensor."""
    numbers = torch.randn(zeros.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return 0.02 * numbers.to(zeros)


def _operations(engine: Engine, inputs: Inputs, mode: str) -> tuple[list[str], list[Tensor]]:
    """Returns the names of the operations of one forward pass of the loop, and its outputs."""
    names: list[str] = []

    class Names(Listening):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Names():
        outcome = run_executor(run_loop, engine, inputs, mode, backward=False)
    return names, outcome.values


BRANCHES = "a tensor's value decides which operations run, as in `if x.sum() > 0`, or where whole layers are dropped at random"


def _reason(error: Exception) -> str:
    """Returns the first 200 characters of an error's text, and the aten operation that it names, if any."""
    if isinstance(error, ValueError) and str(error).startswith("zip()"):
        return "layers are called with other numbers of tensors for another number of rows"
    if "data-dependent control flow" in str(error):
        return BRANCHES
    text = " ".join(str(error).split())[:200] or type(error).__name__
    operation = _operation_in(" ".join(str(error).split()))
    return text if operation in text else f"{operation}: {text}"


def _operation_in(text: str) -> str:
    match = re.search(r"aten::[\w.]+", text)
    return match.group(0).rstrip(".") if match else ""
