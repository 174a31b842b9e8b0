"""Members' values: dtypes, class axes, and the statistics of a piece."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import multitudes as mt
from multitudes.prediction import values

LOGITS = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_numbers() -> None:
    """Lists are accepted; half precision becomes single; gradients are detached."""
    assert values.as_member_tensor("mean", [[1.0, 2.0]]).tolist() == [[1.0, 2.0]]
    assert values.as_member_tensor("mean", torch.ones(1, 1, dtype=torch.bfloat16)).dtype == torch.float32
    assert values.as_member_tensor("mean", torch.ones(1, 1, dtype=torch.float16)).dtype == torch.float32
    assert values.as_member_tensor("mean", torch.ones(1, 1, dtype=torch.float64)).dtype == torch.float64
    assert not values.as_member_tensor("mean", torch.ones(1, 1, requires_grad=True)).requires_grad


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
    """A masked class, certainty, rounding, no noise, no example: accepted as they are, and no probability is NaN."""
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
    """The class axis is counted in one network's output, and moved behind the examples."""
    given = torch.randn(2, 3, 4, 5, 6)
    assert torch.equal(values.with_classes_second(given, axis), given.permute(moved))


def test_pixels_are_examples() -> None:
    """Pixels are flattened row by row, with classes last."""
    given = torch.randn(2, 3, 4, 5, 6)
    found = values.flatten_examples(given, "classes")
    assert found.shape == (2, 90, 4)
    assert torch.equal(found[:, 31], given[:, 1, :, 0, 1])
    assert values.flatten_examples(given, "multilabel").shape == (2, 360)


@pytest.mark.parametrize("scale", [1, 1000])
def test_log_probabilities(scale: float) -> None:
    """From logits and probabilities, for classes and binary tasks; also where probabilities underflow."""
    logits = LOGITS * scale
    torch.testing.assert_close(values.log_probs_of({"logits": logits}), logits.log_softmax(-1))
    one = logits[..., 0]
    both = torch.stack([torch.zeros_like(one), one], -1)
    torch.testing.assert_close(values.log_probs_of({"logits": one}), both.log_softmax(-1))
    torch.testing.assert_close(values.log_probs_of({"probs": LOGITS.softmax(-1)}), LOGITS.log_softmax(-1))
    yes = LOGITS[..., 0].sigmoid()
    torch.testing.assert_close(values.log_probs_of({"probs": yes}).exp(), torch.stack([1 - yes, yes], -1))


def test_two_sides_of_one_logit() -> None:
    """Two classes of a binary logit have its difference and its probabilities."""
    one = LOGITS[..., 0]
    found = values.as_two_classes(one)
    torch.testing.assert_close(found[..., 1] - found[..., 0], one)
    torch.testing.assert_close(found.softmax(-1)[..., 1], one.sigmoid())
    assert values.as_two_classes(LOGITS) is LOGITS


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_the_mixture_and_its_temperature(temperature: float) -> None:
    """The mixture with temperature T is p ∝ p̄^(1/T)."""
    mean = LOGITS.softmax(-1).mean(0)
    power = mean ** (1 / temperature)
    expected = power / power.sum(-1, keepdim=True)
    remap = None if temperature == 1.0 else partial(values.sharpened, temperature=temperature)
    torch.testing.assert_close(values.pooled({"logits": LOGITS}, remap), expected)
    torch.testing.assert_close(values.sharpened(mean.log(), temperature).exp(), expected)
    found = values.describe({"logits": LOGITS}, remap)
    top = expected.sort(-1, descending=True).values
    torch.testing.assert_close(found["confidence"], top[:, 0])
    torch.testing.assert_close(found["margin"], top[:, 0] - top[:, 1])
    torch.testing.assert_close(found["entropy"], -(expected * expected.log()).sum(-1))
    assert found["labels"].tolist() == mean.argmax(-1).tolist()


@pytest.mark.parametrize("given", [{"logits": LOGITS[..., :1]}, {"probs": torch.ones(3, 4, 1)}])
def test_one_class(given: dict[str, Any]) -> None:
    """With one class, confidence and margin are 1 and the entropy is 0."""
    found = values.describe(given, None)
    assert found["confidence"].tolist() == found["margin"].tolist() == [1.0] * 4
    assert found["entropy"].tolist() == found["mutual_information"].tolist() == [0.0] * 4


def test_probabilities_say_less_than_logits() -> None:
    """Only logits have an energy and a largest logit; the other statistics are the same."""
    of_logits, of_probs = (values.describe(given, None) for given in ({"logits": LOGITS}, {"probs": LOGITS.softmax(-1)}))
    assert set(of_logits) - set(of_probs) == {"energy", "max_logit"}
    for name, value in of_probs.items():
        torch.testing.assert_close(of_logits[name], value)
