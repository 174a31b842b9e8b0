"""Independence: checks that one member's tensors do not affect another member's output.

Gradients alone miss half of the leaks (detached, rounded or dead values). So one member's tensors are also set to NaN, or
flipped and shifted a little: the outputs of the other members must stay equal to the last bit.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.loop import run_loop
from multitudes.engine.modules import copy_with, named_tensors
from multitudes.engine.proof.outcome import gradients_of, restored, without_backward
from multitudes.engine.state import MODES, Engine, SharedWrite

Executor = Callable[..., Any]


def leaks(
    engine: Engine, inputs: Inputs, name: str, executor: Executor, modes: Sequence[str] = MODES, large: bool = False
) -> Iterator[tuple[str, str | None]]:
    """Tests whether one member affects another: by gradients, NaN and perturbation, in each mode.

    Of a `large` network the first member alone is set to NaN, and the last alone perturbed, as `quick_leaks` does. Yields the
    name of each test, and the leak that it found or None.
    """
    if name == "loop":
        executor = functools.partial(executor, seed=0)  # the amount of noise that a member draws may depend on its values
    if engine.members < 2 or not engine.owned:
        return
    for mode in modes:
        if name not in engine.proven[mode] or (mode == "train" and engine.traits.coupled):
            continue  # a coupled BatchNorm mixes members on purpose
        try:
            _, before, again = (_values(engine, inputs, mode, executor, 0) for _ in range(3))  # the first may store values
        except Exception as error:
            if name != "loop":  # a base model may be unable to run in a mode, but a proven executor must run
                yield f"{name}, {mode}", f"{type(error).__name__}: {error}"
            continue
        if engine.has_backward(mode):
            yield f"gradients, {name}, {mode}", _leak_by_gradient(engine, inputs, mode, executor)
        if not all(torch.equal(a, b) for a, b in zip(before, again, strict=True)):
            if repeats_afresh(engine, inputs, mode, executor):
                yield f"calls, {name}, {mode}", "the same call gives another output the next time, so forward stores values"
            continue  # noise that torch does not seed: outputs cannot be compared
        other = before if name == "loop" else _values(engine, inputs, mode, executor, 1)
        if not all(torch.equal(a, b) for a, b in zip(before, other, strict=True)):
            continue  # noise drawn for all members together: outputs cannot be compared
        for how in ("NaN", "perturbation"):
            both = (0, engine.members - 1)
            changed = both if not large else both[:1] if how == "NaN" else both[1:]
            found = [_leak_by_change(engine, inputs, mode, executor, how, before, m) for m in changed]
            yield f"{how}, {name}, {mode}", next(filter(None, found), None)


def quick_leaks(
    copy: Callable[[], Engine],
    inputs: Inputs,
    mode: str,
    before: list[Tensor],
    name: str = "loop",
    run: Executor = run_loop,
    gradients: bool = True,
    ways: Sequence[str] = ("NaN", "perturbation"),
) -> Iterator[tuple[str, str | None]]:
    """Tests as `leaks` does, in two runs of an executor: NaN in the first member, and another last member, or one of these.

    copy       makes an engine for one run
    before     the outputs without a change
    gradients  whether they were computed with gradients
    """
    engine = copy()
    if engine.members < 2 or not engine.owned:
        return
    for how in ways:
        m = 0 if how == "NaN" else engine.members - 1
        leak = _leak_by_change(engine, inputs, mode, run, how, before, m, gradients)
        yield f"{how}, {name}, {mode}", leak


def repeats_afresh(engine: Engine, inputs: Inputs, mode: str, executor: Executor, seeds: tuple[int, int] = (0, 0)) -> bool:
    """Whether two first calls, each on a fresh copy of the template, give the same outputs."""
    first, second = (
        _values(replace(engine, template=copy_with(engine.template, {})), inputs, mode, executor, seed) for seed in seeds
    )
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def _values(engine: Engine, inputs: Inputs, mode: str, executor: Executor, seed: int, gradients: bool = False) -> list[Tensor]:
    def run() -> list[Tensor]:
        with restored(engine.template, mode, seed), torch.set_grad_enabled(gradients), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # vmap without gradients takes other kernels
            return [tensor.detach() for tensor in tree.tensors(executor(engine, fresh_inputs(inputs)))]

    return without_backward(run) if gradients else run()


def _leak_by_gradient(engine: Engine, inputs: Inputs, mode: str, executor: Executor) -> str | None:
    parameters = {n: p for n, p in engine.template.named_parameters() if n in engine.owned}
    with restored(engine.template, mode), torch.enable_grad():
        outputs = executor(engine, fresh_inputs(inputs))
        for m in (0, engine.members - 1):
            for name, gradient in gradients_of(tree.take(outputs, m), parameters).items():
                others = [gradient[j].nan_to_num() for j in range(engine.members) if j != m]  # 0 times infinity proves nothing
                if any(bool(other.any()) for other in others):
                    return f"the output of member {m} has a gradient in another member's {name}"
    return None


def _leak_by_change(
    engine: Engine,
    inputs: Inputs,
    mode: str,
    executor: Executor,
    how: str,
    before: list[Tensor],
    m: int,
    gradients: bool = False,
) -> str | None:
    """Changes the tensors of member m, and returns a leak if another member's output differs from `before`."""
    try:
        with changed(engine, m, how):
            after = _values(engine, inputs, mode, executor, 0, gradients)
    except SharedWrite:
        return None  # members that set a shared buffer apart are refused by name, also in use
    except Exception:
        return None if how == "NaN" else FAILS
    for a, b in zip(after, before, strict=True):
        others = [j for j in range(len(b)) if j != m]
        if not torch.equal(a[others], b[others]):
            return f"changing the tensors of member {m} changes the output of another member"
    return None


FAILS = "the model fails when a member's weights are changed a little"


@contextlib.contextmanager
def changed(engine: Engine, m: int, how: str) -> Iterator[None]:
    """Sets the tensors of member m in a with-block: to NaN, or to values of similar size with their peaks elsewhere."""
    owned = {n: t for n, t in named_tensors(engine.template) if n in engine.owned}
    owned = {n: t for n, t in owned.items() if t.is_floating_point() or t.is_complex()}
    buffers = {n: t for n, t in owned.items() if not isinstance(t, nn.Parameter)}
    views = {n: t for n, t in buffers.items() if torch._debug_has_internal_overlap(t)}  # of few numbers: not to be written into
    copies = {n: t.detach().clone(memory_format=torch.contiguous_format) for n, t in views.items()}
    tensors = [t.detach()[m] for n, t in owned.items() if n not in views]
    stored = [t.clone() for t in tensors]
    try:
        for t in [*tensors, *(copy[m] for copy in copies.values())]:
            if how == "NaN":
                t.fill_(torch.nan)
            else:
                t.copy_(t.flip(tuple(range(t.ndim))).mul_(1.01).add_(0.01))  # in place: tensors may be as large as the network
        _put(engine, copies)
        yield
    finally:
        _put(engine, views)
        for t, values in zip(tensors, stored, strict=True):
            t.copy_(values)


def _put(engine: Engine, tensors: Mapping[str, Tensor]) -> None:
    """Puts tensors in their places in the template, by name."""
    for name, tensor in tensors.items():
        for register, key in engine.registers[name]:
            register[key] = tensor
