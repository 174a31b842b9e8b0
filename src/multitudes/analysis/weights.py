"""weight_share: the share of weights whose absolute value is above a threshold, by tensor and in all.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, appendix C and Fig. 9,
https://arxiv.org/abs/2010.06610: a weight counts as non-zero above 1e-4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor, nn

from multitudes.engine.modules import names_matching
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.settings import at_least, check_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multitudes.figures.theme import Theme


@dataclass(frozen=True)
class WeightShare:
    """The share of weights above a threshold, of each tensor and in all."""

    threshold: float
    """The threshold of the absolute value."""
    shares: dict[str, Tensor]
    """Share of each tensor, by name: ``[M]`` for a tensor with a part for each member, ``[]`` for a shared one."""
    counts: dict[str, int]
    """Number of weights of each tensor, by name: of one member's part, or of the shared tensor."""
    members: Tensor
    """Share of all weights that member m uses, ``[M]``: its own and the shared ones."""
    total: float
    """Share of all weights that are stored; shared ones count once."""

    def figure(self, theme: Theme = "light") -> Figure:
        """Draws the share of each tensor: a line for shared tensors and the mean over members, a dot for each member."""
        from multitudes.figures import weight_share as draw

        return draw(self.shares, self.total, threshold=self.threshold, theme=theme)


@torch.no_grad()
def weight_share(network: Ensemble | nn.Module, threshold: float = 1e-4, *, only: str | Sequence[str] = "*") -> WeightShare:
    """Returns the share of weights with an absolute value above `threshold`.

    network  an ensemble, or any module
    only     globs of the parameters to count: "*weight" leaves out biases

    >>> weight_share(nn.Linear(3, 1).requires_grad_(False), 10.0).total
    0.0
    """
    check_value("threshold", threshold, Annotated[float, at_least(0)])
    names = [name for name, _ in network.named_parameters()]
    if not names:
        raise InputError(f"this {type(network).__name__} has no parameters, so there is no share of them")
    matches = names_matching(names, [only] if isinstance(only, str) else only, "only=")
    chosen = {name for hits in matches.values() for name in hits}
    own = network.engine.owned | network.engine.summed if isinstance(network, Ensemble) else frozenset()
    shares, counts = {}, {}
    for name, weight in network.named_parameters():
        if name in chosen:
            large = (weight.abs() > threshold).cpu().double()
            shares[name] = large.reshape(len(large), -1).mean(1) if name in own else large.mean()
            counts[name] = large[0].numel() if name in own else large.numel()
    members = network.members if isinstance(network, Ensemble) else 1
    used = sum(counts[name] * share.expand(members) for name, share in shares.items()) / sum(counts.values())
    stored = {name: counts[name] * share.numel() for name, share in shares.items()}
    total = sum(stored[name] * float(share.mean()) for name, share in shares.items()) / sum(stored.values())
    return WeightShare(threshold, shares, counts, torch.as_tensor(used), total)
