"""check: the laws that make an ensemble right, proved on an example.

members      ``ens(x)[m]`` is what ``ens.member(m)`` gives, values and gradients, at two batch sizes
independent  what belongs to one member changes nothing in another: no gradient from one to the other's tensors, no NaN
             that spreads, no change when one is perturbed (a gradient alone misses half of the leaks)
executors    the proven executors agree with the loop: values, gradients, buffers
neutral      after conversion: with neutral settings the ensemble is the base model
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from multitudes.engine import EXECUTORS, MODES, tree
from multitudes.engine.choose import DROPOUTS
from multitudes.engine.inputs import Inputs, checked_example, count_rows, fresh_inputs, take_rows
from multitudes.engine.modules import detached_copy, named_tensors
from multitudes.engine.proof.executors import first_members
from multitudes.engine.proof.independence import leaks
from multitudes.engine.proof.outcome import (
    Outcome,
    clean_autograd,
    close,
    difference,
    gradients_of,
    in_double,
    is_random,
    restored,
    run,
    run_plain,
    run_reference,
    trainable_copy,
)
from multitudes.engine.state import Engine
from multitudes.ensemble import Ensemble
from multitudes.errors import CheckError, ConversionError
from multitudes.terminal import rendered

if TYPE_CHECKING:
    from multitudes.conversion.draft import Draft


@dataclass(frozen=True)
class Law:
    """A law that was tried, and where it does not hold."""

    name: str
    where: str
    broken: str | None = None


@dataclass(frozen=True)
class Check:
    """All laws that were tried; printed as a table."""

    laws: tuple[Law, ...]

    def __str__(self) -> str:
        from rich.table import Table

        table = Table("law", "tried", "result")
        for law in self.laws:
            table.add_row(law.name, law.where, law.broken or "holds")
        return rendered([table])


@clean_autograd()
def check(ensemble: Ensemble, x: Any) -> Check:
    """Proves the laws for this ensemble on `x`, on copies; raises CheckError with all that are broken."""
    engine, inputs = in_double(ensemble.engine, checked_example(ensemble.template, x, ensemble.engine.batch_axis))
    laws = tuple(_laws(engine, inputs))
    broken = [law for law in laws if law.broken]
    if broken:
        lines = [f"  {law.name:<12} {law.where}: {law.broken}" for law in broken]
        raise CheckError(f"{ensemble.method} breaks {len(broken)} law(s):\n" + "\n".join(lines))
    return Check(laws)


def self_check(ensemble: Ensemble, draft: Draft) -> None:
    """What conversion proves of its own work, on a few members; a broken law is a refusal."""
    engine, inputs = in_double(first_members(ensemble.engine, draft.trial_members), draft.given.inputs)
    laws = [*_neutral(draft), *_members(engine, inputs)]  # that members are independent was proved before executors were tried
    broken = [f"  {law.name:<12} {law.where}: {law.broken}" for law in laws if law.broken]
    if broken:
        kind = type(draft.given.model).__name__
        raise ConversionError(f"{kind} cannot be run as {ensemble.method}, since a law does not hold:\n" + "\n".join(broken))


def _laws(engine: Engine, inputs: Inputs) -> Iterator[Law]:
    yield from _members(engine, inputs)
    one = take_rows(inputs, engine.batch_axis, torch.zeros(1, dtype=torch.long))
    if count_rows(inputs, engine.batch_axis) != 1 and _takes(engine, one):
        yield from _members(engine, one)
    for name, executor in EXECUTORS.items():
        yield from (Law("independent", *found) for found in leaks(engine, inputs, name, executor))
    yield from _executors(engine, inputs)


def _takes(engine: Engine, inputs: Inputs) -> bool:
    """Whether the plain network takes this batch."""
    own = {n: t[0] for n, t in named_tensors(engine.template) if n in engine.owned}
    try:
        run_plain(detached_copy(engine.template, own), inputs)
    except Exception:
        return False
    return True


def _members(engine: Engine, inputs: Inputs) -> Iterator[Law]:
    """Each member of the loop against the plain module, values and gradients, in eval mode."""
    if is_random(engine, inputs, "eval"):
        yield Law("members", "nothing: forward draws noise in eval mode too, so that no two calls agree")
        return
    parameters = dict(engine.template.named_parameters())
    own = [{n: t[m] for n, t in named_tensors(engine.template) if n in engine.owned} for m in range(engine.members)]
    plain = [detached_copy(engine.template, tensors) for tensors in own]
    broken = None
    with restored(engine.template, "eval"), torch.enable_grad():
        outputs = EXECUTORS["loop"](engine, fresh_inputs(inputs))
        for m, module in enumerate(plain):
            expected = run_plain(module, inputs)
            mine = tree.take(outputs, m)
            gradients = gradients_of(mine, parameters)
            found = {n: g[m] if n in engine.owned else g for n, g in gradients.items()}
            odd = difference(Outcome([t.detach() for t in tree.tensors(mine)], found, expected.buffers), expected)
            broken = broken or (odd and f"member {m}: {odd} from the plain module's")
    yield Law("members", f"{count_rows(inputs, engine.batch_axis)} row(s)", broken)


def _executors(engine: Engine, inputs: Inputs) -> Iterator[Law]:
    for mode in MODES:
        others = [n for n in engine.proven[mode] if n != "loop" and not (mode == "train" and engine.traits.coupled)]
        if not others:
            continue
        expected = run_reference(engine, inputs, mode)
        for name in others if not expected.random else ():  # of a random forward the trial compares what can be compared
            odd = difference(run(EXECUTORS[name], engine, inputs, mode), expected)
            yield Law("executors", f"{name}, {mode}", odd and f"{odd} from the loop's")


def _neutral(draft: Draft) -> Iterator[Law]:
    """Compares copies under neutral settings with the given model."""
    neutral, example = draft.neutral(), draft.given.inputs
    engine, inputs = in_double(neutral.stack(neutral.method.members), example)
    base = trainable_copy(draft.given.model, torch.float64 if inputs is not example else None)
    for part in base.modules():
        if isinstance(part, DROPOUTS):
            part.p = 0.0
    expected = run_plain(base, inputs).values
    if is_random(engine, inputs, "eval"):
        return
    with restored(engine.template, "eval"), torch.enable_grad():  # as the base model: without, torch takes other paths
        outputs = tree.tensors(EXECUTORS["loop"](engine, fresh_inputs(inputs)))
    same = all(close(a[m], b) for a, b in zip(outputs, expected, strict=True) for m in range(engine.members))
    yield Law("neutral", "copies", None if same else "the ensemble does not give the base model's output")
