"""SWAG: one network; members are drawn from a Gaussian around the mean of the weights along the end of its training.

Maddox, Garipov, Izmailov, Vetrov, Wilson, "A Simple Baseline for Bayesian Uncertainty in Deep Learning", NeurIPS 2019,
https://arxiv.org/abs/1902.02476

In the last epochs each epoch's weights θ_i update the mean θ̄ and the mean square, and D̂ keeps the last K deviations θ_i − θ̄_i
as columns. After training a member is, with normal z₁ and z₂ (eq. 1),

    θ̄ + √(scale / 2) Σ_diag^½ z₁ + √(scale / (2 (K − 1))) D̂ z₂,    Σ_diag = mean of θ² − θ̄².

The learning rate of these epochs decides how far weights travel: keep it constant and fairly high, with Recipe(schedule=
"constant") or "multistep". With scale=0 every member is θ̄, stochastic weight averaging. BatchNorm's statistics are not
averaged: each member's are estimated anew, by one pass over the training data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from multitudes.engine.batch_norm import estimate_norms
from multitudes.engine.inputs import Inputs
from multitudes.ensemble import Ensemble
from multitudes.method import Method
from multitudes.methods.layers.one_run import STATISTICS, OneRun, Shifted, add_shifts, shift_name, shifted_parts
from multitudes.settings import Count, Rate, at_least, explained


@explained
@dataclass(frozen=True, kw_only=True)
class SWAG(OneRun, Method):
    """Draws around the mean of one run's weights: ``[M, B, ...]``."""

    members: Count = 10

    begin: Rate = 0.75
    """The share of the epochs after which weights are collected, one set per epoch."""

    columns: Annotated[int, at_least(2)] = 20
    """The largest number of deviations, K. They are stored with the ensemble, each as large as the network."""

    scale: Annotated[float, at_least(0)] = 1.0
    """The factor of the covariance; 1 is the paper's, 0 leaves the mean."""

    made_in_training: ClassVar[bool] = True

    def convert(self, part: nn.Module, keys: Sequence[str]) -> None:
        """Gives one module its moments and shifts, in place."""
        weights = {key: part._parameters[key] for key in keys if key in part._parameters}
        device = next(tensor.device for tensor in (*part.parameters(), *part.buffers()))
        notes = {"swag_count": torch.zeros((), dtype=torch.int64, device=device)}
        notes["swag_drawn"] = torch.zeros((), dtype=torch.bool, device=device)
        for key, weight in weights.items():
            assert weight is not None
            zeros = torch.zeros_like(weight.detach())
            notes |= {f"swag_mean_{key}": zeros, f"swag_square_{key}": zeros.clone()}
            notes[f"swag_columns_{key}"] = zeros.new_zeros(self.columns, *zeros.shape)
        add_shifts(part, Averaged, keys, notes, lasting=[key for key in keys if key in STATISTICS])
        vars(part)["swag_scale"] = self.scale

    def neutral(self) -> SWAG:
        """Returns settings for one member."""
        return SWAG(members=1, columns=2)

    def after_epoch(self, ensemble: Ensemble, done: float) -> None:
        """Adds the epoch's weights to the moments."""
        if done > self.begin:
            collect_weights(ensemble)

    @torch.no_grad()
    def after_training(self, ensemble: Ensemble, batches: Iterable[tuple[Inputs, Any]]) -> None:
        """Moves the network to the mean of its weights, draws members around it, and estimates their BatchNorm statistics."""
        parts = shifted_parts(ensemble.template)
        counts = {int(part.swag_count) for _, part in parts if part.weights()}
        if max(counts, default=0) < 2:
            warnings.warn(
                "SWAG has collected the weights of fewer than two epochs, so its members are equal. Train for more epochs, or "
                "begin earlier; in a loop of your own call ens.method.after_epoch(ens, epochs_done / epochs) after each epoch",
                stacklevel=2,
            )
        if counts == {0}:
            return
        for _, part in parts:
            for key, weight in part.weights().items():
                weight.copy_(part.get_buffer(f"swag_mean_{key}"))
            part.swag_drawn.fill_(True)
        ensemble.redraw()
        _estimate(ensemble, [(name, part) for name, part in parts if part.lasting], batches)


class Averaged(Shifted):
    """Mixin of a module whose parameters have running moments."""

    def weights(self) -> dict[str, Tensor]:
        """Returns the parameters, by name."""
        layer: Any = self
        return {key: value for key, value in self.stored().items() if key in layer._parameters}

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws Δ around the mean, once training has ended."""
        layer: Any = self
        count, columns = int(layer.swag_count), 0
        if not bool(layer.swag_drawn) or count < 2:
            return super().draw(generator)
        shifts = {}
        for key in self.weights():
            mean, square, deviations = (layer.get_buffer(f"swag_{what}_{key}").cpu() for what in ("mean", "square", "columns"))
            columns = min(count, len(deviations))
            spread = (square - mean.abs() ** 2).clamp(min=0).sqrt()
            noise = torch.randn(mean.shape, generator=generator)
            # the same z₂ in all layers: a column holds the whole network
            common = torch.randn(columns, generator=torch.Generator().manual_seed(generator.initial_seed()))
            low_rank = torch.tensordot(common.to(deviations.dtype), deviations[:columns], 1) / (columns - 1) ** 0.5
            shifts[shift_name(key)] = (layer.swag_scale / 2) ** 0.5 * (spread * noise + low_rank)
        return shifts


@torch.no_grad()
def collect_weights(ensemble: Ensemble) -> None:
    """Adds the present weights to the means, the mean squares and the columns of deviations."""
    for _, part in shifted_parts(ensemble.template):
        count = int(part.swag_count)
        for key, weight in part.weights().items():
            mean, square = part.get_buffer(f"swag_mean_{key}"), part.get_buffer(f"swag_square_{key}")
            mean += (weight - mean) / (count + 1)
            square += (weight.abs() ** 2 - square) / (count + 1)
            columns = part.get_buffer(f"swag_columns_{key}")
            columns[count % len(columns)].copy_(weight - mean)
        part.swag_count += 1


def _estimate(ensemble: Ensemble, norms: Sequence[tuple[str, Any]], batches: Iterable[tuple[Inputs, Any]]) -> None:
    """Estimates each member's BatchNorm statistics, by one pass over the data."""
    if not norms:
        return
    networks = _Several([ensemble.member(m) for m in range(ensemble.members)])
    estimate_norms(networks, (call for call, _ in batches))
    for name, part in norms:
        for key in STATISTICS:
            shift, stored = part.get_buffer(shift_name(key)), part.stored()[key]
            for m, network in enumerate(networks.networks):
                shift[m].copy_(network.get_buffer(f"{name}.{key}" if name else key) - stored)


class _Several(nn.Module):
    """Networks that run on the same inputs."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, *args: Any, **kwargs: Any) -> None:
        """Runs each of them."""
        for network in self.networks:
            network(*args, **kwargs)
