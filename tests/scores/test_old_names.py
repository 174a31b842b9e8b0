"""Scores that were written under other names are read under those that they have now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import multitudes as mt
from multitudes.report.row import Row
from multitudes.scores.meaning import MEANINGS
from multitudes.scores.old_names import current_names
from multitudes.scores.scores import Scores

RESULTS = sorted((Path(__file__).parents[2] / "results").glob("cifar*/*.json"))

OLD = {
    "format": 1, "task": "gaussian", "settings": {"bins": 15, "drop": 0, "level": 0.95}, "examples": 3, "members": {},
    "scores": {"rmse": 1.0, "lpd": -0.5, "auroc/variance": 0.7, "aupr/variance": 0.6},
    "intervals": {"lpd": ["-inf", -0.3], "aupr/variance": [0.5, 0.8]},
}  # fmt: skip
"""Scores as they were written when the only OOD set had no name."""


def test_each_old_name_has_a_new_one() -> None:
    old = {"idmi": 1, "oodmi": 2, "svhn/oodmi": 3, "aupr/msp": 4, "svhn/aupr/energy": 5, "fpr95_in/msp": 6, "rAcc": 7}
    old |= {"accuracy": 8, "error_aupr/msp": 9, "class_aupr": 10, "fog/3/nll": 11, "sketches/rNLL": 12, "stability": 13}
    assert current_names(old, ood="far") == {
        "mean_mutual_information": 1, "far/mean_mutual_information": 2, "svhn/mean_mutual_information": 3,
        "far/aupr_out/msp": 4, "svhn/aupr_out/energy": 5, "far/fpr95_in/msp": 6, "shifted/rAcc": 7, "accuracy": 8,
        "error_aupr/msp": 9, "class_aupr": 10, "fog/3/nll": 11, "sketches/rNLL": 12, "shifted/stability": 13,
    }  # fmt: skip


def test_what_is_written_now_keeps_its_names() -> None:
    pred, targets = mt.Prediction(logits=torch.randn(3, 12, 6)), torch.arange(12) % 6
    own = mt.score(pred, targets, ood={"aupr": pred, "b": pred}, shift={"idmi": (pred, targets)})
    assert Scores.from_json(own.json()) == own
    assert current_names(own).keys() >= own.keys() - {key for key in own if key.startswith("idmi/")}


def test_old_scores_of_numbers_gain_their_nll() -> None:
    """Its interval is that of the log density, turned round."""
    scores = Scores.from_json(json.dumps(OLD))
    assert dict(scores) == {"rmse": 1.0, "lpd": -0.5, "nll": 0.5, "ood/auroc/variance": 0.7, "ood/aupr_out/variance": 0.6}
    assert scores.intervals == {
        "lpd": (-torch.inf, -0.3), "nll": (0.3, torch.inf), "ood/aupr_out/variance": (0.5, 0.8)
    }  # fmt: skip


def test_an_old_row_gives_its_scores_the_name_of_its_ood_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pred = mt.Prediction(mean=torch.randn(2, 3), variance=torch.ones(2, 3), targets=torch.zeros(3))
    row = Row(
        name="a", method="", scores=mt.score(pred), variants={"last epoch": mt.score(pred)}, prediction=pred, ood={"far": pred}
    )
    with monkeypatch.context() as patch:
        patch.setattr(Scores, "json", lambda self: json.dumps(OLD))
        row.save(tmp_path)
    read = Row.load(tmp_path)
    assert (read.scores["far/auroc/variance"], read.variants["last epoch"]["far/aupr_out/variance"]) == (0.7, 0.6)
    assert "ood/auroc/variance" not in read.scores


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_published_results_have_names_that_are_explained(path: Path) -> None:
    written = json.loads(path.read_text())["scores"]
    read = current_names(written, ood="svhn")
    assert list(read.values()) == list(written.values())
    assert read["svhn/aupr_out/msp"] == written["aupr/msp"]
    assert all(set(key.split("/")) & set(MEANINGS) for key in read)
