"""Outcomes: the results of one forward and backward, and their comparison."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.choose import DROPOUTS
from multitudes.engine.counting import NO_HOOKS
from multitudes.engine.draws import unwritten_names
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.kernels.ways import fp32_precisions
from multitudes.engine.listening import Listening
from multitudes.engine.loop import run_loop
from multitudes.engine.modules import copy_with, detached_copy, kept_tensors, named_tensors, note_names
from multitudes.engine.seeds import generator_states, seeded
from multitudes.engine.state import Engine
from multitudes.errors import RunError

T = TypeVar("T")

MEAN = "running_mean"
FLIP = 0.02
"""With flips, few entries may differ by this part of the largest one."""
DOUBLE_LIMIT = 200_000_000
"""Templates with more numbers than this are compared in the model's precision, not in double."""


BUFFER = "buffer "
"""How a difference begins if outputs and gradients agree, and what forward stored does not."""


@dataclass(frozen=True)
class Outcome:
    """Results of one forward and backward: outputs, gradients and buffers."""

    values: list[Tensor]
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]
    random: bool = False
    """True if outputs or gradients depend on the seed, even with dropout modules switched off."""
    drew: bool = False
    """True if the run drew random numbers."""


def in_double(engine: Engine, inputs: Inputs) -> tuple[Engine, Inputs]:
    """Copies an engine and inputs for trial runs: dropout off, in double precision if the model runs in it."""
    trial = without_dropout(replace(engine, template=detached_copy(engine.template, {})))
    return doubled(trial, inputs) or (trial, inputs)


def without_dropout(engine: Engine) -> Engine:
    """Copies an engine for trial runs with dropout modules switched off. Parameters keep their memory, buffers are copied."""
    trial = replace(engine, template=trainable_copy(engine.template), why={}, chunk=None)
    for part in trial.template.modules():
        if isinstance(part, DROPOUTS):
            part.p = 0.0
    return trial


def doubled(engine: Engine, inputs: Inputs) -> tuple[Engine, Inputs] | None:
    """Copies an engine and inputs into double precision; None if the model cannot run in it, or is very large.

    A mask of the least double that is added to singles makes NaN, which would equal any other NaN.
    """
    notes = note_names(engine.template)
    tensors = [tensor for name, tensor in named_tensors(engine.template) if name not in notes]
    if sum(t.numel() for t in tensors) > DOUBLE_LIMIT or all(t.dtype != torch.float32 for t in tensors):
        return None
    double = replace(engine, template=trainable_copy(engine.template, torch.float64))
    wide = inputs.refill([_widened(t.detach()) for t in inputs.tensors()])
    narrowing, probe = _Narrowing(), replace(double, template=copy_with(double.template, {}))  # it keeps what forward stores
    try:
        with restored(probe.template, "eval"), torch.no_grad(), narrowing:
            outputs = tree.tensors(run_loop(probe, fresh_inputs(wide)))
    except Exception:  # the model needs its own precision somewhere
        return None
    return None if narrowing.seen or any(bool(output.isnan().any()) for output in outputs) else (double, wide)


class _Narrowing(Listening):
    """Notes whether forward casts double precision to single: then its results are no more precise than single ones."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._overloadpacket is torch.ops.aten._to_copy:
            self.seen |= args[0].dtype == torch.float64 and result.dtype in (torch.float32, torch.float16, torch.bfloat16)
        return result


def trainable_copy(template: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Copies a module; all floating-point parameters of the copy require gradients.

    Parameters and draws share their memory with the given ones unless `dtype` is another; other buffers are copied.
    """
    tensors, notes, unwritten = {}, note_names(template), unwritten_names(template)
    for name, tensor in named_tensors(template):
        parameter = isinstance(tensor, nn.Parameter)
        value = tensor.detach().clone() if tensor.is_inference() else tensor.detach()
        if name in notes:
            tensors[name] = value
            continue
        wide = value if dtype is None else _widened(value)
        differentiable = wide.is_floating_point() or wide.is_complex()
        own = wide.clone() if wide is value and name not in unwritten and not parameter else wide
        tensors[name] = nn.Parameter(own, requires_grad=differentiable) if parameter else own
    return copy_with(template, tensors)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.dtype == torch.float32 else tensor


@contextlib.contextmanager
def clean_autograd() -> Iterator[None]:
    """Turns gradients on, and autocast, inference mode and TF32 off, in a with-block: for conversion and checks."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(_full_single_precision())
        yield


def kept_buffers(template: nn.Module) -> dict[str, Tensor]:
    """Returns clones of the buffers by name, without the draws of members and notes, which no forward writes into."""
    others = unwritten_names(template)
    return {name: buffer.clone() for name, buffer in template.named_buffers() if name not in others}


@contextlib.contextmanager
def _full_single_precision() -> Iterator[None]:
    """Turns TF32 off in a with-block: its rounding of products on GPUs is as large as many errors."""
    try:
        matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the user has set precisions by torch's newer switches
        with _newer_switches_off():
            yield
        return
    try:
        if matmul != "highest":
            torch.set_float32_matmul_precision("highest")
        if convolutions:
            torch.backends.cudnn.allow_tf32 = False
        with _newer_switches_off() if "tf32" in fp32_precisions() else contextlib.nullcontext():
            yield
    finally:
        if matmul != "highest":
            torch.set_float32_matmul_precision(matmul)
        if convolutions:
            torch.backends.cudnn.allow_tf32 = True


@contextlib.contextmanager
def _newer_switches_off() -> Iterator[None]:
    """Does the same by the switches of each operation; those that follow a switch of many operations do so again afterwards."""
    of: Any = torch.backends
    cudnn, mkldnn = of.cudnn, of.mkldnn
    switches = [of.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = "none"
            if switch.fp32_precision != precision:
                switch.fp32_precision = precision


@contextlib.contextmanager
def restored(template: nn.Module, mode: str, seed: int = 0) -> Iterator[None]:
    """Sets a mode and a seed in a with-block, and restores modes, buffers and the global generators afterwards."""
    modes = [(part, part.training) for part in template.modules()]
    buffers = kept_buffers(template)
    template.train(mode == "train")
    try:
        with seeded(seed):
            yield
    finally:
        for part, training in modes:
            part.training = training
        with torch.no_grad():
            for name, buffer in template.named_buffers():
                if name in buffers and not torch.equal(buffer, buffers[name]):
                    buffer.copy_(buffers[name])


def run_executor(
    executor: Callable[..., Any], engine: Engine, inputs: Inputs, mode: str, backward: bool = True, seed: int = 0
) -> Outcome:
    """Runs one forward and backward by an executor, and leaves the engine unchanged."""
    backward = backward and engine.has_backward(mode)

    def run() -> Outcome:
        with restored(engine.template, mode, seed), torch.enable_grad():
            before = generator_states()
            output = executor(engine, fresh_inputs(inputs))
            drew = generator_states() != before
            _check_kept_tensors(engine.template)
            gradients = gradients_of(output, dict(engine.template.named_parameters())) if backward else {}
            buffers = kept_buffers(engine.template)
        return Outcome([t.detach() for t in tree.tensors(output)], gradients, buffers, drew=drew)

    return run() if backward else without_backward(run)


def without_backward(run: Callable[[], T]) -> T:
    """Calls a function whose forward runs with gradients on, as in training, and no backward: nothing is kept for one.

    Formed weights and activations are then freed as forward goes on. A network that computes gradients in forward needs what
    it keeps, and runs again; torch.func refuses the hooks that show it.
    """
    needed: list[bool] = []

    def unpack(_: None) -> Tensor:
        needed.append(True)
        raise RuntimeError("forward computes gradients")

    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, unpack):
            result = run()
    except Exception as error:
        if not needed and NO_HOOKS not in str(error):
            raise
        return run()
    return run() if needed else result


def run_without_gradients(executor: Callable[..., Any], engine: Engine, inputs: Inputs) -> Outcome:
    """Runs one forward by an executor as predictions do: in eval mode, where torch and layers may run other code."""
    with restored(engine.template, "eval"), torch.no_grad():
        values = tree.tensors(executor(engine, fresh_inputs(inputs)))
        return Outcome(values, {}, kept_buffers(engine.template))


def run_reference(engine: Engine, inputs: Inputs, mode: str) -> Outcome:
    """Runs the loop, the reference of the other executors, and finds out whether its output is random."""
    outcome = run_executor(run_loop, engine, inputs, mode)
    return with_randomness(outcome, engine, inputs, mode) if outcome.drew else outcome


def with_randomness(outcome: Outcome, engine: Engine, inputs: Inputs, mode: str) -> Outcome:
    """Returns the loop's outcome with `random` set: whether another seed gives another output, or other gradients.

    Noise on a branch whose last factor starts at zero shows in gradients alone.
    """
    other = run_executor(run_loop, engine, inputs, mode, backward=False, seed=1)
    same = all(_same_draw(a, b) for a, b in zip(other.values, outcome.values, strict=True))
    if same and outcome.drew and outcome.gradients:
        other = run_executor(run_loop, engine, inputs, mode, seed=1)
        both = other.gradients.keys() & outcome.gradients.keys()
        same = all(_same_draw(other.gradients[n], outcome.gradients[n]) for n in both)
    return replace(outcome, random=not same)


def is_random(engine: Engine, inputs: Inputs, mode: str) -> bool:
    """Checks whether the output depends on the seed."""
    outputs = []
    for seed in (0, 1):
        with restored(engine.template, mode, seed), torch.no_grad():
            outputs.append(tree.tensors(run_loop(engine, fresh_inputs(inputs))))
    return not all(_same_draw(a, b) for a, b in zip(*outputs, strict=True))


def _same_draw(a: Tensor, b: Tensor) -> bool:
    """Whether outputs of two seeds are the same. Small random effects must not pass for none, and then for errors."""
    return close(a, b, tolerance={torch.float64: 1e-8, torch.float32: 1e-4}.get(a.dtype))


def run_plain(
    module: nn.Module,
    inputs: Inputs,
    mode: str = "eval",
    weights: Sequence[Tensor] | None = None,
    backward: bool = True,
) -> Outcome:
    """Runs one forward and backward of a plain module, and leaves it unchanged. `weights` are those of `gradients_of`."""

    def run() -> Outcome:
        with restored(module, mode), torch.enable_grad():
            call = fresh_inputs(inputs)
            output = module(*call.args, **call.kwargs)
            gradients = gradients_of(output, dict(module.named_parameters()), weights) if backward else {}
            buffers = kept_buffers(module)
        return Outcome([t.detach() for t in tree.tensors(output)], gradients, buffers)

    return run() if backward else without_backward(run)


@contextlib.contextmanager
def without_modules(template: nn.Module, names: frozenset[str]) -> Iterator[None]:
    """Makes some modules return their input, in a with-block."""
    modules = [template.get_submodule(name) for name in sorted(names)]
    for module in modules:
        module.forward = _identity
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _identity(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def gradients_of(output: Any, parameters: Mapping[str, Tensor], weights: Sequence[Tensor] | None = None) -> dict[str, Tensor]:
    """Returns the gradients of a weighted sum of all output entries, by name.

    weights  the weights of each output tensor; by default those of `weights_of`
    """
    outputs = tree.tensors(output)
    weighted = [(t, w) for t, w in zip(outputs, weights or weights_of(outputs), strict=True) if t.requires_grad]
    trainable = {n: p for n, p in parameters.items() if p.requires_grad}
    if not weighted or not trainable:
        return {}
    with torch.enable_grad():
        total = torch.stack([_scalar(t, w).to(weighted[0][0].device) for t, w in weighted]).sum()
    before = {n: p.grad for n, p in trainable.items()}
    try:
        for parameter in trainable.values():
            parameter.grad = None
        if not _backward(total):
            return {}
        return {n: p.grad for n, p in trainable.items() if p.grad is not None}
    finally:
        for n, parameter in trainable.items():
            parameter.grad = before[n]


def _backward(total: Tensor) -> bool:
    try:
        total.backward(retain_graph=True)  # reentrant checkpointing refuses autograd.grad
    except RuntimeError as error:
        if "cudnn RNN backward" not in str(error):  # on CUDA no recurrent network has a backward in eval mode
            raise
        return False
    return True


def weights_of(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Returns weights for the entries of each tensor: all weights of a tensor differ."""
    return [
        torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64, device=t.device).view(t.shape) if not t.is_meta else t
        for t in outputs
    ]


def _scalar(tensor: Tensor, weights: Tensor) -> Tensor:
    values = (tensor.real + tensor.imag if tensor.is_complex() else tensor).to(torch.float64)
    return (values * weights).sum()


def _check_kept_tensors(template: nn.Module) -> None:
    """Raises an error if forward stored a vmap tensor on a module: the tensor is unusable after the call."""
    for name, value in kept_tensors(template):
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise RunError(
                f"forward stores a tensor in the attribute {name}, which does not work under vmap: return the tensor instead"
            )


def difference(outcome: Outcome, expected: Outcome, tolerance: float | None = None) -> str | None:
    """Returns the first difference of an outcome from the expected one; None if they agree, up to `tolerance` (see `close`)."""
    if len(outcome.values) != len(expected.values):
        return "the number of outputs differs"
    uneven = sorted(n for n in outcome.gradients.keys() ^ expected.gradients.keys() if _has_gradient(n, outcome, expected))
    if uneven:
        return f"whether {uneven[:3]} have a gradient differs"
    both = outcome.gradients.keys() & expected.gradients.keys()
    pairs = [("output", a, b, False) for a, b in zip(outcome.values, expected.values, strict=True)]
    pairs += [(f"the gradient of {n}", outcome.gradients[n], expected.gradients[n], True) for n in sorted(both)]
    buffers = {n: b for n, b in expected.buffers.items() if not _same_mean(n, outcome.buffers[n], expected)}
    pairs += [(f"{BUFFER}{n}", outcome.buffers[n], b, False) for n, b in buffers.items()]
    flips = tolerance is not None
    unequal = [pair for pair in pairs if pair[1].dtype != pair[2].dtype or not torch.equal(pair[1], pair[2])]
    steepest = max((_size(g) for g in expected.gradients.values()), default=0.0) if unequal else 0.0
    for what, a, b, is_gradient in unequal:
        if a.shape != b.shape or a.dtype != b.dtype or not close(a, b, steepest if is_gradient else 0.0, tolerance, flips):
            return f"{what} differs"
    return None


def _same_mean(name: str, mean: Tensor, expected: Outcome) -> bool:
    """Whether a running mean differs by rounding errors of its summands alone: the mean itself may be zero."""
    other, variance = expected.buffers[name], expected.buffers.get(f"{name.removesuffix(MEAN)}running_var")
    if not name.endswith(MEAN) or variance is None or mean.shape != other.shape or mean.dtype != other.dtype:
        return False
    return _size(mean - other, nan=math.inf) <= 10 * torch.finfo(mean.dtype).eps * math.sqrt(_size(variance))


def _has_gradient(name: str, *outcomes: Outcome) -> bool:
    """Checks whether a parameter has a gradient larger than rounding errors."""
    steepest = max((_size(g) for o in outcomes for g in o.gradients.values()), default=0.0)
    return any(name in o.gradients and _size(o.gradients[name]) > 1e-7 * steepest for o in outcomes)


def close(a: Tensor, b: Tensor, scale: float = 0.0, tolerance: float | None = None, flips: bool = False) -> bool:
    """Checks that tensors are equal up to rounding errors of their dtype, or up to `tolerance`. NaN equals NaN.

    Errors are relative to the largest entry of b, or to `scale` if that is larger. With `flips`, few entries may differ more,
    if the tensors as a whole do not.
    """
    if not a.is_floating_point() and not a.is_complex():
        return torch.equal(a, b)
    tolerance = tolerance or {torch.float64: 1e-7, torch.float32: 1e-3, torch.complex128: 1e-7}.get(a.dtype, 5e-2)
    most = tolerance * max(scale, _size(b), 1e-6)
    if a.is_floating_point() and a.dtype == b.dtype and a.shape == b.shape and _size(a - b, nan=math.inf) <= most:
        return True  # allclose passes over the tensors several times
    if torch.allclose(a, b, rtol=tolerance, atol=most, equal_nan=True):
        return True
    return flips and a.is_floating_point() and _few_flips(a, b, tolerance, max(scale, _size(b)))


def _few_flips(a: Tensor, b: Tensor, tolerance: float, scale: float) -> bool:
    """Checks that tensors are equal but for few entries, and these nearly: a rounding error may turn a ReLU on or off."""
    gap = a - b
    return _size(gap, nan=math.inf) <= FLIP * scale and float(gap.norm()) <= tolerance * float(b.norm())


def _size(tensor: Tensor, nan: float | None = None) -> float:
    """Returns the largest absolute entry: that of the finite ones, or `nan`, if some are not finite."""
    if not tensor.numel():
        return 0.0
    if tensor.is_complex():
        tensor = tensor.abs()
    low, high = (float(end) for end in torch.aminmax(tensor.detach()))
    if math.isfinite(low) and math.isfinite(high):
        return max(-low, high)
    return float(tensor.detach().abs().nan_to_num(posinf=0.0).max()) if nan is None else nan


def but_first(outcome: Outcome, owned: Collection[str]) -> Outcome:
    """Returns outputs and buffers of all members but the first, and those that members share."""
    buffers = {name: tensor[1:] if name in owned else tensor for name, tensor in outcome.buffers.items()}
    return Outcome([value[1:] for value in outcome.values], {}, buffers)
