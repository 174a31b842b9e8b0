"""Recipes: how a run is trained, as a value; those of the papers by name.

A recipe states what tables leave out: `batch` is the number of examples of one optimiser step over all processes, `lr` and
`weight_decay` are torch's own, with the members' losses joined as the method's `reduction` says: summed where members own
weights, so that each learns as it would alone, averaged where they share all of them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any, Literal

from multitudes.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train: for `mt.fit(ens, train, Recipe(epochs=75, lr=0.05))`."""

    epochs: int = 10
    """How often all examples are seen."""

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
    """How the learning rate goes."""

    milestones: tuple[int, ...] = ()
    """With multistep, the epochs before which it is multiplied by `decay`."""

    decay: float = 0.1
    """With multistep, by what."""

    warmup: float = 0.0
    """Epochs over which the rate rises from nothing."""

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
    """Whether every member sees the same batches, or each its own order of the examples."""

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
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise InputError(f"Recipe({name}={value!r}): give a number of at least 0")
        for name in ("clip", "ema"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0):
                raise InputError(f"Recipe({name}={value!r}): give a number above 0, or None")
        if self.ema is not None and self.ema >= 1:
            raise InputError(f"Recipe(ema={self.ema!r}): a decay below 1, such as 0.999")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"Recipe({name}={getattr(self, name)!r}): say {' or '.join(map(repr, allowed))}")
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if self.batch % self.accumulate:
            raise InputError(f"Recipe(batch={self.batch}, accumulate={self.accumulate}): the parts of a batch must be equal")
        if self.schedule == "multistep" and not self.milestones:
            raise InputError("Recipe(schedule='multistep'): say before which epochs the rate falls, milestones=(25, 50)")
        if self.augment is not None and not callable(self.augment):
            raise InputError(f"Recipe(augment={self.augment!r}): give a function (x, y, generator) -> (x, y)")

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by at a step, of so many in an epoch."""
        from math import cos, pi

        at, whole, rise = step / steps, float(self.epochs), self.warmup
        if self.schedule == "onecycle":
            top = 0.3 * whole
            early = 0.5 * (1 - cos(pi * at / top)) if at < top else 1.0
            late = 0.5 * (1 + cos(pi * (at - top) / max(whole - top, 1e-12))) if at >= top else 1.0
            return max(early * late, 0.0) if at >= top else 0.04 + 0.96 * early
        ready = min(1.0, (step + 1) / (rise * steps)) if rise else 1.0
        if self.schedule == "cosine":
            done = max(0.0, at - rise) / max(whole - rise, 1e-12)
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
    "nesterov": (True, False),
    "compile": (True, False),
    "channels_last": (True, False),
    "deterministic": (True, False),
}


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"Recipe({name}={value!r}): give a whole number of at least {least}")


def _described(augment: Any) -> Any:
    if dataclasses.is_dataclass(augment) and not isinstance(augment, type):
        return {"kind": type(augment).__name__, **dataclasses.asdict(augment)}
    return getattr(augment, "__qualname__", type(augment).__name__)


PACKED_CIFAR10 = Recipe(
    epochs=75, batch=128, lr=0.05, weight_decay=5e-4, schedule="multistep", milestones=(25, 50), decay=0.1, precision="bf16",
    channels_last=True,
)  # fmt: skip
"""Packed-Ensembles, supplement Table 4, with padded crop and flip (`augment`), which its numbers need."""

MIMO_CIFAR = Recipe(
    epochs=250, batch=512, lr=0.1, nesterov=True, weight_decay=6e-4, schedule="multistep", milestones=(100, 200, 225),
    decay=0.1, warmup=1.0,
)  # fmt: skip
"""MIMO, appendix B, on CIFAR: an L2 of 3e-4 ‖w‖² is 6e-4 in torch; each example four times, `MIMO(repeat=4)`."""

RECIPES: dict[str, Recipe] = {
    "packed/cifar10-resnet18": PACKED_CIFAR10,
    "packed/cifar10-resnet50": replace(PACKED_CIFAR10, epochs=200, lr=0.1, milestones=(60, 120, 160), decay=0.2),
    "packed/cifar100-resnet18": replace(PACKED_CIFAR10, weight_decay=1e-4, decay=0.2),
    "mimo/cifar": MIMO_CIFAR,
    "emp/regression": Recipe(epochs=4000, batch=100, lr=1e-3, optimizer="adam"),
    "emp/imagenet": Recipe(epochs=100, batch=256, lr=1e-3, optimizer="adam"),
    "emp/cifar100": Recipe(epochs=400, batch=256, lr=1e-3, optimizer="adam"),
}
"""The papers' own, by name."""


def recipe(name: str) -> Recipe:
    """A paper's recipe by its name."""
    from difflib import get_close_matches

    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=1, cutoff=0.0)
        raise InputError(f"there is no recipe {name!r}: {', '.join(RECIPES)}; nearest is {near[0]!r}")
    return RECIPES[name]
