"""Numbers in the code of constructors: which of them are widths is found by trying, and all else stays as it is."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.conversion.resize.constants import Place, functions_of, numbers_of, rewritten

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def widths(net: nn.Module) -> dict[str, int]:
    """Returns the widths of linear layers and convolutions, by name."""
    layers = {name: part for name, part in net.named_modules() if isinstance(part, (nn.Conv2d, nn.Linear))}
    return {name: part.weight.shape[0] for name, part in layers.items()}


def stem(outputs: int = 48) -> nn.Module:
    return nn.Conv2d(3, outputs, 5, padding=2)


class Block(nn.Module):
    """Two paths side by side; the kernel and the groups are numbers like the widths."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(inputs, 32, 5, padding=2)
        self.b = nn.Conv2d(inputs, 32, 5, padding=2, groups=8)
        self.norm = nn.GroupNorm(8, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.cat([self.a(x), self.b(x)], 1)).relu()


class Written(nn.Module):
    """No argument is a width: they are in the code, in a helper's default and in a tuple; 8 is a window as well."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.window = 8
        self.stem = stem()
        self.blocks = nn.ModuleList([Block(inputs) for inputs in (48, 64)])
        self.narrow = nn.Conv2d(64, 8, 1)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = self.narrow(nn.functional.max_pool2d(x, self.window))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("ratio", [pytest.param(0.5, marks=pytest.mark.slow), 2.0])
def test_widths_in_code_are_multiplied_and_all_else_stays(ratio: float) -> None:
    net = mt.resize(Written(), ratio, X)
    assert net.resizing.way == "its constructor" and not net.resizing.rounded
    expected = {"stem": 48, "blocks.0.a": 32, "blocks.0.b": 32, "blocks.1.a": 32, "blocks.1.b": 32, "narrow": 8}
    assert widths(net) == {name: width * ratio for name, width in expected.items()} | {"head": 10}
    assert net.window == 8
    for block in net.blocks:
        assert block.a.kernel_size == block.b.kernel_size == (5, 5)
        assert block.b.groups == block.norm.num_groups == 8


def test_code_is_as_it_was_afterwards() -> None:
    """Also where a constructor failed on the way: numbers of groups that divide no width were tried."""
    before = [(f.__code__, f.__defaults__, f.__kwdefaults__) for f in (Written.__init__, Block.__init__, stem)]
    mt.resize(Written(), 0.5, X)
    after = [(f.__code__, f.__defaults__, f.__kwdefaults__) for f in (Written.__init__, Block.__init__, stem)]
    assert all(a is b for one, other in zip(before, after, strict=True) for a, b in zip(one, other, strict=True))
    assert widths(Written())["stem"] == 48


class Divided(nn.Module):
    """64 is a width in one line and a divisor in the next; the width of a group and its number are arguments."""

    def __init__(self, base: int = 16) -> None:
        super().__init__()
        wide = 64
        inner = base * wide // 64
        self.reduce = nn.Conv2d(3, inner, 1)
        self.expand = nn.Conv2d(inner, wide, 1)
        self.head = nn.Linear(wide, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.expand(self.reduce(x).relu()).mean((2, 3)))


def test_a_width_and_an_equal_divisor_are_told_apart() -> None:
    assert widths(mt.resize(Divided(), 0.5, X)) == {"reduce": 8, "expand": 32, "head": 10}


class Threshold(nn.Module):
    """Narrow networks have another layer; the threshold moves with the width, or the architecture would change."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 1)
        self.act = nn.GELU() if width > 20 else nn.ReLU()
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.first(x)).mean((2, 3)))


def test_a_threshold_moves_with_the_width() -> None:
    """Doubled, 16 is beyond the threshold, and halved, it would have another layer if the threshold stayed at 20."""
    thin = mt.resize(Threshold(16), 0.5, X)
    assert widths(thin) == {"first": 8, "head": 10} and isinstance(thin.act, nn.ReLU)


def test_an_architecture_that_depends_on_the_width_is_never_another_one() -> None:
    """Doubled, 32 stays beyond the threshold, so that nothing tells of it; halved, there would be another layer."""
    thin = mt.resize(Threshold(), 0.5, X)
    assert widths(thin) == {"first": 16, "head": 10} and isinstance(thin.act, nn.GELU)
    assert thin.resizing.way == "channels"


class Own(nn.Module):
    """Multipliers below 1 leave the first layer as wide as it is, so that the widths themselves must be multiplied."""

    def __init__(self, multiplier: float = 1.0, first: int = 64) -> None:
        super().__init__()
        base = first / multiplier if multiplier < 1 else first
        self.first = nn.Conv2d(3, round(base * multiplier), 1)
        self.second = nn.Conv2d(round(base * multiplier), round(128 * multiplier), 1)
        self.head = nn.Linear(round(128 * multiplier), 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu()).mean((2, 3)))


def test_a_multiplier_that_means_something_else_below_one_is_not_used() -> None:
    assert widths(mt.resize(lambda: Own(), 0.5, X)) == {"first": 32, "second": 64, "head": 10}


class Selected(nn.Module):
    """Two paths weighted by a softmax over the paths: no attention, so there are no heads to keep."""

    def __init__(self) -> None:
        super().__init__()
        self.paths = nn.ModuleList([nn.Conv2d(3, 32, size, padding=size // 2) for size in (1, 3)])
        self.choose = nn.Conv2d(32, 64, 1)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        paths = torch.stack([path(x) for path in self.paths], 1)
        shares = self.choose(paths.sum(1).mean((2, 3), keepdim=True))
        shares = shares.view(len(x), 2, shares.shape[1] // 2, 1, 1).softmax(1)
        return self.head((paths * shares).sum(1).mean((2, 3)))


def test_a_softmax_over_paths_has_no_heads() -> None:
    assert widths(mt.resize(Selected(), 0.5, X)) == {"paths.0": 16, "paths.1": 16, "choose": 32, "head": 10}


class Heads(nn.Module):
    """The number of heads is the width divided by a number in the code, which therefore moves with the width."""

    def __init__(self) -> None:
        super().__init__()
        width = 64
        self.heads = width // 16
        self.first = nn.Linear(16, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(2).view(len(x), -1, 16))
        q, k, v = self.qkv(x).view(len(x), x.shape[1], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.head(x.mean(1))


def test_the_number_of_heads_stays() -> None:
    thin = mt.resize(Heads(), 0.5, X)
    assert widths(thin) == {"first": 32, "qkv": 96, "head": 10} and thin.heads == 4


class Holder(nn.Module):
    """A network whose first part is given, inside a partial function, as hybrid networks have it."""

    def __init__(self, embed: Callable[[], nn.Module], width: int = 48) -> None:
        super().__init__()
        self.embed = embed()
        self.middle = nn.Conv2d(self.embed.out_channels, width, 1)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.embed(x)).mean((2, 3)))


def same(part: nn.Module) -> nn.Module:
    return part


def test_a_network_given_as_an_argument_is_made_anew() -> None:
    thin = mt.resize(lambda: Holder(functools.partial(same, part=stem())), 0.5, X, seed=1)
    assert widths(thin) == {"embed": 24, "middle": 24, "head": 10}


@pytest.fixture
def places() -> dict[str, Place]:
    """The numbers in the code of Divided, by order."""
    numbers = numbers_of(functions_of(Divided))
    return {f"{place.value} {index}": place for index, place in enumerate(numbers)}


def test_every_place_counts_alone(places: dict[str, Place]) -> None:
    functions = functions_of(Divided)
    wide, divisor = [place for place in places.values() if place.value == 64]
    with rewritten(functions, {wide: 128}):
        assert widths(Divided()) == {"reduce": 32, "expand": 128, "head": 10}
    with rewritten(functions, {divisor: 32}):
        assert widths(Divided()) == {"reduce": 32, "expand": 64, "head": 10}
    assert widths(Divided()) == {"reduce": 16, "expand": 64, "head": 10}


def test_defaults_and_tuples_are_numbers_too() -> None:
    numbers = numbers_of(functions_of(Written))
    values = {(place.function.rpartition(".")[2], place.value) for place in numbers}
    assert {("stem", 48), ("__init__", 48), ("__init__", 64), ("__init__", 32)} <= values
    assert not any(place.value < 4 for place in numbers)


def interrupted(functions: dict[str, object], changes: dict[Place, int]) -> Iterator[None]:
    with rewritten(functions, changes):  # type: ignore[arg-type]
        raise KeyboardInterrupt
    yield


def test_code_is_restored_after_an_interruption(places: dict[str, Place]) -> None:
    functions = functions_of(Divided)
    with pytest.raises(KeyboardInterrupt):
        next(interrupted(functions, dict.fromkeys(places.values(), 7)))  # type: ignore[arg-type]
    assert widths(Divided()) == {"reduce": 16, "expand": 64, "head": 10}


def test_two_threads_do_not_restore_each_other() -> None:
    """Each resizes a network of the same class; afterwards the class makes what it made before."""
    results: list[dict[str, int]] = []
    threads = [threading.Thread(target=lambda: results.append(widths(mt.resize(Divided(), 0.5, X)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [{"reduce": 8, "expand": 32, "head": 10}] * 3
    assert widths(Divided()) == {"reduce": 16, "expand": 64, "head": 10}


@pytest.mark.slow
def test_packed_members_of_a_network_without_arguments_train() -> None:
    """Members are independent: their outputs are those of plain networks with their weights."""
    ens = mt.ensemble(Written(), mt.Packed(members=4, alpha=2), X, seed=0).eval()
    with torch.no_grad():
        outputs = ens(X)
        for member in range(4):
            torch.testing.assert_close(outputs[member], ens.member(member).eval()(X), rtol=1e-4, atol=1e-5)
