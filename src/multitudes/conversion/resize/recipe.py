"""Recipes: what a network was built with, so that its constructor can be run again with other widths.

A recipe is a class and the arguments of its constructor. transformers keep their configuration; timm's architectures are
created again while the constructor is observed, and so is a factory without arguments; other networks often store their
arguments as attributes of the same names. Arguments that are not stored are looked for by value. Whether a recipe is right is
not believed but tried: the network that it builds must be the given one, module by module and tensor by tensor.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from multitudes.conversion.resize.constants import BUILDING, Path, Place, functions_of, numbers_of, rewritten
from multitudes.engine.modules import named_tensors
from multitudes.engine.program import META, shapes_only
from multitudes.engine.selected_output import selecting

IN_PLACE = frozenset(
    """normal_ uniform_ fill_ zero_ clamp_ clip_ erfinv_ copy_ mul_ add_ sub_ div_ bernoulli_ random_ exponential_ log_ exp_
    orthogonal_ kaiming_normal_ kaiming_uniform_ xavier_normal_ xavier_uniform_ trunc_normal_ ones_ zeros_ constant_""".split()
)
"""Operations that only set values."""


@dataclass(frozen=True)
class Recipe:
    """A class and the arguments of its constructor."""

    kind: type[nn.Module]
    """The class."""
    arguments: dict[str, Any]
    """The constructor's arguments by name, defaults included; a network among them is a recipe itself."""
    make: Callable[[], nn.Module] | None = None
    """Calls the constructor with its first arguments, and may set attributes afterwards; None for the class itself."""
    added: dict[str, Any] = field(default_factory=dict)
    """Keywords that the constructor passes on to its parent class, and the defaults of others that it could pass on."""
    given: frozenset[str] = frozenset()
    """Names of the keywords that were given."""
    functions: dict[str, FunctionType] = field(default_factory=dict)
    """Functions that run while the network is built, whose numbers count as arguments (`with_code`)."""
    output: str | None = None
    """The output that the network was told to return; None for all."""
    fitted: dict[Path, Any] = field(default_factory=dict)
    """Arguments that were found by trying, where others were recorded or are the default."""
    bare: bool = False
    """Whether it passes on the given keywords alone."""

    def values(self) -> dict[Path, Any]:
        """Returns the arguments by path, and the fields of those that are dataclasses or dicts."""
        every: dict[Path, Any] = {}
        for name, value in {**self.added, **self.arguments}.items():
            every[name,] = value
            if isinstance(value, dict) or dataclasses.is_dataclass(value):
                every |= {(name, key): part for key, part in (fields(value) or {}).items() if not str(key).startswith("_")}
        return every

    def with_values(self, values: Mapping[Path, Any]) -> Recipe:
        """Returns the recipe with other values at some paths of `values()`."""
        arguments, added = dict(self.arguments), dict(self.added)
        for (name, *inner), value in values.items():
            for known in (arguments, added):
                if name in known:
                    known[name] = _refilled(known[name], {inner[0]: value}) if inner else value
        return replace(self, arguments=arguments, added=added, fitted={**self.fitted, **values})

    def without_defaults(self) -> Recipe:
        """Returns a recipe that passes on the given keywords alone."""
        return replace(self, added={name: value for name, value in self.added.items() if name in self.given}, bare=True)

    def build(self, changes: Mapping[Path, Any], device: torch.device) -> nn.Module:
        """Builds the network on a device, with other numbers at some paths."""
        in_code = {path: value for path, value in changes.items() if isinstance(path, Place)}
        with BUILDING, rewritten(self.functions, in_code):
            if device == META:
                return on_meta(lambda: self._built(changes, device))
            with device:
                return self._built(changes, device)

    def _built(self, changes: Mapping[Path, Any], device: torch.device) -> nn.Module:
        """Runs the constructor, with other numbers at some paths."""
        if self.make is None:
            args, kwargs = self._call(self._known(), changes, device)
            return selecting(self.kind(*args, **kwargs), self.output)
        with _constructor(self.kind, lambda _, *fresh: self._call(self._known(fresh), changes, device)):
            return selecting(self.make(), self.output)

    def _known(self, fresh: tuple[Any, Any] | None = None) -> dict[str, Any]:
        """Returns the arguments by name; those that hold networks are as fresh as those that `make` just gave."""
        known = dict(self.arguments)
        if fresh is not None and any(holds_weights(value) for value in known.values()):
            given = inspect.signature(self.kind.__init__).bind(None, *fresh[0], **fresh[1]).arguments
            known.update({name: given[name] for name, value in known.items() if holds_weights(value)})
        return {**known, **({"": self.added} if self.added else {})}

    def _call(self, known: dict[str, Any], changes: Mapping[Path, Any], device: torch.device) -> tuple[Any, Any]:
        """Returns the arguments of the constructor, by position and by name, with other numbers at some paths."""
        new = _with_numbers(known, (), changes, device)
        passed_on = new.pop("", {})
        signature = inspect.signature(self.kind.__init__)
        call = inspect.BoundArguments(signature, {next(iter(signature.parameters)): None, **new})
        return call.args[1:], {**call.kwargs, **passed_on}

    def numbers(self) -> dict[Path, Any]:
        """Returns all whole numbers and fractions among the arguments, and in the code of functions, by path."""
        return {
            path: value
            for numbers in (_numbers(self._known(), ()), numbers_of(self.functions).items())
            for path, value in numbers
        }

    def with_code(self) -> Recipe:
        """Returns the recipe with the numbers in the code that it runs as further arguments."""
        return replace(self, functions=functions_of(lambda: self.build({}, META)))


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Returns what `build` builds, on the meta device.

    A constructor that reads values, such as rates by `torch.linspace(0, rate, depth)`, or sets `layer.weight.data` to an array
    of numpy's, runs with them, without initialisers.
    """
    try:
        with META, _NoValues():
            return build()
    except (NotImplementedError, RuntimeError, TypeError) as error:
        if "meta" not in str(error) and "set_data" not in str(error):
            raise
    with torch.device("cpu"), _NoValues():
        return shapes_only(build())


class _NoValues(TorchFunctionMode):
    """Leaves out the operations that initialise weights: on the meta device they do nothing, slowly."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensor = args[0] if args else (kwargs or {}).get("tensor")
        unread = isinstance(tensor, nn.Parameter) or (isinstance(tensor, Tensor) and tensor.is_meta)
        if getattr(func, "__name__", "") in IN_PLACE and unread:
            return tensor
        return func(*args, **(kwargs or {}))


@contextmanager
def _constructor(kind: type[nn.Module], arguments: Callable[..., tuple[Any, Any]]) -> Iterator[None]:
    """Lets a class's constructor run with the arguments that `arguments(net, args, kwargs)` returns, in a with-block."""
    own = kind.__init__
    depth, thread = 0, threading.get_ident()

    @functools.wraps(own)
    def observed(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        nonlocal depth
        if threading.get_ident() != thread:  # a network of the user's, built in the meantime
            own(self, *args, **kwargs)
            return
        if depth == 0:
            args, kwargs = arguments(self, args, kwargs)
        depth += 1
        try:
            own(self, *args, **kwargs)
        finally:
            depth -= 1

    inherited = "__init__" not in vars(kind)
    kind.__init__ = observed  # type: ignore[method-assign]
    try:
        yield
    finally:
        if inherited:
            del kind.__init__
        else:
            kind.__init__ = own  # type: ignore[method-assign]


def recorded(make: Callable[[], nn.Module], kind: type[nn.Module]) -> Recipe | None:
    """Returns the recipe of the network that `make()` builds, observed on the meta device; None if `kind` is not built so."""
    calls: list[tuple[nn.Module, Any, Any]] = []
    found: list[tuple[Any, Any]] = []

    def observe(net: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        calls.append((net, *_with_numbers((args, kwargs), (), {}, META)))  # a copy: constructors may change their arguments
        return args, kwargs

    def build() -> nn.Module:
        calls.clear()
        made = make()
        found[:] = [(args, kwargs) for net, args, kwargs in calls if net is made]
        return made

    with BUILDING, _constructor(kind, observe):
        on_meta(build)
    return bound(kind, *found[0], make) if found else None


def bound(kind: type[nn.Module], args: Any, kwargs: Any, make: Callable[[], nn.Module] | None = None) -> Recipe | None:
    """Returns a recipe with the arguments by name, and the defaults of those that are left out."""
    signature = inspect.signature(kind.__init__)
    call = signature.bind(None, *args, **kwargs)
    call.apply_defaults()
    arguments = dict(list(call.arguments.items())[1:])
    if make is None and any(holds_weights(value) for value in arguments.values()):
        return None
    keywords = dict(_keywords(signature, arguments))
    others = {name: value for name, value in arguments.items() if value is not _keywords(signature, arguments)}
    added = {name: value for name, value in _passed_on(kind).items() if name not in others} | keywords
    return Recipe(kind, others, make, added, frozenset(keywords))


def _keywords(signature: inspect.Signature, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the keywords that a constructor takes beside its named arguments."""
    name = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
    return arguments.get(name, {}) if name else {}


def _passed_on(kind: type[nn.Module]) -> dict[str, Any]:
    """Returns the defaults of keywords that a constructor passes on to its parent's."""
    defaults: dict[str, Any] = {}
    for parent in kind.__mro__:
        if "__init__" not in vars(parent) or parent is nn.Module:
            continue
        parameters = inspect.signature(vars(parent)["__init__"]).parameters.values()
        if parent is not kind:
            defaults = {p.name: p.default for p in parameters if p.default is not p.empty} | defaults
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return defaults


def holds_weights(value: Any) -> bool:
    """Whether an argument is, or holds, a module with tensors, or a tensor: a second network must not share them."""
    if isinstance(value, nn.Module):
        return bool(named_tensors(value))
    if isinstance(value, Tensor):
        return True
    inner = fields(value)
    return inner is not None and any(holds_weights(part) for part in inner.values())


def fields(value: Any) -> dict[Any, Any] | None:
    """Returns the parts of a collection, dataclass, configuration or partial function, by key; None for other values."""
    if isinstance(value, Recipe):
        return value.arguments
    if isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if isinstance(value, functools.partial):
        return {**dict(enumerate(value.args)), **value.keywords}
    if isinstance(value, (type, nn.Module, Tensor)):
        return None
    if dataclasses.is_dataclass(value) or hasattr(value, "to_dict") or type(value).__name__ == "SimpleNamespace":
        return (
            vars(value) if hasattr(value, "__dict__") else {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        )
    return None


def _numbers(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value
    for key, part in (fields(value) or {}).items():
        if not (isinstance(key, str) and key.startswith("_")):
            yield from _numbers(part, (*path, key))


def _with_numbers(value: Any, path: Path, changes: Mapping[Path, Any], device: torch.device) -> Any:
    """Copies a value, with other numbers at some paths; modules without weights are copied, all else is kept."""
    if path in changes:
        return changes[path]
    if isinstance(value, Recipe):
        inner = {at[len(path) :]: number for at, number in changes.items() if at[: len(path)] == path}
        return value.build(inner, device)
    if isinstance(value, nn.Module):
        return copy.deepcopy(value)
    inner_values = fields(value)
    if inner_values is None:
        return value
    new = {key: _with_numbers(part, (*path, key), changes, device) for key, part in inner_values.items()}
    if isinstance(value, dict):
        return new if type(value) is dict else _refilled(value, new)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*new.values())
    if isinstance(value, (list, tuple)):
        return type(value)(new.values())
    if isinstance(value, functools.partial):
        args = [new[i] for i in range(len(value.args))]
        return functools.partial(value.func, *args, **{k: new[k] for k in value.keywords})
    return _refilled(value, new)


def _refilled(value: Any, new: dict[Any, Any]) -> Any:
    """Copies a dict of its own kind, a dataclass or a configuration, with other entries or fields."""
    made = copy.copy(value)
    if isinstance(made, dict):
        made.update(new)
        return made
    for key, part in new.items():
        if part is not vars(value).get(key, None) if hasattr(value, "__dict__") else True:
            object.__setattr__(made, key, part)
    return made
