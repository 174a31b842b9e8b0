"""OOD scores from features: how far an example lies from the training data in front of the members' last layers.

With features z of a member, class means μ_c and covariance Σ about them, o the origin of its last layer and logits l,

    mahalanobis   min_c (z − μ_c)ᵀ Σ⁻¹ (z − μ_c)          Lee et al. 2018, https://arxiv.org/abs/1807.03888
    knn           distance of z / ‖z‖ to the k-th nearest    Sun et al. 2022, https://arxiv.org/abs/2204.06507
    vim           α ‖(z − o)^⊥‖ − log Σ exp l               Wang et al. 2022, https://arxiv.org/abs/2203.10807

(z − o)^⊥ is the part of z − o outside the principal space of the training data. α makes its norm as large as the largest logit
on average. An ensemble's score is the mean of its members' scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes.errors import InputError
from multitudes.prediction.features import Features
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import IGNORED, check_prediction, checked_targets
from multitudes.prediction.values import CLASSES
from multitudes.settings import Count, check_value, takes_names

RIDGE = 1e-6
"""What is added to the diagonal of Σ, relative to its mean: features that never vary would divide by 0."""
PIECE = 1 << 24
"""Largest number of distances at once."""


@takes_names()
def outliers(
    prediction: Prediction,
    targets: Any = None,
    *,
    k: int = 50,
    dimensions: int | None = None,
    ignore: int | None = None,
) -> Outliers:
    """Fits the OOD scores mahalanobis, knn and vim to the features of training data.

    `outliers(mt.predict(ens, train, features=True))` is then called on predictions with features, and returns them with the
    scores under `pred.criteria`, which `mt.score(test, ood=far)` uses. vim needs logits of classes and a linear last layer, and
    is left out elsewhere; mahalanobis takes all examples of a regression as one class.

    targets      labels ``[N]`` or numbers; by default those of the predicted dataset
    k            the neighbour of knn
    dimensions   of vim's principal space; by default half of the features, 512 from 1024 on, and 1000 from 2048 on
    ignore       the label of examples that do not count, besides -100; by default the prediction's, from its dataset
    """
    check_prediction(prediction, "outliers")
    check_value("k", k, Count)
    check_value("dimensions", dimensions, Count | None)
    features = _features_of(prediction)
    labels = _groups(prediction, targets, ignore)
    kept = labels != IGNORED
    if int(kept.sum()) <= k:
        raise InputError(
            f"k={k} needs more than {k} training examples, but there are {int(kept.sum())}: give more, or a smaller k"
        )
    values, labels = features.values[:, kept].double(), labels[kept]
    logits = _logits_of(prediction, features)
    size = values.shape[2]
    if dimensions is not None and dimensions >= size:
        raise InputError(f"dimensions={dimensions} must be below {size}, the number of features: vim measures what is outside")
    wide = dimensions or (1000 if size >= 2048 else 512 if size >= 1024 else size // 2)
    spaces = None
    if logits is not None and features.origins is not None:
        own = zip(values, features.origins.double(), logits[:, kept], strict=True)
        spaces = tuple(VirtualLogit.of(z, origin, logit, wide) for z, origin, logit in own)
    return Outliers(
        classes=tuple(Gaussians.of(z, labels) for z in values),
        neighbours=F.normalize(values, dim=2),
        k=k,
        spaces=spaces,
    )


def _features_of(prediction: Prediction) -> Features:
    if prediction.features is None:
        raise InputError("outliers needs features: predict with mt.predict(ens, data, features=True)")
    if prediction.shape[1:].numel() != 1:
        raise InputError(
            f"outliers takes one label or number per example, but an example here has {list(prediction.shape[1:])}: it has one "
            "vector of features"
        )
    return prediction.features


def _groups(prediction: Prediction, targets: Any, ignore: int | None) -> Tensor:
    """Returns the class of each example, ``[N]``; all numbers are of one class."""
    if prediction.task not in CLASSES:
        return torch.zeros(len(prediction), dtype=torch.long)
    return checked_targets(prediction, targets, ignore).flatten()


def _logits_of(prediction: Prediction, features: Features) -> Tensor | None:
    """Returns members' logits ``[M, N, K]``, as vim needs them; None if there are none."""
    if prediction.task != "classes" or features.origins is None or not prediction.has_members:
        return None
    return prediction.members["logits"].double().cpu() if "logits" in prediction.members else None


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Class means ``[C, D]`` of one member, in coordinates in which the shared covariance is the identity."""

    means: Tensor
    whitening: Tensor
    """The map to these coordinates, ``[D, D]``."""

    @classmethod
    def of(cls, values: Tensor, labels: Tensor) -> Gaussians:
        """Fits means and covariance to features ``[n, D]`` and labels ``[n]``."""
        _, group = labels.unique(return_inverse=True)
        sums = values.new_zeros(int(group.max()) + 1, values.shape[1]).index_add_(0, group, values)
        means = sums / group.bincount()[:, None]
        off = values - means[group]
        covariance = off.T @ off / len(off)
        ridge = RIDGE * covariance.diagonal().mean().clamp(min=1e-30)
        roots, axes = torch.linalg.eigh(covariance)
        whitening = axes / (roots.clamp(min=0) + ridge).sqrt()
        return cls(means @ whitening, whitening)

    def distance(self, values: Tensor) -> Tensor:
        """Returns the squared distance to the nearest mean: ``[n, D]`` → ``[n]``"""
        return torch.cdist(values @ self.whitening, self.means).amin(1) ** 2


@dataclass(frozen=True, eq=False)
class VirtualLogit:
    """The directions that training data hardly uses, and the factor α of their norm, of one member."""

    origin: Tensor
    unused: Tensor
    """``[D, D − dimensions]``"""
    alpha: float

    @classmethod
    def of(cls, values: Tensor, origin: Tensor, logits: Tensor, dimensions: int) -> VirtualLogit:
        """Fits the principal space to features ``[n, D]``, and α to their logits ``[n, K]``."""
        off = values - origin
        _, axes = torch.linalg.eigh(off.T @ off / len(off))  # from the least variance to the largest
        unused = axes[:, : values.shape[1] - dimensions]
        alpha = logits.amax(1).mean() / (off @ unused).norm(dim=1).mean().clamp(min=1e-30)
        return cls(origin, unused, float(alpha))

    def score(self, values: Tensor, logits: Tensor) -> Tensor:
        """Returns the virtual logit above the energy: ``[n, D]``, ``[n, K]`` → ``[n]``"""
        return self.alpha * ((values - self.origin) @ self.unused).norm(dim=1) - logits.logsumexp(1)


@dataclass(frozen=True, eq=False)
class Outliers:
    """Calls on a prediction with features return it with the OOD scores mahalanobis, knn and vim under `pred.criteria`."""

    classes: tuple[Gaussians, ...]
    neighbours: Tensor
    """Training features of length 1, ``[M, n, D]``."""
    k: int
    spaces: tuple[VirtualLogit, ...] | None
    """None where there is no vim."""

    def __call__(self, prediction: Prediction) -> Prediction:
        """Returns the prediction with its scores ``[N]`` by name, larger for examples that look more out-of-distribution."""
        check_prediction(prediction, "Outliers")
        features = _features_of(prediction)
        values = features.values.double()
        if (len(values), values.shape[2]) != (len(self.neighbours), self.neighbours.shape[2]):
            fitted, found = [len(self.neighbours), self.neighbours.shape[2]], [len(values), values.shape[2]]
            raise InputError(f"members and features are {found}, but {fitted} where outliers was fitted: use the same ensemble")
        found_scores = {
            "mahalanobis": torch.stack([one.distance(z) for one, z in zip(self.classes, values, strict=True)]),
            "knn": torch.stack([_kth(z, known, self.k) for z, known in zip(values, self.neighbours, strict=True)]),
        }
        if self.spaces is not None:
            logits = _logits_of(prediction, features)
            if logits is None:
                raise InputError("vim needs the members' logits, as where outliers was fitted: predict with moments_only=False")
            triples = zip(self.spaces, values, logits, strict=True)
            found_scores["vim"] = torch.stack([one.score(z, logit) for one, z, logit in triples])
        return prediction.with_criteria({name: members.mean(0) for name, members in found_scores.items()})

    def __repr__(self) -> str:
        names = ["mahalanobis", "knn", *(["vim"] if self.spaces is not None else [])]
        members, count, size = self.neighbours.shape
        return f"Outliers({', '.join(names)}: {members} members, {count:,} training examples, {size} features)"


def _kth(values: Tensor, known: Tensor, k: int) -> Tensor:
    """Returns the distance of each row, made of length 1, to the k-th nearest of the known: ``[n, D]``, ``[N, D]`` → ``[n]``"""
    step = max(1, PIECE // len(known))
    parts = [torch.cdist(part, known).kthvalue(k, dim=1).values for part in F.normalize(values, dim=1).split(step)]
    return torch.cat(parts) if parts else values.new_zeros(0)
