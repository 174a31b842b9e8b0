"""Recipes: how a run is trained, as a value; those of the papers by name (`multitudes.training.recipes`).

A recipe states what tables leave out: `batch` is the number of examples of one optimiser step over all processes, `lr` and
`weight_decay` are torch's own, with the members' losses joined as the method's `reduction` says: summed where members own
weights, so that each learns as it would alone, averaged where they share all of them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from math import cos, inf, pi
from typing import Any, Literal

from multitudes.errors import InputError

RISE, DIVISOR, LAST_DIVISOR = 0.3, 25.0, 1e4
"""Of one cycle, as torch's pct_start, div_factor and final_div_factor."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train: for `mt.fit(ens, train, Recipe(epochs=75, lr=0.05))`."""

    epochs: int = 10
    """How often the examples are gone through; what makes no whole batch is left out, others in each epoch."""

    batch: int = 128
    """Examples of one optimiser step, over all processes and accumulated parts."""

    lr: float = 0.05
    """The learning rate, before the schedule."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Which optimiser takes the steps."""

    momentum: float = 0.9
    """Of SGD."""

    nesterov: bool = False
    """Whether SGD's momentum is Nesterov's."""

    weight_decay: float = 0.0
    """Torch's: added to the gradient by SGD and Adam, apart from it by AdamW. The method's own groups may leave some out."""

    l1: float = 0.0
    """The weight of the sum of absolute weights in the loss."""

    schedule: Literal["constant", "multistep", "cosine", "onecycle"] = "constant"
    """How the learning rate goes, step by step: as torch's MultiStepLR, CosineAnnealingLR and OneCycleLR; momentum stays."""

    milestones: tuple[int, ...] = ()
    """With multistep, the epochs after which it is multiplied by `decay`, counted from the start, warm-up included."""

    decay: float = 0.1
    """With multistep, by what."""

    warmup: float = 0.0
    """Epochs over which the rate rises, in even steps of which the last one is the whole rate; cosine falls after it."""

    accumulate: int = 1
    """Parts that a step's examples are run in."""

    clip: float | None = None
    """The norm that the gradient of each member's own weights, and of shared ones, is clipped to."""

    ema: float | None = None
    """The decay of a moving average of weights, which is what is validated and kept."""

    precision: Literal["32", "bf16", "fp16"] = "32"
    """Autocast's type."""

    compile: bool = False
    """Whether the forward is compiled."""

    channels_last: bool = False
    """Whether images and weights lie with their channels last in memory."""

    batches: Literal["same", "own"] = "same"
    """Whether every member sees the same batches (of its own set, the same rows), or each its own order of the examples."""

    deterministic: bool = False
    """Whether only deterministic algorithms are used."""

    best: Literal["ensemble", "members"] = "ensemble"
    """What the best epoch is best by: the ensemble's accuracy, or for each member its own, where they own all weights."""

    augment: Any = None
    """What is done to a batch before it is learned from: `multitudes.data.Augment`, or any (x, y, generator) → (x, y)."""

    seed: int = 0
    """Order of examples, augmentation, and what a method draws."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulate"):
            _whole(name, getattr(self, name), 1)
        _whole("seed", self.seed, 0)
        for name in ("lr", "momentum", "weight_decay", "l1", "decay", "warmup"):
            if not (_number(getattr(self, name)) and 0 <= getattr(self, name) < inf):
                raise InputError(f"Recipe({name}={getattr(self, name)!r}): give a number of at least 0")
        for name in ("clip", "ema"):
            value = getattr(self, name)
            if value is not None and not (_number(value) and 0 < value < inf):
                raise InputError(f"Recipe({name}={value!r}): give a number above 0, or None")
        for name in ("momentum", "ema"):
            if (getattr(self, name) or 0) >= 1:
                raise InputError(f"Recipe({name}={getattr(self, name)!r}): give a number below 1, such as 0.9")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"Recipe({name}={getattr(self, name)!r}): say {' or '.join(map(repr, allowed))}")
        for name in ("nesterov", "compile", "channels_last", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"Recipe({name}={getattr(self, name)!r}): say True or False")
        if self.augment is not None and (isinstance(self.augment, type) or not callable(self.augment)):
            raise InputError(f"Recipe(augment={self.augment!r}): give a function (x, y, generator) -> (x, y), as Augment() is")
        object.__setattr__(self, "milestones", _increasing(self.milestones))
        self._check_together()

    def _check_together(self) -> None:
        """What each setting may be by itself, but not beside another: nothing that is said is left unheard."""
        if self.batch % self.accumulate:
            raise InputError(f"Recipe(batch={self.batch}, accumulate={self.accumulate}): the parts of a batch must be equal")
        if self.schedule == "multistep" and not self.milestones:
            raise InputError("Recipe(schedule='multistep'): say after which epochs the rate falls, milestones=(25, 50)")
        if self.schedule != "multistep" and self.milestones:
            raise InputError(
                f"Recipe(schedule={self.schedule!r}, milestones={self.milestones}): milestones are for schedule='multistep'; "
                "without them, milestones=()"
            )
        if self.schedule == "onecycle" and self.warmup:
            raise InputError(f"Recipe(schedule='onecycle', warmup={self.warmup}): the cycle rises by itself, warmup=0")
        if self.optimizer != "sgd" and self.momentum != 0.9:
            raise InputError(f"Recipe(optimizer={self.optimizer!r}, momentum={self.momentum}): momentum is SGD's, leave it out")
        if self.schedule != "multistep" and self.decay != 0.1:
            raise InputError(f"Recipe(schedule={self.schedule!r}, decay={self.decay}): decay is for schedule='multistep'")
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise InputError(
                f"Recipe(nesterov=True, optimizer={self.optimizer!r}, momentum={self.momentum}): Nesterov's momentum is for "
                "optimizer='sgd' with momentum=0.9, or another above 0"
            )

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by at a step, counted from 0 over all epochs, of so many in an epoch."""
        if self.schedule == "onecycle":
            return _one_cycle(step, self.epochs * steps)
        at = step / steps
        ready = min(1.0, (step + 1) / (self.warmup * steps)) if self.warmup else 1.0
        if self.schedule == "cosine":
            done = max(0.0, at - self.warmup) / max(self.epochs - self.warmup, 1e-12)
            return ready * 0.5 * (1 + cos(pi * min(done, 1.0)))
        if self.schedule == "multistep":
            return ready * self.decay ** sum(at >= milestone for milestone in self.milestones)
        return ready

    def settings(self) -> dict[str, Any]:
        """The fields by name, as JSON has them."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        found["milestones"] = list(self.milestones)
        found["augment"] = None if self.augment is None else _described(self.augment)
        return found


CHOICES: dict[str, tuple[Any, ...]] = {
    "optimizer": ("sgd", "adam", "adamw"),
    "schedule": ("constant", "multistep", "cosine", "onecycle"),
    "precision": ("32", "bf16", "fp16"),
    "batches": ("same", "own"),
    "best": ("ensemble", "members"),
}


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"Recipe({name}={value!r}): give a whole number of at least {least}")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _increasing(milestones: Any) -> tuple[int, ...]:
    """Whole numbers from 1 on, each larger than the one before."""
    try:
        found = tuple(milestones)
    except TypeError:
        found = (None,)
    whole = all(isinstance(epoch, int) and not isinstance(epoch, bool) and epoch >= 1 for epoch in found)
    if not whole or list(found) != sorted(set(found)):
        raise InputError(f"Recipe(milestones={milestones!r}): give whole numbers of at least 1 that increase, (25, 50)")
    return found


def _one_cycle(step: int, total: int) -> float:
    """As OneCycleLR with cosines: the whole rate at step 0.3 total − 1, the least at the last."""
    first, least = 1 / DIVISOR, 1 / (DIVISOR * LAST_DIVISOR)
    top, last = RISE * total - 1, total - 1
    if step <= top:
        return 1 + (first - 1) * 0.5 * (1 + cos(pi * step / top))
    return least + (1 - least) * 0.5 * (1 + cos(pi * min((step - top) / (last - top), 1.0)))


def _described(augment: Any) -> Any:
    if dataclasses.is_dataclass(augment) and not isinstance(augment, type):
        return {"kind": type(augment).__name__, **dataclasses.asdict(augment)}
    return getattr(augment, "__qualname__", type(augment).__name__)
