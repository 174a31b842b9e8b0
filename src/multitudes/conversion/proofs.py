"""Proofs that are kept: `ensemble` after `plan`, or with another seed, does not prove the same conversion again.

A proof is kept as long as the model lives, and is valid as long as the model, the settings and the shape of the example are the
same. A model that was trained, or whose modules or attributes were changed, is proved again.
"""

from __future__ import annotations

from collections.abc import Hashable
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from multitudes.engine.modules import named_tensors
from multitudes.engine.state import Engine
from multitudes.engine.tree import PLAIN

if TYPE_CHECKING:
    from multitudes.conversion.draft import Draft

_PROOFS: WeakKeyDictionary[nn.Module, dict[Hashable, dict[str, Any]]] = WeakKeyDictionary()
FACTS = ("traits", "proven", "why", "row_axes", "untried", "blocks_left_out")


def recall(draft: Draft, few: Engine) -> bool:
    """Sets the facts of a proof that was made before. Returns False if there is none."""
    facts = _PROOFS.get(draft.given.model, {}).get(_key(draft))
    if facts is None:
        return False
    for name, value in facts.items():
        setattr(few, name, dict(value) if isinstance(value, dict) else value)
    return True


def keep(draft: Draft, few: Engine) -> None:
    """Keeps the facts that a proof found; the last proof of a model replaces those for other versions of it."""
    if draft.given.factory is None:
        key = _key(draft)
        facts = {name: getattr(few, name) for name in FACTS}
        kept = _PROOFS.setdefault(draft.given.model, {})
        for other in [k for k in kept if k[0] != key[0]]:  # type: ignore[index]
            del kept[other]
        kept[key] = facts


def _key(draft: Draft) -> tuple[Hashable, ...]:
    given = draft.given
    return (
        _version(given.model),
        repr(draft.method),
        repr(sorted(given.at.items())),
        draft.plan.keep,
        draft.start,
        repr(draft.batch_axis),
        repr(given.small.inputs),
        draft.trial_members,
        torch.get_default_dtype(),
    )


def _version(model: nn.Module) -> Hashable:
    """Returns a value that differs if a tensor was written, or a module, class or attribute replaced."""
    tensors = tuple(
        (name, id(t), t._version, t.device, t.requires_grad) for name, t in named_tensors(model) if not t.is_inference()
    )
    seen: set[int] = set()
    parts = tuple(
        (name, id(type(part)), id(type(part).forward), tuple((key, _mark(value, seen)) for key, value in vars(part).items()))
        for name, part in model.named_modules()
    )
    return hash((tensors, parts))


def _mark(value: Any, seen: set[int]) -> Hashable:
    """Returns what tells a value from another, or from itself once it holds something else; `seen` were looked into."""
    if isinstance(value, Tensor):
        return id(value), value._version if not value.is_inference() else None
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(_mark(part, seen) for part in value)
    if isinstance(value, dict):
        return tuple((repr(key), _mark(part, seen)) for key, part in value.items() if not isinstance(part, nn.Module))
    if isinstance(value, (nn.Module, type, ModuleType)) or id(value) in seen:
        return id(value)
    seen.add(id(value))
    return id(value), _mark(getattr(value, "__dict__", {}), seen)  # such as a configuration
