"""Mistakes of other libraries where layers get masks or factors: each case is right here, or refused by name."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same
from nets.convolutional import ResNet
from torch import Tensor, nn

import multitudes as mt
from multitudes.models import MLP

pytestmark = pytest.mark.slow

METHODS = [mt.BatchEnsemble(), mt.Masksembles()]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)


class Padded(nn.Conv2d):
    """A convolution that pads before it convolves, as no parent's rule says."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, 1, 0, 1)))


class Standardised(nn.Conv2d):
    """A convolution with its weight normalised."""

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean((1, 2, 3), keepdim=True)) / self.weight.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


@each_method
def test_nested_models(method: mt.Method) -> None:
    """Layers three levels down are converted, and every one of them is in the plan."""
    net, x = ResNet(widths=(12, 12, 16)), torch.randn(2, 3, 8, 8)
    planned = mt.plan(net, method, x)
    layers = {name for name, part in net.named_modules() if isinstance(part, (nn.Conv2d, nn.Linear))}
    assert {entry.name for entry in planned.converted} >= layers - {"conv1"}
    said = {entry.name for entry in (*planned.converted, *planned.shared)}
    assert {name for name, part in net.named_modules() if list(part.parameters(recurse=False))} <= said


@each_method
@pytest.mark.parametrize("kind", [Padded, Standardised])
def test_a_subclass_is_not_its_parent(method: mt.Method, kind: type[nn.Conv2d]) -> None:
    """Treated as its parent it would silently compute something else: its own forward runs; keep= leaves it whole."""
    net = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), kind(12, 12, 3), nn.ReLU(), nn.Conv2d(12, 12, 3), nn.Flatten()).double()
    x = torch.randn(2, 3, 10, 10).double()
    for keep in ((), ("2",)):
        ens = mt.ensemble(net, method, x, keep=keep, seed=0).eval()
        assert_same(ens(x), torch.stack([ens.member(m)(x) for m in range(4)]))
        assert ("2" in {entry.name for entry in ens.plan.converted}) == (not keep)
    neutral = mt.ensemble(net, method.neutral(), x, start="copies")
    assert_same(neutral(x)[0], net(x))


class Attending(nn.Module):
    """A small vision transformer around torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm, self.wide, self.thin = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.head((tokens + self.thin(F.gelu(self.wide(self.norm(tokens))))).mean(1))


@each_method
def test_transformers(method: mt.Method) -> None:
    """Tokens `[B, T, C]`, with as many tokens as rows too, and torch's attention."""
    ens = mt.ensemble(Attending().double(), method, torch.randn(2, 3, 8, 8).double(), seed=0).eval()
    assert "attention" in {entry.name for entry in ens.plan.converted}
    x = torch.randn(4, 3, 8, 8).double()
    assert_same(ens(x), torch.stack([ens.member(m)(x) for m in range(4)]))


@pytest.mark.parametrize(
    ("features", "members", "scale"),
    [(10, 2, 4.0), (12, 4, 6.0), (20, 2, 6.0), (33, 8, 1.1), (100, 8, 1.1), (320, 8, 1.1), (16, 2, 2.0), (3072, 4, 2.0)],
)
def test_masks_that_searches_do_not_find(features: int, members: int, scale: float) -> None:
    """Widths at which a search for masks never ends, or takes seconds."""
    start = time.process_time()
    matrix = mt.masks(features, members, scale, torch.Generator().manual_seed(0))
    assert time.process_time() - start < 0.5
    assert len(set(matrix.sum(1).tolist())) == 1
    assert bool(matrix.any(0).all())


def test_seeds_give_masks() -> None:
    """The same seed the same masks, given or torch's own; another seed others."""
    net, x = MLP(5, (64,), 3), torch.randn(2, 5)
    masks = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        masks.append(mt.ensemble(net, mt.Masksembles(), x).get_buffer("layers.2.mask"))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


def test_masks_are_of_the_layers_dtype_and_no_parameters() -> None:
    """Nothing is cast on the way, nothing is counted that is not learned, and a state dict has them."""
    net, x = MLP(5, (64,), 3), torch.randn(2, 5)
    for dtype in (torch.float32, torch.bfloat16):
        ens = mt.ensemble(net.to(dtype), mt.Masksembles(), x.to(dtype), seed=0)
        assert ens.get_buffer("layers.2.mask").dtype == dtype
        assert ens(x.to(dtype)).dtype == dtype
        assert sum(p.numel() for p in ens.parameters()) == sum(p.numel() for p in net.parameters())
        assert "layers.2.mask" in ens.state_dict()


@pytest.mark.parametrize("feed", ["part", "all"])
@pytest.mark.parametrize("kind", [mt.BatchEnsemble, mt.Masksembles])
def test_every_number_of_rows(kind: Any, feed: str) -> None:
    """One row, fewer rows than members, a ragged last batch: trained and predicted, nothing empty, no row left out."""
    ens = mt.ensemble(MLP(5, (16,), 3).double(), kind(feed=feed), torch.randn(2, 5).double(), seed=0)
    for count in (1, 3, 4, 5, 10):
        x, y = torch.randn(count, 5).double(), torch.randint(3, (count,))
        loss = ens.train().loss(x, y, F.cross_entropy)
        loss.backward()
        assert torch.isfinite(loss)
        assert ens.eval()(x).shape == (4, count, 3)
        assert_same(ens(x), torch.stack([ens.member(m)(x) for m in range(4)]))


@pytest.mark.slow
def test_pretrained_weights_are_kept() -> None:
    """The given weights are the shared ones, and with factors at one the ensemble is the given model."""
    net, x = ResNet(widths=(12, 12, 16)).double().eval(), torch.randn(2, 3, 8, 8).double()
    for method in (mt.BatchEnsemble(init="ones"), mt.Masksembles(scale=1.0)):
        ens = mt.ensemble(net, method, x, seed=0).eval()
        assert all(torch.equal(ens.state_dict()[name], p) for name, p in net.named_parameters() if "bias" not in name)
        assert_same(ens(x), net(x).expand(4, -1, -1))


def test_factors_have_no_decay() -> None:
    """By the parameters themselves, so that no name can miss them: 2 for each of the 10 layers."""
    ens = mt.ensemble(ResNet(widths=(12, 12, 16)), mt.BatchEnsemble(), torch.randn(2, 3, 8, 8), seed=0)
    groups = ens.param_groups(lr=0.1, weight_decay=5e-4)
    free = [name for group in groups if group["weight_decay"] == 0 for name in group["names"]]
    assert len(free) == 20


def test_the_stem_is_run_once() -> None:
    """The layers before the first mask cost as much as in one network."""
    net, x = ResNet(widths=(12, 12, 16)), torch.randn(2, 3, 8, 8)
    planned = mt.plan(net, mt.Masksembles(), x)
    stem = 2 * 8 * 8 * net.conv1.weight.numel()
    assert planned.counts.multiply_adds == 4 * planned.counts.base_multiply_adds - 3 * stem
