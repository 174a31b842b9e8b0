"""tune: times the proven executors, and picks the fastest."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import torch

from multitudes.engine import EXECUTORS, MODES, Engine, takes_rows, tree
from multitudes.engine.inputs import Inputs, count_rows, fresh_inputs
from multitudes.engine.kernels.measure import measured_ways
from multitudes.engine.kernels.ways import Convolution, met, remember
from multitudes.engine.modules import detached_copy
from multitudes.engine.proof.executors import ALL, first_members, prove_executors, rows_are_apart
from multitudes.engine.proof.outcome import clean_autograd
from multitudes.engine.seeds import kept_randomness


def tune(engine: Engine, call: Inputs, seconds: float, dtype: torch.dtype | None = None) -> None:
    """Proves the executors again on a call, times them, and picks the fastest in each mode.

    Fold is timed in eval mode, if it runs each row by its member in one pass.

    `dtype` is the precision of autocast under which they are timed; None times them without it.
    """
    few = first_members(engine, 2 if count_rows(call, engine.batch_axis) != 2 else 3)
    with clean_autograd():
        prove_executors(few, call, names=ALL, apart=rows_are_apart(engine))
    engine.adopt(few)
    device = engine.device_type
    with torch.autocast(device, dtype, enabled=dtype is not None) if device != "meta" else contextlib.nullcontext():
        if device not in ("cpu", "meta"):
            remember(measured_ways(_convolutions(engine, call)))
        for mode in MODES:
            fold = mode == "eval" and engine.chunk is None and takes_rows(engine)
            names = [name for name in engine.proven[mode] if name != "fold" or fold]
            times = {name: _time(engine, name, call, mode, seconds) for name in names}
            engine.picked[mode] = min(times, key=lambda name: times[name])
    engine.tuned = {**engine.tuned, device: dict(engine.picked)}


def _convolutions(engine: Engine, call: Inputs) -> list[Convolution]:
    """Returns the convolutions of members that vmap runs in the proven modes."""
    with met() as found:
        for mode in MODES:
            if "vmap" in engine.proven[mode]:
                _time(engine, "vmap", call, mode, 0)
    return list(found.values())


def _time(engine: Engine, executor: str, call: Inputs, mode: str, seconds: float) -> float:
    twin = replace(engine, template=detached_copy(engine.template, {}))
    twin.template.train(mode == "train")
    best, until = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < until:
        start = time.perf_counter()
        with torch.set_grad_enabled(mode == "train"), kept_randomness():
            output = EXECUTORS[executor](twin, fresh_inputs(call))
            if mode == "train":
                differentiable = [t for t in tree.tensors(output) if t.requires_grad]
                if differentiable:
                    torch.autograd.backward([t.sum() for t in differentiable])
        for device in {t.device for t in twin.template.parameters() if t.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best
