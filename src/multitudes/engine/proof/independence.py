"""Independence: what belongs to one member changes nothing in another.

A gradient alone misses half of the leaks (what is detached, rounded or dead), so one member's tensors are also made NaN, and
turned round and shifted a little: the others must stay as they are, to the last bit.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.modules import detached_copy, named_tensors
from multitudes.engine.proof.outcome import gradients_of, restored
from multitudes.engine.state import MODES, Engine

Executor = Callable[..., Any]


def leaks(engine: Engine, inputs: Inputs, name: str, executor: Executor) -> Iterator[tuple[str, str | None]]:
    """Every way tried to get from one member to another: what was tried, and what came through."""
    if name == "loop":
        executor = functools.partial(executor, seed=0)  # how much a member draws may depend on its values
    if engine.members < 2 or not engine.owned:
        return
    for mode in MODES:
        if name not in engine.proven[mode] or (mode == "train" and engine.traits.coupled):
            continue  # BatchNorm shared over members couples them on purpose
        try:
            before, again = (_values(engine, inputs, mode, executor, 0) for _ in range(2))
        except Exception as error:
            if name != "loop":  # it was proven in this mode; only the base model itself may be unable to run in one
                yield f"{name}, {mode}", f"{type(error).__name__}: {error}"
            continue
        yield f"gradients, {name}, {mode}", _by_gradient(engine, inputs, mode, executor)
        if not all(torch.equal(a, b) for a, b in zip(before, again, strict=True)):
            continue  # noise from a source of its own: no more can be said
        other = before if name == "loop" else _values(engine, inputs, mode, executor, 1)
        if not all(torch.equal(a, b) for a, b in zip(before, other, strict=True)):
            continue  # noise for all members in one: how much is drawn for one may depend on another
        for how in ("NaN", "perturbation"):
            found = [_spreads(engine, inputs, mode, executor, how, before, m) for m in (0, engine.members - 1)]
            yield f"{how}, {name}, {mode}", next(filter(None, found), None)


def _values(engine: Engine, inputs: Inputs, mode: str, executor: Executor, seed: int) -> list[Tensor]:
    with restored(engine.template, mode, seed), torch.no_grad():
        return tree.tensors(executor(engine, fresh_inputs(inputs)))


def _by_gradient(engine: Engine, inputs: Inputs, mode: str, executor: Executor) -> str | None:
    parameters = {n: p for n, p in engine.template.named_parameters() if n in engine.owned}
    with restored(engine.template, mode), torch.enable_grad():
        outputs = executor(engine, fresh_inputs(inputs))
        for m in (0, engine.members - 1):
            for name, gradient in gradients_of(tree.take(outputs, m), parameters).items():
                if any(bool(gradient[j].any()) for j in range(engine.members) if j != m):
                    return f"the output of member {m} has a gradient in another member's {name}"
    return None


def _spreads(
    engine: Engine,
    inputs: Inputs,
    mode: str,
    executor: Executor,
    how: str,
    before: list[Tensor],
    m: int,
) -> str | None:
    own = {}
    for n, t in named_tensors(engine.template):
        if n in engine.owned and (t.is_floating_point() or t.is_complex()):
            own[n] = t.detach().clone()
            other = own[n][m].flip(tuple(range(t.ndim - 1))) * 1.01 + 0.01  # of the same size, with its peaks elsewhere
            own[n][m] = other if how == "perturbation" else float("nan")
    touched = replace(engine, template=detached_copy(engine.template, own))
    try:
        after = _values(touched, inputs, mode, executor, 0)
    except Exception:
        return None if how == "NaN" else "the model fails when a member's weights change a little"
    others = [j for j in range(engine.members) if j != m]
    for a, b in zip(after, before, strict=True):
        if not torch.equal(a[others], b[others]):
            return f"what is done to member {m} changes another member's output"
    return None
