"""masks: fixed binary masks with a chosen overlap, sampled exactly and without a search.

Durasov, Bagautdinov, Baque, Fua, "Masksembles for Uncertainty Estimation", CVPR 2021, https://arxiv.org/abs/2012.08334, §3.2

N masks of M ones each are drawn among M·S positions, and positions that no mask uses are dropped. What is left is a matrix of
N rows with M ones each and no empty column, every such matrix being as likely as every other. For a given number of columns
that is sampled here directly: first how many columns the first masks use together, from the last mask back to the first
(the union of k masks is a Markov chain), then which.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from multitudes.errors import InputError
from multitudes.settings import Count, at_least, check

NEGLIGIBLE = 45.0
"""A size that is e^-45 times as likely as the likeliest is left out: no double could tell the difference."""


def masks(features: int, members: int, scale: float, generator: torch.Generator | None = None) -> Tensor:
    """N masks over so many features, as ones and zeros ``[N, features]``: all with as many ones, no column unused.

    With scale 1 all are ones; the larger the scale, the less they overlap (an expected IoU of 1 / (2 scale − 1)).

    >>> import torch, multitudes as mt
    >>> mt.masks(32, 4, 2.0, torch.Generator().manual_seed(0)).sum(1)
    tensor([17., 17., 17., 17.])
    """
    return masks_of(features, members, ones_for(features, members, scale), generator)


def ones_for(features: int, members: int, scale: float) -> int:
    """How many ones each mask has, so that masks of this scale use about so many features together."""
    for name, value in (("features", features), ("members", members)):
        check(name, value, Count)
    check("scale", scale, Annotated[float, at_least(1)])
    ones = math.floor(features / columns_per_one(members, scale) + 1e-9)
    return min(features, max(ones, math.ceil(features / members), 1))


def columns_per_one(members: int, scale: float) -> float:
    """How many columns are in use for each one of a mask: S (1 − (1 − 1/S)^N)."""
    return -scale * math.expm1(members * math.log1p(-1 / scale)) if scale > 1 else 1.0


def effective_scale(features: int, members: int, ones: int) -> float:
    """The scale at which masks of so many ones would use just so many features."""
    low, high = 1.0, 1e9
    if columns_per_one(members, high) * ones <= features:
        return math.inf
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if columns_per_one(members, middle) * ones < features else (low, middle)
    return low


def overlap(matrix: Tensor) -> float:
    """The mean IoU of all pairs of masks; 1 for a single mask."""
    common = matrix.double() @ matrix.double().T
    own = common.diagonal()
    iou = common / (own[:, None] + own[None, :] - common)
    count = len(matrix)
    return 1.0 if count == 1 else float((iou.sum() - count) / (count * (count - 1)))


def masks_of(features: int, members: int, ones: int, generator: torch.Generator | None = None) -> Tensor:
    """Masks with so many ones each, all matrices without an empty column being equally likely."""
    if not ones <= features <= members * ones:
        raise InputError(
            f"{members} masks of {ones} ones cannot use {features} features: "
            f"there must be between {ones} and {members * ones} of them"
        )
    used = _union_sizes(features, members, ones, generator)
    matrix = torch.zeros(members, features, device="cpu")
    for row, (before, after) in enumerate(zip([0, *used], used, strict=False)):
        matrix[row, before:after] = 1
        again = torch.randperm(before, generator=generator, device="cpu")[: ones - (after - before)]
        matrix[row, again] = 1
    rows = torch.randperm(members, generator=generator, device="cpu")
    return matrix[rows][:, torch.randperm(features, generator=generator, device="cpu")]


def _union_sizes(features: int, members: int, ones: int, generator: torch.Generator | None) -> list[int]:
    """How many columns the first k masks use together, for k from 1 to N, given that all of them use every column."""
    total = _positions(features, members, ones)
    sizes, weights = (
        [torch.tensor([float(ones)], dtype=torch.float64, device="cpu")],
        [torch.zeros(1, dtype=torch.float64, device="cpu")],
    )
    for k in range(2, members + 1):
        after, weight = _forward(sizes[-1], weights[-1], _reachable(sizes[-1], k, features, members, ones, total), ones, total)
        sizes.append(after)
        weights.append(weight)
    found = [float(features)]
    for before, weight in zip(sizes[-2::-1], weights[-2::-1], strict=True):
        left, new, _ = _step(before, found[-1] - before, before, ones, total)
        chance = weight + left + new
        drawn = torch.multinomial((chance - chance.max()).exp(), 1, generator=generator)
        found.append(float(before[drawn]))
    return [int(size) for size in reversed(found)]


def _forward(before: Tensor, weight: Tensor, after: Tensor, ones: int, total: float) -> tuple[Tensor, Tensor]:
    """The sizes after one more mask, and the logs of how likely they are, up to a constant; negligible ones are left out."""
    new = torch.arange(float(after[0] - before[-1]), float(after[-1] - before[0]) + 1, dtype=torch.float64, device="cpu")
    left, middle, right = _step(before, new, after, ones, total)
    peak = before[weight.argmax()]
    tilt = torch.log(peak + 1) - torch.log(total - peak + 1)  # takes out the slope, which would leave the range of doubles
    left, middle = weight + left - tilt * before, middle - tilt * new
    parts = [(x - x.max()).exp() for x in (left, middle)]
    kernel = parts[1].unfold(0, len(after), 1)  # [before reversed, after]: its entries depend on the difference alone
    joined = torch.log(parts[0].flip(0) @ kernel) + right + tilt * after
    likely = joined > joined.max() - NEGLIGIBLE
    return after[likely], joined[likely] - joined.max()


def _step(before: Tensor, new: Tensor, after: Tensor, ones: int, total: float) -> tuple[Tensor, Tensor, Tensor]:
    """The log of how likely one more mask adds `new` columns, as a sum of what depends on before, new and after alone.

    It takes `new` of the total − before columns that are not in use, and its other ones among those that are.
    """
    again = ones - new
    possible = (new >= 0) & (again >= 0)
    middle = -torch.lgamma(new.clamp(min=0) + 1) - torch.lgamma(again.clamp(min=0) + 1)
    left = torch.lgamma(before + 1) + torch.lgamma(total - before + 1)
    right = -torch.lgamma((after - ones).clamp(min=0) + 1) - torch.lgamma((total - after).clamp(min=0) + 1)
    return left, torch.where(possible, middle, -torch.inf), torch.where(after >= ones, right, -torch.inf)


def _positions(features: int, members: int, ones: int) -> float:
    """Of how many positions masks would be drawn to use about so many: it steers where the chain runs, not what comes out."""
    low, high = float(features), 1e12
    for _ in range(200):
        middle = math.sqrt(low * high)
        used = -middle * math.expm1(members * math.log1p(-ones / middle)) if middle > ones else middle
        low, high = (middle, high) if used < features else (low, middle)
    return high + 1


def _reachable(before: Tensor, k: int, features: int, members: int, ones: int, total: float) -> Tensor:
    """Sizes of the union of k masks that are neither impossible nor out of all proportion."""
    least = max(float(before.min()), features - (members - k) * ones)
    most = min(float(before.max()) + ones, float(features))
    if features > 128:
        spread = 10 * math.sqrt(ones / 4 + 1) + 8
        ends = [float(u) + ones * (1 - float(u) / total) for u in (before.min(), before.max())]
        least, most = max(least, math.floor(ends[0] - spread)), min(most, math.ceil(ends[1] + spread))
    if k == members:
        least = most = float(features)
    return torch.arange(least, most + 1, dtype=torch.float64, device="cpu")
