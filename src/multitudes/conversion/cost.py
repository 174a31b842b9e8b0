"""cost: compares parameters, multiply-adds, memory and latency of an ensemble with those of the base model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import nn

from multitudes.engine.counting import multiply_adds, saved_numbers
from multitudes.engine.inputs import Inputs, checked_example, count_rows, fresh_inputs
from multitudes.engine.modules import as_same_kind, copy_with, named_tensors
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.terminal import megabytes, rendered


@dataclass(frozen=True)
class CostRow:
    """The cost of a network or an ensemble on one batch."""

    parameters: int
    multiply_adds: int
    memory: int
    """Bytes of the weights, and of the tensors that a training step saves for backward."""
    latency: float
    """Median seconds of a call without gradients; NaN on the meta device."""


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
        }
        for name, text in show.items():
            value, single = getattr(self.ensemble, name), getattr(self.base, name)
            ratio = f"{value / single:.2f} ×" if single else ""
            table.add_row(name.replace("_", "-"), text(value), text(single), ratio)
        return rendered([table])


def cost(ensemble: Ensemble, x: Any, repeats: int = 10) -> Cost:
    """Measures the cost of the ensemble and of its base model on the batch `x`.

    Latency is the median of `repeats` calls in eval mode. Calls of the ensemble and of the base model alternate.
    """
    inputs = checked_example(ensemble.template, x, ensemble.engine.batch_axis, rows_at_least=1)
    if repeats < 1:
        raise InputError(f"repeats={repeats}: give the number of timed calls, 1 or more")
    same = {name: as_same_kind(tensor, tensor.detach()) for name, tensor in named_tensors(ensemble.template)}  # no copies
    engine = replace(ensemble.engine, template=copy_with(ensemble.template, same))
    twin = Ensemble(engine, ensemble.method, task=ensemble.task, seed=0, base=ensemble.base, plan=ensemble.plan).eval()
    base = _materialised(ensemble.base, ensemble).eval()
    count = count_rows(inputs, ensemble.engine.batch_axis)

    def call_ensemble() -> Any:
        call = fresh_inputs(inputs)
        return twin(*call.args, **call.kwargs)

    def call_base() -> Any:
        call = fresh_inputs(inputs)
        return base(*call.args, **call.kwargs)

    def training_step() -> Any:
        if ensemble.is_compact:  # a compact ensemble cannot be trained
            return call_ensemble()
        batch = twin.batch(fresh_inputs(inputs), torch.zeros(count))
        return twin(*batch.inputs, **batch.kwargs)

    try:
        call_ensemble()
    except RuntimeError as error:
        raise InputError(
            f"the model fails on the batch {inputs}: {error}. Give a batch like the example of the conversion"
        ) from error
    seconds = _latencies([call_ensemble, call_base], repeats, inputs)
    return Cost(
        ensemble=_cost_row(ensemble, call_ensemble, training_step, seconds[0]),
        base=_cost_row(base, call_base, call_base, seconds[1]),
    )


def _cost_row(net: nn.Module, call: Callable[[], Any], training_step: Callable[[], Any], latency: float) -> CostRow:
    weights = sum(p.numel() for p in net.parameters())
    size = max((p.element_size() for p in net.parameters()), default=4)
    return CostRow(weights, multiply_adds(call), (weights + saved_numbers(training_step)) * size, latency)


def _materialised(skeleton: nn.Module, ensemble: Ensemble) -> nn.Module:
    """Returns the base model with arbitrary weights, on the ensemble's devices: its speed does not depend on their values."""
    devices = {name: tensor.device for name, tensor in named_tensors(ensemble.template)}
    default = next(iter(devices.values()))
    values = {}
    for name, tensor in named_tensors(skeleton):
        weight = isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
        value = torch.full(tensor.shape, 0.02 if weight else 0, dtype=tensor.dtype, device=devices.get(name, default))
        values[name] = as_same_kind(tensor, value)
    return copy_with(skeleton, values)


def _latencies(runs: list[Callable[[], Any]], repeats: int, inputs: Inputs) -> list[float]:
    """Times the calls in turn, `repeats` times each. Returns the median seconds of each, or NaN on the meta device."""
    if any(tensor.is_meta for tensor in inputs.tensors()):
        return [float("nan")] * len(runs)
    devices = {tensor.device for tensor in inputs.tensors() if tensor.device.type == "cuda"}
    times: list[list[float]] = [[] for _ in runs]
    with torch.inference_mode(), torch.random.fork_rng():
        for turn in range(repeats + 1):
            for run, seconds in zip(runs, times, strict=True):
                start = time.perf_counter()
                run()
                for device in devices:
                    torch.cuda.synchronize(device)
                if turn:  # the first turn is a warm-up
                    seconds.append(time.perf_counter() - start)
    return [median(seconds) for seconds in times]
