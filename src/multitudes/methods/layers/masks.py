"""masks: draw fixed binary masks with a chosen overlap, exactly and without a search.

Durasov, Bagautdinov, Baque, Fua, "Masksembles for Uncertainty Estimation", CVPR 2021, https://arxiv.org/abs/2012.08334, §3.2

The paper draws N masks of M ones each among M·S positions, and drops the positions that no mask uses. The result is a matrix of
N rows with M ones each and no empty column; all such matrices are equally likely. This module samples them directly for a given
number of columns: first the number of columns that the first k masks use together, from k = N down to 1 (it is a
Markov chain), then the columns.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from multitudes.errors import InputError
from multitudes.settings import Count, at_least, check_value

NEGLIGIBLE = 45.0
"""Sizes less likely than e^-45 times the likeliest are left out: double precision cannot represent their effect."""


def masks(features: int, members: int, scale: float, generator: torch.Generator | None = None) -> Tensor:
    """Draws N masks of ones and zeros, ``[N, features]``: each has the same number of ones, and every feature is used.

    With scale 1 all entries are ones. A larger scale means less overlap: the expected IoU is 1 / (2 scale − 1).

    >>> import torch, multitudes as mt
    >>> mt.masks(32, 4, 2.0, torch.Generator().manual_seed(0)).sum(1)
    tensor([17., 17., 17., 17.])
    """
    return masks_of(features, members, ones_for(features, members, scale), generator)


def ones_for(features: int, members: int, scale: float) -> int:
    """Returns how many ones each mask needs so that, at this scale, all masks together use about `features` features."""
    for name, value in (("features", features), ("members", members)):
        check_value(name, value, Count)
    check_value("scale", scale, Annotated[float, at_least(1)])
    ones = math.floor(features / columns_per_one(members, scale) + 1e-9)
    return min(features, max(ones, math.ceil(features / members), 1))


def columns_per_one(members: int, scale: float) -> float:
    """Returns the expected number of used columns, divided by the ones of a mask: S (1 − (1 − 1/S)^N)."""
    return -scale * math.expm1(members * math.log1p(-1 / scale)) if scale > 1 else 1.0


def effective_scale(features: int, members: int, ones: int) -> float:
    """Returns the scale at which masks with `ones` ones are expected to use `features` features."""
    low, high = 1.0, 1e9
    if columns_per_one(members, high) * ones <= features:
        return math.inf
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if columns_per_one(members, middle) * ones < features else (low, middle)
    return low


def overlap(matrix: Tensor) -> float:
    """Returns the mean IoU over all pairs of masks; 1 for a single mask."""
    common = matrix.double() @ matrix.double().T
    own = common.diagonal()
    iou = common / (own[:, None] + own[None, :] - common)
    count = len(matrix)
    return 1.0 if count == 1 else float((iou.sum() - count) / (count * (count - 1)))


def masks_of(features: int, members: int, ones: int, generator: torch.Generator | None = None) -> Tensor:
    """Draws masks with `ones` ones each; all matrices without an empty column are equally likely."""
    if not ones <= features <= members * ones:
        raise InputError(f"features={features} must be from {ones} to {members * ones} for {members} masks of {ones} ones each")
    used = _union_sizes(features, members, ones, generator)
    matrix = torch.zeros(members, features, device="cpu")
    for row, (before, after) in enumerate(zip([0, *used], used, strict=False)):
        matrix[row, before:after] = 1
        again = torch.randperm(before, generator=generator, device="cpu")[: ones - (after - before)]
        matrix[row, again] = 1
    rows = torch.randperm(members, generator=generator, device="cpu")
    return matrix[rows][:, torch.randperm(features, generator=generator, device="cpu")]


def _union_sizes(features: int, members: int, ones: int, generator: torch.Generator | None) -> list[int]:
    """Draws the number of columns that the first k masks use together, for k = 1 to N, given that N masks use them all."""
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
    """Returns the likely sizes after one more mask, and their log-probabilities up to a constant."""
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
    """Returns the log-probability, up to a constant, that one more mask raises the used columns from `before` to `after`.

    It is the sum of the three tensors returned: one depends only on `before`, one on `new`, one on `after`. The mask takes
    `new` of the `total - before` unused columns; its other ones are among the used columns.
    """
    again = ones - new
    possible = (new >= 0) & (again >= 0)
    middle = -torch.lgamma(new.clamp(min=0) + 1) - torch.lgamma(again.clamp(min=0) + 1)
    left = torch.lgamma(before + 1) + torch.lgamma(total - before + 1)
    right = -torch.lgamma((after - ones).clamp(min=0) + 1) - torch.lgamma((total - after).clamp(min=0) + 1)
    return left, torch.where(possible, middle, -torch.inf), torch.where(after >= ones, right, -torch.inf)


def _positions(features: int, members: int, ones: int) -> float:
    """Returns the number of positions of which masks use about `features`. It affects numerics, not the distribution."""
    low, high = float(features), 1e12
    for _ in range(200):
        middle = math.sqrt(low * high)
        used = -middle * math.expm1(members * math.log1p(-ones / middle)) if middle > ones else middle
        low, high = (middle, high) if used < features else (low, middle)
    return high + 1


def _reachable(before: Tensor, k: int, features: int, members: int, ones: int, total: float) -> Tensor:
    """Returns the possible sizes of the union of k masks, without those far from the expected size."""
    least = max(float(before.min()), features - (members - k) * ones)
    most = min(float(before.max()) + ones, float(features))
    if features > 128:
        spread = 10 * math.sqrt(ones / 4 + 1) + 8
        ends = [float(u) + ones * (1 - float(u) / total) for u in (before.min(), before.max())]
        least, most = max(least, math.floor(ends[0] - spread)), min(most, math.ceil(ends[1] + spread))
    if k == members:
        least = most = float(features)
    return torch.arange(least, most + 1, dtype=torch.float64, device="cpu")
