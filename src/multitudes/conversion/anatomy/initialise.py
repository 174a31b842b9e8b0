"""Initialise fresh members, at the scale at which the given model starts.

Each tensor is initialised by the first of these rules that writes it and agrees with the given tensor:

1. the factory, if the user gave one;
2. ``init_weights`` or ``_init_weights`` of the model, or of the outermost modules that have one;
3. ``reset_parameters`` of each layer;
4. draws from a normal distribution with the mean and standard deviation of the given tensor; for a resized tensor the
   deviation is divided by the square root of new inputs over given inputs, unless the given model's deviations do not depend
   on the number of inputs.

A constructor may call an initialiser with other arguments, or none at all. So what rules 2 and 3 draw is compared with the
given tensor: its mean and deviation must be the same up to the error of sampling, and a matrix must not become constant. A
trained tensor says nothing about how it started: if the norms of the model have learnt, only the second is asked, and if it
has no norms, only matrices are compared. For a resized model the comparison is made at the given width.

A parameter that was not drawn keeps its value, since authors initialise such parameters so: a constant (zeros, ones, a layer
scale); and, if no rule fits, one whose values repeat (an identity) or that is frozen (sines and cosines). Buffers keep their
values too, except for running statistics, which are reset unless the norm is frozen.

Tensors that start as copies of each other, as a target network or a stored start does, start so again.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _Orthogonal, _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

from multitudes.conversion.anatomy.structure import is_norm, own_tensors
from multitudes.engine.modules import (
    Factory,
    as_same_kind,
    copy_with,
    detached_copy,
    join_name,
    named_parts,
    named_tensors,
    unwrapped,
)
from multitudes.engine.seeds import seeded
from multitudes.errors import InputError

FEW, VAGUE = 16, 20.0
"""The mean and deviation of fewer numbers say little: they may differ by this factor by chance."""
FIRST = 8
"""Entries by which tensors that may be equal are found."""


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
    model = unwrapped(model)
    if not isinstance(model, nn.Module):
        raise InputError(f"the factory must return an nn.Module, but returned a {type(model).__name__}")
    return model


@dataclass(frozen=True)
class _Start:
    """How the given model starts: decides which rule may initialise a tensor."""

    given: dict[str, Tensor]
    """The tensors of the given model, before it was resized."""
    learnt: bool | None
    """Whether the norms of the given model have learnt; None if it has no norms with parameters."""
    chosen: dict[str, str] | None
    """For a resized model the rule of each tensor at the given width; otherwise None."""
    misfits: dict[str, str] = field(default_factory=dict)
    """The last rule that wrote a tensor and may not initialise it, by the tensor's name."""

    @classmethod
    def of(cls, model: nn.Module, chosen: dict[str, str] | None) -> _Start:
        """Looks at a model's tensors."""
        learnt = [not is_constant(p) for part in model.modules() if is_norm(part) for p in part.parameters(recurse=False)]
        return cls(dict(named_tensors(model)), any(learnt) if learnt else None, chosen)

    def fits(self, name: str, rule: str, tensor: Tensor) -> bool:
        """Whether a rule, which has written this tensor, may initialise it."""
        given = self.given[name]
        if self.chosen is not None:
            right = self.chosen[name].partition(",")[0] == rule
        elif given.is_meta or given.numel() < 2 or not given.is_floating_point() or not _some(given).isfinite().all():
            right = True
        elif is_constant(tensor) and not is_constant(given):
            right = given.ndim < 2 and self.learnt is not False
        elif _repeats(given) and not _repeats(tensor):  # an identity, say, and a trained tensor repeats no values
            right = False
        else:
            right = bool(self.learnt) or (self.learnt is None and given.ndim < 2) or _same_scale(tensor, given)
        if not right:
            self.misfits[name] = rule
        return right

    def is_table(self, name: str) -> bool:
        """Whether a given tensor was not drawn: most values occur more than once (an identity), or all rows are in order.

        For complex numbers that holds for their real or imaginary parts.
        """
        given = self.given[name].detach()
        if given.is_complex():
            return any(_is_table(part) for part in (given.real, given.imag))
        return given.dtype in (torch.float32, torch.float64) and _is_table(given)  # in a short format drawn values repeat too

    @functools.cached_property
    def by_inputs(self) -> bool:
        """Whether deviations depend on the number of inputs: not if weights with very different numbers have equal ones."""
        weights = [t for t in self.given.values() if t.ndim > 1 and t.numel() >= 256 and not is_constant(t)]
        inputs, deviations = [math.prod(t.shape[1:]) for t in weights], [float(t.std()) for t in weights]
        return not weights or max(inputs) < 4 * min(inputs) or max(deviations) > 1.2 * min(deviations)


def _repeats(values: Tensor) -> bool:
    """Whether most values of a tensor occur more than once. In a short format drawn values repeat too."""
    some = _some(values.detach())
    return some.dtype in (torch.float32, torch.float64) and 2 * len(some.unique()) <= len(some)


def _is_table(values: Tensor) -> bool:
    if _repeats(values):
        return True
    steps = values.diff(dim=-1) if values.ndim and values.shape[-1] >= 6 else values.new_zeros(0)  # by chance 1 of 360
    return bool(steps.numel()) and bool((steps > 0).all() or (steps < 0).all())


def _same_scale(tensor: Tensor, given: Tensor) -> bool:
    """Whether two tensors have the same mean and deviation, up to the error of sampling."""
    tensor, given = _some(tensor), _some(given)
    error = 0.1 + 4 / math.sqrt(given.numel()) if given.numel() >= FEW else VAGUE
    ours, theirs = float(tensor.std()), float(given.std())
    shift = abs(float(tensor.mean()) - float(given.mean()))
    return shift <= error * max(ours, theirs) and max(ours, theirs) <= (1 + error) * min(ours, theirs)


def _some(tensor: Tensor) -> Tensor:
    """Returns entries all over a tensor, at most about 16,000: enough to know how it was drawn."""
    return tensor.flatten()[:: max(tensor.numel() // 16_000, 1)]


def reinitialised(
    model: nn.Module,
    seed: int,
    resized_from: nn.Module | None = None,
    only: Collection[str] | None = None,
    shared: Collection[str] = (),
) -> tuple[nn.Module, dict[str, str]]:
    """Returns a freshly initialised copy of the model, and the rule by which each tensor was initialised.

    resized_from  the model that `model` was thinned from: it decides which rule initialises a tensor
    only          the modules whose own tensors are wanted: the others get no values, on the meta device; None for all
    shared        tensors that will keep their given values: copies of them keep these too
    """
    before = dict(named_tensors(model))
    new = detached_copy(model, {}) if only is None else _with_values_of(model, only)
    chosen = None if resized_from is None else reinitialised(resized_from, seed)[1]
    start = _Start.of(model if resized_from is None else resized_from, chosen)
    rules: dict[str, str] = {}
    first = _first_names(new)
    with torch.no_grad(), seeded(seed):
        for name, part in _outermost(new):
            for called, initialiser in _own_initialisers(part):
                if _run(part, called, initialiser, _renamed(name, part, first), rules, start):
                    break
        parts = [(name, part) for name, part in named_parts(new) if only is None or name in only]
        for name, part in parts:
            reset = getattr(part, "reset_parameters", None) or getattr(part, "_reset_parameters", None)
            if callable(reset) and not _required(reset):
                names = _renamed(name, part, first)
                if not all(names[key] in rules for key in own_tensors(part)):
                    _run(part, reset.__name__, reset, names, rules, start)
        for name, tensor in named_tensors(new):
            if only is None or not tensor.is_meta:
                _keep_or_draw(name, tensor, before[name], rules, start)
        for name, part in parts:
            if isinstance(part, ParametrizationList):
                _start_parametrization(name, part, rules)
            _start_spectral_norm(part)
            if isinstance(part, _NormBase) and not _is_frozen(part):
                part.reset_running_stats()
                rules.update((join_name(name, key), "reset_running_stats") for key, b in part._buffers.items() if b is not None)
        for name, copies in copies_in(start.given).items():
            if name in shared:  # a trainable copy must start apart in each member
                copies = [copy for copy in copies if not before[copy].requires_grad]
            _copy_again(name, copies, before if name in shared else dict(named_tensors(new)), new, rules)
    return new, rules


def copies_in(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Names trainable tensors, and for each the other tensors with the same values. Constants are left out."""
    alike: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel() > 1 and not tensor.is_meta:
            alike.setdefault((tensor.shape, tensor.dtype, *tensor.detach().flatten()[:FIRST].tolist()), []).append(name)
    copies: dict[str, list[str]] = {}
    for names in alike.values():
        first = next((name for name in names if tensors[name].requires_grad), None)
        if first is not None and len(names) > 1 and not is_constant(tensors[first]):
            same = [name for name in names if name != first and torch.equal(tensors[name], tensors[first])]
            copies.update({first: same} if same else {})
    return copies


def _copy_again(name: str, copies: Sequence[str], values: Mapping[str, Tensor], new: nn.Module, rules: dict[str, str]) -> None:
    """Gives the copies of a tensor the value that it starts with."""
    tensors, value = dict(named_tensors(new)), values[name].detach()
    for other in copies:
        if tensors[other].shape == value.shape and not tensors[other].is_meta and not value.is_meta:
            tensors[other].copy_(value)
            rules[other] = f"a copy of {name}, as in the given model"


def _is_frozen(norm: nn.Module) -> bool:
    """Whether a norm keeps its scale and shift, since they do not train: its statistics belong to them."""
    parameters = list(norm.parameters(recurse=False))
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def _start_parametrization(name: str, part: ParametrizationList, rules: dict[str, str]) -> None:
    """Brings what torch's parametrizations compute from a weight in line with the fresh weight.

    The spectral norm keeps singular vectors, which it improves in training alone. An orthogonal matrix keeps its start as a
    buffer, and its parameter is constant: it is drawn anew.
    """
    for inner in part:
        if isinstance(inner, _SpectralNorm) and hasattr(inner, "_u"):
            inner._power_method(inner._reshape_weight_to_matrix(part.original), 15)
        elif isinstance(inner, _Orthogonal) and "base" in inner._buffers and len(part) == 1:
            part.right_inverse(nn.init.orthogonal_(torch.empty_like(part.original)))
            rules[join_name(name, "0.base")] = rules[join_name(name, "original")] = "an orthogonal matrix, drawn anew"


def _start_spectral_norm(part: nn.Module) -> None:
    """Finds the singular vectors of a fresh weight anew, which the hook of `torch.nn.utils.spectral_norm` keeps as buffers."""
    for hook in part._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm) and not getattr(part, f"{hook.name}_u").is_meta:
            hook = copy.copy(hook)
            hook.n_power_iterations = 15
            hook.compute_weight(part, do_power_iteration=True)


def _with_values_of(model: nn.Module, names: Collection[str]) -> nn.Module:
    """Copies a model with clones of the tensors that these modules hold; all others are on the meta device."""
    wanted = {id(tensor) for name in names for tensor in own_tensors(model.get_submodule(name)).values()}
    values = {}
    for name, tensor in named_tensors(model):
        value = tensor.detach().clone() if id(tensor) in wanted else tensor.detach().to("meta")
        values[name] = as_same_kind(tensor, value)
    return copy_with(model, values)


def _first_names(model: nn.Module) -> dict[str, str]:
    """Maps each name of a tensor to its first name: a tied tensor has several."""
    tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}


def _renamed(name: str, part: nn.Module, first: dict[str, str]) -> dict[str, str]:
    """Maps the names of a module's tensors to their first names in the model; `name` is the module's."""
    return {n: first[join_name(name, n)] for n, _ in named_tensors(part)}


def _run(
    part: nn.Module,
    called: str,
    initialiser: Callable[[], Any],
    names: dict[str, str],
    rules: dict[str, str],
    start: _Start,
) -> bool:
    """Runs an initialiser of a module, and adds the tensors that it may initialise to `rules`. The others stay as they were.

    `names` are the tensors' names in the model. Returns whether it wrote any tensor.
    """
    before = {n: t.clone() for n, t in named_tensors(part)}
    blank = _run_on_blank(part, initialiser, before)
    rule, wrote = f"{type(part).__name__}.{called}", False
    for n, tensor in named_tensors(part):
        full = names[n]
        written = not tensor.is_meta and not (_has_nan(tensor) if n in blank else torch.equal(tensor, before[n]))
        fits = written and full not in rules and start.fits(full, rule, tensor)
        wrote |= written and full not in rules
        if fits:
            rules[full] = rule + _keep_by_hand(tensor, start.given[full])
        else:
            tensor.copy_(before[n])
    return wrote


def _keep_by_hand(tensor: Tensor, given: Tensor) -> str:
    """Keeps the entries of a vector that were set by hand, as the forget gates of an LSTM to 1: many have the same value."""
    if given.ndim != 1 or given.shape != tensor.shape or given.is_meta or given.dtype not in (torch.float32, torch.float64):
        return ""
    values, counts = given.detach().unique(return_counts=True)
    kept = torch.isin(given, values[counts >= max(4, given.numel() / 8)])
    if not kept.any() or kept.all():
        return ""
    tensor[kept] = given.detach()[kept].to(tensor)
    return ", but for entries with a value of many"


def _has_nan(tensor: Tensor) -> bool:
    return bool(tensor.sum().isnan()) and bool(tensor.isnan().any())  # the sum alone takes no memory


def _run_on_blank(part: nn.Module, initialiser: Callable[[], Any], before: dict[str, Tensor]) -> set[str]:
    """Runs an initialiser on NaN in place of trainable parameters, and names these: it has written those without NaN.

    An initialiser that fails on NaN is run on the parameters as they were; none is named. One that fails there too, as torch's
    own do on a norm whose bias was taken away, has written nothing.
    """
    blank = {n: p for n, p in part.named_parameters() if p.requires_grad and not p.is_meta}
    for parameter in blank.values():
        parameter.fill_(torch.nan)
    for names in (set(blank), set[str]()):
        try:
            initialiser()
        except Exception:  # it may be the user's
            for n, tensor in named_tensors(part):
                tensor.copy_(before[n])
            if not names and any(tensor.is_meta for tensor in before.values()):
                raise  # it needs the values of other layers
        else:
            return names
    return set()


def _keep_or_draw(name: str, tensor: Tensor, before: Tensor, rules: dict[str, str], start: _Start) -> None:
    """Restores buffers and constants to their values `before`, and keeps or draws a parameter that no rule has initialised."""
    if not isinstance(tensor, nn.Parameter) or not (tensor.is_floating_point() or tensor.is_complex()):
        tensor.copy_(before)
        rules[name] = "kept from the given model"
    elif is_constant(before) and not (before.numel() == 1 and name in rules and before.item() not in (0, 1)):
        tensor.copy_(before)
        rules[name] = "constant: kept from the given model"
    elif not before.requires_grad and before.shape == start.given[name].shape:
        tensor.copy_(before)
        rules[name] = "frozen: kept from the given model"
    elif name not in rules and start.is_table(name):
        rules[name] = "a table that was not drawn: kept from the given model"
    elif name not in rules:
        _draw(name, tensor, rules, start)


def _draw(name: str, tensor: Tensor, rules: dict[str, str], start: _Start) -> None:
    """Draws a parameter from a normal distribution with the mean and deviation of the given one."""
    given = start.given[name]
    inputs = [math.prod(t.shape[1:]) if t.ndim > 1 and t.shape[0] > 1 else 1 for t in (given, tensor)]
    scaled = inputs[0] != inputs[1] and start.by_inputs
    tensor.normal_().mul_(given.std() * math.sqrt(inputs[0] / inputs[1] if scaled else 1)).add_(given.mean())
    rules[name] = "normal with the mean and deviation of the given tensor" + (
        ", scaled to its number of inputs" if scaled else ""
    )
    if name in start.misfits:
        rules[name] += f": {start.misfits[name]} has others"


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


def is_constant(tensor: Tensor) -> bool:
    """Whether all entries are equal."""
    flat = tensor.flatten()
    few = (flat[:64], flat[:: max(len(flat) // 64, 1)], flat)  # a table may begin with an empty row
    return tensor.is_meta or all(bool((some == flat[:1]).all()) for some in few)
