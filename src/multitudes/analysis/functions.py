"""function_prior: functions of one variable that an ensemble draws, with its weights or with weights from a Gaussian prior.

Chang et al., "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019, appendix D.1, Fig. 3,
https://arxiv.org/abs/1905.09453. A method that draws (EMP, ECMP, dropout, DropConnect) restricts the networks that can occur,
and so the functions. The figure has a network with one hidden layer of 100 units and the sign as activation, biases from
N(0, 20) and weights from N(0, 5); dropout sets weights to 0 with probability 0.5, EMP chooses among K = 5 components. We read
20 and 5 as variances, as in the paper's other Gaussians.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.settings import Count, at_least, check_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multitudes.figures.theme import Theme

NotNegative = Annotated[float, at_least(0)]


@dataclass(frozen=True)
class FunctionPrior:
    """Functions of one variable that an ensemble drew."""

    x: Tensor
    """The points, ``[N]``."""
    values: Tensor
    """The value of each function at each point, ``[D, N]``."""

    @property
    def mean(self) -> Tensor:
        """Mean over functions at each point, ``[N]``."""
        return self.values.mean(0)

    @property
    def variance(self) -> Tensor:
        """Variance over functions at each point, ``[N]``."""
        return self.values.var(0, correction=0)

    @property
    def covariance(self) -> Tensor:
        """Covariance over functions of the values at each pair of points, ``[N, N]``."""
        centred = self.values - self.mean
        return centred.T @ centred / len(centred)

    def figure(self, curves: int = 3, theme: Theme = "light") -> Figure:
        """Draws some functions, and bands of one and two standard deviations over all."""
        from multitudes.figures import function_prior as draw

        return draw(self.x, self.values, curves=curves, theme=theme)


@torch.no_grad()
def function_prior(
    ensemble: Ensemble,
    x: Tensor,
    draws: int = 100,
    *,
    weight_variance: float | None = None,
    bias_variance: float | None = None,
    fresh: bool = True,
    seed: int = 0,
) -> FunctionPrior:
    """Draws functions f(x): each is a new draw of the method, or, if the method does not draw, a member chosen at random.

    ensemble         an ensemble of networks with one output
    x                points of the only input: ``[N]`` or ``[N, 1]``
    draws            the number of functions, D
    weight_variance  draws all parameters but biases from N(0, weight_variance); None keeps the ensemble's own
    bias_variance    the same for biases, the parameters whose name ends with "bias"
    fresh            whether each function has new parameters from these Gaussians; False draws them once for all functions
    seed             seed of parameters and draws. The ensemble is not changed

    Fig. 3 has weight_variance=5 and bias_variance=20; Single is then the Gaussian prior, and Deep the explicit ensemble.
    """
    check_value("draws", draws, Count)
    for name, value in (("weight_variance", weight_variance), ("bias_variance", bias_variance)):
        check_value(name, value, NotNegative | None)
    points = torch.as_tensor(x)
    if points.ndim not in (1, 2) or (points.ndim == 2 and points.shape[1] != 1):
        raise InputError(f"x must be [N] or [N, 1], points of one variable, not {list(points.shape)}")
    changes = weight_variance is not None or bias_variance is not None
    times = draws if fresh and changes else 1
    twin = (ensemble.subset([0]) if times > 1 and ensemble.method.draws else copy.deepcopy(ensemble)).eval()
    inputs = points.reshape(-1, 1).to(next(twin.parameters()))
    generator = torch.Generator().manual_seed(seed)
    values = []
    for _ in range(times):
        if changes:
            _fill(twin, weight_variance, bias_variance, generator)
        values.append(_functions(twin, inputs, draws // times, generator))
    return FunctionPrior(points.detach().cpu().double().flatten(), torch.cat(values))


def _fill(ensemble: Ensemble, weight_variance: float | None, bias_variance: float | None, generator: torch.Generator) -> None:
    """Draws the ensemble's parameters from Gaussians, in place."""
    for name, parameter in ensemble.named_parameters():
        variance = bias_variance if name.endswith("bias") else weight_variance
        if variance is not None:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(variance**0.5 * noise)


def _functions(ensemble: Ensemble, x: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """Returns the values of functions drawn with the ensemble's present parameters, ``[D, N]``."""
    outputs = torch.cat(list(_runs(ensemble, x, draws, generator)))[:draws]
    if outputs.shape[:2] != (draws, len(x)) or outputs.numel() != draws * len(x):
        raise InputError(
            f"a network returns outputs of shape {list(outputs.shape[1:])} for {len(x)} points: function_prior needs one output"
        )
    return outputs.reshape(draws, len(x)).cpu().double()


def _runs(ensemble: Ensemble, x: Tensor, draws: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yields outputs ``[M, N, ...]`` of new draws, or of members chosen at random, until there are at least `draws`."""
    if not ensemble.method.draws:
        yield ensemble(x)[torch.randint(ensemble.members, (draws,), generator=generator)]
        return
    for _ in range(0, draws, ensemble.members):
        yield ensemble.resample(int(torch.randint(2**62, (), generator=generator)))(x)
