"""Widths among the arguments of a constructor: weight norms, stacked experts, rotary embeddings, numbers that go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import multitudes as mt
from multitudes.conversion.anatomy.structure import observe
from multitudes.conversion.resize.constructors import recipe_of
from multitudes.conversion.resize.roles import is_expert_count
from multitudes.conversion.resize.widths import Search

ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
TOKENS = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


class Normed(nn.Module):
    """A layer under a weight norm, for which torch makes a class of its own each time."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.first, self.head = weight_norm(nn.Linear(4, width)), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(x)))


class Experts(nn.Module):
    """A mixture of experts whose matrices are stacked: their inner width is that of no layer."""

    def __init__(self, width: int = 16, inner: int = 24, num_experts: int = 4) -> None:
        super().__init__()
        self.width, self.inner, self.num_experts = width, inner, num_experts
        self.embed, self.gate, self.head = nn.Linear(4, width), nn.Linear(width, num_experts), nn.Linear(width, 5)
        self.up = nn.Parameter(torch.randn(num_experts, width, inner))
        self.down = nn.Parameter(torch.randn(num_experts, inner, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        each = torch.relu(torch.einsum("bc,ecd->bed", h, self.up))
        each = torch.einsum("bed,edc->bec", each, self.down)
        return self.head(self.norm(h + (self.gate(h).softmax(-1).unsqueeze(-1) * each).sum(1)))


class Rotary(nn.Module):
    """Heads whose channels are multiplied by a table, of which a number says how wide it is."""

    def __init__(self, dim: int = 32, heads: int = 4, rotary: int = 8) -> None:
        super().__init__()
        self.dim, self.heads, self.rotary = dim, heads, rotary
        self.embed, self.query, self.head = nn.Linear(4, dim), nn.Linear(dim, dim), nn.Linear(dim, 5)
        self.register_buffer("table", torch.linspace(0.5, 1, rotary))

    def forward(self, x: Tensor) -> Tensor:
        q = self.query(self.embed(x)).unflatten(-1, (self.heads, -1))
        q = torch.cat([q[..., : self.rotary] * self.table, q[..., self.rotary :]], -1)
        return self.head(q.flatten(-2))


class Pair(nn.Module):
    """An encoder and a decoder: a number of the decoder is the width of what it reads."""

    def __init__(self, first: int = 16, second: int = 24, read: int = 16) -> None:
        super().__init__()
        self.first, self.second, self.read = first, second, read
        self.encoder, self.inner = nn.Linear(4, first), nn.Linear(first, first)
        self.decoder, self.cross = nn.Linear(4, second), nn.Linear(read, second)
        self.head = nn.Linear(second, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.decoder(x) + self.cross(torch.relu(self.inner(torch.relu(self.encoder(x))))))


class Parts(nn.Module):
    """Attention whose number of heads has another name, and reaches more tensors than the size of a head does."""

    def __init__(self, dim: int = 24, size: int = 8, parts: int = 4) -> None:
        super().__init__()
        self.dim, self.size, self.parts = dim, size, parts
        self.embed, self.head = nn.Linear(4, dim), nn.Linear(dim, 5)
        self.query, self.key, self.value = (nn.Linear(dim, size * parts) for _ in range(3))
        self.out = nn.Linear(size * parts, dim)
        self.bias = nn.Parameter(torch.zeros(parts, 5, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        q, k, v = (f(h).unflatten(-1, (self.parts, self.size)).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = (q @ k.transpose(-1, -2) + self.bias).softmax(-1) @ v
        return self.head(h + self.out(y.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(
    ("net", "x", "half"),
    [
        (Normed(), ROWS, Normed(8)),
        (Experts(), ROWS, Experts(8, 12)),
        (Rotary(), TOKENS, Rotary(16, rotary=4)),
        (Pair(), ROWS, Pair(8, 12, 8)),
        (Parts(), TOKENS, Parts(12, 4)),
    ],
    ids=["weight norm", "experts", "rotary", "encoder and decoder", "heads of another name"],
)
def test_half_the_width(net: nn.Module, x: Tensor, half: nn.Module) -> None:
    """All widths are halved, and what must follow them; the number of experts and heads stays."""
    thin: Any = mt.resize(net, 0.5, x)
    assert thin.resizing.way == "its constructor"
    assert shapes(thin) == shapes(half)


def test_a_number_of_experts_by_name() -> None:
    assert is_expert_count(("config", "num_local_experts"))
    assert is_expert_count(("config", "num_experts_per_tok"))
    assert not is_expert_count(("config", "experts_hidden_size"))


class Strict(nn.Module):
    """Its width is at least 32."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        if width < 32:
            raise ValueError("width")
        self.width = width
        self.first, self.head = nn.Linear(4, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.first(x)))


def test_a_thinner_network_is_never_wider() -> None:
    """The constructor takes wider networks alone: no rounding goes there."""
    structure = observe(Strict(), mt.Inputs(ROWS))
    recipe = recipe_of(structure)
    assert recipe is not None
    search = Search(recipe, structure)
    with pytest.raises(mt.ConversionError, match="constructor fails at that width"):
        search.changes(search.widths(), 0.5)


class Halfway(nn.Module):
    """Its constructor sets one of two widths; the other is written in its code."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.first, self.second, self.head = nn.Linear(4, width), nn.Linear(width, 40), nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))))


def test_the_example_decides_nothing(tmp_path: Path) -> None:
    """A file is loaded with an example of ones in place of the given one: the members are of the same shapes."""
    net = Halfway()
    assert shapes(mt.resize(net, 0.5, ROWS)) == shapes(mt.resize(net, 0.5, torch.ones(3, 4)))
    ensemble = mt.ensemble(net, mt.Packed(members=4, alpha=2), ROWS, seed=0, check=False).eval()
    assert ensemble.member(0).get_submodule("second").out_features == 20
    mt.save(ensemble, tmp_path / "halfway.multitude")
    loaded = mt.load(tmp_path / "halfway.multitude", Halfway()).eval()
    torch.testing.assert_close(loaded(ROWS), ensemble(ROWS))


class Remembering(nn.Module):
    """Its forward pass leaves a note of the device behind."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width, self.seen = width, dict[str, str]()
        self.first, self.head = nn.Linear(4, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        self.seen[str(x.device)] = "seen"
        return self.head(torch.relu(self.first(x)))


def test_what_a_forward_pass_sets_is_no_change() -> None:
    net = Remembering()
    net(ROWS)
    thin: Any = mt.resize(net, 0.5, ROWS)
    assert thin.resizing.way == "its constructor"


class Stream(nn.Module):
    """Blocks add to a stream, which is the output."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Linear(4, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h) * h.sigmoid().flip(-1).cumsum(-1)
        return h


def test_an_output_that_all_blocks_add_to_cannot_be_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where channels cannot be removed either, the refusal says why, and what to do."""
    import multitudes.conversion.resize.resize as module

    def fails(*args: Any, **settings: Any) -> nn.Module:
        raise mt.ConversionError("no channels")

    monkeypatch.setattr(module, "pruned", fails)
    with pytest.raises(mt.ConversionError, match=r"its residual stream: 3 layers(.|\n)*a last layer of its own"):
        mt.ensemble(Stream(), mt.Packed(), ROWS, seed=0)
    headed = nn.Sequential(Stream(), nn.Linear(16, 5))
    with pytest.raises(mt.ConversionError) as refusal:
        mt.ensemble(headed, mt.Packed(), ROWS, seed=0)
    assert "residual stream" not in str(refusal.value)


class Depthwise(nn.Module):
    """Its last block adds to the output, and begins with a depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 24, 1)
        self.each, self.up, self.back = nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.Conv2d(24, 48, 1), nn.Conv2d(48, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.down(torch.relu(self.stem(x)))
        return h + self.back(torch.relu(self.up(self.each(h))))


def test_a_depthwise_layer_on_the_output_stays_as_wide() -> None:
    """It has the channels of what it reads, which are the output's; the layers inside the block are thinned."""
    thin: Any = mt.resize(Depthwise(), 0.5, torch.randn(2, 3, 6, 6))
    layers = (thin.stem, thin.down, thin.each, thin.up, thin.back)
    assert [layer.out_channels for layer in layers] == [8, 24, 24, 24, 24]


class Sines(nn.Module):
    """A transformer with a table of sines, as many positions as channels, and the width of its perceptron in its code."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layer = nn.TransformerEncoderLayer(width, heads, 64, batch_first=True)
        self.head = nn.Linear(width, 3)
        table, places = torch.zeros(32, width), torch.arange(32)[:, None]
        table[:, 0::2] = torch.sin(places * 10000 ** (-torch.arange(0, width, 2) / width))
        self.register_buffer("table", table)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x) + self.table[: x.shape[1]]).mean(1))


class Spectral(nn.Module):
    """Layers under spectral norms, the last one too: a buffer of it has the width of its inputs."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.head = spectral_norm(nn.Linear(4, width)), spectral_norm(nn.Linear(width, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(x).relu())


class Fourier(nn.Module):
    """A layer of a Fourier neural operator: complex weights for a few modes."""

    def __init__(self, width: int = 12, modes: int = 2) -> None:
        super().__init__()
        self.first, self.head, self.modes = nn.Linear(4, width), nn.Linear(width, 3), modes
        self.weight = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.fft.rfft(self.first(x).transpose(1, 2))[..., : self.modes]
        return self.head(torch.fft.irfft(torch.einsum("bix,iox->box", waves, self.weight), n=5).mean(-1))


def test_the_length_of_a_table_in_code_is_no_width() -> None:
    """32 is a width and a number of positions; the table follows the argument alone."""
    thin = mt.resize(Sines(), 0.5, TOKENS, seed=0)
    assert thin.table.shape == (32, 16) and thin.layer.linear1.out_features == 32
    assert torch.equal(thin.table, Sines(16).table)


def test_buffers_of_parametrizations_are_no_widths() -> None:
    thin = mt.resize(Spectral(), 0.5, ROWS, seed=0)
    assert thin.first.weight.shape == (8, 4) and thin.head.weight.shape == (3, 8)


def test_complex_weights_stay_complex_and_modes_stay() -> None:
    thin = mt.resize(Fourier(), 0.5, TOKENS, seed=0)
    assert thin.weight.shape == (6, 6, 2) and thin.weight.dtype == torch.cfloat


def test_a_factory_that_fails_at_a_ratio_is_told_what_to_round() -> None:
    with pytest.raises(mt.ConversionError, match=r"fails at ratio 0\.3: AssertionError.*4 \* round\(16 \* ratio\)"):
        mt.resize(lambda ratio: Sines(round(32 * ratio)), 0.3, TOKENS)


class Sums(nn.Module):
    """Widths in code, beside numbers that are part of a sum: four columns of an embedding, and five more inputs."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        inputs = 4 * width + 5
        self.embed, self.first, self.second = nn.Embedding(10, width), nn.Linear(inputs, 32), nn.Linear(32, 16)
        self.gate, self.head = nn.Linear(inputs, 12), nn.Linear(16 + 12, 3)

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        x = torch.cat([self.embed(ids).flatten(1), numbers], 1)
        return self.head(torch.cat([self.second(self.first(x).relu()), self.gate(x).sigmoid()], 1))


def test_numbers_in_sums_are_no_widths() -> None:
    thin = mt.resize(Sums(), 0.5, (torch.zeros(2, 4, dtype=torch.long), torch.randn(2, 5)), seed=0)
    assert [tuple(p.shape) for p in (thin.embed.weight, thin.first.weight, thin.second.weight)] == [(10, 3), (16, 17), (8, 16)]


class Hidden(nn.Module):
    """All its widths are those of outputs."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> list[Any]:
        hidden = self.first(x).relu()
        return [self.head(hidden), hidden, len(x)]


def test_a_network_without_widths_is_refused_with_a_cause() -> None:
    """A choice of no width at all was taken for one, and the refusal gave an empty reason."""
    with pytest.raises(mt.errors.ConversionError, match="by its constructor: no argument was found whose double"):
        mt.ensemble(Hidden(), mt.Packed(members=4), torch.randn(3, 5))


class InThrees(nn.Module):
    """Channels in three groups: at two thirds of its width, 12 channels become 9, as 8 are illegal."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.width = width
        self.first, self.norm, self.head = nn.Linear(4, width), nn.GroupNorm(3, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.first(x)).relu())


def test_widths_are_rounded_to_threes_too() -> None:
    thin = mt.resize(InThrees(), 2 / 3, ROWS)
    assert thin.first.out_features == 9 and thin.resizing.way == "its constructor"


class HeadsByWidth(nn.Module):
    """Attention whose number of heads follows from their width, with a table of positions for each head, as MaxViT's."""

    def __init__(self, dim: int = 32, dim_head: int = 8, classes: int = 5) -> None:
        super().__init__()
        assert dim % dim_head == 0, "dim should be divisible by dim_head"
        self.heads = dim // dim_head
        self.embed, self.qkv, self.head = nn.Linear(7, dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, classes)
        self.positions = nn.Parameter(torch.randn(self.heads, 9, 9))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + self.positions
        return self.head((scores.softmax(-1) @ v).transpose(1, 2).flatten(2).mean(1))


def test_the_width_of_heads_follows_where_their_number_has_parameters() -> None:
    x = torch.randn(3, 9, 7)
    ens = mt.ensemble(HeadsByWidth(), mt.Packed(members=4, alpha=2), x, seed=0)
    assert ens.template.heads == 4
    assert ens.get_parameter("qkv.weight").shape == (4, 48, 16) and ens.get_parameter("positions").shape == (4, 4, 9, 9)
