"""Outcomes: what one forward and backward gives, and how two of them are compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.choose import DROPOUTS
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.loop import run_loop
from multitudes.engine.modules import copy_with, kept_tensors, named_tensors
from multitudes.engine.state import Engine
from multitudes.errors import RunError

DOUBLE_LIMIT = 200_000_000
"""Templates with more numbers than this are compared in their own precision."""


@dataclass(frozen=True)
class Outcome:
    """What one forward and backward left behind."""

    values: list[Tensor]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    random: bool = False
    """Whether another seed gives another output, dropout modules apart."""


def in_double(engine: Engine, inputs: Inputs) -> tuple[Engine, Inputs]:
    """A copy of the engine to try things on: its own tensors, dropout off, double precision where that runs."""
    trial = replace(engine, template=trainable_copy(engine.template), why={}, chunk=None)
    for part in trial.template.modules():
        if isinstance(part, DROPOUTS):
            part.p = 0.0
    tensors = [tensor for _, tensor in named_tensors(trial.template)]
    if sum(t.numel() for t in tensors) > DOUBLE_LIMIT or all(t.dtype != torch.float32 for t in tensors):
        return trial, inputs
    double = replace(trial, template=trainable_copy(trial.template, torch.float64))
    wide = inputs.refill([_widened(t.detach()) for t in inputs.tensors()])
    try:
        with restored(double.template, "eval"), torch.no_grad():
            run_loop(double, fresh_inputs(wide))
    except Exception:  # the model fixes a precision somewhere: it is tried in its own
        return trial, inputs
    return double, wide


def trainable_copy(template: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy with tensors of its own, all of whose parameters take gradients."""
    own = {}
    for name, tensor in named_tensors(template):
        value = tensor.detach().clone() if dtype is None else _widened(tensor.detach().clone())
        takes = value.is_floating_point() or value.is_complex()
        own[name] = nn.Parameter(value, requires_grad=takes) if isinstance(tensor, nn.Parameter) else value
    return copy_with(template, own)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype == torch.float32 else tensor


@contextlib.contextmanager
def clean_autograd() -> Iterator[None]:
    """Gradients on, autocast and inference mode off, whatever the caller is in: for conversion and checks."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextlib.contextmanager
def restored(template: nn.Module, mode: str, seed: int = 0) -> Iterator[None]:
    """A mode and a seed for a while; modes, buffers and torch's randomness are put back afterwards."""
    modes = [(part, part.training) for part in template.modules()]
    buffers = {name: buffer.clone() for name, buffer in template.named_buffers()}
    template.train(mode == "train")
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
    finally:
        for part, training in modes:
            part.training = training
        with torch.no_grad():
            for name, buffer in template.named_buffers():
                if name in buffers and not torch.equal(buffer, buffers[name]):
                    buffer.copy_(buffers[name])


def run(executor: Callable[..., Any], engine: Engine, inputs: Inputs, mode: str) -> Outcome:
    """One forward and backward by an executor; nothing of the engine is changed."""
    with restored(engine.template, mode), torch.enable_grad():
        output = executor(engine, fresh_inputs(inputs))
        _nothing_kept(engine.template)
        gradients = gradients_of(output, dict(engine.template.named_parameters()))
        buffers = {name: buffer.clone() for name, buffer in engine.template.named_buffers()}
    return Outcome([t.detach() for t in tree.tensors(output)], gradients, buffers)


def run_reference(engine: Engine, inputs: Inputs, mode: str) -> Outcome:
    """The loop's outcome, which the others are compared to, and whether it can be compared at all."""
    outcome = run(run_loop, engine, inputs, mode)
    with restored(engine.template, mode, seed=1), torch.no_grad():
        other = tree.tensors(run_loop(engine, fresh_inputs(inputs)))
    return replace(outcome, random=not all(close(a, b) for a, b in zip(other, outcome.values, strict=True)))


def is_random(engine: Engine, inputs: Inputs, mode: str) -> bool:
    """Whether another seed gives another output."""
    found = []
    for seed in (0, 1):
        with restored(engine.template, mode, seed), torch.no_grad():
            found.append(tree.tensors(run_loop(engine, fresh_inputs(inputs))))
    return not all(close(a, b) for a, b in zip(*found, strict=True))


def run_plain(module: nn.Module, inputs: Inputs, mode: str = "eval") -> Outcome:
    """One forward and backward of an ordinary module."""
    with restored(module, mode), torch.enable_grad():
        call = fresh_inputs(inputs)
        output = module(*call.args, **call.kwargs)
        gradients = gradients_of(output, dict(module.named_parameters()))
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    return Outcome([t.detach() for t in tree.tensors(output)], gradients, buffers)


@contextlib.contextmanager
def without_modules(template: nn.Module, names: frozenset[str]) -> Iterator[None]:
    """Some modules hand on their input as it is, for a while."""
    modules = [template.get_submodule(name) for name in sorted(names)]
    for module in modules:
        module.forward = _same
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def gradients_of(output: Any, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of a number that depends on every entry of the output in its own way, where there are any."""
    reached = [t for t in tree.tensors(output) if t.requires_grad]
    wanted = {n: p for n, p in parameters.items() if p.requires_grad}
    if not reached or not wanted:
        return {}
    with torch.enable_grad():
        total = torch.stack([_scalar(t).to(reached[0].device) for t in reached]).sum()
    before = {n: p.grad for n, p in wanted.items()}
    try:
        for parameter in wanted.values():
            parameter.grad = None
        if not _backward(total):
            return {}
        return {n: p.grad for n, p in wanted.items() if p.grad is not None}
    finally:
        for n, parameter in wanted.items():
            parameter.grad = before[n]


def _backward(total: Tensor) -> bool:
    try:
        total.backward(retain_graph=True)  # and not autograd.grad, which reentrant checkpointing refuses
    except RuntimeError as error:
        if "cudnn RNN backward" not in str(error):  # a recurrent network on CUDA has no backward in eval mode, ours or plain
            raise
        return False
    return True


def _scalar(tensor: Tensor) -> Tensor:
    flat = tensor.reshape(-1)
    flat = (flat.real + flat.imag if flat.is_complex() else flat).to(torch.float64)
    return (flat * torch.linspace(0.5, 1.5, flat.numel(), dtype=torch.float64, device=flat.device)).sum()


def _nothing_kept(template: nn.Module) -> None:
    """A tensor that forward keeps on a module would carry vmap's wrapping out of it."""
    for name, value in kept_tensors(template):
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise RunError(f"forward keeps a tensor as {name}")


def difference(outcome: Outcome, expected: Outcome) -> str | None:
    """The first thing in which an outcome differs from the one expected."""
    if len(outcome.values) != len(expected.values):
        return "the number of outputs differs"
    odd = sorted(n for n in outcome.gradients.keys() ^ expected.gradients.keys() if _moves(n, outcome, expected))
    if odd:
        return f"gradients reach other parameters: {odd[:3]}"
    steepest = max((_size(g) for g in expected.gradients.values()), default=0.0)
    pairs = [("output", a, b, 0.0) for a, b in zip(outcome.values, expected.values, strict=True)]
    both = outcome.gradients.keys() & expected.gradients.keys()
    pairs += [(f"the gradient of {n}", outcome.gradients[n], expected.gradients[n], steepest) for n in sorted(both)]
    pairs += [(f"buffer {n}", outcome.buffers[n], b, 0.0) for n, b in expected.buffers.items()]
    for what, a, b, scale in pairs:
        if a.shape != b.shape or a.dtype != b.dtype or not close(a, b, scale):
            return f"{what} differs"
    return None


def _moves(name: str, *outcomes: Outcome) -> bool:
    """Whether a parameter has a gradient that is more than rounding."""
    steepest = max((_size(g) for o in outcomes for g in o.gradients.values()), default=0.0)
    return any(name in o.gradients and _size(o.gradients[name]) > 1e-7 * steepest for o in outcomes)


def close(a: Tensor, b: Tensor, scale: float = 0.0) -> bool:
    """Equal up to rounding, for the precision and the scale at hand; NaN where the other has NaN."""
    if not a.is_floating_point() and not a.is_complex():
        return torch.equal(a, b)
    tolerance = {torch.float64: 1e-7, torch.float32: 1e-3, torch.complex128: 1e-7}.get(a.dtype, 5e-2)
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * max(scale, _size(b), 1e-6), equal_nan=True)


def _size(tensor: Tensor) -> float:
    return float(tensor.detach().abs().nan_to_num(posinf=0.0).max()) if tensor.numel() else 0.0
