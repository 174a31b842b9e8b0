"""A call in training mode on trial: the layers that run there alone, and the parameters that forward writes into.

A member's parameters are slices of one tensor, or are formed from several: what forward writes into them would be lost. So a
start that the first batch decides is found before members have to make it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.structure import Structure, is_layer, probe_of
from multitudes.engine.inputs import fresh_inputs
from multitudes.engine.modules import detached_copy, owning_module
from multitudes.engine.seeds import seeded
from multitudes.engine.writes import Writes, Written

INITIALISERS = ("__init__", "init_weights", "_init_weights", "reset_parameters", "_reset_parameters")
"""Functions that write into parameters, and that forward does not call."""


@dataclass(frozen=True)
class TrainingRun:
    """What forward does in training mode; nothing where the network does not train on the example."""

    layers: frozenset[str] = frozenset()
    """Layers that run in training mode but not in eval mode, such as an auxiliary head."""
    left_out: frozenset[str] = frozenset()
    """Layers that run in eval mode but did not in training mode: other code does their work there, or chance left them out."""
    set_once: frozenset[str] = frozenset()
    """Parameters that the first call sets, and later ones do not: they start by the first batch."""
    written: frozenset[str] = frozenset()
    """Parameters that every call writes into, such as those of a slow copy."""
    replaced: frozenset[str] = frozenset()
    """Those of them for which it puts another tensor, or other memory, in their place."""
    runs: bool = True
    """Whether the network trains on the example."""
    error: str = ""
    """Why it does not."""


def run_in_training(structure: Structure, seed: int) -> TrainingRun:
    """Runs a copy of the model in training mode; twice if it writes into its parameters."""
    try:
        return _run(structure, seed, refuse=structure.shares)
    except Written:  # only now are copies of the given parameters needed
        return _run(structure, seed, refuse=False)


def _run(structure: Structure, seed: int, refuse: bool) -> TrainingRun:
    """Runs a copy of the model. With `refuse` it has the memory of the given parameters, and writes into it raise `Written`."""
    probe = (probe_of(structure) if refuse or not structure.shares else detached_copy(structure.model, {})).train()
    called: set[str] = set()
    for name, module in probe.named_modules():
        if is_layer(module):
            module.register_forward_pre_hook(lambda _, __, name=name: called.add(name))
    try:
        first, _ = _written(probe, structure, seed, refuse)
        again, replaced = _written(probe, structure, seed, refuse) if first else (set(), set())
    except Written:
        raise
    except Exception as error:  # a network that does not train on the example
        return TrainingRun(runs=False, error=f"{type(error).__name__}: {' '.join(str(error).split())}")
    layers = {name for name, module in probe.named_modules() if is_layer(module)}
    return TrainingRun(
        layers=frozenset(called - structure.order.keys()),
        left_out=frozenset((layers & structure.order.keys()) - called),
        set_once=frozenset(first - again),
        written=frozenset(first & again),
        replaced=frozenset(first & replaced),
    )


def _written(probe: nn.Module, structure: Structure, seed: int, refuse: bool) -> tuple[set[str], set[str]]:
    """Names the parameters that one call writes into or replaces, and those that it replaces.

    cuDNN moves those of recurrent layers, which is no change.
    """
    before = {n: (id(p), p.data_ptr()) for n, p in _parameters(probe).items()}
    writes, call = Writes(_parameters(probe), refuse), fresh_inputs(structure.inputs)
    with torch.no_grad(), seeded(seed), writes:
        probe(*call.args, **call.kwargs)
    writes.check()
    after = {n: (id(p), p.data_ptr()) for n, p in _parameters(probe).items()}
    replaced = {name for name in before if after.get(name) != before[name]}
    return writes.names | replaced, replaced


def _parameters(probe: nn.Module) -> dict[str, Tensor]:
    recurrent = {name for name, part in probe.named_modules() if isinstance(part, nn.RNNBase)}
    named = probe.named_parameters()
    return {n: p for n, p in named if p.numel() and not p.is_meta and owning_module(n) not in recurrent}


def may_write(model: nn.Module) -> bool:
    """Whether the code of a module that is not torch's names an operation in place, or the data of a tensor."""
    kinds = {kind for part in model.modules() for kind in type(part).__mro__ if not kind.__module__.startswith("torch.")}
    functions = [value for kind in kinds for name, value in vars(kind).items() if name not in INITIALISERS]
    names = {name for f in functions if isinstance(f, FunctionType) for name in f.__code__.co_names}
    return any(name == "data" or (name.endswith("_") and not name.endswith("__")) for name in names)
