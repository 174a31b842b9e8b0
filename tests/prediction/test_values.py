"""Members' values: what is refused and how it is said, and what is made of a piece."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import multitudes as mt
from multitudes.prediction import values

LOGITS = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def marked(value: float, axis: int = 1, at: int = 2) -> Tensor:
    """Values of which an example or a member is this."""
    return LOGITS.abs().index_fill(axis, torch.tensor(at), value)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.ones(2, 3, dtype=torch.int64), "logits must be real numbers, not torch.int64"),
        (torch.ones(2, 3, dtype=torch.complex64), "must be real numbers"),
        (torch.ones(3), r"must be \[M, N, ...\], members first: \[3\]; of one network, logits\[None\]"),
        (torch.ones(0, 3), r"\[0, 3\]: there is no member"),
    ],
)
def test_what_are_no_values(given: Tensor, says: str) -> None:
    """Whole numbers, one axis, no member."""
    with pytest.raises(mt.InputError, match=says):
        values.as_member_tensor("logits", given)


def test_numbers() -> None:
    """Lists too; half precision becomes single; gradients are left behind."""
    assert values.as_member_tensor("mean", [[1.0, 2.0]]).tolist() == [[1.0, 2.0]]
    assert values.as_member_tensor("mean", torch.ones(1, 1, dtype=torch.bfloat16)).dtype == torch.float32
    assert values.as_member_tensor("mean", torch.ones(1, 1, dtype=torch.float16)).dtype == torch.float32
    assert values.as_member_tensor("mean", torch.ones(1, 1, dtype=torch.float64)).dtype == torch.float64
    assert not values.as_member_tensor("mean", torch.ones(1, 1, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    ("task", "given", "says"),
    [
        ("classes", ["mean"], r"task='classes' takes logits= or probs= of the members, and was given mean"),
        ("classes", ["logits", "probs"], "was given logits and probs"),
        ("binary", [], "was given nothing"),
        ("gaussian", ["mean"], "takes mean= and variance= of the members, and was given mean"),
        ("gaussian", ["logits"], "was given logits"),
        ("regression", ["probs"], "takes mean= of the members, and was given probs"),
        ("regression", ["variance"], "was given variance"),
    ],
)
def test_values_that_the_task_has_no_meaning_for(task: str, given: list[str], says: str) -> None:
    """With what it takes."""
    with pytest.raises(mt.InputError, match=says):
        values.check_names(task, dict.fromkeys(given, LOGITS))


def test_mean_and_variance_of_one_shape() -> None:
    """Nothing is broadcast."""
    with pytest.raises(mt.InputError, match=r"one shape: \[3, 4, 5\] and \[3, 4, 1\]"):
        values.check_names("gaussian", {"mean": LOGITS, "variance": LOGITS[..., :1]})
    values.check_names("regression", {"mean": LOGITS, "variance": LOGITS})


@pytest.mark.parametrize(
    ("name", "task", "given", "says"),
    [
        ("logits", "classes", marked(math.nan), "logits has a NaN, first for member 0 and example 2"),
        ("mean", "regression", marked(math.nan, 0, 1), "mean has a NaN, first for member 1 and example 0"),
        ("logits", "classes", marked(math.inf), "logits have an infinity"),
        ("logits", "classes", marked(-math.inf), "logits"),
        ("mean", "regression", marked(-math.inf), "mean has an infinity"),
        ("variance", "gaussian", marked(math.inf), "variance has an infinity"),
        ("variance", "gaussian", marked(-0.25), "a variance is -0.25: .* not their logs"),
        ("probs", "classes", LOGITS, r"and a probability is between 0 and 1: are these logits=\?"),
        ("probs", "multilabel", torch.full((2, 3), 1.5), "probs has 1.5"),
        ("probs", "binary", torch.full((2, 3), -0.5), "probs has -0.5"),
        ("probs", "classes", LOGITS.softmax(2) * 0.9, "of member 0 and example 0 sum to 0.9 and not to 1: divide"),
        ("probs", "classes", torch.full((1, 1, 3, 2), 0.25), "sum to 0.75 and not to 1: .*task='multilabel'"),
    ],
)  # fmt: skip
def test_values_that_mean_nothing(name: str, task: str, given: Tensor, says: str) -> None:
    """Named, with the place. A row of logits that are all −∞ is the softmax of nothing."""
    with pytest.raises(mt.InputError, match=says):
        values.check_values(name, given, task)


@pytest.mark.parametrize(
    ("name", "task", "given"),
    [
        ("logits", "classes", torch.tensor([[[0.0, -math.inf]]])),
        ("probs", "classes", torch.tensor([[[1.0, 0.0]]])),
        ("probs", "classes", torch.tensor([[[1 + 1e-7, -1e-7]]])),
        ("probs", "classes", torch.full((1, 1, 1000), 0.001)),
        ("probs", "multilabel", torch.tensor([[[1.0, 1.0]]])),
        ("variance", "gaussian", torch.zeros(1, 1)),
        ("probs", "classes", torch.zeros(2, 0, 3)),
    ],
)
def test_values_at_the_edge_of_meaning(name: str, task: str, given: Tensor) -> None:
    """A class that is ruled out, certainty, rounding, no noise, no example: taken as they are, and predicted with."""
    before = given.clone()
    values.check_values(name, given, task)
    assert torch.equal(given, before)
    whole = {name: given, **({"mean": torch.zeros_like(given)} if name == "variance" else {})}
    made = mt.Prediction(**whole, task=task)  # type: ignore[arg-type]
    assert not bool((made.std if name == "variance" else made.probs).isnan().any())


@pytest.mark.parametrize(
    ("axis", "moved"), [(1, (0, 1, 2, 3, 4)), (-1, (0, 1, 4, 2, 3)), (3, (0, 1, 4, 2, 3)), (2, (0, 1, 3, 2, 4))]
)
def test_where_the_classes_are(axis: int, moved: tuple[int, ...]) -> None:
    """Counted in one network's output, and moved behind the examples."""
    given = torch.randn(2, 3, 4, 5, 6)
    assert torch.equal(values.with_classes_second(given, axis), given.permute(moved))


@pytest.mark.parametrize("axis", [0, -3, 3, -4])
def test_where_no_classes_are(axis: int) -> None:
    """Examples, and axes that there are not."""
    with pytest.raises(mt.InputError, match=f"class_axis={axis} is no axis of classes in an output of 3 axes"):
        values.with_classes_second(torch.randn(2, 3, 4, 5), axis)


def test_scores_without_classes() -> None:
    """One logit is a binary task."""
    with pytest.raises(mt.InputError, match=r"\[M, N, K, ...\]: \[2, 3\]; for one logit, task='binary'"):
        values.with_classes_second(torch.randn(2, 3), 1)


def test_pixels_are_examples() -> None:
    """Row by row, classes last."""
    given = torch.randn(2, 3, 4, 5, 6)
    found = values.flatten_examples(given, "classes")
    assert found.shape == (2, 90, 4)
    assert torch.equal(found[:, 31], given[:, 1, :, 0, 1])
    assert values.flatten_examples(given, "multilabel").shape == (2, 360)


@pytest.mark.parametrize("scale", [1, 1000])
def test_log_probabilities(scale: float) -> None:
    """Of logits and of probabilities, of classes and of yes and no; also where probabilities are too small for numbers."""
    logits = LOGITS * scale
    torch.testing.assert_close(values.log_probs_of({"logits": logits}), logits.log_softmax(-1))
    one = logits[..., 0]
    both = torch.stack([torch.zeros_like(one), one], -1)
    torch.testing.assert_close(values.log_probs_of({"logits": one}), both.log_softmax(-1))
    torch.testing.assert_close(values.log_probs_of({"probs": LOGITS.softmax(-1)}), LOGITS.log_softmax(-1))
    yes = LOGITS[..., 0].sigmoid()
    torch.testing.assert_close(values.log_probs_of({"probs": yes}).exp(), torch.stack([1 - yes, yes], -1))


def test_two_sides_of_one_logit() -> None:
    """Have its difference, and the same softmax."""
    one = LOGITS[..., 0]
    found = values.as_two_classes(one)
    torch.testing.assert_close(found[..., 1] - found[..., 0], one)
    torch.testing.assert_close(found.softmax(-1)[..., 1], one.sigmoid())
    assert values.as_two_classes(LOGITS) is LOGITS


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_the_mixture_and_its_temperature(temperature: float) -> None:
    """p ∝ p̄^(1/T), by numbers."""
    mean = LOGITS.softmax(-1).mean(0)
    power = mean ** (1 / temperature)
    expected = power / power.sum(-1, keepdim=True)
    torch.testing.assert_close(values.pooled({"logits": LOGITS}, temperature), expected)
    torch.testing.assert_close(values.sharpened(LOGITS.log_softmax(-1), temperature).exp(), expected)
    found = values.describe({"logits": LOGITS}, temperature)
    top = expected.sort(-1, descending=True).values
    torch.testing.assert_close(found["confidence"], top[:, 0])
    torch.testing.assert_close(found["margin"], top[:, 0] - top[:, 1])
    torch.testing.assert_close(found["entropy"], -(expected * expected.log()).sum(-1))
    assert found["labels"].tolist() == mean.argmax(-1).tolist()


@pytest.mark.parametrize("given", [{"logits": LOGITS[..., :1]}, {"probs": torch.ones(3, 4, 1)}])
def test_one_class(given: dict[str, Any]) -> None:
    """Is certain, by a margin of all there is."""
    found = values.describe(given, 1.0)
    assert found["confidence"].tolist() == found["margin"].tolist() == [1.0] * 4
    assert found["entropy"].tolist() == found["mutual_information"].tolist() == [0.0] * 4


def test_probabilities_say_less_than_logits() -> None:
    """Energy and the largest logit are of logits only; all else is the same."""
    of_logits, of_probs = (values.describe(given, 1.0) for given in ({"logits": LOGITS}, {"probs": LOGITS.softmax(-1)}))
    assert set(of_logits) - set(of_probs) == {"energy", "max_logit"}
    for name, value in of_probs.items():
        torch.testing.assert_close(of_logits[name], value)


def test_a_class_that_is_ruled_out() -> None:
    """By every member with a logit of −∞: nothing that is said becomes NaN."""
    masked = LOGITS.index_fill(2, torch.tensor(4), -math.inf)
    assert [name for name, value in values.describe({"logits": masked}, 1.0).items() if bool(value.isnan().any())] == []
