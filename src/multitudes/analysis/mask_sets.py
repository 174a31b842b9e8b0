"""mask_statistics and mask_sweep: overlap and size of sets of masks, as measured and as expected.

Durasov, Bagautdinov, Baque, Fua, "Masksembles for Uncertainty Estimation", CVPR 2021, §3.3 and Fig. 3,
https://arxiv.org/abs/2012.08334. N masks with M ones each, drawn among M·S positions, are expected to use
M·S (1 − (1 − 1/S)^N) positions, the size of the layer; two of them have the expected overlap (IoU) 1 / (2S − 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.methods.layers.masks import columns_per_one, effective_scale, overlap
from multitudes.methods.masksembles import Masked, masks_in
from multitudes.settings import Count, at_least, check_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multitudes.figures.theme import Theme

Scale = Annotated[float, at_least(1)]


@dataclass(frozen=True)
class MaskStatistics:
    """Overlap and size of the masks of each layer, ``[L]``, as measured and as expected at the layer's scale."""

    names: tuple[str, ...]
    """The layers' names."""
    members: int
    """The number of masks, N."""
    ones: Tensor
    """Ones of each mask, M."""
    size: Tensor
    """Features that at least one mask uses."""
    scale: Tensor
    """The scale S at which masks with M ones are expected to use all features of the layer; infinite if no two overlap."""
    iou: Tensor
    """IoU of each pair of masks, ``[L, N, N]``."""
    mean_iou: Tensor
    """Mean IoU over all pairs; 1 for a single mask."""
    expected_size: Tensor
    """M·S (1 − (1 − 1/S)^N)."""
    expected_iou: Tensor
    """1 / (2S − 1)."""

    def figure(self, theme: Theme = "light") -> Figure:
        """Draws size and overlap of each layer's masks over the scale, and the expected curves."""
        from multitudes.figures import mask_statistics as draw

        some = self.scale.isfinite()
        if not bool(some.any()):
            raise InputError("no two masks overlap, so the scale is infinite: there is nothing to draw over it")
        size, order = self.size / self.ones, self.scale[some].argsort()
        points = {self.members: (self.scale[some][order], size[some][order], self.mean_iou[some][order])}
        return draw(points, theme=theme)


@dataclass(frozen=True)
class MaskSweep:
    """Overlap and size of masks for several scales and numbers of masks, ``[N, S]``, as measured and as expected."""

    scales: Tensor
    """The scales, S."""
    members: tuple[int, ...]
    """The numbers of masks, N."""
    ones: int
    """Ones of each mask, M."""
    size: Tensor
    """Mean number of used positions, divided by M: the size relative to a single network."""
    iou: Tensor
    """Mean IoU over all pairs of masks."""
    expected_size: Tensor
    """S (1 − (1 − 1/S)^N)."""
    expected_iou: Tensor
    """1 / (2S − 1)."""

    def figure(self, theme: Theme = "light") -> Figure:
        """Draws size and overlap over the scale: expected as curves, measured as dots."""
        from multitudes.figures import mask_statistics as draw

        rows = zip(self.members, self.size, self.iou, strict=True)
        return draw({members: (self.scales, size, iou) for members, size, iou in rows}, theme=theme)


def mask_iou(masks: Tensor) -> Tensor:
    """Returns the overlap of each pair of masks, intersection over union: ``[N, C]`` → ``[N, N]``"""
    kept = _checked(masks)
    common = kept @ kept.T
    own = common.diagonal()
    return common / (own[:, None] + own - common)


def mask_size(ones: int, members: int, scale: float) -> float:
    """Returns how many features N masks with M ones each are expected to use: M·S (1 − (1 − 1/S)^N).

    >>> mask_size(100, members=4, scale=2.0)
    187.5
    """
    for name, value in (("ones", ones), ("members", members)):
        check_value(name, value, Count)
    check_value("scale", scale, Scale)
    return ones * columns_per_one(members, scale)


def mask_statistics(masks: Tensor | Ensemble) -> MaskStatistics:
    """Measures masks ``[N, C]``, such as those of `mt.masks`, or the masks of each layer of a Masksembles ensemble.

    >>> import multitudes as mt
    >>> mask_statistics(mt.masks(32, 4, 2.0, torch.Generator().manual_seed(0))).size
    tensor([32.], dtype=torch.float64)
    """
    tables = {name: _checked(table) for name, table in _tables(masks).items()}
    members = len(next(iter(tables.values())))
    ones, size, scale = (torch.zeros(len(tables), dtype=torch.float64) for _ in range(3))
    for place, (name, table) in enumerate(tables.items()):
        counts = table.sum(1)
        if bool((counts != counts[0]).any()):
            raise InputError(
                f"the masks{f' of {name}' if name else ''} have different numbers of ones, {counts.int().tolist()}"
            )
        ones[place], size[place] = counts[0], table.any(0).sum()
        scale[place] = effective_scale(int(size[place]), members, int(ones[place]))
    limited = scale.clamp(max=1e9)
    expected = [m * columns_per_one(members, s) for m, s in zip(ones.tolist(), limited.tolist(), strict=True)]
    return MaskStatistics(
        tuple(tables),
        members,
        ones,
        size,
        scale,
        torch.stack([mask_iou(table) for table in tables.values()]),
        torch.tensor([overlap(table) for table in tables.values()], dtype=torch.float64),
        torch.tensor(expected, dtype=torch.float64),
        1 / (2 * scale - 1),
    )


def mask_sweep(
    scales: Sequence[float] = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0),
    members: Sequence[int] = (2, 4, 8, 16),
    *,
    ones: int = 100,
    draws: int = 20,
    seed: int = 0,
) -> MaskSweep:
    """Draws masks as the paper does, and measures their size and overlap.

    scales   the scales, S, of at least 1
    members  the numbers of masks, N, of at least 2
    ones     ones of each mask, M. The paper draws them among M·S positions, rounded here
    draws    sets of masks drawn for each pair of N and S; the results are their means
    """
    check_value("scales", tuple(scales), tuple[Scale, ...])
    check_value("members", tuple(members), tuple[Annotated[int, at_least(2)], ...])
    for name, value in (("ones", ones), ("draws", draws)):
        check_value(name, value, Count)
    generator = torch.Generator().manual_seed(seed)
    size, iou, expected = (torch.zeros(len(members), len(scales), dtype=torch.float64) for _ in range(3))
    for row, count in enumerate(members):
        for column, scale in enumerate(scales):
            tables = [_drawn(count, ones, round(ones * scale), generator) for _ in range(draws)]
            size[row, column] = sum(float(table.any(0).sum()) for table in tables) / draws / ones
            iou[row, column] = sum(map(overlap, tables)) / draws
            expected[row, column] = columns_per_one(count, scale)
    at = torch.tensor(scales, dtype=torch.float64)
    return MaskSweep(at, tuple(members), ones, size, iou, expected, (1 / (2 * at - 1)).expand_as(iou))


def _drawn(members: int, ones: int, positions: int, generator: torch.Generator) -> Tensor:
    """Draws masks by the algorithm of §3.2, with all positions: ``[N, positions]``."""
    chosen = torch.rand(members, positions, generator=generator).argsort(1)[:, :ones]
    return torch.zeros(members, positions, dtype=torch.float64).scatter_(1, chosen, 1.0)


def _tables(masks: Tensor | Ensemble) -> dict[str, Tensor]:
    """Returns the masks of each layer, ``[N, C]`` by name; the name of a given tensor is empty."""
    if isinstance(masks, Tensor):
        return {"": masks}
    if not isinstance(masks, Ensemble):
        raise InputError(f"mask_statistics takes masks [N, C] or an ensemble, not a {type(masks).__name__}")
    layers = [(name, layer) for name, layer in masks.template.named_modules() if isinstance(layer, Masked)]
    if not layers:
        raise InputError(f"{type(masks.method).__name__} has no masks: convert with mt.Masksembles()")
    return {f"{name}.{key}": getattr(layer, key) for name, layer in layers for key in masks_in(layer)}


def _checked(masks: Tensor) -> Tensor:
    """Returns masks in double precision, after checking that they are zeros and ones with a one in each mask."""
    table = torch.as_tensor(masks).detach().to("cpu", torch.float64)
    if table.ndim != 2 or not table.numel():
        raise InputError(f"masks must be [N, C], a row for each mask, not {list(table.shape)}")
    if not bool(((table == 0) | (table == 1)).all()) or not bool(table.any(1).all()):
        raise InputError("masks must be zeros and ones, with at least one one in each mask")
    return table
