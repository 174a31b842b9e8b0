"""What tells one architecture from another beside its tensors: kinds of modules, strides, heads, slopes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from multitudes.engine.modules import EVERY_MODULES


def settings(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Each module's kind and settings; rates of dropout apart, as another one may be wanted."""
    return {name: {"kind": type(part).__name__, **_own_settings(part)} for name, part in module.named_modules()}


def _own_settings(part: nn.Module) -> dict[str, Any]:
    """A module's settings by name; of a class that says them only in words, these."""
    if "Dropout" in type(part).__name__:
        return {}
    if not _of_torch(type(part).extra_repr):
        return {"says": part.extra_repr()}
    constants = {key for kind in type(part).__mro__ for key in getattr(kind, "__constants__", ())}
    known = [k for k in vars(part) if k not in EVERY_MODULES and (_of_torch(type(part)) or k in constants)]
    own = {k: _plain(getattr(part, k)) for k in known if k[0] != "_" and k != "dropout"}
    return {k: v for k, v in own.items() if _is_plain(v)}


def _of_torch(what: Any) -> bool:
    return bool(what.__module__.startswith("torch.nn"))


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value


def _is_plain(value: Any) -> bool:
    """Whether a value is one that JSON has."""
    if isinstance(value, list):
        return all(_is_plain(v) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


def differences(there: Mapping[str, Any], here: Mapping[str, Any], common: bool = False) -> list[str]:
    """In which settings two architectures differ; if `common`, of those that both have, as versions of torch add some."""
    found = []
    for name, a in there.items():
        b, where = here.get(name, {"kind": "nothing"}), name or "the model"
        if a["kind"] != b["kind"]:
            found.append(f"{where} is {a['kind']} there and {b['kind']} here")
            continue
        keys = a.keys() & b.keys() if common else a.keys() | b.keys()
        odd = [key for key in sorted(keys) if a.get(key) != b.get(key)]
        found += [f"{where}, a {a['kind']}, has {key}={a.get(key)!r} there and {key}={b.get(key)!r} here" for key in odd]
    return found
