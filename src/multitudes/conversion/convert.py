"""plan and ensemble: draft a conversion, stack the members, prove the executors, check the laws."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from multitudes.conversion.anatomy.formed_weights import UNKNOWN
from multitudes.conversion.anatomy.structure import run_example
from multitudes.conversion.check import self_check
from multitudes.conversion.draft import UNUSED, Draft, make_draft
from multitudes.conversion.last_operation import warn_of_last_operation
from multitudes.conversion.plan import Plan
from multitudes.conversion.prove import prove, trains_by_rows
from multitudes.engine.draws import drawing_layers
from multitudes.engine.inputs import BatchAxis, Inputs, count_rows, fresh_inputs
from multitudes.engine.modules import Factory, on_meta
from multitudes.engine.proof.executors import PER_MEMBER
from multitudes.engine.proof.outcome import gradients_of, restored
from multitudes.engine.undisturbed import undisturbed
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError, InputError, listed
from multitudes.method import Method
from multitudes.prediction.tasks import checked_task, unlike_task
from multitudes.settings import check_value
from multitudes.terminal import step, steps


@undisturbed
def plan(
    model: nn.Module | Factory,
    method: Method,
    example: Any,
    *,
    keep: Sequence[str] = (),
    at: Mapping[str, Method] | None = None,
    task: str = "classes",
    seed: int | None = None,
    start: str = "fresh",
    batch_axis: BatchAxis = 0,
    chunk: int | None = None,
    output: str | int | None = None,
    class_axis: int | None = None,
    check: bool = True,
) -> Plan:
    """Shows what `ensemble` would do with the same arguments: the modules it converts, shares or refuses; executors; cost.

    A plan proves no laws, so `check` changes nothing; it is taken so that the arguments of both are the same.
    """
    checked_task(task)
    check_value("class_axis", class_axis, Literal[1, -1, None])
    with steps(f"planning {type(method).__name__}") as timed:
        options: Any = {"keep": keep, "at": at, "start": start, "batch_axis": batch_axis, "chunk": chunk, "output": output}
        draft = make_draft(model, method, example, seed=seed, **options)
        if not draft.plan.refused:
            _check_outputs(draft, task)
        planned = draft.plan if draft.plan.refused else prove(draft, draft.stack(draft.trial_members))[0]
    return replace(planned, seconds=timed.seconds)


@undisturbed
def ensemble(
    model: nn.Module | Factory,
    method: Method,
    example: Any,
    *,
    keep: Sequence[str] = (),
    at: Mapping[str, Method] | None = None,
    task: str = "classes",
    seed: int | None = None,
    start: str = "fresh",
    batch_axis: BatchAxis = 0,
    chunk: int | None = None,
    output: str | int | None = None,
    class_axis: int | None = None,
    check: bool = True,
) -> Ensemble:
    """Turns a model into an ensemble; the given model is left untouched.

    model       any nn.Module, or a factory `lambda ratio: Net(...)` that builds the network at `ratio` times its width; with
                start="fresh" it is called once per member
    method      the method with its settings: Deep(members=4), TreeNet(branch_at="layer4"), ...
    example     a batch that the model takes: a tensor, or for several arguments mt.Inputs(...), or a tuple, list or dict of
                them if forward takes its entries; the plan says so. mt.Inputs(x) passes a tuple or dict as one argument
    keep        globs of modules to leave unconverted: members share them
    at          other settings for some layers, {glob: method}
    task        the meaning of the outputs: classes, binary, multilabel, gaussian, regression
    seed        seed of the members' fresh weights; None draws one from torch's global generator
    start       "fresh": converted layers are initialised anew for each member; "copies": members start equal, as copies of the
                model, or of one thin network where the method changes the width (Packed)
    batch_axis  the batch axis of the tensor inputs: one int for all, or a list with one entry per tensor, None for tensors
                without a batch axis
    chunk       the largest number of members to run at once; None runs all
    output      the one output that the ensemble returns, if the model returns several, such as hidden states beside logits:
                its name ("logits"), or its place in a tuple (0). Methods then look at this output only: the widths of others
                may change. None returns all
    class_axis  the axis of the classes in the model's output: 1, or -1 for tokens ``[B, T, K]``; `fit`, `predict` and others
                use it
    check       whether to prove the laws of `mt.check` on the example; False saves time for very large models

    >>> import torch, multitudes as mt
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> ens = mt.ensemble(net, mt.Deep(members=4), torch.randn(2, 4))
    >>> ens(torch.randn(5, 4)).shape
    torch.Size([4, 5, 3])
    """
    checked_task(task)
    check_value("class_axis", class_axis, Literal[1, -1, None])
    with steps(f"converting by {type(method).__name__}") as timed:
        options: Any = {"keep": keep, "at": at, "start": start, "batch_axis": batch_axis, "chunk": chunk, "output": output}
        draft = make_draft(model, method, example, seed=seed, **options)
        if draft.plan.refused:
            names = [entry.name for entry in draft.plan.refused if entry.name]
            more = {**options, "keep": [*draft.plan.keep, *names]}
            kept = names and method.keeps_layers and _converts(lambda: make_draft(model, method, example, seed=0, **more))
            raise ConversionError(_refusal_text(draft.plan, names if kept else []))
        _check_outputs(draft, task)
        for note in draft.plan.notes:
            if note.startswith(UNUSED):
                warnings.warn(note, stacklevel=3)
        step("the members' tensors")
        engine = draft.stack(method.members)
        proved, _ = prove(draft, engine)
        if check and not draft.on_meta:
            self_check(draft, engine)
        base = on_meta(draft.given.model)
        planned = replace(proved, seconds=timed.seconds)  # steps that follow are added to these
        ens = Ensemble(engine, method, task=task, seed=draft.given.seed, base=base, plan=planned)
        ens.class_axis = class_axis
        if not draft.on_meta:
            _check_step(draft, ens)
            _check_noise(draft, ens)
    return ens


def _check_outputs(draft: Draft, task: str) -> None:
    """Refuses a network whose outputs cannot be those of the task, and warns of one whose last operation does not fit it.

    What the small example shows is looked at again on the whole one before a refusal.
    """
    given = draft.given
    if not given.structure.output_shapes:
        raise InputError("the model returns no tensor on the example: let forward return its outputs, such as logits [B, K]")
    if not draft.on_meta:
        warn_of_last_operation(given.structure, task)
    if draft.batch_axis == 0 and unlike_task(task, given.structure.output_shapes):
        why = unlike_task(task, run_example(given.model, given.inputs, given.seed).output_shapes)
        if why:
            raise InputError(why)


def _check_step(draft: Draft, ens: Ensemble) -> None:
    """Refuses a network that does not run if each row goes to one member or draw, where the method trains so."""
    if not trains_by_rows(draft):  # known without draws, which may have the size of the network
        return
    method, example = draft.method, fresh_inputs(draft.given.small.two_rows)
    generator = ens.generator.get_state()
    batch = ens.batch(example, torch.zeros(count_rows(example, draft.batch_axis)))
    ens.generator.set_state(generator)
    kwargs = dict(batch.kwargs)
    rows, draws = kwargs.pop("rows"), kwargs.pop("draws", None)
    step("a training step by rows")
    call = Inputs(*batch.inputs, **kwargs)
    try:
        again = ens.engine.traits.copy_per_member  # backward runs forward again, and may fail
        with restored(ens.template, "train"), torch.set_grad_enabled(again):
            try:
                outputs = ens.run_drawn(call, False, rows, draws)
            except Exception:
                if not ens.engine.untried:
                    raise
                ens.prove_later(["fold", PER_MEMBER])
                outputs = ens.run_drawn(call, False, rows, draws)
            if again:
                gradients_of(outputs, dict(ens.template.named_parameters()))
    except Exception as error:
        other = "feed='all'" if hasattr(method, "feed") else "draw='step'"
        raise ConversionError(
            f"{method.as_typed()} cannot convert this {draft.plan.model}: in training each row goes to one member, and then it "
            f"fails: {' '.join(str(error).split())[:400]}. Run every member on all rows: {type(method).__name__}({other})"
        ) from error


def _check_noise(draft: Draft, ens: Ensemble) -> None:
    """Refuses dropout in layers that backward runs again with other random numbers: its gradients would be of other masks."""
    method, engine = draft.method, ens.engine
    if not method.draws_by_shape or not engine.traits.copy_per_member:  # backward runs no layer again
        return
    on_gpu = engine.device_type == "cuda"
    states: dict[str, set[bytes]] = {}
    faults: set[str] = set()
    ended: list[bool] = []

    def look(name: str) -> None:
        state = (torch.cuda.get_rng_state() if on_gpu else torch.get_rng_state()).numpy().tobytes()
        if not ended:
            states.setdefault(name, set()).add(state)
        elif state not in states.get(name, ()):
            faults.add(name)

    step("noise of layers that backward runs again")
    batch = ens.batch(fresh_inputs(draft.given.small.two_rows), torch.zeros(2))
    kwargs = dict(batch.kwargs)
    draws = kwargs.pop("draws")
    layers = dict(drawing_layers(ens.template))
    hooks = [part.register_forward_pre_hook(lambda _, __, n=name: look(n)) for name, part in layers.items()]  # type: ignore[attr-defined]
    try:
        with restored(ens.template, "train"), torch.enable_grad():
            outputs = ens.run_drawn(Inputs(*batch.inputs, **kwargs), False, None, draws)
            ended.append(True)
            gradients_of(outputs, dict(ens.template.named_parameters()))
    finally:
        for hook in hooks:
            hook.remove()
    if faults:
        others = [name for name in layers if name not in faults]
        elsewhere = f"drop elsewhere: mt.MCDropout(position={others})" if others else "use mt.Deep(members=4)"
        raise ConversionError(
            f"{method.as_typed()} cannot convert this {draft.plan.model}: backward runs {listed(sorted(faults))} again, with "
            "other random numbers than forward. Run them by torch.utils.checkpoint.checkpoint, which keeps the numbers, or "
            f"{elsewhere}"
        )


def _converts(drafted: Callable[[], Draft]) -> bool:
    """Whether a draft can be made, and refuses nothing."""
    try:
        return not drafted().plan.refused
    except Exception:  # of the network, which may not even run
        return False


def _refusal_text(planned: Plan, kept: Sequence[str]) -> str:
    """Lists what is refused, and what to type instead: `kept` are modules that members may share."""
    lines = [f"{type(planned.method).__name__} cannot convert {len(planned.refused)} part(s) of {planned.model}:"]
    lines += [f"  {entry.name or '(the model)':<28} {entry.type:<20} {entry.reason}" for entry in planned.refused]
    if kept:
        typed = f"mt.ensemble(model, {planned.method.as_typed()}, x, keep={[*planned.keep, *kept]})"
        lines.append(f"To let members share them instead:  {typed}")
    elif any(UNKNOWN in entry.reason for entry in planned.refused):
        lines.append("Use a method for any network:  mt.ensemble(model, mt.Deep(members=4), x)")
    return "\n".join(lines)
