"""Training budgets that are the same for all methods: epochs, seconds, or floating-point operations."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.utils.flop_counter import FlopCounterMode

from multitudes.data.dataset import ignore_of
from multitudes.engine.kernels.products import tell_counters
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.shell.jobs import Job
from multitudes.shell.typed import amount
from multitudes.training.criterion import TaskCriterion
from multitudes.training.fabric import optimizer_for
from multitudes.training.feed import Feed
from multitudes.training.loader_feed import LoaderFeed, feed_for
from multitudes.training.recipe import Recipe

Step = Callable[[], None]
Measure = Callable[[Step], float]

WARM, TIMED = 2, 6
"""Number of warm-up steps before timing, and number of steps that are timed."""


@dataclass(frozen=True)
class Budget:
    """An amount of training, in epochs, seconds or floating-point operations.

    >>> Budget.read("2e12 flops")
    Budget(amount=2000000000000.0, unit='flops')
    """

    amount: float
    unit: Literal["epochs", "seconds", "flops"]

    @classmethod
    def read(cls, text: str) -> Budget:
        """Parses a budget as it is typed: `10 epochs`, `30 seconds`, `2e12 flops`. A bare number is epochs."""
        return cls(*amount(text))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.amount:.12g} {self.unit}"

    def epochs(self, ensemble: Ensemble, job: Job, recipe: Recipe) -> int:
        """Returns the number of whole epochs that this ensemble can train within the budget. Raises if it is below one."""
        if self.unit == "epochs":
            return int(self.amount)
        steps = max(1, len(job.train) // recipe.batch)  # type: ignore[arg-type]
        cost = steps * (_seconds(ensemble, job, recipe) if self.unit == "seconds" else _operations(ensemble, job, recipe))
        if cost > self.amount:
            name = type(ensemble.method).__name__
            raise InputError(
                f"--budget {str(self)!r} is too small: one epoch of {name} takes about {cost:.3g} {self.unit}. "
                "Give at least that"
            )
        return int(self.amount / cost)


def _step(ensemble: Ensemble, criterion: TaskCriterion, feed: Feed | LoaderFeed, optimizer: torch.optim.Optimizer) -> None:
    """Runs one training step of the method. The caller restores the weights."""
    inputs, targets = next(feed.epoch(0))
    ensemble.loss(inputs, criterion.mark_ignored(targets), criterion, per_member=feed.own).backward()
    optimizer.step()
    optimizer.zero_grad()


def _measured(ensemble: Ensemble, job: Job, recipe: Recipe, measure: Measure) -> float:
    """Applies `measure` to a training step, then restores weights, mode and random state of the ensemble."""
    device = next(ensemble.parameters()).device
    feed = feed_for(ensemble, job.train, replace(recipe, seed=0, accumulate=1), device, None)
    axis: Any = ensemble.class_axis
    criterion = TaskCriterion(ensemble.task, class_axis=axis, ignore=ignore_of(job.train))
    weights = {name: value.clone() for name, value in ensemble.state_dict().items()}
    generator, training = ensemble.generator.get_state(), ensemble.training
    with torch.random.fork_rng():
        try:
            ensemble.train()
            optimizer = optimizer_for(ensemble, recipe, device)
            return measure(lambda: _step(ensemble, criterion, feed, optimizer))
        finally:
            ensemble.load_state_dict(weights)
            ensemble.generator.set_state(generator)
            ensemble.train(training)


def _seconds(ensemble: Ensemble, job: Job, recipe: Recipe) -> float:
    """Seconds of one training step."""

    def measure(step: Step) -> float:
        for _ in range(WARM):
            step()
        start = time.perf_counter()
        for _ in range(TIMED):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / TIMED

    return _measured(ensemble, job, recipe, measure)


def _operations(ensemble: Ensemble, job: Job, recipe: Recipe) -> float:
    """Floating-point operations of one training step, counted on a small batch and scaled up."""
    small = replace(recipe, batch=min(recipe.batch, 8), accumulate=1)
    tell_counters()

    def measure(step: Step) -> float:
        counter = FlopCounterMode(display=False)
        with counter:
            step()
        return float(counter.get_total_flops()) * recipe.batch / small.batch

    return _measured(ensemble, job, small, measure)
