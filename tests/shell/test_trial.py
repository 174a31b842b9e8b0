"""Trials: trained, predicted, scored, and saved as a row."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import multitudes as mt
from multitudes import data
from multitudes.models import MLP, LeNet
from multitudes.report.groups import grouped
from multitudes.report.row import Row
from multitudes.shell import scoring
from multitudes.shell import trial as trials
from multitudes.shell.budget import Budget
from multitudes.shell.jobs import Job, find_job
from multitudes.shell.scoring import corrupted
from multitudes.shell.trial import Trial

FEW = data.fashion("train").subset(range(96))
TEST = data.fashion("test").subset(range(60))
YACHT = find_job("yacht")
JOBS = {
    "yacht": YACHT,
    "same": replace(YACHT, ood={"itself": YACHT.test}),
    "small": Job(
        name="small",
        network=LeNet,
        train=FEW,
        test=TEST,
        validation=data.fashion("validation").subset(range(32)),
        ood={"digits": data.digits().subset(range(40))},
        recipe=mt.Recipe(epochs=2, batch=32, lr=0.01),
        corruptions=("contrast", "pixelate"),
        corrupted=10,
    ),
}


JOBS["small, last epoch"] = replace(JOBS["small"], epoch="last")


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "load_job", lambda name, root: JOBS[name])


def trial(folder: Path, job: str = "small", method: mt.Method | None = None, budget: str = "2 epochs") -> Trial:
    return Trial(
        job=job,
        name="packed",
        text="packed(members=2)",
        method=method or mt.Packed(members=2),
        seed=3,
        budget=Budget.read(budget),
        folder=folder,
        command="type this",
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trial that ran to its end."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "load_job", lambda name, root: JOBS[name])
        trial(folder).run()
    return folder


def test_a_row_has_all_that_a_report_shows(finished: Path) -> None:
    row = Row.load(finished)
    assert (row.name, row.seed, row.command, row.method) == ("packed", 3, "type this", repr(mt.Packed(members=2)))
    assert row.prediction is not None
    assert row.prediction.count == 2
    assert len(row.prediction) == 60
    assert len(row.ood["digits"]) == 40
    assert row.scores.intervals["accuracy"][0] <= row.scores["accuracy"] <= row.scores.intervals["accuracy"][1]
    assert "digits/auroc/msp" in row.scores
    assert {f"{name}/{s}/ece" for name in ("contrast", "pixelate") for s in range(1, 6)} <= {*row.scores}
    assert set(row.variants) == {"last epoch", "calibrated"}
    assert row.cost["parameters"] == 2 * row.cost["single_parameters"]
    assert row.settings["recipe"]["epochs"] == 2
    assert row.seconds is not None


def test_scores_are_of_the_best_epoch(finished: Path) -> None:
    best = mt.load(finished / "best.multitude", LeNet())
    assert Row.load(finished).scores["nll"] == pytest.approx(mt.score(mt.predict(best, TEST))["nll"], abs=1e-6)


def test_calibration_under_corruption_is_the_mean_over_corruptions(finished: Path) -> None:
    """ECE of a pool would be smaller: one corruption makes the network too sure, another one not sure enough."""
    best, row = mt.load(finished / "best.multitude", LeNet()), Row.load(finished)
    apart = [mt.score(mt.predict(best, one))["ece"] for sets in corrupted(JOBS["small"]).values() for one in sets.values()]
    assert row.scores["cECE"] == pytest.approx(sum(apart) / 10, abs=1e-6)
    (group,) = grouped([row])
    assert sum(group.shifted("ece")[s] for s in range(1, 6)) / 5 == pytest.approx(row.scores["cECE"])


@pytest.mark.slow
def test_variants_are_the_other_epoch_and_the_calibrated_ensemble(tmp_path: Path, finished: Path) -> None:
    row = Row.load(finished)
    last, best = (mt.load(finished / f"{name}.multitude", LeNet()) for name in ("last", "best"))
    assert row.variants["last epoch"]["nll"] == pytest.approx(mt.score(mt.predict(last, TEST))["nll"], abs=1e-6)
    best.calibrator = mt.calibrate(mt.predict(best, JOBS["small"].validation))
    assert row.variants["calibrated"]["nll"] == pytest.approx(mt.score(mt.predict(best, TEST))["nll"], abs=1e-6)
    for name, scores in {"": row.scores, **row.variants}.items():
        assert float(row.losses[name].mean()) == pytest.approx(scores["nll"], abs=1e-6)
    shutil.copytree(finished, tmp_path / "a")
    (tmp_path / "a" / "row.json").unlink()
    other = trial(tmp_path / "a", "small, last epoch").run()
    assert set(other.variants) == {"best epoch", "calibrated"}
    assert other.scores["nll"] == pytest.approx(row.variants["last epoch"]["nll"], abs=1e-6)
    assert other.variants["best epoch"]["nll"] == pytest.approx(row.scores["nll"], abs=1e-6)


def test_a_finished_trial_is_read_and_not_run(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "fit", None)
    assert dict(trial(finished).run().scores) == dict(Row.load(finished).scores)


@pytest.mark.slow
def test_an_interrupted_trial_resumes(tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its number of epochs, although a budget in seconds would now give another, and ends with the same scores."""
    whole = Row.load(finished)
    monkeypatch.setattr(Budget, "epochs", lambda *args: 2)
    part, predict = trial(tmp_path / "part", budget="5 s"), scoring.predict

    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(scoring, "predict", stop)
    with pytest.raises(KeyboardInterrupt):
        part.run()
    assert not part.done()
    monkeypatch.setattr(scoring, "predict", predict)
    monkeypatch.setattr(Budget, "epochs", lambda *args: 9)
    resumed = part.run()
    assert dict(resumed.scores) == dict(whole.scores)
    assert json.loads((tmp_path / "part" / "config.json").read_text())["recipe"]["epochs"] == 2


def test_the_folder_of_another_trial_is_refused(tmp_path: Path, finished: Path) -> None:
    """Its row is, and so is its unfinished run: a row stands for one run by one recipe."""
    folder = shutil.copytree(finished, tmp_path / "a")
    with pytest.raises(mt.FileError, match=r"budget was 2 epochs and is 3 epochs.*--out"):
        trial(folder, budget="3 epochs").run()
    with pytest.raises(mt.FileError, match=r"method was Packed\(members=2"):
        trial(folder, method=mt.Deep(members=2)).run()
    (folder / "row.json").unlink()
    for budget in ("1 epochs", "3 epochs"):
        with pytest.raises(mt.FileError, match=r"holds another trial: recipe.epochs was 2 and is"):
            trial(folder, budget=budget).run()


def test_regression_is_in_the_units_of_the_target(tmp_path: Path) -> None:
    row = trial(tmp_path / "a", "yacht", mt.Deep(members=2), "15 epochs").run()
    assert row.prediction is not None
    _, test = data.uci("yacht", 0)
    assert torch.allclose(row.prediction.targets, test.original(test.targets))
    assert row.scores["rmse"] < float(test.target_std)
    assert set(row.variants) == {"last epoch", "calibrated"}
    assert Row.load(tmp_path / "a").scores["rmse"] == row.scores["rmse"]


def test_ood_sets_are_in_the_same_units(tmp_path: Path) -> None:
    """With the test set as its own out-of-distribution set, every AUROC is a half."""
    row = trial(tmp_path / "a", "same", mt.Deep(members=2), "2 epochs").run()
    aurocs = [row.scores[name] for name in row.scores if "auroc" in name]
    assert aurocs
    assert aurocs == pytest.approx([0.5] * len(aurocs))


def test_milestones_and_warm_up_move_with_the_epochs() -> None:
    recipe = mt.Recipe(epochs=75, schedule="multistep", milestones=(25, 50), warmup=5)
    assert trials.rescaled(recipe, 9) == {"epochs": 9, "milestones": (3, 6), "warmup": pytest.approx(0.6)}
    assert trials.rescaled(recipe, 2) == {"epochs": 2, "milestones": (1,), "warmup": pytest.approx(10 / 75)}


def test_a_network_of_vectors_has_no_corruptions() -> None:
    d = data.Data(torch.randn(8, 3), torch.arange(8) % 2)
    assert Job(name="a", network=lambda: MLP(3, (4,), 2), train=d, test=d).corruptions == ()
