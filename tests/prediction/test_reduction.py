"""Criteria that do not take the mean over rows are refused, alike by `ens.loss` and by `fit`; all others are left alone."""

from __future__ import annotations

import functools
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training.small import TRAIN, X, Y, made

import multitudes as mt
from multitudes.prediction.reduction import is_settled

pytestmark = pytest.mark.slow

FEW = (X[:20], Y[:20])
METHODS = [
    mt.Single(),
    mt.Deep(members=2),
    mt.MIMO(members=2),
    mt.Masksembles(members=2),
    mt.BatchEnsemble(members=2, feed="part"),
    mt.MCDropout(members=2),
    mt.EMP(members=2),
    mt.EMP(members=2, draw="row"),
]


class Summed(nn.Module):
    """A sum that says nothing of it."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction="none").sum()


WRONG: dict[str, Callable[[Any, Any], Tensor]] = {
    "none": nn.CrossEntropyLoss(reduction="none"),
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "partial": functools.partial(F.cross_entropy, reduction="sum"),
    "partial of a module": functools.partial(nn.CrossEntropyLoss(reduction="sum")),
    "lambda sum": lambda output, target: F.cross_entropy(output, target, reduction="sum"),
    "lambda none": lambda output, target: F.cross_entropy(output, target, reduction="none"),
    "module": Summed(),
    "bound method": Summed().forward,
}


def by_loss(ens: mt.Ensemble, criterion: Any) -> None:
    ens.train().loss(*FEW, criterion)


def by_parts(ens: mt.Ensemble, criterion: Any) -> None:
    batch = ens.train().batch(*FEW)
    ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, criterion)


def by_fit(ens: mt.Ensemble, criterion: Any) -> None:
    mt.fit(ens, TRAIN, mt.Recipe(epochs=1, batch=50), criterion=criterion)


@pytest.mark.parametrize("way", [by_loss, by_parts, by_fit])
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_sums_and_rows_are_refused(method: mt.Method, way: Any) -> None:
    """By every method, in each of the three ways to take a step, before any weight has changed."""
    kinds = WRONG if way is not by_fit else ("sum", "lambda sum", "lambda none")
    for kind in kinds:
        ens = made(method)
        with pytest.raises(mt.InputError, match="reduction='mean'"):
            way(ens, WRONG[kind])
        assert all(torch.equal(p, made(method).get_parameter(name)) for name, p in ens.named_parameters())
    way(made(method), F.cross_entropy)


@pytest.mark.parametrize("kind", ["none", "sum", "partial", "partial of a module"])
def test_a_reduction_is_refused_by_name(kind: str) -> None:
    """The criterion and what it has are named, and nothing is run."""
    said = "none" if kind == "none" else "sum"
    for way in (by_loss, by_fit):
        with pytest.raises(mt.InputError, match=rf"criterion=(CrossEntropyLoss|cross_entropy) has reduction='{said}'"):
            way(made(), WRONG[kind])


def test_one_row() -> None:
    """Several numbers are told from one also where a batch has one row."""
    ens = made(mt.Masksembles(members=2))
    with pytest.raises(mt.InputError, match="several numbers"):
        ens.eval().loss(X[:1], Y[:1], WRONG["lambda none"])


def contrast(output: Tensor, target: Tensor) -> Tensor:
    """Each row against all others: log 2 for two equal rows, log 4 for four, so twice the rows, twice the loss."""
    flat = torch.ones_like(output)
    return F.cross_entropy(flat @ flat.T, torch.arange(len(output)))


def noisy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="sum") * torch.rand(())


class Counting(nn.Module):
    """Ever larger by its count: twice, three times and four times the first loss."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.calls = 0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.count += 1
        self.calls += 1
        return self.count * F.cross_entropy(output, target)


def only_whole_batches(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.reshape(20, 3), target)


RIGHT: dict[str, Callable[[Any, Any], Tensor]] = {
    "mean": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.1]), label_smoothing=0.1),
    "batchmean": nn.KLDivLoss(reduction="batchmean"),
    "own mean": lambda output, target: F.cross_entropy(output, target, reduction="none").mean(),
    "a shape of its own": lambda output, target: F.cross_entropy(output, target)[None],
    "contrast": contrast,
    "noisy": noisy,
    "counting": Counting(),
    "whole batches": only_whole_batches,
}


@pytest.mark.parametrize("criterion", RIGHT.values(), ids=RIGHT)
def test_what_is_no_clear_sum_passes(criterion: Any) -> None:
    for _ in range(2):
        rows = 2 if criterion is contrast else 20
        target = torch.rand(20, 3) if isinstance(criterion, nn.KLDivLoss) else Y
        assert made().train().loss(X[:rows], target[:rows], criterion).isfinite().all()


def test_a_criterion_of_two_equal_rows_doubles() -> None:
    """What `contrast` is there for: only the third try tells it from a sum."""
    losses = [float(contrast(torch.ones(rows, 3), torch.zeros(rows))) for rows in (2, 4, 6)]
    assert losses[1] == pytest.approx(2 * losses[0])
    assert losses[2] < 2.9 * losses[0]


def test_it_leaves_no_trace() -> None:
    """Counters of a module, and the random states of torch, Python and NumPy, are those of the calls of members alone."""

    class Random(Counting):
        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return super().forward(output, target) * (torch.rand(()) + random.random() + float(np.random.rand()))

    def after(ens: mt.Ensemble) -> tuple[float, ...]:
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        criterion.count.zero_()
        return float(ens.loss(*FEW, criterion).detach()), float(torch.rand(())), random.random(), float(np.random.rand())

    criterion, ens = Random(), made().train()
    assert after(ens) == after(ens)
    assert (criterion.calls, float(criterion.count)) == (4, 2)
    pickle.dumps(ens)


def test_a_criterion_is_tried_once() -> None:
    """One function, a method that is made at each access, or a lambda of the same line: two calls more than members."""
    calls: list[int] = []

    def counted(output: Tensor, target: Tensor) -> Tensor:
        calls.append(len(output))
        return F.cross_entropy(output, target)

    class Holder:
        def loss(self, output: Tensor, target: Tensor) -> Tensor:
            return counted(output, target)

    holder = Holder()
    makers: list[Callable[[], Any]] = [lambda: counted, lambda: holder.loss, lambda: lambda o, t: counted(o, t)]
    for make in makers:
        ens = made().train()
        calls.clear()
        for _ in range(3):
            ens.loss(*FEW, make())
        assert calls == [4, 8, 20, 20, 20, 20, 20, 20]


def test_another_criterion_is_tried_too() -> None:
    """Also a function of the same line that holds another value."""
    ens = made().train()
    for reduction in ("mean", "sum"):
        criterion = lambda output, target, how=reduction: F.cross_entropy(output, target, reduction=how)  # noqa: E731
        held = functools.partial(lambda how: lambda output, target: F.cross_entropy(output, target, reduction=how), reduction)()
        for one in (criterion, held):
            if reduction == "mean":
                ens.loss(*FEW, one)
            else:
                with pytest.raises(mt.InputError, match="sums over rows"):
                    ens.loss(*FEW, one)


def test_rows_without_a_loss_say_nothing_yet() -> None:
    """The rows of a later step do."""
    ens, criterion = made().train(), lambda output, target: F.cross_entropy(output, target, reduction="sum")
    ens.loss(X[:20], torch.full((20,), -100), criterion)
    with pytest.raises(mt.InputError, match="sums over rows"):
        ens.loss(*FEW, criterion)


def test_a_network_within_a_criterion_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher may be large; its weights are used as they are."""

    class Distil(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = nn.Linear(3, 3)

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            seen.append(self.teacher.weight)
            return F.mse_loss(output, self.teacher(output))

    seen: list[Tensor] = []
    criterion = Distil()
    made().train().loss(*FEW, criterion)
    assert len(seen) == 4
    assert all(weight is criterion.teacher.weight for weight in seen)


class Locked:
    """A criterion that cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction="sum")


def only_by_keyword(how: str) -> Any:
    """A function whose reduction is the default of an argument that is given by its name."""

    def criterion(output: Tensor, target: Tensor, *, reduction: str = how) -> Tensor:
        return F.cross_entropy(output, target, reduction=reduction)

    return criterion


@pytest.mark.parametrize(
    "criterion",
    [
        lambda output, target: F.cross_entropy(output, target, reduction="sum") + 0.5,
        lambda output, target: 3 - F.cross_entropy(output, target, reduction="sum"),
        lambda output, target: F.cross_entropy(output, target) + output.square().sum() / 3,
        Locked(),
    ],
    ids=["and a constant", "negative", "beside a mean", "locked"],
)
def test_a_sum_beside_other_terms_is_a_sum(criterion: Any) -> None:
    with pytest.raises(mt.InputError, match="sums over rows"):
        made().train().loss(*FEW, criterion)


def test_defaults_of_keywords_make_another_criterion() -> None:
    ens = made().train()
    ens.loss(*FEW, only_by_keyword("mean"))
    with pytest.raises(mt.InputError, match="sums over rows"):
        ens.loss(*FEW, only_by_keyword("sum"))


def test_a_criterion_that_compares_each_output_with_all_targets_is_refused() -> None:
    """Its value does not depend on the order of the targets; one that pairs rows passes, whatever its shapes."""
    output, target = torch.tensor([[1e-3], [2e-3], [5e-3]]), torch.tensor([1e4, 2e4, 4e4])

    def pairing(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.squeeze(1) - target).square().mean()

    def absolute(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.squeeze(1) - target).abs().mean()  # beside larger targets a difference of means

    assert is_settled(pairing, output, target) and is_settled(absolute, output, target)
    assert is_settled(nn.MSELoss(), output, target[:, None])
    for broadcasting in (nn.MSELoss(), nn.L1Loss(), lambda output, target: (output - target).abs().mean()):
        with pytest.raises(mt.InputError, match=r"outputs are \[3, 1\] and targets \[3\]"):
            is_settled(broadcasting, output, target)
    assert not is_settled(pairing, torch.zeros(3, 1), target)  # equal outputs do not tell: it is tried again
