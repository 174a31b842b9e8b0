"""Times small networks: an ensemble beside its members called by hand, one after another, on one core.

python benchmarks/small_networks.py

Small networks show what a call of an ensemble costs beyond the arithmetic of its members. Times are medians; calls alternate.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import multitudes as mt

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (lambda: nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)), (128, 14)),
    "MLP with norms": (
        lambda: nn.Sequential(
            nn.Linear(14, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2)
        ),
        (128, 14),
    ),
    "CNN": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
            nn.Flatten(), nn.Linear(32, 10),
        ),
        (16, 1, 28, 28),
    ),
}  # fmt: skip


def medians(calls: list[Callable[[], Any]], repeats: int) -> list[float]:
    """Returns the median microseconds of each call."""
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 20):
        for call, spent in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            spent.extend([time.perf_counter() - start] if turn >= 20 else [])
    return [statistics.median(spent) * 1e6 for spent in times]


def compare(net: nn.Module, method: mt.Method, x: Tensor, training: bool, repeats: int) -> list[float]:
    """Returns the microseconds of the network, of the members by hand, and of the ensemble."""
    ens = mt.ensemble(net, method, x, seed=0)
    members = [ens.member(m).train(training) for m in range(ens.members)]
    calls = [lambda: net(x), lambda: torch.stack([member(x) for member in members]), lambda: ens(x)]
    net.train(training)
    ens.train(training)
    if not training:
        with torch.no_grad():
            return medians(calls, repeats)
    return medians([lambda call=call: call().square().mean().backward() for call in calls], repeats)  # type: ignore[misc]


def main(repeats: int = 300) -> None:
    """Prints one line per network, method and mode."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # methods that train by parts
    print(
        f"{'network':<15} {'method':<12} {'mode':<6} {'single':>8} {'by hand':>8} {'ensemble':>9} {'/ hand':>7} {'/ single':>9}"
    )
    for name, (make, shape) in NETWORKS.items():
        for method in (mt.Packed(), mt.Deep(), mt.MultiHead()):
            for training in (False, True):
                one, hand, ours = compare(make(), method, torch.randn(shape), training, repeats)
                mode = "train" if training else "eval"
                numbers = f"{one:8.0f} {hand:8.0f} {ours:9.0f} {ours / hand:7.2f} {ours / one:9.2f}"
                print(f"{name:<15} {type(method).__name__:<12} {mode:<6} {numbers}", flush=True)


if __name__ == "__main__":
    main()
