"""Steps that are not finite: nothing changes, and the error names what it was, down to the example or the member."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from interruption import interrupted
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset
from training.small import TRAIN, VAL, X, Y, made, same

import multitudes as mt
from multitudes.data.dataset import Data
from multitudes.training import finite_step, own_optimizer
from multitudes.training import fit as training
from multitudes.training.fit import fit
from multitudes.training.recipe import Recipe

pytestmark = pytest.mark.slow

BATCH = Recipe(epochs=3, batch=50, lr=0.05)
"""Four steps an epoch."""


def breaking(at: int, how: Callable[[Tensor], Tensor] = lambda x: x * torch.nan) -> Any:
    """An augmentation that spoils the inputs of one step, counted from 1."""
    left = [at]

    def augment(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        left[0] -= 1
        return (how(x) if left[0] == 0 else x), y

    return augment


def stopped_before(step: int, method: mt.Method | None, recipe: Recipe) -> mt.Ensemble:
    """The ensemble of a run that is stopped before a step, counted from 1."""
    ens = made(method)
    with interrupted(step):
        fit(ens, TRAIN, recipe)
    return ens


METHODS = [
    mt.Single(),
    mt.Deep(members=2),
    mt.BatchEnsemble(members=2),
    mt.MIMO(members=2),
    mt.Masksembles(members=2),
    mt.EMP(members=2),
    mt.MCDropout(members=2),
]


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adamw", "ema": 0.9, "clip": 1.0, "l1": 0.01, "accumulate": 2}])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_the_ensemble_is_as_before_the_step(method: mt.Method, settings: dict[str, Any]) -> None:
    """Weights, BatchNorm's statistics and the generator: those of a run that was stopped there."""
    recipe = replace(BATCH, **settings)
    ens, parts = made(method), recipe.accumulate
    with pytest.raises(mt.InputError, match=r"a NaN in the inputs .*nan in step 3 of epoch 2: .*weights before this step"):
        fit(ens, TRAIN, replace(recipe, augment=breaking(7 * parts)))
    expected = stopped_before(7, method, recipe)
    assert same(ens, expected)
    assert torch.equal(ens.generator.get_state(), expected.generator.get_state())
    assert all(p.grad is None for p in ens.parameters())
    assert all(bool(b.isfinite().all()) for b in ens.buffers())
    assert not same(ens, made(method))
    fit(ens, TRAIN, replace(recipe, epochs=1))


@pytest.mark.parametrize("executor", ["loop", "vmap", "fold"])
def test_statistics_come_back_whoever_runs_members(executor: str) -> None:
    ens = made()
    assert executor in ens.plan.proven["train"]
    ens.engine.picked["train"] = executor
    with pytest.raises(mt.InputError, match="a NaN"):
        fit(ens, TRAIN, replace(BATCH, augment=breaking(3)))
    assert int(ens.get_buffer("1.num_batches_tracked")[0]) == 2
    assert bool(ens.get_buffer("1.running_var").isfinite().all())


def test_the_optimizer_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """No moment of Adam has seen the gradient."""
    optimizers = []
    real = own_optimizer.optimizer_for
    monkeypatch.setattr(own_optimizer, "optimizer_for", lambda *args: optimizers.append(real(*args)) or optimizers[-1])
    recipe = replace(BATCH, optimizer="adam")
    with pytest.raises(mt.InputError):
        fit(made(), TRAIN, replace(recipe, augment=breaking(6)))
    stopped_before(6, None, recipe)
    for mine, theirs in zip(*(one.state_dict()["state"].values() for one in optimizers), strict=True):
        assert int(mine["step"]) == 5
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a CPU train as a GPU does: torch's fused optimizers skip steps by a flag."""
    real = own_optimizer.optimizer_for

    def made_fused(*args: Any) -> Any:
        optimizer = real(*args)
        for group in optimizer.param_groups:
            group["fused"] = True
        optimizer._step_supports_amp_scaling = True
        return optimizer

    monkeypatch.setattr(own_optimizer, "optimizer_for", made_fused)
    init = finite_step.StepGuard.__init__

    def deferring(guard: Any, ensemble: Any, recipe: Any, *args: Any) -> None:
        init(guard, ensemble, recipe, *args)
        guard.defers = finite_step.can_skip(guard.optimizer, ensemble, recipe)

    monkeypatch.setattr(finite_step.StepGuard, "__init__", deferring)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_skipped_on_the_device(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told later, with the step and example that it was; weights are those before it, statistics those of the last look."""
    fused(monkeypatch)
    recipe = replace(BATCH, batch=4, optimizer=optimizer, momentum=0.9)  # 50 steps an epoch, looked at every second
    x = X[:200].clone()
    x[17, 2] = torch.inf
    ens = made()
    with pytest.raises(mt.InputError) as told:
        fit(ens, TensorDataset(x, Y[:200]), recipe)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(training.seed_of(0, 1, 0)))
    step = int((order == 17).nonzero()) // 4 + 1
    assert step > 2
    assert f"an infinite value in the inputs of example 17, so the loss is nan in step {step} of epoch 1" in str(told.value)
    expected = stopped_before(step, None, recipe)
    for name, value in expected.named_parameters():
        assert torch.equal(ens.get_parameter(name), value), name
    looked = (step - 2) // 2 * 2 + 1
    assert int(ens.get_buffer("1.num_batches_tracked")[0]) == looked
    for name, value in stopped_before(looked + 1, None, recipe).named_buffers():
        assert torch.equal(ens.get_buffer(name), value), name


def test_skipping_changes_nothing_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is finite ends with the same weights, to rounding."""
    plain = fit(made(), TRAIN, BATCH).ensemble
    fused(monkeypatch)
    skipping = fit(made(), TRAIN, BATCH).ensemble
    torch.testing.assert_close(skipping.state_dict(), plain.state_dict())


def test_what_a_flag_cannot_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """With averages of weights or a method's own updates, each step is checked before it is taken."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, fused=True)
    ens = made()
    assert finite_step.can_skip(optimizer, ens, Recipe())
    assert not finite_step.can_skip(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1), ens, Recipe())
    assert not finite_step.can_skip(optimizer, ens, Recipe(ema=0.9))
    assert not finite_step.can_skip(optimizer, ens, Recipe(precision="fp16"))
    monkeypatch.setattr(mt.Deep, "after_step", lambda method, ensemble: None)
    assert not finite_step.can_skip(optimizer, ens, Recipe())


class Lazy(Dataset[Any]):
    """Examples that are read one by one, of which one is spoilt."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


def spoilt(values: Tensor, value: float, row: int = 117) -> Tensor:
    values = values.clone()
    values[row] = value
    return values


@functools.cache
def regressor(task: str = "regression") -> mt.Ensemble:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2 if task == "gaussian" else 1))
    return mt.ensemble(net, mt.Deep(members=2), X[:2], seed=0, task=task)


@pytest.mark.parametrize("kind", [TensorDataset, Lazy])
@pytest.mark.parametrize("batches", ["same", "own"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_wrong_input_is_named(kind: Any, batches: Any, value: float) -> None:
    """By its example, wherever the shuffle has put it."""
    ens = made()
    said = "a NaN" if value != value else "an infinite value"
    with pytest.raises(mt.InputError, match=f"the training set has {said} in the inputs of example 117, so the loss is nan"):
        fit(ens, kind(spoilt(X[:200], value), Y[:200]), replace(BATCH, batches=batches))


def test_a_wrong_input_of_one_members_set_is_named() -> None:
    sets = [TRAIN, TensorDataset(spoilt(X[:200], torch.nan), Y[:200])]
    with pytest.raises(mt.InputError, match="in the inputs of example 117 of member 1's set"):
        fit(made(), sets, BATCH)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("task", ["regression", "gaussian"])
@pytest.mark.parametrize("custom", [False, True])
def test_a_wrong_target_is_named(task: str, custom: bool, parts: int) -> None:
    """By the check of targets, or where the criterion is the caller's by the loss that it gave."""
    ens, y = copy.deepcopy(regressor(task)), spoilt(X[:200, :1], torch.nan)
    criterion = (mt.GaussianNLL() if task == "gaussian" else F.mse_loss) if custom else None
    with pytest.raises(mt.InputError, match=r"the training set has a NaN .*in the targets of example 117"):
        fit(ens, TensorDataset(X[:200], y), replace(BATCH, accumulate=parts), criterion=criterion)
    assert same(ens, regressor(task)) or custom


def test_what_a_criterion_or_a_model_leaves_out_is_not_refused() -> None:
    """NaN may mark what is missing."""

    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.nan_to_num())

    ens = mt.ensemble(Filled(), mt.Deep(members=2), X[:2], seed=0, task="regression")
    y = spoilt(X[:200, :1], torch.nan)

    def known(output: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(output[target.isfinite()], target[target.isfinite()])

    assert fit(ens, TensorDataset(spoilt(X[:200], torch.nan), y), BATCH, criterion=known).done == 3


def test_wrong_values_of_a_validation_are_named() -> None:
    """Its inputs in any example, its targets before training if they are in memory."""
    for val, said in (
        (TensorDataset(spoilt(X, torch.nan), Y), "val= has a NaN in the inputs of example 117: remove or replace it"),
        (TensorDataset(spoilt(X, torch.inf, 0), Y), "val= has an infinite value in the inputs of example 0"),
    ):
        with pytest.raises(mt.InputError, match=said):
            fit(made(), TRAIN, BATCH, val=val)
    train, y = TensorDataset(X, X[:, :1]), spoilt(X[:, :1], torch.nan)
    for val, trained in ((TensorDataset(X, y), False), (Lazy(X, y), True)):
        ens = copy.deepcopy(regressor())
        with pytest.raises(mt.InputError, match="val=: a target is NaN or infinite, in row 117"):
            fit(ens, train, BATCH, val=val)
        assert same(ens, regressor()) != trained


def test_weights_that_are_not_finite_are_not_the_validations_fault() -> None:
    ens = made()
    with torch.no_grad():
        ens.get_parameter("3.bias").fill_(torch.nan)
    with pytest.raises(mt.InputError, match=r"logits has a NaN.*training may have diverged"):
        fit(ens, TRAIN, BATCH, val=VAL)


def failing(members: set[int], value: float) -> Any:
    """A criterion whose loss of some members is not finite from the second step on."""
    calls = [0]

    def criterion(output: Tensor, target: Tensor) -> Tensor:
        calls[0] += 1
        step, m = divmod(calls[0] - 1 - 2, 3)  # two calls try it
        bad = step >= 1 and m in members
        return F.cross_entropy(output, target) + (value if bad else 0.0)

    return criterion


@pytest.mark.parametrize(
    ("members", "said"),
    [({1}, "the loss of member 1 is inf"), ({0, 2}, "the loss of members 0, 2 is inf"), ({0, 1, 2}, "the loss is inf")],
)
def test_members_are_named(members: set[int], said: str) -> None:
    ens = made(mt.Deep(members=3))
    with pytest.raises(mt.RunError, match=f"{said} in step 2 of epoch 1: try a smaller lr, clip= or warmup="):
        fit(ens, TRAIN, BATCH, criterion=failing(members, torch.inf))
    assert int(ens.get_buffer("1.num_batches_tracked")[0]) == 1


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite(clip: float | None) -> None:
    """Beside a finite loss: √0 has the slope ∞."""

    def rooted(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target) + (output * 0).square().sum().sqrt()

    ens = made()
    with pytest.raises(mt.RunError, match=r"the gradient of 0\.weight is not finite in step 1 of epoch 1: try"):
        fit(ens, TRAIN, replace(BATCH, clip=clip), criterion=rooted)
    assert same(ens, made())


def test_sets_in_memory_are_looked_at_when_they_are_made() -> None:
    """So a Data never comes to training with a NaN."""
    for x, y in ((spoilt(X, torch.nan), Y), (X, spoilt(X[:, :1], torch.nan))):
        with pytest.raises(mt.InputError, match="117"):
            Data(x, y)
