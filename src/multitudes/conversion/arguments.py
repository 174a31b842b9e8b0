"""Bad input is answered before any work, with what to type instead."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from multitudes.engine.modules import names_matching
from multitudes.errors import InputError
from multitudes.method import Method
from multitudes.settings import Count, check


def check_method(model: Any, method: Any) -> None:
    """Refuses what is no model, no factory or no method."""
    if isinstance(method, type) and issubclass(method, Method):
        raise InputError(f"give the method's settings, not its class: {method.__name__}()")
    if not isinstance(method, Method):
        known = ", ".join(kind.__name__ for kind in Method.all())
        raise InputError(f"{method!r} is not a method; there are {known}")
    if not isinstance(model, nn.Module) and (isinstance(model, type) or not callable(model)):
        raise InputError(f"the model must be an nn.Module or a factory lambda ratio: nn.Module, not {model!r}")


def check_options(start: str, chunk: int | None, keep: Sequence[str]) -> None:
    """Refuses settings of the conversion that mean nothing."""
    if start not in ("fresh", "copies"):
        raise InputError(f"start={start!r}: say 'fresh' or 'copies'")
    if isinstance(keep, str) or not all(isinstance(glob, str) for glob in keep):
        raise InputError(f"keep={keep!r}: give a list of globs, keep=[{keep!r}]")
    check("chunk", chunk, Count | None)


def check_names(model: nn.Module, keep: Sequence[str]) -> None:
    """Refuses a model without parameters or with argument names of ours, and entries of keep= that match nothing."""
    if not any(True for _ in model.parameters()):
        raise InputError(f"{type(model).__name__} has no parameters, so there is nothing that members could differ in")
    taken = {"per_member", "rows", "draws"} & set(inspect.signature(model.forward).parameters)
    if taken:
        raise InputError(f"forward has an argument {taken.pop()!r}, which means something else to an ensemble: rename it")
    names_matching([name for name, _ in model.named_modules()], list(keep), "keep=")


def layer_settings(model: nn.Module, method: Method, at: Mapping[str, Method] | None) -> dict[str, Method]:
    """What at= says of each module, later entries last; refuses what matches nothing, or differs where it may not."""
    if at is not None and not isinstance(at, Mapping):
        raise InputError(f"at={at!r}: give a mapping of globs to methods")
    hits = names_matching([name for name, _ in model.named_modules()], list(at or {}), "at=")
    found: dict[str, Method] = {}
    for glob, other in (at or {}).items():
        if type(other) is not type(method) or other.members != method.members:
            raise InputError(f"at={{{glob!r}: {other}}} must be a {type(method).__name__} with members={method.members}")
        mine, theirs = method.settings(), other.settings()
        wrong = [name for name in mine if mine[name] != theirs[name] and name not in method.layer_settings]
        if wrong:
            may = f"only {', '.join(method.layer_settings)} may" if method.layer_settings else "no setting may"
            raise InputError(f"at={{{glob!r}: {other}}}: {', '.join(wrong)} cannot differ by layer; {may}")
        for name in hits[glob]:
            found.pop(name, None)
            found[name] = other
    return found
