"""The uncertainties of the graph are those of a Prediction."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import multitudes as mt
from multitudes.files.export.mapped import mapped
from multitudes.files.export.outputs import OF_CLASSES, OF_NUMBERS, Meaning, Threshold, chosen_outputs, describe
from multitudes.files.export.verify import _difference, live_outputs
from multitudes.prediction.tasks import values_of
from multitudes.prediction.temperature import Calibrator

SHAPES = {"classes": (3, 6, 4), "binary": (3, 6, 1), "multilabel": (3, 6, 2), "gaussian": (3, 6, 4), "regression": (3, 6, 2)}
CALIBRATORS = [None, {"mixture": 0.7}, {"members": (0.5, 1.0, 2.0)}, {"variance": 2.5}]
WEIGHTS = torch.eye(4) * 1.3 + 0.2 * torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
MAPPINGS = [
    {"how": "vector", "weight": [[0.5, 1.5, 1.0, 2.0]], "bias": [0.1, -0.3, 0.2, 0.0]},
    *({"how": how, "weight": WEIGHTS.tolist(), "bias": [0.1, -0.3, 0.2, 0.0]} for how in ("matrix", "dirichlet")),
]


@pytest.mark.parametrize("calibrator", CALIBRATORS, ids=lambda one: "none" if one is None else next(iter(one)))
@pytest.mark.parametrize("task", SHAPES)
@pytest.mark.parametrize("dense", [False, True], ids=["rows", "pixels"])
def test_outputs_are_those_of_a_prediction(task: str, calibrator: dict[str, Any] | None, dense: bool) -> None:
    number = task in ("gaussian", "regression")
    if calibrator is not None and (("variance" in calibrator) != (task == "gaussian") or task == "regression"):
        pytest.skip("no such calibrator")
    shape = SHAPES[task] + ((2, 5) if dense and task != "binary" else ())
    members = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3
    limit = Threshold(score="variance" if number else "confidence", value=0.6)
    known = tuple(n for n in (OF_NUMBERS if number else OF_CLASSES) if n != "member_variance" or task == "gaussian")
    used = None if calibrator is None else Calibrator(**calibrator)
    meaning = Meaning(task=task, outputs=known, calibrator=used, threshold=limit)
    prediction = mt.Prediction(**values_of(members, task), task=task, calibrator=used)  # type: ignore[arg-type]
    found, expected = describe(members, meaning), live_outputs(prediction, meaning)
    for name in known:
        assert found[name].shape == expected[name].shape, name
        torch.testing.assert_close(
            found[name].double(), expected[name].double(), rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_high_temperatures_of_sure_members() -> None:
    """A probability of 1e-40 has no digits in single precision, but its logarithm counts at T = 20."""
    members = torch.tensor([[[0.0, -90.0, -95.0]], [[0.0, -91.0, -80.0]]])
    used = Calibrator(mixture=20.0)
    meaning = Meaning(task="classes", outputs=("probs", "entropy"), calibrator=used)
    found, expected = describe(members, meaning), live_outputs(mt.Prediction(logits=members, calibrator=used), meaning)
    for name in meaning.outputs:
        torch.testing.assert_close(found[name].double(), expected[name].double(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("score", ["confidence", "entropy"])
def test_a_row_without_numbers_is_abstained_from(score: str) -> None:
    members = torch.tensor([[[torch.nan, 0.0]], [[0.0, 1.0]]])
    meaning = Meaning(task="classes", outputs=("abstain",), threshold=Threshold(score=score, value=0.6))
    assert describe(members, meaning)["abstain"].tolist() == [True]


def test_infinite_logits_differ_by_nothing() -> None:
    same = torch.tensor([-torch.inf, 1.0])
    assert _difference(same, same.clone(), None) == 0
    assert _difference(same, torch.tensor([0.0, 1.0]), None) == torch.inf


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda one: one["how"])
def test_mappings_are_those_of_a_prediction(mapping: Any) -> None:
    members = torch.randn(3, 20, 4, 2, 5, generator=torch.Generator().manual_seed(0)) * 8
    members[0, 0, 1] = -1000.0  # a class that is impossible
    known, used = tuple(name for name in OF_CLASSES if name != "abstain"), Calibrator(mapping=mapping)
    meaning = Meaning(task="classes", outputs=known, calibrator=used)
    prediction = mt.Prediction(logits=members, calibrator=used)
    found, expected = describe(members, meaning, mapped(used)), live_outputs(prediction, meaning)
    for name in known:
        torch.testing.assert_close(
            found[name].double(), expected[name].double(), rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert not torch.equal(found["label"], members.softmax(2).mean(0).argmax(1))  # the mapping moves labels


def test_a_mapping_of_two_classes() -> None:
    used = Calibrator(mapping={"how": "matrix", "weight": [[1.5, 0.1], [0.3, 0.7]], "bias": [0.4, -0.4]})  # type: ignore[arg-type]
    members = torch.randn(3, 6, 1, generator=torch.Generator().manual_seed(0))
    meaning = Meaning(task="binary", outputs=("probs", "label"), calibrator=used)
    expected = mt.Prediction(logits=members, task="binary", calibrator=used)
    found = describe(members, meaning, mapped(used))
    torch.testing.assert_close(found["probs"].double(), expected.probs.double(), rtol=1e-4, atol=1e-5)
    assert torch.equal(found["label"], expected.labels)


def test_isotonic_calibration_is_refused() -> None:
    curve = ([0.0, 1.0], [0.0, 1.0])
    used = Calibrator(mapping={"how": "isotonic", "curves": [curve] * 4, "floor": 0.0})  # type: ignore[arg-type]
    with pytest.raises(mt.InputError, match="'isotonic' cannot be exported"):
        mapped(used)


def test_a_class_that_is_masked_gives_no_nan() -> None:
    members = torch.tensor([[[0.0, -torch.inf, 1.0]], [[0.5, -torch.inf, 100.0]]])
    found = describe(members, Meaning(task="classes", outputs=("probs",)))
    assert all(bool(found[name].isfinite().all()) for name in ("probs", "entropy", "mutual_information", "expected_entropy"))


def test_usual_outputs() -> None:
    usual = chosen_outputs("classes", None, None, False)
    assert usual == ("probs", "label", "confidence", "entropy", "mutual_information", "member_probs")
    assert chosen_outputs("gaussian", None, None, True) == ("mean", "variance", "aleatoric", "epistemic", "member_mean")
