"""Reading: parameters read by another module than theirs, and dropout that no module does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.conversion.anatomy.parameter_reads import ParameterReads

X = torch.randn(3, 4)


class Net(nn.Module):
    """Two layers, of which the second is followed by something that may read the first one's weight."""

    def __init__(self, more: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.norm, self.second, self.more = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4), more

    def forward(self, x: Tensor) -> Tensor:
        return self.more(self, self.second(self.norm(self.first(x))))


def read(net: nn.Module, x: Tensor = X) -> ParameterReads:
    """What one call of a network reads."""
    reading = ParameterReads(net)
    with reading:
        net(x)
    assert reading.running == [net]
    return reading


def elsewhere(more: Callable[[nn.Module, Tensor], Tensor]) -> set[str]:
    return read(Net(more)).read_elsewhere


@pytest.mark.parametrize(
    "more",
    [
        lambda net, x: F.linear(x, net.first.weight),
        lambda net, x: x @ net.first.weight.T,
        lambda net, x: x + net.first.weight.data.mean(),
        lambda net, x: x + net.first.weight[0],
        lambda net, x: F.linear(input=x, weight=net.first.weight),
        lambda net, x: torch.cat([x, net.first.weight]),
        lambda net, x: x * net.first.weight.norm(),
    ],
    ids=["linear", "transposed", "data", "indexed", "by keyword", "listed", "method"],
)
def test_a_weight_read_by_another_module(more: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """However it is read, by the name that it has in the model."""
    assert elsewhere(more) == {"first.weight"}


@pytest.mark.parametrize(
    "more",
    [
        lambda net, x: x,
        lambda net, x: x[:, : net.first.weight.shape[0]],
        lambda net, x: x * net.first.weight.size(0) * net.first.weight.dim() * net.first.weight.numel(),
        lambda net, x: x.to(net.first.weight.dtype).to(net.first.weight.device),
        lambda net, x: x * float(net.first.weight.requires_grad) * len(net.first.weight),
        lambda net, x: net.first(x),
    ],
    ids=["nothing", "shape", "sizes", "dtype", "attributes", "its own layer again"],
)
def test_what_reads_no_values(more: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """Shapes, dtypes and devices; calls of the layer itself."""
    assert elsewhere(more) == set()


def test_a_models_own_parameter() -> None:
    """Belongs to the module whose forward reads it."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.inner = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x * self.scale)

    assert read(Own()).read_elsewhere == set()
    assert read(nn.Sequential(Own(), nn.ReLU())).read_elsewhere == set()


def test_a_parent_that_reads_for_its_child() -> None:
    """By the child's name, however deep it lies."""

    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.child.weight) + self.child.bias

    assert read(nn.Sequential(nn.Sequential(Parent()))).read_elsewhere == {"0.0.child.weight", "0.0.child.bias"}


def test_tied_weights_belong_to_both() -> None:
    """Each of the layers that hold one may read it."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    assert read(net).read_elsewhere == set()


def test_attention_reads_its_own() -> None:
    """What is inside it too."""
    net = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    assert read(net.train(), torch.randn(3, 5, 4)).read_elsewhere == set()


@pytest.mark.parametrize(
    ("drop", "seen"),
    [
        (lambda x: F.dropout(x, 0.3), True),
        (lambda x: F.dropout(x, p=0.3, training=False), True),
        (lambda x: F.dropout(x), True),
        (lambda x: F.alpha_dropout(x, 0.3), True),
        (lambda x: F.dropout1d(x[None], 0.3)[0], True),
        (lambda x: F.dropout(x, 0.0), False),
        (lambda x: F.dropout(x, p=0.0), False),
        (lambda x: x.relu(), False),
    ],
    ids=["rate", "keyword", "default", "alpha", "channels", "none", "none by keyword", "other"],
)
def test_dropout_without_a_module(drop: Callable[[Tensor], Tensor], seen: bool) -> None:
    """The module that calls the function is named, if the rate is not zero."""

    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return drop(x)

    assert read(nn.Sequential(nn.Linear(4, 4), Dropping())).functional_dropout == ({"1"} if seen else set())


def test_dropout_modules_are_not_named() -> None:
    """They can be found by their type."""
    net = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 4), nn.AlphaDropout(0.3))
    assert read(net).functional_dropout == set()
    assert read(nn.Dropout(0.3)).functional_dropout == set()
