"""MCDropout: where it drops, ordinary dropout in training, and at prediction a mask for each member that no batch changes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_exact, assert_same, run_by
from nets.hazards import StepsFirst, Windows
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.methods.layers.dropout import MaskedDropout
from multitudes.models import MLP, ViT

pytestmark = pytest.mark.slow

X, Y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2])
IMAGES = torch.randn(3, 3, 8, 8, dtype=torch.float64)


def perceptron(dropout: float = 0.0) -> nn.Module:
    return MLP(5, (16, 12), 3, dropout=dropout).double()


def convolutional(drop: nn.Module | None = None) -> nn.Module:
    """Takes images of any size; its second convolution is layer 2, and 3 with dropout before it."""
    middle = [] if drop is None else [drop]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), *middle, nn.Conv2d(6, 6, 3), *head).double()


def converted(net: nn.Module, x: Any, **settings: Any) -> mt.Ensemble:
    options = {"members": 4, **settings}
    axis = options.pop("batch_axis", 0)
    return mt.ensemble(net, mt.MCDropout(**options), x, seed=0, batch_axis=axis).eval()


def masks_of(ens: mt.Ensemble) -> dict[str, Tensor]:
    """The masks of every dropout, ``[M, ...]``."""
    return {name: buffer for name, buffer in ens.named_buffers() if "mask" in name}


def dropping(ens: mt.Ensemble) -> dict[str, float]:
    """The modules that drop, or before which is dropped, and how much."""
    return {name: part.rate for name, part in ens.template.named_modules() if isinstance(part, MaskedDropout)}


@pytest.mark.slow
def test_where_it_drops() -> None:
    """At dropout modules where there are any, else before all layers but the first; before norms; or where position= says."""
    plain, live = perceptron(), perceptron(dropout=0.2)
    assert dropping(converted(plain, X)) == {"layers.2": 0.1, "layers.4": 0.1}
    assert dropping(converted(live, X)) == {"layers.0": 0.2, "layers.3": 0.2, "layers.6": 0.2}
    assert dropping(converted(live, X, position="existing", p=0.4)) == {"layers.0": 0.4, "layers.3": 0.4, "layers.6": 0.4}
    assert dropping(converted(live, X, position="layers", p=0.3)) == {"layers.4": 0.3, "layers.7": 0.3}
    assert dropping(converted(live, X, position="layers.[36]")) == {"layers.3": 0.2, "layers.6": 0.2}
    assert dropping(converted(plain, X, position=["layers.3", "*.4"])) == {"layers.3": 0.1, "layers.4": 0.1}
    quiet = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.0), nn.Linear(8, 3)).double()
    assert dropping(converted(quiet, X)) == {"2": 0.1}


@pytest.mark.slow
def test_before_norms() -> None:
    """As in the EMP paper: 0.005 before each BatchNorm layer; LayerNorm counts too."""
    ens = converted(ZOO["resnet"].model(), IMAGES, position="norm", p=0.005)
    norms = {name for name, part in ens.template.named_modules() if isinstance(part, nn.BatchNorm2d)}
    assert dropping(ens) == dict.fromkeys(norms, 0.005)
    assert len(norms) == 9
    ens = converted(ZOO["vit"].model(), IMAGES, position="norm")
    assert len(dropping(ens)) == 7
    assert "dropped with probability 0.1 before it" in {entry.reason for entry in ens.plan.converted}


def test_before_layers_of_attention() -> None:
    """Dropout stands before what attention is made of nowhere: before perceptrons and the head."""
    ens = converted(ViT(classes=3, image=8, patch=4, size=12, depth=1, heads=2).double(), IMAGES, position="layers")
    assert set(dropping(ens)) == {"blocks.0.fc1", "blocks.0.fc2", "head"}


@pytest.mark.parametrize(
    ("net", "position", "error", "says"),
    [
        (perceptron, "existing", mt.ConversionError, "dropout"),
        (perceptron, "norm", mt.ConversionError, "norm"),
        (lambda: nn.Sequential(nn.Linear(5, 3)).double(), "layers", mt.ConversionError, "layer"),
        (perceptron, "nowhere*", mt.InputError, "nowhere"),
    ],
)
def test_nothing_to_drop_is_an_error(net: Callable[[], nn.Module], position: str, error: type[Exception], says: str) -> None:
    """And names what was asked for."""
    with pytest.raises(error, match=says):
        converted(net(), X, position=position)


class Attending(nn.Module):
    """Dropout in four forms: a module, a function, an attention module's rate, and a module that only lends its rate."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = nn.Linear(5, 8), nn.Dropout(0.3)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
        self.inner, self.lender = Functional(), nn.Dropout(0.4)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.first(x))[:, None]
        h = h + self.attention(h, h, h, need_weights=False)[0]
        rate = self.lender.p if self.training else 0.0
        h = F.scaled_dot_product_attention(h, h, h, dropout_p=rate)
        return self.head(self.inner(h[:, 0]))


class Functional(nn.Module):
    """Dropout by a function."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x.tanh(), 0.5, self.training)


def test_what_is_not_live_is_named() -> None:
    """Dropout by function, in attention, and of modules that are not called: the plan says so."""
    ens = converted(Attending().double(), X)
    assert dropping(ens) == {"drop": 0.3}
    notes = [note for note in ens.plan.notes if note.startswith("off at prediction")]
    assert len(notes) == 1
    assert [name.strip() for name in notes[0].rpartition(" in ")[2].split(",")] == ["attention", "inner", "lender"]
    assert not converted(perceptron(0.2), X).plan.notes


def test_modules_that_are_not_called_are_nowhere_to_drop() -> None:
    """Members would all be equal: dropout stands before layers then, and "existing" is an error."""
    net = Attending().double()
    net.drop = nn.Identity()
    assert set(dropping(converted(net, X))) == {"head"}
    with pytest.raises(mt.ConversionError, match="dropout"):
        converted(net, X, position="existing")


def test_dropout_that_shifts_is_not_live() -> None:
    """AlphaDropout is no mask: left out by name, and refused where it is asked for."""
    net = nn.Sequential(nn.Linear(5, 8), nn.SELU(), nn.AlphaDropout(0.3), nn.Linear(8, 3)).double()
    ens = converted(net, X)
    assert set(dropping(ens)) == {"3"}
    assert any("2" in note for note in ens.plan.notes if "off at prediction" in note)
    with pytest.raises(mt.ConversionError, match=r"2 .*AlphaDropout"):
        converted(net, X, position="2")


def step(ens: mt.Ensemble, x: Tensor, seed: int = 3) -> dict[str, Tensor]:
    """The loss of a training step under a seed of torch, and its gradients."""
    ens.train().zero_grad()
    torch.manual_seed(seed)
    loss = ens.loss(x, Y[: len(x)], F.cross_entropy)
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad.clone() for n, p in ens.named_parameters() if p.grad is not None}}


def plain_step(net: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, seed: int = 3) -> dict[str, Tensor]:
    """The same of a plain network."""
    net.train().zero_grad()
    torch.manual_seed(seed)
    loss = F.cross_entropy(forward(x), Y[: len(x)])
    loss.backward()
    return {"loss": loss.detach(), **{n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize(("drop", "executor"), [(nn.Dropout(0.4), "loop"), (nn.Dropout2d(0.4), "vmap")])
def test_training_is_that_of_the_network(drop: nn.Module, executor: str) -> None:
    """Dropout modules drop by torch's randomness, each row independently, in one pass: the network's step under its seed."""
    net = convolutional(drop)
    ens = converted(net, IMAGES, p=None)
    run_by(ens, executor)
    assert_same(step(ens, IMAGES), plain_step(net, net, IMAGES))
    assert not torch.equal(step(ens, IMAGES, seed=4)["loss"], step(ens, IMAGES)["loss"])


@pytest.mark.parametrize("filterwise", [False, True])
def test_training_with_dropout_put_in(filterwise: bool) -> None:
    """Before each layer but the first, by hand: of each row and unit, or of each row and channel."""
    net = convolutional()
    ens = converted(net, IMAGES, p=0.3, filterwise=filterwise)

    def forward(x: Tensor) -> Tensor:
        h = net[1](net[0](x))
        h = h * F.dropout(h.new_ones(*h.shape[:2], 1, 1), 0.3) if filterwise else F.dropout(h, 0.3)
        h = net[4](net[3](net[2](h)))
        return net[5](h * F.dropout(torch.ones_like(h), 0.3) if filterwise else F.dropout(h, 0.3))

    assert_same(step(ens, IMAGES), plain_step(net, forward, IMAGES))


def test_training_leaves_masks_alone() -> None:
    """Predictions between steps use the same draws, whose masks stay; a plain call in training warns once."""
    ens = converted(perceptron(0.3), X)
    before, masks = ens(X), {name: mask.clone() for name, mask in masks_of(ens).items()}
    step(ens, X)
    assert_exact(masks_of(ens).values(), masks.values())
    assert_exact([ens.eval()(X)], [before])
    with pytest.warns(UserWarning, match=r"MCDropout.*ens\.loss"):
        assert_exact([ens.train()(X)], [before])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ens(X)


def test_a_loss_in_eval_mode_drops_nothing() -> None:
    """As the network's own: for validation."""
    net = perceptron(0.3)
    assert_same(converted(net, X).loss(X, Y, F.cross_entropy).detach(), F.cross_entropy(net.eval()(X), Y).detach())


def test_batch_norm_follows_the_mode() -> None:
    """A training step sets its statistics, those of the one pass; prediction uses and keeps them."""
    net = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)).double()
    ens = converted(net, X)
    step(ens, X)
    plain_step(net, net, X)
    found = dict(ens.named_buffers())
    assert_same({name: found[name] for name, _ in net.named_buffers()}, dict(net.named_buffers()))
    mean = found["1.running_mean"].clone()
    ens.eval()(X)
    assert_exact([ens.get_buffer("1.running_mean")], [mean])


def test_prediction_by_hand() -> None:
    """Each member multiplies by its masks, whose entries are 0 and 1 / (1 − p), the same for all rows."""
    net = perceptron()
    ens = converted(net, X, p=0.25)
    masks = masks_of(ens)
    assert {name: mask.shape for name, mask in masks.items()} == {"layers.2.mask0": (4, 1, 16), "layers.4.mask0": (4, 1, 12)}
    assert all(set(mask.unique().tolist()) == {0.0, 1 / 0.75} for mask in masks.values())
    for m, found in enumerate(ens(X)):
        h = net.layers[1](net.layers[0](X)) * masks["layers.2.mask0"][m]
        h = net.layers[3](net.layers[2](h)) * masks["layers.4.mask0"][m]
        assert_same(found, net.layers[4](h))
        assert_same(ens.member(m)(X), found)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], int, dict[str, Any]]] = {
    "channels": (convolutional, lambda rows: torch.randn(rows, 3, 8, 8), 0, {"filterwise": True}),
    "norms": (lambda: ZOO["vit"].model(), lambda rows: torch.randn(rows, 3, 8, 8), 0, {"position": "norm"}),
    "windows, channels": (lambda: Windows().double(), lambda rows: torch.randn(rows, 4, 8), 0, {"filterwise": True}),
    "steps first": (lambda: StepsFirst().double(), lambda rows: torch.randn(4, rows, 8), 1, {"filterwise": True}),
}
"""Networks, their inputs, the axis of rows, and settings other than those that the laws are tried with."""


@pytest.mark.parametrize("case", CASES)
def test_no_batch_changes_what_is_predicted(case: str) -> None:
    """Rows one by one, in sevens and all 9 at once give the same; permuting them permutes the output."""
    build, inputs, axis, settings = CASES[case]
    ens = converted(build(), inputs(3).double(), batch_axis=axis, **{"p": 0.3, **settings})
    x, order = inputs(9).double(), torch.randperm(9)
    whole = ens(x)
    assert not any(torch.allclose(whole[0], other) for other in whole[1:])
    for size in (1, 7):
        parts = [ens(part) for part in x.split(size, axis)]
        assert_same(torch.cat(parts, 1 + axis), whole)
    assert_same(ens(x.index_select(axis, order)), whole.index_select(1 + axis, order))


def test_masks_of_windows_and_steps() -> None:
    """A row that is split into two windows has a mask for both; steps before rows have one for each step."""
    ens = converted(Windows().double(), torch.randn(3, 4, 8).double())
    assert {name: tuple(mask.shape) for name, mask in masks_of(ens).items()} == {
        "inside.mask0": (4, 2, 2, 8), "head.mask0": (4, 1, 8),
    }  # fmt: skip
    ens = converted(StepsFirst().double(), torch.randn(4, 3, 8).double(), batch_axis=1)
    assert {tuple(mask.shape) for mask in masks_of(ens).values()} == {(4, 4, 1, 8)}


@pytest.mark.parametrize("first", [8, 11])
@pytest.mark.parametrize("filterwise", [False, True])
def test_other_sizes_draw_again_by_the_same_seeds(filterwise: bool, first: int) -> None:
    """Whatever size comes first; back at one, its masks are what they were; over channels they never change."""
    ens = converted(convolutional(), IMAGES, p=0.3, filterwise=filterwise)
    sizes = [first, 8, 11, 8, 9, 11]
    images = {size: torch.randn(3, 3, size, size, dtype=torch.float64) for size in sizes}
    found: dict[int, Tensor] = {}
    channels = {name: mask.clone() for name, mask in masks_of(ens).items()}
    for size in sizes:
        output = ens(images[size])
        assert_exact([output], [found.setdefault(size, output)])
        assert masks_of(ens)["2.mask0"].shape[2:] == (6, *((1, 1) if filterwise else (size - 2, size - 2)))
        if filterwise:
            assert_exact(masks_of(ens).values(), channels.values())
        for m in (0, 3):
            assert_same(ens.member(m)(images[size]), output[m])


def test_training_at_another_size() -> None:
    """A step takes it as it is, and prediction at the first size is what it was."""
    net = convolutional()
    ens = converted(net, IMAGES, p=0.3)
    before = ens(IMAGES)
    large = torch.randn(3, 3, 11, 11, dtype=torch.float64)
    torch.manual_seed(0)
    step(ens, large)
    assert_exact([ens.eval()(IMAGES)], [before])


def test_looking_at_sizes_leaves_everything_alone() -> None:
    """The input that forward writes into, and what it counts in eval mode too, are as after one call."""

    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Conv1d(3, 6, 3), nn.Conv1d(6, 3, 3)
            self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.head(self.first(x.mul_(2)).relu()).mean(2)

    ens = mt.ensemble(Writing().double(), mt.MCDropout(members=1, p=0.3), torch.randn(3, 3, 8).double(), seed=0).eval()
    x = torch.randn(3, 3, 10, dtype=torch.float64)
    copied = x.clone()
    calls = float(ens.get_buffer("calls"))
    output = ens(copied)
    assert_same(output[0], ens.member(0)(x.clone()))
    assert float(ens.get_buffer("calls")) == calls + 1


def test_inputs_for_each_member_at_another_size() -> None:
    """Each input by its member's masks, at another size than the example's, before and after an ordinary call."""
    ens = converted(convolutional(), IMAGES, p=0.3)
    own = torch.randn(4, 3, 3, 11, 11, dtype=torch.float64)
    found = ens(own, per_member=True)
    ens(own[0])
    assert_same(ens(own, per_member=True), found)
    for m in range(4):
        assert_same(found[m], ens.member(m)(own[m]))


@pytest.mark.slow
def test_channels() -> None:
    """filterwise, and Dropout2d without it: one entry for each channel, all positions alike."""
    for net, settings in ((convolutional(nn.Dropout2d(0.3)), {}), (convolutional(nn.Dropout(0.3)), {"filterwise": True})):
        ens = converted(net, IMAGES, **settings)
        mask = masks_of(ens)["2.mask0"]
        assert mask.shape == (4, 1, 6, 1, 1)
        h = net[1](net[0](IMAGES))
        for m, found in enumerate(ens(IMAGES)):
            assert_same(found, net[3:](h * mask[m]))
    linear = converted(ZOO["vit"].model(), IMAGES, position="layers", filterwise=True)
    assert {tuple(mask.shape[1:]) for mask in masks_of(linear).values()} == {(1, 1, 8), (1, 1, 16), (1, 8)}


def test_the_mean_over_members_is_the_network() -> None:
    """Of a linear one: rescaled by 1 / (1 − p), with dropout's own deviation, and every unit dropped as often as it should."""
    members, p = 1000, 0.3
    net = nn.Sequential(nn.Linear(5, 20), nn.Linear(20, 1)).double()
    ens = mt.ensemble(net, mt.MCDropout(members=members, p=p), X, seed=0, check=False).eval()
    found, expected = ens(X).detach()[..., 0], net(X).detach()[:, 0]
    terms = net[0](X).detach() * net[1].weight.detach()
    deviation = ((terms**2).sum(1) * p / (1 - p)).sqrt()
    assert bool(((found.mean(0) - expected).abs() < 5 * deviation / math.sqrt(members)).all())
    assert torch.allclose(found.std(0), deviation, rtol=0.1)
    dropped = (masks_of(ens)["1.mask0"] == 0).double().mean(0)
    assert bool(((dropped - p).abs() < 5 * math.sqrt(p * (1 - p) / members)).all())


def test_the_draws_of_a_member_do_not_depend_on_the_number_of_members() -> None:
    few, more = (converted(perceptron(0.3), X, members=members) for members in (4, 6))
    more.load_base({n: t for n, t in few.state_dict().items() if n in more.base.state_dict()})
    assert_exact([more(X)[:4]], [few(X)])


def test_one_member() -> None:
    """MIMO's Dropout row: ten percent, one pass at prediction, by one mask."""
    net = perceptron()
    ens = converted(net, X, members=1, p=0.1)
    assert ens(X).shape == (1, 6, 3)
    assert not torch.equal(ens.resample(1)(X), ens.resample(2)(X))
    assert_same(converted(net, X, p=0.0)(X).detach(), net(X).detach().expand(4, -1, -1))


def test_what_it_costs() -> None:
    """No parameters; masks are in no state dict, which has a seed for each member; members may drop each of 28 units."""
    net = perceptron()
    ens = converted(net, X)
    assert ens.plan.counts is not None
    assert ens.plan.counts.parameters == sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in ens.parameters())
    assert set(ens.state_dict()) == {*net.state_dict(), "draw_seeds"}
    assert ens.state_dict()["draw_seeds"].shape == (4,)
    assert ens.effective_size == 2**28


def test_a_file_of_an_ensemble_that_has_seen_other_sizes(tmp_path: Path) -> None:
    """It comes back at the example's size and takes any."""
    ens = converted(convolutional(), IMAGES, p=0.3)
    large = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    expected = ens(large), ens(IMAGES), ens(large)
    mt.save(ens, tmp_path / "a.multitude")
    for back in (mt.load(tmp_path / "a.multitude", convolutional()), ens.subset([0, 1, 2, 3])):
        assert_exact([back(large), back(IMAGES), back(large)], expected)


class Matrix(nn.Module):
    """A layer of which nothing is known."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize("position", ["auto", "layers"])
def test_before_layers_that_are_not_known(position: str) -> None:
    """Units are dropped before a layer of any type, and each member is the network with its own masks, written out."""
    net = nn.Sequential(nn.Linear(4, 6), Matrix(), nn.Linear(6, 3)).double()
    x = torch.randn(2, 4, dtype=torch.float64)
    ens = mt.ensemble(net, mt.MCDropout(position=position, members=3, p=0.5), x, seed=0).eval()
    masks = dict(ens.template.named_buffers())
    for m in range(3):
        hidden = (net[0](x) * masks["1.mask0"][m]) @ net[1].weight
        torch.testing.assert_close(ens(x)[m], net[2](hidden * masks["2.mask0"][m]))


class MyRMSNorm(nn.Module):
    """A norm that is none of torch's."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * x.square().mean(-1, keepdim=True).add(1e-6).rsqrt()


def test_before_norms_of_other_libraries() -> None:
    """A module that is called a norm and has a scale of its own is one."""
    net = nn.Sequential(nn.Linear(4, 6), MyRMSNorm(6), nn.Linear(6, 3))
    ens = mt.ensemble(net, mt.MCDropout(position="norm", p=0.005), torch.randn(2, 4), seed=0)
    assert [name for name, _ in ens.named_buffers() if "mask" in name] == ["1.mask0"]
    patched = mt.ensemble(net, mt.EMP(members=2, components=3, patch="norm"), torch.randn(2, 4), seed=0)
    weight = patched.get_parameter("1.weight")
    assert weight.shape == (3, 6)
    assert not torch.equal(weight[0], weight[1])


def test_recurrent_dropout_is_named() -> None:
    """It lies inside of torch's own kernel, and stays off."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.drop, self.head = nn.LSTM(4, 6, 2, dropout=0.5), nn.Dropout(0.5), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.drop(self.rnn(x)[0]))

    plan = mt.plan(Steps(), mt.MCDropout(), torch.randn(5, 2, 4), batch_axis=1)
    assert any("off at prediction: dropout in rnn" in note for note in plan.notes)


class Clamped(nn.Module):
    """Clamps a weight of its own in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.dropout = nn.Linear(5, 8), nn.Linear(8, 3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.last.weight.mul_(0.9)
        return self.last(self.dropout(self.first(x).relu()))


def test_a_forward_that_writes_into_a_weight_leaves_the_given_model_alone() -> None:
    model = Clamped().double()
    before = model.last.weight.detach().clone()
    ens = mt.ensemble(model, mt.MCDropout(members=3), X)
    assert torch.equal(model.last.weight, before)
    assert torch.equal(ens.template.last.weight, before)


class AroundInTraining(nn.Module):
    """Multiplies by a layer's weight itself in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu()
        x = nn.functional.linear(x, self.b.weight, self.b.bias) if self.training else self.b(x)
        return self.c(x.relu())


def test_the_plan_names_layers_that_training_does_not_call() -> None:
    """No unit is dropped before them there."""
    notes = mt.plan(AroundInTraining(), mt.MCDropout(members=3), torch.randn(5, 4)).notes
    assert "in training, forward did not call b: nothing is dropped before it there" in notes
    assert not any("did not call" in note for note in mt.plan(AroundInTraining(), mt.Deep(members=3), torch.randn(5, 4)).notes)
