"""Loading: a checkpoint of the base model into an ensemble, by the base model's own names."""

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
    """Loads it into every member ("copies"), or only into what members share ("fresh")."""
    if start not in ("copies", "fresh"):
        raise InputError(f"start={start!r}: say 'copies' or 'fresh'")
    own = dict(ensemble.state_dict(keep_vars=True))
    stacked = {id(t) for n, t in named_tensors(ensemble.template) if n in ensemble.engine.owned}  # a tied one under any name
    owned = set(ensemble.engine.owned) | {name for name, tensor in own.items() if id(tensor) in stacked}
    added = own.keys() - ensemble.base.state_dict().keys()
    own = {name: tensor for name, tensor in own.items() if name not in added}  # what the method adds stays as it is
    wrong = [f"missing {n}" for n in own if n not in state_dict] + [f"unknown {n}" for n in state_dict if n not in own]
    base = ensemble.base.state_dict()
    owned |= {name for name, tensor in own.items() if tensor.ndim > base[name].ndim}
    for name in own.keys() & state_dict.keys():
        shape = own[name].shape[1:] if name in owned else own[name].shape
        if state_dict[name].shape != shape:
            wrong.append(f"{name} is {list(state_dict[name].shape)} instead of {list(shape)}")
    if wrong and {n: t.shape for n, t in ensemble.base.state_dict().items()} == {n: t.shape for n, t in state_dict.items()}:
        raise InputError(f"members of {ensemble.method} are no copies of the base model: load it there, and convert it again")
    if wrong:
        raise InputError(f"this is not a checkpoint of the base model: {'; '.join(sorted(wrong))}")
    with torch.no_grad():
        for name, tensor in own.items():
            if name not in owned or start == "copies":
                share = ensemble.members if name in ensemble.engine.summed else 1
                tensor.copy_((state_dict[name] / share if share > 1 else state_dict[name]).expand_as(tensor))
    ensemble.engine.refresh()
