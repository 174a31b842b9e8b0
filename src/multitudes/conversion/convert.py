"""plan and ensemble: a model, a method and an example become an ensemble, or a list of everything that stands against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from multitudes.conversion.check import self_check
from multitudes.conversion.draft import Draft, make_draft
from multitudes.conversion.plan import Counts, Plan
from multitudes.engine.counting import multiply_adds, saved_numbers
from multitudes.engine.draws import draw_distinct
from multitudes.engine.inputs import BatchAxis, fresh_inputs
from multitudes.engine.loop import run_loop
from multitudes.engine.modules import Factory, as_same_kind, copy_with, detached_copy, named_tensors
from multitudes.engine.proof.executors import first_members, pick, prove_executors
from multitudes.engine.proof.outcome import clean_autograd
from multitudes.engine.state import Engine
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError, RunError
from multitudes.method import Method
from multitudes.prediction.tasks import checked_task


@clean_autograd()
def plan(
    model: nn.Module | Factory,
    method: Method,
    example: Any,
    *,
    keep: Sequence[str] = (),
    at: Mapping[str, Method] | None = None,
    seed: int | None = None,
    start: str = "fresh",
    batch_axis: BatchAxis = 0,
    chunk: int | None = None,
) -> Plan:
    """A dry run of `ensemble` with the same arguments: every module as converted, shared or refused, and what it costs."""
    begun = make_draft(
        model, method, example, keep=keep, at=at, seed=seed, start=start, batch_axis=batch_axis, chunk=chunk
    )  # fmt: skip
    return begun.plan if begun.plan.refused else completed_plan(begun, begun.stack(begun.trial_members))


@clean_autograd()
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
    check: bool = True,
) -> Ensemble:
    """Turns a model into an ensemble; the model given is left untouched.

    model       any nn.Module, or a factory `lambda ratio: Net(...)`, which also makes the members' fresh weights
    method      how: Deep(members=4), TreeNet(split="layer4"), ...
    example     an input of the model, as it is called: a tensor, or mt.Inputs(...) for several
    keep        globs of modules that members share on purpose
    at          other settings for some layers, {glob: method}
    task        what the outputs mean: classes, binary, multilabel, gaussian, regression
    seed        of the members' fresh weights; None takes one from torch's global generator
    start       "fresh": members that own weights start anew; "copies": all start as the given model
    batch_axis  the axis of the rows in each tensor input; a list, with None for inputs without rows
    chunk       how many members may be run at once
    check       whether to prove the laws on the example afterwards; skip it for very large models

    >>> import torch, multitudes as mt
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> ens = mt.ensemble(net, mt.Deep(members=4), torch.randn(2, 4))
    >>> ens(torch.randn(5, 4)).shape
    torch.Size([4, 5, 3])
    """
    checked_task(task)
    begun = make_draft(
        model, method, example, keep=keep, at=at, seed=seed, start=start, batch_axis=batch_axis, chunk=chunk
    )  # fmt: skip
    if begun.plan.refused:
        raise ConversionError(_refusal_text(begun.plan))
    engine = begun.stack(method.members)
    planned = completed_plan(begun, engine)
    ens = Ensemble(engine, method, task=task, seed=begun.seed, base=skeleton(begun.base), plan=planned)
    if check and not begun.on_meta:
        self_check(ens, begun)
    return ens


def completed_plan(begun: Draft, engine: Engine) -> Plan:
    """The plan with what a trial on a few members finds; the engine is told too."""
    anew = begun.start == "fresh" or begun.method.shares_weights
    rules = begun.fresh(0)[1] if anew and begun.owned and not begun.on_meta else {}
    init = {name: rules.get(name, "copied from the given model") for name in sorted(begun.owned)}
    if begun.on_meta:
        few = engine
    else:
        more = begun.method.draws and engine.members < begun.trial_members
        few = begun.stack(begun.trial_members) if more else first_members(engine, begun.trial_members)
        if begun.method.draws and few.members > 1:
            draw_distinct(few.template, few.owned, few.members)
            few.refresh()
        try:
            prove_executors(few, begun.inputs)
        except RunError as error:
            raise ConversionError(f"{begun.method} cannot take this {begun.plan.model}: {error}") from error
        engine.adopt(few)
        pick(engine)
    counts, memory, each = _costs(begun, engine, first_members(few, begun.trial_members))
    engine.input_bytes = each / max(sum(tensor.numel() for tensor in begun.inputs.tensors()), 1)
    notes = begun.plan.notes
    if engine.traits.coupled:
        names = ", ".join(sorted(engine.traits.coupled))
        notes += (f"in training, BatchNorm {names} is shared: one set of statistics over the rows of all members",)
    own = [tensor for name, tensor in named_tensors(few.template) if name in few.owned]
    if few.members > 1 and anew and own and not begun.on_meta and all((t == t[:1]).all() for t in own):
        notes += ("members start equal, and stay so on the same data: all that they own is the same for each",)
    ways = replace(begun.plan, executor=dict(engine.picked), proven=dict(engine.proven), why=dict(engine.why))
    return replace(ways, init=init, memory=memory, counts=counts, notes=notes)


def _costs(begun: Draft, engine: Engine, few: Engine) -> tuple[Counts, dict[str, int], int]:
    """Counts are exact; memory, and what each further member takes of it, is estimated from one network and a few members."""
    members = begun.method.members
    base = detached_copy(begun.base, {}).eval()
    few.template.eval()

    def single() -> Any:
        own = fresh_inputs(begun.inputs)
        return base(*own.args, **own.kwargs)

    def some(count: int) -> Callable[[], Any]:
        engine = first_members(few, count)
        return lambda: run_loop(engine, fresh_inputs(begun.inputs))

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


def _refusal_text(planned: Plan) -> str:
    lines = [f"{type(planned.method).__name__} cannot take {len(planned.refused)} part(s) of {planned.model}:"]
    lines += [f"  {entry.name or '(the model)':<28} {entry.type:<20} {entry.reason}" for entry in planned.refused]
    names = [entry.name for entry in planned.refused if entry.name]
    if names and planned.method.keeps_layers and not any("tied to" in entry.reason for entry in planned.refused):
        lines.append(f"Or share them among members on purpose:  ensemble(model, {planned.method}, x, keep={names})")
    return "\n".join(lines)


def skeleton(model: nn.Module) -> nn.Module:
    """The architecture on the meta device: enough to count and to rebuild, and no memory."""
    return copy_with(model, {name: as_same_kind(tensor, tensor.detach().to("meta")) for name, tensor in named_tensors(model)})
