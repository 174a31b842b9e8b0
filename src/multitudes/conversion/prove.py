"""Prove a draft: try the executors on a few members, and add executors and costs to the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from multitudes.conversion.draft import Draft
from multitudes.conversion.plan import Counts, Plan
from multitudes.conversion.proofs import keep, recall
from multitudes.engine.counting import multiply_adds, work_and_memory
from multitudes.engine.draws import are_distinct, draw_distinct, drawn_names, redraw
from multitudes.engine.inputs import Inputs, count_rows, fresh_inputs
from multitudes.engine.loop import run_loop
from multitudes.engine.modules import detached_copy, named_tensors
from multitudes.engine.program import shape_inputs, shapes_only
from multitudes.engine.proof.executors import BY_ROWS, first_members, pick, prove_executors
from multitudes.engine.state import Engine
from multitudes.errors import ConversionError, RunError, listed
from multitudes.terminal import step


def prove(draft: Draft, engine: Engine) -> tuple[Plan, Engine]:
    """Tests on a few members which executors give correct results, and sets the executors of `engine` accordingly.

    Returns the plan with executors, initialisation rules and costs, and the engine of those few members.
    """
    few = engine if draft.on_meta else _with_executors(draft, engine)
    step("cost")
    counts, memory, bytes_each = _costs(draft, engine)
    engine.input_bytes = bytes_each / max(sum(tensor.numel() for tensor in draft.given.inputs.tensors()), 1)
    alike = "" if draft.fresh else ", the same for all members"
    rules = draft.rules
    planned = replace(
        draft.plan,
        executor=dict(engine.picked),
        proven=dict(engine.proven),
        why=dict(engine.why),
        init={name: rules[name] + alike if name in rules else "copied from the given model" for name in sorted(draft.owned)},
        memory=memory,
        counts=counts,
        proof="" if draft.on_meta else _proof(draft, engine),
        notes=(*draft.plan.notes, *_notes(draft, engine, few)),
    )
    return planned, few


def _with_executors(draft: Draft, engine: Engine) -> Engine:
    """Finds which executors work on a few members, and applies the result to `engine`. Returns the engine of those few."""
    small, by_rows = draft.given.small, trains_by_rows(draft)
    step("members to try")
    few = _few_members(draft, engine)
    try:
        if not recall(draft, few):
            few.example = small.two_rows
            prove_executors(few, small.inputs, small.large, also=BY_ROWS if by_rows else (), apart=small.apart)
            keep(draft, few)
    except RunError as error:
        raise ConversionError(f"{draft.method.as_typed()} cannot convert this {draft.plan.model}: {error}") from error
    engine.adopt(few)
    engine.example = small.two_rows
    pick(engine)
    return few


def trains_by_rows(draft: Draft) -> bool:
    """Whether a training step of the method runs each row by one member."""
    inputs = fresh_inputs(draft.given.small.two_rows)
    rows = count_rows(inputs, draft.batch_axis)
    return "rows" in draft.method.batch(inputs, torch.zeros(rows), torch.Generator(), False, rows).kwargs


def _few_members(draft: Draft, engine: Engine) -> Engine:
    """Returns an engine of a few members. Their draws have the shapes of the small example, and differ."""
    count, draws = draft.trial_members, draft.method.draws
    if not draws:
        return first_members(engine, count, draft.light)
    if engine.members < count:
        few = draft.stack(count, draft.light)
        equal = not are_distinct(few.template, few.owned)
    else:
        equal = not are_distinct(engine.template, engine.owned, count)  # then their draws need no copy
        few = first_members(engine, count, draft.light, drawn_names(engine.template) if equal else ())
    resized = draft.method.fit_shapes(few.template, draft.given.small.inputs, draft.batch_axis)
    if few.members > 1 and (resized or equal):
        draw_distinct(few.template, few.owned, few.members)
    elif resized:
        redraw(few)
    few.refresh()
    return few


def _proof(draft: Draft, engine: Engine) -> str:
    """Says what was run to prove the conversion."""
    small = draft.given.small
    shapes = " and ".join(f"{list(tensor.shape)}" for tensor in small.inputs.tensors())
    given = " and ".join(f"{list(tensor.shape)}" for tensor in draft.given.inputs.tensors())
    where = f"an input of shape {shapes}" + (f" in place of {given}, which runs the same operations" if shapes != given else "")
    precision = "the model's precision, in double where that leaves a doubt" if small.large else "double precision if possible"
    count = engine.blocks_left_out
    blocks = f"; {count} blocks that are like others ran forward only" if count else ""
    return f"{draft.trial_members} member(s) on {where}, in {precision}{blocks}"


def _notes(draft: Draft, engine: Engine, few: Engine) -> list[str]:
    """Lists the plan's warnings about BatchNorm layers that members share, and about members that start equal."""
    notes = []
    if engine.traits.coupled:
        names = listed(engine.traits.coupled)
        notes.append(f"in training, BatchNorm {names} is shared: one set of statistics over the rows of all members")
    if engine.traits.slots_in_turn:
        notes.append("in training, slots run one after another, since vmap cannot run this network: each member takes a pass")
    owned = [tensor for name, tensor in named_tensors(few.template) if name in few.owned]
    if few.members > 1 and draft.fresh and owned and not draft.on_meta and all((t == t[:1]).all() for t in owned):
        notes.append("members start equal, with the same values in every tensor, and stay equal if trained on the same data")
    return notes


def _costs(draft: Draft, engine: Engine) -> tuple[Counts, dict[str, int], int]:
    """Returns exact counts, the estimated memory in bytes by mode, and the bytes that each further member adds.

    They are measured with one member and with two, on the example; without arithmetic if the network can run so.
    """
    members, base = draft.method.members, draft.given.model
    (work, work_each), (saved, saved_each), base_work = _measured(draft, engine)
    base_work = draft.given.small.multiply_adds or base_work
    of_members = engine.owned | engine.summed
    shared = sum(p.numel() for n, p in engine.template.named_parameters() if n not in of_members)
    each = sum(p[0].numel() for n, p in engine.template.named_parameters() if n in of_members)
    size = max((p.element_size() for p in base.parameters()), default=4)
    parameters = shared + each * members
    counts = Counts(
        parameters=parameters,
        base_parameters=sum(p.numel() for p in base.parameters()),
        multiply_adds=work + (members - 1) * work_each,
        base_multiply_adds=base_work,
        parameters_each=each,
        multiply_adds_each=work_each,
    )
    saved_at_once = saved + (min(engine.chunk or members, members) - 1) * saved_each
    saved_of_all = saved + (members - 1) * saved_each
    memory = {"train": (2 * parameters + saved_of_all) * size, "eval": (parameters + saved_at_once) * size}
    return counts, memory, saved_each * size


Line = tuple[int, int]
"""The cost of one member, and of each further one."""


def _measured(draft: Draft, engine: Engine) -> tuple[Line, Line, int]:
    """Returns the multiply-adds and the numbers saved for backward of the ensemble, and the base model's multiply-adds."""
    inputs = draft.given.inputs
    if engine.members == 1 and draft.method.draws:  # a call may have more draws than members
        engine = replace(draft.stack(2, draft.light), traits=engine.traits)
    if draft.given.small.large:
        try:
            thin = replace(engine, template=shapes_only(engine.template))
            with draft.given.small.decisions.on_meta():
                base = None if draft.given.small.multiply_adds else shapes_only(draft.given.model)
                return _measure(base, thin, shape_inputs(inputs))
        except Exception:  # values decide what runs
            pass
    return _measure(detached_copy(draft.given.model, {}), engine, inputs)


def _measure(base: nn.Module | None, engine: Engine, inputs: Inputs) -> tuple[Line, Line, int]:
    """Measures one member and two, and the base model; None counts 0 for it."""

    def single() -> Any:
        call = fresh_inputs(inputs)
        return base.eval()(*call.args, **call.kwargs) if base is not None else None

    def some(count: int) -> Callable[[], Any]:
        few = first_members(engine, count)
        few.template.eval()
        return lambda: run_loop(few, fresh_inputs(inputs))

    one = work_and_memory(some(1))
    if engine.members == 1:
        each = (0, 0)
    else:
        two = work_and_memory(some(2)) if engine.shares else (2 * one[0], 2 * one[1])
        each = two[0] - one[0], two[1] - one[1]
    return (one[0], each[0]), (one[1], each[1]), multiply_adds(single)
