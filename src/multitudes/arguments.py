"""Bad input is answered before any work, with what to type instead."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine.state import named_tensors
from multitudes.errors import InputError
from multitudes.inputs import BatchAxis, Inputs, each_row, rows
from multitudes.method import Method, names_matching


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
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise InputError(f"chunk={chunk!r}: at least one member must be run at once")


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
        wrong = [name for name in mine if mine[name] != theirs[name] and name not in method.by_layer]
        if wrong:
            may = f"only {', '.join(method.by_layer)} may" if method.by_layer else "no setting may"
            raise InputError(f"at={{{glob!r}: {other}}}: {', '.join(wrong)} cannot differ by layer; {may}")
        for name in hits[glob]:
            found.pop(name, None)
            found[name] = other
    return found


def checked_example(model: nn.Module, example: Any, batch_axis: BatchAxis, rows_at_least: int = 2) -> Inputs:
    """The example as a call of the model, with at least two rows: one is repeated."""
    inputs = Inputs.of(example)
    if not inputs.tensors():
        raise InputError(f"the example is a {type(example).__name__} without a tensor; give an input of the model")
    for tensor in inputs.tensors():
        if (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_meta and not tensor.isfinite().all():
            raise InputError(f"the example has NaN or infinite values in its {list(tensor.shape)} input")
    count = rows(inputs, batch_axis)
    if count == 0:
        raise InputError(f"the example {inputs} has no rows")
    places = {tensor.device.type for _, tensor in named_tensors(model)}
    others = {tensor.device.type for tensor in inputs.tensors()} - places
    if len(places) == 1 and others:
        raise InputError(f"the model is on {places.pop()}, the example on {others.pop()}")

    def told_apart(tensor: Tensor, axis: int) -> Tensor:
        return _told_apart(tensor, axis, max(count, rows_at_least))

    return each_row(inputs, batch_axis, told_apart)


def _told_apart(tensor: Tensor, axis: int, count: int) -> Tensor:
    """At least so many rows; of equal ones each a little off, since equal rows tell BatchNorm nothing."""
    first = tensor.narrow(axis, 0, 1)
    if tensor.shape[axis] >= count and (count == 1 or tensor.is_meta or not torch.equal(tensor, first.expand_as(tensor))):
        return tensor
    steps = [(1 + k * k / 16, k / 16) for k in range(count)]
    return torch.cat([first * a + b if tensor.is_floating_point() else first for a, b in steps], dim=axis)
