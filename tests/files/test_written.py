"""Files that earlier versions wrote still load, with the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import multitudes as mt
from multitudes.report.row import Row

WRITTEN = Path(__file__).parent / "written"
OUTPUTS = load_file(WRITTEN / "outputs.safetensors")


def network() -> nn.Module:
    """The network that the ensembles were made of."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4),
    )  # fmt: skip


def test_every_method_is_there() -> None:
    ours = {kind.__name__ for kind in mt.Method.all() if kind.__module__.startswith("multitudes.")}
    assert ours <= {path.stem for path in WRITTEN.glob("*.multitude")}


@pytest.mark.parametrize("path", sorted(WRITTEN.glob("*.multitude")), ids=lambda path: path.stem)
def test_an_ensemble_loads(path: Path) -> None:
    ens = mt.load(path, network())
    assert type(ens.method).__name__ in (path.stem, "MultiHead", "Masksembles")
    torch.testing.assert_close(ens(OUTPUTS["x"]), OUTPUTS[path.stem], rtol=1e-5, atol=1e-6)


def test_a_prediction_loads() -> None:
    pred = mt.Prediction.load(WRITTEN / "prediction.safetensors")
    assert pred.probs.shape == (12, 4)


def test_scores_load() -> None:
    scores = mt.scores.Scores.load(WRITTEN / "scores.json")
    assert 0 <= scores["accuracy"] <= 1
    assert "nll" in scores
    written = json.loads((WRITTEN / "scores.json").read_text())["scores"]
    now = {"ood/auroc/msp": "auroc/msp", "ood/aupr_out/entropy": "aupr/entropy", "ood/mean_mutual_information": "oodmi"}
    assert {key: scores[key] for key in now} == {key: written[old] for key, old in now.items()}
    assert not {"idmi", "oodmi", "auroc/msp", "aupr/msp"} & set(scores)
    assert len(scores) == len(written)


def test_a_row_loads() -> None:
    row = Row.load(WRITTEN / "row")
    assert row.name == "packed"
    assert row.scores["corrupted/1/accuracy"] == 0.5
    assert {key: row.scores[key] for key in ("accuracy", "nll", "ece")}.items() <= dict(mt.score(row.prediction)).items()
