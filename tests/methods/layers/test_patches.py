"""Patches: which layers get components, how these start, what a training step and the prior say of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same, call, owned, without_dropout
from torch import Tensor, nn
from torch.func import functional_call
from zoo import ZOO

import multitudes as mt
from multitudes.methods.layers.patches import Patched, patched_names
from multitudes.models import MLP

X, Y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2])
IMAGES = torch.randn(3, 3, 8, 8, dtype=torch.float64)
K = 3
KINDS = pytest.mark.parametrize("kind", [mt.EMP, mt.ECMP])


def perceptron() -> nn.Module:
    return MLP(5, (8, 6), 3, norm="hidden").double()


def net_of(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers).double()


def patched(net: nn.Module, x: Tensor, **settings: Any) -> list[str]:
    """The layers of a model that get components."""
    planned = mt.plan(net, mt.EMP(**settings), x)
    assert not planned.refused
    return [entry.name for entry in planned.converted if entry.name]


def chosen(components: Tensor, draws: dict[str, Tensor], name: str, d: int, sigma: float = 0.0) -> Tensor:
    """Σ_k 1[Z = k] ∘ (M_k + σ ε) of one parameter for the draw d, term by term."""
    layer, _, key = name.rpartition(".")
    z = draws[f"{layer}.choice"][d] if f"{layer}.choice" in draws else draws[f"{layer}.{key}_choice"][d]
    total = torch.zeros_like(components[0])
    for k in range(len(components)):
        noise = draws[f"{layer}.{key}_noise"][d] if sigma else 0.0
        total = total + (z == k).to(components.dtype) * (components[k] + sigma * noise)
    return total


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


def leaves(ens: mt.Ensemble) -> dict[str, Tensor]:
    """Copies of all parameters, which take gradients of their own."""
    return {name: p.detach().clone().requires_grad_() for name, p in ens.named_parameters()}


def gradients(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.zeros_like(t) if t.grad is None else t.grad for name, t in tensors.items()}


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


@pytest.mark.parametrize(("kind", "case"), [(mt.EMP, "densenet"), (mt.ECMP, "transformer_encoder")])
def test_one_step_on_the_zoo(kind: Any, case: str) -> None:
    """The given model, called with Σ_k 1[Z = k] M_k in place of its parameters: loss, gradients, statistics."""
    one = ZOO[case]
    net, x = without_dropout(one.model(train=True)), one.example()
    y = one.target(call(one.model(), x))
    ens = mt.ensemble(net, kind(components=K, members=4, prior="none", sigma=0.1), x, batch_axis=one.batch_axis, seed=0)
    batch = without_dropout(ens).train().batch(x, y)
    loss = ens.reduce(call(ens, x, draws=batch.kwargs["draws"]), batch, one.criterion)
    loss.backward()
    state, names = leaves(ens), patched_names(ens.template)
    assert len(names) >= 3
    formed = {n: chosen(t, batch.kwargs["draws"], n, 0, sigma=0.1) if n in names else t for n, t in state.items()}
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


MIXED = (
    *(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.GroupNorm(2, 6), nn.ReLU()),
    *(nn.Flatten(), nn.Linear(96, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.RMSNorm(8), nn.Linear(8, 4)),
)
NORMED = ["1", "4", "8", "11"]


@pytest.mark.parametrize(
    ("patch", "names"),
    [
        ("norm", NORMED),
        ("output+norm", [*NORMED, "12"]),
        ("norm+input+output", ["0", *NORMED, "12"]),
        ("1?", ["10", "11", "12"]),
        (("3", "1*"), ["1", "3", "10", "11", "12"]),
        ("*", ["0", "1", "3", "4", "7", "8", "10", "11", "12"]),
    ],
)
def test_words_and_globs(patch: Any, names: list[str]) -> None:
    """The layers that are named, in the model's order, and no others; the default is "norm+output"."""
    assert patched(net_of(*MIXED), IMAGES, patch=patch) == names
    assert mt.EMP().patch == "norm+output"


def test_a_glob_of_a_block_takes_what_is_inside() -> None:
    """Every layer below what matches."""
    net = net_of(nn.Linear(5, 4), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 3))
    assert patched(net, X, patch="1") == ["1.0", "1.1"]
    assert patched(net, X, patch=["1.1", "2"]) == ["1.1", "2"]


def test_the_default_takes_what_there_is() -> None:
    """Norms without affine parameters are none; a network may have no norm, or nothing but norms."""
    assert patched(MLP(5, (8,), 3).double(), X) == ["layers.2"]
    assert patched(net_of(nn.LayerNorm(5)), X) == ["0"]
    bare = net_of(nn.Linear(5, 4), nn.BatchNorm1d(4, affine=False), nn.LayerNorm(4, elementwise_affine=False), nn.Linear(4, 3))
    assert patched(bare, X) == ["3"]


@pytest.mark.parametrize(
    ("net", "patch", "says"),
    [
        (net_of(nn.Linear(5, 3)), "norm", "norm"),
        (net_of(nn.Linear(5, 3)), "norm+input+output", "norm"),
        (net_of(nn.Linear(5, 3)), "output+norm", "norm"),
        (net_of(nn.LayerNorm(5)), "output", "output"),
        (net_of(nn.LayerNorm(5)), "norm+input", "input"),
        (net_of(nn.PReLU()), "norm+output", "norm.*output"),
        (net_of(nn.Linear(5, 3), nn.ReLU()), "1", "parameters"),
    ],
)
def test_what_matches_nothing(net: nn.Module, patch: str, says: str) -> None:
    """A word that was given and finds no layer is an error, and so is a default that finds none at all."""
    with pytest.raises(mt.ConversionError, match=says):
        mt.ensemble(net, mt.EMP(patch=patch), X)


def test_a_glob_that_matches_nothing() -> None:
    """Names what comes nearest."""
    with pytest.raises(mt.InputError, match=r"matches nothing in the model: 'layers.9' \(nearest: 'layers.\d'\)"):
        mt.ensemble(perceptron(), mt.EMP(patch=("layers.9", "layers.1")), X)


LAYERS: dict[str, tuple[nn.Module, Tensor]] = {
    "BatchNorm1d": (nn.BatchNorm1d(5), X),
    "BatchNorm2d": (nn.BatchNorm2d(3), IMAGES),
    "BatchNorm3d": (nn.BatchNorm3d(3), torch.randn(3, 3, 2, 2, 2)),
    "SyncBatchNorm": (nn.SyncBatchNorm(5), X),
    "InstanceNorm2d": (nn.InstanceNorm2d(3, affine=True), IMAGES),
    "LayerNorm": (nn.LayerNorm((8, 8)), IMAGES),
    "LayerNorm without bias": (nn.LayerNorm(5, bias=False), X),
    "GroupNorm": (nn.GroupNorm(3, 3), IMAGES),
    "RMSNorm": (nn.RMSNorm(5), X),
    "Linear": (nn.Linear(5, 4), X),
    "Linear without bias": (nn.Linear(5, 4, bias=False), X),
    "Conv1d": (nn.Conv1d(3, 4, 3), torch.randn(3, 3, 8)),
    "Conv2d": (nn.Conv2d(3, 6, 3, stride=2, groups=3, padding=1), IMAGES),
    "Conv2d, circular": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), IMAGES),
    "Conv3d": (nn.Conv3d(3, 4, 2), torch.randn(3, 3, 4, 4, 4)),
    "ConvTranspose1d": (nn.ConvTranspose1d(3, 4, 3), torch.randn(3, 3, 8)),
    "ConvTranspose2d": (nn.ConvTranspose2d(3, 4, 3, stride=2), IMAGES),
    "ConvTranspose3d": (nn.ConvTranspose3d(3, 4, 2), torch.randn(3, 3, 4, 4, 4)),
    "Embedding": (nn.Embedding(7, 4, padding_idx=0), torch.tensor([[0, 3], [6, 2], [1, 5]])),
}


@pytest.mark.parametrize(("layer", "kind"), list(zip(LAYERS, itertools.cycle([mt.EMP, mt.ECMP]), strict=False)))
def test_every_kind_of_layer(layer: str, kind: Any) -> None:
    """Each member's output is the plain layer's with Σ_k 1[Z = k] M_k, and so are gradients of all components."""
    plain, x = LAYERS[layer]
    plain = plain.double().eval()
    x = x.double() if x.is_floating_point() else x
    ens = mt.ensemble(plain, kind(components=K, members=4, patch="*"), x, seed=0).eval()
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.normal_()
    state, draws = leaves(ens), {n: b for n, b in ens.named_buffers() if n.endswith("choice")}
    draws = {n if "." in n else f".{n}": b for n, b in draws.items()}
    formed = [{n: chosen(t, draws, n, m) for n, t in state.items()} for m in range(4)]
    expected = torch.stack([functional_call(plain, own, (x,)) for own in formed])
    assert_same(ens(x).detach(), expected.detach())
    assert not torch.equal(expected[0], expected[1]) or not torch.equal(expected[0], expected[2])
    scale = torch.arange(1.0, 5.0, dtype=torch.float64).view(4, *(1 for _ in expected.shape[1:]))
    (ens(x).square() * scale).sum().backward()
    (expected.square() * scale).sum().backward()
    assert_same(gradients(dict(ens.named_parameters())), gradients(state))
    member = ens.member(2)
    assert type(member) is type(plain)
    assert set(member.state_dict()) == set(plain.state_dict())
    assert_same(member(x).detach(), expected[2].detach())


class Tied(nn.Module):
    """A head with the weight of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 5)
        self.head.weight = self.body.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(x)))


class Elsewhere(nn.Module):
    """The head's weight is used again, by the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x) @ self.head.weight)


class Attending(nn.Module):
    """Attention, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.attention(x, x, x)[0]).mean(1))


class Recurrent(nn.Module):
    """Whose last layer is a recurrent one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.cell = nn.LayerNorm(8), nn.GRU(8, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(self.norm(x))[0]


SEQUENCE = torch.randn(3, 4, 8, dtype=torch.float64)


class Named(nn.Linear):
    """Holds its weight under two names."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.alias = self.weight


REFUSED: list[tuple[nn.Module, Tensor, str, str, str]] = [
    (Tied(), X, "norm+output", "head", "tied to body.weight"),
    (Elsewhere(), X, "norm+output", "head", "head.weight is read outside"),
    (Recurrent(), SEQUENCE, "norm+output", "cell", "GRU"),
    (Attending(), SEQUENCE, "attention", "attention", "MultiheadAttention"),
    (Attending(), SEQUENCE, "*.out_proj", "attention.out_proj", "attention"),
    (net_of(nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))), X, "output", "0", "ParametrizedLinear"),
    (net_of(nn.Linear(5, 4), nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))), X, "1", "1", "ParametrizedLinear"),
    (net_of(Named()), X, "output", "0", "alias|weight"),
]
"""Layers that forward does not read where they stand: the network, its input, what to patch, the layer and the reason."""


@pytest.mark.parametrize(("net", "x", "patch", "layer", "named"), REFUSED)
def test_a_layer_that_cannot_have_components_is_refused(net: nn.Module, x: Tensor, patch: str, layer: str, named: str) -> None:
    """By its name, with the reason; a plan lists it, and no ensemble is made."""
    refused = {entry.name: entry.reason for entry in mt.plan(net.double(), mt.EMP(patch=patch), x).refused}
    assert re.search(named, refused[layer])
    with pytest.raises(mt.ConversionError, match=layer):
        mt.ensemble(net, mt.EMP(patch=patch), x)


@pytest.mark.parametrize("net", [Tied(), Elsewhere()])
def test_a_network_is_not_refused_for_layers_that_are_not_patched(net: nn.Module) -> None:
    assert patched(net.double(), X, patch="norm") == ["norm"]


def test_a_layer_called_twice_is_one_layer() -> None:
    """Both calls have the same component, and it counts once."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm, self.head = nn.Linear(5, 5), nn.LayerNorm(5), nn.Linear(5, 3)
            self.again = self.norm

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.again(self.body(self.norm(x)).relu()))

    net = Twice().double()
    ens = mt.ensemble(net, mt.EMP(components=K, members=4), X, seed=0).eval()
    draws = {n: b for n, b in ens.named_buffers() if n.endswith("choice")}
    assert sorted(draws) == ["head.choice", "norm.choice"]
    assert ens.effective_size == K**2
    state = {name: p.detach() for name, p in ens.named_parameters()}
    names = patched_names(ens.template)
    for m in range(4):
        own = {n: chosen(t, draws, n, m) if n in names else t for n, t in state.items()}
        assert_same(ens(X)[m].detach(), functional_call(net, own, (X,)).detach())


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


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, nn.BatchNorm1d])
def test_rows_that_cannot_be_told_apart_are_refused_in_training(norm: Any) -> None:
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
    ens = mt.ensemble(Steered(), mt.EMP(members=3, components=2, draw="row"), x, seed=0).train()
    with pytest.raises(mt.RunError, match="BatchNorm norm"):
        ens.loss(x, torch.tensor([0, 1, 2, 0]), F.cross_entropy)
    assert int(ens.get_buffer("norm.num_batches_tracked")) == 0
