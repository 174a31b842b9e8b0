"""A trial: trained, predicted, scored, and kept as a row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import multitudes as mt
from multitudes import data
from multitudes.models import MLP, LeNet
from multitudes.report.row import Row
from multitudes.shell import trial
from multitudes.shell.budget import Budget
from multitudes.shell.jobs import Job, job
from multitudes.shell.trial import Trial, corrupted, in_original_units

FEW = data.fashion("train").subset(range(96))
TEST = data.fashion("test").subset(range(60))


def small() -> Job:
    return Job(
        name="small", network=LeNet, train=FEW, test=TEST, validation=data.fashion("validation").subset(range(32)),
        ood={"digits": data.digits().subset(range(40))}, recipe=mt.Recipe(epochs=2, batch=32, lr=0.01),
        corruptions=("contrast", "pixelate"), corrupted=10,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"small": small(), "yacht": job("yacht")}
    monkeypatch.setattr(trial, "loaded", lambda task, root: found[task])
    corrupted.cache_clear()


def tried(folder: Path, task: str = "small", method: mt.Method | None = None, budget: str = "2 epochs") -> Trial:
    chosen = method or mt.Packed(members=2)
    return Trial(
        task=task, name="packed", method=chosen, seed=3, budget=Budget.read(budget), folder=folder, command="type this"
    )


def test_a_row_has_all_that_a_report_shows(tmp_path: Path) -> None:
    row = tried(tmp_path / "a").run()
    assert (row.name, row.seed, row.command, row.method) == ("packed", 3, "type this", repr(mt.Packed(members=2)))
    assert row.prediction is not None
    assert row.prediction.count == 2
    assert len(row.prediction) == 60
    assert len(row.ood["digits"]) == 40
    assert row.scores.intervals["accuracy"][0] <= row.scores["accuracy"] <= row.scores.intervals["accuracy"][1]
    assert "auroc/msp" in row.scores
    assert list(row.shifted) == [1, 2, 3, 4, 5]
    assert all(0 <= found["accuracy"] <= 1 for found in row.shifted.values())
    assert row.cost["parameters"] == 2 * row.cost["single_parameters"]
    assert row.settings["recipe"]["epochs"] == 2
    assert row.seconds is not None


def test_scores_are_of_the_best_epoch(tmp_path: Path) -> None:
    row = tried(tmp_path / "a").run()
    best = mt.load(tmp_path / "a" / "best.multitude", LeNet())
    assert row.scores["nll"] == pytest.approx(mt.score(mt.predict(best, TEST))["nll"], abs=1e-6)


def test_what_is_there_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tried(tmp_path / "a")
    first = one.run()
    monkeypatch.setattr(trial, "fit", None)
    again = one.run()
    assert dict(again.scores) == dict(first.scores)


def test_a_trial_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many epochs as it was begun with, though seconds would now say otherwise."""
    whole = tried(tmp_path / "whole").run()
    monkeypatch.setattr(Budget, "epochs", lambda *args: 2)
    one, predict = tried(tmp_path / "part", budget="5 s"), trial.predict

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "predict", stop)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert not one.done()
    monkeypatch.setattr(trial, "predict", predict)
    monkeypatch.setattr(Budget, "epochs", lambda *args: 9)
    other = one.run()
    assert dict(other.scores) == dict(whole.scores)
    assert json.loads((tmp_path / "part" / "config.json").read_text())["recipe"]["epochs"] == 2


def test_another_trial_is_not_taken_up(tmp_path: Path) -> None:
    """Neither its row, nor a run that is not done."""
    tried(tmp_path / "a").run()
    with pytest.raises(mt.FileError, match="another trial: budget was 2 epochs and is 3 epochs; take another --out"):
        tried(tmp_path / "a", budget="3 epochs").run()
    with pytest.raises(mt.FileError, match=r"method was Packed\(members=2"):
        tried(tmp_path / "a", method=mt.Deep(members=2)).run()
    (tmp_path / "a" / "row.json").unlink()
    with pytest.raises(mt.FileError, match=r"another run: recipe\.epochs was 2 and is 3"):
        tried(tmp_path / "a", budget="3 epochs").run()


def test_regression_is_in_the_units_of_the_target(tmp_path: Path) -> None:
    row = tried(tmp_path / "a", "yacht", mt.Deep(members=2), "30 epochs").run()
    assert row.prediction is not None
    _, test = data.uci("yacht", 0)
    assert torch.allclose(row.prediction.targets, test.original(test.targets))
    assert row.scores["rmse"] < float(test.target_std)
    assert row.shifted == {}
    assert Row.load(tmp_path / "a").scores["rmse"] == row.scores["rmse"]


def test_what_is_foreign_is_in_the_same_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test set itself as the out-of-distribution set cannot be told apart."""
    what = job("yacht")
    monkeypatch.setattr(trial, "loaded", lambda task, root: replace(what, ood={"itself": what.test}))
    row = tried(tmp_path / "a", "yacht", mt.Deep(members=2), "2 epochs").run()
    found = [row.scores[name] for name in row.scores if "auroc" in name]
    assert found
    assert found == pytest.approx([0.5] * len(found))


def test_units() -> None:
    """Means are moved and stretched, variances stretched twice; classes are left alone."""
    held = data.Data(torch.zeros(4, 2), torch.zeros(4, 1), target_mean=[3.0], target_std=[2.0])
    found = in_original_units(
        mt.Prediction(mean=torch.ones(2, 4, 1), variance=torch.ones(2, 4, 1), targets=torch.zeros(4, 1)), held
    )
    assert torch.equal(found.members.mean, torch.full((2, 4, 1), 5.0))
    assert torch.equal(found.members.variance, torch.full((2, 4, 1), 4.0))
    assert torch.equal(found.targets, torch.full((4, 1), 3.0))
    classes = mt.Prediction(logits=torch.zeros(2, 4, 3))
    assert in_original_units(classes, held) is classes


def test_milestones_move_with_the_epochs() -> None:
    how = mt.Recipe(epochs=75, schedule="multistep", milestones=(25, 50))
    assert trial._rescaled(how, 9) == {"epochs": 9, "milestones": (3, 6)}
    assert trial._rescaled(how, 2) == {"epochs": 2, "milestones": (1,)}


def test_a_network_of_vectors_has_no_corruptions() -> None:
    d = data.Data(torch.randn(8, 3), torch.arange(8) % 2)
    assert Job(name="a", network=lambda: MLP(3, (4,), 2), train=d, test=d).corruptions == ()
