"""timing: the seconds of calls, each the median of several turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from multitudes.engine.inputs import Inputs
from multitudes.engine.seeds import kept_randomness


def medians(runs: list[Callable[[], Any]], repeats: int, inputs: Inputs) -> list[float]:
    """Times the calls in turn, `repeats` times each. Returns the median seconds of each, or NaN on the meta device."""
    if any(tensor.is_meta for tensor in inputs.tensors()):
        return [float("nan")] * len(runs)
    devices = {tensor.device for tensor in inputs.tensors() if tensor.device.type == "cuda"}
    times: list[list[float]] = [[] for _ in runs]
    with kept_randomness():
        for turn in range(repeats + 1):
            for run, seconds in zip(runs, times, strict=True):
                start = time.perf_counter()
                run()
                for device in devices:
                    torch.cuda.synchronize(device)
                if turn:  # the first turn is a warm-up
                    seconds.append(time.perf_counter() - start)
    return [median(seconds) for seconds in times]
