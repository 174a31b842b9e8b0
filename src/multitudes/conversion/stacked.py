"""Stack trained networks of one architecture into an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from multitudes.conversion.anatomy.architecture import differences, settings
from multitudes.conversion.convert import ensemble
from multitudes.engine.modules import named_tensors
from multitudes.engine.proof.outcome import clean_autograd
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.method import Method


@clean_autograd()
def stacked(models: Sequence[nn.Module], method: Method, example: Any, **options: Any) -> Ensemble:
    """Makes an ensemble whose member m is models[m]; as in Deep, `method` must give members every tensor."""
    if not models:
        raise InputError("no models: give at least one, as in Deep.from_models([net, net, ...], example)")
    ours = {n: (t.shape, t.dtype) for n, t in named_tensors(models[0])}
    for m, net in enumerate(models):
        theirs = {n: (t.shape, t.dtype) for n, t in named_tensors(net)}
        if type(net) is not type(models[0]) or ours != theirs:
            differ = sorted(n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n))
            types = f"{type(net).__name__} and {type(models[0]).__name__}"
            raise InputError(
                f"model {m} has another architecture than model 0: types {types}, different tensors {differ[:4]}. "
                "Give models of one architecture"
            )
        if differ := differences(settings(models[0]), settings(net)):
            raise InputError(
                f"model {m} (here) has other settings than model 0 (there): {'; '.join(differ[:3])}. "
                "Build all models with the same arguments"
            )
    ens = ensemble(models[0], method, example, **{"start": "copies", **options})
    with torch.no_grad():
        for m, net in enumerate(models):
            source = dict(named_tensors(net))
            for name, tensor in named_tensors(ens.template):
                if name in ens.engine.owned:
                    tensor[m].copy_(source[name])
    ens.engine.refresh()
    return ens
