"""How members start.

A fresh member is initialised by the first of these that changes a tensor:

1. the factory, where one stands for the model;
2. the model's own ``init_weights`` or ``_init_weights``, or that of the part that has one;
3. ``reset_parameters`` of each layer;
4. else a redraw from a normal distribution with the mean and standard deviation of the given tensor (of a resized one,
   divided by the root of the ratio of its inputs).

A parameter that is constant in the given model (zeros, ones, a layer scale) stays as it is: that is how its author starts
it. Buffers stay too, except for running statistics, which are reset.
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


def build(factory: Factory, ratio: float, seed: int) -> nn.Module:
    """The factory's model at this width, as this seed makes it."""
    with seeded(seed):
        try:
            model = factory(ratio)
        except TypeError as error:
            if "argument" not in str(error):
                raise
            raise InputError(f"a factory takes the width ratio, as in lambda ratio: Net(int(64 * ratio)): {error}") from error
    if not isinstance(model, nn.Module):
        raise InputError(f"the factory returned a {type(model).__name__}, not an nn.Module")
    return model


def reinitialised(model: nn.Module, seed: int, resized_from: nn.Module | None = None) -> tuple[nn.Module, dict[str, str]]:
    """A copy of the model that starts anew, and the rule by which each tensor was initialised.

    Of a model that was made of a wider one, the latter says what a weight's deviation is and how many inputs it was for.
    """
    new = detached_copy(model, {})
    rules: dict[str, str] = {}
    with torch.no_grad(), seeded(seed, model):
        for name, part in _outermost(new):
            for called, how in _own_initialisers(part):
                if _run(name, part, called, how, rules):
                    break
        for name, part in new.named_modules():
            reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            done = all(join_name(name, key) in rules for key in own_tensors(part))
            if callable(reset) and not done and not _required(reset):
                _run(name, part, reset.__name__, reset, rules)
        given = dict(named_tensors(model))
        wider = dict(named_tensors(resized_from)) if resized_from is not None else given
        for name, tensor in named_tensors(new):
            _finish(name, tensor, given[name], wider[name], rules)
        for name, part in new.named_modules():
            if isinstance(part, _NormBase):
                part.reset_running_stats()
                rules.update((join_name(name, key), "reset_running_stats") for key, b in part._buffers.items() if b is not None)
    return new, rules


def _run(name: str, part: nn.Module, called: str, how: Callable[[], Any], rules: dict[str, str]) -> bool:
    """Lets a part initialise itself; whether that changed anything."""
    before = {n: t.clone() for n, t in named_tensors(part)}
    how()
    changed = []
    for n, tensor in named_tensors(part):
        if join_name(name, n) in rules:
            tensor.copy_(before[n])  # an earlier rule has seen to it
        elif not _same(tensor, before[n]):
            changed.append(n)
    rules.update((join_name(name, n), f"{type(part).__name__}.{called}") for n in changed)
    return bool(changed)


def _finish(name: str, tensor: Tensor, given: Tensor, wider: Tensor, rules: dict[str, str]) -> None:
    """Keeps what must stay, and redraws what nothing else has initialised."""
    if not isinstance(tensor, nn.Parameter) or not (tensor.is_floating_point() or tensor.is_complex()):
        tensor.copy_(given)
        rules[name] = "kept"
    elif is_constant(given) and not (given.numel() == 1 and name in rules and given.item() not in (0, 1)):
        tensor.copy_(given)
        rules[name] = "constant"
    elif name not in rules:
        inputs = [math.prod(t.shape[1:]) if t.ndim > 1 and t.shape[0] > 1 else 1 for t in (wider, tensor)]
        tensor.normal_().mul_(wider.std() * math.sqrt(inputs[0] / inputs[1])).add_(wider.mean())
        rules[name] = "redrawn with its mean and deviation" + (" for its number of inputs" if inputs[0] != inputs[1] else "")


def _outermost(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The outermost parts that have a way of their own to initialise themselves."""
    done: list[str] = []
    for name, part in model.named_modules():
        if not any(d == "" or name.startswith(f"{d}.") for d in done) and _own_initialisers(part):
            done.append(name)
            yield name, part


def _own_initialisers(part: nn.Module) -> list[tuple[str, Callable[[], Any]]]:
    """`init_weights` or `_init_weights`, called once or for each module, as it is written."""
    found: list[tuple[str, Callable[[], Any]]] = []
    for name in ("init_weights", "_init_weights"):
        method = getattr(part, name, None)
        if not callable(method) or len(_required(method)) > 1:
            continue
        found.append((name, functools.partial(part.apply, method) if _required(method) else method))
    return found


def _required(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


def _same(a: Tensor, b: Tensor) -> bool:
    return a.is_meta or torch.equal(a, b)


def is_constant(tensor: Tensor) -> bool:
    """Whether all entries are equal."""
    return tensor.is_meta or bool((tensor == tensor.flatten()[:1]).all())
