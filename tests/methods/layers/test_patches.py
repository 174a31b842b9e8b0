"""Patches: which layers get components, how these start, what a training step and the prior say of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same, call, owned, without_dropout
from methods.layers.components import KINDS, K, X, Y, chosen, gradients, leaves, net_of, perceptron
from torch import Tensor, nn
from torch.func import functional_call
from zoo import ZOO

import multitudes as mt
from multitudes.methods.layers.patches import Patched, patched_names
from multitudes.models import MLP

pytestmark = pytest.mark.slow


def row_by_row(state: dict[str, Tensor], draws: dict[str, Tensor], x: Tensor, of_row: Sequence[int]) -> tuple[Tensor, Any]:
    """The perceptron, each row with the weights of its own draw, and BatchNorm over all rows; its statistics too."""
    h, statistics = x @ state["layers.0.weight"].T + state["layers.0.bias"], {}
    for norm, layer in (("layers.1", "layers.3"), ("layers.4", "layers.6")):
        mean, variance = h.mean(0), h.var(0, unbiased=False)
        statistics[f"{norm}.running_mean"] = 0.1 * mean.detach()
        statistics[f"{norm}.running_var"] = 0.9 + 0.1 * h.detach().var(0)
        h = (h - mean) / (variance + 1e-5).sqrt()
        rows = []
        for row, d in zip(h, of_row, strict=True):
            own = {key: state[key] if layer == "layers.3" else chosen(state[key], draws, key, d) for key in weights(layer)}
            gamma, beta = (chosen(state[key], draws, key, d) for key in weights(norm))
            rows.append(own[f"{layer}.weight"] @ (row * gamma + beta).relu() + own[f"{layer}.bias"])
        h = torch.stack(rows)
    return h, statistics


def weights(layer: str) -> tuple[str, str]:
    return f"{layer}.weight", f"{layer}.bias"


@KINDS
@pytest.mark.parametrize("draw", ["step", "row"])
def test_one_step_is_the_sum_over_components(kind: Any, draw: str) -> None:
    """Loss, every gradient and BatchNorm's statistics, which are one set over all rows."""
    ens = mt.ensemble(perceptron(), kind(components=K, members=4, draw=draw, prior="none"), X, seed=0).train()
    for _ in range(3):
        ens.zero_grad()
        for name, buffer in ens.named_buffers():
            if name.endswith("running_mean"):
                buffer.zero_()
            if name.endswith("running_var"):
                buffer.fill_(1.0)
        batch = ens.batch(X, Y)
        loss = ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy)
        loss.backward()
        state = leaves(ens)
        output, statistics = row_by_row(state, batch.kwargs["draws"], X, range(6) if draw == "row" else [0] * 6)
        expected = F.cross_entropy(output, Y)
        expected.backward()
        assert_same(loss.detach(), expected.detach())
        assert_same(gradients(dict(ens.named_parameters())), gradients(state))
        found = dict(ens.named_buffers())
        assert_same({name: found[name] for name in statistics}, statistics)


def noise_of(draws: dict[str, Tensor], name: str) -> Tensor:
    """ε of a shared parameter; attention holds that of its output layer."""
    layer, _, key = name.rpartition(".")
    inner = layer.rpartition(".")[0]
    found = {f"{layer}.{key}_noise", f"{inner}.out_proj_{key}_noise"} & draws.keys()
    return draws[found.pop()][0]


@pytest.mark.parametrize(("kind", "case"), [(mt.EMP, "densenet"), (mt.ECMP, "transformer_encoder")])
def test_one_step_on_the_zoo(kind: Any, case: str) -> None:
    """The given model, called with Σ_k 1[Z = k] (M_k + σ ε) in place of patched parameters and M + σ ε in place of shared ones.

    Loss, gradients and statistics are the same.
    """
    one = ZOO[case]
    net, x = without_dropout(one.model(train=True)), one.example()
    y = one.target(call(one.model(), x))
    ens = mt.ensemble(net, kind(components=K, members=4, prior="none", sigma=0.1), x, batch_axis=one.batch_axis, seed=0)
    batch = without_dropout(ens).train().batch(x, y)
    loss = ens.reduce(call(ens, x, draws=batch.kwargs["draws"]), batch, one.criterion)
    loss.backward()
    state, names = leaves(ens), patched_names(ens.template)
    assert len(names) >= 3
    draws = batch.kwargs["draws"]
    formed = {n: chosen(t, draws, n, 0, sigma=0.1) if n in names else t + 0.1 * noise_of(draws, n) for n, t in state.items()}
    twin = without_dropout(one.model(train=True))
    output = functional_call(twin, formed, x.args, x.kwargs)
    expected = one.criterion(output, y)
    expected.backward()
    assert_same(loss.detach(), expected.detach())
    assert_same(gradients(dict(ens.named_parameters())), gradients(state))
    found = dict(ens.named_buffers())
    assert_same({n: found[n] for n, _ in twin.named_buffers()}, dict(twin.named_buffers()))


def test_shared_layers_are_untouched() -> None:
    """A layer that is not patched keeps type, shape and values, and has no member axis."""
    net = perceptron()
    ens = mt.ensemble(net, mt.EMP(components=K), X, seed=0)
    for name in ("layers.0", "layers.3"):
        assert type(ens.template.get_submodule(name)) is nn.Linear
        assert_same(dict(ens.template.get_submodule(name).state_dict()), dict(net.get_submodule(name).state_dict()))
    assert not any(name.startswith(("layers.0.", "layers.3.")) for name in owned(ens))
    assert patched_names(ens.template) == {f"layers.{i}.{key}" for i in (1, 4, 6) for key in ("weight", "bias")}


def test_copies_are_the_given_model() -> None:
    """All components equal the layer, and every member the model, whatever it draws; γ can be set all the same."""
    net = perceptron().eval()
    ens = mt.ensemble(net, mt.EMP(components=K, members=4, init="copies"), X, seed=0).eval()
    for m in range(4):
        assert_same(ens(X)[m], net(X))
    assert (ens.get_parameter("layers.6.weight") == net.layers[6].weight).all()
    low = mt.ensemble(net, mt.EMP(components=K, init="copies", gamma=0.2), X, seed=0)
    assert (low.get_parameter("layers.1.weight") == 0.2).all()
    assert (low.get_parameter("layers.1.bias") == 0.0).all()
    assert (low.get_parameter("layers.6.weight") == net.layers[6].weight).all()


@pytest.mark.slow
def test_random_components_differ() -> None:
    """Norms lie around the given values, or around γ; other layers start anew; the seed repeats them."""
    net = perceptron()
    one, same, other = (mt.ensemble(net, mt.ECMP(components=20, init="random"), X, seed=seed) for seed in (0, 0, 1))
    for name in patched_names(one.template):
        own = one.get_parameter(name).detach()
        assert_same(own, same.get_parameter(name).detach())
        assert not torch.equal(own, other.get_parameter(name))
        assert len({tuple(component.flatten().tolist()) for component in own}) == 20
    for name, centre in (("layers.1.weight", 1.0), ("layers.1.bias", 0.0)):
        spread = one.get_parameter(name).detach() - centre
        assert spread.mean().abs() < 0.05
        assert 0.07 < spread.std() < 0.13
    assert one.get_parameter("layers.6.weight").abs().max() <= 6**-0.5
    low = mt.ensemble(net, mt.ECMP(components=20, gamma=0.2), X, seed=0).get_parameter("layers.1.weight").detach()
    assert abs(low.mean().item() - 0.2) < 0.05
    assert low.std() > 0.05


def test_norms_of_one_width_start_apart() -> None:
    """No two layers have the same deviations."""
    ens = mt.ensemble(MLP(5, (8, 8), 3, norm="hidden").double(), mt.EMP(components=K), X, seed=0)
    for key in ("weight", "bias"):
        assert not torch.equal(ens.get_parameter(f"layers.1.{key}"), ens.get_parameter(f"layers.4.{key}"))


@pytest.mark.parametrize(("kind", "components"), [(mt.EMP, 1), (mt.ECMP, 5)])
def test_neutral_settings(kind: Any, components: int) -> None:
    """Whatever else is set, the neutral ensemble is the base model."""
    net = perceptron().eval()
    method = kind(components=components, sigma=0.5, gamma=0.2).neutral()
    assert_same(mt.ensemble(net, method, X, seed=3, start="copies").eval()(X)[0], net(X))


def test_one_component_with_its_probability() -> None:
    """The base model with random norms, and nothing to draw."""
    assert mt.ensemble(perceptron(), mt.EMP(components=1, probabilities=(1.0,)), X).members == 20


@pytest.mark.slow
@KINDS
def test_the_zero_component(kind: Any) -> None:
    """The last component is zero and no parameter: where it is drawn nothing else counts, and nothing is learned."""
    ens = mt.ensemble(perceptron(), kind(components=K, zero_component=True, prior="none"), X, seed=0).train()
    assert ens.get_parameter("layers.6.weight").shape == (K - 1, 3, 6)
    last = {n: torch.full((1, *b.shape[1:]), K - 1, dtype=b.dtype) for n, b in ens.named_buffers() if n.endswith("choice")}
    output = ens(X, draws=last)
    assert not output.any()
    output.sum().backward()
    assert not any(p.grad.any() for p in ens.parameters() if p.grad is not None)
    first = {n: torch.zeros_like(z) for n, z in last.items()}
    assert ens(X, draws=first).any()
    seen = mt.ensemble(perceptron(), kind(components=K, zero_component=True, draw="row"), X, seed=0).batch(X, Y)
    assert {int(z) for t in seen.kwargs["draws"].values() for z in t.flatten()} == set(range(K))


@pytest.mark.slow
@KINDS
def test_the_noise_around_shared_weights(kind: Any) -> None:
    """Eq. 3: deviation σ for each element of each trainable parameter; frozen ones have none, and a member has it baked in."""
    net = perceptron().eval()
    net.layers[3].weight.requires_grad_(False)
    plain = mt.ensemble(net, kind(components=K, members=40, patch="output"), X, seed=0).eval()
    ens = mt.ensemble(net, kind(components=K, members=40, patch="output", sigma=0.3), X, seed=0).eval()
    assert ens.state_dict().keys() == plain.state_dict().keys()
    assert ens.plan.counts.parameters == plain.plan.counts.parameters
    assert ens.effective_size == plain.effective_size
    own = [ens.member(m) for m in range(40)]
    assert {type(part) for member in own for part in member.modules()} == {type(part) for part in net.modules()}
    for name in ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.3.bias"):
        noise = torch.stack([member.get_parameter(name).detach() for member in own]) - net.get_parameter(name).detach()
        assert noise.std().item() == pytest.approx(0.3, rel=5 / (2 * noise.numel()) ** 0.5)
        assert noise.flatten(1).unique(dim=0).shape[0] == 40
        assert (noise.flatten() - noise.flatten().roll(1)).abs().min() > 0
    assert all(torch.equal(member.get_parameter("layers.3.weight"), net.layers[3].weight) for member in own)
    assert_same(ens(X)[7], own[7](X))


@pytest.mark.slow
def test_noise_on_parameters_of_the_network_itself(tmp_path: Path) -> None:
    """A class token, which no layer holds, has noise too, and the ensemble's file loads into the given model."""
    case = ZOO["vit"]
    ens = mt.ensemble(case.model(), mt.EMP(members=3, sigma=0.1), case.example(), seed=0).eval()
    loose = [name for name, _ in ens.named_parameters() if "." not in name]
    assert loose
    assert {f"{name}_noise" for name in loose} <= {name for name, _ in ens.named_buffers()}
    mt.save(ens, tmp_path / "a.multitude")
    assert_same(call(mt.load(tmp_path / "a.multitude", case.model()), case.example()), call(ens, case.example()))


def test_noise_needs_layers_that_read_their_own_parameters() -> None:
    """A recurrent layer is refused by name if σ is above 0, and shared without noise at σ = 0."""
    case = ZOO["lstm"]
    assert not mt.plan(case.model(), mt.EMP(), case.example()).refused
    assert [entry.name for entry in mt.plan(case.model(), mt.EMP(sigma=0.1), case.example()).refused] == ["lstm"]


@KINDS
def test_the_noise_around_a_component(kind: Any) -> None:
    """Mean 0 and deviation σ, independent for each element; each member and each step has other noise."""
    sigma = 0.3
    method = kind(components=2, init="copies", sigma=sigma, members=4, draw="row")
    ens = mt.ensemble(net_of(nn.Linear(5, 3)), method, X, seed=0)
    x = torch.randn(4000, 5, dtype=torch.float64)
    draws = ens.batch(x, torch.zeros(4000)).kwargs["draws"]
    noise = draws["0.weight_noise"]
    assert noise.shape == (4000, 3, 5)
    assert noise.mean(0).abs().max() < 5 / 4000**0.5
    assert (noise.std(0) - 1).abs().max() < 5 / 8000**0.5
    flat = noise.flatten(1)
    assert (torch.corrcoef(flat.T) - torch.eye(15)).abs().max() < 5 / 4000**0.5
    output = ens(X, draws=draws)
    given = ens.get_parameter("0.weight")[0] + sigma * noise, ens.get_parameter("0.bias")[0] + sigma * draws["0.bias_noise"]
    assert_same(output.detach(), (X @ given[0].mT + given[1][:, None]).detach())
    assert not torch.equal(ens.get_buffer("0.weight_noise")[0], ens.get_buffer("0.weight_noise")[1])


def test_lists_become_tuples() -> None:
    """So that settings read from a file equal those that were saved."""
    method = mt.EMP(components=2, patch=["a", "b"], probabilities=[0.5, 0.5])  # type: ignore[arg-type]
    assert method == mt.EMP(components=2, patch=("a", "b"), probabilities=(0.5, 0.5))
    assert hash(method)


def test_the_plan_says_what_is_drawn() -> None:
    """Layers, components and how they start; by layer or by element."""
    one, other = (mt.plan(perceptron(), kind(components=K), X) for kind in (mt.EMP, mt.ECMP))
    assert one.notes[0] == "3 layers with 3 components, which start at random"
    reasons = [{e.name: e.reason for e in planned.converted}["layers.6"] for planned in (one, other)]
    assert reasons == ["3 components, one drawn for the layer", "3 components, one drawn for each element"]
    assert mt.plan(perceptron(), mt.EMP(init="copies"), X).notes[0].endswith("as copies")
    assert {e.name for e in one.shared} == {"layers.0", "layers.3"}
    with pytest.raises(mt.InputError, match="keep="):
        mt.plan(perceptron(), mt.EMP(), X, keep=["layers.0"])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_several_draws_in_a_step(reduction: Any) -> None:
    """Their losses are joined as it is set."""
    method = mt.EMP(components=K, prior="none", reduction=reduction)
    ens = mt.ensemble(MLP(5, (8,), 3).double(), method, X, seed=0).train()
    batch = ens.batch(X, Y)
    batch.kwargs["draws"] = {"layers.2.choice": torch.tensor([[0], [2], [1]])}
    outputs = ens(*batch.inputs, **batch.kwargs)
    losses = torch.stack([F.cross_entropy(output, Y) for output in outputs])
    assert_same(ens.reduce(outputs, batch, F.cross_entropy), losses.sum() if reduction == "sum" else losses.mean())


def test_layers_are_those_of_the_model() -> None:
    """Patched layers are still instances of their classes, and settle into them."""
    ens = mt.ensemble(perceptron(), mt.ECMP(components=K), X, seed=0)
    layer = ens.template.get_submodule("layers.6")
    assert isinstance(layer, Patched)
    assert isinstance(layer, nn.Linear)
    assert type(ens.member(0).get_submodule("layers.6")) is nn.Linear
    assert vars(ens.member(0).get_submodule("layers.6")).keys() == vars(nn.Linear(6, 3)).keys()


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.BatchNorm1d])
def test_rows_that_cannot_be_told_apart_are_refused(norm: Any) -> None:
    """A draw for each row, a patched BatchNorm layer, and a model that vmap cannot run: never each row normalised alone."""

    class Steered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = norm is nn.BatchNorm1d
            self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), norm(4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv(x).mean((2, 3)) if self.flat else self.conv(x)
            if float(h.detach().abs().max()) < 0:
                h = -h
            h = self.norm(h)
            return self.head(h if self.flat else h.relu().mean((2, 3)))

    x = torch.randn(4, 3, 8, 8)
    with pytest.raises(mt.ConversionError, match=r"(?s)BatchNorm norm.*draw='step'"):
        mt.ensemble(Steered(), mt.EMP(members=3, components=2, draw="row"), x, seed=0)


class Codebook(nn.Module):
    """Multiplies by a buffer, and returns it as an output: a last layer without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.quantise = Nearest()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(x)
        return self.head(x), self.quantise(x)


class Nearest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.codes.t()


def test_a_last_layer_without_parameters_has_no_components() -> None:
    ens = mt.ensemble(Codebook(), mt.EMP(members=2), torch.randn(3, 4))
    assert ens.template.head.weight.shape == (5, 3, 4)
    assert [name for name, _ in ens.template.quantise.named_parameters()] == []
