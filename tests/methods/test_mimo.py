"""MIMO: a step is that of inputs side by side; slots share the fraction rho; compact is one network with M heads."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_exact, assert_same, owned, summed
from nets.convolutional import ResNet
from torch import Tensor, nn

import multitudes as mt
from multitudes.models import MLP, ViT

CLASSES, MEMBERS = 4, 3
Y = torch.tensor([0, 2, 1, 3, 0, 2])
X = torch.randn(6, 5, dtype=torch.float64)
IMAGES = torch.randn(6, 3, 8, 8, dtype=torch.float64)

Build = Callable[[], nn.Module]

NETS: dict[str, tuple[Build, str, str, Tensor]] = {
    "images": (lambda: ResNet(classes=CLASSES).double(), "conv1", "fc", IMAGES),
    "vectors": (lambda: MLP(5, (8, 6), CLASSES, norm="hidden").double(), "layers.0", "layers.6", X),
    "patches": (
        lambda: ViT(classes=CLASSES, image=8, patch=4, size=12, depth=1, heads=2).double(), "embed", "head", IMAGES,
    ),
}  # fmt: skip
"""Networks, their first and last layers, and six rows for them."""


def converted(kind: str, **options: Any) -> tuple[mt.Ensemble, nn.Module]:
    """The ensemble of three, and the network that it is made of."""
    build, _, _, x = NETS[kind]
    net = build()
    return mt.ensemble(net, mt.MIMO(members=MEMBERS), x, seed=0, **options), net


def explicit(net: nn.Module, ens: mt.Ensemble, first: str, last: str) -> nn.Module:
    """One network with M C input channels and M K outputs, with the ensemble's weights side by side."""
    wide, members = copy.deepcopy(net), ens.members
    stem, head = wide.get_submodule(first), wide.get_submodule(last)
    biased = stem.bias is not None
    if isinstance(stem, nn.Linear):
        new: nn.Module = nn.Linear(members * stem.in_features, stem.out_features, bias=biased)
    else:
        sizes = (stem.kernel_size, stem.stride, stem.padding)
        new = nn.Conv2d(members * stem.in_channels, stem.out_channels, *sizes, bias=biased)
    wide.set_submodule(first, new.double())
    wide.set_submodule(last, nn.Linear(head.in_features, members * head.out_features).double())
    state = ens.state_dict()
    state[f"{first}.weight"] = torch.cat(list(state[f"{first}.weight"]), 1)
    for key in ("weight", "bias"):
        state[f"{last}.{key}"] = state[f"{last}.{key}"].flatten(0, 1)
    wide.load_state_dict(state)
    return wide


def side_by_side(wide: nn.Module, slots: Tensor) -> Tensor:
    """The wide network on slots ``[M, L, C, ...]``: ``[M, L, K]``."""
    return wide(torch.cat(list(slots), 1)).unflatten(1, (len(slots), -1)).transpose(0, 1)


def gradients_apart(wide: nn.Module, first: str, last: str, members: int) -> dict[str, Tensor | None]:
    """The wide network's gradients in the shapes of the ensemble's."""
    found = {name: p.grad for name, p in wide.named_parameters()}
    found[f"{first}.weight"] = torch.stack(found[f"{first}.weight"].chunk(members, 1))  # type: ignore[union-attr]
    for key in ("weight", "bias"):
        found[f"{last}.{key}"] = found[f"{last}.{key}"].unflatten(0, (members, -1))  # type: ignore[union-attr]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
def test_one_step_is_that_of_inputs_side_by_side(kind: str) -> None:
    """The sum of the heads' losses, every gradient, and BatchNorm's statistics over all rows of the wide network."""
    (ens, net), (_, first, last, x) = converted(kind), NETS[kind]
    wide = explicit(net, ens.train(), first, last).train()
    batch = ens.batch(x, Y)
    slots, targets = batch.inputs[0], batch.target
    assert any(not torch.equal(slots[0], other) for other in slots)
    loss = ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy)
    loss.backward()
    outputs = side_by_side(wide, slots)
    expected = torch.stack([F.cross_entropy(outputs[m], targets[m]) for m in range(MEMBERS)]).sum()
    expected.backward()
    assert_same(loss.detach(), expected.detach())
    found = {name: p.grad for name, p in ens.named_parameters()}
    assert_same(found, gradients_apart(wide, first, last, MEMBERS))
    assert all(bool(grad[m].any()) for grad in (found[f"{first}.weight"],) for m in range(MEMBERS))
    assert_same(dict(ens.named_buffers()), dict(wide.named_buffers()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
def test_prediction_has_one_input_in_all_slots(kind: str) -> None:
    """As the wide network on it M times over; slots given by hand are read in eval mode too."""
    (ens, net), (_, first, last, x) = converted(kind), NETS[kind]
    wide = explicit(net, ens.eval(), first, last).eval()
    expected = side_by_side(wide, torch.stack([x] * MEMBERS))
    assert_same(ens(x), expected)
    slots = torch.stack([x.roll(m, 0) for m in range(MEMBERS)])
    assert_same(ens(slots, per_member=True), side_by_side(wide, slots))


def test_two_inputs_have_a_first_layer_each() -> None:
    """Both are as wide as all slots, and rows of both go into a slot together."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(5, 8), nn.Linear(3, 8, bias=False)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head((self.left(a) * self.right(b)).tanh())

    b = torch.randn(6, 3, dtype=torch.float64)
    ens = mt.ensemble(Pair().double(), mt.MIMO(members=2), mt.Inputs(X, b), seed=0).train()
    state = ens.state_dict()
    batch = ens.batch(mt.Inputs(X, b), Y)
    slots = batch.inputs
    rows = [[(row == X).all(1).nonzero().item() for row in slot] for slot in slots[0]]
    assert_exact([slots[1]], [torch.stack([b[index] for index in rows])])
    left = sum(slots[0][m] @ state["left.weight"][m].T for m in range(2)) + state["left.bias"]
    right = sum(slots[1][m] @ state["right.weight"][m].T for m in range(2))
    hidden = (left * right).tanh()
    expected = torch.stack([hidden @ state["head.weight"][m].T + state["head.bias"][m] for m in range(2)])
    assert_same(ens(*slots, **batch.kwargs).detach(), expected)


def test_rows_on_another_axis() -> None:
    """Sequence first: slots take rows along the axis that they are on."""
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES)).double()
    x = torch.randn(2, 6, 5, dtype=torch.float64)
    ens = mt.ensemble(net, mt.MIMO(members=2), x, seed=0, batch_axis=1).train()
    x = x + Y[:, None]
    batch = ens.batch(x, Y)
    for slot, target in zip(batch.inputs[0], batch.target, strict=True):
        order = [(x == row[:, None]).all(2).all(0).nonzero().item() for row in slot.unbind(1)]
        assert_exact([target], [Y[order]])
    assert ens(*batch.inputs, **batch.kwargs).shape == (2, 2, 6, CLASSES)


def test_the_layout_of_memory_changes_nothing() -> None:
    """Images with channels last, and weights too."""
    (ens, _), layout = converted("images"), torch.channels_last
    twin = copy.deepcopy(ens).train().to(memory_format=layout)
    expected = ens.train().loss(IMAGES, Y, F.cross_entropy)
    assert_same(twin.loss(IMAGES.to(memory_format=layout), Y, F.cross_entropy), expected)


def rows_of(method: mt.MIMO, count: int, seed: int) -> Tensor:
    return method.slots(count, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("length", [10, 100, 7])
@pytest.mark.parametrize("tenths", range(1, 10))
def test_the_free_rows_are_counted_in_exact_numbers(length: int, tenths: int) -> None:
    """⌊L (1 − ρ)⌋ as in fractions: 1 of 10 rows at ρ = 0.9, where 10 · (1 − 0.9) is below 1 in floating point."""
    slots = mt.MIMO(members=40, rho=tenths / 10).slots(length, torch.Generator().manual_seed(0))
    common = int((slots == slots[:1]).all(0).long().flip(0).cumprod(0).sum())  # equal columns at the end
    free = math.floor(length * (1 - Fraction(tenths, 10)))
    assert common == length - (free if free > 1 else 0)  # one row alone cannot be shuffled
    assert mt.MIMO(members=2, rho=tenths / 10).free_rows(length) == free


@pytest.mark.parametrize(
    ("count", "rho", "repeat"), [(7, 0.0, 1), (7, 0.5, 1), (10, 0.3, 2), (5, 0.6, 4), (6, 1.0, 1), (1, 0.5, 1)]
)
def test_slots_share_an_exact_fraction(count: int, rho: float, repeat: int) -> None:
    """The first ⌊L (1 − rho)⌋ are shuffled in each slot, the rest is the same in all; each example is there as often."""
    method = mt.MIMO(members=3, rho=rho, repeat=repeat)
    length, free = count * repeat, math.floor(count * repeat * (1 - Fraction(str(rho))))
    differ = torch.zeros(length, dtype=torch.bool)
    for seed in range(40):
        slots = rows_of(method, count, seed)
        assert slots.shape == (3, length)
        for slot in slots:
            assert slot.bincount(minlength=count).tolist() == [repeat] * count
        assert_exact([slots[:, free:]], [slots[:1, free:].expand(3, -1)])
        differ |= (slots != slots[:1]).any(0)
    assert differ.nonzero().flatten().tolist() == list(range(free if free > 1 else 0))


def test_slots_are_shuffled_independently() -> None:
    """Each pair of orders of three rows is as frequent as another, within five deviations."""
    method, draws = mt.MIMO(members=2), 3600
    orders = list(itertools.permutations(range(3)))
    counts = torch.zeros(6, 6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(draws):
        a, b = (orders.index(tuple(slot)) for slot in method.slots(3, generator).tolist())
        counts[a, b] += 1
    expected = draws / 36
    assert bool(((counts - expected).abs() < 5 * math.sqrt(expected)).all())


def test_what_slots_share_is_any_part_of_the_batch() -> None:
    """A common shuffle comes first: the shared rows are not always the last of the batch."""
    method, rng = mt.MIMO(members=3, rho=0.5), torch.Generator().manual_seed(0)
    shared = [frozenset(method.slots(8, rng)[0, 4:].tolist()) for _ in range(20)]
    assert len(set(shared)) > 10


@pytest.mark.parametrize("target", [[0, 1, 2, 3, 0, 1], torch.zeros(9), torch.zeros(3)])
def test_targets_that_cannot_follow(target: Any) -> None:
    """A target that is no tensor, or has another number of rows, would not follow its inputs."""
    ens, _ = converted("vectors")
    with pytest.raises(mt.InputError, match=r"target.*6 rows"):
        ens.batch(X, target)


class Noisy(nn.Module):
    """Noise of its own in the trunk, drawn in one of several ways."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.a, self.b, self.head, self.how = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES), how

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if self.training and self.how == "rand":
            h = h * (torch.rand(h.shape[0], 1) > 0.5)
        if self.training and self.how == "path":
            h = h * h.new_empty(h.shape[0], 1).bernoulli_(0.5)
        if self.training and self.how == "attention":
            h = F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None], dropout_p=0.5)[:, 0]
        return self.head(torch.relu(self.b(h)))


@pytest.mark.parametrize("how", ["rand", "path", "attention"])
def test_the_trunks_noise_is_one(how: str) -> None:
    """Heads of equal weights give the same in training: there is one trunk behind all slots."""
    ens = mt.ensemble(Noisy(how).double(), mt.MIMO(members=3), X, seed=0).train()
    with torch.no_grad():
        for name in ("head.weight", "head.bias"):
            ens.get_parameter(name).copy_(ens.get_parameter(name)[:1].expand_as(ens.get_parameter(name)))
    batch = ens.batch(X, Y)
    found = ens(*batch.inputs, **batch.kwargs)
    assert_same(found, found[:1].expand_as(found))
    ens.loss(X, Y, F.cross_entropy).backward()


def test_targets_follow_inputs() -> None:
    """Also in trees of several; a number that is no row's stays what it is."""
    x = X.clone()
    x[:, 0] = Y.double()
    ens = mt.ensemble(NETS["vectors"][0](), mt.MIMO(members=3, rho=0.4, repeat=3), X, seed=0)
    before = {name: tensor.clone() for name, tensor in ens.state_dict().items()}
    batch = ens.batch(x, {"class": Y, "row": X, "scale": torch.tensor(2.0)})
    slots, target = batch.inputs[0], batch.target
    assert batch.per_member and batch.kwargs == {"per_member": True}
    assert slots.shape == (3, 18, 5)
    assert_exact([target["class"].double(), target["row"][..., 1:]], [slots[..., 0], slots[..., 1:]])
    assert_exact([target["scale"]], [torch.full((3,), 2.0)])
    assert_exact(ens.state_dict().values(), before.values())
    assert not torch.equal(ens.batch(x, Y).inputs[0], slots)


def test_the_same_seed_gives_the_same_batches() -> None:
    """A copy of the ensemble has its generator too."""
    ens, _ = converted("vectors")
    twin = copy.deepcopy(ens)
    for _ in range(2):
        assert_exact([ens.batch(X, Y).inputs[0]], [twin.batch(X, Y).inputs[0]])


def test_rho_of_one_is_a_step_of_multihead() -> None:
    """The same rows in all slots: the gradient of each slot's weight is that of the one first layer."""
    net = NETS["vectors"][0]()
    ens = mt.ensemble(net, mt.MIMO(members=3, rho=1.0), X, seed=0).train()
    other = ens.compact().train()
    batch = ens.batch(X, Y)
    slots = batch.inputs[0]
    assert_exact([slots[1], slots[2]], [slots[0], slots[0]])
    loss = ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy)
    expected = other.loss(slots[0], batch.target[0], F.cross_entropy)
    assert_same(loss.detach(), expected.detach())
    loss.backward()
    expected.backward()
    wanted = {name: p.grad for name, p in other.named_parameters()}
    wanted["layers.0.weight"] = wanted["layers.0.weight"].expand(3, -1, -1)
    assert_same({name: p.grad for name, p in ens.named_parameters()}, wanted)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_slots_given_by_hand(reduction: Any) -> None:
    """per_member=True: each slot has the rows given for it; `reduction` joins the losses."""
    ens = mt.ensemble(NETS["vectors"][0](), mt.MIMO(members=3, reduction=reduction), X, seed=0).train()
    slots, targets = torch.stack([X, X.flip(0), X.roll(2, 0)]), torch.stack([Y, Y.flip(0), Y.roll(2, 0)])
    losses = [F.cross_entropy(output, target) for output, target in zip(ens(slots, per_member=True), targets, strict=True)]
    expected = sum(losses) if reduction == "sum" else sum(losses) / 3
    assert_same(ens.loss(slots, targets, F.cross_entropy, per_member=True), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
def test_compact_is_one_network_with_several_heads(kind: str, tmp_path: Path) -> None:
    """The same outputs at the single network's cost but for heads; saved, cut down and taken apart like any other."""
    (ens, net), (build, first, last, x) = converted(kind), NETS[kind]
    trained(ens, x)
    found = ens.eval()(x)
    small = ens.compact()
    assert isinstance(small.method, mt.MultiHead) and small.members == MEMBERS
    assert_same(small(x), found)
    assert small.get_parameter(f"{first}.weight").shape == net.get_parameter(f"{first}.weight").shape
    heads = mt.plan(net, mt.MultiHead(members=MEMBERS), x).counts
    assert small.plan.counts == heads
    head = net.get_submodule(last)
    assert small.plan.counts.multiply_adds == heads.base_multiply_adds + (MEMBERS - 1) * len(x) * head.weight.numel()
    if kind == "vectors":
        cost = mt.cost(small, x, repeats=1).ensemble
        assert (cost.parameters, cost.multiply_adds) == (heads.parameters, heads.multiply_adds)
        mt.save(small, tmp_path / "a.multitude")
        assert_exact([mt.load(tmp_path / "a.multitude", build())(x), mt.load(tmp_path / "a.multitude")(x)], [small(x)] * 2)
    for some in (ens.subset([2, 0]), small.subset([2, 0])):
        assert some.members == 2
        assert_same(some(x), found[[2, 0]])
    for m in range(MEMBERS):
        for member in (ens.member(m), small.member(m)):
            assert {n: type(part) for n, part in member.named_modules()} == {n: type(part) for n, part in net.named_modules()}
            assert_same(member(x), found[m])
    with pytest.raises(mt.InputError):
        small.compact()


def trained(ens: mt.Ensemble, x: Tensor) -> None:
    """A step, after which slots are of several sizes."""
    optimiser = torch.optim.SGD(ens.train().param_groups(lr=0.1))
    ens.loss(x, Y, F.cross_entropy).backward()
    optimiser.step()
    optimiser.zero_grad()


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
def test_copies_are_the_base_model(kind: str) -> None:
    """Each slot has W / M and each head the given one: in eval mode and, on one input in all slots, in training."""
    (ens, net), (_, first, last, x) = converted(kind, start="copies"), NETS[kind]
    given = dict(net.named_parameters())
    for m in range(MEMBERS):
        assert_same(ens.get_parameter(f"{first}.weight")[m].detach(), given[f"{first}.weight"].detach() / MEMBERS)
        assert_exact([ens.get_parameter(f"{last}.weight")[m]], [given[f"{last}.weight"]])
    assert_same(ens.eval()(x).detach(), net.eval()(x).detach().expand(MEMBERS, -1, -1))
    ens.train()
    assert_same(ens(torch.stack([x] * MEMBERS), per_member=True)[1], net.train()(x))


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
def test_the_trunk_is_the_given_one(kind: str) -> None:
    """Fresh slots and heads around the given weights; fresh slots add up to what a fresh layer has; load_base is copies."""
    (ens, net), (_, first, last, x) = converted(kind), NETS[kind]
    given = dict(net.named_parameters())
    assert summed(ens) == {f"{first}.weight"}
    assert owned(ens) == {f"{last}.weight", f"{last}.bias"}
    for name, parameter in ens.named_parameters():
        if name not in summed(ens) | owned(ens):
            assert_exact([parameter], [given[name]])
    whole = ens.get_parameter(f"{first}.weight").detach()
    assert whole.sum(0).std().item() / given[f"{first}.weight"].std().item() == pytest.approx(1, abs=0.25)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(whole, 2))
    ens.load_base(net.state_dict())
    assert_same(ens.eval()(x).detach(), net.eval()(x).detach().expand(MEMBERS, -1, -1))


def test_no_layer_is_kept_out() -> None:
    """keep= has nothing to say about slots."""
    with pytest.raises(mt.InputError, match="keep="):
        mt.ensemble(NETS["vectors"][0](), mt.MIMO(), X, keep=["layers.0"])


def test_one_member_is_the_network() -> None:
    """M = 1 with fresh weights in its one slot: a step of an ordinary network on shuffled rows."""
    ens = mt.ensemble(NETS["vectors"][0](), mt.MIMO(members=1), X, seed=0).train()
    batch = ens.batch(X, Y)
    expected = F.cross_entropy(ens.member(0).train()(batch.inputs[0][0]), batch.target[0])
    assert_same(ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy), expected)


def test_training_tells_slots_apart() -> None:
    """A few hundred steps: head m learns what is in slot m, with other labels in each slot, and not what is in another."""
    torch.manual_seed(0)
    x = torch.randn(64, 2, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    ens = mt.ensemble(MLP(2, (32, 64), 2).double(), mt.MIMO(members=2), x, seed=0).train()
    optimiser = torch.optim.Adam(ens.param_groups(lr=0.01))
    for _ in range(200):
        optimiser.zero_grad()
        ens.loss(x, y, F.cross_entropy).backward()
        optimiser.step()
    batch = ens.batch(x, y)
    outputs = ens.eval()(*batch.inputs, **batch.kwargs).argmax(2)
    for m, other in ((0, 1), (1, 0)):
        assert (outputs[m] == batch.target[m]).double().mean() > 0.9
        assert (outputs[m] == batch.target[other]).double().mean() < 0.75
    assert (ens(x).argmax(2) == y).double().mean() > 0.95


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_slots_under_autocast(compile: bool) -> None:
    """The first layer's products are in the lower precision, as those of a layer on all slots side by side."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Flatten(), nn.Linear(8 * 4, 5))
    x = torch.randn(2, 6, 3, 4, 4)
    ens = mt.ensemble(net, mt.MIMO(members=2), x[0], seed=0).train()
    call = torch.compile(ens, backend="aot_eager") if compile else ens
    seen: list[torch.dtype] = []
    if not compile:
        ens.get_submodule("0").register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = call(x, per_member=True)
        weight = torch.cat(list(ens.get_parameter("0.weight")), 1)
        trunk = torch.nn.functional.conv2d(torch.cat(list(x), 1), weight).flatten(1)
        heads = zip(ens.get_parameter("2.weight"), ens.get_parameter("2.bias"), strict=True)
        wanted = torch.stack([torch.nn.functional.linear(trunk, w, b) for w, b in heads])
    assert seen == ([] if compile else [torch.bfloat16])
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0.05, atol=0.03)


@pytest.mark.slow
def test_a_compiler_takes_only_rows_for_variable_after_a_prediction() -> None:
    """Slots have one axis more than inputs of predictions. Inductor does not compile convolutions of any number of channels."""
    import torch._dynamo

    torch._dynamo.reset()
    symbols: list[int] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        symbols.append(sum(not isinstance(given, Tensor) for given in inputs))
        return graph.forward

    ens, _ = converted("images")
    compiled = torch.compile(ens, backend=backend, fullgraph=True)
    with torch.no_grad():
        compiled.eval()(IMAGES)
    batch = ens.train().batch(IMAGES, Y)
    compiled.train()(*batch.inputs, **batch.kwargs)
    assert len(symbols) == 2 and symbols[1] <= 1
