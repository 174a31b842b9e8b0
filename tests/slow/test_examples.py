"""The examples that need nothing but the package and its test tools: they run, and what they print is right."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """What an example's main returns, and what it prints."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example.main(), capsys.readouterr().out


def test_conformal(capsys: pytest.CaptureFixture[str]) -> None:
    """Coverage is near the level; where noise varies, widths by the ensemble's uncertainty are smaller and fairer."""
    found, printed = run("conformal", capsys)
    assert {name for name, values in found.items() if not 0.86 <= values["coverage"] <= 0.94} == set()
    assert found["thr"]["size"] <= found["aps"]["size"]
    assert found["scaled"]["width"] < 0.9 * found["split"]["width"]
    assert found["cqr"]["width"] < 0.9 * found["split"]["width"]
    assert f"{found['aps']['coverage']:.3f}" in printed


def test_ood_features(capsys: pytest.CaptureFixture[str]) -> None:
    """Distances of features find unknown digits too, and every score is printed."""
    found, printed = run("ood_features", capsys)
    assert {"msp", "energy", "mahalanobis", "knn", "vim"} <= set(found)
    assert all(found[name] > 0.8 for name in ("entropy", "mahalanobis", "knn", "vim"))
    assert f"{found['vim']:.4f}" in printed


@pytest.mark.filterwarnings("ignore")  # what uncertainty-toolbox calls
def test_uncertainty_toolbox(capsys: pytest.CaptureFixture[str]) -> None:
    """Its scores of our mean and deviation are ours; both recalibrations make the deviations fit."""
    found, printed = run("regression_uncertainty_toolbox", capsys)
    theirs, ours = found["as trained"], found["mt.score"]
    assert theirs["rmse"] == pytest.approx(ours["rmse"], rel=1e-5)
    assert theirs["nll"] == pytest.approx(ours["gaussian_nll"], rel=1e-4)
    assert theirs["crps"] == pytest.approx(ours["crps"], rel=0.05)  # ours is that of the mixture itself
    assert found["mt.calibrate"]["nll"] <= theirs["nll"] + 0.01
    assert f"{ours['rmse']:.4f}" in printed


@pytest.mark.filterwarnings("ignore")  # what Lightning calls
def test_lightning(capsys: pytest.CaptureFixture[str]) -> None:
    """Scores are logged, and the checkpoint is the ensemble."""
    found, printed = run("lightning_trainer", capsys)
    assert found["val_accuracy"] == pytest.approx(found["loaded"], abs=1e-6)
    assert found["loaded"] > 0.6
    assert f"{found['val_nll']:.4f}" in printed


@pytest.mark.filterwarnings("ignore")  # what transformers calls
def test_hugging_face(capsys: pytest.CaptureFixture[str]) -> None:
    """Members of both ensembles learn the word; one class-1 sentence in four does not have it."""
    found, printed = run("hf_trainer", capsys)
    assert all(0.8 < scores["eval_accuracy"] < 0.9 for scores in found.values())
    assert all(scores["eval_mean_mutual_information"] > 0 for scores in found.values())
    assert str(round(found["lora"]["eval_nll"], 4)) in printed


@pytest.mark.filterwarnings("ignore")  # what scikit-learn calls
def test_sklearn(capsys: pytest.CaptureFixture[str]) -> None:
    """A grid search chooses a method, and intervals cover about what they should."""
    found, printed = run("sklearn_table", capsys)
    assert found["nll"] < 0.3
    assert 0.8 <= found["covered"] <= 1
    assert str(found["covered"]) in printed
