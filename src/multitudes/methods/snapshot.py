"""Snapshot: checkpoints of one training run, each at the end of a cycle of the learning rate, are the members.

Huang, Li, Pleiss, Liu, Hopcroft, Weinberger, "Snapshot Ensembles: Train 1, get M for free", ICLR 2017,
https://arxiv.org/abs/1704.00109

A run of T epochs has M cycles. In each the learning rate falls along a cosine, and starts again at its top (eq. 2):
Recipe(schedule="cosine", cycles=M). The last epoch of each cycle is a checkpoint. With another schedule members are checkpoints
at equal distances: short cycles at the end of training are Fast Geometric Ensembling (Garipov et al., NeurIPS 2018,
https://arxiv.org/abs/1802.10026), with `begin` as the share of epochs before the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from multitudes.engine.draws import drawn_member
from multitudes.engine.inputs import Inputs
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.method import Given, Method
from multitudes.methods.layers.one_run import OneRun, Shifted, add_shifts, shift_name, shifted_parts
from multitudes.settings import Rate, explained


@explained
@dataclass(frozen=True, kw_only=True)
class Snapshot(OneRun, Method):
    """Checkpoints of one run: ``[M, B, ...]``."""

    begin: Rate = 0.0
    """The share of the epochs before the first cycle."""

    made_in_training: ClassVar[bool] = True

    def convert(self, part: nn.Module, keys: Sequence[str]) -> None:
        """Gives one module its checkpoints and shifts, in place."""
        tensors = {key: {**part._parameters, **part._buffers}[key] for key in keys}
        first = next(tensor for tensor in tensors.values() if tensor is not None)
        notes = {"snapshot_count": torch.zeros((), dtype=torch.int64, device=first.device)}
        notes["snapshot_shown"] = torch.zeros((), dtype=torch.bool, device=first.device)
        for key, tensor in tensors.items():
            assert tensor is not None
            notes[f"snapshot_{key}"] = tensor.detach().new_zeros(self.members, *tensor.shape)
        add_shifts(part, Kept, keys, notes)

    def start(self, given: Given, network: nn.Module, m: int) -> nn.Module:
        """Makes member m: its seed is the number of its checkpoint."""
        return drawn_member(network, m)

    @torch.no_grad()
    def after_epoch(self, ensemble: Ensemble, done: float) -> None:
        """Keeps the weights as the checkpoint of the present cycle, in place of those of the epoch before."""
        passed = (done - self.begin) / (1 - self.begin) * self.members
        cycle = math.ceil(passed - 1e-9) - 1
        if cycle < 0:
            return
        parts = shifted_parts(ensemble.template)
        if cycle > int(parts[0][1].snapshot_count):
            raise InputError(
                f"Snapshot(members={self.members}) keeps a checkpoint of each of {self.members} cycles, so it needs "
                "at least as many epochs after its begin: train longer, Recipe(epochs=...), or take fewer members"
            )
        for _, part in parts:
            for key, value in part.stored().items():
                part.get_buffer(f"snapshot_{key}")[cycle:].copy_(value)
            part.snapshot_count.fill_(cycle + 1)

    def after_training(self, ensemble: Ensemble, batches: Iterable[tuple[Inputs, Any]]) -> None:
        """Turns checkpoints into members; those of cycles that have not begun are the network itself."""
        for _, part in shifted_parts(ensemble.template):
            part.snapshot_shown.fill_(True)
        ensemble.redraw()


class Kept(Shifted):
    """Mixin of a module with checkpoints of its tensors."""

    def draw(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Returns Δ from the network to the checkpoint that the seed numbers."""
        layer: Any = self
        if not bool(layer.snapshot_shown):
            return super().draw(generator)
        tensors, shifts = self.stored(), {}
        for key, value in tensors.items():
            kept = layer.get_buffer(f"snapshot_{key}")
            number = generator.initial_seed() % len(kept)
            shift = kept[number] - value if number < int(layer.snapshot_count) else torch.zeros_like(value)
            shifts[shift_name(key)] = shift.cpu()
        return shifts
