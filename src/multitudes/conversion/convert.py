"""plan and ensemble: draft a conversion, stack the members, prove the executors, check the laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from multitudes.conversion.check import self_check
from multitudes.conversion.draft import make_draft
from multitudes.conversion.plan import Plan
from multitudes.conversion.prove import prove
from multitudes.engine.inputs import BatchAxis
from multitudes.engine.modules import Factory, on_meta
from multitudes.engine.proof.outcome import clean_autograd
from multitudes.ensemble import Ensemble
from multitudes.errors import ConversionError
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
    draft = make_draft(model, method, example, keep=keep, at=at, seed=seed, start=start, batch_axis=batch_axis, chunk=chunk)
    return draft.plan if draft.plan.refused else prove(draft, draft.stack(draft.trial_members))


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
    draft = make_draft(model, method, example, keep=keep, at=at, seed=seed, start=start, batch_axis=batch_axis, chunk=chunk)
    if draft.plan.refused:
        raise ConversionError(_refusal_text(draft.plan))
    engine = draft.stack(method.members)
    proved = prove(draft, engine)
    ens = Ensemble(engine, method, task=task, seed=draft.given.seed, base=on_meta(draft.given.model), plan=proved)
    if check and not draft.on_meta:
        self_check(ens, draft)
    return ens


def _refusal_text(planned: Plan) -> str:
    lines = [f"{type(planned.method).__name__} cannot take {len(planned.refused)} part(s) of {planned.model}:"]
    lines += [f"  {entry.name or '(the model)':<28} {entry.type:<20} {entry.reason}" for entry in planned.refused]
    names = [entry.name for entry in planned.refused if entry.name]
    if names and planned.method.keeps_layers and not any("tied to" in entry.reason for entry in planned.refused):
        lines.append(f"Or share them among members on purpose:  ensemble(model, {planned.method}, x, keep={names})")
    return "\n".join(lines)
