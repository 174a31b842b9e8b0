"""Masksembles: members are networks with channels cut out; rows are divided among them; limits of the scale."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.methods.masksembles import Masked
from multitudes.models import MLP, resnet18

X, Y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 2, 1, 1, 0, 2])
IMAGES = torch.randn(3, 3, 16, 16, dtype=torch.float64)


def perceptron() -> nn.Module:
    return MLP(5, (16, 12), 3, norm="hidden").double()


def masks_of(ens: mt.Ensemble) -> dict[str, Tensor]:
    """The masks of every layer, ``[M, C]``."""
    return {name: buffer for name, buffer in ens.named_buffers() if name.endswith("mask")}


@pytest.mark.parametrize("feed", ["part", "all"])
def test_one_step_is_that_of_networks_cut_out(feed: str) -> None:
    """Weights of dropped channels sliced away, rows of all members normalised together: loss and every gradient."""
    ens = mt.ensemble(perceptron(), mt.Masksembles(members=3, feed=feed), X, seed=0).train()  # type: ignore[arg-type]
    batch = ens.batch(X, Y)
    loss = ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy)
    loss.backward()
    state = {name: p.detach().clone().requires_grad_() for name, p in ens.named_parameters()}
    rows = batch.kwargs["rows"].repeat_interleave(2) if feed == "part" else torch.arange(3).repeat_interleave(6)
    x, y = (X, Y) if feed == "part" else (X.repeat(3, 1), Y.repeat(3))
    expected = F.cross_entropy(sliced(state, masks_of(ens), x, rows), y)
    expected.backward()
    assert_same(loss.detach(), expected.detach())
    assert_same({n: p.grad for n, p in ens.named_parameters()}, {n: t.grad for n, t in state.items()})


def sliced(state: dict[str, Tensor], masks: dict[str, Tensor], x: Tensor, rows: Tensor) -> Tensor:
    """The perceptron row by row, each linear layer on the kept channels of the row's member alone."""
    h = x @ state["layers.0.weight"].T + state["layers.0.bias"]
    for norm, layer in (("layers.1", "layers.3"), ("layers.4", "layers.6")):
        h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt() * state[f"{norm}.weight"] + state[f"{norm}.bias"]
        h = h.relu()
        kept = [masks[f"{layer}.mask"][m].nonzero().flatten() for m in rows]
        weight, bias = state[f"{layer}.weight"], state[f"{layer}.bias"]
        h = torch.stack([row[k] @ weight[:, k].T + bias for row, k in zip(h, kept, strict=True)])
    return h


@pytest.mark.slow
def test_where_masks_are() -> None:
    """Before: not on the input, but on the head's; after: not on the output, but on the stem's; narrow layers are shared."""
    net = resnet18(width=0.25).double()
    before = mt.ensemble(net, mt.Masksembles(), IMAGES, seed=0)
    after = mt.ensemble(net, mt.Masksembles(position="after"), IMAGES, seed=0)
    ours = [{n for n, part in e.template.named_modules() if isinstance(part, Masked)} for e in (before, after)]
    convolutions = {n for n, part in net.named_modules() if isinstance(part, nn.Conv2d)}
    assert ours[0] == (convolutions | {"fc"}) - {"conv1"}
    assert ours[1] == convolutions
    narrow = mt.plan(MLP(5, (16, 8), 3).double(), mt.Masksembles(), X)
    assert {e.name: e.reason for e in narrow.shared}["layers.4"] == "8 channels, fewer than fewest=10"
    assert [e.name for e in narrow.converted] == ["layers.2"]
    assert "masks of 8 ones in 16" in narrow.converted[0].reason


@pytest.mark.slow
def test_at_gives_other_scales() -> None:
    """From the third stage on, for example."""
    net = resnet18(width=0.25).double()
    wide = mt.Masksembles(scale=2.0)
    ens = mt.ensemble(net, mt.Masksembles(scale=1.0), IMAGES, at={"layer3": wide, "layer4": wide, "fc": wide}, seed=0)
    shares = {name: mask.mean().item() for name, mask in masks_of(ens).items()}
    assert all((share == 1) == (name.split(".")[0] in ("layer1", "layer2")) for name, share in shares.items())


@pytest.mark.slow
def test_growing_keeps_the_capacity() -> None:
    """Each mask leaves as many channels as the given layer has; for our models, or a factory."""
    net = resnet18(width=0.25).double()
    ens = mt.ensemble(net, mt.Masksembles(width="grow"), IMAGES, seed=0)
    assert ens.template.layer2[0].conv2.in_channels == 60  # 32 × 2 (1 − (1 − 1/2)^4)
    assert set(masks_of(ens)["layer2.0.conv2.mask"].sum(1).tolist()) == {32.0}
    wide = mt.ensemble(ZOO["resnet"].model(), mt.Masksembles(width="grow", fewest=2), ZOO["resnet"].example(), seed=0)
    assert sum(p.numel() for p in wide.parameters()) > sum(p.numel() for p in ZOO["resnet"].model().parameters())


def test_the_limits_of_the_scale() -> None:
    """At 1 every member is the network; far beyond, members have no channel in common."""
    net = MLP(5, (16, 16), 3).double()
    same = mt.ensemble(net, mt.Masksembles(scale=1.0), X, seed=0).eval()
    assert_same(same(X)[2], net.eval()(X))
    apart = mt.ensemble(net, mt.Masksembles(scale=1e6), X, seed=0)
    assert all(bool((mask.sum(0) == 1).all()) for mask in masks_of(apart).values())


def test_far_apart_members_are_disjoint_networks() -> None:
    """Fig. 5, S → ∞: no weight of hidden layers serves two members, so that what one learns leaves the others as they are."""
    net = MLP(5, (16, 16), 3, bias=False).double()
    ens = mt.ensemble(net, mt.Masksembles(scale=1e6), X, seed=0)
    before = ens(X)
    F.cross_entropy(before[0], Y).backward()
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter -= parameter.grad
    after = ens(X)
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1:], before[1:])


def test_many_members_are_dropout() -> None:
    """Fig. 5, N → ∞: each channel is kept at a rate of 1/S, independently, and outputs have dropout's mean and deviation."""
    scale, members = 3.0, 400
    net = MLP(5, (200,), 1).double()
    ens = mt.ensemble(net, mt.Masksembles(members=members, scale=scale), X, seed=0, check=False)
    masks = ens.get_buffer("layers.2.mask")
    assert masks.mean().item() == pytest.approx(1 / scale, abs=0.01)
    together = (masks.T @ masks / members).fill_diagonal_(0).sum() / (200 * 199)
    assert together.item() == pytest.approx(1 / scale**2, abs=0.005)
    hidden = net.layers[1](net.layers[0](X)).detach()
    weight, bias = net.layers[2].weight.detach()[0], net.layers[2].bias.detach()
    found = ens(X).detach()[..., 0]
    terms = hidden * weight
    mean = terms.sum(1) / scale + bias
    deviation = ((terms**2).sum(1) * (1 / scale) * (1 - 1 / scale)).sqrt()
    assert bool(((found.mean(0) - mean).abs() < 5 * deviation / members**0.5).all())
    fixed = (terms - terms.mean(1, keepdim=True)).norm(dim=1) / terms.norm(dim=1)  # as many ones in each mask as in another
    assert torch.allclose(found.std(0), deviation * fixed, rtol=0.15)


def test_masked_attention_is_attention_with_zeros() -> None:
    """Inputs are masked before the projections, and the heads' outputs before the output projection: by hand."""
    layer, x = nn.MultiheadAttention(16, 2, batch_first=True).double(), torch.randn(2, 5, 16).double()
    stem = nn.Linear(16, 16).double()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.attention = stem, layer

        def forward(self, x: Tensor) -> Tensor:
            h = self.stem(x)
            return self.attention(h, h, h)[0]

    ens = mt.ensemble(Net(), mt.Masksembles(), x, seed=0).eval()
    for m in range(4):
        read, given = (ens.get_buffer(f"attention.{key}")[m] for key in ("mask", "mask_out"))
        assert set(given.tolist()) == set(read.tolist()) == {0.0, 1.0}
        h = stem(x) * read
        q, k, v = ((h @ w.T + b).unflatten(2, (2, 8)).transpose(1, 2) for w, b in zip(
            layer.in_proj_weight.chunk(3), layer.in_proj_bias.chunk(3), strict=True))  # fmt: skip
        heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) * given
        assert_same(ens(x)[m], heads @ layer.out_proj.weight.T + layer.out_proj.bias)


def test_every_member_has_its_turn_in_small_batches() -> None:
    """Blocks begin with any member, so that fewer rows than members leave none untrained."""
    ens = mt.ensemble(perceptron(), mt.Masksembles(), X, seed=0)
    seen = {int(m) for _ in range(60) for m in ens.batch(X[:2], Y[:2]).kwargs["rows"]}
    assert seen == {0, 1, 2, 3}


def test_rows_are_those_of_the_inputs() -> None:
    """Whatever the target is: none, or steps first."""
    ens = mt.ensemble(perceptron(), mt.Masksembles(), X, seed=0)
    assert len(ens.batch(X[:5], None).kwargs["rows"]) == 5
    assert len(ens.batch(X[:5], torch.zeros(9, 6)).kwargs["rows"]) == 5


@pytest.mark.slow
def test_other_scales_where_layers_grow() -> None:
    """at= says how many ones a grown layer's masks have; where no mask can be it is an error."""
    net, grown = resnet18(width=0.25).double(), mt.Masksembles(width="grow")
    ens = mt.ensemble(net, grown, IMAGES, at={"layer2.0.conv2": mt.Masksembles(width="grow", scale=1.0)}, seed=0)
    assert bool(masks_of(ens)["layer2.0.conv2.mask"].all())
    assert set(masks_of(ens)["layer2.1.conv2.mask"].sum(1).tolist()) == {32.0}
    with pytest.raises(mt.InputError, match=r"at=.*conv1"):
        mt.ensemble(net, mt.Masksembles(), IMAGES, at={"conv1": mt.Masksembles(scale=3.0)}, seed=0)


@pytest.mark.slow
def test_a_subset_that_has_grown_comes_back(tmp_path: Path) -> None:
    """Its layers are as wide as they were for all members."""
    ens = mt.ensemble(resnet18(width=0.25).double(), mt.Masksembles(width="grow"), IMAGES, seed=0).eval()
    mt.save(ens.subset([1, 3]), tmp_path / "a.multitude")
    assert_same(mt.load(tmp_path / "a.multitude")(IMAGES), ens(IMAGES)[[1, 3]])


def test_copies_keep_their_masks() -> None:
    """All weights are the given ones anyway."""
    ens = mt.ensemble(perceptron(), mt.Masksembles(), X, seed=0, start="copies")
    assert_same(masks_of(ens), masks_of(mt.ensemble(perceptron(), mt.Masksembles(), X, seed=0)))


@pytest.mark.parametrize("method", [mt.Masksembles(), mt.BatchEnsemble()], ids=["Masksembles", "BatchEnsemble"])
def test_a_kept_layer_is_as_it_was_given(tmp_path: Path, method: mt.Method) -> None:
    """No factor and no mask is left in it, and a file of it comes back."""
    ens = mt.ensemble(perceptron(), method, X, keep=["layers.3"], seed=0).eval()
    assert type(ens.template.layers[3]) is nn.Linear
    assert {n for n in ens.state_dict() if n.startswith("layers.3.")} == {"layers.3.weight", "layers.3.bias"}
    mt.save(ens, tmp_path / "a.multitude")
    assert_same(mt.load(tmp_path / "a.multitude", perceptron())(X), ens(X))


@pytest.mark.parametrize("method", [mt.Masksembles(), mt.BatchEnsemble()], ids=["Masksembles", "BatchEnsemble"])
def test_it_can_be_pickled(method: mt.Method) -> None:
    """For spawned processes; compact ensembles too."""
    ens = mt.ensemble(perceptron(), method, X, seed=0).eval()
    nets = [ens, ens.compact()] if isinstance(method, mt.Masksembles) else [ens]
    for net in nets:
        assert_same(pickle.loads(pickle.dumps(net))(X), ens(X))


def test_at_takes_narrow_layers_too() -> None:
    """A layer that at= names gets masks, however few its channels are; others like it stay shared."""
    net = MLP(5, (16, 8, 8), 3).double()
    ens = mt.ensemble(net, mt.Masksembles(), X, at={"layers.4": mt.Masksembles(scale=3.0)}, seed=0)
    assert set(masks_of(ens)) == {"layers.2.mask", "layers.4.mask"}
    assert "masks of 3 ones in 8" in {e.name: e.reason for e in ens.plan.converted}["layers.4"]


class TiedCoder(nn.Module):
    """An autoencoder with one layer, whose weight decodes too."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.code, self.bias = nn.Linear(30, width), nn.Parameter(torch.zeros(30))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.code(x).relu(), self.code.weight.t(), self.bias)


def test_where_no_layer_can_have_masks_the_way_out_is_another_method() -> None:
    x = torch.randn(4, 30)
    with pytest.raises(mt.ConversionError, match="nothing to mask") as refusal:
        mt.ensemble(TiedCoder(), mt.Masksembles(members=4), x)
    assert "fewest" not in str(refusal.value)
    assert "mt.Deep(members=4)" in str(refusal.value)
    mt.ensemble(TiedCoder(), mt.Deep(members=4), x)


def test_narrow_layers_can_have_masks_with_fewest() -> None:
    net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(4, 3)
    with pytest.raises(mt.ConversionError, match=r"Masksembles\(fewest=2\) masks narrower layers"):
        mt.ensemble(net, mt.Masksembles(members=2), x)
    mt.ensemble(net, mt.Masksembles(members=2, fewest=2), x)


class Series(nn.Module):
    """A recurrent network of a few numbers per step."""

    def __init__(self, kind: type[nn.RNNBase], inputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, inputs)
        self.cells = kind(inputs, 12, batch_first=True, bidirectional=True)
        self.last = nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(self.first(x))[0][:, -1])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kind", "inputs"), [(nn.LSTM, 12), (nn.GRU, 1)])
def test_recurrent_networks_can_be_moved(kind: type[nn.RNNBase], inputs: int) -> None:
    """Torch reads the weights again when it moves them; and one number per step has no channel to drop."""
    x = torch.randn(6, 4, inputs)
    ens = mt.ensemble(Series(kind, inputs), mt.Masksembles(members=2), x, seed=0, check=False).eval()
    before = ens(x)
    torch.testing.assert_close(ens.to("cpu")(x), before)
    torch.testing.assert_close(ens.double()(x.double())[1], ens.member(1)(x.double()))
