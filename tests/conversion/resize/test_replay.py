"""Networks resized by running their constructor again: widths are found among the arguments by trying, and proved."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.conversion.anatomy.structure import observe
from multitudes.conversion.resize.advice import written
from multitudes.conversion.resize.constructors import recipe_of
from multitudes.conversion.resize.pruning import OutOfTimeError, deadline
from multitudes.conversion.resize.recipe import META
from multitudes.conversion.resize.roles import groups, is_head_count, split
from multitudes.conversion.resize.widths import Search

pytestmark = pytest.mark.slow

TOKENS = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def shapes(net: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


class Attention(nn.Module):
    """Attention by hand: one matrix for queries, keys and values, heads by view with both sizes written out."""

    def __init__(self, dim: int = 24, depth: int = 2, heads: int = 4, mlp_ratio: float = 2.0, classes: int = 5) -> None:
        super().__init__()
        self.heads = heads
        self.embed, self.head = nn.Linear(4, dim), nn.Linear(dim, classes)
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(dim, int(dim * mlp_ratio)) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(int(dim * mlp_ratio), dim) for _ in range(depth))
        self.scale = nn.Parameter(torch.full((dim,), 0.1))
        self.size = dim // heads

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        rows, tokens, width = h.shape
        for qkv, up, down in zip(self.qkv, self.up, self.down, strict=True):
            q, k, v = qkv(h).view(rows, tokens, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
            y = (q @ k.transpose(-1, -2)).softmax(-1) @ v
            h = h + self.scale * y.transpose(1, 2).reshape(rows, tokens, width)
            h = h + down(torch.relu(up(h)))
        return self.head(h.mean(1))


class Rates(Attention):
    """Its constructor reads values: rates of dropout that grow with depth, as hand-written transformers have them."""

    def __init__(self, dim: int = 24, depth: int = 2, heads: int = 4, rate: float = 0.1) -> None:
        super().__init__(dim, depth, heads)
        self.drop = nn.ModuleList(nn.Dropout(each.item()) for each in torch.linspace(0, rate, depth))


def test_a_constructor_that_reads_values_is_run_with_them() -> None:
    ens = mt.ensemble(Rates(), mt.Packed(members=4, alpha=2), TOKENS, seed=0)
    assert ens.get_parameter("qkv.0.weight").shape == (4, 36, 12)


class Stages(nn.Module):
    """Widths in a tuple."""

    def __init__(self, widths: tuple[int, ...] = (8, 12, 16), blocks: tuple[int, ...] = (1, 2, 1), classes: int = 5) -> None:
        super().__init__()
        self.widths, self.blocks = widths, blocks
        layers: list[nn.Module] = []
        last = 3
        for width, count in zip(widths, blocks, strict=True):
            for _ in range(count):
                layers += [nn.Conv2d(last, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU()]
                last = width
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x).mean((2, 3)))


class Multiplied(nn.Module):
    """Widths written in the constructor, times a multiplier, rounded to multiples of four."""

    def __init__(self, width_mult: float = 1.0) -> None:
        super().__init__()
        self.width_mult = width_mult
        widths = [max(4, int(w * width_mult + 2) // 4 * 4) for w in (8, 16, 24)]
        self.one, self.two, self.three = (nn.Linear(a, b) for a, b in zip([4, *widths], widths, strict=False))
        self.head = nn.Linear(widths[-1], 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.three(torch.relu(self.two(torch.relu(self.one(x)))))))


@dataclass(frozen=True)
class Block:
    """One block of a configuration."""

    width: int = 8
    repeats: int = 1


@dataclass
class Config:
    """A configuration with blocks, a dict and a namespace inside."""

    blocks: tuple[Block, ...] = (Block(8), Block(12, 2))
    stem: dict[str, int] = field(default_factory=lambda: {"width": 6})
    last: Any = field(default_factory=lambda: SimpleNamespace(hidden=10, classes=5))


class Configured(nn.Module):
    """A network made from a configuration."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        self.cfg = cfg
        layers: list[nn.Module] = [nn.Linear(4, cfg.stem["width"]), nn.ReLU()]
        last = cfg.stem["width"]
        for block in cfg.blocks:
            for _ in range(block.repeats):
                layers += [nn.Linear(last, block.width), nn.ReLU()]
                last = block.width
        self.layers = nn.Sequential(*layers, nn.Linear(last, cfg.last.hidden), nn.ReLU())
        self.head = nn.Linear(cfg.last.hidden, cfg.last.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


class Recurrent(nn.Module):
    """A recurrent network."""

    def __init__(self, inputs: int, hidden: int, classes: int = 5) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(inputs, hidden, 2, batch_first=True), nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Positions(nn.Module):
    """Mixes along tokens, and adds a bias per head that a small network computes from positions."""

    def __init__(self, dim: int = 16, tokens: int = 5) -> None:
        super().__init__()
        self.embed, self.mix, self.out = nn.Linear(4, dim), nn.Linear(tokens, tokens), nn.Linear(dim, 5)
        self.table, self.bias = nn.Linear(1, 32), nn.Linear(32, 1)
        self.register_buffer("places", torch.arange(float(tokens))[:, None])

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.bias(torch.tanh(self.table(self.places)))
        return self.out(self.mix(h.transpose(1, 2)).mean(-1))


PATTERNS: dict[str, tuple[Callable[[], nn.Module], Tensor, Callable[[], nn.Module]]] = {
    "heads by view": (lambda: Attention(32, 3), TOKENS, lambda: Attention(16, 3)),
    "a number of blocks that is a width": (lambda: Attention(8, 8, 2), TOKENS, lambda: Attention(4, 8, 2)),
    "classes that are a width": (lambda: Attention(8, 1, 2, classes=8), TOKENS, lambda: Attention(4, 1, 2, classes=8)),
    "tuples": (lambda: Stages((8, 20, 16), (1, 1, 3)), IMAGES, lambda: Stages((4, 10, 8), (1, 1, 3))),
    "a multiplier": (lambda: Multiplied(2.0), ROWS, lambda: Multiplied(1.0)),
    "a configuration": (
        lambda: Configured(Config((Block(8, 2), Block(14)), {"width": 6}, SimpleNamespace(hidden=8, classes=7))),
        ROWS,
        lambda: Configured(Config((Block(4, 2), Block(7)), {"width": 3}, SimpleNamespace(hidden=4, classes=7))),
    ),
    "recurrent": (lambda: Recurrent(4, 12), TOKENS, lambda: Recurrent(4, 6)),
    "tokens and positions": (Positions, TOKENS, lambda: Positions(8)),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_network_is_made_as_its_author_would_make_it_at_half_the_width(name: str) -> None:
    """Every tensor has the shape that the constructor gives with half the widths; nothing else changes."""
    build, x, half = PATTERNS[name]
    thin = mt.resize(build(), 0.5, x, seed=0)
    assert thin.resizing.way == "its constructor"
    assert shapes(thin) == shapes(half())
    assert shapes(mt.resize(thin, 2, x)) == shapes(build())


@pytest.mark.parametrize("name", ["heads by view", "a configuration", "recurrent"])
def test_a_factory_without_arguments(name: str) -> None:
    """It is run while the constructor is observed; members are what the factory makes, at half the width, by seed."""
    build, x, half = PATTERNS[name]
    thin = mt.resize(build, 0.5, x, seed=0)
    assert thin.resizing.way == "the factory's arguments"
    assert shapes(thin) == shapes(half())
    ens = mt.ensemble(build, mt.Packed(members=2, alpha=1), x, seed=0, check=False)
    one, two = (ens.member(m) for m in range(2))
    assert shapes(one) == shapes(two) == shapes(half())
    assert not torch.equal(one.head.weight, two.head.weight)


def test_a_factory_without_arguments_makes_the_members_of_deep_ensembles() -> None:
    """Each by a seed of its own."""
    ens = mt.ensemble(lambda: Attention(8, 1), mt.Deep(members=2), TOKENS, seed=0, check=False)
    assert shapes(ens.member(0)) == shapes(Attention(8, 1))
    assert not torch.equal(ens.member(0).embed.weight, ens.member(1).embed.weight)


def test_what_a_factory_does_after_the_constructor_is_done_again() -> None:
    """A dropout rate that is set later is set in the thin network too."""

    def build() -> nn.Module:
        net = Stages()
        net.layers.append(nn.Dropout(0.3))
        return net

    thin = mt.resize(build, 0.5, IMAGES)
    assert thin.layers[-1].p == 0.3
    assert shapes(thin) == shapes(Stages((4, 6, 8)))


def test_heads_stay_where_the_ratio_does_not_divide() -> None:
    """The stream becomes the nearest multiple of the heads, and is reported as rounded."""
    thin = mt.resize(Attention(24, 1, 4), 0.4, TOKENS)
    assert thin.embed.out_features == 8  # 9.6 would be nearer to 12 or 8: nearest(9.6, 4) is 8
    assert thin.resizing.rounded["embed"] == (24 * 0.4, 8)


class Secret(nn.Module):
    """Its constructor's second argument leaves no trace in modules or attributes that can be compared."""

    def __init__(self, width: int = 8, power: int = 1) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(4, width), nn.Linear(width, 5)
        self.power = torch.tensor(power)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(x)) ** self.power)


@pytest.mark.parametrize("change", ["secret", "later"])
def test_a_constructor_that_makes_another_network_is_not_believed(change: str) -> None:
    """Values of the rebuilt network are compared, with the given weights: shapes alone would hide the difference."""
    model = Secret(8, 3) if change == "secret" else Secret(8)
    if change == "later":
        model.power = torch.tensor(3)
    with pytest.raises(mt.ConversionError, match="computes something else"):
        recipe_of(observe(model, mt.Inputs(ROWS)))
    thin = mt.resize(model, 0.5, ROWS)
    assert (thin.resizing.way, int(thin.power)) == ("channels", 3)


def test_a_module_among_the_arguments_is_never_shared() -> None:
    """Two networks would train one layer: such a constructor is not run again."""

    class Wrapped(nn.Module):
        def __init__(self, body: nn.Module) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    model = Wrapped(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    thin = mt.resize(model, 0.5, ROWS)
    assert thin.resizing.way == "channels"
    assert not {id(p) for p in thin.parameters()} & {id(p) for p in model.parameters()}


class Half(nn.Module):
    """One of its widths is an argument, the other is written in the constructor."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, width), nn.Linear(width, 64), nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.two(torch.relu(self.one(x)))).view(-1, 64))


def test_a_width_that_no_argument_gives_is_refused_by_name() -> None:
    """Also where another side of the layer is thinner; the refusal says what to type for this very network."""
    with pytest.raises(mt.ConversionError, match="by its constructor: two is as wide as before") as error:
        mt.resize(Half(16), 0.5, ROWS)
    assert "mt.ensemble(lambda ratio: Half(width=round(16 * ratio)), mt.Packed(...), x)" in str(error.value)
    assert "torch_pruning" not in str(error.value)


def test_the_given_model_and_its_class_are_left_alone() -> None:
    """Constructor, weights and random state are as before, also after a refusal."""
    model, before, state = Half(16), dict(vars(Half)), torch.get_rng_state()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(mt.ConversionError):
        mt.resize(model, 0.5, ROWS, seed=0)
    assert dict(vars(Half)) == before
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(model.state_dict(), weights, rtol=0, atol=0)


def test_the_search_for_channels_ends_in_time() -> None:
    """Where no constructor is known and finding channels takes too long, the refusal says how to allow more."""
    layers = [part for _ in range(150) for part in (nn.Linear(16, 16), nn.ReLU())]
    model, x = nn.Sequential(*layers, nn.Linear(16, 3)), torch.randn(2, 16)
    with pytest.raises(mt.ConversionError, match=r"more than 0.01 s(.|\n)*mt.Packed\(search_seconds=60\)"):
        mt.resize(model, 0.5, x, search_seconds=0.01)
    with pytest.raises(mt.ConversionError, match=r"more than 0\.01 s"):
        mt.ensemble(model, mt.Packed(members=2, alpha=1, search_seconds=0.01), x)


def test_a_deadline_ends_a_loop_and_nothing_stays() -> None:
    """Python's hook is free again afterwards."""
    import sys

    def spin() -> None:
        pass

    with pytest.raises(OutOfTimeError), deadline(0.05):
        while True:
            spin()
    assert sys.getprofile() is None
    with deadline(60.0):
        time.sleep(0)
    assert sys.getprofile() is None


def test_the_arguments_of_a_recipe() -> None:
    """Numbers are found inside collections, dataclasses and namespaces; other numbers are put in without changing the given."""
    config = Config()
    recipe = recipe_of(observe(Configured(config), mt.Inputs(ROWS)))
    assert recipe is not None
    numbers = recipe.numbers()
    assert numbers["cfg", "blocks", 1, "width"] == 12
    assert numbers["cfg", "stem", "width"] == 6
    assert numbers["cfg", "last", "hidden"] == 10
    changed = recipe.build({("cfg", "blocks", 1, "width"): 20, ("cfg", "last", "hidden"): 3}, META)
    assert changed.layers[4].out_features == 20
    assert changed.head.in_features == 3
    assert config == replace(Config(), last=config.last)
    assert config.last.hidden == 10


def test_which_arguments_are_widths() -> None:
    """Not the number of heads, blocks or classes, nor the ratio of a hidden layer, whatever their values are."""
    structure = observe(Attention(8, 8, 2, 8.0, 8), mt.Inputs(TOKENS))
    recipe = recipe_of(structure)
    assert recipe is not None
    search = Search(recipe, structure)
    assert search.widths().paths == {("dim",): 8}
    assert written(structure.model, recipe, dict.fromkeys(search.alone(), 1)).startswith("Attention(dim=round(8 * ratio)")


def test_numbers_of_one_role_are_tried_together() -> None:
    """Entries of a list, and a field of several stages; columns of a table apart."""
    paths = [("dims", 0), ("dims", 1), ("a", 0, "out"), ("a", 1, "out"), ("t", 0, 0), ("t", 0, 1), ("t", 1, 0), ("t", 1, 1)]
    assert [len(group) for group in groups(paths)] == [2, 2, 2, 2]
    assert split((("dims", 0), ("dims", 1))) == [(("dims", 0),), (("dims", 1),)]
    assert split((("a", 0, "out"), ("a", 1, "out"))) == []
    assert [is_head_count((name,)) for name in ("num_heads", "n_head", "head_dim", "heads")] == [True, True, False, True]


@pytest.mark.parametrize(("in_code", "most"), [(False, 6), (True, 12)], ids=["a width as argument", "widths in the code"])
def test_a_constructor_runs_seldom(in_code: bool, most: int) -> None:
    """It may be slow, or do more than to build: what was built once is not built again."""
    runs: list[int] = []

    class Argument(nn.Module):
        def __init__(self, width: int = 64) -> None:
            super().__init__()
            runs.append(width)
            self.width = width
            self.read, self.middle, self.head = nn.Linear(9, width), nn.Linear(width, width), nn.Linear(width, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.middle(self.read(x).relu()).relu())

    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            runs.append(0)
            self.read, self.middle, self.head = nn.Linear(9, 64), nn.Linear(64, 128), nn.Linear(128, 4)

        forward = Argument.forward

    net = Written() if in_code else Argument()
    runs.clear()
    ens = mt.ensemble(net, mt.Packed(members=4, alpha=2), torch.randn(3, 9), seed=0)
    assert ens.template.resizing.way == "its constructor"
    assert len(runs) <= most
