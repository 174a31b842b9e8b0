"""Conformal sets and intervals: exact quantiles, coverage of made-up exchangeable data, and refusals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import multitudes as mt
from multitudes.scores.conformal import Conformal, Intervals, Sets, rank_of_quantile


def classes(count: int, seed: int, members: int = 3, k: int = 6) -> mt.Prediction:
    """Members that are overconfident, and labels drawn from flatter probabilities."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(count, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(truth.softmax(1), 1, generator=generator).squeeze(1)
    noise = 0.5 * torch.randn(members, count, k, generator=generator, dtype=torch.float64)
    return mt.Prediction(logits=3 * truth + noise, targets=labels)


def numbers(count: int, seed: int, members: int = 3, shape: tuple[int, ...] = ()) -> mt.Prediction:
    """Noise of varying size, which members predict half as large as it is."""
    generator = torch.Generator().manual_seed(seed)
    std = 0.2 + torch.rand((count, *shape), generator=generator, dtype=torch.float64)
    mean = torch.randn((members, count, *shape), generator=generator, dtype=torch.float64) * 0.1
    targets = std * torch.randn((count, *shape), generator=generator, dtype=torch.float64)
    return mt.Prediction(mean=mean, variance=(std / 2).square().expand_as(mean), targets=targets)


def sets_of(within: Conformal, prediction: mt.Prediction) -> Sets:
    found = within(prediction)
    assert isinstance(found, Sets)
    return found


def intervals_of(within: Conformal, prediction: mt.Prediction) -> Intervals:
    found = within(prediction)
    assert isinstance(found, Intervals)
    return found


@pytest.mark.parametrize(
    ("count", "level", "rank"),
    [(9, 0.9, 9), (10, 0.9, 10), (19, 0.9, 18), (19, 0.95, 19), (99, 0.7, 70), (999, 0.9, 900), (1000, 0.9, 901), (1, 0.5, 1)],
)
def test_the_rank_is_exact(count: int, level: float, rank: int) -> None:
    """⌈(n + 1) level⌉ of the level as it is typed: no rounding of doubles moves it."""
    assert rank_of_quantile(count, level) == rank


@pytest.mark.parametrize(("level", "needed"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1)])
def test_too_few_examples_are_refused(level: float, needed: int) -> None:
    held_out = classes(needed, 0)
    mt.conformal(held_out, level=level)
    with pytest.raises(mt.InputError, match=f"at least {needed} held-out examples .* there are {needed - 1}"):
        mt.conformal(held_out[: needed - 1], level=level)


def test_scores_by_hand() -> None:
    """One example, p = (0.5, 0.3, 0.2), by the formulas of the papers with u = 1."""
    probs = torch.tensor([[[0.3, 0.5, 0.2]]], dtype=torch.float64)
    prediction = mt.Prediction(probs=probs, targets=[0])
    expected = {"thr": [0.7, 0.5, 0.8], "aps": [0.8, 0.5, 1.0], "raps": [0.9, 0.5, 1.2]}
    for score, values in expected.items():
        within = mt.conformal(prediction, level=0.5, score=score, seed=None)  # type: ignore[arg-type]
        torch.testing.assert_close(within.rule.of_classes(prediction)[0], torch.tensor(values, dtype=torch.float64))
        assert float(within.quantile) == pytest.approx(values[0])
    assert sets_of(within, prediction)[0] == [1, 0]


def test_the_random_share_is_one_of_an_example() -> None:
    """Between the sum without the class and the sum with it; the same seed draws the same, another one does not."""
    held_out, test = classes(200, 0), classes(50, 1)
    exact = mt.conformal(held_out, seed=None)
    drawn = mt.conformal(held_out, seed=3)
    whole, part = exact.rule.of_classes(test), drawn.rule.of_classes(test)
    u = 1 - (whole - part) / test.logs.exp()
    assert bool(((u > -1e-9) & (u < 1 + 1e-9)).all())
    clear = test.logs.exp().amin(1) > 1e-3
    torch.testing.assert_close(u[clear].amin(1), u[clear].amax(1), rtol=0, atol=1e-9)
    assert torch.equal(sets_of(drawn, test).contains, sets_of(mt.conformal(held_out, seed=3), test).contains)
    assert float(drawn.quantile) != float(mt.conformal(held_out, seed=4).quantile)
    assert not torch.equal(drawn.rule.shares(50, True), drawn.rule.shares(50, False))


@pytest.mark.slow
@pytest.mark.parametrize("score", ["thr", "aps", "raps", "split", "scaled", "cqr"])
def test_marginal_coverage(score: Any) -> None:
    """Scores without ties cover k / (n + 1) of new examples on average over held-out sets: within four standard errors.

    The coverage given one held-out set is Beta(k, n + 1 − k); m new examples add binomial noise.
    """
    n, new, runs, level = 50, 100, 300, 0.9
    share = rank_of_quantile(n, level) / (n + 1)
    found = []
    if score in ("split", "scaled", "cqr"):
        both = numbers(n + new, 0, shape=(runs,))  # each number has a quantile of its own
        found.append(mt.conformal(both[:n], level=level, score=score)(both[n:]).scores()["coverage"])
    else:
        for seed in range(runs):
            both = classes(n + new, seed)
            within = mt.conformal(both[:n], level=level, score=score, seed=seed)
            found.append(within(both[n:]).scores()["coverage"])
    error = math.sqrt((share * (1 - share) / (n + 2) + share * (1 - share) / new) / runs)
    assert abs(sum(found) / len(found) - share) <= 4 * error < 1 / (n + 1)  # a rank more or less would be seen


@pytest.mark.parametrize("score", ["thr", "aps", "raps"])
def test_ties_cover_at_least_the_level(score: Any) -> None:
    """Probabilities of two values only, so most scores are equal: all that equal the quantile are in the set."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(200):
        labels = torch.randint(3, (140,), generator=generator)
        right = torch.rand(140, generator=generator) < 0.7
        shown = torch.where(right, labels, (labels + 1) % 3)
        probs = torch.full((1, 140, 3), 0.2, dtype=torch.float64).scatter_(2, shown[None, :, None], 0.6)
        both = mt.Prediction(probs=probs, targets=labels)
        found.append(mt.conformal(both[:40], level=0.8, score=score, seed=None)(both[40:]).scores()["coverage"])
    assert sum(found) / len(found) >= 0.8


def test_intervals_are_of_their_forms() -> None:
    held_out, test = numbers(200, 0), numbers(100, 1)
    split = intervals_of(mt.conformal(held_out, score="split"), test)
    torch.testing.assert_close(split.widths, split.widths[:1].expand(100))
    scaled = intervals_of(mt.conformal(held_out, score="scaled"), test)
    ratio = scaled.widths / test.std
    torch.testing.assert_close(ratio, ratio[:1].expand(100))
    low, high = test.interval(0.9)
    moved = intervals_of(mt.conformal(held_out), test)  # cqr
    torch.testing.assert_close(low - moved.low, moved.high - high)
    torch.testing.assert_close((low - moved.low)[:1].expand(100), low - moved.low)


def test_several_numbers_have_a_quantile_each() -> None:
    held_out, test = numbers(400, 0, shape=(2,)), numbers(400, 1, shape=(2,))
    within = mt.conformal(held_out, score="split")
    assert within.quantile.shape == (2,)
    one = mt.Prediction(mean=held_out.members.mean[..., 1], targets=held_out.targets[:, 1])  # type: ignore[index]
    assert float(within.quantile[1]) == float(mt.conformal(one, score="split").quantile)
    assert 0.85 < within(test).scores()["coverage"] < 0.95


def test_scores_of_sets() -> None:
    """Coverage 3/4, sizes 0, 1, 2, 2; of the sets of two classes one misses."""
    probs = torch.full((1, 4, 3), 1 / 3)
    contains = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1]]).bool()
    sets = Sets(mt.Prediction(probs=probs, targets=[-100, 0, 2, 1]), contains)
    assert sets.scores() == {"coverage": 2 / 3, "size": 5 / 3, "size_stratified_coverage": 0.5}
    assert Sets(mt.Prediction(probs=probs), contains).scores([0, 0, 0, 1])["size_stratified_coverage"] == 0.0
    assert sets.sizes.tolist() == [0, 1, 2, 2]


def test_scores_of_intervals() -> None:
    high = torch.tensor([1.0, 1, 1, 2, 2, 2, 3, 3, 3], dtype=torch.float64)
    targets = torch.tensor([0.5, 0.5, 2, 1, 1, 1, 1, 1, 1], dtype=torch.float64)
    found = Intervals(mt.Prediction(mean=torch.zeros(1, 9).double(), targets=targets), torch.zeros(9).double(), high).scores()
    assert found == {"coverage": 8 / 9, "width": 2.0, "size_stratified_coverage": 2 / 3}


def test_equal_widths_are_one_group() -> None:
    held_out, test = numbers(100, 0), numbers(100, 1)
    found = mt.conformal(held_out, score="split")(test).scores()
    assert found["size_stratified_coverage"] == found["coverage"]


def test_binary_labels_and_ignored_ones() -> None:
    logits = torch.randn(2, 60, generator=torch.Generator().manual_seed(0))
    labels = (logits.mean(0) > 0).long()
    labels[:5] = 7
    within = mt.conformal(mt.Prediction(logits=logits, task="binary", targets=labels, ignore=7), score="thr")
    assert within.examples == 55
    assert sets_of(within, mt.Prediction(logits=logits, task="binary")).contains.shape == (60, 2)


def test_a_moments_only_prediction_has_the_same_sets() -> None:
    x = torch.randn(60, 4)
    ens = mt.ensemble(torch.nn.Linear(4, 3), mt.Deep(members=2), x[:2], seed=0)
    pairs = torch.utils.data.TensorDataset(x, torch.arange(60) % 3)
    whole, moments = (mt.predict(ens, pairs, moments_only=moments) for moments in (False, True))
    found = [sets_of(mt.conformal(one), one).contains for one in (whole, moments)]
    assert torch.equal(*found)


def pixels() -> mt.Prediction:
    return mt.Prediction(logits=torch.randn(2, 20, 3, 4, 4), targets=torch.zeros(20, 4, 4).long())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mt.conformal(classes(50, 0), score="lac"), "score='lac' is unknown: choose one of thr, aps, raps .thr is LAC"),  # type: ignore[arg-type]
        (lambda: mt.conformal(classes(50, 0), score="cqr"), "is for numbers, not for task='classes'"),
        (lambda: mt.conformal(numbers(50, 0), score="aps"), "is for classes, not for task='gaussian'"),
        (lambda: mt.conformal(classes(50, 0), level=90), "level=90: level must be"),
        (lambda: mt.conformal(pixels()), "one label per example"),
        (lambda: mt.conformal(classes(50, 0), torch.zeros(49).long()), "targets"),
        (lambda: mt.conformal(classes(50, 0), alpha=0.1), "there is no such argument"),  # type: ignore[call-arg]
        (lambda: mt.conformal(classes(50, 0))(classes(50, 0, k=5)), "number of classes is 5, but 6"),
        (lambda: mt.conformal(classes(50, 0))(numbers(50, 0)), "task is gaussian, but classes"),
        (lambda: mt.conformal(classes(50, 0))(classes(50, 0, members=2)), "number of members is 2, but 3"),
        (lambda: mt.conformal(numbers(50, 0))(numbers(50, 0, shape=(2,))), r"shape of an example is \[2\], but \[\]"),
        (lambda: mt.conformal(classes(50, 0))(torch.zeros(3, 6)), "takes a Prediction, not a Tensor"),  # type: ignore[arg-type]
        (
            lambda: mt.conformal(mt.Prediction(mean=torch.zeros(2, 20), targets=torch.ones(20)), score="scaled"),
            "std, which is 0",
        ),
        (lambda: mt.conformal(mt.Prediction(logits=torch.zeros(2, 20, 3))), "there are no targets"),
    ],
)
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(mt.InputError, match=message):
        call()


def test_another_calibrator_is_refused() -> None:
    held_out, test = classes(100, 0), classes(20, 1)
    calibrator = mt.calibrate(held_out)
    within = mt.conformal(held_out.calibrated(calibrator))
    within(test.calibrated(calibrator))
    with pytest.raises(mt.InputError, match="the calibrator is None, but"):
        within(test)


def test_shown() -> None:
    held_out: mt.Prediction = classes(100, 0)
    within = mt.conformal(held_out, score="thr")
    assert str(within).startswith("Conformal(thr: level 0.9, quantile 0.9")
    assert "100 held-out examples" in str(within)
    assert str(within(held_out)).startswith("Sets(100 examples, 6 classes, mean size ")
    wide: Tensor = intervals_of(mt.conformal(numbers(100, 0)), numbers(5, 0)).widths
    assert wide.shape == (5,)


@pytest.mark.parametrize("count", [1, 2, 8, 50])
def test_the_level_that_a_refusal_offers_is_accepted(count: int) -> None:
    """8 / 9 is 0.889 when rounded, which 8 examples do not reach."""
    with pytest.raises(mt.InputError, match="at most") as refusal:
        rank_of_quantile(count, 0.999)
    assert rank_of_quantile(count, float(str(refusal.value).partition("or level=")[2].split()[0])) == count
