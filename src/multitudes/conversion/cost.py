"""cost: parameters, multiply-adds, peak memory and latency of an ensemble, beside the base model."""

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
    """What one network or ensemble costs on one batch."""

    parameters: int
    multiply_adds: int
    memory: int
    """Bytes: the weights, and the tensors that a training step keeps for backward."""
    latency: float
    """Seconds of one call without gradients, the median; NaN where nothing can be timed."""


@dataclass(frozen=True)
class Cost:
    """An ensemble's cost and the base model's, on the same batch."""

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
            mine, other = getattr(self.ensemble, name), getattr(self.base, name)
            ratio = f"{mine / other:.2f} ×" if other else ""
            table.add_row(name.replace("_", "-"), text(mine), text(other), ratio)
        return rendered([table])


def cost(ensemble: Ensemble, x: Any, repeats: int = 10) -> Cost:
    """What a call on `x` costs, and what it would cost the base model; both are timed in turn, in eval mode."""
    inputs = checked_example(ensemble.template, x, ensemble.engine.batch_axis, rows_at_least=1)
    if repeats < 1:
        raise InputError(f"repeats={repeats}: a latency takes at least one call")
    same = {name: as_same_kind(tensor, tensor.detach()) for name, tensor in named_tensors(ensemble.template)}  # no copies
    engine = replace(ensemble.engine, template=copy_with(ensemble.template, same))
    twin = Ensemble(engine, ensemble.method, task=ensemble.task, seed=0, base=ensemble.base, plan=ensemble.plan).eval()
    base = _materialised(ensemble.base, ensemble).eval()

    def ours() -> Any:
        own = fresh_inputs(inputs)
        return twin(*own.args, **own.kwargs)

    def theirs() -> Any:
        own = fresh_inputs(inputs)
        return base(*own.args, **own.kwargs)

    try:
        ours()
    except RuntimeError as error:
        raise InputError(f"the model rejects {inputs}: {error}") from error
    count = count_rows(inputs, ensemble.engine.batch_axis)

    def step() -> Any:
        if ensemble.is_compact:  # which is not trained
            return ours()
        batch = twin.batch(fresh_inputs(inputs), torch.zeros(count))
        return twin(*batch.inputs, **batch.kwargs)

    times = _latencies([ours, theirs], repeats, inputs)
    found = []
    for net, run, learn, seconds in ((ensemble, ours, step, times[0]), (base, theirs, theirs, times[1])):
        weights = sum(p.numel() for p in net.parameters())
        size = max((p.element_size() for p in net.parameters()), default=4)
        found.append(CostRow(weights, multiply_adds(run), (weights + saved_numbers(learn)) * size, seconds))
    return Cost(*found)


def _materialised(skeleton: nn.Module, ensemble: Ensemble) -> nn.Module:
    """The base model with some weights, on the ensemble's devices: its speed does not depend on their values."""
    places = {name: tensor.device for name, tensor in named_tensors(ensemble.template)}
    anywhere = next(iter(places.values()))
    values = {}
    for name, tensor in named_tensors(skeleton):
        weight = isinstance(tensor, nn.Parameter) and tensor.is_floating_point()
        value = torch.full(tensor.shape, 0.02 if weight else 0, dtype=tensor.dtype, device=places.get(name, anywhere))
        values[name] = as_same_kind(tensor, value)
    return copy_with(skeleton, values)


def _latencies(runs: list[Callable[[], Any]], repeats: int, inputs: Inputs) -> list[float]:
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
                if turn:  # the first is a warm-up
                    seconds.append(time.perf_counter() - start)
    return [median(seconds) for seconds in times]
