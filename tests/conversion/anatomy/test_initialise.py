"""How members start: apart from each other, as the model's author starts it, and repeatably."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import owned
from nets.convolutional import ConvNeXt, ResNet
from nets.sequences import ViT
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.conversion.anatomy.initialise import build, reinitialised
from multitudes.engine.seeds import member_seed, seeded

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", ["vit", "weight_norm"])
def test_no_two_members_share_a_tensor_that_is_not_constant(case: str) -> None:
    """Class tokens, position embeddings and other loose parameters included."""
    model = ZOO[case].model()
    ens = mt.ensemble(model, mt.Deep(), ZOO[case].example(), seed=0)
    for name, parameter in ens.named_parameters():
        constant = len(model.get_parameter(name).unique()) == 1
        for a, b in itertools.combinations(parameter.detach(), 2):
            assert torch.equal(a, b) == constant, name


BUILD = {"vit": lambda: ViT(10), "resnet": lambda: ResNet(classes=10), "convnext": lambda: ConvNeXt(10)}


@pytest.mark.parametrize("name", ["vit", pytest.param("resnet", marks=pytest.mark.slow)])
def test_members_start_with_the_loss_of_the_base_model(name: str) -> None:
    """The first batch's loss is within 10 % of the base model's at its own initialisation, on average over seeds."""
    x, y = torch.randn(64, 3, 8, 8), torch.randint(10, (64,))
    base = [F.cross_entropy(build_seeded(name, seed).train()(x), y).item() for seed in range(8)]
    ours: list[float] = []
    for seed in range(2):
        ens = mt.ensemble(build_seeded(name, seed), mt.Deep(), x[:2], seed=seed, check=False).train()
        ours += [F.cross_entropy(output, y).item() for output in ens(x)]
    mean = sum(base) / len(base)
    assert abs(sum(ours) / len(ours) - mean) < 0.1 * mean
    assert all(abs(loss - mean) < 0.5 * mean for loss in ours)


@pytest.mark.parametrize("name", ["convnext", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vit", "resnet"))])
def test_members_start_at_the_scale_of_the_base_model(name: str) -> None:
    """Every tensor is drawn as wide as its author draws it, averaged over members and seeds."""
    deviations: dict[str, list[tuple[float, float]]] = {}
    for seed in range(4):
        ens = mt.ensemble(build_seeded(name, seed), mt.Deep(), torch.randn(2, 3, 8, 8), seed=seed, check=False)
        given = dict(build_seeded(name, seed).named_parameters())
        for key, parameter in ens.named_parameters():
            if given[key].numel() >= 32:
                pair = (parameter.detach().pow(2).mean().sqrt().item(), given[key].detach().pow(2).mean().sqrt().item())
                deviations.setdefault(key, []).append(pair)
    for key, pairs in deviations.items():
        ours, theirs = (sum(column) for column in zip(*pairs, strict=True))
        assert ours == pytest.approx(theirs, rel=0.25), key


def build_seeded(name: str, seed: int) -> nn.Module:
    """The model as its author starts it, with this seed."""
    with seeded(seed):
        return BUILD[name]()


def states(**options: object) -> dict[str, Tensor]:
    """The state of an ensemble of a small perceptron."""
    return mt.ensemble(ZOO["mlp"].model(), mt.Deep(), ZOO["mlp"].example(), **options).state_dict()


def test_the_same_seed_gives_the_same_members() -> None:
    """And another seed gives others, all of them."""
    torch.testing.assert_close(states(seed=1), states(seed=1), rtol=0, atol=0)
    one, two = states(seed=1), states(seed=2)
    assert not any(torch.equal(a, b) for a, b in itertools.product(one["0.weight"], two["0.weight"]))


def test_neighbouring_seeds_share_no_member() -> None:
    """Member m of seed s is not member m + 1 of seed s − 1."""
    seeds = [member_seed(seed, m) for seed in range(20) for m in range(20)]
    assert len(set(seeds)) == len(seeds)


def test_more_members_leave_the_first_as_they_are() -> None:
    """Member m depends on the seed and on m alone."""
    case = ZOO["mlp"]
    few, many = (mt.ensemble(case.model(), mt.Deep(members=m), case.example(), seed=4).state_dict() for m in (2, 5))
    torch.testing.assert_close({name: tensor[:2] for name, tensor in many.items()}, dict(few), rtol=0, atol=0)


def test_a_seed_leaves_the_global_randomness_alone() -> None:
    """With seed= nothing is drawn from torch's global generator, by no verb."""
    model, x = ZOO["dropout"].model(), ZOO["dropout"].example()
    before = torch.get_rng_state()
    mt.plan(model, mt.Deep(), x, seed=0)
    ens = mt.ensemble(model, mt.TreeNet(), x, seed=0)
    mt.check(ens, x)
    mt.cost(ens, x, repeats=1)
    ens.tune(x, seconds=0.01)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_the_global_generator_gives_one() -> None:
    """So that torch.manual_seed makes a whole script repeatable, and two ensembles in it differ."""
    torch.manual_seed(3)
    one, two = states(), states()
    torch.manual_seed(3)
    torch.testing.assert_close(states(), one, rtol=0, atol=0)
    assert not torch.equal(one["0.weight"], two["0.weight"])


def test_a_factory_initialises_each_member() -> None:
    """Each member is what the factory makes with its own seed; the plan says so."""
    x = ZOO["vit"].example()
    ens = mt.ensemble(lambda ratio: ViT().double(), mt.Deep(), x, seed=2)
    for m in range(4):
        with seeded(member_seed(2, m)):
            torch.testing.assert_close(dict(ens.member(m).state_dict()), dict(ViT().double().state_dict()), rtol=0, atol=0)
    assert set(ens.plan.init.values()) == {"the factory"}


def test_a_factory_gets_the_width_ratio() -> None:
    """It is called with 1.0, or without an argument if it takes none; a factory that returns no module is refused."""
    ratios: list[float] = []
    build(lambda ratio: ratios.append(ratio) or nn.Linear(2, 2), 1.0, 0)
    assert ratios == [1.0]
    assert isinstance(build(lambda: nn.Linear(2, 2), 1.0, 0), nn.Linear)
    with pytest.raises(mt.InputError, match="lambda ratio"):
        build(lambda ratio, width: nn.Linear(2, width), 1.0, 0)  # type: ignore[arg-type,misc]
    with pytest.raises(mt.InputError, match="returned a dict"):
        build(lambda ratio: {}, 1.0, 0)


def test_an_error_inside_the_factory_is_not_hidden() -> None:
    """A TypeError of the factory's own is not taken for a wrong signature."""
    with pytest.raises(TypeError, match="unsupported operand"):
        build(lambda ratio: nn.Linear(ratio / "2", 2), 1.0, 0)  # type: ignore[operator]


def test_a_factory_that_makes_other_networks_is_refused() -> None:
    """All members must have the same shapes."""
    widths = itertools.count(3)
    with pytest.raises(mt.InputError, match="same architecture"):
        mt.ensemble(lambda ratio: nn.Sequential(nn.Linear(4, next(widths)), nn.Flatten()), mt.Deep(), torch.randn(2, 4), seed=0)


class Owned(nn.Module):
    """A model with an initialisation of its own, a learnt scale, a table, and a loose matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.scale, self.loose = nn.Parameter(torch.full((4,), 1e-6)), nn.Parameter(3 + 0.1 * torch.randn(40, 4))
        self.register_buffer("table", torch.randn(4))
        self.init_weights()

    def init_weights(self) -> None:
        nn.init.uniform_(self.layer.weight, 10, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x)) * self.scale * self.table @ self.loose.mT


def test_each_tensor_starts_by_the_first_rule_that_fits() -> None:
    """The model's own way, then each layer's, then a redraw; constants and buffers stay, statistics are reset."""
    model = Owned().double()
    model.train()(torch.randn(8, 4, dtype=torch.float64))
    new, rules = reinitialised(model, seed=1)
    assert rules["layer.weight"] == "Owned.init_weights"
    assert new.layer.weight.min() >= 10 and new.layer.weight.max() <= 11
    assert not torch.equal(new.layer.weight, model.layer.weight)
    assert rules["layer.bias"] == "Linear.reset_parameters"
    assert not torch.equal(new.layer.bias, model.layer.bias)
    assert rules["scale"] == "constant: kept from the given model"
    assert torch.equal(new.scale, model.scale)
    assert rules["table"] == "kept from the given model"
    assert torch.equal(new.table, model.table)
    assert rules["loose"] == "normal with the mean and deviation of the given tensor"
    assert new.loose.mean().item() == pytest.approx(3, abs=0.05)
    assert new.loose.std().item() == pytest.approx(0.1, rel=0.3)
    assert rules["norm.running_mean"] == "reset_running_stats"
    assert not new.norm.running_mean.any()


def test_the_plan_names_the_rule_for_each_member_tensor() -> None:
    """For the tensors that carry members, and only for them."""
    case = ZOO["vit"]
    planned = mt.plan(case.model(), mt.TreeNet(branch_at="norm"), case.example())
    assert set(planned.init) == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    assert planned.init["head.weight"] == "Linear.reset_parameters"
    assert planned.init["norm.weight"] == "constant: kept from the given model"
    assert "Linear.reset_parameters" in str(planned)


def test_copies_start_as_the_given_model() -> None:
    """start="copies" gives every member the given weights and statistics; the plan says that as well."""
    case = ZOO["resnet"]
    model = case.model(train=True)
    model(*case.example().args)
    ens = mt.ensemble(model, mt.Deep(), case.example(), start="copies")
    for name, tensor in ens.state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name].expand_as(tensor), rtol=0, atol=0)
    assert set(ens.plan.init.values()) == {"copied from the given model"}
    assert "given weights are not used" not in " ".join(ens.plan.notes)
    assert "given weights are not used" in " ".join(mt.plan(model, mt.Deep(), case.example()).notes)


def test_what_is_shared_keeps_the_given_weights() -> None:
    """A trunk starts as it was given, pretrained or not."""
    case = ZOO["wideresnet"]
    model = case.model()
    ens = mt.ensemble(model, mt.TreeNet(), case.example(), seed=0)
    for name, tensor in model.state_dict().items():
        if name not in owned(ens):
            assert torch.equal(ens.state_dict()[name], tensor)


class BrokenReset(nn.Linear):
    """Writes its weight, and then fails on a bias that it does not have."""

    def __init__(self) -> None:
        super().__init__(4, 3, bias=False)

    def reset_parameters(self) -> None:
        """Fills the weight with zeros before it fails; while it is built there is no `ready`."""
        nn.init.zeros_(self.weight)
        if hasattr(self, "ready"):
            nn.init.zeros_(self.bias)


def test_a_layer_whose_reset_fails_starts_at_the_scale_of_the_given_one() -> None:
    layer = BrokenReset()
    layer.ready = True  # type: ignore[assignment]
    with torch.no_grad():
        layer.weight.normal_(0.5, 2.0)
    new, rules = reinitialised(nn.Sequential(layer, nn.Linear(3, 2)), seed=0)
    assert rules["0.weight"].startswith("normal with the mean and deviation"), rules["0.weight"]
    fresh = new.get_parameter("0.weight")
    assert not torch.equal(fresh, layer.weight), "it is drawn anew"
    assert 0.5 < float(fresh.detach().std() / layer.weight.detach().std()) < 2, "a reset that failed has left nothing behind"


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm], ids=["new", "hook"])
def test_the_spectral_norm_of_fresh_weights_is_one(wrap: Any) -> None:
    """Its singular vectors are those of the member's weight: in eval mode nothing would improve stale ones."""
    layer = wrap(nn.Linear(16, 16))
    ens = mt.ensemble(nn.Sequential(layer, nn.ReLU(), nn.Linear(16, 3)).eval(), mt.Deep(members=3), torch.randn(2, 16), seed=0)
    for m in range(3):
        member = ens.member(m).eval()
        member(torch.randn(2, 16))  # a hook writes the weight before each call
        weight = member[0].weight.detach()
        assert abs(float(torch.linalg.matrix_norm(weight, 2)) - 1) < 0.1


def test_orthogonal_matrices_differ_between_members() -> None:
    layer = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))
    net = nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3))
    ens = mt.ensemble(net, mt.Deep(members=2), torch.randn(2, 4), seed=0)
    first, second = (ens.member(m)[1].weight.detach() for m in range(2))
    assert not torch.allclose(first, second) and not torch.allclose(first, layer.weight)
    for weight in (first, second):
        torch.testing.assert_close(weight @ weight.T, torch.eye(8), rtol=0, atol=1e-5)


class Target(nn.Module):
    """A slow copy of a layer, without gradients, and the start of another layer in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.slow, self.layer = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, 16)
        self.slow.load_state_dict(self.online.state_dict())
        self.slow.requires_grad_(False)
        self.register_buffer("start", self.layer.weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        h = self.online(x) - self.slow(x)
        return h + F.linear(h, self.layer.weight - self.start) + self.layer.bias


def test_copies_start_as_copies_in_every_member() -> None:
    """As in networks that the constructor makes: there the output is the layer's bias at the start."""
    ens = mt.ensemble(Target(), mt.Deep(members=3), torch.randn(4, 6), seed=0)
    members = [ens.member(m) for m in range(3)]
    for member in members:
        assert torch.equal(member.slow.weight, member.online.weight) and torch.equal(member.slow.bias, member.online.bias)
        assert torch.equal(member.start, member.layer.weight)
        torch.testing.assert_close(member(torch.randn(2, 6)), member.layer.bias.expand(2, 16))
    assert not torch.equal(members[0].slow.weight, members[1].slow.weight)


def test_copies_in_a_thinned_network_start_as_copies() -> None:
    thin = mt.resize(nn.Sequential(nn.Linear(6, 32), Mirror(32), nn.Linear(32, 3)), 0.5, torch.randn(4, 6), seed=0)
    assert thin[1].one.weight.shape == (16, 16)
    assert torch.equal(thin[1].one.weight, thin[1].two.weight)


class Mirror(nn.Module):
    """Two layers that start equal."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)
        self.two.load_state_dict(self.one.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x).relu() + self.two(x)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_copy_of_a_shared_tensor_starts_as_that_tensor_if_it_does_not_train(frozen: bool) -> None:
    """MultiHead's heads belong to members, and the layer that one of them was copied from does not."""

    class Twin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head, self.slow = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
            self.slow.load_state_dict(self.body.state_dict())
            self.slow.requires_grad_(not frozen)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).relu()) * self.slow(x)

    net = Twin()
    ens = mt.ensemble(net, mt.MultiHead(members=2), torch.randn(4, 6), seed=0, check=False)
    for m in range(2):
        assert torch.equal(ens.member(m).slow.weight, net.body.weight) == frozen
    assert not torch.equal(ens.member(0).head.weight, ens.member(1).head.weight)


def test_few_numbers_do_not_show_another_start() -> None:
    """Biases of three to ten numbers, of many seeds: by chance their deviations differ widely."""
    for seed in range(150):
        torch.manual_seed(seed)
        width = 3 + seed % 8
        rules = reinitialised(nn.Sequential(nn.Linear(6, width), nn.LayerNorm(width)), 0)[1]
        assert rules["0.bias"] == "Linear.reset_parameters", seed
    net = nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3))
    nn.init.normal_(net[0].bias, std=1e-5)  # type: ignore[arg-type]
    assert "deviation of the given" in reinitialised(net, 0)[1]["0.bias"]


def test_an_identity_is_no_draw() -> None:
    """A spatial transformer's last bias is the identity, by hand; a layer's own initialiser would turn it into noise."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
    net[2].weight.data.zero_()
    net[2].bias.data.copy_(torch.tensor([1.0, 0, 0, 0, 1, 0]))
    ens = mt.ensemble(net, mt.Deep(members=3), torch.randn(2, 4), seed=0, task="regression")
    bias = ens.get_parameter("2.bias")
    assert torch.equal(bias, net[2].bias.expand_as(bias))
    assert not torch.equal(ens.get_parameter("0.bias")[0], ens.get_parameter("0.bias")[1])


def test_forget_gates_start_where_their_author_set_them() -> None:
    """An LSTM's own initialiser draws all biases; many authors then fill a quarter of them with 1."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)
            self.lstm.bias_ih_l0.data[8:16].fill_(1.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    ens = mt.ensemble(Gated(), mt.Deep(members=2), torch.randn(2, 5, 4), seed=0)
    one, other = ens.get_parameter("lstm.bias_ih_l0").detach()
    assert bool((one[8:16] == 1).all()) and bool((other[8:16] == 1).all())
    assert not torch.equal(one[:8], other[:8]) and not torch.equal(one[16:], other[16:])
    assert "a value of many" in ens.plan.init["lstm.bias_ih_l0"]
