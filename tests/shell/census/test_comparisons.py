"""The census's comparisons hold for right ensembles, and each catches the error that is planted for it."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.ensemble import Ensemble
from multitudes.shell.census import comparisons
from multitudes.shell.census.comparisons import Subject

pytestmark = pytest.mark.slow

METHODS = (
    mt.Deep(members=2), mt.MultiHead(members=2), mt.BatchEnsemble(members=2), mt.MIMO(members=2), mt.EMP(members=2),
    mt.Masksembles(members=2),
)  # fmt: skip


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(6, 16), *middle, nn.GELU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def subject(method: mt.Method, norm: bool = False) -> Subject:
    model, x = network(norm), torch.randn(4, 6)
    return Subject(mt.ensemble(model, method, x, seed=0, check=False), model, mt.Inputs(x))


def broken(made: Subject) -> dict[str, str | None]:
    """Every comparison by name, with what it says."""
    return {
        "values": comparisons.values(made),
        "start": comparisons.start(made),
        "size": comparisons.size(made, 3),
        "gradients": comparisons.gradients(made),
        "training": comparisons.training(made, 4),
        "gradients in training": comparisons.gradients(made, training=True),
    }


@pytest.mark.slow
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_right_ensemble_breaks_nothing(method: mt.Method, norm: bool) -> None:
    assert {name: text for name, text in broken(subject(method, norm)).items() if text} == {}


class Leaking(Ensemble):
    """Adds a little of one member to the next."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        return outputs + 0.01 * outputs.roll(1, 0)


class LeakingBackwards(Ensemble):
    """Has the right values, and gradients that leak from one member into the next."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        other = outputs.roll(1, 0)
        return outputs + (other - other.detach())


class OtherInTraining(Ensemble):
    """Is right in eval mode, and leaks in training mode."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        return outputs + 0.01 * outputs.roll(1, 0) if self.training else outputs


class NeverFinite(Ensemble):
    """Has a loss that is not a number in training mode."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        return outputs * float("nan") if self.training else outputs


class Stuck(Ensemble):
    """Trains member 0 alone."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        return torch.cat([outputs[:1], outputs[1:].detach()]) if self.training else outputs


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        (Leaking, "values", "output 0 of member"),
        (LeakingBackwards, "gradients", "the gradient of .* of member"),
        (OtherInTraining, "gradients in training", "in training mode"),
        (NeverFinite, "training", "the loss of a training step is nan"),
        (Stuck, "training", "changes nothing that member 1 owns"),
    ],
)
def test_a_wrong_forward_is_caught(kind: type[Ensemble], name: str, text: str) -> None:
    made = subject(mt.Deep(members=2))
    made.ensemble.__class__ = kind
    said = broken(made)[name]
    assert said is not None
    assert re.search(text, said)


class HalfFactors(Ensemble):
    """A BatchEnsemble whose factors get half of their gradients."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        layer: Any = self.template[-1]
        alpha = layer._parameters["alpha"]
        layer._parameters["alpha"] = alpha / 2 + alpha.detach() / 2
        try:
            return super().forward(*args, **kwargs)
        finally:
            layer._parameters["alpha"] = alpha


def test_gradients_of_factors_are_compared_by_the_chain_rule() -> None:
    """Plain members hold products of weights and factors, which move as the factors do."""
    made = subject(mt.BatchEnsemble(members=2))
    assert any(name.endswith("alpha") for name in comparisons.formed(made.holders))
    assert comparisons.gradients(dataclasses.replace(made)) is None
    made.ensemble.__class__ = HalfFactors
    said = comparisons.gradients(made)
    assert said is not None
    assert "the gradient of what forms 4, along a direction, differs" in said


@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=2), mt.EMP(members=2)], ids=lambda method: type(method).__name__)
def test_single_precision_moves_tensors_far_enough(method: mt.Method) -> None:
    """The rounding of what moves does not decide, so that double precision is not asked."""
    made = subject(method).moved
    gaps = comparisons._gradient_gaps(made.ensemble, made.inputs, False, comparisons.formed(made.holders))
    along = {name: value for name, value in gaps.items() if "along a direction" in name}
    assert along.keys()
    assert max(along.values()) < comparisons.SINGLE


def scaled(model: nn.Module, ensemble: Ensemble) -> None:
    ensemble.get_parameter("2.weight").data.mul_(4)


def zeroed(model: nn.Module, ensemble: Ensemble) -> None:
    ensemble.get_parameter("2.weight").data[1] = 0


def equal(model: nn.Module, ensemble: Ensemble) -> None:
    for parameter in ensemble.parameters():
        parameter.data[1] = parameter.data[0]


@pytest.mark.parametrize(
    ("plant", "text"),
    [
        (scaled, "2.weight of member 0 starts at"),
        (zeroed, "2.weight of member 1 starts at 0"),
        (equal, "members 0 and 1 are equal"),
    ],
)
def test_another_start_is_caught(plant: Callable[[nn.Module, Ensemble], None], text: str) -> None:
    made = subject(mt.Deep(members=2))
    plant(made.model, made.ensemble)
    said = comparisons.start(made)
    assert said is not None
    assert text in said


def test_a_shared_tensor_must_be_the_given_one() -> None:
    made = subject(mt.MultiHead(members=2))
    made.ensemble.get_parameter("0.weight").data.add_(1e-3)
    assert comparisons.start(made) == "0.weight is shared and is not the given model's"


def test_a_constant_stays_one() -> None:
    model = network(norm=True)
    x = torch.randn(4, 6)
    ensemble = mt.ensemble(model, mt.Deep(members=2), x, seed=0, check=False)
    ensemble.get_parameter("1.weight").data.normal_(1, 0.1)
    said = comparisons.start(Subject(ensemble, model, mt.Inputs(x)))
    assert said is not None
    assert "does not start at 1" in said


@pytest.mark.parametrize(("alpha", "right"), [(2, True), (4, False), (1, False)])
def test_the_size_of_packed(alpha: int, right: bool) -> None:
    """Four members of half the width are as large as one network; of the whole width four times, of a quarter a third."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    x = torch.randn(4, 6)
    ensemble = mt.ensemble(model, mt.Packed(members=4, alpha=alpha), x, seed=0, check=False)
    said = comparisons.size(Subject(ensemble, model, mt.Inputs(x)), 3)
    assert (said is None) is right


def test_the_size_of_packed_with_a_large_first_layer() -> None:
    """The input's channels stay: the first layer of four members of half the width is twice as large as the network's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 8), nn.ReLU(), nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))
    x = torch.randn(2, 3, 8, 8)
    ensemble = mt.ensemble(model, mt.Packed(members=4, alpha=2), x, seed=0, check=False)
    count, whole = (sum(p.numel() for p in net.parameters()) for net in (ensemble, model))
    assert count > 1.7 * whole
    assert comparisons.size(Subject(ensemble, model, mt.Inputs(x)), 5) is None


def test_tiny_outputs_are_told_apart() -> None:
    """Some networks start with outputs near zero; members that differ by their own scale are not equal."""
    model, x = network(), torch.randn(4, 6)
    for layer in (model[0], model[2], model[4]):
        layer.bias.data.zero_()
    model[4].weight.data *= 1e-20
    ensemble = mt.ensemble(model, mt.Deep(members=2), x, seed=0, check=False)
    with torch.no_grad():
        ensemble.get_parameter("4.weight").mul_(1e-20)
    made = Subject(ensemble, model, mt.Inputs(x))
    assert float(made.outputs[0].abs().max()) < 1e-15
    assert comparisons._equal_members(made) is None


def test_a_gap_is_relative_and_nan_is_no_number() -> None:
    one = torch.tensor([1.0, -4.0])
    assert comparisons.gap(one, one) == 0
    assert comparisons.gap(one + torch.tensor([0.0, 0.4]), one) == pytest.approx(0.1)
    assert comparisons.gap(one, torch.tensor([1.0, float("nan")])) == float("inf")
    assert comparisons.gap(torch.tensor([float("nan")]), torch.tensor([float("nan")])) == 0
    assert comparisons.gap(one, one[:1]) == float("inf")
    assert comparisons.gap(torch.tensor([1]), torch.tensor([2])) == float("inf")


def test_rounding_is_told_from_errors() -> None:
    """A difference in single precision that double precision does not have is rounding."""

    class Rounding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return (y + 1e6) - 1e6

    model, x = Rounding(), torch.randn(4, 3)
    ensemble = mt.ensemble(model, mt.Deep(members=2), x, seed=0, check=False)
    ensemble = copy.deepcopy(ensemble)
    made = Subject(ensemble, model, mt.Inputs(x))
    assert comparisons.values(made) is None


class TiedHead(nn.Module):
    """A table whose weight is the head's too, and a branch that the example does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.body = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor, other: bool = False) -> torch.Tensor:
        h = self.body(self.table(ids).mean(1)).relu()
        return self.head(self.unused(h) if other else h)


def test_tensors_that_are_tied_in_the_ensemble_alone_are_compared_together() -> None:
    """A plain member of BatchEnsemble has a head of its own, so its table has a part of the gradient; and a branch at rest."""
    model, ids = TiedHead(), mt.Inputs(torch.randint(11, (3, 4)))
    made = comparisons.Subject(mt.ensemble(model, mt.BatchEnsemble(members=2), ids, seed=0), model, ids)
    assert "table.weight" in comparisons.formed(made.holders)
    assert comparisons.gradients(made) is None
    assert comparisons.training(made, 3) is None


def test_masks_on_a_head_of_zeros_are_no_error() -> None:
    """A weight of zeros equals its masked self; constants are moved before gradients are compared, in a copy."""
    model, x = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(3, 4)
    nn.init.zeros_(model[2].weight)
    ens = mt.ensemble(model, mt.Masksembles(members=2, fewest=4), x, seed=0)
    moved = dict(comparisons._without_constants(ens).named_parameters())
    assert len(moved["2.weight"].unique()) > 1
    assert torch.equal(moved["0.weight"], model[0].weight)
    assert comparisons.gradients(comparisons.Subject(ens, model, mt.Inputs(x))) is None
    assert not ens.get_parameter("2.weight").any(), "the ensemble itself is as before"


class Padded(nn.Module):
    """Means of embeddings with a padding row, and a head whose bias outweighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(11, 8, padding_idx=2), nn.Linear(8, 3)
        nn.init.constant_(self.head.bias, 3e4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids).mean(1).tanh())


def test_padding_rows_have_an_effect_and_no_gradient() -> None:
    """By torch's definition, in the ensemble and in plain members alike; wrong gradients of tables are still caught."""
    torch.manual_seed(0)
    model, ids = Padded(), mt.Inputs(torch.tensor([[1, 4, 5, 2], [3, 2, 7, 2], [9, 8, 2, 6]]))
    with torch.no_grad():
        model.table.weight[2] = torch.randn(8)
    made = Subject(mt.ensemble(model, mt.MIMO(members=2), ids, seed=0, check=False), model, ids)
    assert "table.weight" in comparisons.formed(made.holders)
    assert comparisons.gradients(made) is None
    made.ensemble.__class__ = LeakingBackwards
    assert comparisons.gradients(dataclasses.replace(made)) is not None


class Routed(nn.Module):
    """Draws in training which of two layers every call takes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.rand(()) > 0.5 if self.training else torch.tensor(True)
        return torch.where(first, self.one(x), self.other(x))


def test_draws_that_agree_by_chance_are_no_error() -> None:
    """Two seeds take the same layer, so the network passes for one without noise until its gradients are looked at again."""
    routes = {seed: bool(torch.rand((), generator=torch.Generator().manual_seed(seed)) > 0.5) for seed in (1, 2)}
    assert routes[1] == routes[2]
    model, x = Routed(), torch.randn(4, 6)
    made = Subject(mt.ensemble(model, mt.Deep(members=3), x, seed=0, check=False), model, mt.Inputs(x))
    assert comparisons._comparable_in_training(made)
    gaps = [max(comparisons._gradient_gaps(made.ensemble, made.inputs, True, ()).values()) for _ in range(8)]
    assert max(gaps) > 0.5, "gradients of other draws differ"
    for _ in range(8):
        assert comparisons.gradients(made, training=True) is None
    assert comparisons.RANDOM in made.notes


def test_members_of_a_network_in_which_signals_vanish_cannot_be_told_apart() -> None:
    """All that is left at its end is the bias of the last layer, which members share."""
    model, x = network(), torch.randn(4, 6)
    with torch.no_grad():
        model[0].weight *= 1e-15
        model[0].bias.zero_()
        model[2].bias.zero_()
    ensemble = mt.ensemble(model, mt.Masksembles(members=2, fewest=4), x, seed=0, check=False)
    made = Subject(ensemble, model, mt.Inputs(x))
    assert comparisons._equal_members(made) is None
    assert "members cannot be told apart" in made.notes[-1]


@pytest.mark.parametrize(("method", "norm", "once"), [(mt.Deep(members=2), False, True), (mt.Deep(members=2), True, False)])
def test_gradients_are_compared_once_if_modes_have_the_same_values(method: mt.Method, norm: bool, once: bool) -> None:
    made = subject(method, norm)
    assert comparisons.gradients(made, training=True) is None
    assert made.moved.compared == once
    made.moved.ensemble.__class__ = LeakingBackwards
    assert (comparisons.gradients(made) is None) == once


class MoreInEval(nn.Sequential):
    """Returns its input beside its output in eval mode alone, as XLNet returns its memory."""

    def forward(self, x: Tensor) -> Any:
        output = super().forward(x)
        return output if self.training else (output, x)


def test_a_network_may_return_more_in_one_mode() -> None:
    model, x = MoreInEval(*network()), torch.randn(4, 6)
    made = Subject(mt.ensemble(model, mt.Deep(members=2), x, seed=0, check=False), model, mt.Inputs(x))
    assert comparisons.gradients(made, training=True) is None
    assert not made.moved.compared
    assert comparisons.gradients(made) is None
