"""MIMO's first layers: which layers can sum over slots, what they compute, and how the others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same, summed
from torch import Tensor, nn

import multitudes as mt

CLASSES = 4
Y = torch.tensor([0, 2, 1, 3, 0, 2])
X = torch.randn(6, 5, dtype=torch.float64)

Build = Callable[[], nn.Module]


class Around(nn.Module):
    """The input is added to what the first layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.first(x).relu())


class Recurrent(nn.Module):
    """An LSTM on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class Attending(nn.Module):
    """Attention on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0][:, -1])


class Graph(nn.Module):
    """Rows are nodes, and each adds up its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 8), nn.Linear(8, CLASSES)
        self.register_buffer("edges", torch.eye(6) + torch.eye(6).roll(1, 0).tril())

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.edges[: len(x), : len(x)] @ self.first(x)).relu())


class Loose(nn.Module):
    """The input meets a parameter that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.head = nn.Parameter(torch.randn(5, 8)), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x @ self.matrix).relu())


class Tied(nn.Module):
    """A language model whose head is its table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.head = nn.Embedding(7, 8), nn.Linear(8, 8), nn.Linear(8, 7, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.mix(self.words(ids)).relu().mean(1))


class Twice(nn.Module):
    """The first layer runs once more, on its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(self.first(x).relu()))


class Squared(nn.Linear):
    """Not linear in its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight**2, self.bias)


def embedding(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Embedding(7, 8, **options), nn.Flatten(), nn.Linear(24, CLASSES))


REFUSED: dict[str, tuple[Build, Tensor, str]] = {
    "one layer": (lambda: nn.Sequential(nn.Linear(5, CLASSES)), X.float(), r"0 +Linear .*first"),
    "recurrence": (Recurrent, torch.randn(3, 4, 5), r"rnn +LSTM .*nn\.Linear before it"),
    "attention": (Attending, torch.randn(3, 4, 6), r"attention +Multihead.*nn\.Linear before it"),
    "rows of a graph": (Graph, X.float(), r"order of rows.*graph.*MultiHead"),
    "a loose matrix": (Loose, X.float(), r"the input meets matrix, which is not the weight"),
    "a tied head": (Tied, torch.randint(7, (3, 3)), r"words +Embedding .*tied to head"),
    "two calls": (Twice, X.float(), r"first +Linear .*own layer"),
    "a table with a norm": (lambda: embedding(max_norm=1.0), torch.randint(7, (3, 3)), r"0 +Embedding .*max_norm=1\.0"),
    "sparse": (lambda: embedding(sparse=True), torch.randint(7, (3, 3)), r"0 +Embedding .*sparse=True"),
    "no product": (lambda: nn.Sequential(Squared(5, 8), nn.Linear(8, CLASSES)), X.float(), r"0 +Squared .*no product"),
    "residual": (Around, X.float(), r"input 0 reaches .*\(first\).*MultiHead"),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 8)), nn.ReLU(), nn.Linear(8, CLASSES)),
        X.float(), r"0 +ParametrizedLinear .*remove_parametrizations\(model\.get_submodule\('0'\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_slotted_is_refused_by_name(why: str) -> None:
    """At conversion, before anything is trained, with the layer's name."""
    build, x, says = REFUSED[why]
    with pytest.raises(mt.ConversionError, match=says):
        mt.ensemble(build(), mt.MIMO(), x, seed=0)


class Scaled(nn.Embedding):
    """A table with a forward of its own: it places ids and scales their rows."""

    def forward(self, ids: Tensor) -> Tensor:
        return 3.0 * super().forward(ids + 1)


class Transposed(nn.Module):
    """A layer of another library: a product with a weight ``[inputs, outputs]``, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


SUMS: dict[str, tuple[Build, Tensor, Callable[[dict[str, Tensor], Tensor], Tensor]]] = {
    "groups": (
        lambda: nn.Sequential(nn.Conv1d(4, 8, 1, groups=2), nn.Flatten(), nn.ReLU(), nn.Linear(8, CLASSES)),
        torch.randn(6, 4, 1, dtype=torch.float64),
        lambda t, x: sum(F.conv1d(x[m], t["0.weight"][m], groups=2) for m in range(2)).flatten(1) + t["0.bias"],
    ),
    "scaled rows": (
        lambda: nn.Sequential(Scaled(9, 8), nn.ReLU(), nn.Linear(8, CLASSES)), torch.tensor([0, 3, 7, 2, 5, 5]),
        lambda t, x: 3 * sum(t["0.weight"][m][x[m] + 1] for m in range(2)),
    ),
    "a bag of words": (
        lambda: nn.Sequential(nn.EmbeddingBag(9, 8), nn.ReLU(), nn.Linear(8, CLASSES)), torch.randint(9, (6, 3)),
        lambda t, x: sum(t["0.weight"][m][x[m]].mean(1) for m in range(2)),
    ),
    "another library": (
        lambda: nn.Sequential(Transposed(), nn.ReLU(), nn.Linear(8, CLASSES)), X,
        lambda t, x: sum(x[m] @ t["0.weight"][m] for m in range(2)) + t["0.bias"],
    ),
    "layer norm": (
        lambda: nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES)), X,
        lambda t, x: sum(
            ((x[m] - x[m].mean(1, keepdim=True)) / (x[m].var(1, correction=0, keepdim=True) + 1e-5).sqrt()) @ t["1.weight"][m].T
            for m in range(2)
        ) + t["1.bias"],
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, CLASSES)), X,
        lambda t, x: sum(
            ((x[m] - x.flatten(0, 1).mean(0)) / (x.flatten(0, 1).var(0, correction=0) + 1e-5).sqrt()) @ t["1.weight"][m].T
            for m in range(2)
        ) + t["1.bias"],
    ),
}  # fmt: skip
"""Networks of a first layer, ReLU and a head, rows for them, and what the first layer gives to slots ``[2, B, ...]``."""


@pytest.mark.parametrize("kind", SUMS)
def test_first_layers_are_sums_over_slots(kind: str) -> None:
    """By hand, with other rows in each slot, in training: values, and gradients of the slots' weights."""
    build, x, first = SUMS[kind]
    ens = mt.ensemble(build().double(), mt.MIMO(members=2), x, seed=0).train()
    slots, targets = torch.stack([x, x.roll(1, 0)]), torch.stack([Y, Y.roll(1)])
    tensors = {n: p.detach().clone().requires_grad_() for n, p in ens.named_parameters()}
    last = max(tensors).partition(".")[0]
    hidden = first(tensors, slots).relu()
    wanted = [hidden @ tensors[f"{last}.weight"][m].T + tensors[f"{last}.bias"][m] for m in range(2)]
    losses = [F.cross_entropy(output, target) for output, target in zip(wanted, targets, strict=True)]
    sum(losses).backward()  # type: ignore[union-attr]
    assert_same(ens(slots, per_member=True).detach(), torch.stack(wanted).detach())
    ens.loss(slots, targets, F.cross_entropy, per_member=True).backward()
    for name, parameter in ens.named_parameters():
        if tensors[name].grad is not None:
            assert_same(parameter.grad, tensors[name].grad)
    assert all(bool(p.grad[m].any()) for n, p in ens.named_parameters() if n in summed(ens) for m in range(2))
