"""Priors of patches: the penalties, the parameter groups and the moments of the paper's equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same
from methods.layers.components import K, X, Y, net_of, perceptron
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.methods.layers.patches import patched_names
from multitudes.models import MLP

pytestmark = pytest.mark.slow


def squares(ens: mt.Ensemble) -> dict[str, Tensor]:
    """Sums of squares of each parameter; of a patched one, of each component."""
    names = patched_names(ens.template)
    return {n: p.detach().flatten(1).square().sum(1) if n in names else p.detach().square().sum() for n, p in parameters(ens)}


def parameters(ens: mt.Ensemble) -> list[tuple[str, nn.Parameter]]:
    return list(ens.named_parameters())


def prior_of(ens: mt.Ensemble, **more: Any) -> Tensor:
    """What the loss adds to the criterion's."""
    batch = ens.batch(X, Y)
    output = ens(*batch.inputs, **batch.kwargs).detach()
    return ens.reduce(output, batch, lambda out, y: out.sum() * 0.0, **more).detach()


@pytest.mark.parametrize(("kind", "draw"), [(mt.EMP, "step"), (mt.ECMP, "row")])
def test_the_penalty_of_appendix_c(kind: Any, draw: str) -> None:
    """λ = 0.001 / batch over all components and all that is shared, weight 1 each; the batch is that of all processes."""
    ens = mt.ensemble(perceptron(), kind(components=K, members=4, draw=draw), X, seed=0).train()
    total = sum(p.detach().square().sum() for p in ens.parameters())
    assert_same(prior_of(ens), 0.001 / 6 * total)
    assert_same(prior_of(ens, global_batch=256), 0.001 / 256 * total)
    other = mt.ensemble(perceptron(), kind(components=K, strength=0.5), X, seed=0).train()
    assert_same(prior_of(other), 0.5 / 6 * sum(p.detach().square().sum() for p in other.parameters()))


def test_the_penalty_is_in_the_loss_and_its_gradient() -> None:
    """ens.loss has it, with global_batch too; components that were not drawn shrink, frozen parameters do not count."""
    ens = mt.ensemble(perceptron(), mt.EMP(components=K), X, seed=0).train()
    bare = mt.ensemble(perceptron(), mt.EMP(components=K, prior="none"), X, seed=0).train()
    bare.load_state_dict(ens.state_dict())
    for more in ({}, {"global_batch": 60}):
        rows = more.get("global_batch", 6)
        expected = bare.loss(X, Y, F.cross_entropy) + 0.001 / rows * sum(p.square().sum() for p in ens.parameters())
        assert_same(ens.loss(X, Y, F.cross_entropy, **more).detach(), expected.detach())
    ens.zero_grad()
    batch = ens.batch(X, Y)
    ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy).backward()
    head, z = ens.get_parameter("layers.6.weight"), int(batch.kwargs["draws"]["layers.6.choice"])
    others = [k for k in range(K) if k != z]
    assert_same(head.grad[others], 2 * 0.001 / 6 * head.detach()[others])
    assert not torch.allclose(head.grad[z], 2 * 0.001 / 6 * head.detach()[z])
    ens.get_parameter("layers.0.weight").requires_grad_(False)
    trained = sum(p.detach().square().sum() for p in ens.parameters() if p.requires_grad)
    assert_same(prior_of(ens), 0.001 / 6 * trained)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "probabilities", "zero"),
    [(mt.EMP, None, False), (mt.EMP, (0.5, 0.3, 0.2), True), (mt.ECMP, None, True), (mt.ECMP, (0.5, 0.3, 0.2), False)],
)
def test_the_prior_of_equation_6(kind: Any, probabilities: Any, zero: bool) -> None:
    """τ/2 for weights, ρ/2 for biases, p_k for components and 1 for what is shared; a share for each example."""
    method = kind(
        components=K, prior="elbo", tau=2.0, rho=0.5, examples=100, probabilities=probabilities, zero_component=zero
    )  # fmt: skip
    ens = mt.ensemble(perceptron(), method, X, seed=0).train()
    p = torch.tensor(probabilities or [1 / K] * K, dtype=torch.float64)[: K - zero]
    expected = torch.zeros((), dtype=torch.float64)
    for name, found in squares(ens).items():
        half = 0.5 / 2 if name.endswith("bias") else 2.0 / 2
        expected = expected + half * (found * (p if found.ndim else 1.0)).sum() / 100
    assert_same(prior_of(ens), expected)
    assert_same(prior_of(ens, global_batch=256), expected)


def test_no_prior() -> None:
    """Said so, the loss is the criterion's alone."""
    ens = mt.ensemble(perceptron(), mt.EMP(prior="none"), X, seed=0).train()
    assert prior_of(ens).item() == 0.0
    assert ens.method.penalty(ens, 6) is None


def test_groups_for_optimisers() -> None:
    """One group for shared parameters and one for patches; with `only` a single one, and a step moves no other parameter."""
    ens = mt.ensemble(perceptron(), mt.EMP(components=K), X, seed=0).train()
    groups = ens.param_groups(lr=0.1, weight_decay=0.01)
    assert [(g["kind"], g["lr"], g["weight_decay"]) for g in groups] == [("shared", 0.1, 0.01), ("patches", 0.1, 0.01)]
    assert sorted(groups[1]["names"]) == sorted(patched_names(ens.template))
    assert sorted(groups[0]["names"] + groups[1]["names"]) == sorted(n for n, _ in ens.named_parameters())
    assert [len(g["params"]) == len(g["names"]) for g in groups] == [True, True]
    for group_kind in ("shared", "patches"):
        (own,) = ens.param_groups(lr=0.1, only=group_kind)
        before = {n: p.detach().clone() for n, p in ens.named_parameters()}
        optimiser = torch.optim.SGD([own])
        ens.zero_grad()
        ens.loss(X, Y, F.cross_entropy).backward()
        optimiser.step()
        moved = {n for n, p in ens.named_parameters() if not torch.equal(p, before[n])}
        assert moved == set(own["names"])
    with pytest.raises(mt.InputError, match=r"norms.*shared.*patches"):
        ens.param_groups(lr=0.1, only="norms")


def test_a_network_of_patches_alone() -> None:
    """Has no group of what is shared."""
    ens = mt.ensemble(net_of(nn.Linear(5, 3)), mt.EMP(), X)
    assert [group["kind"] for group in ens.param_groups(lr=0.1)] == ["patches"]


@pytest.mark.parametrize("tau", [None, 0.1])
def test_the_moments_of_appendix_b(tau: float | None) -> None:
    """The mean of draws; the mean of squares without the squared mean, and 1/τ of the observation."""
    net = MLP(5, (8,), 2, norm="all").double()
    ens = mt.ensemble(net, mt.EMP(components=K, members=7, tau_output=tau), X, seed=0, task="regression").eval()
    mean, variance = ens.moments(X)
    outputs = torch.stack([ens.member(m)(X) for m in range(7)]).detach()
    assert_same(mean, outputs.sum(0) / 7)
    expected = outputs.square().sum(0) / 7 - (outputs.sum(0) / 7).square() + (1 / tau if tau else 0.0)
    assert_same(variance, expected)
    assert not mean.requires_grad
    assert variance.min() > 0


def test_moments_are_of_one_tensor() -> None:
    """A model with several outputs has none."""
    case = ZOO["tuple_output"]
    ens = mt.ensemble(case.model(), mt.EMP(members=3), case.example(), seed=0)
    with pytest.raises(mt.InputError, match="one tensor"):
        ens.moments(*case.example().args)


def test_every_bias_has_its_own_precision() -> None:
    """Whatever a module calls it: with τ = 0, all ones, ρ/2 for each entry of a bias."""
    net = nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), nn.Linear(8, 3)
    )

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x[:, None])[:, 0]

    method = mt.EMP(members=2, components=2, patch="net.1", prior="elbo", tau=0.0, rho=2.0, examples=1)
    ens = mt.ensemble(Tokens(), method, torch.randn(3, 4), seed=0)
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.fill_(1.0)
    biases = [p for n, p in ens.named_parameters() if "bias" in n]
    patched = ens.get_parameter("net.1.bias")
    expected = sum(p.numel() for p in biases if p is not patched) + patched.numel() / 2
    penalty = method.penalty(ens, 1)
    assert penalty is not None
    assert penalty.item() == pytest.approx(expected)
