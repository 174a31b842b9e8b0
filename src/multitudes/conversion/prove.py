"""Prove a draft: try the executors on a few members, and add executors and costs to the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from multitudes.conversion.draft import Draft
from multitudes.conversion.plan import Counts, Plan
from multitudes.engine.counting import multiply_adds, saved_numbers
from multitudes.engine.draws import draw_distinct
from multitudes.engine.inputs import fresh_inputs
from multitudes.engine.loop import run_loop
from multitudes.engine.modules import detached_copy, named_tensors
from multitudes.engine.proof.executors import first_members, pick, prove_executors
from multitudes.engine.state import Engine
from multitudes.errors import ConversionError, RunError


def prove(draft: Draft, engine: Engine) -> Plan:
    """Tests on a few members which executors give correct results, and sets the executors of `engine` accordingly.

    Returns the plan with executors, initialisation rules and costs.
    """
    few = engine if draft.on_meta else _with_executors(draft, engine)
    counts, memory, bytes_each = _costs(draft, engine, first_members(few, draft.trial_members))
    engine.input_bytes = bytes_each / max(sum(tensor.numel() for tensor in draft.given.inputs.tensors()), 1)
    first = draft.fresh or not draft.full_width
    rules = draft.member(0)[1] if first and draft.owned and not draft.on_meta else {}
    alike = "" if draft.fresh else ", the same for all members"
    return replace(
        draft.plan,
        executor=dict(engine.picked),
        proven=dict(engine.proven),
        why=dict(engine.why),
        init={name: rules[name] + alike if name in rules else "copied from the given model" for name in sorted(draft.owned)},
        memory=memory,
        counts=counts,
        notes=(*draft.plan.notes, *_notes(draft, engine, few)),
    )


def _with_executors(draft: Draft, engine: Engine) -> Engine:
    """Finds which executors work on a few members, and applies the result to `engine`. Returns the engine of those few."""
    more = draft.method.draws and engine.members < draft.trial_members
    few = draft.stack(draft.trial_members) if more else first_members(engine, draft.trial_members)
    if draft.method.draws and few.members > 1:
        draw_distinct(few.template, few.owned, few.members)
        few.refresh()
    try:
        prove_executors(few, draft.given.inputs)
    except RunError as error:
        raise ConversionError(f"{draft.method} cannot convert this {draft.plan.model}: {error}") from error
    engine.adopt(few)
    pick(engine)
    return few


def _notes(draft: Draft, engine: Engine, few: Engine) -> list[str]:
    """Lists the plan's warnings about BatchNorm layers that members share, and about members that start equal."""
    notes = []
    if engine.traits.coupled:
        names = ", ".join(sorted(engine.traits.coupled))
        notes.append(f"in training, BatchNorm {names} is shared: one set of statistics over the rows of all members")
    if engine.traits.slots_in_turn:
        notes.append("in training, slots run one after another, since vmap cannot run this network: each member takes a pass")
    owned = [tensor for name, tensor in named_tensors(few.template) if name in few.owned]
    if few.members > 1 and draft.fresh and owned and not draft.on_meta and all((t == t[:1]).all() for t in owned):
        notes.append("members start equal, with the same values in every tensor, and stay equal if trained on the same data")
    return notes


def _costs(draft: Draft, engine: Engine, few: Engine) -> tuple[Counts, dict[str, int], int]:
    """Returns exact counts, the estimated memory in bytes by mode, and the bytes that each further member adds.

    Memory is estimated from one member and a few members.
    """
    members = draft.method.members
    base = detached_copy(draft.given.model, {}).eval()
    few.template.eval()

    def single() -> Any:
        call = fresh_inputs(draft.given.inputs)
        return base(*call.args, **call.kwargs)

    def some(count: int) -> Callable[[], Any]:
        engine = first_members(few, count)
        return lambda: run_loop(engine, fresh_inputs(draft.given.inputs))

    def line(measure: Callable[[Callable[[], Any]], int]) -> tuple[int, int]:
        """Returns the cost of one member, and of each further one."""
        one, more = measure(some(1)), measure(some(few.members))
        return one, (more - one) // max(few.members - 1, 1)

    of_members = few.owned | few.summed
    shared = sum(p.numel() for n, p in few.template.named_parameters() if n not in of_members)
    each = sum(p[0].numel() for n, p in few.template.named_parameters() if n in of_members)
    size = max((p.element_size() for p in base.parameters()), default=4)
    parameters = shared + each * members
    (work, work_each), (saved, saved_each) = line(multiply_adds), line(saved_numbers)
    counts = Counts(
        parameters=parameters,
        base_parameters=sum(p.numel() for p in base.parameters()),
        multiply_adds=work + (members - 1) * work_each,
        base_multiply_adds=multiply_adds(single),
        parameters_each=each,
        multiply_adds_each=work_each,
    )
    saved_at_once = saved + (min(engine.chunk or members, members) - 1) * saved_each
    saved_of_all = saved + (members - 1) * saved_each
    memory = {"train": (2 * parameters + saved_of_all) * size, "eval": (parameters + saved_at_once) * size}
    return counts, memory, saved_each * size
