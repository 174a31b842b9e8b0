"""Prove a draft: try the executors on a few members, and complete the plan with what they cost."""

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
    """Proves executors on a few members and gives them to `engine`. Returns the plan with executors, rules and costs."""
    few = engine if draft.on_meta else _tried(draft, engine)
    counts, memory, each = _costs(draft, engine, first_members(few, draft.trial_members))
    engine.input_bytes = each / max(sum(tensor.numel() for tensor in draft.given.inputs.tensors()), 1)
    rules = draft.member(0)[1] if draft.fresh and draft.owned and not draft.on_meta else {}
    return replace(
        draft.plan,
        executor=dict(engine.picked),
        proven=dict(engine.proven),
        why=dict(engine.why),
        init={name: rules.get(name, "copied from the given model") for name in sorted(draft.owned)},
        memory=memory,
        counts=counts,
        notes=(*draft.plan.notes, *_notes(draft, engine, few)),
    )


def _tried(draft: Draft, engine: Engine) -> Engine:
    """Tries the executors on a few members. Returns the engine of these members."""
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
    """What the plan should warn of, once executors were tried."""
    notes = []
    if engine.traits.coupled:
        names = ", ".join(sorted(engine.traits.coupled))
        notes.append(f"in training, BatchNorm {names} is shared: one set of statistics over the rows of all members")
    own = [tensor for name, tensor in named_tensors(few.template) if name in few.owned]
    if few.members > 1 and draft.fresh and own and not draft.on_meta and all((t == t[:1]).all() for t in own):
        notes.append("members start equal, and stay equal on the same data: every tensor they own is the same")
    return notes


def _costs(draft: Draft, engine: Engine, few: Engine) -> tuple[Counts, dict[str, int], int]:
    """Counts are exact; memory, and what each further member takes of it, is estimated from one network and a few members."""
    members = draft.method.members
    base = detached_copy(draft.given.model, {}).eval()
    few.template.eval()

    def single() -> Any:
        own = fresh_inputs(draft.given.inputs)
        return base(*own.args, **own.kwargs)

    def some(count: int) -> Callable[[], Any]:
        engine = first_members(few, count)
        return lambda: run_loop(engine, fresh_inputs(draft.given.inputs))

    def line(measure: Callable[[Callable[[], Any]], int]) -> tuple[int, int]:
        """What one member costs, and what each further one adds."""
        one, more = measure(some(1)), measure(some(few.members))
        return one, (more - one) // max(few.members - 1, 1)

    held = few.owned | few.summed
    shared = sum(p.numel() for n, p in few.template.named_parameters() if n not in held)
    own = sum(p[0].numel() for n, p in few.template.named_parameters() if n in held)
    size = max((p.element_size() for p in base.parameters()), default=4)
    parameters = shared + own * members
    (work, work_each), (kept, kept_each) = line(multiply_adds), line(saved_numbers)
    in_base = sum(p.numel() for p in base.parameters()), multiply_adds(single)
    counts = Counts(parameters, in_base[0], work + (members - 1) * work_each, in_base[1], own, work_each)
    at_once = kept + (min(engine.chunk or members, members) - 1) * kept_each
    all_kept = kept + (members - 1) * kept_each
    return counts, {"train": (2 * parameters + all_kept) * size, "eval": (parameters + at_once) * size}, kept_each * size
