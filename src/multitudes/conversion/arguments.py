"""Check the arguments of a conversion before any work is done."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.initialise import build, check_model
from multitudes.engine.call_form import call_of
from multitudes.engine.inputs import BatchAxis, Inputs, checked_example
from multitudes.engine.modules import names_matching, unwrapped
from multitudes.engine.seeds import checked_seed
from multitudes.engine.selected_output import selected
from multitudes.engine.state import Engine
from multitudes.errors import InputError
from multitudes.method import Given, Method
from multitudes.settings import Count, check_value


def checked_arguments(
    model: Any,
    method: Any,
    example: Any,
    keep: Sequence[str],
    at: Mapping[str, Method] | None,
    seed: int | None,
    start: str,
    batch_axis: BatchAxis,
    chunk: int | None,
    output: str | int | None = None,
) -> tuple[Given, list[str]]:
    """Checks the arguments of `plan` and `ensemble`. Returns the method's input, and the modules that keep= matches."""
    check_method(model, method)
    check_options(start, chunk, keep)
    seed = checked_seed(seed)
    model = selected(unwrapped(model), output)
    factory = None if isinstance(model, nn.Module) else model
    net = model if isinstance(model, nn.Module) else build(model, 1.0, seed)
    if isinstance(net, torch.jit.ScriptModule):
        raise InputError("the model is scripted or traced, and cannot be copied: give the Python module that was scripted")
    kept = matched_modules(net, keep)
    settings = layer_settings(net, method, at)
    inputs = checked_example(net, call_of(net, example), batch_axis)
    check_rows(net, inputs, example)
    if kept and not method.keeps_layers:
        raise InputError(
            f"keep={list(keep)}: {type(method).__name__} takes no keep=, since it chooses layers itself: leave keep= out"
        )
    return Given(net, inputs, factory, seed, settings, batch_axis), kept


def check_method(model: Any, method: Any) -> None:
    """Checks that `method` is a method with settings, and `model` a module or a factory."""
    if isinstance(method, type) and issubclass(method, Method):
        raise InputError(f"{method.__name__} is a class: give an instance with settings, as in {method.__name__}()")
    if not isinstance(method, Method):
        known = ", ".join(kind.__name__ for kind in Method.all())
        if isinstance(model, Method) and isinstance(method, nn.Module):
            raise InputError(f"the model comes first, then the method: ensemble(model, {model!r}, x)")
        short = repr(method) if isinstance(method, str) else f"a {type(method).__name__}"
        named = {kind.__name__.lower(): kind.__name__ for kind in Method.all()}
        meant = named.get(method.lower()) if isinstance(method, str) else None
        line = f", mt.{meant}()" if meant else f" of one of {known}, as in mt.Packed()"
        raise InputError(f"{short} is not a method: give an instance{line}")
    if isinstance(getattr(model, "engine", None), Engine):
        raise InputError("the model is an ensemble already: give the network itself, or a member of it, ens.member(0)")
    if isinstance(model, (list, tuple)) and model and all(isinstance(one, nn.Module) for one in model):
        raise InputError(
            f"{len(model)} models are given, and {type(method).__name__} takes one. To make an ensemble of models that are "
            "trained already: mt.Deep.from_models([model_1, model_2], x)"
        )
    check_model(model)


def check_rows(model: nn.Module, inputs: Inputs, example: Any) -> None:
    """Refuses one example in place of a batch, where the model takes both: numbers of one axis, as in x[0].

    Of a batch a row may be left out; of one example a number may not.
    """
    if isinstance(example, Inputs) and len(example.args) == 1 and not example.kwargs:
        example = example.args[0]
    if not isinstance(example, Tensor) or example.ndim != 1 or not example.is_floating_point() or example.is_meta:
        return
    (tensor,), outputs = inputs.tensors(), None
    with torch.no_grad(), contextlib.suppress(Exception):
        outputs = copy.deepcopy(model).eval()(tensor[:-1])
    if not isinstance(outputs, Tensor) or not outputs.ndim or len(outputs) != len(tensor) - 1:
        raise InputError(f"the example {list(example.shape)} is one example, not a batch: give rows first, x[None]")


def check_options(start: str, chunk: int | None, keep: Sequence[str]) -> None:
    """Checks `start`, `chunk` and the type of `keep`."""
    check_value("start", start, Literal["fresh", "copies"])
    if isinstance(keep, str) or not all(isinstance(glob, str) for glob in keep):
        glob = keep if isinstance(keep, str) else "layer4.*"
        raise InputError(f"keep={keep!r}: give a list of globs, as in keep=[{glob!r}]")
    check_value("chunk", chunk, Count | None)


def matched_modules(model: nn.Module, keep: Sequence[str]) -> list[str]:
    """Returns the modules that keep= matches.

    Refuses a model without parameters, and a forward with an argument that `Ensemble` has too.
    """
    if not any(True for _ in model.parameters()):
        if any("quantized" in type(part).__module__ for part in model.modules()):
            raise InputError(f"{type(model).__name__} is quantized, and has no parameters: convert the network before")
        raise InputError(f"{type(model).__name__} has no parameters, so members cannot differ: give a model with parameters")
    reserved = {"per_member", "rows", "draws"} & set(inspect.signature(model.forward).parameters)
    if reserved:
        raise InputError(
            f"the model's forward has an argument {reserved.pop()!r}, and so has the ensemble's: rename it in the model"
        )
    hits = names_matching([name for name, _ in model.named_modules()], list(keep), "keep=")
    return [name for names in hits.values() for name in names]


def layer_settings(model: nn.Module, method: Method, at: Mapping[str, Method] | None) -> dict[str, Method]:
    """Returns the settings of each module that a glob in at= matches. If several globs match it, the last one counts.

    Refuses globs without a match, and settings that cannot differ from layer to layer.
    """
    if at is not None and not isinstance(at, Mapping):
        raise InputError(
            f"at={at!r}: give a mapping of globs to methods, as in at={{'layer4.*': {type(method).__name__}(...)}}"
        )
    hits = names_matching([name for name, _ in model.named_modules()], list(at or {}), "at=")
    settings: dict[str, Method] = {}
    for glob, other in (at or {}).items():
        if type(other) is not type(method) or other.members != method.members:
            raise InputError(f"at={{{glob!r}: {other}}} must be a {type(method).__name__} with members={method.members}")
        mine, theirs = method.settings(), other.settings()
        wrong = [name for name in mine if mine[name] != theirs[name] and name not in method.layer_settings]
        if wrong:
            may = f"only {', '.join(method.layer_settings)} may" if method.layer_settings else "no setting may"
            raise InputError(f"at={{{glob!r}: {other}}}: {', '.join(wrong)} cannot differ by layer; {may}")
        for name in hits[glob]:
            settings.pop(name, None)
            settings[name] = other
    return settings
