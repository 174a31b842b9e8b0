"""The time of a training step: ResNet-18, random images of CIFAR's size, batches of 128, `mt.fit` with crop and flip.

    python benchmarks/training.py [--rows single packed ...] [--compile] [--precision bf16] [--channels-last]

It prints the milliseconds of a step, the best of a few short epochs, and the seconds of the first epoch, compiling included.
Several processes may run at once: they wait for each other before they measure.
"""

from __future__ import annotations

import argparse
import fcntl
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from cifar10 import ROWS, method

import multitudes as mt
from multitudes.data import Augment, Data
from multitudes.models import resnet18
from multitudes.training.recipe import Recipe

STEPS, EPOCHS = 60, 4


def milliseconds(name: str, how: Recipe) -> tuple[float, float]:
    """Measures the milliseconds of a step, and the seconds of the first epoch."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.randint(256, (how.batch * STEPS, 3, 32, 32), dtype=torch.uint8)
    data = Data(images, torch.randint(10, (len(images),)), mean=[0.5] * 3, std=[0.25] * 3)
    ensemble = mt.ensemble(resnet18(), method(name), torch.zeros(2, 3, 32, 32), seed=0, check=False).to(device)
    start = time.perf_counter()
    mt.fit(ensemble, data, replace(how, epochs=1))
    first = time.perf_counter() - start
    with (Path(tempfile.gettempdir()) / "multitudes-training.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = mt.fit(ensemble, data, how)
    return 1000 * min(line["seconds"] for line in run.metrics) / STEPS, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--precision", choices=["32", "bf16", "fp16"], default="bf16")
    arguments = parser.parse_args()
    how = Recipe(
        epochs=EPOCHS, batch=128, lr=0.05, weight_decay=5e-4, precision=arguments.precision, compile=arguments.compile,
        channels_last=arguments.channels_last, augment=Augment(),
    )  # fmt: skip
    for name in arguments.rows:
        step, first = milliseconds(name, how)
        settings = f"{arguments.precision}{', compiled' * arguments.compile}{', channels last' * arguments.channels_last}"
        print(f"{name:14} {settings:32} {step:8.2f} ms a step   {first:6.1f} s for the first epoch", flush=True)


if __name__ == "__main__":
    main()
