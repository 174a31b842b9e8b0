"""Seconds of the first compiled call of each method, beside the single network's.

python -m benchmarks --compile-seconds --networks resnet18 --batches 16 --precisions fp32 --threads 1
python -m benchmarks --compile-seconds --device cuda --networks resnet18 --batches 128

One contender after the other in one process, with nothing kept from before: no graph, no kernel, no file. The single network
is compiled first and last, and ratios are to the mean of both. A network that is not measured is compiled before, so that
imports and worker processes are not counted. On one CPU thread the seconds are those of the processor, compilers included.
Rows: results/compile.json.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.speed import Cell, call_of, contender, example, keep, machine_name, prepare, wait

METHODS = ("single", "packed", "deep", "mimo", "batchensemble", "masksembles")


def run(arguments: Any) -> None:
    """Measures the first compiled calls that the arguments name, and writes their rows as they come."""
    if arguments.device == "cpu":
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # compilers are then children of this process, whose seconds count
    prepare(arguments.threads)
    device = arguments.device
    names = [name for name in arguments.methods if name in METHODS and name != "single"]
    batch = (arguments.batches or [{"cpu": 16, "cuda": 128}[device]])[0]
    _warm_up(device)
    for network in arguments.networks[:1]:
        for mode in arguments.modes:
            found = []
            for name in ("single", *names, "single"):
                cell = Cell(network, batch, mode, device, arguments.precisions[0], "yes")
                seconds = first_call(cell, name)
                print(f"{network} {mode} {batch}: {name} compiled in {seconds:.1f} s", flush=True)
                found.append((name, seconds))
                rows = _rows(cell, found)
                keep(Path(arguments.out or "results/compile.json"), rows, machine_name(device), clock=_clock(device))
            print("  × single: " + "  ".join(f"{row['contender']} {row['of_single']:.2f}" for row in rows), flush=True)


def first_call(cell: Cell, name: str) -> float:
    """Returns the seconds of the first compiled call of a contender, after one call that was not compiled."""
    from torch._inductor.utils import fresh_inductor_cache

    x, y = example(cell)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = contender(name, cell, x)
        assert one is not None
        one.module.train(cell.mode == "train") if cell.mode == "train" else one.module.eval()
        call = call_of(one, cell.mode, x, y, cell.device, cell.precision)
        torch._dynamo.reset()
        with torch.compiler.set_stance("force_eager"):
            call()
        gc.collect()
        with fresh_inductor_cache():
            start = _now(cell.device)
            call()
            wait(cell.device)
            seconds = _now(cell.device) - start
    del one, call
    gc.collect()
    return seconds


def _warm_up(device: str) -> None:
    """Compiles a small network, forward and backward."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).to(device)
    torch.compile(net)(torch.randn(2, 3, 8, 8, device=device)).sum().backward()


def _alone(device: str) -> bool:
    return device == "cpu" and torch.get_num_threads() == 1


def _clock(device: str) -> str:
    return "processor" if _alone(device) else "wall"


def _now(device: str) -> float:
    """Returns seconds: of this process and of those that it has waited for, if it computes on one thread."""
    return sum(os.times()[:4]) if _alone(device) else time.perf_counter()


def _rows(cell: Cell, found: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Returns one row for each contender: the mean of its seconds, and their ratio to the single network's."""
    seconds: dict[str, list[float]] = {}
    for name, each in found:
        seconds.setdefault(name, []).append(each)
    alone = statistics.mean(seconds["single"])
    about = {key: getattr(cell, key) for key in ("network", "batch", "mode", "device", "precision", "compiled")}
    means = {name: statistics.mean(each) for name, each in seconds.items()}
    return [
        {**about, "contender": name, "compile_s": round(mean, 2), "of_single": round(mean / alone, 3)}
        for name, mean in means.items()
    ]
