"""Outputs: what is written where, and tables of every task."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import multitudes as mt
from multitudes.shell.outputs import check_output, table


def columns(prediction: mt.Prediction) -> dict[str, list[object]]:
    header, *lines = table(prediction)
    return {name: [line[place] for line in lines] for place, name in enumerate(header)}


def test_numbers_have_a_mean_and_its_uncertainty() -> None:
    """The variance of a mixture is the mean variance plus the variance of the means."""
    pred = mt.Prediction(mean=torch.tensor([[1.0, 2.0], [3.0, 2.0]]), variance=torch.tensor([[1.0, 4.0], [3.0, 4.0]]))
    found = columns(pred)
    numbers = {name: [float(str(value)) for value in own] for name, own in found.items()}
    assert list(found)[1:5] == ["prediction", "std", "aleatoric_std", "epistemic_std"]
    assert numbers["prediction"] == [2.0, 2.0]
    assert numbers["std"] == pytest.approx([3**0.5, 2.0])
    assert numbers["aleatoric_std"] == pytest.approx([2**0.5, 2.0])
    assert numbers["epistemic_std"] == pytest.approx([1.0, 0.0]), "standard deviations, in the unit of the prediction"


def test_numbers_have_an_interval() -> None:
    """Two equal members are one normal distribution, whose 95 % lie within 1.96 standard deviations."""
    found = columns(mt.Prediction(mean=torch.full((2, 1), 2.0), variance=torch.full((2, 1), 4.0)))
    assert float(str(found["lower_95"][0])) == pytest.approx(2 - 1.959964 * 2, abs=1e-3)
    assert float(str(found["upper_95"][0])) == pytest.approx(2 + 1.959964 * 2, abs=1e-3)
    for members in (1, 2):
        assert "lower_95" not in columns(mt.Prediction(mean=torch.randn(members, 3))), "without variances there is none"


def test_several_labels_have_columns_of_their_own() -> None:
    logits = torch.tensor([[[0.0, 2.0, -2.0]], [[0.0, 2.0, -2.0]]])
    found = columns(mt.Prediction(logits=logits, task="multilabel", targets=torch.tensor([[0, 1, 1]])))
    assert (found["target_2"], found["prediction_1"], found["prediction_2"]) == ([1], [1], [0])
    assert float(str(found["probability_1"][0])) == pytest.approx(1 / (1 + 2.718281828**-2), abs=1e-6)


def test_one_number_of_several_has_no_number_in_its_name() -> None:
    assert list(columns(mt.Prediction(mean=torch.zeros(2, 3, 1), targets=torch.zeros(3, 1))))[1:3] == ["target", "prediction"]


def test_one_logit_has_one_probability() -> None:
    found = columns(mt.Prediction(logits=torch.zeros(2, 3), task="binary"))
    assert [float(str(value)) for value in found["probability"]] == [0.5, 0.5, 0.5]


def test_pixels_are_no_table() -> None:
    with pytest.raises(mt.InputError, match=r"4 × 5 predictions.*\.safetensors"):
        columns(mt.Prediction(logits=torch.randn(2, 3, 6, 4, 5)))


def test_a_folder_is_made_and_none_is_overwritten(tmp_path: Path) -> None:
    check_output(tmp_path / "a" / "b.csv", force=False)
    assert (tmp_path / "a").is_dir()
    with pytest.raises(mt.FileError, match="is a folder"):
        check_output(tmp_path / "a", force=True)
    (tmp_path / "file").touch()
    with pytest.raises(mt.FileError, match=r"cannot create the folder .*--out"):
        check_output(tmp_path / "file" / "b.csv", force=False)
