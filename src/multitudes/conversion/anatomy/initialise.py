"""Initialise fresh members.

Each tensor is initialised by the first of these rules that changes it:

1. the factory, if the user gave one;
2. ``init_weights`` or ``_init_weights`` of the model, or of the outermost modules that have one;
3. ``reset_parameters`` of each layer;
4. draws from a normal distribution with the mean and standard deviation of the given tensor; for a resized tensor the
   deviation is divided by the square root of new inputs over given inputs.

A parameter that is constant in the given model (zeros, ones, a layer scale) keeps its value, since authors initialise such
parameters so. Buffers keep their values too, except for running statistics, which are reset.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from multitudes.conversion.anatomy.structure import own_tensors
from multitudes.engine.modules import Factory, detached_copy, join_name, named_tensors
from multitudes.engine.seeds import seeded
from multitudes.errors import InputError


def check_model(model: Any) -> None:
    """Checks that `model` is a module, or a factory of modules."""
    if not isinstance(model, nn.Module) and (isinstance(model, type) or not callable(model)):
        raise InputError(f"model={model!r}: give an nn.Module, or a factory such as lambda ratio: Net(width=round(64 * ratio))")


def takes_ratio(factory: Any) -> bool:
    """Whether a factory has a parameter for the width ratio; one without parameters makes the model as it is."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a builtin function
        return True
    return any(p.kind is not p.KEYWORD_ONLY and p.kind is not p.VAR_KEYWORD for p in parameters)


def build(factory: Factory, ratio: float, seed: int) -> nn.Module:
    """Calls the factory for a model at this width ratio, with torch seeded by `seed`.

    A factory without parameters is called as it is: its network has the ratio 1.
    """
    with seeded(seed):
        try:
            model = factory(ratio) if takes_ratio(factory) else factory()  # type: ignore[call-arg]
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise InputError(
                f"the factory must take the width ratio, as in lambda ratio: Net(int(64 * ratio)): {error}"
            ) from error
    if not isinstance(model, nn.Module):
        raise InputError(f"the factory must return an nn.Module, but returned a {type(model).__name__}")
    return model


def reinitialised(model: nn.Module, seed: int, resized_from: nn.Module | None = None) -> tuple[nn.Module, dict[str, str]]:
    """Returns a freshly initialised copy of the model, and the rule by which each tensor was initialised.

    `resized_from` is the model that `model` was thinned from: rule 4 takes mean and deviation from its tensors.
    """
    new = detached_copy(model, {})
    rules: dict[str, str] = {}
    with torch.no_grad(), seeded(seed, model):
        for name, part in _outermost(new):
            for called, initialiser in _own_initialisers(part):
                if _run(name, part, called, initialiser, rules):
                    break
        for name, part in new.named_modules():
            reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            done = all(join_name(name, key) in rules for key in own_tensors(part))
            if callable(reset) and not done and not _required(reset):
                _run(name, part, reset.__name__, reset, rules)
        tensors = dict(named_tensors(model))
        wider = dict(named_tensors(resized_from)) if resized_from is not None else tensors
        for name, tensor in named_tensors(new):
            _keep_or_draw(name, tensor, tensors[name], wider[name], rules)
        for name, part in new.named_modules():
            if isinstance(part, _NormBase):
                part.reset_running_stats()
                rules.update((join_name(name, key), "reset_running_stats") for key, b in part._buffers.items() if b is not None)
    return new, rules


def _run(name: str, part: nn.Module, called: str, initialiser: Callable[[], Any], rules: dict[str, str]) -> bool:
    """Runs an initialiser of a module, and adds the tensors that it changed to `rules`. Returns whether it changed any."""
    before = {n: t.clone() for n, t in named_tensors(part)}
    initialiser()
    changed = []
    for n, tensor in named_tensors(part):
        if join_name(name, n) in rules:
            tensor.copy_(before[n])  # an earlier rule has initialised it
        elif not _same(tensor, before[n]):
            changed.append(n)
    rules.update((join_name(name, n), f"{type(part).__name__}.{called}") for n in changed)
    return bool(changed)


def _keep_or_draw(name: str, tensor: Tensor, before: Tensor, wider: Tensor, rules: dict[str, str]) -> None:
    """Restores buffers and constants to their values `before`, and draws a parameter that no rule has initialised."""
    if not isinstance(tensor, nn.Parameter) or not (tensor.is_floating_point() or tensor.is_complex()):
        tensor.copy_(before)
        rules[name] = "kept from the given model"
    elif is_constant(before) and not (before.numel() == 1 and name in rules and before.item() not in (0, 1)):
        tensor.copy_(before)
        rules[name] = "constant: kept from the given model"
    elif name not in rules:
        inputs = [math.prod(t.shape[1:]) if t.ndim > 1 and t.shape[0] > 1 else 1 for t in (wider, tensor)]
        tensor.normal_().mul_(wider.std() * math.sqrt(inputs[0] / inputs[1])).add_(wider.mean())
        scaled = ", scaled to its number of inputs" if inputs[0] != inputs[1] else ""
        rules[name] = f"normal with the mean and deviation of the given tensor{scaled}"


def _outermost(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the outermost modules that have `init_weights` or `_init_weights`, by name."""
    done: list[str] = []
    for name, part in model.named_modules():
        if not any(d == "" or name.startswith(f"{d}.") for d in done) and _own_initialisers(part):
            done.append(name)
            yield name, part


def _own_initialisers(part: nn.Module) -> list[tuple[str, Callable[[], Any]]]:
    """Returns `init_weights` and `_init_weights`; one that takes a module is applied to every module inside `part`."""
    initialisers: list[tuple[str, Callable[[], Any]]] = []
    for name in ("init_weights", "_init_weights"):
        method = getattr(part, name, None)
        if not callable(method) or len(_required(method)) > 1:
            continue
        initialisers.append((name, functools.partial(part.apply, method) if _required(method) else method))
    return initialisers


def _required(function: Callable[..., Any]) -> list[str]:
    """Names the arguments without a default."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.is_meta or torch.equal(a, b)


def is_constant(tensor: Tensor) -> bool:
    """Whether all entries are equal."""
    return tensor.is_meta or bool((tensor == tensor.flatten()[:1]).all())
