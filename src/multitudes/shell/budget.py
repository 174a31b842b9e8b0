"""Budgets: how long methods may train, the same for all: epochs, seconds, or floating-point operations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.utils.flop_counter import FlopCounterMode

from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.shell.jobs import Job
from multitudes.training.fabric import optimizer_for
from multitudes.training.feed import Feed
from multitudes.training.losses import CRITERIA
from multitudes.training.recipe import Recipe

UNITS = {
    "epoch": "epochs", "epochs": "epochs", "s": "seconds", "second": "seconds", "seconds": "seconds", "flop": "flops",
    "flops": "flops",
}  # fmt: skip
Step = Callable[[], None]
Measure = Callable[[Step], float]

WARM, TIMED = 2, 6
"""Steps before time is taken, and while."""


@dataclass(frozen=True)
class Budget:
    """So many epochs, seconds of training, or operations.

    >>> Budget.read("2e12 flops")
    Budget(amount=2000000000000.0, unit='flops')
    """

    amount: float
    unit: Literal["epochs", "seconds", "flops"]

    @classmethod
    def read(cls, text: str) -> Budget:
        """From what the shell says: `10 epochs`, `30 seconds`, `2e12 flops`."""
        found = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", text.lower())
        unit = UNITS.get(found[2] or "epochs") if found else None
        if found is None or unit is None or not 0 < _number(found[1]) < float("inf"):
            raise InputError(f"--budget {text!r}: say '10 epochs', '30 seconds' or '2e12 flops'")
        amount = _number(found[1])
        if unit == "epochs" and amount != int(amount):
            raise InputError(f"--budget {text!r}: a whole number of epochs")
        return cls(amount, unit)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.amount:.12g} {self.unit}"

    def epochs(self, ensemble: Ensemble, job: Job, recipe: Recipe) -> int:
        """How many whole epochs of this ensemble's training fit; too small a budget for one is refused."""
        if self.unit == "epochs":
            return int(self.amount)
        steps = max(1, len(job.train) // recipe.batch)
        spent = steps * (_seconds(ensemble, job, recipe) if self.unit == "seconds" else _operations(ensemble, job, recipe))
        if spent > self.amount:
            kind = type(ensemble.method).__name__
            raise InputError(f"one epoch of {kind} takes about {spent:.3g} {self.unit}: --budget {str(self)!r} is too little")
        return int(self.amount / spent)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _step(ensemble: Ensemble, job: Job, feed: Feed, optimizer: torch.optim.Optimizer) -> None:
    """One step, as the method trains; what it changes is put back by the caller."""
    call, targets = next(feed.epoch(0))
    ensemble.loss(call, targets, CRITERIA[job.task], per_member=feed.own).backward()
    optimizer.step()
    optimizer.zero_grad()


def _tried(ensemble: Ensemble, job: Job, recipe: Recipe, measure: Measure) -> float:
    """What a measure says of training steps; the ensemble is as it was afterwards."""
    device = next(ensemble.parameters()).device
    feed = Feed(
        job.train, batch=recipe.batch, seed=0, members=ensemble.members, own=recipe.batches == "own", device=device,
        augment=recipe.augment,
    )  # fmt: skip
    kept = {name: value.clone() for name, value in ensemble.state_dict().items()}
    generator, training = ensemble.generator.get_state(), ensemble.training
    with torch.random.fork_rng():
        try:
            ensemble.train()
            optimizer = optimizer_for(ensemble, recipe, device)
            return measure(lambda: _step(ensemble, job, feed, optimizer))
        finally:
            ensemble.load_state_dict(kept)
            ensemble.generator.set_state(generator)
            ensemble.train(training)


def _seconds(ensemble: Ensemble, job: Job, recipe: Recipe) -> float:
    def measure(step: Step) -> float:
        for _ in range(WARM):
            step()
        begun = time.perf_counter()
        for _ in range(TIMED):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / TIMED

    return _tried(ensemble, job, recipe, measure)


def _operations(ensemble: Ensemble, job: Job, recipe: Recipe) -> float:
    small = replace(recipe, batch=min(recipe.batch, 8), accumulate=1)

    def measure(step: Step) -> float:
        counter = FlopCounterMode(display=False)
        with counter:
            step()
        return float(counter.get_total_flops()) * recipe.batch / small.batch

    return _tried(ensemble, job, small, measure)
