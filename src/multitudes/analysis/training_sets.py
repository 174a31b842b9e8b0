"""bias_variance: bias, variance and error of a regression, over training sets and numbers of members.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, §2.1 and Fig. 2,
https://arxiv.org/abs/2010.06610. With f̂ the regressor learned on a training set and f̄ its mean over training sets,

    E[(f̂(x) − y)²] = E[(f̄(x) − y)²] + E[(f̄(x) − f̂(x))²]      error = squared bias + variance

where the outer means are over the test set and, for error and variance, over training sets. The noise of the test targets is
part of the squared bias, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from multitudes.data.batches import batched
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.prediction.predict import predict
from multitudes.settings import Count, at_least, check_value
from multitudes.terminal import bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multitudes.figures.theme import Theme

Learn = Callable[[Any, int, int], Any]
"""learn(data, members, seed) returns an ensemble trained on a set, or a function from inputs to outputs ``[M, N, ...]``."""


@dataclass(frozen=True)
class BiasVariance:
    """Squared bias, variance and error for each number of members, ``[K]``: of the ensemble, and the mean over members."""

    members: tuple[int, ...]
    """The numbers of members, M."""
    sets: int
    """The number of training sets."""
    bias: Tensor
    """Squared bias of the ensemble."""
    variance: Tensor
    """Variance of the ensemble."""
    error: Tensor
    """Mean squared error of the ensemble: the sum of squared bias and variance."""
    member_bias: Tensor
    """Squared bias of single members."""
    member_variance: Tensor
    """Variance of single members."""
    member_error: Tensor
    """Mean squared error of single members."""

    def figure(self, theme: Theme = "light") -> Figure:
        """Draws squared bias, variance and error over the number of members, for the ensemble and for single members."""
        from multitudes.figures import bias_variance as draw

        ensemble = {"bias": self.bias, "variance": self.variance, "error": self.error}
        member = {"bias": self.member_bias, "variance": self.member_variance, "error": self.member_error}
        return draw(self.members, {"ensemble": ensemble, "single member": member}, theme=theme)


def bias_variance(
    learn: Learn,
    train: Callable[[int], Any],
    test: Any,
    *,
    members: Sequence[int] = (1, 2, 3, 4, 5),
    sets: int = 20,
    progress: bool | None = None,
) -> BiasVariance:
    """Trains on many training sets, and splits the test error into squared bias and variance.

    learn     learn(data, members, seed) trains an ensemble on a training set, by `mt.fit` or in your own loop, and returns it;
              or returns any function from the test inputs to the outputs of all members, ``[M, N, ...]``
    train     train(seed) makes a training set
    test      dataset of pairs (input, target)
    members   the numbers of members
    sets      the number of training sets, S, at least 2. The squared bias includes about 1/S of the variance
    progress  whether to show a progress bar; by default only in a terminal
    """
    check_value("sets", sets, Annotated[int, at_least(2)])
    check_value("members", tuple(members), tuple[Count, ...])
    x, y = _inputs_and_targets(test)
    parts: list[list[Tensor]] = []
    with bar("bias_variance", len(members) * sets, progress, "trainings") as advance:
        for count in members:
            outputs = torch.stack([_outputs(learn(train(seed), count, seed), x, y, count) for seed in range(sets)])
            advance(sets)
            ensemble, single = _split(outputs.mean(1), y), _split(outputs, y)  # [S, N], [S, M, N]
            parts.append([*ensemble, *single])
    columns = [torch.stack(column) for column in zip(*parts, strict=True)]
    return BiasVariance(tuple(members), sets, *columns)


def _split(outputs: Tensor, y: Tensor) -> list[Tensor]:
    """Returns squared bias, variance and error of outputs ``[S, ..., N]``; S counts training sets."""
    mean = outputs.mean(0)
    return [((mean - y) ** 2).mean(), ((outputs - mean) ** 2).mean(), ((outputs - y) ** 2).mean()]


def _inputs_and_targets(test: Any) -> tuple[Tensor, Tensor]:
    pairs = list(batched(test, 4096, 0)[1])
    if any(target is None for _, target in pairs) or any(len(call.tensors()) != 1 for call, _ in pairs):
        raise InputError("test must be a dataset of pairs (input, target), such as data.noisy_function('test')")
    x = torch.cat([call.tensors()[0] for call, _ in pairs])
    return x, torch.cat([target for _, target in pairs if target is not None]).double().flatten()


def _outputs(learned: Any, x: Tensor, y: Tensor, members: int) -> Tensor:
    """Returns the outputs of a trained ensemble on all test inputs, ``[M, N]``."""
    if isinstance(learned, Ensemble):
        if learned.task not in ("regression", "gaussian"):
            raise InputError(
                f"bias_variance splits a squared error, but the ensemble's task is {learned.task!r}: "
                "convert with mt.ensemble(..., task='regression')"
            )
        outputs = predict(learned, x, progress=False).members.mean
    elif callable(learned):
        outputs = torch.as_tensor(learned(x)).detach().cpu()
    else:
        raise InputError(f"learn returned a {type(learned).__name__}: return the trained ensemble, or a function of the inputs")
    if outputs.numel() != members * len(y) or len(outputs) != members:
        raise InputError(
            f"learn(data, members={members}, seed) returned outputs of shape {list(outputs.shape)} for {len(y)} targets: "
            f"return an ensemble of {members} members with one output for each target"
        )
    return outputs.double().flatten(1)
