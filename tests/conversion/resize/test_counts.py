"""Counts are no widths: words, latents, experts, taps, heads and steps stay, or the network is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from multitudes.conversion.anatomy.structure import observe
from multitudes.conversion.resize import counts
from multitudes.conversion.resize.counts import changed_counts


class Words(nn.Module):
    """A table of 1000 words; the example has small ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(1000, 64), nn.Linear(64, 256), nn.Linear(256, 7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(F.relu(self.body(self.table(ids).mean(1))))


class Lookup(nn.Module):
    """A table that is no nn.Embedding, as I-BERT's."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class Ids(nn.Module):
    """Words by such a table; their number is a width by its value."""

    def __init__(self, words: int = 64, width: int = 32, inner: int = 64) -> None:
        super().__init__()
        self.words, self.width, self.inner = words, width, inner
        self.table, self.body, self.head = Lookup(words, width), nn.Linear(width, inner), nn.Linear(inner, 7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(F.relu(self.body(self.table(ids).mean(1))))


def test_rows_that_are_looked_up_stay() -> None:
    ens = mt.ensemble(Ids(), mt.Packed(members=4, alpha=2), torch.randint(64, (3, 6)), seed=0)
    assert ens.get_parameter("table.weight").shape == (4, 64, 16)
    assert ens.get_parameter("body.weight").shape == (4, 32, 16)


class Scaled(nn.Embedding):
    """A table that multiplies its rows by a number that it holds, as Gemma's."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__(words, width)
        self.register_buffer("scale", torch.tensor(width**0.5))

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * self.scale


class ScaledWords(nn.Module):
    """Words by such a table."""

    def __init__(self, words: int = 50, width: int = 32) -> None:
        super().__init__()
        self.words, self.width = words, width
        self.table, self.head = Scaled(words, width), nn.Linear(width, 7)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).mean(1).tanh())


def test_a_table_may_hold_a_number() -> None:
    ens = mt.ensemble(ScaledWords(), mt.Packed(members=4, alpha=2), torch.randint(50, (3, 6)), seed=0)
    assert ens.get_parameter("table.weight").shape == (4, 50, 16)
    assert torch.allclose(ens.member(0).get_buffer("table.scale"), torch.tensor(4.0))


class Latents(nn.Module):
    """32 learned latents read the input."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(32, 64))
        self.read, self.head = nn.Linear(8, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x)
        weights = (self.latents @ h.transpose(1, 2)).softmax(-1)
        return self.head((weights @ h).mean(1))


class Experts(nn.Module):
    """Eight stacked experts, whose number has a short name."""

    def __init__(self, width: int = 64, n: int = 8) -> None:
        super().__init__()
        self.width, self.n = width, n
        self.read, self.gate, self.head = nn.Linear(8, width), nn.Linear(width, n), nn.Linear(width, 5)
        self.weights = nn.Parameter(0.1 * torch.randn(n, width, 2 * width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x)
        each = torch.einsum("bc,ecd->bed", h, self.weights)[..., : self.width]
        return self.head((self.gate(h).softmax(-1)[..., None] * each).sum(1))


class Steps(nn.Module):
    """Runs a block as often as its width says."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width, self.steps = width, width // 16
        self.read, self.block, self.head = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x)
        for _ in range(self.steps):
            h = F.relu(self.block(h))
        return self.head(h)


class LinearAttention(nn.Module):
    """Heads without a softmax, whose number has a short name."""

    def __init__(self, n_h: int = 8, size: int = 8) -> None:
        super().__init__()
        self.n_h, self.size = n_h, size
        self.read, self.head = nn.Linear(8, n_h * size), nn.Linear(n_h * size, 5)

    def forward(self, x: Tensor) -> Tensor:
        q = F.elu(self.read(x)).view(x.shape[0], x.shape[1], self.n_h, self.size) + 1
        mixed = torch.einsum("bnhd,bmhd,bmhe->bnhe", q, q, q)
        return self.head(mixed.flatten(2).mean(1))


class RawKernel(nn.Module):
    """A convolution by a kernel that no layer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(0.01 * torch.randn(64, 64, 7, 7))
        self.read, self.head = nn.Conv2d(3, 64, 1), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.conv2d(self.read(x), self.kernel, padding=3).mean((2, 3)))


ROWS = torch.randn(3, 8)
TOKENS = torch.randn(3, 6, 8)


@pytest.mark.parametrize(
    ("build", "x"),
    [
        (Words, torch.randint(300, (3, 4))),
        (Latents, TOKENS),
        (Experts, ROWS),
        (Steps, ROWS),
        (LinearAttention, TOKENS),
        (RawKernel, torch.randn(2, 3, 8, 8)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_count_stays_or_the_network_is_refused(build: Callable[[], nn.Module], x: Tensor) -> None:
    net = build()
    try:
        thin = mt.resize(net, 0.5, x, seed=0)
    except mt.ConversionError:
        return
    counts = {
        "Words": lambda n: n.table.num_embeddings,
        "Latents": lambda n: len(n.latents),
        "Experts": lambda n: len(n.weights),
        "Steps": lambda n: n.steps,
        "LinearAttention": lambda n: n.n_h,
        "RawKernel": lambda n: n.kernel.shape[2:],
    }
    count = counts[build.__name__]
    assert count(thin) == count(net), thin.resizing


class Hidden(nn.Module):
    """What its attributes do not tell: a rate of dropout, and the slope of a branch that starts at zero."""

    def __init__(self, width: int = 64, p: float = 0.0, slope: float = 0.01) -> None:
        super().__init__()
        self.drop = functools.partial(F.dropout, p=p)
        self.activation = functools.partial(F.leaky_relu, negative_slope=slope)
        self.gain = nn.Parameter(torch.zeros(width))
        self.read, self.head = nn.Linear(8, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x)
        return self.head(h + self.gain * self.activation(self.drop(h, training=self.training)))


@pytest.mark.parametrize("given", [{"p": 0.5}, {"slope": 0.5}], ids=str)
def test_arguments_that_show_in_no_shape_are_not_lost(given: dict[str, float]) -> None:
    """By channels they are kept; a constructor with its default would forget them."""
    try:
        thin = mt.resize(Hidden(**given), 0.5, ROWS, seed=0)
    except mt.ConversionError:
        return
    assert thin.drop.keywords["p"] == given.get("p", 0.0)
    assert thin.activation.keywords["negative_slope"] == given.get("slope", 0.01)


class Plain(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.read, self.head = nn.Linear(8, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.read(x)))


def test_weights_that_were_drawn_after_the_constructor_ran_keep_their_scale() -> None:
    net = Plain()
    nn.init.normal_(net.read.weight, std=3.0)
    thin = mt.resize(net, 0.5, ROWS, seed=0)
    assert thin.resizing.way == "its constructor"
    assert 2 < float(thin.read.weight.detach().std()) < 4.5


def test_a_slope_behind_a_single_number_of_zero_is_not_lost() -> None:
    """A branch that starts at zero by one number hides what its activation is."""

    class Gated(nn.Module):
        def __init__(self, width: int = 64, slope: float = 0.01) -> None:
            super().__init__()
            self.activation = functools.partial(F.leaky_relu, negative_slope=slope)
            self.gain = nn.Parameter(torch.zeros(()))
            self.read, self.head = nn.Linear(8, width), nn.Linear(width, 5)

        def forward(self, x: Tensor) -> Tensor:
            h = self.read(x)
            return self.head(h + self.gain * self.activation(h))

    thin = mt.resize(Gated(slope=0.5), 0.5, ROWS, seed=0)
    assert thin.activation.keywords["negative_slope"] == 0.5


class Mixture(nn.Module):
    """A mixture density network: the mean of 16 components."""

    def __init__(self, hidden: int = 64, components: int = 16) -> None:
        super().__init__()
        self.hidden, self.components = hidden, components
        self.read = nn.Linear(8, hidden)
        self.shares, self.means = nn.Linear(hidden, components), nn.Linear(hidden, components)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.read(x))
        return (self.shares(h).softmax(-1) * self.means(h)).sum(-1, keepdim=True)


class Quantiles(nn.Module):
    """The mean of 32 quantiles, without a softmax."""

    def __init__(self, hidden: int = 64, components: int = 32) -> None:
        super().__init__()
        self.hidden, self.components = hidden, components
        self.read, self.values = nn.Linear(8, hidden), nn.Linear(hidden, components)

    def forward(self, x: Tensor) -> Tensor:
        return self.values(F.relu(self.read(x))).mean(-1, keepdim=True)


class Taps(nn.Module):
    """A long filter for each channel, whose number of taps has a short name."""

    def __init__(self, hidden: int = 48, components: int = 32) -> None:
        super().__init__()
        self.hidden, self.components = hidden, components
        self.read, self.head = nn.Linear(8, hidden), nn.Linear(hidden, 5)
        self.filter = nn.Parameter(torch.randn(hidden, components))

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.read(x)[..., None] * self.filter).tanh().sum(-1))


@pytest.mark.parametrize("build", [Mixture, Quantiles, Taps])
def test_a_count_among_the_arguments_is_kept_and_the_widths_follow(build: Callable[[], nn.Module]) -> None:
    """Each argument is left out in turn, until what is left changes widths alone."""
    net = build()
    thin = mt.resize(net, 0.5, ROWS, seed=0)
    assert thin.resizing.way == "its constructor"
    assert (thin.hidden, thin.components) == (net.hidden // 2, net.components)


class Memory(nn.Module):
    """Reads from 64 slots by a softmax."""

    def __init__(self, slots: int = 64, width: int = 32) -> None:
        super().__init__()
        self.slots, self.width = slots, width
        self.read, self.head = nn.Linear(8, width), nn.Linear(width, 3)
        self.keys, self.values = nn.Linear(width, slots), nn.Linear(slots, width)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.read(x))
        return self.head(h + self.values(self.keys(h).softmax(-1)))


def test_slots_are_no_channels_and_the_advice_keeps_them() -> None:
    with pytest.raises(mt.ConversionError, match="choose among 32 instead of 64") as refusal:
        mt.resize(Memory(), 0.5, ROWS, seed=0)
    assert "lambda ratio: Memory(width=round(32 * ratio))" in str(refusal.value)
    thin = mt.resize(lambda ratio: Memory(width=round(32 * ratio)), 0.5, ROWS, seed=0)
    assert thin.keys.weight.shape == (64, 16)


class Gate(nn.Module):
    """Heads with a gate each, split from a layer without a bias; either number may be the one that shrinks."""

    def __init__(self, n_h: int = 8, size: int = 8) -> None:
        super().__init__()
        self.n_h, self.size = n_h, size
        self.read, self.head = nn.Linear(8, n_h * size, bias=False), nn.Linear(n_h * size, 3)
        self.gates = nn.Parameter(torch.randn(n_h, size))

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x).view(*x.shape[:2], self.n_h, self.size)
        return self.head(((h * self.gates).sum(-1, keepdim=True).sigmoid() * h).sum(1).flatten(1))


def test_the_size_of_heads_shrinks_and_not_their_number() -> None:
    thin = mt.resize(Gate(), 0.5, TOKENS, seed=0)
    assert thin.gates.shape == (8, 4)


class Kernels(nn.Module):
    """Linear attention whose heads are split and at once moved before the tokens."""

    def __init__(self, n_h: int = 8, size: int = 8) -> None:
        super().__init__()
        self.n_h, self.size = n_h, size
        self.read, self.mix, self.head = (
            nn.Linear(i, o) for i, o in ((8, n_h * size), (n_h * size, n_h * size), (n_h * size, 3))
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.mix(self.read(x)).view(*x.shape[:2], self.n_h, -1).transpose(1, 2).sigmoid()
        return self.head((h @ (h.transpose(-1, -2) @ h)).transpose(1, 2).flatten(2).mean(1))


class KernelsInCode(Kernels):
    def __init__(self) -> None:
        nn.Module.__init__(self)
        heads, size = 8, 8
        self.n_h = heads
        self.read, self.mix, self.head = nn.Linear(8, heads * size), nn.Linear(heads * size, heads * size), nn.Linear(64, 3)


class Together(Kernels):
    """Queries, keys and values come from one layer."""

    def __init__(self, n_h: int = 8, size: int = 8) -> None:
        super().__init__(n_h, size)
        self.mix = nn.Linear(n_h * size, 3 * n_h * size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.read(x)).view(*x.shape[:2], 3, self.n_h, -1).permute(2, 0, 3, 1, 4).sigmoid()
        return self.head((q @ (k.transpose(-1, -2) @ v)).transpose(1, 2).flatten(2).mean(1))


@pytest.mark.parametrize("build", [Kernels, KernelsInCode, Together])
def test_heads_that_are_split_and_moved_keep_their_number(build: Callable[[], nn.Module]) -> None:
    thin = mt.resize(build(), 0.5, TOKENS, seed=0)
    assert thin.n_h == 8
    assert thin.mix.weight.shape[1] == 32


def test_attention_over_channels_is_no_choice() -> None:
    """Its maps are as large as the channels, and follow the width."""

    class Channels(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.width = width
            self.read, self.head = nn.Linear(8, width), nn.Linear(width, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.read(x)
            return self.head((h @ (h.transpose(1, 2) @ h).softmax(-1)).mean(1))

    assert mt.resize(Channels(), 0.5, TOKENS, seed=0).width == 16


class OwnConv(nn.Conv2d):
    """Standardises its weight, as convolutions of some networks do."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class OwnNorm(nn.BatchNorm2d):
    """A norm with its activation."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def own_layers(width: int) -> nn.Module:
    return nn.Sequential(OwnConv(3, width, 3), OwnNorm(width), nn.Flatten(), nn.Linear(36 * width, 5))


@pytest.mark.parametrize("in_code", [False, True], ids=["by arguments", "by numbers in code"])
def test_kinds_of_torch_s_layers_have_their_channels(in_code: bool) -> None:
    """Weights and running statistics of own convolutions and norms follow the width; taps of a kernel do not."""
    x = mt.Inputs(torch.randn(2, 3, 8, 8))
    every = set(own_layers(8).state_dict())
    assert list(changed_counts(observe(own_layers(32), x), own_layers(16), 0.5, every if in_code else set())) == []
    wide, fewer_taps = nn.Sequential(OwnConv(3, 8, 3, padding=1)), nn.Sequential(OwnConv(3, 8, 1))
    assert any("0.weight" in text for text in changed_counts(observe(wide, x), fewer_taps, 0.5, every))


def test_linear_layers_of_other_libraries_have_channels() -> None:
    """torch-geometric's Linear is no kind of torch's, but known by name; a stranger's weight is not."""
    for module, axes in (("torch_geometric.nn.dense.linear", {0, 1}), ("somewhere.else", set())):
        kind = type("Linear", (nn.Module,), {"__module__": module})
        assert counts._channel_axes(kind(), "convs.0.lin.weight") == axes


class EvoNorm(nn.Module):
    """A norm by hand: its scales are ``[1, C, 1, 1]``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.v = (nn.Parameter(torch.ones(1, width, 1, 1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.v * x) / (x.std((1, 2, 3), keepdim=True) + 1e-5) * self.gamma


class Gated(nn.Module):
    """Its gate is a matrix by hand, and its first weights are numpy's."""

    def __init__(self, width: int = 16, gates: int = 4) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Conv2d(3, width, 3), EvoNorm(width), nn.Linear(24, 5)
        self.first.weight.data = torch.from_numpy(np.random.default_rng(0).normal(0, 0.2, (width, 3, 3, 3)).astype(np.float32))
        self.middle, self.gate = nn.Linear(width, 24), nn.Parameter(torch.randn(24, gates))

    def forward(self, x: Tensor) -> Tensor:
        h = self.middle(self.norm(self.first(x)).mean((2, 3))).relu()
        return self.head(h * (h @ self.gate).softmax(-1).amax(-1, keepdim=True))


def test_vectors_and_matrices_by_hand_follow_the_width() -> None:
    """Axes of one entry are none; the axis that a product sums over is as wide as what it multiplies."""
    thin = mt.resize(Gated(), 0.5, torch.randn(2, 3, 8, 8), seed=0)
    assert (thin.norm.gamma.shape, thin.gate.shape) == ((1, 8, 1, 1), (12, 4))


class Fixed(nn.Module):
    """A width stands as a number in forward, as in many tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 16, 3), nn.Linear(16 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = F.adaptive_avg_pool2d(self.first(x).relu(), 2)
        return self.head(h.view(-1, 16 * 4))


def test_a_width_in_forward_is_named() -> None:
    with pytest.raises(
        mt.ConversionError, match=r"Fixed\.forward has .*write h\.flatten\(1\) in place of h\.view\(-1, 16 \* 4\)"
    ):
        mt.resize(Fixed(), 0.5, torch.randn(2, 3, 8, 8))


class OneMore(nn.Embedding):
    """A table with the row of one more word beside it, as T5Gemma2's."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(rows, columns)
        self.last = nn.Parameter(torch.randn(columns))

    def forward(self, ids: Tensor) -> Tensor:
        return torch.where((ids == self.num_embeddings - 1)[..., None], self.last, super().forward(ids))


def test_a_row_beside_a_table_is_as_wide_as_the_table() -> None:
    x = mt.Inputs(torch.randint(64, (3, 6)))
    wide, thin, fewer = (
        nn.Sequential(OneMore(rows, width), nn.Linear(width, 7)) for rows, width in ((64, 32), (64, 16), (32, 32))
    )
    assert list(counts.changed_tables(observe(wide, x), thin)) == []
    assert any("32 rows instead of 64" in text for text in counts.changed_tables(observe(wide, x), fewer))
