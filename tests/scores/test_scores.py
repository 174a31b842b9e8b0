"""Scores: a mapping that prints, is saved and loaded, and has bootstrap intervals and comparisons."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import multitudes as mt
from multitudes.scores.comparison import Difference
from multitudes.scores.evidence import Settings
from multitudes.scores.meaning import CRITERIA


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def classified(rows: int = 100, strength: float = 2.0, run: int = 0, **options: Any) -> mt.scores.Scores:
    """Scores of a run; all runs have the same targets."""
    targets = torch.arange(rows) % 6
    logits = torch.randn(3, rows, 6, generator=rng(run)) + strength * torch.eye(6)[targets]
    return mt.score(mt.Prediction(logits=logits), targets, **options)


def regressed(errors: Tensor, **options: Any) -> mt.scores.Scores:
    """Scores of one member with these errors."""
    return mt.score(mt.Prediction(mean=errors[None]), torch.zeros_like(errors), **options)


FAR = mt.Prediction(logits=torch.randn(3, 30, 6, generator=rng(9)))


def test_a_mapping_of_floats() -> None:
    """Scores are a read-only mapping in a fixed order."""
    found = classified()
    assert isinstance(found, Mapping)
    assert next(iter(found)) == "accuracy"
    assert len(found) == len(list(found)) == len(dict(found))
    assert all(type(value) is float for value in found.values())
    assert "nll" in found
    assert "beauty" not in found
    assert found.get("beauty", 1.5) == 1.5
    with pytest.raises(TypeError):
        found["nll"] = 0.0  # type: ignore[index]
    with pytest.raises(TypeError):
        hash(found)


def test_a_name_that_is_none() -> None:
    """The error suggests similar names."""
    with pytest.raises(KeyError, match=r"'acuracy'; .*accuracy"):
        classified()["acuracy"]
    with pytest.raises(KeyError, match=r"'ood/auroc/mps'; .*ood/auroc/msp"):
        classified(ood=FAR)["ood/auroc/mps"]
    with pytest.raises(KeyError, match="'zzz'"):
        classified()["zzz"]


def test_equality() -> None:
    """Scores are equal if their JSON is; NaN equals NaN."""
    assert classified() == classified()
    assert classified() != classified(run=1)
    assert classified() != classified().with_intervals(3)
    assert classified() != dict(classified())
    assert mt.scores.Scores({"ece": math.nan}, task="classes") == mt.scores.Scores({"ece": math.nan}, task="classes")


def test_the_printed_table() -> None:
    """Each score has a line with its value, direction and meaning, and its interval if there is one."""
    found = classified(ood=FAR)
    text = str(found)
    for name, value in found.items():
        *_, last = name.split("/")  # a criterion has a row for all that is said by it: of errors, and of each OOD set
        row = last if last in CRITERIA else name
        assert any(f"{value:.4f}" in line for line in text.splitlines() if row in line.split()), name
    assert "interval" not in text
    assert any("nll" in line.split() and "↓" in line and "in nats" in line for line in text.splitlines())
    with_intervals = found.with_intervals(20)
    line = next(line for line in str(with_intervals).splitlines() if "accuracy" in line.split())
    assert "{:.4f} – {:.4f}".format(*with_intervals.intervals["accuracy"]) in line
    assert all(len(line) <= 120 for line in str(with_intervals).splitlines())
    assert "95 %" not in str(found.with_intervals(2, level=0.5))
    assert (
        repr(found)
        == f"Scores(accuracy={found['accuracy']:.4f}, nll={found['nll']:.4f}, ece={found['ece']:.4f}, {len(found)} in all)"
    )
    assert repr(regressed(torch.ones(3))).startswith("Scores(rmse=1.0000")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.1, 1e-300])
def test_json_round_trip(value: float) -> None:
    """JSON holds everything, infinities and NaN included, and is standard JSON."""
    found = mt.scores.Scores(
        {"nll": value, "ece": 1 / 3}, task="classes", settings=Settings(bins=20, drop=5), examples=7,
        intervals={"nll": (value, math.inf)}, members={"nll": [value, 2.0]},
    )  # fmt: skip

    def never(word: str) -> None:
        raise AssertionError(word)

    json.loads(found.json(), parse_constant=never)
    again = mt.scores.Scores.from_json(found.json())
    assert again == found
    assert again.json() == found.json()
    assert (again.task, again.settings, again.examples) == ("classes", Settings(bins=20, drop=5), 7)
    assert again["ece"] == 1 / 3
    torch.testing.assert_close(again["nll"], value, equal_nan=True, rtol=0, atol=0)
    torch.testing.assert_close(again.intervals["nll"], (value, math.inf), equal_nan=True, rtol=0, atol=0)
    assert again.members["nll"][1] == 2.0


def test_save_and_load(tmp_path: Path) -> None:
    """Loaded scores equal the saved ones; without examples they cannot be resampled or merged."""
    found = classified(ood=FAR).with_intervals(5)
    found.save(tmp_path / "scores.json")
    again = mt.scores.Scores.load(tmp_path / "scores.json")
    assert again == found
    assert again.intervals == found.intervals
    assert again.members == found.members
    for call in (again.with_intervals, lambda: again.compare(found), lambda: found.compare(again)):
        with pytest.raises(mt.InputError, match=r"mt\.score"):
            call()
    with pytest.raises(mt.InputError, match=r"mt\.score"):
        mt.scores.Scores.merge([found, again])
    assert again.errors() == found.errors()


@pytest.mark.parametrize(
    ("content", "noun"),
    [
        (None, r"scores\.json"),
        (b"", "JSON"),
        (b"\xff\xfe\x00", r"scores\.json"),
        (b"[]", "JSON"),
        (b"{}", "'format'"),
        (b"3", "JSON"),
        (b'{"format": "1"}', "JSON"),
        (b'{"format": 99}', "update multitudes"),
        (classified().json().encode()[:200], "JSON"),
        (classified().json().replace('"bins": 15', '"bins": 0').encode(), "bins=0"),
        (classified().json().replace('"bins"', '"boxes"').encode(), "boxes"),
        (classified().json().replace('"nll": ', '"nll": "x", "y": ', 1).encode(), "JSON"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes | None, noun: str) -> None:
    """Missing, empty, cut off, of another kind, newer."""
    path = tmp_path / "scores.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(mt.FileError, match=noun):
        mt.scores.Scores.load(path)


def test_intervals_are_seeded_and_hold_the_value() -> None:
    """Intervals contain the score and depend on the seed; sums over all examples have none."""
    found, mi = classified(ood=FAR, intervals=40), "mean_mutual_information"
    for name in (
        "accuracy",
        "nll",
        "brier",
        "member_accuracy",
        "disagreement",
        "kl_diversity",
        "ood/auroc/msp",
        mi,
        f"ood/{mi}",
    ):
        low, high = found.intervals[name]
        assert low < found[name] < high, name
    assert set(found) - set(found.intervals) == {"classwise_ece"}
    assert classified(ood=FAR).with_intervals(40).intervals == found.intervals
    assert classified(ood=FAR, intervals=2, seed=1).intervals != classified(ood=FAR, intervals=2).intervals
    assert dict(found) == dict(classified(ood=FAR))
    assert classified().intervals == {}


@pytest.mark.slow
def test_intervals_are_as_wide_as_theory_says() -> None:
    """The interval of an accuracy is about 1.96 √(p (1 − p) / N), and narrower at a lower level."""
    found = classified(400)
    share = found["accuracy"]
    low, high = found.with_intervals(200).intervals["accuracy"]
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(share * (1 - share) / 400), rel=0.15)
    low, high = found.with_intervals(200, level=0.5).intervals["accuracy"]
    assert (high - low) / 2 == pytest.approx(0.674 * math.sqrt(share * (1 - share) / 400), rel=0.2)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """80 % intervals of a mean absolute error contain its true value √(2/π) in about 80 % of cases."""
    truth, held = math.sqrt(2 / math.pi), 0
    for seed in range(60):
        found = regressed(torch.randn(60, generator=rng(seed))).with_intervals(60, level=0.8, seed=seed)
        low, high = found.intervals["mae"]
        held += low <= truth <= high
    assert 39 <= held <= 57


def test_intervals_of_images_are_of_whole_images() -> None:
    """25 images with equal pixels give the interval of 25 examples, not of 625."""
    logits = torch.randn(2, 25, 3, 5, 5, generator=rng())
    logits[:, :, 0] += torch.where(torch.arange(25) % 2 > 0, 20.0, -20.0)[:, None, None]
    low, high = mt.score(mt.Prediction(logits=logits), torch.zeros(25, 5, 5)).with_intervals(200).intervals["accuracy"]
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(0.25 / 25), rel=0.2)


def test_intervals_of_infinity() -> None:
    """An interval reaches to infinity and is not NaN if some samples leave out the impossible target."""
    probs = torch.tensor([0.6, 0.4]).repeat(2, 4, 1)
    probs[1, :, 0], probs[1, :, 1] = 0.7, 0.3
    probs[:, 0] = torch.tensor([1.0, 0.0])
    low, high = mt.score(mt.Prediction(probs=probs), torch.ones(4)).with_intervals(50).intervals["nll"]
    assert math.isfinite(low)
    assert high == math.inf


def test_a_run_against_itself() -> None:
    """A run compared with itself has difference 0 and p-value 1 in every score."""
    found = classified(ood=FAR).compare(classified(ood=FAR), 20)
    assert set(found) == set(classified(ood=FAR)) - {"classwise_ece"}
    assert set(found.values()) == {Difference(0.0, 0.0, 0.0, 1.0)}


def test_infinite_runs_are_no_different() -> None:
    """Two infinite scores have no difference."""
    probs = torch.tensor([[[1.0, 0.0], [0.3, 0.7]], [[1.0, 0.0], [0.6, 0.4]]])
    found = mt.score(mt.Prediction(probs=probs), torch.tensor([1, 0]))
    same = found.compare(found, 40)["nll"]
    assert (same.value, same.p_value) == (0, 1)


@pytest.mark.slow
def test_a_run_that_is_better() -> None:
    """A better run has a significant difference with the right sign; equally good runs do not."""
    good, bad = classified(300, 3.0), classified(300, 2.0, run=1)
    found = good.compare(bad, 60)
    assert found["accuracy"].value == pytest.approx(good["accuracy"] - bad["accuracy"])
    assert 0 < found["accuracy"].low < found["accuracy"].value < found["accuracy"].high
    assert found["nll"].low < found["nll"].value < found["nll"].high < 0
    assert found["nll"].p_value == pytest.approx(2 / 61)
    back = bad.compare(good, 60)
    assert back["nll"].value == -found["nll"].value
    assert back["nll"].low == pytest.approx(-found["nll"].high)
    doubtful = classified(300, run=2).compare(classified(300, run=1), 60)["nll"]
    assert doubtful.low < 0 < doubtful.high
    assert doubtful.p_value > 0.05


def test_comparisons_are_paired() -> None:
    """Comparisons are paired: errors that differ by 0.01 everywhere differ by 0.01 in every sample."""
    errors = torch.randn(80, generator=rng()).abs().double() * 10
    found = regressed(errors + 0.01).compare(regressed(errors), 100)["mae"]
    assert (found.value, found.low, found.high) == pytest.approx((0.01, 0.01, 0.01))
    assert found.p_value == pytest.approx(2 / 101)
    assert regressed(errors + 0.01).compare(regressed(errors.flip(0)), 100)["mae"].p_value > 0.5


def test_comparisons_are_seeded() -> None:
    """The seed decides the result."""
    good, bad = classified(50), classified(50, run=1)
    assert good.compare(bad, 20) == good.compare(bad, 20)
    assert good.compare(bad, 20) != good.compare(bad, 20, seed=1)


def shifted(rows: int) -> dict[str, Any]:
    """One shifted set."""
    return {"sketches": (FAR[:rows], torch.arange(rows) % 6)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"rows": 50}),
        ({}, {"ood": FAR}),
        ({"ood": FAR[:20]}, {"ood": FAR}),
        ({"ood": {"near": FAR}}, {"ood": {"far": FAR}}),
        ({"shift": shifted(20)}, {"shift": shifted(30)}),
        ({"shift": shifted(30)}, {}),
    ],
)
def test_comparisons_of_other_examples(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Runs with other examples, OOD sets or shifted sets cannot be compared."""
    with pytest.raises(mt.InputError, match="same examples"):
        classified(**one).compare(classified(**other), 2)


def test_a_run_as_a_baseline() -> None:
    """A classification has errors on clean and corrupted data; a regression does not."""
    shift = {"fog": {1: (mt.Prediction(logits=torch.eye(6).expand(3, 6, 6) * 5), torch.arange(6))}}
    found = classified(shift=shift).errors()
    assert found.clean == pytest.approx(1 - classified()["accuracy"])
    assert found.corrupted == {"fog": 0.0}
    with pytest.raises(mt.InputError, match="accuracies"):
        regressed(torch.ones(3)).errors()


def test_intervals_of_calibration_errors_are_around_them() -> None:
    """Resampled datasets have larger calibration errors than the dataset: percentiles alone would lie above the score."""
    probs = torch.rand(60, 3, generator=rng()).softmax(1)
    scores = mt.score(mt.Prediction(probs=probs[None]), torch.multinomial(probs, 1, generator=rng())[:, 0], intervals=200)
    assert scores.evidence is not None
    generator = rng()
    drawn = torch.tensor([scores.evidence.resampled(generator).scores()["ece"] for _ in range(200)])
    assert drawn.mean() > scores["ece"] + 0.01
    low, high = scores.intervals["ece"]
    assert low < scores["ece"] < high
    assert high - low == pytest.approx(float(drawn.quantile(0.975) - drawn.quantile(0.025)), abs=1e-6)
    assert low == pytest.approx(float(drawn.quantile(0.025) - drawn.mean()) + scores["ece"], abs=1e-6)
