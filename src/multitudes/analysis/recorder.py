"""Trajectories: records the members' predictions during training, and shows them in two dimensions.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, §3.2 and Fig. 4,
https://arxiv.org/abs/2010.06610, after Fort, Hu, Lakshminarayanan, https://arxiv.org/abs/1912.02757. The predictions of a
member on a fixed set are one point in function space; t-SNE puts the points of all times and members into a plane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.prediction.predict import predict
from multitudes.prediction.values import CLASSES
from multitudes.settings import check_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multitudes.figures.theme import Theme

Way = Literal["tsne", "pca"]


class Trajectories:
    """Records the members' predictions on fixed inputs, each time that `record` is called.

    Call `record()` in your own loop, or give the recorder to `fit`, which then records after each epoch:

        paths = mt.analysis.Trajectories(ens, x)
        mt.fit(ens, train, recipe, loggers=paths)
        paths.figure()

    With `Recipe(ema=...)` it records the weights of the training, not their average.
    """

    def __init__(self, ensemble: Ensemble, x: Any, *, output: str | None = None, class_axis: int | None = None) -> None:
        """Prepares to record predictions on `x`, a tensor, mt.Inputs or a dataset; the options are those of `mt.predict`."""
        if not isinstance(ensemble, Ensemble):
            raise InputError(f"Trajectories takes an ensemble, not a {type(ensemble).__name__}: make one with mt.ensemble(...)")
        self.ensemble, self.x = ensemble, x
        self.options: dict[str, Any] = {"output": output, "class_axis": class_axis}
        self.points: list[Tensor] = []

    def record(self) -> None:
        """Adds the present predictions of all members: probabilities of classes, or the means of a regression."""
        members = predict(self.ensemble, self.x, progress=False, **self.options).members
        values = members.probs if self.ensemble.task in CLASSES else members["mean"]
        self.points.append(values.float().flatten(1))

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Records, since `fit` calls this method of its loggers after each epoch."""
        self.record()

    def finalize(self, status: str) -> None:
        """Does nothing; `fit` calls this method of its loggers at the end."""

    @property
    def predictions(self) -> Tensor:
        """All recorded predictions, ``[T, M, D]``: times, members, and the predictions on all inputs."""
        if not self.points:
            raise InputError("nothing is recorded: call record() during training, or mt.fit(..., loggers=recorder)")
        return torch.stack(self.points)

    def embedding(self, method: Way = "tsne", *, perplexity: float | None = None, seed: int = 0) -> Tensor:
        """Puts the predictions of all times and members into a plane: ``[T, M, 2]``

        method      "tsne" keeps neighbours together (needs scikit-learn); "pca" is the plane of largest variance
        perplexity  of t-SNE, about the number of neighbours; by default 30, or fewer if there are few points
        """
        check_value("method", method, Way)
        predictions = self.predictions
        points = predictions.flatten(0, 1).double()
        if len(points) < 3:
            raise InputError(f"{len(points)} points cannot show a path: record at more times")
        found = _pca(points) if method == "pca" else _tsne(points, perplexity, seed)
        return found.unflatten(0, predictions.shape[:2])

    def figure(self, method: Way = "tsne", *, perplexity: float | None = None, seed: int = 0, theme: Theme = "light") -> Figure:
        """Draws the path of each member in the plane of `embedding`."""
        from multitudes.figures import trajectories as draw

        return draw(self.embedding(method, perplexity=perplexity, seed=seed), label=method, theme=theme)


def _pca(points: Tensor) -> Tensor:
    """Projects points ``[P, D]`` on their first two principal axes; the largest entry of an axis is positive."""
    centred = points - points.mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = torch.nn.functional.pad(axes[:2], (0, 0, 0, max(2 - len(axes), 0)))
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return centred @ (axes * torch.where(largest < 0, -1.0, 1.0)).T


def _tsne(points: Tensor, perplexity: float | None, seed: int) -> Tensor:
    try:
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise InputError(
            "t-SNE needs scikit-learn: pip install 'multitudes[analysis]', or take embedding(method='pca')"
        ) from error
    number = min(30.0, (len(points) - 1) / 3) if perplexity is None else perplexity
    if not 0 < number < len(points):
        raise InputError(f"perplexity={perplexity} must be above 0 and below the number of points, {len(points)}")
    start = _pca(points)
    start = start / start[:, 0].std().clamp(min=1e-12) * 1e-4
    made = TSNE(perplexity=number, random_state=seed, init=start.float().numpy()).fit_transform(points.float().numpy())
    return torch.from_numpy(made).double()
