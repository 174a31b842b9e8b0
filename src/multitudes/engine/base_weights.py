"""Loads a checkpoint of the base model into an ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from multitudes.engine.modules import named_tensors
from multitudes.errors import InputError

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble


def load_base(ensemble: Ensemble, state_dict: Mapping[str, Tensor], start: str) -> None:
    """Loads a checkpoint into every member (start="copies"), or only into the shared tensors (start="fresh")."""
    if start not in ("copies", "fresh"):
        raise InputError(f"start={start!r} must be 'copies' or 'fresh'")
    base = ensemble.base.state_dict()
    tensors = {n: t for n, t in ensemble.state_dict(keep_vars=True).items() if n in base}  # not what the method adds
    stacked = {id(t) for n, t in named_tensors(ensemble.template) if n in ensemble.engine.owned}
    owned = {n for n, t in tensors.items() if n in ensemble.engine.owned or t.ndim > base[n].ndim}
    owned |= {n for n, t in tensors.items() if id(t) in stacked}  # a tied tensor has several names
    wrong = [f"missing {n}" for n in tensors if n not in state_dict] + [f"unknown {n}" for n in state_dict if n not in tensors]
    for name in tensors.keys() & state_dict.keys():
        shape = tensors[name].shape[1:] if name in owned else tensors[name].shape
        if state_dict[name].shape != shape:
            wrong.append(f"{name} is {list(state_dict[name].shape)} instead of {list(shape)}")
    if wrong and {n: t.shape for n, t in base.items()} == {n: t.shape for n, t in state_dict.items()}:
        raise InputError(
            f"the members of {ensemble.method} have other shapes than the base model: "
            "load the checkpoint into the base model, then convert the base model again"
        )
    if wrong:
        raise InputError(
            f"the state dict does not fit the base model ({'; '.join(sorted(wrong))}): give one of the same architecture"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name not in owned or start == "copies":
                share = ensemble.members if name in ensemble.engine.summed else 1
                tensor.copy_((state_dict[name] / share if share > 1 else state_dict[name]).expand_as(tensor))
    ensemble.engine.refresh()
