"""A moving average of weights, which stands in for them where they are judged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from multitudes.engine.sharding import reshard
from multitudes.ensemble import Ensemble


class WeightAverage:
    """A moving average of weights; buffers are the last ones."""

    def __init__(self, ensemble: Ensemble, decay: float) -> None:
        self.ensemble, self.decay = ensemble, decay
        self.values = {name: p.detach().clone() for name, p in ensemble.named_parameters() if p.is_floating_point()}

    @torch.no_grad()
    def update(self) -> None:
        """Moves towards the weights as they are now."""
        own = dict(self.ensemble.named_parameters())
        torch._foreach_lerp_(list(self.values.values()), [own[name].detach() for name in self.values], 1 - self.decay)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The average in place of the weights, for the time of a block."""
        reshard(self.ensemble)
        own = dict(self.ensemble.named_parameters())
        before = {name: own[name].detach().clone() for name in self.values}
        with torch.no_grad():
            for name, value in self.values.items():
                own[name].copy_(value)
        try:
            yield
        finally:
            reshard(self.ensemble)
            own = dict(self.ensemble.named_parameters())
            with torch.no_grad():
                for name, value in before.items():
                    own[name].copy_(value)

    @torch.no_grad()
    def copy_to_weights(self) -> None:
        """The average in place of the weights."""
        own = dict(self.ensemble.named_parameters())
        for name, value in self.values.items():
            own[name].copy_(value)
