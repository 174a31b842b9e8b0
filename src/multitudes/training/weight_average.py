"""WeightAverage: an exponential moving average of the weights, used for validation and as the result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from multitudes.engine.sharding import reshard
from multitudes.ensemble import Ensemble


class WeightAverage:
    """Moving average of an ensemble's parameters. Buffers are not averaged."""

    def __init__(self, ensemble: Ensemble, decay: float) -> None:
        self.ensemble, self.decay = ensemble, decay
        self.values = {name: p.detach().clone() for name, p in ensemble.named_parameters() if p.is_floating_point()}

    @torch.no_grad()
    def update(self) -> None:
        """Moves the average towards the current weights."""
        weights = dict(self.ensemble.named_parameters())
        torch._foreach_lerp_(list(self.values.values()), [weights[name].detach() for name in self.values], 1 - self.decay)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Replaces the weights by their average in a with-block, and restores the weights at its end."""
        reshard(self.ensemble)
        weights = {name: p.detach().clone() for name, p in self.ensemble.named_parameters() if name in self.values}
        self._write(self.values)
        try:
            yield
        finally:
            reshard(self.ensemble)
            self._write(weights)

    def copy_to_weights(self) -> None:
        """Overwrites the weights with the average."""
        self._write(self.values)

    @torch.no_grad()
    def _write(self, values: Mapping[str, Tensor]) -> None:
        weights = dict(self.ensemble.named_parameters())
        for name, value in values.items():
            weights[name].copy_(value)
