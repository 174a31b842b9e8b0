"""The user's own optimizer and scheduler in `fit`: objects, or functions that make them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.settings import check_value
from multitudes.training.fabric import optimizer_for
from multitudes.training.recipe import Recipe
from multitudes.training.validation import RISING

OptimizerMaker = Callable[[list[torch.nn.Parameter]], Optimizer]
"""Makes an optimizer of parameters, such as lambda parameters: NAdam(parameters, lr=1e-3), or a class of torch.optim."""


def the_optimizer(
    ensemble: Ensemble, recipe: Recipe, device: torch.device, own: Optimizer | OptimizerMaker | None
) -> Optimizer:
    """Returns the optimizer of a run: the user's, or by default the recipe's. Groups store their initial rate as first_lr.

    A function gets all trainable parameters; afterwards the method's rules apply, such as factors of the learning rate and
    parameters without weight decay. An optimizer that is an object already is used as it is.
    """
    if own is None:
        return optimizer_for(ensemble, recipe, device)
    _check_defaults(recipe, ("optimizer", "lr", "momentum", "nesterov", "weight_decay"), "optimizer=, which has its own")
    parameters = [p for p in ensemble.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("all parameters are frozen: unfreeze them with ens.requires_grad_(True)")
    if isinstance(own, str):
        raise InputError(f"optimizer={own!r} is a name, and names go to the recipe: fit(..., mt.Recipe(optimizer={own!r}))")
    optimizer = own if isinstance(own, Optimizer) else own(parameters) if callable(own) else own
    if not isinstance(optimizer, Optimizer):
        made = "" if optimizer is own else ", which returns one"
        raise InputError(
            f"optimizer={own!r} is no torch.optim.Optimizer{made}: give one of ens.parameters(), or a function such as "
            "lambda parameters: torch.optim.NAdam(parameters, lr=1e-3)"
        )
    ensemble.param_groups(lr=1.0, optimizer=type(optimizer))  # refuses one that mixes members
    known = {id(p) for p in ensemble.parameters()}
    if any(id(p) not in known for group in optimizer.param_groups for p in group["params"]):
        raise InputError("optimizer= has parameters that are not the ensemble's: make it of ens.parameters()")
    if optimizer is not own:
        _apply_rules(ensemble, optimizer)
    for group in optimizer.param_groups:
        group["first_lr"] = group["lr"]
    return optimizer


def _check_defaults(recipe: Recipe, names: tuple[str, ...], what: str) -> None:
    """Refuses settings of the recipe that would be silently ignored."""
    default = Recipe()
    for name in [name for name in names if getattr(recipe, name) != getattr(default, name)]:
        raise InputError(f"Recipe({name}={getattr(recipe, name)!r}) beside {what}: leave {name}= out of the recipe")


def _apply_rules(ensemble: Ensemble, optimizer: Optimizer) -> None:
    """Divides parameter groups by the method's factors of learning rate and weight decay, and applies these."""
    groups = ensemble.method.param_groups(ensemble, 1.0, 1.0)
    rules = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    divided = []
    for group in optimizer.param_groups:
        for rule in dict.fromkeys(rules[id(p)] for p in group["params"]):
            part = {**group, "params": [p for p in group["params"] if rules[id(p)] == rule], "lr": group["lr"] * rule[0]}
            if "weight_decay" in group:
                part["weight_decay"] = group["weight_decay"] * rule[1]
            divided.append(part)
    optimizer.param_groups[:] = divided


@dataclass
class OwnSchedule:
    """The user's scheduler, which sets learning rates in place of the recipe's schedule."""

    scheduler: Any
    by: str
    """"epoch" or "step": when it takes a step."""

    @classmethod
    def of(cls, own: Any, by: str, optimizer: Optimizer, recipe: Recipe, score: str | None) -> OwnSchedule | None:
        """Makes it of an object, or of a function of the optimizer; None without either. `score` selects the best epoch."""
        check_value("scheduler_by", by, Literal["epoch", "step"])
        if own is None:
            return None
        _check_defaults(recipe, ("schedule", "warmup"), "scheduler=, which sets the learning rate")
        kinds = (LRScheduler, ReduceLROnPlateau)
        made = own if isinstance(own, kinds) else own(optimizer) if callable(own) else own
        if not isinstance(made, kinds):
            raise InputError(
                f"scheduler={own!r} is no scheduler of torch.optim.lr_scheduler: give one, or a function such as "
                "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)"
            )
        if made.optimizer is not optimizer:
            raise InputError("scheduler= is of another optimizer: pass that one too, fit(..., optimizer=..., scheduler=...)")
        if isinstance(made, ReduceLROnPlateau):
            _check_plateau(made, by, score)
        return cls(made, by)

    def after_step(self) -> None:
        """Takes a step of the scheduler after one of the optimizer, if it goes by steps."""
        if self.by == "step":
            self.scheduler.step()

    def after_epoch(self, score: float | None) -> None:
        """Takes a step after an epoch, if it goes by epochs. A ReduceLROnPlateau reads the validation score."""
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(score)  # type: ignore[arg-type]
        elif self.by == "epoch":
            self.scheduler.step()

    def described(self) -> dict[str, Any]:
        """Returns the kind of the scheduler and its state, as JSON."""
        return {"kind": type(self.scheduler).__name__, "by": self.by, "state": json_part(self.scheduler.state_dict())}

    def restore(self, about: Mapping[str, Any]) -> None:
        """Loads the state from `described`."""
        self.scheduler.load_state_dict({**self.scheduler.state_dict(), **about["state"]})


def _check_plateau(scheduler: ReduceLROnPlateau, by: str, score: str | None) -> None:
    """Refuses a ReduceLROnPlateau that has no score to read, or would take its improvements for the opposite."""
    if score is None or by == "step":
        raise InputError("scheduler=ReduceLROnPlateau reads the validation score after each epoch: pass val=, and not by steps")
    right = "max" if RISING[score] else "min"
    if scheduler.mode != right:
        raise InputError(f"scheduler=ReduceLROnPlateau(mode={scheduler.mode!r}) reads {score}: set mode={right!r}")


def json_part(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries that JSON can hold."""
    return {key: value for key, value in values.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def described(optimizer: Optimizer) -> dict[str, Any]:
    """Returns the kind of an optimizer and its settings, as JSON, to compare those of a resumed run."""
    return {"kind": type(optimizer).__name__, "groups": groups_of(optimizer)}


def groups_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Returns the settings of each parameter group, as JSON, for a checkpoint."""
    return [json_part({k: v for k, v in group.items() if k not in ("params", "names")}) for group in optimizer.param_groups]


def restore_groups(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    """Loads the settings from `groups_of`; values keep their types, such as the tuple of betas."""
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        group.update({k: tuple(v) if isinstance(group.get(k), tuple) else v for k, v in saved.items()})


@dataclass(frozen=True)
class OwnParts:
    """What the user gives in place of the recipe's optimizer and schedule."""

    optimizer: Any = None
    scheduler: Any = None
    by: str = "epoch"
    """When the scheduler takes a step: "epoch" or "step"."""
