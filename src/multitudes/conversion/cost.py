"""cost: compares parameters, multiply-adds, memory and speed of an ensemble with those of the base model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.counting import multiply_adds, saved_numbers
from multitudes.engine.inputs import Inputs, checked_example, count_rows, fresh_inputs
from multitudes.engine.modules import as_same_kind, copy_with, named_tensors
from multitudes.engine.timing import medians
from multitudes.engine.undisturbed import undisturbed
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.prediction.predict import checked_ensemble
from multitudes.terminal import megabytes, rendered

Precision = Literal["32", "bf16", "fp16"]
"""Full precision, or autocast in bfloat16 or float16."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class CostRow:
    """The cost of a network or an ensemble on one batch."""

    parameters: int
    multiply_adds: int
    memory: int
    """Bytes of the weights, and of the tensors that a training step saves for backward."""
    latency: float
    """Median seconds of a call without gradients; NaN on the meta device."""
    rows: int = 0
    """Number of examples in the batch."""
    step: float | None = None
    """Median seconds of a training step: forward, loss, backward and SGD; None if it was not measured."""

    @property
    def throughput(self) -> float:
        """Examples per second of inference."""
        return self.rows / self.latency if self.rows else math.nan

    def epoch(self, examples: int) -> float:
        """Returns the seconds that training takes for one epoch of `examples` in batches of this size, without loading data."""
        if self.step is None or not self.rows:
            raise InputError("the training step was not measured: call cost(ens, x, training=True)")
        return self.step * math.ceil(examples / self.rows)


@dataclass(frozen=True)
class Cost:
    """The cost of an ensemble and of its base model, on the same batch."""

    ensemble: CostRow
    base: CostRow

    def __str__(self) -> str:
        from rich.table import Table

        table = Table("", "ensemble", "single", "ratio")
        show: dict[str, Callable[[Any], str]] = {
            "parameters": lambda v: f"{v:,}",
            "multiply_adds": lambda v: f"{v:,}",
            "memory": megabytes,
            "latency": lambda v: f"{v * 1e3:.2f} ms",
            "throughput": lambda v: f"{v:,.0f} / s",
            "step": lambda v: f"{v * 1e3:.2f} ms",
        }
        for name, text in show.items():
            value, single = getattr(self.ensemble, name), getattr(self.base, name)
            if value is None or single is None:
                continue
            ratio = f"{value / single:.2f} ×" if single else ""
            table.add_row(name.replace("_", "-"), text(value), text(single), ratio)
        return rendered([table])


@undisturbed
def cost(ensemble: Ensemble, x: Any, repeats: int = 10, *, precision: Precision = "32", training: bool = False) -> Cost:
    """Measures the cost of the ensemble and of its base model on the batch `x`.

    repeats    the number of timed calls; times are their medians. Calls of the ensemble and of the base model alternate
    precision  the precision of timed calls. Multiply-adds and memory are counted in full precision
    training   also times a training step: the method's loss with the mean square as criterion, backward, and SGD with momentum
    """
    ensemble = checked_ensemble(ensemble, "cost")
    inputs = checked_example(ensemble.template, ensemble.call_form.inputs(x), ensemble.engine.batch_axis, rows_at_least=1)
    if repeats < 1:
        raise InputError(f"repeats={repeats}: give the number of timed calls, 1 or more")
    _check_precision(precision, inputs)
    twin, base = _without_copies(ensemble).eval(), _materialised(ensemble.base, ensemble).eval()
    rows = count_rows(inputs, ensemble.engine.batch_axis)

    def call_ensemble() -> Any:
        call = fresh_inputs(inputs)
        return twin(*call.args, **call.kwargs)

    def call_base() -> Any:
        call = fresh_inputs(inputs)
        return base(*call.args, **call.kwargs)

    def training_forward() -> Any:
        if ensemble.is_compact:  # a compact ensemble cannot be trained
            return call_ensemble()
        batch = twin.batch(fresh_inputs(inputs), torch.zeros(rows))
        return twin(*batch.inputs, **batch.kwargs)

    try:
        call_ensemble()
    except RuntimeError as error:
        raise InputError(
            f"the model fails on the batch {inputs}: {error}. Give a batch like the example of the conversion"
        ) from error
    timed = [_in_precision(call, precision, inputs) for call in (call_ensemble, call_base)]
    with torch.inference_mode():
        seconds = medians(timed, repeats, inputs)
    steps = _training_seconds(ensemble, inputs, rows, repeats, precision) if training else [None, None]
    return Cost(
        ensemble=_cost_row(ensemble, call_ensemble, training_forward, seconds[0], rows, steps[0]),
        base=_cost_row(base, call_base, call_base, seconds[1], rows, steps[1]),
    )


def _check_precision(precision: str, inputs: Inputs) -> None:
    if precision not in get_args(Precision):
        raise InputError(f"precision={precision!r} must be one of {', '.join(get_args(Precision))}")
    if precision == "fp16" and _device(inputs).type == "cpu":
        raise InputError("precision='fp16' needs a GPU: on a CPU take 'bf16' or '32'")


def _device(inputs: Inputs) -> torch.device:
    return next(iter(inputs.tensors())).device


def _in_precision(run: Callable[[], Any], precision: str, inputs: Inputs) -> Callable[[], Any]:
    """Returns `run` under autocast, or `run` itself in full precision."""
    if precision == "32":
        return run

    def run_cast() -> Any:
        with torch.autocast(_device(inputs).type, dtype=DTYPES[precision]):
            return run()

    return run_cast


def _without_copies(ensemble: Ensemble) -> Ensemble:
    """Returns an ensemble with the same tensors, whose mode can change without changing that of the given one."""
    same = {name: as_same_kind(tensor, tensor.detach()) for name, tensor in named_tensors(ensemble.template)}
    engine = replace(ensemble.engine, template=copy_with(ensemble.template, same))
    return Ensemble(engine, ensemble.method, task=ensemble.task, seed=0, base=ensemble.base, plan=ensemble.plan)


def _training_seconds(ensemble: Ensemble, inputs: Inputs, rows: int, repeats: int, precision: str) -> list[float] | list[None]:
    """Times training steps of copies of the ensemble and of the base model. Returns None for both on the meta device."""
    if ensemble.is_compact:
        raise InputError("training=True: a compact ensemble cannot be trained. Measure the ensemble that it was made from")
    if _device(inputs).type == "meta":
        return [None, None]
    twin, base = copy.deepcopy(ensemble).train(), _materialised(ensemble.base, ensemble).train()
    targets = torch.zeros(rows, device=_device(inputs))

    def base_loss() -> Tensor:
        call = fresh_inputs(inputs)
        return _mean_square(base(*call.args, **call.kwargs), targets)

    def ensemble_loss() -> Tensor:
        return twin.loss(fresh_inputs(inputs), targets, _mean_square)

    losses = [_in_precision(loss, precision, inputs) for loss in (ensemble_loss, base_loss)]
    steps = [
        _training_step(net, loss, precision, inputs, after)
        for net, loss, after in zip((twin, base), losses, (lambda: twin.method.after_step(twin), lambda: None), strict=True)
    ]
    try:
        with torch.inference_mode(False), torch.enable_grad():
            return medians(steps, repeats, inputs)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"training=True: a training step fails on the batch {inputs}: {error}. Give a batch as in training"
        ) from error


def _training_step(
    net: nn.Module, loss: Callable[[], Tensor], precision: str, inputs: Inputs, after: Callable[[], None]
) -> Callable[[], None]:
    """Returns a training step by SGD with momentum. With a learning rate of 0 it takes as long and cannot diverge."""
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    if not weights:
        raise InputError("training=True: no weight of the network requires a gradient. Leave training= out")
    optimizer = torch.optim.SGD(weights, lr=0.0, momentum=0.9)
    scaler = torch.amp.GradScaler(_device(inputs).type, enabled=precision == "fp16")

    def step() -> None:
        scaler.scale(loss()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        after()

    return step


def _mean_square(outputs: Any, _: Any) -> Tensor:
    """A criterion for outputs of any shape: the sum of the mean squares of all tensors in them."""
    return torch.stack([t.float().square().mean() for t in tree.tensors(outputs) if t.is_floating_point()]).sum()


def _cost_row(
    net: nn.Module,
    call: Callable[[], Any],
    training_forward: Callable[[], Any],
    latency: float,
    rows: int,
    step: float | None,
) -> CostRow:
    weights = sum(p.numel() for p in net.parameters())
    size = max((p.element_size() for p in net.parameters()), default=4)
    memory = (weights + saved_numbers(training_forward)) * size
    return CostRow(weights, multiply_adds(call), memory, latency, rows, step)


def _materialised(skeleton: nn.Module, ensemble: Ensemble) -> nn.Module:
    """Returns the base model with arbitrary weights: its speed does not depend on their values.

    They have the devices and precisions that the ensemble's have now.
    """
    own = dict(named_tensors(ensemble.template))
    default = next(iter(own.values()))
    values = {}
    for name, tensor in named_tensors(skeleton):
        weight, like = isinstance(tensor, nn.Parameter) and tensor.is_floating_point(), own.get(name, default)
        dtype = like.dtype if tensor.is_floating_point() and like.is_floating_point() else tensor.dtype
        value = torch.full(tensor.shape, 0.02 if weight else 0, dtype=dtype, device=like.device)
        values[name] = as_same_kind(tensor, value)
    return copy_with(skeleton, values)
