"""Sixty networks put together at random, always the same: each is converted and is then right, or is refused by name.

Networks are built from parts that keep the shape of their input, so every combination runs. The recipe that hypothesis prints
is the network.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine.separate import assert_separate
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st
from laws.compare import coupled
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import multitudes as mt

pytestmark = pytest.mark.slow

WIDTH, SIDE = 8, 4
Recipe = tuple[Any, ...]


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class ResidualInPlace(Residual):
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x).clone()
        y += x
        return y


class Concat(nn.Module):
    """Both paths side by side, and a 1×1 convolution or a layer back to the width."""

    def __init__(self, left: nn.Module, right: nn.Module, images: bool) -> None:
        super().__init__()
        self.left, self.right = left, right
        self.join = nn.Conv2d(2 * WIDTH, WIDTH, 1) if images else nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.join(torch.cat([self.left(x), self.right(x)], 1))


class Loose(nn.Module):
    """A parameter that is no layer's: added, multiplied, or written in place."""

    def __init__(self, how: str, images: bool) -> None:
        super().__init__()
        self.how = how
        self.vector = nn.Parameter(torch.randn(WIDTH, 1, 1) if images else torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "add":
            return x + self.vector
        if self.how == "scale":
            return x * self.vector
        z = torch.zeros_like(x)
        z += self.vector
        z[:, : WIDTH // 2] = x[:, : WIDTH // 2]
        return z + x


class Attention(nn.Module):
    """Self-attention over pixels, or over halves of a vector."""

    def __init__(self, images: bool) -> None:
        super().__init__()
        self.images = images
        self.attention = nn.MultiheadAttention(WIDTH if images else WIDTH // 2, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2) if self.images else x.unflatten(1, (2, WIDTH // 2))
        seen = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return seen.transpose(1, 2).unflatten(2, x.shape[2:]) if self.images else seen.flatten(1)


class Recurrent(nn.Module):
    """A GRU over halves of a vector, or over rows of pixels."""

    def __init__(self, images: bool) -> None:
        super().__init__()
        self.images = images
        self.gru = nn.GRU(WIDTH if images else WIDTH // 2, WIDTH if images else WIDTH // 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.flatten(2).transpose(1, 2) if self.images else x.unflatten(1, (2, WIDTH // 2))
        seen = self.gru(steps)[0]
        return seen.transpose(1, 2).unflatten(2, x.shape[2:]) if self.images else seen.flatten(1)


class Halves(nn.Module):
    """A layer for each half of a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH // 2, WIDTH // 2), nn.Linear(WIDTH // 2, WIDTH // 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return torch.cat([self.left(left), self.right(right)], 1)


class Gate(nn.Module):
    """Goes one of two ways by its own values."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y if y.flatten()[0] > 0 else -y  # the mean would be rounding alone behind a norm


class Average(nn.Module):
    """Divides by a moving average of sizes, which it replaces or writes into while it is trained."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("size", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            new = 0.9 * self.size + 0.1 * x.detach().abs().mean()
            if self.in_place:
                self.size.copy_(new)
            else:
                self.size = new
        return x / (1 + self.size)


class Keeping(nn.Module):
    """Leaves what it saw last on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x * 2


class Checkpointed(nn.Module):
    """Computed again in backward, unless a moving average inside would move twice."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        if any(isinstance(part, Average) for part in self.inner.modules()):
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=False)


class Shuffle(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (2, WIDTH // 2)).transpose(1, 2).flatten(1, 2)


class Squeeze(nn.Module):
    """Channels weighted by what all of them say."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean((2, 3)) if x.ndim == 4 else x
        weights = self.gate(pooled).sigmoid()
        return x * (weights[:, :, None, None] if x.ndim == 4 else weights)


PLAIN = ["layer", "group", "batch norm", "group norm", "relu in place", "gelu", "dropout", "add", "scale", "write", "attention",
         "shuffle", "squeeze", "recurrent", "average", "average in place", "keeping"]  # fmt: skip


def recipes() -> st.SearchStrategy[Recipe]:
    """Nested lists of parts."""
    part = st.sampled_from(PLAIN).map(lambda name: (name,))

    def around(inner: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
        chain = st.lists(inner, min_size=1, max_size=3).map(tuple)
        return st.one_of(
            st.tuples(st.sampled_from(["residual", "residual in place", "gate", "checkpoint"]), chain),
            st.tuples(st.just("concat"), chain, chain),
            st.tuples(st.just("again"), st.integers(0, 7)),
        )

    return st.lists(st.recursive(part, around, max_leaves=4), min_size=1, max_size=5).map(tuple)


class Builder:
    """Turns a recipe into modules; "again" takes one that is there already, under a second name."""

    def __init__(self, images: bool) -> None:
        self.images = images
        self.made: list[nn.Module] = []

    def chain(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(*(self.part(entry) for entry in recipe))

    def part(self, entry: Recipe) -> nn.Module:
        name, rest = entry[0], entry[1:]
        if name == "again":
            return self.made[rest[0] % len(self.made)] if self.made else nn.Identity()
        module = self.nested(name, rest) if rest else self.plain(name)
        self.made.append(module)
        return module

    def nested(self, name: str, rest: Recipe) -> nn.Module:
        inner = [self.chain(part) for part in rest]
        if name == "concat":
            return Concat(*inner, self.images)
        kinds = {"residual": Residual, "residual in place": ResidualInPlace, "gate": Gate, "checkpoint": Checkpointed}
        return kinds[name](*inner)

    def plain(self, name: str) -> nn.Module:
        images = self.images
        return {
            "layer": lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1) if images else nn.Linear(WIDTH, WIDTH),
            "group": lambda: nn.Conv2d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH) if images else Halves(),
            "batch norm": lambda: nn.BatchNorm2d(WIDTH) if images else nn.BatchNorm1d(WIDTH),
            "group norm": lambda: nn.GroupNorm(2, WIDTH),
            "relu in place": lambda: nn.ReLU(inplace=True),
            "gelu": nn.GELU,
            "dropout": lambda: nn.Dropout2d(0.5) if images else nn.Dropout(0.5),
            "attention": lambda: Attention(images),
            "recurrent": lambda: Recurrent(images),
            "average": lambda: Average(False),
            "average in place": lambda: Average(True),
            "keeping": Keeping,
            "shuffle": Shuffle,
            "squeeze": Squeeze,
        }.get(name, lambda: Loose(name, images))()


class Net(nn.Module):
    """A stem, the recipe, and a head."""

    def __init__(self, recipe: Recipe, images: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, WIDTH, 1) if images else nn.Linear(3, WIDTH)
        self.body = Builder(images).chain(recipe)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(self.stem(x))
        return self.head(h.mean((2, 3)) if h.ndim == 4 else h)


def methods(members: int) -> dict[str, mt.Method]:
    return {
        "Deep": mt.Deep(members=members),
        "MultiHead": mt.MultiHead(members=members),
        "TreeNet": mt.TreeNet(members=members),
        "TreeNet at the body": mt.TreeNet(members=members, branch_at="body"),
    }


def names_something(text: str, net: nn.Module) -> bool:
    """Whether an error speaks of a part of this network, by its name or its type."""
    words = {name for name, _ in net.named_modules() if name} | {type(part).__name__ for part in net.modules()}
    words |= {name for name, _ in [*net.named_parameters(), *net.named_buffers()]}
    return any(word in text for word in words)


def learns(net: nn.Module, x: Tensor) -> bool:
    """Whether the network itself has gradients: two writes in place, one after the other, can leave it without."""
    twin = copy.deepcopy(net)
    try:
        twin.train()(x).sum().backward()
        for rows in (x, x[:1]):
            twin.eval()(rows).sum().backward()
    except RuntimeError as error:
        assert "inplace operation" in str(error)
        return False
    return True


def quiet(ens: mt.Ensemble) -> mt.Ensemble:
    """Without dropout, so that two passes can be compared."""
    for part in ens.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
    return ens


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
def test_a_network_put_together_at_random() -> None:
    """check passes, executors agree with M plain networks in training and in eval; or a refusal names what it refuses."""
    counts: Counter[str] = Counter()

    @seed(0)
    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        recipes(), st.booleans(), st.integers(1, 4), st.sampled_from(sorted(methods(2))), st.integers(2, 4), st.integers(0, 99)
    )
    def holds(recipe: Recipe, images: bool, members: int, method: str, rows: int, weights: int) -> None:
        torch.manual_seed(weights)
        net = Net(recipe, images).double()
        shape = (2, SIDE, SIDE) if images else (3,)
        example, x = (torch.randn(count, *shape, dtype=torch.float64) for count in (rows, rows + 1))
        if not learns(net, example):
            counts["no network"] += 1
            return
        before = copy.deepcopy(net.state_dict())
        try:
            ens = mt.ensemble(net, methods(members)[method], example, seed=weights)
        except mt.MultitudesError as error:
            note(str(error))
            assert names_something(str(error), net), f"a refusal that names nothing: {error}"
            counts["refused"] += 1
            return
        counts["converted"] += 1
        assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
        mt.check(ens, x)
        for training in (True, False):
            mode = "train" if training else "eval"
            if training and coupled(ens):
                continue  # a norm shared by branches takes all members' rows at once, which no plain network does
            for way in ("call", *(n for n in ens.plan.proven[mode] if n != "fold")):
                counts[f"{way} in {mode}"] += 1
                try:
                    assert_separate(quiet(copy.deepcopy(ens)), x, way, training=training, tol=1e-6)
                except mt.RunError as error:
                    assert training and names_something(str(error), net), error
                    counts["refused in training"] += 1

    holds()
    print(dict(counts))
    assert counts["converted"] > 3 * counts["refused"], counts
    assert counts["converted"] > counts["no network"], counts
    assert counts["call in train"] > 3 * counts["refused in training"], counts
    assert counts["vmap in train"] > 0, counts


@pytest.mark.parametrize("images", [True, False], ids=["images", "vectors"])
def test_every_part_by_itself(images: bool) -> None:
    """The parts the networks are made of are networks, and keep their shape."""
    x = torch.randn(3, *((2, SIDE, SIDE) if images else (3,)))
    for name in PLAIN:
        net = Net(((name,),), images)
        assert F.softmax(net(x), 1).shape == (3, 3), name
    assert Net((("concat", (("layer",),), (("gelu",),)), ("again", 0)), images)(x).shape == (3, 3)
