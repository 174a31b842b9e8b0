"""Files that earlier versions wrote still load, with the same numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import multitudes as mt
from multitudes import storage
from multitudes.files.export import about
from multitudes.report import row
from multitudes.report.row import Row
from multitudes.scores import scores
from multitudes.shell.serve import description
from multitudes.shell.serve.graph import load_graph

WRITTEN = Path(__file__).parent / "written"
OUTPUTS = load_file(WRITTEN / "outputs.safetensors")


def network() -> nn.Module:
    """The network that the ensembles were made of."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(12, 12, 3, padding=1),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4),
    )  # fmt: skip


def test_every_method_is_there() -> None:
    ours = {kind.__name__ for kind in mt.Method.all() if kind.__module__.startswith("multitudes.methods.")}
    assert ours <= {path.stem for path in WRITTEN.glob("*.multitude")}


@pytest.mark.parametrize("path", sorted(WRITTEN.glob("*.multitude")), ids=lambda path: path.stem)
def test_an_ensemble_loads(path: Path) -> None:
    ens = mt.load(path, network())
    assert type(ens.method).__name__ in (path.stem, "MultiHead", "Masksembles")
    torch.testing.assert_close(ens(OUTPUTS["x"]), OUTPUTS[path.stem], rtol=1e-5, atol=1e-6)


def _format(path: Path, kind: str | None = None) -> int:
    if kind is None:
        return int(json.loads(path.read_text())["format"])
    with safe_open(path, framework="numpy") as file:
        return int(json.loads(file.metadata()[kind])["format"])


def test_every_version_of_a_format_is_there() -> None:
    """A new version of a format needs files of it here, and those of the earlier ones stay."""
    ensembles = {_format(path, "multitudes") for path in WRITTEN.glob("*.multitude")}
    predictions = {_format(path, "prediction") for path in WRITTEN.glob("prediction*.safetensors")}
    tensors = {_format(path, "row") for path in WRITTEN.glob("row*/row.safetensors")}
    assert ensembles == predictions == tensors == set(range(1, storage.FORMAT + 1))
    assert {_format(path) for path in WRITTEN.glob("row*/row.json")} == set(range(1, row.FORMAT + 1))
    assert {_format(path) for path in WRITTEN.glob("scores*.json")} == set(range(1, scores.FORMAT + 1))
    assert about.FORMAT == description.FORMAT == 1  # export.onnx


def test_newer_rows_and_scores_load() -> None:
    assert Row.load(WRITTEN / "row-2").scores == Row.load(WRITTEN / "row").scores
    assert dict(mt.scores.Scores.load(WRITTEN / "scores-2.json")) == dict(mt.scores.Scores.load(WRITTEN / "scores.json"))


def test_an_exported_file_is_served() -> None:
    pytest.importorskip("onnxruntime")
    graph = load_graph(WRITTEN / "export.onnx", 1)
    found = graph.run({graph.inputs[0].name: np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)})
    np.testing.assert_allclose(found["probs"][0], [0.4110911, 0.3722259, 0.2166830], atol=1e-5)
    assert graph.about.labels == ("a", "b", "c")
    assert found["label"].tolist() == [0, 1, 0]
    assert found["abstain"].all()
    assert graph.notes == ()


def test_a_prediction_loads() -> None:
    pred = mt.Prediction.load(WRITTEN / "prediction.safetensors")
    assert pred.probs.shape == (12, 4)


def test_scores_load() -> None:
    found = mt.scores.Scores.load(WRITTEN / "scores.json")
    assert 0 <= found["accuracy"] <= 1
    assert "nll" in found
    written = json.loads((WRITTEN / "scores.json").read_text())["scores"]
    now = {"ood/auroc/msp": "auroc/msp", "ood/aupr_out/entropy": "aupr/entropy", "ood/mean_mutual_information": "oodmi"}
    assert {key: found[key] for key in now} == {key: written[old] for key, old in now.items()}
    assert not {"idmi", "oodmi", "auroc/msp", "aupr/msp"} & set(found)
    assert len(found) == len(written)


def test_a_row_loads() -> None:
    one = Row.load(WRITTEN / "row")
    assert one.name == "packed"
    assert one.scores["corrupted/1/accuracy"] == 0.5
    assert {key: one.scores[key] for key in ("accuracy", "nll", "ece")}.items() <= dict(mt.score(one.prediction)).items()
