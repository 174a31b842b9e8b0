"""Norms: one network, and scales and shifts of its norms for each member.

After Turkoglu et al., "FiLM-Ensemble: Probabilistic Deep Learning via Feature-wise Linear Modulation", NeurIPS 2022,
https://arxiv.org/abs/2206.00050. All other weights are shared, and start as they are given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import nn

from multitudes.conversion.anatomy.structure import Structure, is_norm
from multitudes.engine.modules import detached_copy
from multitudes.engine.seeds import member_seed
from multitudes.errors import InputError
from multitudes.method import Given, Layout, Method
from multitudes.settings import at_least, explained


def _norms(model: nn.Module) -> dict[str, nn.Module]:
    return {name: part for name, part in model.named_modules() if is_norm(part) and dict(part.named_parameters())}


@explained
@dataclass(frozen=True, kw_only=True)
class Norms(Method):
    """Shared weights, and norms of each member's own: ``[M, B, ...]``."""

    spread: Annotated[float, at_least(0)] = 0.5
    """Standard deviation by which a member's scales and shifts differ from the given ones at the start."""

    keeps_weights = True
    origin = "the given norms, and noise"

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own norms."""
        if not (found := _norms(structure.model)):
            raise InputError("Norms finds no norm with a scale: add one, such as nn.LayerNorm, or take BatchEnsemble")
        return Layout(frozenset(found), note=f"norms: {', '.join(found)}")

    def start(self, given: Given, network: nn.Module, m: int) -> nn.Module:
        """Returns a copy of the network with the norms of member m."""
        new, noise = detached_copy(network, {}), torch.Generator().manual_seed(member_seed(given.seed, m))
        with torch.no_grad():
            for part in _norms(new).values():
                for parameter in part.parameters():
                    parameter += self.spread * torch.randn(parameter.shape, generator=noise).to(parameter)
        return new

    def neutral(self) -> Norms:
        """Returns the settings under which the ensemble is the given model."""
        return replace(self, members=1, spread=0.0)
