"""A conversion of a large network runs it seldom: what was run once is not run again, and shapes need no values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

import multitudes as mt
from multitudes.conversion.anatomy.initialise import reinitialised
from multitudes.conversion.anatomy.input_reads import input_reads
from multitudes.conversion.anatomy.structure import observe
from multitudes.engine.counting import multiply_adds
from multitudes.engine.inputs import Inputs
from multitudes.engine.proof import slots, smaller
from multitudes.engine.seeds import member_seed
from multitudes.methods.layers.dropout import measure

X = torch.randn(2, 4)


class Net(nn.Module):
    """A perceptron with a norm; each of its calls is counted by device."""

    def __init__(self, norm: Callable[[], nn.Module] = lambda: nn.LayerNorm(6)) -> None:
        super().__init__()
        self.stem, self.norm, self.mid, self.head = nn.Linear(4, 6), norm(), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mid(self.norm(self.stem(x)).relu()).relu())


@pytest.fixture(autouse=True)
def every_network_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smaller, "LARGE", 0)


@contextmanager
def passes() -> Iterator[Counter[str]]:
    """Counts the calls of a Net, with values ("cpu") and without ("meta")."""
    seen: Counter[str] = Counter()

    def note(module: nn.Module, args: Any) -> None:
        if isinstance(module, Net):
            seen[args[0].device.type] += 1

    hook = register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        hook.remove()


def test_inputs_are_followed_once() -> None:
    structure = observe(Net(), Inputs(X))
    with passes() as seen:
        first = input_reads(structure)
        assert input_reads(structure) is first and seen["cpu"] == 1
        assert first.around is None and first.around is None and seen["cpu"] == 2


@pytest.mark.parametrize(
    ("method", "most"), [(mt.Deep(members=2), 16), (mt.MCDropout(members=2), 21), (mt.MIMO(members=2), 33)]
)
def test_passes_with_values(method: mt.Method, most: int) -> None:
    """An upper bound for each method; a proof that runs the network once more must say why.

    Where an executor beside the loop is tried, one pass is without gradients: predictions may run other code. MIMO takes one
    pass of two rows, whose order must not count, and all others of one.
    """
    with passes() as seen:
        mt.ensemble(Net(), method, X, seed=0)
    assert seen["cpu"] <= most


def test_the_base_s_work_is_counted_with_the_smaller_example() -> None:
    """And it is the number that a count of its own gives."""
    net = Net().eval()
    plan = mt.plan(net, mt.Deep(members=2), X)
    assert plan.counts is not None
    assert plan.counts.base_multiply_adds == multiply_adds(lambda: net(X)) == 2 * (4 * 6 + 6 * 6 + 6 * 3)


class TestDropoutShapes:
    """The shapes of MCDropout's masks."""

    def test_need_no_values(self) -> None:
        network = mt.ensemble(Net(), mt.MCDropout(members=2, position="layers"), X, seed=0).template
        with passes() as seen:
            assert not measure(network, Inputs(X), 0)  # the same shapes as at conversion
        assert seen == {"meta": 2}

    def test_of_rows_that_lie_apart_are_refused(self) -> None:
        """Whether a row's entries lie together shows in values alone."""

        class Apart(Net):
            def forward(self, x: Tensor) -> Tensor:
                h = super().forward(torch.cat([x, 2 * x])).relu()
                return h[: len(x)] + h[len(x) :]

        with pytest.raises(mt.ConversionError, match="lie apart"):
            mt.ensemble(Apart(), mt.MCDropout(members=2, position="layers"), X)


class TestComponents:
    """EMP draws fresh components of the output layer, and of no other."""

    def test_no_other_layer_is_drawn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn: Counter[tuple[int, ...]] = Counter()
        original = nn.Linear.reset_parameters

        def reset(self: nn.Linear) -> None:
            drawn[tuple(self.weight.shape)] += not self.weight.is_meta
            original(self)

        net = Net()
        monkeypatch.setattr(nn.Linear, "reset_parameters", reset)
        ens = mt.ensemble(net, mt.EMP(members=2, components=3), X, seed=0)
        assert +drawn == {(3, 6): 3}
        components = dict(ens.named_parameters())["head.weight"]
        assert components.shape == (3, 3, 6) and len({tuple(part.flatten().tolist()) for part in components}) == 3
        assert (components.std((1, 2)) / net.head.weight.std() - 1).abs().max() < 0.5

    def test_an_initialiser_that_reads_other_layers(self) -> None:
        """Then all layers are drawn, and the component is what it makes of them."""

        class Copying(Net):
            def init_weights(self) -> None:
                nn.init.normal_(self.mid.weight, std=0.25)
                self.head.weight.copy_(self.mid.weight[:3])

        net = Copying()
        with torch.no_grad():
            net.init_weights()
        components = dict(mt.ensemble(net, mt.EMP(members=2, components=2), X, seed=0).named_parameters())["head.weight"]
        whole = reinitialised(net, member_seed(0, 1))[0]
        assert torch.equal(components[1], whole.head.weight)
        assert torch.equal(whole.head.weight, whole.mid.weight[:3])


class TestDoublePrecision:
    def test_decides_slots_that_rounding_sets_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A ReLU at zero may flip: single precision then differs, and proves nothing."""
        real = slots.difference

        def flipped(outcome: Any, expected: Any, tolerance: float | None = None) -> str | None:
            single = outcome.values[0].dtype == torch.float32
            return "a flip differs" if single else real(outcome, expected, tolerance)

        monkeypatch.setattr(slots, "difference", flipped)
        ens = mt.ensemble(Net(), mt.MIMO(members=2), X, seed=0)
        assert not any("one after another" in note for note in ens.plan.notes)
