"""Rows: saving and loading, and refused files."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from dataclasses import replace
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
from multitudes.storage import digest, save_tensors

TARGETS = torch.arange(12) % 3


def classes(count: int = 12, targets: torch.Tensor | None = TARGETS) -> Prediction:
    return Prediction(logits=torch.randn(2, count, 3), targets=targets)


def row(name: str = "packed", seed: int = 0, **more: Any) -> Row:
    pred = classes()
    return Row(name=name, method="Packed(members=2)", seed=seed, scores=mt.score(pred), prediction=pred, **more)


def test_a_saved_row_loads(tmp_path: Path) -> None:
    given = row(
        ood={"svhn": classes(5, None), "a/b ü": classes(4, None)}, variants={"calibrated": mt.score(classes())},
        losses={"": torch.tensor([0.5, math.inf]), "best epoch": torch.ones(3)},
        cost={"parameters": 12, "latency": math.nan}, settings={"recipe": {"epochs": 3, "rates": [0.1]}, "data": "x"},
        command="multitudes bench 'ü'", seconds=1.5,
    )  # fmt: skip
    given.save(tmp_path / "a" / "b")
    found = Row.load(tmp_path / "a" / "b")
    assert given.prediction is not None
    assert found.prediction is not None
    for field in ("name", "method", "seed", "scores", "variants", "settings", "command", "seconds"):
        assert getattr(found, field) == getattr(given, field), field
    assert found.cost["parameters"] == 12
    assert list(found.losses) == ["", "best epoch"]
    assert torch.equal(found.losses[""], given.losses[""])
    assert math.isnan(found.cost["latency"])
    assert list(found.ood) == ["svhn", "a/b ü"]
    for one, other in [(found.prediction, given.prediction), *zip(found.ood.values(), given.ood.values(), strict=True)]:
        torch.testing.assert_close(one.members.logits, other.members.logits, rtol=0, atol=0)
    torch.testing.assert_close(found.prediction.targets, TARGETS)
    assert mt.score(found.prediction) == given.scores


def test_pooled_scores_of_older_rows_are_kept_where_they_are_means() -> None:
    """Rows of format 1 held scores of all corruptions pooled. Accuracy and NLL of a pool are means; its ECE is not."""
    scores = Row.load(Path(__file__).parent / "written" / "format-1").scores
    pooled = {key: value for key, value in scores.items() if key.startswith("corrupted/")}
    assert pooled == {
        "corrupted/1/accuracy": 0.75, "corrupted/1/nll": 0.5, "corrupted/5/accuracy": 0.25, "corrupted/5/nll": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize("task", ["binary", "multilabel", "gaussian", "regression", "moments", "number moments", "calibrated"])
def test_every_kind_of_prediction_loads(task: str, tmp_path: Path) -> None:
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
    ("change", "noun"),
    [
        ({"name": " "}, "name=' '"),
        ({"scores": {"accuracy": 1.0}}, r"mt\.score"),
        ({"prediction": torch.zeros(3)}, r"prediction .*mt\.predict"),
        ({"ood": {"svhn": None}}, "ood='svhn' .*NoneType"),
        ({"variants": {"calibrated": {}}}, "variants.*'calibrated'.*dict"),
        ({"settings": {"a": torch.zeros(1)}}, "settings .*JSON"),
        ({"settings": {"a": math.nan}}, "settings .*JSON"),
        ({"name": "", "scores": {}}, "name=.*; scores"),
    ],
)
def test_wrong_fields_are_refused(change: dict[str, Any], noun: str) -> None:
    """One message names all wrong fields."""
    with pytest.raises(InputError, match=noun):
        dataclasses.replace(row(), **change)


def alter_json(folder: Path) -> None:
    path = folder / "row.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))


def flip_a_bit(folder: Path) -> None:
    path = folder / "row.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def take_tensors_of_another_run(folder: Path) -> None:
    row(seed=1).save(folder / "other")
    (folder / "row.safetensors").write_bytes((folder / "other" / "row.safetensors").read_bytes())


def leave_out_fields(folder: Path) -> None:
    """Writes an incomplete row.json with a digest that fits, as another program might."""
    text = json.dumps({"format": 1, "name": "a"})
    (folder / "row.json").write_text(text)
    save_tensors(folder / "row.safetensors", "row", {"row": digest({}, text), "predictions": []}, {})


def write_json(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "row.json").write_text(text)


@pytest.mark.parametrize(
    ("damage", "noun"),
    [
        (lambda folder: (folder / "row.json").unlink(), r"row\.json"),
        (lambda folder: (folder / "row.safetensors").unlink(), r"row\.safetensors"),
        *((write_json(text), r"row\.json .*a row") for text in ("", "[]", '{"name": "a"}', '{"format": "x"}', "[" * 100_000)),
        (write_json('{"format": 99}'), "update multitudes"),
        (alter_json, r"row\.json was altered"),
        (take_tensors_of_another_run, r"row\.json .*another run"),
        (flip_a_bit, r"row\.safetensors .*altered"),
        (lambda folder: (folder / "row.safetensors").write_bytes(b"short"), r"row\.safetensors .*safetensors file"),
        (lambda folder: classes().save(folder / "row.safetensors"), r"row\.safetensors .*row"),
        (leave_out_fields, "KeyError"),
    ],
)
def test_damaged_files_are_refused(damage: Callable[[Path], object], noun: str, tmp_path: Path) -> None:
    row().save(tmp_path)
    damage(tmp_path)
    with pytest.raises(FileError, match=noun):
        Row.load(tmp_path)


def test_saving_again_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    row(seed=0).save(tmp_path)
    row(seed=1).save(tmp_path)
    assert Row.load(tmp_path).seed == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["row.json", "row.safetensors"]


def test_a_write_error_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot write"):
        row().save(tmp_path / "file" / "row")


def test_rows_are_found_below_and_sorted(tmp_path: Path) -> None:
    row("b", 1).save(tmp_path / "x" / "1")
    row("b", 0).save(tmp_path / "y" / "deep" / "down")
    row("a", 7).save(tmp_path / "z")
    found = load_rows([tmp_path / "x", tmp_path / "z", tmp_path / "y"])
    assert [(one.name, one.seed) for one in found] == [("a", 7), ("b", 0), ("b", 1)]
    assert len(load_rows([tmp_path, tmp_path / "z"])) == 3, "a row that is found twice is loaded once"
    assert [one.name for one in load_rows(tmp_path / "z")] == ["a"]
    assert [one.name for one in load_rows([str(tmp_path / "z" / "row.json")])] == ["a"]


def test_jobs_are_in_the_order_of_the_folders(tmp_path: Path) -> None:
    for name, method in (("wine", "single"), ("beer", "deep"), ("wine", "deep")):
        replace(row(method, 0), settings={"data": name, "job": f"{name}:job"}).save(tmp_path / name / method)
    for names in (["wine", "beer"], ["beer", "wine"]):
        found = load_rows([tmp_path / name for name in names])
        assert list(dict.fromkeys(one.settings["data"] for one in found)) == names
        assert [one.name for one in found if one.settings["data"] == "wine"] == ["deep", "single"]


def test_folders_without_rows_are_refused(tmp_path: Path) -> None:
    for folders in ([tmp_path], []):
        with pytest.raises(FileError, match=r"row\.json"):
            load_rows(folders)
    with pytest.raises(FileError, match=r"nowhere, .*else"):
        load_rows([tmp_path / "nowhere", tmp_path / "else"])


@pytest.mark.slow
def test_scores_of_features_are_kept_and_shown(tmp_path: Path) -> None:
    """OOD scores that were added to predictions are in the file of a row, and the page has them."""
    test, far = (classes(12).with_criteria({"mahalanobis": torch.rand(12) + off, "knn": torch.rand(12)}) for off in (0, 2))
    given = Row(name="packed", method="Packed()", scores=mt.score(test, ood={"far": far}), prediction=test, ood={"far": far})
    given.save(tmp_path)
    read = Row.load(tmp_path)
    assert read.prediction is not None
    torch.testing.assert_close(read.prediction.criteria["mahalanobis"], test.criteria["mahalanobis"])
    torch.testing.assert_close(read.ood["far"].criteria["knn"], far.criteria["knn"])
    assert read.scores["far/auroc/mahalanobis"] == 1.0
    assert "mahalanobis" in mt.report([read], tmp_path / "report.html").read_text(encoding="utf-8")
