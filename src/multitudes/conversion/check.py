"""check: proves on an example the laws that every ensemble must obey.

members      ``ens(x)[m]`` equals the output of ``ens.member(m)``, in values and gradients, at two batch sizes
independent  the tensors of one member do not affect another: they get no gradient from its output, a NaN in them does not
             spread, and a perturbation changes nothing (gradients alone miss half of the leaks)
executors    every proven executor agrees with the loop in values, gradients and buffers
neutral      with neutral settings the ensemble equals the base model (tried after conversion)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from multitudes.engine import EXECUTORS, MODES, tree
from multitudes.engine.choose import DROPOUTS
from multitudes.engine.inputs import BatchAxis, Inputs, axes, checked_example, count_rows, fresh_inputs, take_rows
from multitudes.engine.modules import copy_with, detached_copy
from multitudes.engine.proof.executors import first_members
from multitudes.engine.proof.independence import leaks, quick_leaks
from multitudes.engine.proof.outcome import (
    Outcome,
    close,
    difference,
    doubled,
    gradients_of,
    in_double,
    is_random,
    restored,
    run_executor,
    run_plain,
    run_reference,
    trainable_copy,
    weights_of,
    with_randomness,
    without_dropout,
)
from multitudes.engine.proof.smaller import smaller
from multitudes.engine.proof.trial import plain_member, trains_as_in_eval
from multitudes.engine.state import Engine
from multitudes.engine.undisturbed import undisturbed
from multitudes.ensemble import Ensemble
from multitudes.errors import CheckError, ConversionError
from multitudes.prediction.predict import checked_ensemble
from multitudes.terminal import rendered, step

if TYPE_CHECKING:
    from multitudes.conversion.draft import Draft


RANDOM = "nothing: forward is random in eval mode too, so outputs cannot be compared"


@dataclass(frozen=True)
class Law:
    """The result of trying one law."""

    name: str
    where: str
    """The trial: number of rows, executor, mode."""
    broken: str | None = None
    """How the law is broken; None if it holds."""


@dataclass(frozen=True)
class Check:
    """The laws that were tried and hold; prints as a table."""

    laws: tuple[Law, ...]

    def __str__(self) -> str:
        from rich.table import Table

        table = Table("law", "tried", "result")
        for law in self.laws:
            table.add_row(law.name, law.where, law.broken or "holds")
        return rendered([table])


@undisturbed
def check(ensemble: Ensemble, x: Any) -> Check:
    """Checks on the batch `x` that the ensemble obeys its laws. Raises CheckError with a list of the broken ones.

    Each member must equal its plain module, members must not affect each other, and executors must agree with the loop. The
    ensemble does not change. Of a large network two members are tried, on a smaller batch that runs the same operations.
    """
    ensemble = checked_ensemble(ensemble, "check")
    example = checked_example(ensemble.template, ensemble.call_form.inputs(x), ensemble.engine.batch_axis)
    small = smaller(ensemble.member(0), example, ensemble.engine.batch_axis)
    if small.large:
        few = without_dropout(first_members(ensemble.engine, 2))
        inputs = small.two_rows if not ensemble.method.draws_by_shape else _two_rows(example, ensemble.engine.batch_axis)
        laws = tuple(_laws_of_few(few, inputs))
        if any(law.broken for law in laws) and (precise := doubled(few, inputs)):  # rounding may be to blame
            laws = tuple(_laws_of_few(*precise))
    else:
        laws = tuple(_laws(*in_double(ensemble.engine, example)))
    broken = [law for law in laws if law.broken]
    if broken:
        lines = [f"  {law.name:<12} {law.where}: {law.broken}" for law in broken]
        raise CheckError(
            f"{ensemble.method} breaks {len(broken)} law(s) of mt.check on this batch:\n"
            + "\n".join(lines)
            + "\nConvert the model again with this batch as the example"
        )
    return Check(laws)


def self_check(draft: Draft, proved: Engine) -> None:
    """Proves the law "neutral" after conversion. Raises ConversionError if it is broken.

    That each member equals its plain module, and that executors agree, was proved when executors were tried, with `proved`.
    """
    laws = list(_neutral(draft, proved.traits.copy_per_member))
    broken = [f"  {law.name:<12} {law.where}: {law.broken}" for law in laws if law.broken]
    if broken:
        kind = type(draft.given.model).__name__
        advice = "keep=[...] with the layers at fault, or " if draft.method.keeps_layers else ""
        raise ConversionError(
            f"{draft.method.as_typed()} cannot convert this {kind}: the converted network breaks laws of mt.check:\n"
            + "\n".join(broken)
            + f"\nUse {advice}another method"
        )


def _laws(engine: Engine, inputs: Inputs) -> Iterator[Law]:
    yield from _members(engine, inputs)
    one = take_rows(inputs, engine.batch_axis, torch.zeros(1, dtype=torch.long))
    if count_rows(inputs, engine.batch_axis) != 1 and _takes(engine, one):
        yield from _members(engine, one)
    for name, executor in EXECUTORS.items():
        yield from (Law("independent", where, broken) for where, broken in leaks(engine, inputs, name, executor))
    yield from _executors(engine, inputs)


def _laws_of_few(few: Engine, inputs: Inputs) -> Iterator[Law]:
    """Tries the laws of a large network: on few members, a small example that runs the same operations, in its precision.

    The loop runs once in each mode, and in eval mode alone if training runs the same operations on the same values.
    """
    loop = run_executor(EXECUTORS["loop"], few, inputs, "eval")
    if loop.drew and with_randomness(loop, few, inputs, "eval").random:
        yield Law("members", RANDOM)
        return
    yield Law("members", f"{count_rows(inputs, few.batch_axis)} row(s)", _differs_from_plain(few, inputs, loop))
    fresh = lambda: replace(few, template=copy_with(few.template, {}))  # noqa: E731
    same = few.has_backward("eval") and trains_as_in_eval(fresh, inputs, loop)
    for mode in ("eval",) if same else tuple(reversed(MODES)):
        try:
            outcome = loop if mode == "eval" else run_executor(EXECUTORS["loop"], few, inputs, mode)
        except Exception:  # a base model may be unable to train
            continue
        if (mode == "train" and few.traits.coupled) or (outcome.drew and with_randomness(outcome, few, inputs, mode).random):
            continue
        tried = quick_leaks(lambda: few, inputs, mode, outcome.values)
        yield from (Law("independent", where, broken) for where, broken in tried)
        yield from _executors_in(few, inputs, mode, outcome)


def _differs_from_plain(few: Engine, inputs: Inputs, loop: Outcome) -> str | None:
    """Compares the loop with plain modules: outputs, gradients of what members own, and the sum of those of what they share."""
    weights, sums = weights_of(loop.values), dict[str, Tensor]()
    for m in range(few.members):
        member, own_weights = plain_member(few, m), [weight[m] for weight in weights]
        plain = run_plain(member, inputs, weights=own_weights, backward=few.has_backward("eval"))
        own = {n: g for n, g in plain.gradients.items() if n in few.owned}
        ours = {n: g[m] for n, g in loop.gradients.items() if n in few.owned}
        outcome = Outcome([value[m] for value in loop.values], ours, {})
        if differs := difference(outcome, Outcome(plain.values, own, {})):
            return f"member {m}: {differs} from ens.member({m})"
        for name, gradient in plain.gradients.items():
            if name not in few.owned:
                sums[name] = sums[name] + gradient if name in sums else gradient
    shared = {n: g for n, g in loop.gradients.items() if n not in few.owned}
    differs = difference(Outcome([], shared, {}), Outcome([], sums, {}))
    return differs and f"what members share: {differs} from the sum of those of ens.member(m)"


def _two_rows(inputs: Inputs, batch_axis: BatchAxis) -> Inputs:
    """Returns the first two rows of a batch, at their whole size: stored masks have the shape of a row."""
    few = count_rows(inputs, batch_axis) > 2 and None not in axes(inputs, batch_axis)  # a tensor without rows may name rows
    return take_rows(inputs, batch_axis, torch.arange(2)) if few else inputs


def _takes(engine: Engine, inputs: Inputs) -> bool:
    """Whether the network of one member runs on this batch."""
    try:
        run_plain(plain_member(engine, 0), inputs, backward=engine.has_backward("eval"))
    except Exception:
        return False
    return True


def _members(engine: Engine, inputs: Inputs) -> Iterator[Law]:
    """Compares each member in the loop with its plain module, in eval mode: values and gradients."""
    if is_random(engine, inputs, "eval"):
        yield Law("members", RANDOM)
        return
    parameters, backward = dict(engine.template.named_parameters()), engine.has_backward("eval")
    members = [plain_member(engine, m) for m in range(engine.members)]
    broken = None
    with restored(engine.template, "eval"), torch.enable_grad():
        outputs = EXECUTORS["loop"](engine, fresh_inputs(inputs))
        for m, member in enumerate(members):
            expected = run_plain(member, inputs, backward=backward)
            output = tree.take(outputs, m)
            found = gradients_of(output, parameters) if backward else {}
            gradients = {n: g[m] if n in engine.owned else g for n, g in found.items()}
            outcome = Outcome([t.detach() for t in tree.tensors(output)], gradients, expected.buffers)
            differs = difference(outcome, expected)
            broken = broken or (differs and f"member {m}: {differs} from ens.member({m})")
    yield Law("members", f"{count_rows(inputs, engine.batch_axis)} row(s)", broken)


def _executors(engine: Engine, inputs: Inputs) -> Iterator[Law]:
    """Compares every proven executor with the loop."""
    for mode in MODES:
        if len(engine.proven[mode]) > 1 and not (mode == "train" and engine.traits.coupled):
            expected = run_reference(engine, inputs, mode)
            if not expected.random:  # a random forward was compared where executors were proven
                yield from _executors_in(engine, inputs, mode, expected)


def _executors_in(engine: Engine, inputs: Inputs, mode: str, expected: Outcome) -> Iterator[Law]:
    """Compares the proven executors of a mode with the outcome of the loop."""
    for name in (name for name in engine.proven[mode] if name != "loop"):
        try:
            differs = difference(run_executor(EXECUTORS[name], engine, inputs, mode), expected)
        except Exception as error:  # it ran on the conversion's example, but forward may divide this batch otherwise
            yield Law("executors", f"{name}, {mode}", f"{type(error).__name__}: {error}")
            continue
        yield Law("executors", f"{name}, {mode}", differs and f"{differs} from the loop")


def _neutral(draft: Draft, copies: bool) -> Iterator[Law]:
    """Compares members that start as copies, under neutral settings, with the given model; `copies` as in `Traits`."""
    neutral, example, large = draft.neutral(), draft.given.small.inputs, draft.given.small.large
    step("neutral settings")
    engine = without_dropout(neutral.stack(neutral.method.members, light=draft.light))
    engine.traits = replace(engine.traits, copy_per_member=copies)
    seen = draft.given.structure.outputs
    if large and seen and draft.given.structure.inputs is example and _gives(engine, example, list(seen)):
        yield Law("neutral", "copies")
        return
    base = trainable_copy(draft.given.model if draft.light else detached_copy(draft.given.model, {}))
    for part in base.modules():
        if isinstance(part, DROPOUTS):
            part.p = 0.0
    precise = None if large else doubled(engine, example)
    try:
        same = _is_neutral(*(precise or (engine, example)), base, precise is not None)
    except Exception:
        if precise is None:
            raise
        same = _is_neutral(engine, example, base, False)  # masks in double precision may be all that let it run there
    if same is False and large and (precise := doubled(engine, example)):  # rounding may be to blame
        same = _is_neutral(*precise, base, True)
    if same is not None:
        yield Law("neutral", "copies", None if same else "the output differs from the base model's")


def _is_neutral(engine: Engine, inputs: Inputs, base: nn.Module, wide: bool) -> bool | None:
    """Whether each member gives the output of the base model; None if outputs are random, so that they cannot be compared.

    `wide` says that the engine was copied into double precision.
    """
    same = _gives(engine, inputs, _outputs(trainable_copy(base, torch.float64) if wide else base, inputs))
    return None if not same and is_random(engine, inputs, "eval") else same


def _gives(engine: Engine, inputs: Inputs, expected: list[Tensor]) -> bool:
    """Whether each member gives these outputs in eval mode."""
    outputs = run_executor(EXECUTORS["loop"], engine, inputs, "eval", backward=False).values  # with gradients, as for the base
    return all(close(a[m], b) for a, b in zip(outputs, expected, strict=True) for m in range(engine.members))


def _outputs(module: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Returns the outputs of a plain module in eval mode, computed with gradients."""
    call = fresh_inputs(inputs)
    with restored(module, "eval"), torch.enable_grad():
        return [t.detach() for t in tree.tensors(module(*call.args, **call.kwargs))]
