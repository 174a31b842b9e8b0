"""Deep Ensembles: M networks of one architecture, each with its own initialisation, trained on the same data.

Lakshminarayanan, Pritzel, Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
NeurIPS 2017, https://arxiv.org/abs/1612.01474

The prediction is the mixture p(y|x) = 1/M Σ_m p(y|x, θ_m). All tensors have a member axis, and the loss is the sum over
members, so one run of the ensemble is M separate runs on the same batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from torch import Tensor, nn

from multitudes.conversion.anatomy.structure import Structure
from multitudes.conversion.stacked import stacked
from multitudes.engine.modules import owned_modules
from multitudes.ensemble import Ensemble
from multitudes.files.ensemble_file import load_into
from multitudes.method import Layout, Method
from multitudes.settings import explained


@explained
@dataclass(frozen=True, kw_only=True)
class Deep(Method):
    """M separate networks: ``[M, B, ...]``."""

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own copy of every tensor."""
        return Layout(modules=owned_modules(structure.model, lambda name: True))

    @staticmethod
    def from_models(models: Sequence[nn.Module], example: Any, **options: Any) -> Ensemble:
        """Stacks networks that are already trained; `options` are those of `mt.ensemble`.

        >>> import torch, multitudes as mt
        >>> nets = [torch.nn.Linear(4, 3) for _ in range(5)]
        >>> mt.Deep.from_models(nets, torch.randn(2, 4)).method
        Deep(members=5, reduction='sum')
        """
        networks = list(models)
        return stacked(networks, Deep(members=max(len(networks), 1)), example, **options)

    @staticmethod
    def from_checkpoints(
        checkpoints: Sequence[str | PathLike[str] | Mapping[str, Tensor]], model: nn.Module, example: Any, **options: Any
    ) -> Ensemble:
        """Stacks checkpoints of one architecture: safetensors files or state dicts; `model` gives the architecture."""
        return Deep.from_models([load_into(model, checkpoint) for checkpoint in checkpoints], example, **options)
