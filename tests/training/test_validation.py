"""What an epoch is worth, which was the best, of the ensemble or of each member, and when a score has leapt."""

from __future__ import annotations

import functools
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interruption import interrupted
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from training.small import TRAIN, VAL, X, made, same

import multitudes as mt
from multitudes.training import validation
from multitudes.training.criterion import TaskCriterion
from multitudes.training.fit import fit
from multitudes.training.recipe import Recipe
from multitudes.training.validation import Best, LossWatch, empty_best, leap, score_of, validate

Y = torch.tensor([0, 1, 1, 0])


def said(*rights: int) -> mt.Prediction:
    """A prediction whose members have so many of the four right."""
    logits = torch.stack([torch.where(torch.arange(4)[:, None] < right, 4.0, -4.0) * torch.eye(2)[Y] for right in rights])
    return mt.Prediction(logits=logits, targets=Y)


def test_scores_of_labels() -> None:
    """Accuracy and NLL of the mixture, and of each member."""
    found, each = validate(said(4, 2))
    assert found["val_accuracy"] == mt.score(said(4, 2))["accuracy"]
    assert found["val_nll"] == pytest.approx(mt.score(said(4, 2))["nll"])
    assert each["val_accuracy"].tolist() == [1.0, 0.5]
    right, wrong = math.log1p(math.exp(-4)), math.log1p(math.exp(4))
    assert each["val_nll"].tolist() == pytest.approx([right, (right + wrong) / 2])


def test_scores_of_numbers() -> None:
    """RMSE and log density, of the mixture and of each member."""
    mean, variance, targets = np.array([[1.0, 2.0], [1.0, 4.0]]), np.array([[1.0, 0.5], [2.0, 9.0]]), np.array([1.5, 2.0])
    found, each = validate(mt.Prediction(mean=mean, variance=variance, targets=torch.tensor(targets)))
    density = stats.norm(mean, variance**0.5).pdf(targets)
    assert found == {
        "val_rmse": pytest.approx(((targets - mean.mean(0)) ** 2).mean() ** 0.5),
        "val_nll": pytest.approx(-np.log(density.mean(0)).mean()),
    }
    assert each["val_rmse"].tolist() == pytest.approx((((targets - mean) ** 2).mean(1) ** 0.5).tolist())
    assert each["val_nll"].tolist() == pytest.approx((-np.log(density).mean(1)).tolist())
    found, each = validate(mt.Prediction(mean=mean, targets=torch.tensor(targets)))
    assert found.keys() == each.keys() == {"val_rmse"}


def filled(value: float, method: mt.Method | None = None, task: str = "classes") -> mt.Ensemble:
    """Two members with these weights."""
    net = nn.Linear(3, 1 if task == "binary" else 2)
    ens = mt.ensemble(net, method or mt.Deep(members=2), torch.randn(2, 3), seed=0, task=task)
    with torch.no_grad():
        for p in ens.parameters():
            p.fill_(value)
    return ens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "values"), [("accuracy", [0.5, 0.5, 0.6, 0.1]), ("nll", [0.5, 0.5, 0.3, 2.0]), ("rmse", [3.0, 3.0, 1.5, 1.6])]
)
def test_the_best_of_the_ensemble(score: str, values: list[float]) -> None:
    """The first of equal ones, by the score that is asked for; weights are copied."""
    best = Best("ensemble", score)
    other = {"val_accuracy": 0.1, "val_nll": 0.1, "val_rmse": 0.1}
    found = [best.update(filled(n), n, {**other, f"val_{score}": v}, {}) for n, v in enumerate(values, 1)]
    assert found == [True, False, True, False]
    assert best.epoch == 3
    assert best.state["weight"].unique().tolist() == [3]


def test_the_best_of_each_member() -> None:
    """Each at its own epoch."""
    best = Best("members", "nll")
    assert best.update(filled(1), 1, {}, {"val_nll": torch.tensor([0.5, 0.8])})
    assert best.update(filled(2), 2, {}, {"val_nll": torch.tensor([0.6, 0.7])})
    assert best.state["weight"][0].unique().tolist() == [1]
    assert best.state["weight"][1].unique().tolist() == [2]
    assert best.value == pytest.approx([-0.5, -0.7])


def test_members_that_share_have_one_best_epoch() -> None:
    with pytest.raises(mt.InputError, match="BatchEnsemble shares weight"):
        empty_best(filled(0, mt.BatchEnsemble(members=2)), Recipe(best="members"))


LABELS, EMP = ("classes", "binary", "multilabel"), mt.EMP(members=2, tau_output=4.0)


@pytest.mark.parametrize(
    ("task", "method", "proper", "others"),
    [
        *((task, None, "nll", ("accuracy",)) for task in LABELS),
        ("gaussian", None, "nll", ("rmse",)),
        ("regression", None, "rmse", ()),
        ("regression", EMP, "nll", ("rmse",)),
    ],
)
def test_what_is_best(task: str, method: mt.Method | None, proper: str, others: tuple[str, ...]) -> None:
    """By default the proper score of the task; scores that it does not have are refused."""
    ens = filled(0, method, task)
    assert score_of(ens, Recipe()) == proper
    for score in ("nll", "accuracy", "rmse"):
        if score in (proper, *others):
            assert score_of(ens, Recipe(best_by=score)) == score
        else:
            with pytest.raises(mt.InputError, match=rf"best_by='{score}'.*take '{proper}'"):
                score_of(ens, Recipe(best_by=score))


def test_a_score_that_the_task_lacks_is_refused_before_training() -> None:
    ens = made()
    for recipe in (Recipe(epochs=1, best_by="rmse"), Recipe(epochs=1, best="members", best_by="rmse")):
        with pytest.raises(mt.InputError, match="take 'nll' or 'accuracy'"):
            fit(ens, TRAIN, recipe, val=VAL)
    with pytest.raises(mt.InputError, match="best_by must be 'nll'"):
        Recipe(best_by="loss")


NOISY = Recipe(epochs=6, batch=20, lr=0.3, seed=3)


@functools.cache
def after_each_epoch() -> list[tuple[mt.Ensemble, Any]]:
    """The ensemble after each epoch of a noisy run, with its prediction."""
    ensembles = [fit(made(), TRAIN, replace(NOISY, epochs=epochs)).ensemble for epochs in range(1, NOISY.epochs + 1)]
    return [(ens, mt.predict(ens, VAL)) for ens in ensembles]


@pytest.mark.slow
@pytest.mark.parametrize("best_by", [None, "nll", "accuracy"])
def test_the_best_epoch_of_a_run(best_by: Any) -> None:
    """By default that of the lowest NLL; that of the highest accuracy is another."""
    scores = [mt.score(pred) for _, pred in after_each_epoch()]
    nll, accuracy = ([float(one[name]) for one in scores] for name in ("nll", "accuracy"))
    lowest, highest = nll.index(min(nll)), accuracy.index(max(accuracy))
    assert lowest != highest, "both choose one epoch: nothing would be told apart"
    chosen = highest if best_by == "accuracy" else lowest
    run = fit(made(), TRAIN, replace(NOISY, best_by=best_by), val=VAL)
    assert run.best_epoch == chosen + 1
    assert same(run.use_best(), after_each_epoch()[chosen][0])


@pytest.mark.parametrize("best_by", [None, "accuracy"])
def test_the_best_epoch_of_each_member(best_by: Any) -> None:
    """By its own NLL, or its own accuracy."""
    members = [pred.members for _, pred in after_each_epoch()]
    targets = torch.cat([y[None] for _, y in VAL])
    if best_by == "accuracy":
        scores = torch.stack([(one.labels == targets).double().mean(1) for one in members])
    else:
        scores = torch.stack([one.logits.log_softmax(2)[:, range(40), targets].mean(1) for one in members])
    chosen = scores.argmax(0).tolist()
    assert len({*chosen}) == 2 or best_by == "accuracy"
    run = fit(made(), TRAIN, replace(NOISY, best="members", best_by=best_by), val=VAL)
    assert run.best_epoch == max(chosen) + 1
    assert run.best_state is not None
    for m, epoch in enumerate(chosen):
        for name, value in after_each_epoch()[epoch][0].state_dict().items():
            assert torch.equal(run.best_state[name][m], value[m])


def test_a_run_of_before_there_was_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on as it began, by accuracy, and says so; a choice that it did not make is refused."""
    with monkeypatch.context() as patch, interrupted(36):
        patch.setattr(Best, "described", lambda best: {"by": best.by, "epoch": best.epoch, "value": best.value})
        patch.setattr(validation, "score_of", lambda ensemble, recipe: "accuracy")
        fit(made(), TRAIN, NOISY, val=VAL, out=tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["recipe"]["best_by"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(mt.FileError, match=r"recipe\.best_by was None and is 'nll'"):
        fit(made(), TRAIN, replace(NOISY, best_by="nll"), val=VAL, out=tmp_path, resume=True)
    with pytest.warns(UserWarning, match="by accuracy to the end.*start a new run"):
        run = fit(made(), TRAIN, NOISY, val=VAL, out=tmp_path, resume=True)
    accuracy = [float(mt.score(pred)["accuracy"]) for _, pred in after_each_epoch()]
    assert run.best_epoch == accuracy.index(max(accuracy)) + 1
    assert "by accuracy to the end" in (tmp_path / "log.txt").read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(made(), TRAIN, Recipe(epochs=1), val=VAL, out=tmp_path / "new")
        fit(made(), TRAIN, Recipe(epochs=1), val=VAL, out=tmp_path / "new", resume=True)


def lines(values: list[float], name: str = "nll") -> list[dict[str, float]]:
    return [{"epoch": n, f"val_{name}": value} for n, value in enumerate(values, 1)]


FALLING = [2.3, 1.4, 0.9, 0.8, 0.7, 0.66, 0.64]


@pytest.mark.parametrize("score", ["nll", "accuracy", "rmse"])
def test_a_leap_is_told(score: str) -> None:
    """Epoch, score, the best before and what to type."""
    name = "nll" if score == "accuracy" else score
    history = lines([*FALLING, 30.0], name)
    assert leap(history[:-1], score) == ""
    told = leap(history, score)
    assert f"{name.upper()} leapt to 30 in epoch 8, from 0.64 at its best" in told
    assert all(word in told for word in ("lr", "clip=", "warmup="))


ORDINARY: dict[str, tuple[list[float], float]] = {
    "first epochs": ([2.3, 1.0, 0.9, 9.0], 0),
    "warm-up": ([2.3, 2.2, 2.1, 2.0, 0.5, 12.0, 0.4, 0.3], 6),
    "plateau": ([*FALLING, 0.6399, 0.6401, 0.6400, 0.6402, 0.75], 0),
    "overfitting": ([*FALLING, *(0.64 + 0.4 * n for n in range(1, 12))], 0),
    "noise": ([2.3, 1.2, 1.9, 0.8, 1.6, 0.7, 1.5, 2.6, 0.6, 2.4], 0),
    "a step down": ([*FALLING, 0.3, 0.25, 0.24], 0),
}


@pytest.mark.parametrize(("values", "start"), ORDINARY.values(), ids=ORDINARY)
def test_ordinary_curves_do_not_leap(values: list[float], start: float) -> None:
    for epochs in range(1, len(values) + 1):
        assert leap(lines(values[:epochs]), "nll", start) == ""


def test_infinite_scores_leap() -> None:
    assert "leapt to inf" in leap(lines([*FALLING, math.inf]), "nll")


def test_a_run_tells_of_a_leap_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a warning and in its log: weights that an unlucky step blew up, twice."""
    left = [0]

    def harming(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        left[0] += 1
        return (x * 1e4 if left[0] in (25, 33) else x), y

    monkeypatch.setattr(LossWatch, "look", lambda *_: "")  # it would tell of the same leap earlier
    recipe = Recipe(epochs=9, batch=50, lr=0.03, augment=harming)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    ens = mt.ensemble(net, mt.Deep(members=2), X[:2], seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = fit(ens, TRAIN, recipe, val=VAL, out=tmp_path)
    told = [str(one.message) for one in caught if "leapt" in str(one.message)]
    assert {one.filename for one in caught if "leapt" in str(one.message)} == {__file__}
    assert len(told) == 1
    assert f"in epoch 7, from {min(line['val_nll'] for line in run.metrics[:6]):.4g} at its best" in told[0]
    assert (tmp_path / "log.txt").read_text().count(told[0]) == 1


@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_score_that_is_lost_early_is_told(at: int) -> None:
    """And still in later epochs; half a leap is not."""
    values = [1.5, 1.4, 1.3, 1.2][: at - 1] + [60.0] * 4
    for epochs in range(at, len(values) + 1):
        assert "leapt to 60" in leap(lines(values[:epochs]), "nll")
    assert leap(lines([1.5, 1.4, 9.0]), "nll") == ""
    assert "leapt to nan" in leap(lines([1.5, math.nan]), "nll")


def test_how_far_a_leap_is() -> None:
    """1.5 nats and ten usual changes: 1.4 nats are too few, and so are 9 changes."""
    calm = [1.0, 0.9, 0.8, 0.7, 0.6]
    assert leap(lines([*calm, 0.6 + 1.45]), "nll") == ""
    assert leap(lines([*calm, 0.6 + 1.55]), "nll") != ""
    rough = [6.0, 5.0, 4.0, 3.0, 2.0]
    assert leap(lines([*rough, 2.0 + 9.5]), "nll") == ""
    assert leap(lines([*rough, 2.0 + 10.5]), "nll") != ""


def test_a_leap_of_the_training_loss_is_told_without_a_validation_set() -> None:
    """A Gaussian's loss under the default recipe, with inputs of heavy tails, leaps in the first epoch."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(1000, 4, generator=g) ** 5
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    ens = mt.ensemble(net, mt.Deep(members=2), x[:2], task="gaussian", seed=0, check=False)
    with pytest.warns(UserWarning, match=r"the training loss of a member leapt to .* of epoch 1, from .*clip="):
        mt.fit(ens, TensorDataset(x, x[:, :1] / x[:, 0].std()), mt.Recipe(epochs=1, batch=50))


@pytest.mark.parametrize(("reduction", "told"), [("sum", [False, False, False, True]), ("mean", [False, False, True, True])])
def test_the_watch_counts_a_members_nats(reduction: Any, told: list[bool]) -> None:
    """Two members: 4, 2, 20 and 26 are 2, 1, 10 and 13 of each if they are summed."""
    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2, reduction=reduction), torch.randn(2, 3), check=False)
    watch = LossWatch(ens, TaskCriterion("classes"))
    assert [bool(watch.look(loss, 1, 1)) for loss in (4.0, 2.0, 20.0, 26.0)] == told
    assert not LossWatch(ens, TaskCriterion("classes", nn.CrossEntropyLoss())).look(1e9, 1, 1)
