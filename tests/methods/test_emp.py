"""EMP: one component for each patched layer; the paper's counts, its two theorems, and the explicit ensemble."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same
from torch import Tensor, nn
from torch.func import functional_call

import multitudes as mt
from multitudes import models
from multitudes.conversion.plan import Counts
from multitudes.engine.draws import draw_all
from multitudes.models import MLP

X, Y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2])
BOTH = pytest.mark.parametrize("kind", [mt.EMP, mt.ECMP])


def perceptron() -> nn.Module:
    return MLP(5, (8, 6), 3, norm="hidden").double()


@functools.cache
def counts(build: Callable[[], nn.Module], method: mt.Method, *shape: int) -> Counts:
    """What a plan on the meta device says, for two inputs of a shape."""
    with torch.device("meta"):
        net, x = build(), torch.zeros(2, *shape)
    found = mt.plan(net, method, x).counts
    assert found is not None
    return found


def resnet18() -> nn.Module:
    return models.resnet18(stem="imagenet", classes=1000)


TABLE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "MLP": (models.emp_mlp, (1,), 1_009_900, 1_129_100),
    "ResNet-18": (resnet18, (3, 224, 224), 11_689_512, 13_779_912),
    "PyramidNet": (models.pyramidnet110_270, (3, 32, 32), 28_511_307, 28_825_299),
}
"""Table 3: the network, its input, its parameters and those with five components in norms and output."""


@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("net", TABLE)
def test_the_counts_of_table_3(kind: Any, net: str) -> None:
    """To the last parameter; the same for EMP and ECMP."""
    build, shape, single, parameters = TABLE[net]
    found = counts(build, kind(components=5, members=3), *shape)
    assert (found.base_parameters, found.parameters) == (single, parameters)


@pytest.mark.parametrize(
    ("net", "patch", "printed"),
    [
        ("ResNet-18", "norm+output", "17.9%"),
        ("ResNet-18", "norm", "0.328%"),
        pytest.param("PyramidNet", "norm+output", "1.10%", marks=pytest.mark.slow),
    ],
)
def test_the_overheads_of_tables_1_and_4(net: str, patch: str, printed: str) -> None:
    """As they are printed."""
    build, shape, single, _ = TABLE[net]
    extra = counts(build, mt.EMP(patch=patch, members=3), *shape).parameters - single
    digits = len(printed.partition(".")[2]) - 1
    assert f"{100 * extra / single:.{digits}f}%" == printed


@pytest.mark.slow
@pytest.mark.parametrize(("net", "components"), [("MLP", 2), ("ResNet-18", 5)])
def test_the_formula_for_norms(net: str, components: int) -> None:
    """Section 3.3: 2 (K − 1) N₂ for BatchNorm behind a layer with N₂ outputs."""
    build, shape, single, _ = TABLE[net]
    with torch.device("meta"):
        widths = [part.num_features for part in build().modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    found = counts(build, mt.EMP(components=components, patch="norm", members=3), *shape).parameters - single
    assert found == sum(2 * (components - 1) * width for width in widths)


@pytest.mark.parametrize("components", [2, 5])
def test_the_formulas_for_input_and_output(components: int) -> None:
    """Section 3.3: (K − 1)((I₁ + 1) O₁ + (I_L + 1) O_L); (K − 1)(k₁² I₁ O₁ + k_L² I_L O_L) for convolutions without bias."""

    def connected() -> nn.Module:
        return nn.Sequential(nn.Linear(7, 11), nn.ReLU(), nn.Linear(11, 13), nn.ReLU(), nn.Linear(13, 4))

    def convolutional() -> nn.Module:
        layers = (nn.Conv2d(i, o, k, bias=False) for i, o, k in ((3, 8, 5), (8, 6, 3), (6, 4, 3)))
        return nn.Sequential(*layers)

    for build, shape, extra in (
        (connected, (7,), (7 + 1) * 11 + (13 + 1) * 4),
        (convolutional, (3, 16, 16), 5**2 * 3 * 8 + 3**2 * 6 * 4),
    ):
        found = counts(build, mt.EMP(components=components, patch="input+output", members=3), *shape)
        assert found.parameters - found.base_parameters == (components - 1) * extra


def test_the_effective_size() -> None:
    """Table 3's K^L with as many factors as there are patched layers."""
    assert mt.ensemble(perceptron(), mt.EMP(components=3, patch="norm+input+output"), X).effective_size == 3**4
    assert mt.ensemble(perceptron(), mt.EMP(components=3, members=4, zero_component=True), X).effective_size == 3**3


@pytest.mark.slow
def test_the_effective_size_of_table_3() -> None:
    """Of the MLP: 99 norms and the output."""
    with torch.device("meta"):
        net, x = models.emp_mlp(), torch.zeros(2, 1)
    assert mt.ensemble(net, mt.EMP(components=5), x).effective_size == 5**100


def drawn(method: mt.Method, count: int = 3000, net: nn.Module | None = None) -> dict[str, Tensor]:
    """The draws of a batch of `count` rows."""
    ens = mt.ensemble(net or perceptron(), method, X, seed=0)
    x = torch.zeros(count, 5, dtype=torch.float64)
    return ens.batch(x, torch.zeros(count)).kwargs["draws"]


def assert_frequencies(found: Tensor, p: list[float]) -> None:
    """As often as the probabilities say, up to five deviations."""
    share = torch.bincount(found.flatten().long(), minlength=len(p)).double() / found.numel()
    expected = torch.tensor(p, dtype=torch.float64)
    assert ((share - expected).abs() <= 5 * (expected * (1 - expected) / found.numel()).sqrt() + 1e-12).all()


@pytest.mark.slow
@pytest.mark.parametrize("probabilities", [None, (0.6, 0.3, 0.1), (0.0, 0.25, 0.75)])
def test_how_often_components_are_drawn(probabilities: Any) -> None:
    """Equally, or as it is set; one number for each layer, and layers independently of each other."""
    draws = drawn(mt.EMP(components=3, draw="row", probabilities=probabilities))
    p = list(probabilities or (1 / 3,) * 3)
    assert {name: tuple(z.shape) for name, z in draws.items()} == {f"layers.{i}.choice": (3000, 1) for i in (1, 4, 6)}
    for z in draws.values():
        assert_frequencies(z, p)
    for one, other in itertools.combinations(draws.values(), 2):
        assert_frequencies(one * 3 + other, [a * b for a in p for b in p])


def test_weight_and_bias_of_one_component() -> None:
    """A layer draws once, whatever it has."""
    ens = mt.ensemble(perceptron(), mt.EMP(components=3, members=30), X, seed=0)
    seen = set()
    for m in range(30):
        own = ens.member(m)
        for name in ("layers.1", "layers.4", "layers.6"):
            k = int(ens.get_buffer(f"{name}.choice")[m])
            seen.add((name, k))
            for key in ("weight", "bias"):
                assert torch.equal(own.get_parameter(f"{name}.{key}"), ens.get_parameter(f"{name}.{key}")[k])
    assert len(seen) == 9


@pytest.mark.slow
def test_every_step_draws_anew() -> None:
    """And another ensemble of the same seed draws the same steps."""
    one, same, other = (mt.ensemble(perceptron(), mt.EMP(components=50), X, seed=seed) for seed in (0, 0, 1))
    steps = [[ens.batch(X, Y).kwargs["draws"] for _ in range(5)] for ens in (one, same, other)]
    assert_same(steps[0], steps[1])
    assert len({tuple(int(z) for z in step.values()) for step in [*steps[0], *steps[2]]}) == 10


def test_a_step_leaves_predictions_alone() -> None:
    """What members have drawn stays, until they are drawn again."""
    ens = mt.ensemble(perceptron(), mt.EMP(components=3, members=4), X, seed=0).eval()
    before = ens(X)
    ens.batch(X, Y)
    ens.train()
    ens(X, draws=ens.batch(X, Y).kwargs["draws"])
    ens.eval()
    for name, buffer in ens.named_buffers():
        if name.endswith("running_mean"):
            buffer.zero_()
        if name.endswith("running_var"):
            buffer.fill_(1.0)
    assert_same(ens(X), before)


def test_one_z_for_all_layers_is_an_explicit_ensemble() -> None:
    """Table 2: with all layers patched and the same component in each, K networks, and each has its own gradient."""
    net = perceptron()
    ens = mt.ensemble(net, mt.EMP(components=4, patch="*", prior="none"), X, seed=0)
    names = [name for name, _ in ens.named_buffers() if name.endswith("choice")]
    assert len(names) == 5
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    own = [{n: p.detach()[k].clone().requires_grad_() for n, p in ens.named_parameters()} for k in range(4)]
    for k in range(4):
        batch = ens.train().batch(X, Y)
        draws = {name: torch.full((1, 1), k) for name in names}
        ens.zero_grad()
        loss = ens.reduce(ens(X, draws=draws), batch, F.cross_entropy)
        loss.backward()
        expected = F.cross_entropy(functional_call(net.train(), own[k], (X,)), Y)
        expected.backward()
        assert_same(loss.detach(), expected.detach())
        for name, parameter in ens.named_parameters():
            assert_same(parameter.grad[k], own[k][name].grad)
            assert not parameter.grad[[other for other in range(4) if other != k]].any()
    together = {name: torch.arange(4)[:, None] for name in names}
    separate = torch.stack([functional_call(ens.eval().member(0), weights, (X,)) for weights in own])
    assert_same(ens(X, draws=together).detach(), separate.detach())


def log_mixture(theta: Tensor, centres: Tensor, p: Tensor, sigma: float) -> Tensor:
    """log Σ_k p_k N(θ; μ_k, σ² I). Shape: ``[S, D]`` and ``[K, D]`` → ``[S]``"""
    size = theta.shape[1]
    squares = (theta[:, None] - centres).square().sum(2) / sigma**2
    return torch.logsumexp(p.log() - squares / 2 - size / 2 * math.log(2 * math.pi * sigma**2), 1)


@pytest.mark.parametrize(("inputs", "probabilities"), [(1, None), (2, (0.5, 0.2, 0.3))])
def test_theorem_1(inputs: int, probabilities: Any) -> None:
    """The KL of the mixture from the prior, by our own draws, is eq. 6 up to a constant: the same for two sets of components.

    Where components lie far apart the constant is known: the entropy of a Gaussian and that of z, and the prior's own.
    """
    sigma, tau, samples = 0.05, 0.7, 3000
    method = mt.EMP(
        components=3, prior="elbo", tau=tau, rho=tau, examples=1, sigma=sigma, probabilities=probabilities
    )  # fmt: skip
    x = torch.zeros(2, inputs, dtype=torch.float64)
    ens = mt.ensemble(nn.Linear(inputs, 1).double(), method, x, seed=0)
    p, size = torch.tensor(probabilities or [1 / 3] * 3, dtype=torch.float64), inputs + 1
    constant = -size / 2 * math.log(2 * math.pi * math.e * sigma**2) + (p * p.log()).sum()
    constant = constant + size / 2 * math.log(2 * math.pi / tau) + tau / 2 * size * sigma**2
    draws = draw_all(ens.template, range(samples))
    for scale in (1.0, 3.0):
        centres = scale * torch.tensor([[-1.0, 0.5, 1.0], [1.0, 1.0, -1.5], [0.2, -1.0, 1.0]], dtype=torch.float64)[:, :size]
        with torch.no_grad():
            ens.get_parameter("weight").copy_(centres[:, None, :inputs])
            ens.get_parameter("bias").copy_(centres[:, inputs:])
        noise = torch.cat([draws["weight_noise"].flatten(1), draws["bias_noise"]], 1)
        theta = centres[draws["choice"].flatten()] + sigma * noise
        prior = -tau / 2 * theta.square().sum(1) + size / 2 * math.log(tau / (2 * math.pi))
        terms = log_mixture(theta, centres, p, sigma) - prior
        penalty = ens.method.penalty(ens, 1)
        assert penalty is not None
        found, deviation = terms.mean(), terms.std() / samples**0.5
        assert abs(found - (penalty.detach() + constant)) < 4 * deviation
        assert deviation < 0.05 * found


@pytest.mark.parametrize(("norm", "probabilities"), [("none", (0.7, 0.3)), ("hidden", None)])
def test_theorem_2(norm: Any, probabilities: Any) -> None:
    """Over all draws, each as often as it comes, gradients average to that of the expected loss; BatchNorm or not."""
    net = MLP(5, (4, 4), 3, norm=norm).double()
    ens = mt.ensemble(net, mt.EMP(components=2, patch="layers", probabilities=probabilities), X, seed=0).train()
    p = probabilities or (0.5, 0.5)
    names = [name for name, _ in ens.named_buffers() if name.endswith("choice")]
    state = {name: q.detach().clone().requires_grad_() for name, q in ens.named_parameters()}
    average = {name: torch.zeros_like(q) for name, q in state.items()}
    expected = torch.zeros((), dtype=torch.float64)
    for z in itertools.product(range(2), repeat=len(names)):
        chance = math.prod(p[k] for k in z)
        ens.zero_grad()
        batch = ens.batch(X, Y)
        output = ens(X, draws={name: torch.tensor([[k]]) for name, k in zip(names, z, strict=True)})
        ens.reduce(output, batch, F.cross_entropy).backward()
        for name, q in ens.named_parameters():
            average[name] += chance * q.grad
        layer = {name.removesuffix(".choice"): k for name, k in zip(names, z, strict=True)}
        own = {name: q[layer[name.rpartition(".")[0]]] for name, q in state.items()}
        expected = expected + chance * F.cross_entropy(functional_call(net.train(), own, (X,)), Y)
    (expected + 0.001 / 6 * sum(q.square().sum() for q in state.values())).backward()
    assert_same(average, {name: q.grad for name, q in state.items()})


def test_the_networks_of_the_regression_tables() -> None:
    """γ starts at 0.2, only norms are patched, and moments have 1/τ of the output."""
    method = mt.EMP(patch="norm", gamma=0.2, tau_output=0.1, init="copies", members=10)
    ens = mt.ensemble(models.emp_regression(5).double(), method, X, seed=0, task="regression").eval()
    norms = [p for n, p in ens.named_parameters() if p.shape[0] == 5 and n.endswith("weight") and p.ndim == 2]
    assert any((p == 0.2).all() for p in norms)
    mean, variance = ens.moments(X)
    assert mean.shape == variance.shape == (6, 1)
    assert torch.allclose(variance, torch.full_like(variance, 10.0))


@pytest.mark.slow
def test_training_learns_every_component() -> None:
    """A few hundred steps fit a function of one variable, and components that are drawn all move."""
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    y = torch.sin(3 * x)
    ens = mt.ensemble(MLP(1, (20,), 1, norm="hidden").double(), mt.EMP(components=3, members=8), x, seed=0).train()
    before = {name: p.detach().clone() for name, p in ens.named_parameters()}
    optimiser = torch.optim.Adam(ens.param_groups(lr=0.01))
    for _ in range(300):
        optimiser.zero_grad()
        ens.loss(x, y, F.mse_loss).backward()
        optimiser.step()
    mean, _ = ens.eval().moments(x)
    assert F.mse_loss(mean, y) < 0.05 < F.mse_loss(torch.zeros_like(y), y)
    for name in ("layers.1.weight", "layers.3.weight"):
        moved = (ens.get_parameter(name).detach() - before[name]).flatten(1).norm(dim=1)
        assert (moved > 0.01).all()


class OwnNorm(nn.Module):
    """A norm of the user's own, with two vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) * self.scale + self.shift


@pytest.mark.parametrize("patch", ["norm", "norm+output"])
def test_all_vectors_of_an_own_norm_start_around_the_given_ones(patch: str) -> None:
    """The first vector with components does not make the second one a weight to draw afresh."""
    net = nn.Sequential(nn.Linear(5, 400), OwnNorm(400), nn.Linear(400, 3))
    ens = mt.ensemble(net, mt.EMP(members=3, components=4, patch=patch), X.float(), seed=0)
    for key, given in (("scale", 1.0), ("shift", 0.0)):
        components = ens.template[1].get_parameter(key)
        assert components.shape == (4, 400)
        torch.testing.assert_close(components.mean(), torch.tensor(given), rtol=0, atol=0.02)
        torch.testing.assert_close(components.std(), torch.tensor(0.1), rtol=0, atol=0.02)


class ReadTwice(nn.Module):
    """A norm whose weight is read outside it too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.first(x)).relu()) + self.norm.weight.square().mean()


@BOTH
def test_a_norm_that_members_share_in_training_may_be_read_outside_it(kind: Callable[..., mt.Method]) -> None:
    ens = mt.ensemble(ReadTwice(), kind(members=2, patch="input+norm"), X.float(), seed=0).eval()
    for m, output in enumerate(ens(X.float())):
        torch.testing.assert_close(output, ens.member(m).eval()(X.float()))
