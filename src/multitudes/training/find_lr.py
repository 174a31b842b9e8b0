"""find_lr: tries learning rates on a copy of an ensemble, from small to large, until the loss rises.

Smith, "Cyclical Learning Rates for Training Neural Networks", WACV 2017, https://arxiv.org/abs/1506.01186, section 3.3: train
for some steps with a rate that grows, and take one from where the loss falls.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

from multitudes.data.batches import Unpack
from multitudes.data.dataset import ignore_of
from multitudes.engine.seeds import kept_randomness, seed_all
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.method import Criterion
from multitudes.settings import Count, above, check_value
from multitudes.terminal import bar, curve
from multitudes.training.criterion import TaskCriterion
from multitudes.training.fabric import device_of, optimizer_for
from multitudes.training.feed import seed_of
from multitudes.training.fit_arguments import check_ensemble
from multitudes.training.loader_feed import feed_for
from multitudes.training.one_vs_all import recipe_loss
from multitudes.training.recipe import Recipe

SMOOTHING = 0.9
"""The share of earlier losses in the moving average that is looked at."""
SAFETY = 10.0
"""The suggested rate is so many times smaller than the one with the lowest loss, where training is about to diverge."""
RISE = 3.0
"""The search ends when the loss has risen by so many times its fall, or a tenth of its first value."""


@dataclass(frozen=True)
class LearningRates:
    """The result of `find_lr`."""

    rates: tuple[float, ...]
    """The learning rate of each step, up to the one where the loss rose."""
    losses: tuple[float, ...]
    """The moving average of the loss at each step."""

    @property
    def suggested(self) -> float:
        """A tenth of the rate with the lowest loss."""
        return self.rates[self.losses.index(min(self.losses))] / SAFETY

    @property
    def note(self) -> str:
        """Says that the loss fell up to the last rate, or never; "" otherwise."""
        if self.losses[-1] == min(self.losses):
            return "the loss still fell at the last rate: try a larger high="
        return "the loss fell at no rate: try a smaller low=" if self.losses[0] == min(self.losses) else ""

    def __str__(self) -> str:
        text = f"lr={self.suggested:.2g}; loss from {self.rates[0]:.2g} to {self.rates[-1]:.2g}: {curve(self.losses, 60)}"
        return text + (f"; {self.note}" if self.note else "")


def find_lr(
    ensemble: Ensemble,
    train: Any,
    recipe: Recipe | None = None,
    *,
    low: float = 1e-6,
    high: float = 1.0,
    steps: int = 100,
    criterion: Criterion | None = None,
    unpack: Unpack | None = None,
    output: str | None = None,
    class_axis: int | None = None,
    ignore: int | None = None,
    progress: bool | None = None,
) -> LearningRates:
    """Suggests a learning rate for `fit`: `Recipe(lr=mt.find_lr(ens, train, recipe).suggested)`.

    Trains a copy for a few steps, each with a larger rate, in full precision. The ensemble and random states stay as they are.

    ensemble    the ensemble, with the weights from which training will start
    train       the training set, as in `fit`
    recipe      batch, optimizer, weight decay, clipping, augmentation and seed; its rate and schedule are not used
    low, high   the first and the last rate that are tried
    steps       number of steps; the search ends earlier if the loss rises far
    criterion   loss(output, target) with mean reduction; by default the recipe's loss
    unpack      function that takes a batch apart into (input, targets)
    output      name of the output tensor, if the model returns several
    class_axis  axis of the classes in one network's output: 1, or -1 for tokens ``[B, T, K]``; by default the ensemble's
    ignore      label that marks entries to ignore, besides -100; by default the training set's `ignore`
    progress    whether to show a progress bar; by default only in a terminal
    """
    check_ensemble(ensemble)
    recipe = replace(recipe or Recipe(), lr=1.0, accumulate=1, schedule="constant", milestones=(), decay=0.1, warmup=0.0)
    for name, value in (("low", low), ("high", high)):
        check_value(name, value, Annotated[float, above(0)])
    check_value("steps", steps, Count)
    if low >= high:
        raise InputError(f"low={low:g} must be below high={high:g}")
    ignore = ignore_of(train) if ignore is None else ignore
    output = None if output == ensemble.selected_output else output  # the ensemble returns nothing else
    axis = ensemble.class_axis if class_axis is None else class_axis
    loss = TaskCriterion(ensemble.task, criterion, output, axis, ignore)  # type: ignore[arg-type]
    loss.from_recipe = recipe_loss(recipe, ensemble.task, criterion)
    rates = [low * (high / low) ** (step / max(steps - 1, 1)) for step in range(steps)]
    with kept_randomness(), bar("find_lr", steps, progress, "steps") as tell:
        losses: list[float] = []
        average, best = 0.0, math.inf
        for value in _losses(copy.deepcopy(ensemble), train, recipe, loss, unpack, rates):
            average = SMOOTHING * average + (1 - SMOOTHING) * value
            smooth = average / (1 - SMOOTHING ** (len(losses) + 1))
            if not math.isfinite(smooth):
                break
            losses.append(smooth)
            best = min(best, smooth)
            tell(1, loss=f"{smooth:.4f}")
            if smooth - best > RISE * max(losses[0] - best, 0.1 * abs(losses[0])):
                break
    if not losses:
        raise InputError("the loss of the first step is not finite: look for NaN in the data and in the weights")
    return LearningRates(tuple(rates[: len(losses)]), tuple(losses))


def _losses(
    ensemble: Ensemble, train: Any, recipe: Recipe, criterion: TaskCriterion, unpack: Unpack | None, rates: list[float]
) -> Iterator[float]:
    """Trains the ensemble by one step with each rate, and yields the loss before the step."""
    feed = feed_for(ensemble, train, recipe, device_of(ensemble), unpack)
    optimizer = optimizer_for(ensemble, recipe, device_of(ensemble))
    seed_all(seed_of(recipe.seed))
    ensemble.generator.manual_seed(seed_of(recipe.seed))
    ensemble.train()
    batches = (batch for epoch in range(1, len(rates) + 1) for batch in feed.epoch(epoch))
    for rate, (call, targets) in zip(rates, batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = group["first_lr"] * rate
        targets = targets if criterion.custom is not None else criterion.mark_ignored(targets)
        rows = feed.step_rows(call, 1)
        loss = ensemble.loss(call, targets, criterion, per_member=feed.own, global_batch=rows)
        yield float(loss.detach())
        loss.backward()
        if recipe.clip is not None:
            ensemble.clip_grad_norm_(recipe.clip, recipe.clip_by)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ensemble.method.after_step(ensemble)
        criterion.losses.clear()
