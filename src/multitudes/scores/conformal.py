"""Conformal prediction: sets of classes, and intervals of numbers, that contain the truth with a chosen probability.

A score s(x, y) says how badly y fits the prediction at x. Of n held-out examples take q, the k-th smallest score, with
k = ⌈(n + 1) level⌉. All y with s(x, y) ≤ q form the set of x. If held-out and new examples are exchangeable, the set contains
the truth with probability at least `level`, and without ties at most level + 1/(n + 1), whatever the network is. The
probability is over examples, not at each x.

    thr      1 − p_y, also called LAC                           Sadinle, Lei, Wasserman 2019, https://arxiv.org/abs/1609.00451
    aps      Σ p_j over classes likelier than y, plus u p_y     Romano, Sesia, Candès 2020, https://arxiv.org/abs/2006.02544
    raps     aps + penalty · max(0, rank of y − free)           Angelopoulos et al. 2021, https://arxiv.org/abs/2009.14193
    split    |y − μ|                                            Lei et al. 2018, https://arxiv.org/abs/1604.04173
    scaled   |y − μ| / σ                                        the same paper, section 5.2
    cqr      max(low − y, y − high)                             Romano, Patterson, Candès 2019, https://arxiv.org/abs/1905.03222

p, μ, σ and the quantiles low and high are those of the mixture. u is uniform on [0, 1], one for each example.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import IGNORED, check_prediction, checked_targets
from multitudes.prediction.values import CLASSES
from multitudes.settings import above, at_least, below, check_value, takes_names

OF_CLASSES, OF_NUMBERS = ("thr", "aps", "raps"), ("split", "scaled", "cqr")
"""Scores of classes, and of numbers."""
GROUPS = 3
"""Groups of intervals, by width, of which size-stratified coverage is the worst."""


@takes_names()
def conformal(
    prediction: Prediction,
    targets: Any = None,
    *,
    level: float = 0.9,
    score: Literal["thr", "aps", "raps", "split", "scaled", "cqr"] | None = None,
    seed: int | None = 0,
    penalty: float = 0.1,
    free: int = 1,
    ignore: int | None = None,
) -> Conformal:
    """Fits sets of classes, or intervals, that contain the truth with probability `level`, on held-out data.

    targets   labels ``[N]`` or numbers ``[N, ...]``; by default those of the predicted dataset
    level     the probability that a new set contains its truth. It needs level / (1 − level) examples at least: 19 for 0.95
    score     "thr" has the smallest sets, "aps" covers easy and hard examples more alike, "raps" is aps with fewer large sets;
              "split" gives intervals of one width, "scaled" widths by pred.std, "cqr" moves the ends of pred.interval(level).
              By default aps, cqr with variances, and split without
    seed      of the random u of aps and raps, by which coverage is exact. None for u = 1: larger sets, and none at random
    penalty   of raps, for each class of a higher rank than `free`
    free      the number of classes that raps does not penalise
    ignore    the label of examples that do not count, besides -100; by default the prediction's, from its dataset

    >>> within = mt.conformal(mt.predict(ens, validation), level=0.9)     # doctest: +SKIP
    >>> within(mt.predict(ens, test)).scores()                            # doctest: +SKIP
    """
    check_prediction(prediction, "conformal")
    check_value("level", level, Annotated[float, above(0), below(1)])
    check_value("penalty", penalty, Annotated[float, at_least(0)])
    check_value("free", free, Annotated[int, at_least(0)])
    check_value("seed", seed, int | None)
    rule = Rule(_checked_score(prediction, score), float(level), seed, float(penalty), free)
    values = rule.of_targets(prediction, checked_targets(prediction, targets, ignore))
    place = rank_of_quantile(len(values), level)
    return Conformal(
        rule=rule,
        quantile=values.sort(0).values[place - 1],
        examples=len(values),
        like=prediction[:0],
    )


def rank_of_quantile(count: int, level: float) -> int:
    """Returns ⌈(n + 1) level⌉: which of n scores, from the smallest, is the quantile. Refuses too small an n.

    >>> rank_of_quantile(19, 0.95), rank_of_quantile(1000, 0.9)
    (19, 901)
    """
    share = Fraction(str(float(level)))  # as it is typed: 0.9 as a double is a little more, and 10 · 0.9 must stay 9
    rank = math.ceil((count + 1) * share)
    if rank > count:
        needed = math.ceil(share / (1 - share))
        raise InputError(
            f"level={level:g} needs at least {needed} held-out examples with a target, but there are {count}: give more, or "
            + (f"level={_rounded_down(count / (count + 1))} at most" if count else "a prediction with targets")
        )
    return rank


def _rounded_down(level: float) -> str:
    """Returns a level in three digits that is not larger, so that it can be typed."""
    return f"{math.floor(level * 1000) / 1000:g}"


def _checked_score(prediction: Prediction, score: str | None) -> str:
    """Returns the score, or the task's own by default. Refuses those of other tasks, and several labels of an example."""
    numbers = prediction.task not in CLASSES
    own = "aps" if not numbers else "cqr" if prediction.task == "gaussian" else "split"
    fitting, others = (OF_NUMBERS, OF_CLASSES) if numbers else (OF_CLASSES, OF_NUMBERS)
    if score is not None and score not in fitting:
        why = (
            f"is for {'classes' if numbers else 'numbers'}, not for task={prediction.task!r}"
            if score in others
            else "is unknown"
        )
        raise InputError(
            f"score={score!r} {why}: choose one of {', '.join(fitting)}" + (" (thr is LAC)" if score == "lac" else "")
        )
    if not numbers and len(prediction.shape) > 1:
        raise InputError(
            f"conformal sets need one label per example, but targets here are {list(prediction.shape)}: labels of one example "
            "are not exchangeable with those of others. Take one of each, Prediction(logits=logits[..., row, column])"
        )
    return score or own


@dataclass(frozen=True)
class Rule:
    """A score of classes or numbers, and its settings."""

    score: str
    level: float
    seed: int | None
    penalty: float
    free: int

    def of_targets(self, prediction: Prediction, targets: Tensor) -> Tensor:
        """Returns the scores of held-out targets, ``[n]``, or of several numbers ``[n, ...]``, without ignored examples."""
        if self.score in OF_CLASSES:
            kept = targets != IGNORED
            return self.of_classes(prediction, held_out=True).gather(1, targets.clamp(min=0)[:, None]).squeeze(1)[kept]
        centre, spread = self.centre_and_spread(prediction)
        targets = targets.double()
        if self.score == "cqr":
            low, high = centre - spread, centre + spread
            return torch.maximum(low - targets, targets - high)
        return (targets - centre).abs() / spread

    def of_classes(self, prediction: Prediction, held_out: bool = False) -> Tensor:
        """Returns the score of every class, ``[N, K]``. Held-out and new examples have different random u."""
        probs = prediction.logs.exp().double().cpu()
        if self.score == "thr":
            return 1 - probs
        order = probs.argsort(dim=1, descending=True, stable=True)
        ordered = probs.gather(1, order)
        found = ordered.cumsum(1) - (1 - self.shares(len(probs), held_out)) * ordered
        if self.score == "raps":
            found = found + self.penalty * (torch.arange(1, probs.shape[1] + 1) - self.free).clamp(min=0)
        return torch.empty_like(found).scatter_(1, order, found)

    def shares(self, count: int, held_out: bool) -> Tensor:
        """Draws u for each example, ``[n, 1]``; 1 without a seed."""
        if self.seed is None:
            return torch.ones(count, 1, dtype=torch.float64)
        generator = torch.Generator().manual_seed(2 * self.seed + held_out)
        return torch.rand(count, 1, dtype=torch.float64, generator=generator)

    def centre_and_spread(self, prediction: Prediction) -> tuple[Tensor, Tensor]:
        """Returns the middle of each interval, and what its half width is measured by: 1, std, or for cqr the half width."""
        if self.score == "cqr":
            low, high = (end.double().cpu() for end in prediction.interval(self.level))
            return (low + high) / 2, (high - low) / 2
        centre = prediction.mean.double().cpu()
        if self.score == "split":
            return centre, torch.ones_like(centre)
        spread = prediction.std.double().cpu()
        if bool((spread <= 0).any()):
            raise InputError("score='scaled' divides by pred.std, which is 0 for some examples: use score='split'")
        return centre, spread


@dataclass(frozen=True, eq=False)
class Conformal:
    """Calls on a prediction give its sets of classes or its intervals: `within(mt.predict(ens, test))`."""

    rule: Rule
    quantile: Tensor
    """The largest score of what is in a set or interval; for several numbers one of each, ``[...]``."""
    examples: int
    """The number of held-out examples."""
    like: Prediction
    """The held-out prediction without its examples: others must be of the same ensemble."""

    def __call__(self, prediction: Prediction) -> Sets | Intervals:
        """Returns the sets of classes ``[N, K]``, or the intervals ``[N, ...]``, of a prediction of the same ensemble."""
        check_prediction(prediction, "Conformal")
        self._check_alike(prediction)
        if self.rule.score in OF_CLASSES:
            return Sets(prediction, self.rule.of_classes(prediction) <= self.quantile)
        centre, spread = self.rule.centre_and_spread(prediction)
        half = spread + self.quantile if self.rule.score == "cqr" else self.quantile * spread
        return Intervals(prediction, centre - half, centre + half)

    def _check_alike(self, prediction: Prediction) -> None:
        like = self.like
        pairs: dict[str, Callable[[Prediction], Any]] = {
            "task": lambda one: one.task,
            "number of classes": lambda one: one.classes if one.task in CLASSES else None,
            "shape of an example": lambda one: list(one.shape[1:]),
            "number of members": lambda one: one.count,
            "calibrator": lambda one: one.calibrator,
        }
        for what, of in pairs.items():
            if of(prediction) != of(like):
                raise InputError(
                    f"the {what} is {of(prediction)}, but {of(like)} in the held-out prediction: predict both with the same "
                    "ensemble, or call conformal again"
                )

    def __repr__(self) -> str:
        shown = f"{float(self.quantile):.4g}" if self.quantile.numel() == 1 else f"{list(self.quantile.shape)}"
        return f"Conformal({self.rule.score}: level {self.rule.level:g}, quantile {shown}, {self.examples:,} held-out examples)"


@dataclass(frozen=True, eq=False)
class Sets:
    """A set of classes for each example."""

    prediction: Prediction
    contains: Tensor
    """Whether a class is in the set of an example, ``[N, K]``."""

    def __len__(self) -> int:
        return len(self.contains)

    def __getitem__(self, example: int) -> list[int]:
        """Returns the classes in the set of an example, the most probable first."""
        order = self.prediction.logs[example].cpu().argsort(dim=0, descending=True, stable=True)
        return [int(k) for k in order if self.contains[example, k]]

    @property
    def sizes(self) -> Tensor:
        """The number of classes in each set, ``[N]``."""
        return self.contains.sum(1)

    def scores(self, targets: Any = None, *, ignore: int | None = None) -> dict[str, float]:
        """Returns coverage, mean size and size-stratified coverage: the lowest coverage among sets of one size.

        targets   labels ``[N]``; by default those of the prediction
        ignore    as in `conformal`
        """
        labels = checked_targets(self.prediction, targets, ignore)
        kept = labels != IGNORED
        covered = self.contains.gather(1, labels.clamp(min=0)[:, None]).squeeze(1)[kept].double()
        sizes = self.sizes[kept]
        return {
            "coverage": _mean(covered),
            "size": _mean(sizes.double()),
            "size_stratified_coverage": min((_mean(covered[sizes == size]) for size in sizes.unique()), default=math.nan),
        }

    def __repr__(self) -> str:
        return f"Sets({len(self):,} examples, {self.contains.shape[1]} classes, mean size {_mean(self.sizes.double()):.2f})"


@dataclass(frozen=True, eq=False)
class Intervals:
    """An interval for each number."""

    prediction: Prediction
    low: Tensor
    """The lower ends, ``[N, ...]``."""
    high: Tensor
    """The upper ends, ``[N, ...]``. Where one is below the lower end, as cqr allows, the interval is empty."""

    def __len__(self) -> int:
        return len(self.low)

    @property
    def widths(self) -> Tensor:
        """The width of each interval, ``[N, ...]``."""
        return (self.high - self.low).clamp(min=0)

    def scores(self, targets: Any = None) -> dict[str, float]:
        """Returns coverage, mean width and size-stratified coverage: the lowest coverage of three groups by width.

        Groups have equally many intervals; those of one width are in one group. Several numbers of an example are averaged in
        the first two, and count as intervals of their own in the third.

        targets   numbers ``[N, ...]``; by default those of the prediction
        """
        numbers = checked_targets(self.prediction, targets).double()
        covered = ((numbers >= self.low) & (numbers <= self.high)).double().flatten()
        widths = self.widths.flatten()
        alike = (widths / widths.max().clamp(min=1e-300)).round(decimals=9) if len(widths) else widths  # up to rounding
        cuts = alike.sort().values[[len(alike) * g // GROUPS for g in range(1, GROUPS)]] if len(alike) else alike
        group = torch.bucketize(alike, cuts.unique(), right=True)
        return {
            "coverage": _mean(covered),
            "width": _mean(widths),
            "size_stratified_coverage": min((_mean(covered[group == g]) for g in group.unique()), default=math.nan),
        }

    def __repr__(self) -> str:
        return f"Intervals({list(self.low.shape)}, mean width {_mean(self.widths.flatten()):.4g})"


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else math.nan
