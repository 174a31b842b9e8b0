"""ECMP: one component for each element; dropout and DropConnect are special cases of it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same
from torch import Tensor, nn
from torch.func import functional_call

import multitudes as mt
from multitudes import models
from multitudes.engine.draws import draw_all
from multitudes.models import MLP

X, Y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2])


def perceptron() -> nn.Module:
    return MLP(5, (8, 6), 3, norm="hidden").double()


def test_the_effective_size() -> None:
    """Table 3's K^(H² + LH): a factor for each element of norms and output."""
    assert mt.ensemble(perceptron(), mt.ECMP(components=3), X).effective_size == 3 ** (2 * 8 + 2 * 6 + 3 * 6 + 3)


@pytest.mark.slow
def test_the_effective_size_of_table_3() -> None:
    with torch.device("meta"):
        net, x = models.emp_mlp(), torch.zeros(2, 1)
    assert mt.ensemble(net, mt.ECMP(components=5), x).effective_size == 5 ** (100**2 + 99 * 2 * 100)


@pytest.mark.parametrize("probabilities", [None, (0.6, 0.3, 0.1)])
def test_how_often_components_are_drawn(probabilities: Any) -> None:
    """Every element as the probabilities say, and each independently of all others: in a layer, and across layers."""
    count = 3000
    ens = mt.ensemble(perceptron(), mt.ECMP(components=3, draw="row", probabilities=probabilities), X, seed=0)
    draws = ens.batch(torch.zeros(count, 5, dtype=torch.float64), torch.zeros(count)).kwargs["draws"]
    shapes = {f"{n}.{k}_choice": t.shape[1:] for n in ("layers.1", "layers.4", "layers.6") for k, t in parts(ens, n)}
    assert {name: z.shape for name, z in draws.items()} == {name: (count, *shape) for name, shape in shapes.items()}
    flat = torch.cat([z.flatten(1) for z in draws.values()], 1).long()
    p = torch.tensor(probabilities or [1 / 3] * 3, dtype=torch.float64)
    for k in range(3):
        hits = (flat == k).double()
        assert ((hits.mean(0) - p[k]).abs() < 5 * (p[k] * (1 - p[k]) / count).sqrt()).all()
        together = torch.corrcoef(hits.T) - torch.eye(flat.shape[1])
        assert together.abs().max() < 5.5 / count**0.5


def parts(ens: mt.Ensemble, name: str) -> list[tuple[str, Tensor]]:
    return [(key, ens.get_parameter(f"{name}.{key}")) for key in ("weight", "bias")]


def test_elements_of_one_member() -> None:
    """Each comes from one of the components, and from all of them."""
    ens = mt.ensemble(perceptron(), mt.ECMP(components=3, members=4), X, seed=0)
    for m in range(4):
        own, components = ens.member(m).get_parameter("layers.6.weight"), ens.get_parameter("layers.6.weight")
        picked = ens.get_buffer("layers.6.weight_choice")[m]
        assert len(picked.unique()) == 3
        for i, j in itertools.product(range(3), range(6)):
            assert own[i, j] == components[int(picked[i, j]), i, j]


@pytest.mark.slow
def test_what_is_drawn_is_small() -> None:
    """One byte for each element, up to 256 components."""
    few, many = (mt.ensemble(nn.Linear(5, 3), mt.ECMP(components=k, members=3), X.float(), seed=0) for k in (256, 257))
    assert few.get_buffer("weight_choice").dtype == torch.uint8
    assert many.get_buffer("weight_choice").dtype == torch.int64
    assert many.batch(X.float(), Y).kwargs["draws"]["weight_choice"].dtype == torch.int64


def thinned() -> mt.Ensemble:
    """Linear layers with a second component that is zero."""
    method = mt.ECMP(components=2, zero_component=True, patch="*", init="copies", prior="none")
    return mt.ensemble(MLP(5, (8, 6), 3).double(), method, X, seed=0).train()


def assert_masked_step(ens: mt.Ensemble, masks: dict[str, Tensor], output: Tensor, state: dict[str, Tensor]) -> None:
    """The ensemble with zero drawn where masks are 0, and biases kept, gives this output and its gradients."""
    draws = {f"{name}.weight_choice": (1 - mask).to(torch.uint8)[None] for name, mask in masks.items()}
    draws |= {n: torch.zeros_like(b[:1]) for n, b in ens.named_buffers() if n.endswith("bias_choice")}
    found = ens(X, draws=draws)[0]
    assert_same(found.detach(), output.detach())
    F.cross_entropy(found, Y).backward()
    F.cross_entropy(output, Y).backward()
    for name, parameter in ens.named_parameters():
        assert parameter.shape[0] == 1
        assert_same(parameter.grad[0], state[name].grad)


LINEAR = ("layers.0", "layers.2", "layers.4")


def weights(ens: mt.Ensemble) -> dict[str, Tensor]:
    return {name: p.detach()[0].clone().requires_grad_() for name, p in ens.named_parameters()}


def test_dropconnect() -> None:
    """Table 2: K = 2, the second component zero, one z for each weight; the bias always from the first."""
    ens = thinned()
    state = weights(ens)
    masks = {name: torch.bernoulli(torch.full_like(state[f"{name}.weight"], 0.6)).detach() for name in LINEAR}
    h = X
    for i, name in enumerate(LINEAR):
        h = F.linear(h if i == 0 else h.relu(), state[f"{name}.weight"] * masks[name], state[f"{name}.bias"])
    assert_masked_step(ens, masks, h, state)


def test_dropout() -> None:
    """Table 2: one z for each input unit, the same for all weights that leave it; nothing is scaled up for it."""
    ens = thinned()
    state = weights(ens)
    kept = {name: torch.bernoulli(torch.full((state[f"{name}.weight"].shape[1],), 0.6).double()) for name in LINEAR}
    h = X
    for i, name in enumerate(LINEAR):
        h = F.linear((h if i == 0 else h.relu()) * kept[name], state[f"{name}.weight"], state[f"{name}.bias"])
    assert_masked_step(ens, {name: unit.expand_as(state[f"{name}.weight"]) for name, unit in kept.items()}, h, state)


def test_one_z_for_a_layer_is_emp() -> None:
    """Drawn equal, elements give what EMP gives."""
    net = perceptron()
    one, other = (mt.ensemble(net, kind(components=3, members=4), X, seed=0).train() for kind in (mt.EMP, mt.ECMP))
    assert_same(dict(one.named_parameters()), dict(other.named_parameters()))
    draws = one.batch(X, Y).kwargs["draws"]
    spread = {
        n: draws[f"{n.rpartition('.')[0]}.choice"].view(1, *(1 for _ in b.shape[1:])).expand(1, *b.shape[1:]).to(b.dtype)
        for n, b in other.named_buffers()
        if n.endswith("_choice")
    }
    assert_same(other(X, draws=spread), one(X, draws=draws))


def test_theorem_1_for_elements() -> None:
    """Elements are independent, and so their mixtures: the constant has the entropy of z once for each element."""
    sigma, tau, rho, samples = 0.05, 0.7, 1.9, 4000
    method = mt.ECMP(components=2, prior="elbo", tau=tau, rho=rho, examples=10, sigma=sigma, probabilities=(0.3, 0.7))
    ens = mt.ensemble(nn.Linear(1, 1).double(), method, torch.zeros(2, 1, dtype=torch.float64), seed=0)
    p = torch.tensor([0.3, 0.7], dtype=torch.float64)
    draws = draw_all(ens.template, range(samples))
    for scale in (1.0, 4.0):
        centres = {"weight": scale * torch.tensor([1.0, -0.6]), "bias": scale * torch.tensor([-1.0, 0.3])}
        total, variance, constant = torch.zeros(()).double(), 0.0, 0.0
        for key, precision in (("weight", tau), ("bias", rho)):
            mu = centres[key].double()
            with torch.no_grad():
                ens.get_parameter(key).copy_(mu.view_as(ens.get_parameter(key)))
            theta = mu[draws[f"{key}_choice"].flatten().long()] + sigma * draws[f"{key}_noise"].flatten()
            q = torch.logsumexp(p.log() + torch.distributions.Normal(mu, sigma).log_prob(theta[:, None]), 1)
            prior = torch.distributions.Normal(torch.zeros(()).double(), precision**-0.5).log_prob(theta)
            total, variance = total + (q - prior).mean(), variance + (q - prior).var().item() / samples
            constant += -0.5 * math.log(2 * math.pi * math.e * sigma**2) + (p * p.log()).sum().item()
            constant += 0.5 * math.log(2 * math.pi / precision) + precision / 2 * sigma**2
        penalty = ens.method.penalty(ens, 1)
        assert penalty is not None
        assert abs(total - (10 * penalty.detach() + constant)) < 4 * variance**0.5
        assert variance**0.5 < 0.05 * total


@pytest.mark.parametrize("probabilities", [None, (0.7, 0.3)])
def test_theorem_2_for_elements(probabilities: Any) -> None:
    """Over all 2⁸ draws of a layer with eight elements, gradients average to that of the expected loss."""
    net = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    method = mt.ECMP(components=2, patch="2", probabilities=probabilities, prior="none")
    ens, y = mt.ensemble(net, method, X, seed=0).train(), Y.clamp(max=1)
    p = torch.tensor(probabilities or (0.5, 0.5), dtype=torch.float64)
    state = {name: q.detach().clone().requires_grad_() for name, q in ens.named_parameters()}
    draws = torch.tensor(list(itertools.product(range(2), repeat=8)), dtype=torch.uint8)
    chances = p[draws.long()].prod(1)
    outputs = ens(X, draws={"2.weight_choice": draws[:, :6].reshape(-1, 2, 3), "2.bias_choice": draws[:, 6:]})
    average = [torch.zeros_like(q) for q in state.values()]
    for output, chance in zip(outputs, chances, strict=True):
        grads = torch.autograd.grad(F.cross_entropy(output, y), list(ens.parameters()), retain_graph=True)
        average = [total + chance * grad for total, grad in zip(average, grads, strict=True)]
    expected = torch.zeros((), dtype=torch.float64)
    for z in itertools.product(range(2), repeat=8):
        weight = torch.stack([state["2.weight"][z[3 * i + j], i, j] for i in range(2) for j in range(3)]).view(2, 3)
        bias = torch.stack([state["2.bias"][z[6 + i], i] for i in range(2)])
        own = {"0.weight": state["0.weight"], "0.bias": state["0.bias"], "2.weight": weight, "2.bias": bias}
        chance = math.prod(p[k].item() for k in z)
        expected = expected + chance * F.cross_entropy(functional_call(net, own, (X,)), y)
    expected.backward()
    assert_same(dict(zip(state, average, strict=True)), {name: q.grad for name, q in state.items()})
