"""Rows: what is saved comes back, and what is damaged, foreign or torn apart is told."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import multitudes as mt
from multitudes.errors import FileError, InputError
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.temperature import Calibrator
from multitudes.report.row import Row, load_rows
from multitudes.scores.scores import Scores

TARGETS = torch.arange(12) % 3


def classes(count: int = 12, targets: torch.Tensor | None = TARGETS) -> Prediction:
    return Prediction(logits=torch.randn(2, count, 3), targets=targets)


def row(name: str = "packed", seed: int = 0, **more: Any) -> Row:
    pred = classes()
    return Row(name=name, method="Packed(members=2)", seed=seed, scores=mt.score(pred), prediction=pred, **more)


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    given = row(
        ood={"svhn": classes(5, None), "a/b ü": classes(4, None)}, shifted={1: {"accuracy": 0.5}, 5: {"nll": math.inf}},
        cost={"parameters": 12, "latency": math.nan}, settings={"recipe": {"epochs": 3, "rates": [0.1]}, "data": "x"},
        command="multitudes bench 'ü'", seconds=1.5,
    )  # fmt: skip
    given.save(tmp_path / "a" / "b")
    found = Row.load(tmp_path / "a" / "b")
    assert given.prediction is not None
    assert found.prediction is not None
    for field in ("name", "method", "seed", "scores", "shifted", "settings", "command", "seconds"):
        assert getattr(found, field) == getattr(given, field), field
    assert found.cost["parameters"] == 12
    assert math.isnan(found.cost["latency"])
    assert list(found.ood) == ["svhn", "a/b ü"]
    for one, other in [(found.prediction, given.prediction), *zip(found.ood.values(), given.ood.values(), strict=True)]:
        torch.testing.assert_close(one.members.logits, other.members.logits, rtol=0, atol=0)
    torch.testing.assert_close(found.prediction.targets, TARGETS)
    assert mt.score(found.prediction) == given.scores


@pytest.mark.parametrize("task", ["binary", "multilabel", "gaussian", "regression", "moments", "number moments", "calibrated"])
def test_every_kind_of_prediction_comes_back(task: str, tmp_path: Path) -> None:
    values = torch.randn(3, 6, 2)
    pred = {
        "binary": lambda: Prediction(logits=values[..., 0], task="binary"),
        "multilabel": lambda: Prediction(probs=values.sigmoid(), task="multilabel"),
        "gaussian": lambda: Prediction(mean=values, variance=values.exp()),
        "regression": lambda: Prediction(mean=values),
        "moments": lambda: Prediction.of_moments(
            "classes", 3, {**Prediction(logits=values).described(), "logs": Prediction(logits=values).logs}
        ),
        "number moments": lambda: Prediction.of_moments(
            "gaussian", 3, {"mean": values[0], "aleatoric": values[0].exp(), "epistemic": values.var(0)}
        ),
        "calibrated": lambda: Prediction(logits=values, calibrator=Calibrator(mixture=2.0)),
    }[task]()
    scores = Scores({"accuracy": 0.5}, task=pred.task)
    Row(name="a", method="", scores=scores, prediction=pred).save(tmp_path)
    found = Row.load(tmp_path).prediction
    assert found is not None
    assert (found.task, found.count, found.shape, found.has_members) == (pred.task, 3, pred.shape, pred.has_members)
    assert (found.temperature, found.calibrator) == (pred.temperature, pred.calibrator)
    for name in ("probs", "entropy") if pred.task in ("classes", "binary", "multilabel") else ("mean", "variance"):
        torch.testing.assert_close(getattr(found, name), getattr(pred, name), rtol=0, atol=0)


def test_a_row_may_hold_scores_alone(tmp_path: Path) -> None:
    Row(name="a", method="", scores=Scores({"accuracy": math.nan}, task="classes")).save(tmp_path)
    found = Row.load(tmp_path)
    assert found.prediction is None
    assert math.isnan(found.scores["accuracy"])
    assert not found.ood


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": " "}, "needs a name"),
        ({"scores": {"accuracy": 1.0}}, "mt.score"),
        ({"prediction": torch.zeros(3)}, "mt.predict"),
        ({"ood": {"svhn": None}}, "ood='svhn' is NoneType"),
        ({"shifted": {"fog": {}}}, "severities"),
        ({"settings": {"a": torch.zeros(1)}}, "JSON"),
        ({"settings": {"a": math.nan}}, "JSON"),
    ],
)
def test_what_is_no_row_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        dataclasses.replace(row(), **change)


def test_all_wrong_is_said_at_once() -> None:
    with pytest.raises(InputError, match=r"name=.*; scores are dict"):
        Row(name="", method="", scores={})  # type: ignore[arg-type]


def test_a_missing_row_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no row in"):
        Row.load(tmp_path)
    row().save(tmp_path)
    (tmp_path / "row.safetensors").unlink()
    with pytest.raises(FileError, match=r"there is no file .*row\.safetensors"):
        Row.load(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", '{"name": "a"}', '{"format": "x"}', "[" * 100_000])
def test_foreign_json_is_told(text: str, tmp_path: Path) -> None:
    row().save(tmp_path)
    (tmp_path / "row.json").write_text(text)
    with pytest.raises(FileError, match=r"row\.json is damaged or does not describe a row"):
        Row.load(tmp_path)


def test_a_newer_format_is_told(tmp_path: Path) -> None:
    row().save(tmp_path)
    (tmp_path / "row.json").write_text('{"format": 99}')
    with pytest.raises(FileError, match="update multitudes"):
        Row.load(tmp_path)


def test_altered_json_is_told(tmp_path: Path) -> None:
    row().save(tmp_path)
    path = tmp_path / "row.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(FileError, match="altered"):
        Row.load(tmp_path)


def test_altered_tensors_are_told(tmp_path: Path) -> None:
    row().save(tmp_path)
    path = tmp_path / "row.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(FileError, match="damaged or was altered"):
        Row.load(tmp_path)
    path.write_bytes(data[:50])
    with pytest.raises(FileError, match="not a whole safetensors file"):
        Row.load(tmp_path)


def test_files_of_two_runs_are_told(tmp_path: Path) -> None:
    row(seed=0).save(tmp_path / "0")
    row(seed=1).save(tmp_path / "1")
    (tmp_path / "0" / "row.safetensors").write_bytes((tmp_path / "1" / "row.safetensors").read_bytes())
    with pytest.raises(FileError, match="not of the same run"):
        Row.load(tmp_path / "0")


def test_a_file_of_another_kind_is_told(tmp_path: Path) -> None:
    row().save(tmp_path)
    classes().save(tmp_path / "row.safetensors")
    with pytest.raises(FileError, match="holds no row"):
        Row.load(tmp_path)


def test_a_description_that_lacks_something_is_told(tmp_path: Path) -> None:
    """As one that another program wrote, with a digest that fits."""
    import hashlib

    from multitudes.storage import save_tensors

    text = json.dumps({"format": 1, "name": "a"}).encode()
    (tmp_path / "row.json").write_bytes(text)
    save_tensors(tmp_path / "row.safetensors", "row", {"row": hashlib.sha256(text).hexdigest(), "predictions": []}, {})
    with pytest.raises(FileError, match="does not hold a row: KeyError"):
        Row.load(tmp_path)


def test_saving_again_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    row(seed=0).save(tmp_path)
    row(seed=1).save(tmp_path)
    assert Row.load(tmp_path).seed == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["row.json", "row.safetensors"]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write"):
        row().save(tmp_path / "file" / "row")


def test_rows_are_found_below_and_sorted(tmp_path: Path) -> None:
    row("b", 1).save(tmp_path / "x" / "1")
    row("b", 0).save(tmp_path / "y" / "deep" / "down")
    row("a", 7).save(tmp_path / "z")
    found = load_rows([tmp_path / "x", tmp_path / "z", tmp_path / "y"])
    assert [(one.name, one.seed) for one in found] == [("a", 7), ("b", 0), ("b", 1)]
    assert len(load_rows([tmp_path, tmp_path / "z"])) == 3, "what is named twice is one"
    assert [one.name for one in load_rows(tmp_path / "z")] == ["a"]
    assert [one.name for one in load_rows([str(tmp_path / "z" / "row.json")])] == ["a"]


def test_no_rows_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no row in"):
        load_rows([tmp_path])
    with pytest.raises(FileError, match="there is no row in"):
        load_rows([])
    with pytest.raises(FileError, match=r"there is no .*nowhere, no .*else"):
        load_rows([tmp_path / "nowhere", tmp_path / "else"])
