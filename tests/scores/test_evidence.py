"""Evidence: merged parts, bootstrap samples of whole examples, and scores as functions of columns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import multitudes as mt
from multitudes.scores.evidence import Evidence, Settings, errors_in
from multitudes.scores.shift import Errors


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def evidence(task: str = "regression", settings: Settings | None = None, **columns: Tensor) -> Evidence:
    """Evidence with these columns."""
    return Evidence(task, settings or Settings(), columns)


def scored(logits: Tensor, targets: Tensor, **options: Any) -> Evidence:
    """The evidence of a classification."""
    found = mt.score(mt.Prediction(logits=logits), targets, **options).evidence
    assert found is not None
    return found


def test_scores_are_functions_of_columns() -> None:
    """Scores follow from columns, and are left out if their column is missing."""
    found = evidence(squares=torch.tensor([4.0, 16.0]), crps=torch.tensor([1.0, 2.0])).scores()
    assert found == pytest.approx({"rmse": 10**0.5, "mae": 3.0, "crps": 1.5})
    found = evidence(
        "classes", Settings(bins=2), correct=torch.tensor([1.0, 0.0]), confidence=torch.tensor([0.8, 0.6]),
        nll=torch.tensor([0.5, 1.5]), brier=torch.tensor([0.2, 0.4]),
    ).scores()  # fmt: skip
    expected = {"accuracy": 0.5, "nll": 1.0, "brier": 0.3, "ece": 0.2, "mce": 0.2, "ace": 0.4, "aurc": 0.25}
    expected |= {"error_auroc/msp": 1.0, "error_aupr/msp": 1.0}
    assert found == pytest.approx(expected)


def test_means_are_in_double_precision() -> None:
    """The mean of a million float32 values is computed in double precision."""
    column = torch.full((1_000_000,), 0.1)
    assert evidence(squares=column, crps=column).scores()["crps"] == pytest.approx(float(column[0]), abs=1e-12)


def test_each_member_by_itself() -> None:
    """Each member has its RMSE and its NLL."""
    found = evidence(member_squares=torch.tensor([[1.0, 4.0], [9.0, 4.0]]), member_nll=torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    assert found.per_member()["rmse"] == pytest.approx([5**0.5, 2.0])
    assert found.per_member()["nll"] == pytest.approx([2.0, 4.0])


def test_parts_are_put_together() -> None:
    """Columns are concatenated, sums added, and examples renumbered."""
    parts = [
        Evidence(
            "classes", Settings(), {"correct": torch.ones(3), "example": torch.tensor([0, 0, 1])},
            {"confusion": torch.eye(2)}, {"msp": torch.zeros(3)}, {"far": {"msp": torch.ones(n)}},
        )
        for n in (2, 5)
    ]  # fmt: skip
    found = Evidence.cat(parts)
    assert len(found) == 6
    assert found.columns["example"].tolist() == [0, 0, 1, 2, 2, 3]
    assert found.sums["confusion"].tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert len(found.in_distribution["msp"]) == 6
    assert len(found.ood["far"]["msp"]) == 7


LOGITS, TARGETS = torch.randn(3, 8, 6, generator=rng()), torch.arange(8) % 6


@pytest.mark.parametrize(
    "other",
    [
        lambda: scored(LOGITS, TARGETS, bins=10),
        lambda: scored(LOGITS, TARGETS, drop=1),
        lambda: scored(LOGITS[:, :, :5], TARGETS % 5),
        lambda: scored(torch.cat([LOGITS, LOGITS], 2), TARGETS),
        lambda: scored(LOGITS[:2], TARGETS),
        lambda: scored(LOGITS, TARGETS, ood=mt.Prediction(logits=LOGITS)),
        lambda: scored(LOGITS, TARGETS, shift={"fog": {1: (mt.Prediction(logits=LOGITS), TARGETS)}}),
        lambda: mt.score(mt.Prediction(mean=torch.randn(3, 8)), torch.zeros(8)).evidence,
    ],
    ids=["bins", "drop", "top5", "classes", "members", "ood", "shift", "task"],
)
def test_parts_of_different_kinds(other: Any) -> None:
    """Parts of other settings, members, classes, sets or tasks cannot be merged."""
    with pytest.raises(mt.InputError, match="merge"):
        Evidence.cat([scored(LOGITS, TARGETS), other()])


def test_rows_are_drawn_together() -> None:
    """All columns of an example are drawn together, those of OOD sets too; the seed decides which."""
    rows, others = torch.arange(50.0), torch.arange(1000.0, 1030.0)
    found = Evidence(
        "regression", Settings(), {"squares": rows, "width": -rows}, {"classwise": torch.ones(1)},
        {"variance": rows}, {"far": {"variance": others, "epistemic": -others}},
    )  # fmt: skip
    drawn = found.resampled(rng(1))
    assert len(drawn) == 50
    assert torch.equal(drawn.columns["width"], -drawn.columns["squares"])
    assert torch.equal(drawn.in_distribution["variance"], drawn.columns["squares"])
    assert torch.equal(drawn.ood["far"]["epistemic"], -drawn.ood["far"]["variance"])
    assert len(drawn.ood["far"]["variance"]) == 30
    assert set(drawn.columns["squares"].tolist()) < set(rows.tolist())
    assert drawn.sums == {}
    assert torch.equal(found.resampled(rng(1)).columns["squares"], drawn.columns["squares"])
    assert not torch.equal(found.resampled(rng(2)).columns["squares"], drawn.columns["squares"])


def test_all_rows_are_as_likely() -> None:
    """Each is drawn once on average."""
    found = evidence(squares=torch.arange(10))
    times = torch.stack([found.resampled(rng(seed)).columns["squares"].bincount(minlength=10) for seed in range(400)])
    np.testing.assert_allclose(times.double().mean(0), np.ones(10), atol=0.25)
    np.testing.assert_allclose(times.double().var(0), np.full(10, 0.9), atol=0.3)


def test_images_are_drawn_whole() -> None:
    """Each image is drawn with all of its pixels, also if images have different numbers of them."""
    example = torch.tensor([0, 0, 0, 1, 3, 3])
    sizes = {0: 3, 1: 1, 3: 2}
    found = evidence("classes", correct=torch.arange(6.0), example=example)
    for seed in range(20):
        drawn = found.resampled(rng(seed))
        number = drawn.columns["example"]
        assert int(number.max()) <= 2
        for one in range(int(number.max()) + 1):
            pixels = [int(v) for v in drawn.columns["correct"][number == one]]
            image = int(example[pixels[0]])
            whole = (example == image).nonzero().flatten().tolist()
            assert pixels == whole * (len(pixels) // sizes[image])


def dense(count: int = 20) -> tuple[Tensor, Tensor]:
    """Images, in every second of which members are certain."""
    logits = torch.randn(2, count, 3, 5, 5, generator=rng())
    logits[:, ::2, 0] += 20
    return logits, torch.zeros(count, 5, 5, dtype=torch.int64)


def test_a_bootstrap_of_pixels_draws_images() -> None:
    """The share of certain images is a multiple of 1/20 in every sample, in and out of distribution."""
    logits, targets = dense()
    found = scored(logits, targets, ood=mt.Prediction(logits=logits))
    for seed in range(10):
        drawn = found.resampled(rng(seed))
        for column in (drawn.columns["msp"], drawn.in_distribution["msp"], drawn.ood["ood"]["msp"]):
            sure = float((column < 1e-4).double().mean()) * 20
            assert sure == pytest.approx(round(sure), abs=1e-9)


def test_a_bootstrap_of_labels_and_of_several_numbers_draws_examples() -> None:
    """All labels or numbers of an example are drawn together."""
    wanted = torch.arange(20)[:, None].repeat(1, 4)
    several = mt.score(mt.Prediction(mean=torch.randn(2, 20, 4) * 0.1), wanted.double()).evidence
    labels = torch.where(wanted % 2 > 0, 9.0, -9.0) + torch.randn(2, 20, 4)
    multi = mt.score(mt.Prediction(logits=labels, task="multilabel"), torch.ones(20, 4)).evidence
    for seed in range(5):
        right = multi.resampled(rng(seed)).columns["correct"].reshape(20, 4)
        assert bool((right == right[:, :1]).all())
        squares = several.resampled(rng(seed)).columns["squares"].sqrt().round().reshape(20, 4)
        assert bool((squares == squares[:, :1]).all())


def test_a_bootstrap_of_frames_draws_anchors() -> None:
    """Anchors are drawn with all of their frames: each has a wrong one, so stability is 0 in every sample."""
    logits = torch.randn(3, 60, 6, generator=rng())
    logits[:, :, 0] += torch.where(torch.arange(60) % 6 == 0, -20, 20)
    frames = (mt.Prediction(logits=logits), torch.zeros(60), torch.arange(60) // 6)
    found = scored(LOGITS, TARGETS, shift={"video": frames})
    assert found.scores()["video/stability"] == 0
    assert [found.resampled(rng(seed)).scores()["video/stability"] for seed in range(5)] == [0.0] * 5


def test_an_anchor_that_is_drawn_twice_counts_twice() -> None:
    """The frames of each anchor are all right or all wrong, so stability is accuracy, in every sample too."""
    logits = torch.randn(3, 40, 6, generator=rng())
    logits[:, :, 0] += torch.where(torch.arange(40) // 4 % 2 == 0, -20, 20)
    frames = (mt.Prediction(logits=logits), torch.zeros(40), torch.arange(40) // 4)
    found = scored(LOGITS, TARGETS, shift={"video": frames})
    shares = set()
    for seed in range(8):
        drawn = found.resampled(rng(seed)).scores()
        assert drawn["video/stability"] == pytest.approx(drawn["video/rAcc"])
        shares.add(round(drawn["video/stability"], 6))
    assert len(shares) > 2


def test_frames_of_one_anchor_in_two_parts() -> None:
    """Frames of one anchor in two parts belong to that anchor after a merge."""
    logits = torch.randn(3, 12, 6, generator=rng())
    logits[:, :, 0] += 20
    targets, anchors = (torch.arange(12) == 0).long(), torch.arange(12) % 3  # the first frame is wrong

    def frames(rows: slice) -> Evidence:
        shift = {"video": (mt.Prediction(logits=logits[:, rows]), targets[rows], anchors[rows])}
        return scored(LOGITS, TARGETS, shift=shift)

    whole, parts = frames(slice(12)), Evidence.cat([frames(slice(5)), frames(slice(5, 12))])
    assert parts.scores()["video/stability"] == whole.scores()["video/stability"] == pytest.approx(2 / 3)


def test_shifted_sets_are_drawn_too() -> None:
    """Every shifted set is resampled."""
    shift = {"fog": {1: (mt.Prediction(logits=LOGITS), TARGETS)}, "sketches": (mt.Prediction(logits=LOGITS), TARGETS)}
    found = scored(LOGITS, TARGETS, shift=shift)
    drawn = found.resampled(rng(1))
    assert {key: len(one) for key, one in drawn.shifts.items()} == {("fog", 1): 8, ("sketches", None): 8}
    assert not torch.equal(drawn.shifts["fog", 1].columns["nll"], found.shifts["fog", 1].columns["nll"])


def test_errors_of_corruptions() -> None:
    """Errors are averaged over severities; other scores do not count as corruptions."""
    found = errors_in({
        "accuracy": 0.9, "fog/1/accuracy": 0.8, "fog/5/accuracy": 0.4, "fog/5/nll": 3.0, "snow/3/accuracy": 0.5,
        "sketches/rAcc": 0.1, "ood/auroc/msp": 0.9, "cAcc": 0.7,
    })  # fmt: skip
    assert found.clean == pytest.approx(0.1)
    assert found.corrupted == pytest.approx({"fog": 0.4, "snow": 0.5})
    assert isinstance(found, Errors)


def test_evidence_is_not_changed_by_what_is_made_of_it() -> None:
    """Resampling and merging do not change the evidence."""
    found = scored(LOGITS, TARGETS, ood=mt.Prediction(logits=LOGITS))
    before = dataclasses.replace(found, columns={name: column.clone() for name, column in found.columns.items()}).scores()
    found.resampled(rng())
    Evidence.cat([found, found])
    assert found.scores() == before
