"""Networks of the census: how each is built, its inputs, and how its outputs are told from its width."""

from __future__ import annotations

import fnmatch
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch
from torch import nn

from multitudes.engine.inputs import BatchAxis, Inputs

LIBRARIES = {
    "timm": ("timm", "multitudes.shell.census.timm_networks"),
    "transformers": ("transformers", "multitudes.shell.census.transformers_networks"),
    "geometric": ("torch_geometric", "multitudes.shell.census.geometric_networks"),
    "own": ("torch", "multitudes.shell.census.own_networks"),
}
"""The package that each library of the census needs, and the module whose `networks()` lists its networks."""

INSTALLED_AS = {"torch_geometric": "torch-geometric"}
"""Names on PyPI of packages that are imported under another name."""

ROWS = 3
"""Rows of the example: another number than that of members, so that axes cannot be mistaken for each other."""


class NotBuilt(Exception):
    """A network that the census cannot build or run, for a reason that no method is to blame for."""


@dataclass(frozen=True)
class Network:
    """A network of the census. It is a name until `build` is called, so that it can be sent to another process."""

    library: str
    family: str
    """The architecture: the row of the page."""
    name: str
    """The network's name; it is unique within its library."""
    build: Callable[[], nn.Module]
    """Makes the network with torch's global randomness, in training or in eval mode."""
    inputs: Callable[[nn.Module], Inputs]
    """Makes an example of `ROWS` rows for a network that `build` made."""
    batch_axis: BatchAxis = 0
    methods: tuple[str, ...] = ()
    """The methods that are tried; empty for all."""
    settings: dict[str, Any] = field(default_factory=dict)
    """What differs from the network as its library makes it."""


def installed(library: str) -> bool:
    """Whether the package that a library of the census needs can be imported."""
    return importlib.util.find_spec(LIBRARIES[library][0]) is not None


def networks(libraries: Sequence[str]) -> list[Network]:
    """Lists the networks of these libraries, which must be installed."""
    return [network for library in libraries for network in import_module(module_of(library)).networks()]


def module_of(library: str) -> str:
    """Returns the module that lists a library's networks; another library than `LIBRARIES` is a module itself."""
    return LIBRARIES[library][1] if library in LIBRARIES else library


def find(library: str, name: str) -> Network:
    """Returns a network by its library and name."""
    return next(network for network in import_module(module_of(library)).networks() if network.name == name)


def matching(every: Sequence[Network], globs: Sequence[str]) -> list[Network]:
    """Returns the networks whose name, family or library/name matches one of the globs."""

    def texts(n: Network) -> tuple[str, ...]:
        return n.name, n.family, f"{n.library}/{n.name}"

    return [n for n in every if any(fnmatch.fnmatchcase(text, glob) for glob in globs for text in texts(n))]


def made(network: Network, seed: int) -> nn.Module:
    """Builds a network from a seed, in eval mode; raises NotBuilt where its library cannot."""
    try:
        torch.manual_seed(seed)
        return network.build().eval()
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {error}") from error


def example(network: Network, model: nn.Module, seed: int = 1) -> Inputs:
    """Makes an example and runs the model on it; raises NotBuilt if it does not run."""
    try:
        torch.manual_seed(seed)
        inputs = network.inputs(model)
        with torch.no_grad():
            model(*inputs.args, **inputs.kwargs)
    except Exception as error:
        raise NotBuilt(f"does not run on its example: {type(error).__name__}: {error}") from error
    return inputs
