"""The parts of an architecture that tensor shapes do not show: types of modules, strides, heads, slopes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.fx import GraphModule

from multitudes.engine.modules import EVERY_MODULES

ARGUMENT = "argument "
"""Begins the names of arguments of classes outside torch."""


def settings(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Returns the type and settings of each module by name; dropout rates are left out, since they may be changed."""
    return {
        name: {"kind": kind_of(part), **_own_settings(part), **_arguments_of(part)} for name, part in module.named_modules()
    }


def kind_of(module: nn.Module) -> str:
    """Returns the name of a module's class; that of a traced one is another after it was copied."""
    return GraphModule.__name__ if isinstance(module, GraphModule) else type(module).__name__


def _own_settings(part: nn.Module) -> dict[str, Any]:
    """Returns a module's settings by name, or its `extra_repr` if a class outside torch defines it."""
    if "Dropout" in type(part).__name__:
        return {}
    if not _of_torch(type(part).extra_repr):
        return {"says": part.extra_repr()}
    constants = {key for kind in type(part).__mro__ for key in getattr(kind, "__constants__", ())}
    known = [k for k in vars(part) if k not in EVERY_MODULES and (_of_torch(type(part)) or k in constants)]
    values = {k: _as_list(getattr(part, k)) for k in known if k[0] != "_" and k != "dropout"}
    return {k: v for k, v in values.items() if _is_json(v)}


def _arguments_of(part: nn.Module) -> dict[str, Any]:
    """Returns what a class outside torch was built with, as far as attributes have the names of its arguments: `heads=4`.

    Fractions are left out, since rates may be changed, and texts, which may name a device or a file.
    """
    kind = type(part)
    if _of_torch(kind) or isinstance(part, GraphModule):
        return {}
    try:
        names = inspect.signature(kind.__init__).parameters
    except (TypeError, ValueError):  # an __init__ without a signature
        return {}
    found = {name: _as_list(vars(part)[name]) for name in names if name in vars(part) and name not in EVERY_MODULES}
    return {ARGUMENT + name: value for name, value in found.items() if _is_whole(value)}


def _is_whole(value: Any) -> bool:
    return all(map(_is_whole, value)) if isinstance(value, list) else isinstance(value, (bool, int))


def _of_torch(class_or_function: Any) -> bool:
    return bool(class_or_function.__module__.startswith("torch.nn"))


def _as_list(value: Any) -> Any:
    return [_as_list(v) for v in value] if isinstance(value, (tuple, list)) else value


def _is_json(value: Any) -> bool:
    """Whether JSON can hold a value."""
    if isinstance(value, list):
        return all(_is_json(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


def differences(there: Mapping[str, Any], here: Mapping[str, Any], common: bool = False) -> list[str]:
    """Lists the settings in which two architectures differ.

    With `common` only settings that both have are compared: another version of torch may have more.
    """
    lines = []
    for name, a in there.items():
        b, where = here.get(name, {"kind": "nothing"}), name or "the model"
        if a["kind"] != b["kind"]:
            lines.append(f"{where} is {a['kind']} there and {b['kind']} here")
            continue
        keys = {key for key in (a.keys() & b.keys() if common else a.keys() | b.keys()) if not key.startswith(ARGUMENT)}
        differ = [key for key in sorted(keys) if a.get(key) != b.get(key)]
        lines += [f"{where}, a {a['kind']}, has {key}={a.get(key)!r} there and {key}={b.get(key)!r} here" for key in differ]
    return lines


def differing_arguments(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Lists the arguments with which two architectures were built, where both are known and differ: such may change outputs."""
    return [
        f"{name or 'the model'} was built with {key.removeprefix(ARGUMENT)}={value!r} there and {here[name][key]!r} here"
        for name, known in there.items()
        for key, value in known.items()
        if key.startswith(ARGUMENT) and here.get(name, {}).get(key, value) != value
    ]
