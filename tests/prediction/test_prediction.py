"""Prediction: every statistic against its formula, for every task and shape; selection, files and draws."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from laws.compare import assert_exact, convert
from safetensors import safe_open
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal
from zoo import ZOO

import multitudes as mt
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.temperature import Calibrator
from multitudes.storage import digest

M, N, K = 4, 9, 5
GENERATOR = torch.Generator().manual_seed(3)
LOGITS = 2 * torch.randn(M, N, K, dtype=torch.float64, generator=GENERATOR)
PIXELS = 2 * torch.randn(M, N, K, 2, 3, dtype=torch.float64, generator=GENERATOR)
ONE = 2 * torch.randn(M, N, dtype=torch.float64, generator=GENERATOR)
LABELS = 2 * torch.randn(M, N, 3, dtype=torch.float64, generator=GENERATOR)
MEAN = torch.randn(M, N, 2, dtype=torch.float64, generator=GENERATOR)
VARIANCE = torch.rand(M, N, 2, dtype=torch.float64, generator=GENERATOR) + 0.1
TARGETS = torch.randint(K, (N,), generator=GENERATOR)

SAID = ["labels", "confidence", "margin", "entropy", "expected_entropy", "mutual_information", "variation_ratio"]
SAID += ["disagreement", "max_logit", "energy"]

KINDS: dict[str, Callable[[], Prediction]] = {
    "classes": lambda: Prediction(logits=LOGITS, targets=TARGETS),
    "probs": lambda: Prediction(probs=LOGITS.softmax(2)),
    "pixels": lambda: Prediction(logits=PIXELS),
    "tokens": lambda: Prediction(logits=LOGITS[:, :, None, :], class_axis=-1),
    "binary": lambda: Prediction(logits=ONE, task="binary"),
    "multilabel": lambda: Prediction(logits=LABELS, task="multilabel"),
    "gaussian": lambda: Prediction(mean=MEAN, variance=VARIANCE),
    "regression": lambda: Prediction(mean=MEAN),
    "known noise": lambda: Prediction(mean=MEAN, variance=VARIANCE, task="regression"),
    "calibrated": lambda: Prediction(logits=LOGITS, calibrator=Calibrator(mixture=1.7)),
    "calibrated members": lambda: Prediction(logits=LOGITS, calibrator=Calibrator(members=(0.5, 1.0, 2.0, 4.0))),
}


def said(pred: Prediction) -> dict[str, Tensor]:
    """All statistics of a prediction."""
    if pred.task in ("classes", "binary", "multilabel"):
        return {**pred.described(), "probs": pred.probs}
    return {name: getattr(pred, name) for name in ("mean", "aleatoric", "epistemic", "variance", "std")}


def assert_equal(found: Prediction, expected: Prediction, **tolerance: float) -> None:
    """Compares all statistics of two predictions."""
    assert (found.task, found.count, found.shape) == (expected.task, expected.count, expected.shape)
    torch.testing.assert_close(said(found), said(expected), **tolerance)


def by_formula(probs: Tensor) -> dict[str, Tensor]:
    """Statistics of members' probabilities [M, n, K] by their definitions, one example at a time."""
    found: dict[str, list[float]] = {name: [] for name in SAID[:8]}
    for row in probs.unbind(1):
        mean = row.mean(0)
        votes = row.argmax(1).tolist()
        ordered = sorted(mean.tolist(), reverse=True)
        entropies = [-sum(p * math.log(p) for p in one if p > 0) for one in row.tolist()]
        total = -sum(p * math.log(p) for p in mean.tolist() if p > 0)
        found["labels"].append(int(mean.argmax()))
        found["confidence"].append(ordered[0])
        found["margin"].append(ordered[0] - ordered[1])
        found["entropy"].append(total)
        found["expected_entropy"].append(sum(entropies) / len(entropies))
        found["mutual_information"].append(sum(float((one * (one / mean).log()).sum()) for one in row) / len(row))
        found["variation_ratio"].append(1 - max(votes.count(v) for v in votes) / len(votes))
        pairs = list(combinations(votes, 2))
        found["disagreement"].append(sum(a != b for a, b in pairs) / len(pairs))
    return {
        name: torch.tensor(values, dtype=torch.int64 if name == "labels" else torch.float64) for name, values in found.items()
    }


@pytest.mark.parametrize(("members", "classes"), [(2, 11), (4, 3), (7, 2)])
def test_classes_by_formula(members: int, classes: int) -> None:
    """From logits and from probabilities, with fewer and more members than classes."""
    logits = 2 * torch.randn(members, 20, classes, dtype=torch.float64)
    expected = by_formula(logits.softmax(2))
    for pred in (Prediction(logits=logits), Prediction(probs=logits.softmax(2))):
        torch.testing.assert_close({name: getattr(pred, name) for name in expected}, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(pred.probs, logits.softmax(2).mean(0))
    pred = Prediction(logits=logits)
    torch.testing.assert_close(pred.max_logit, logits.mean(0).amax(1))
    torch.testing.assert_close(pred.energy, -logits.logsumexp(2).mean(0))


def test_binary_by_formula() -> None:
    """No and yes are two classes: a logit z stands for −z/2 and z/2. [M, N, 1] is the same as [M, N]."""
    two = torch.stack([-ONE / 2, ONE / 2], -1)
    expected = by_formula(two.softmax(2))
    for pred in (Prediction(logits=ONE, task="binary"), Prediction(probs=ONE.sigmoid(), task="binary")):
        torch.testing.assert_close({name: getattr(pred, name) for name in expected}, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(pred.probs, ONE.sigmoid().mean(0))
        assert (pred.shape, pred.classes) == ((N,), 2)
    pred = Prediction(logits=ONE, task="binary")
    torch.testing.assert_close(pred.max_logit, (ONE / 2).mean(0).abs())
    torch.testing.assert_close(pred.energy, -two.logsumexp(2).mean(0))
    assert_equal(Prediction(logits=ONE[:, :, None], task="binary"), pred, rtol=0, atol=0)


def test_labels_are_binary_one_by_one() -> None:
    """Each label of a multilabel task has the statistics of a binary task."""
    pred = Prediction(logits=LABELS, task="multilabel")
    assert pred.shape == (N, 3)
    for d in range(3):
        alone = Prediction(logits=LABELS[:, :, d], task="binary")
        for name in (*SAID, "probs"):
            torch.testing.assert_close(getattr(pred, name)[:, d], getattr(alone, name), rtol=0, atol=0)


def test_pixels_are_examples_of_their_own() -> None:
    """[M, N, K, H, W]: statistics are [N, H, W], probabilities [N, K, H, W]."""
    pred = Prediction(logits=PIXELS)
    assert (pred.shape, pred.classes, len(pred)) == ((N, 2, 3), K, N)
    torch.testing.assert_close(pred.probs, PIXELS.softmax(2).mean(0))
    flat = Prediction(logits=PIXELS.movedim(2, -1).reshape(M, N * 6, K))
    for name in SAID:
        torch.testing.assert_close(getattr(pred, name), getattr(flat, name).reshape(N, 2, 3), rtol=0, atol=0)


@pytest.mark.parametrize("axis", [-1, 2])
def test_tokens_have_their_classes_last(axis: int) -> None:
    """[M, N, T, K] with class_axis=-1 is stored as [M, N, K, T]."""
    tokens = PIXELS[..., 0].movedim(2, -1)  # [M, N, T, K]
    pred = Prediction(logits=tokens, class_axis=axis)
    assert_equal(pred, Prediction(logits=PIXELS[..., 0]), rtol=0, atol=0)
    assert pred.shape == (N, 2)
    assert pred.probs.shape == (N, K, 2)
    assert pred.members.logits.shape == (M, N, K, 2)


def test_gaussians_by_formula() -> None:
    """The variance is aleatoric + epistemic; a regression with known noise has the same."""
    for kind in ("gaussian", "known noise"):
        pred = KINDS[kind]()
        torch.testing.assert_close(pred.mean, MEAN.mean(0))
        torch.testing.assert_close(pred.aleatoric, VARIANCE.mean(0))
        torch.testing.assert_close(pred.epistemic, (MEAN**2).mean(0) - MEAN.mean(0) ** 2)
        torch.testing.assert_close(pred.variance, VARIANCE.mean(0) + (MEAN**2).mean(0) - MEAN.mean(0) ** 2)
        torch.testing.assert_close(pred.std**2, pred.variance)
    means_only = Prediction(mean=MEAN)
    assert means_only.task == "regression"
    assert not means_only.aleatoric.any()
    torch.testing.assert_close(means_only.variance, MEAN.var(0, correction=0))


@pytest.mark.parametrize("kind", ["gaussian", "regression", "classes", "binary"])
def test_one_member_disagrees_with_nobody(kind: str) -> None:
    """Mutual information, disagreement and epistemic variance of one member are exactly 0."""
    pred = KINDS[kind]().subset([2])
    assert pred.count == 1
    if kind in ("gaussian", "regression"):
        assert not pred.epistemic.any()
        assert torch.equal(pred.mean, MEAN[2])
    else:
        assert not (pred.mutual_information.any() or pred.disagreement.any() or pred.variation_ratio.any())
        torch.testing.assert_close(pred.entropy, pred.expected_entropy, rtol=0, atol=0)


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.integers(2, 6), st.integers(2, 6), st.sampled_from([1e-3, 1.0, 30.0, 1e4]))
def test_bounds(seed: int, members: int, classes: int, scale: float) -> None:
    """0 ≤ mutual information ≤ entropy ≤ log K and 1/K ≤ confidence ≤ 1 for logits of any scale; copies agree exactly."""
    logits = scale * torch.randn(members, 8, classes, generator=torch.Generator().manual_seed(seed))
    pred = Prediction(logits=logits)
    assert (pred.mutual_information >= 0).all()
    assert (pred.mutual_information <= pred.entropy + 1e-5).all()
    assert (pred.entropy <= math.log(classes) + 1e-5).all()
    assert ((pred.confidence >= 1 / classes - 1e-6) & (pred.confidence <= 1)).all()
    assert ((pred.margin >= 0) & (pred.margin <= pred.confidence)).all()
    torch.testing.assert_close(pred.probs.sum(1), torch.ones(8))
    same = Prediction(logits=logits[:1].expand(members, -1, -1))
    assert torch.equal(same.probs, logits[0].softmax(1)) or torch.allclose(same.probs, logits[0].softmax(1), atol=1e-7)
    assert not same.mutual_information.any()
    assert not same.disagreement.any()


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.permutations(range(K)), st.permutations(range(M)))
def test_names_of_classes_and_order_of_members_do_not_matter(seed: int, classes: list[int], members: list[int]) -> None:
    """Permuted classes have permuted probabilities; all other statistics are the same."""
    logits = torch.randn(M, 6, K, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    one, other = Prediction(logits=logits), Prediction(logits=logits[members][:, :, classes])
    torch.testing.assert_close(other.probs, one.probs[:, classes])
    assert torch.equal(torch.tensor(classes)[other.labels], one.labels)
    for name in SAID[1:]:
        torch.testing.assert_close(getattr(other, name), getattr(one, name))


@pytest.mark.parametrize("kind", ["classes", "probs", "pixels", "tokens", "binary", "multilabel", "calibrated"])
@pytest.mark.parametrize("rows", [1, 4])
def test_piece_by_piece_is_the_whole(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results do not depend on the size of pieces: also one example each, and a smaller last piece."""
    whole, pieced = KINDS[kind](), KINDS[kind]()
    said(whole)
    numbers = whole.members.shape.numel() // N
    for size in (numbers * rows, numbers * rows + 1):
        monkeypatch.setattr(Prediction.pieces, "__defaults__", (size,))
        assert [len(range(N)[piece]) for piece, _ in pieced.pieces()] == ([1] * N if rows == 1 else [4, 4, 1])
    monkeypatch.setattr(Prediction.pieces, "__defaults__", (1,))
    assert len(list(pieced.pieces())) == N
    monkeypatch.setattr(Prediction.pieces, "__defaults__", (numbers * rows,))
    assert_equal(pieced, whole, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_single(dtype: torch.dtype) -> None:
    """float16 and bfloat16 are converted to float32."""
    pred = Prediction(logits=LOGITS.to(dtype))
    assert pred.members.logits.dtype == pred.probs.dtype == torch.float32
    assert Prediction(logits=LOGITS).entropy.dtype == torch.float64
    assert Prediction(mean=MEAN.to(dtype), variance=VARIANCE.to(dtype)).std.dtype == torch.float32


def test_what_is_given_may_be_any_array() -> None:
    """Arrays and nested lists are accepted; gradients are detached, and inputs are not changed."""
    assert_equal(Prediction(logits=LOGITS.numpy()), Prediction(logits=LOGITS), rtol=0, atol=0)
    assert_equal(Prediction(logits=LOGITS.tolist()), Prediction(logits=LOGITS.float()))
    learned = LOGITS.clone().requires_grad_(True)
    assert not Prediction(logits=learned).entropy.requires_grad
    for kind in KINDS.values():
        said(kind())
    assert torch.equal(learned, LOGITS)


def test_scores_of_any_size() -> None:
    """Large logits do not overflow; a masked class has the logit −∞."""
    pred = Prediction(logits=1e4 * LOGITS.float())
    assert all(value.isfinite().all() for value in pred.described().values())
    masked = LOGITS.clone()
    masked[:, :, 1] = -math.inf
    rest = Prediction(logits=masked[:, :, [0, 2, 3, 4]])
    pred = Prediction(logits=masked)
    assert not pred.probs[:, 1].any()
    for name in SAID[1:]:
        torch.testing.assert_close(getattr(pred, name), getattr(rest, name))


@pytest.mark.parametrize("protocol", [copy.copy, copy.deepcopy, lambda pred: pickle.loads(pickle.dumps(pred))])
def test_copies(protocol: Callable[[Prediction], Prediction]) -> None:
    """A prediction and its members can be copied and sent to another process."""
    pred = KINDS["calibrated"]()
    assert_equal(protocol(pred), pred, rtol=0, atol=0)
    assert protocol(pred).calibrator == pred.calibrator
    assert torch.equal(protocol(pred.members).logits, LOGITS)


ROWS = {
    "slice": slice(2, 7),
    "every second": slice(None, None, 2),
    "mask": torch.arange(N) % 3 > 0,
    "numpy mask": np.arange(N) < 4,
    "numbers": torch.tensor([5, 0, 5]),
    "list": [3, 1],
    "list of truths": [True, False] * 4 + [True],
    "nothing": slice(0, 0),
    "empty list": [],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("kind", ["classes", "pixels", "gaussian", "calibrated"])
def test_some_of_the_examples(kind: str, rows: Any) -> None:
    """Have the statistics they had before, whether these were computed already or not; targets are selected too."""
    asked, fresh = KINDS[kind](), KINDS[kind]()
    expected = {name: value[rows] for name, value in said(asked).items()}
    for pred in (asked[rows], fresh[rows]):
        torch.testing.assert_close(said(pred), expected)
        assert len(pred) == len(torch.arange(N)[rows])
        assert pred.count == M
        assert (pred.targets is None) == (asked.targets is None)
        assert pred.targets is None or torch.equal(pred.targets, TARGETS[rows])


def test_one_example() -> None:
    """By its index, from the front or the back. An index out of range is an IndexError, so that loops end."""
    pred = KINDS["classes"]()
    for row in (0, 3, N - 1, -1, -N, np.int64(3), torch.tensor(3)):
        assert pred[row].shape == (1,)
        torch.testing.assert_close(pred[row].entropy, pred.entropy[[int(row)]])
    for row in (N, -N - 1, 100):
        with pytest.raises(IndexError):
            pred[row]
    assert_equal(Prediction.cat(list(pred)), pred)


@pytest.mark.parametrize("kind", ["classes", "probs", "pixels", "tokens", "binary", "multilabel", "gaussian", "regression"])
def test_some_of_the_members(kind: str) -> None:
    """A subset of members has their statistics, in the order of the indices."""
    pred = KINDS[kind]()
    said(pred)
    few = pred.subset([3, 1])
    assert few.count == 2
    values = {name: value[[3, 1]] for name, value in pred.members.items()}
    assert_equal(few, Prediction(**values, task=pred.task), rtol=0, atol=0)


def test_some_of_calibrated_members() -> None:
    """Members keep their temperatures; a mixture temperature is dropped."""
    few = KINDS["calibrated members"]().subset([2, 0])
    torch.testing.assert_close(few.members.logits, LOGITS[[2, 0]] / torch.tensor([2.0, 0.5])[:, None, None])
    assert few.calibrator == Calibrator(members=(2.0, 0.5))
    few = KINDS["calibrated"]().subset([2, 0])
    assert few.temperature == 1
    assert few.calibrator is None


@pytest.mark.parametrize("kind", KINDS)
def test_parts_put_together(kind: str) -> None:
    """Concatenated parts equal the whole, targets and temperature included; targets of some parts are dropped."""
    pred = KINDS[kind]()
    whole = Prediction.cat([pred[:4], pred[4:5], pred[5:]])
    assert_equal(whole, pred, rtol=0, atol=0)
    assert (whole.temperature, whole.calibrator) == (pred.temperature, pred.calibrator)
    assert pred.targets is None or torch.equal(whole.targets, pred.targets)
    assert Prediction.cat([KINDS["classes"](), Prediction(logits=LOGITS)]).targets is None


def test_a_calibrated_prediction() -> None:
    """Members: logits divided by their temperatures. Mixture: p ∝ p̄^(1/T), and the members' statistics do not change."""
    plain = Prediction(logits=LOGITS, targets=TARGETS)
    members, mixture = Calibrator(members=(0.5, 1.0, 2.0, 4.0)), Calibrator(mixture=1.7)
    divided = LOGITS / torch.tensor([0.5, 1.0, 2.0, 4.0])[:, None, None]
    for pred in (plain.calibrated(members), Prediction(logits=LOGITS, calibrator=members)):
        assert_equal(pred, Prediction(logits=divided), rtol=0, atol=0)
    for pred in (plain.calibrated(mixture), Prediction(logits=LOGITS, calibrator=mixture)):
        power = plain.probs ** (1 / 1.7)
        expected = power / power.sum(1, keepdim=True)
        torch.testing.assert_close(pred.probs, expected)
        torch.testing.assert_close(pred.confidence, expected.amax(1))
        torch.testing.assert_close(pred.margin, expected.topk(2).values @ torch.tensor([1.0, -1.0], dtype=torch.float64))
        torch.testing.assert_close(pred.entropy, -(expected * expected.log()).sum(1))
        assert torch.equal(pred.members.logits, LOGITS)
        for name in ("labels", "expected_entropy", "mutual_information", "variation_ratio", "disagreement", "max_logit"):
            torch.testing.assert_close(getattr(pred, name), getattr(plain, name))
    assert plain.calibrated(mixture).targets is plain.targets
    assert plain.calibrator is None


def test_a_calibrated_yes_or_no() -> None:
    """The mixture's logit is divided by its temperature."""
    pred = Prediction(logits=ONE, task="binary", calibrator=Calibrator(mixture=3.0))
    torch.testing.assert_close(pred.probs, (ONE.sigmoid().mean(0).logit() / 3).sigmoid())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_and_back(kind: str, tmp_path: Path) -> None:
    """A saved prediction is loaded bit by bit, with targets, temperatures and dtype; safetensors can read it."""
    pred = KINDS[kind]()
    pred.save(tmp_path / "a.safetensors")
    back = Prediction.load(tmp_path / "a.safetensors")
    assert_equal(back, pred, rtol=0, atol=0)
    assert (back.calibrator, back.temperature) == (pred.calibrator, pred.temperature)
    assert back.targets is None if pred.targets is None else torch.equal(back.targets, TARGETS)
    assert_exact(back.members.values(), pred.members.values())
    tensors = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert tensors.keys() == {*pred.members, *(["targets"] if pred.targets is not None else [])}
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def moments_of(pred: Prediction) -> Prediction:
    """The prediction without members' outputs."""
    if pred.task in ("classes", "binary", "multilabel"):
        made = {**pred.described(), "probs": pred.probs}
    else:
        made = {name: getattr(pred, name) for name in ("mean", "aleatoric", "epistemic")}
    return Prediction.of_moments(pred.task, pred.count, made, pred.targets)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_only(kind: str, tmp_path: Path) -> None:
    """Moments have the same statistics: whole, selected, concatenated, and from a file."""
    pred = KINDS[kind]()
    held = moments_of(pred)
    assert not held.has_members
    assert "moments only" in repr(held)
    assert_equal(held, pred, rtol=0, atol=0)
    assert_equal(held[2:5], pred[2:5])
    assert_equal(Prediction.cat([held[:3], held[3:]]), pred, rtol=0, atol=0)
    held.save(tmp_path / "a")
    assert_equal(Prediction.load(tmp_path / "a"), pred, rtol=0, atol=0)
    for use in (lambda: held.members, lambda: held.subset([0]), lambda: list(held.pieces())):
        with pytest.raises(mt.InputError, match="moments_only=False"):
            use()
    if pred.task in ("classes", "binary", "multilabel"):
        assert held.classes == pred.classes


def test_intervals_of_moments() -> None:
    """With moments or means only, the interval is that of a Gaussian with the same moments."""
    for pred in (moments_of(KINDS["gaussian"]()), KINDS["regression"]()):
        low, high = pred.interval(0.9)
        torch.testing.assert_close((low + high) / 2, pred.mean)
        torch.testing.assert_close(high - low, 2 * norm.ppf(0.95) * pred.std)


def flip(path: Path, at: int) -> None:
    """Flips a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def resign(path: Path, about: dict[str, Any]) -> None:
    """Writes a file again with other settings and a valid digest."""
    with safe_open(path, framework="pt") as file:
        settings = json.loads(file.metadata()["prediction"])
    tensors, text = safetensors.torch.load_file(path), json.dumps({**settings, **about} if about else {"format": 1})
    safetensors.torch.save_file(tensors, path, {"prediction": text, "sha256": digest(tensors, text)})


HOSTILE: list[dict[str, Any]] = [
    {}, {"task": "guess"}, {"task": "gaussian"}, {"members": False}, {"temperature": "hot"}, {"temperature": None},
    {"calibrator": {"mixture": -1.0, "members": None}}, {"calibrator": {"command": "rm"}}, {"format": None}, {"format": 99},
]  # fmt: skip
DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "header alone": lambda path: path.write_bytes(path.read_bytes()[:8]),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "missing": lambda path: path.unlink(),
    "a number": lambda path: flip(path, len(path.read_bytes()) - 1),
    "a setting": lambda path: flip(path, path.read_bytes().index(b'\\"count\\"') + 3),
    "the digest": lambda path: flip(path, path.read_bytes().index(b'"sha256":"') + 12),
    "plain safetensors": lambda path: safetensors.torch.save_file({"logits": LOGITS}, path),
    "an ensemble": lambda path: mt.save(convert(mt.Deep(), ZOO["mlp"]), path),
    **{str(about): lambda path, about=about: resign(path, about) for about in HOSTILE},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file(damage: str, tmp_path: Path) -> None:
    """A damaged file is refused by its name, also if a valid digest covers impossible settings."""
    KINDS["classes"]().save(tmp_path / "a")
    DAMAGES[damage](tmp_path / "a")
    with pytest.raises(mt.FileError, match=r"/a"):
        Prediction.load(tmp_path / "a")


def test_targets_that_are_the_values_themselves_can_be_saved(tmp_path: Path) -> None:
    """Targets that share memory with the values can be saved."""
    y = torch.randn(5)
    Prediction(mean=y[None], targets=y).save(tmp_path / "a")
    assert torch.equal(Prediction.load(tmp_path / "a").targets, y)


@pytest.mark.parametrize("level", [0.5, 0.999])
def test_intervals_are_exact(level: float) -> None:
    """The ends are the quantiles of the mixture, found by scipy."""
    pred = KINDS["gaussian"]()
    low, high = pred.interval(level)
    for n in range(N):
        mean, std = MEAN[:, n, 0].numpy(), VARIANCE[:, n, 0].sqrt().numpy()
        for found, share in ((low, (1 - level) / 2), (high, (1 + level) / 2)):
            root = brentq(lambda t, m=mean, s=std, p=share: norm.cdf(t, m, s).mean() - p, -50, 50, xtol=1e-13)
            assert float(found[n, 0]) == pytest.approx(root, abs=1e-9)


def test_intervals_of_far_members() -> None:
    """The central half of N(−5, 1) and N(5, 1) ends at their means."""
    pred = Prediction(mean=torch.tensor([[-5.0], [5.0]]), variance=torch.ones(2, 1))
    low, high = pred.interval(0.5)
    torch.testing.assert_close(torch.cat([low, high]), torch.tensor([-5.0, 5.0]))
    assert low.dtype == torch.float32


def test_intervals_without_noise() -> None:
    """Members without noise are points: at 95 %, the ends are the outermost of three; one member has both ends at its mean."""
    pred = Prediction(mean=torch.tensor([[0.0], [1.0], [2.0]]), variance=torch.zeros(3, 1))
    assert [round(float(end), 6) for end in pred.interval(0.95)] == [0, 2]
    alone = Prediction(mean=torch.tensor([[3.0]]), variance=torch.zeros(1, 1))
    assert [float(end) for end in alone.interval(0.95)] == [3, 3]


def test_draws() -> None:
    """Draws have the mixture's mean, variance and both modes; a generator repeats them."""
    pred = Prediction(mean=torch.tensor([[-5.0, 1.0], [5.0, 1.0]]), variance=torch.tensor([[1.0, 1.0], [1.0, 16.0]]))
    draws = pred.sample(20000, generator=torch.Generator().manual_seed(0))
    assert draws.shape == (20000, 2)
    torch.testing.assert_close(draws.mean(0), pred.mean, atol=0.12, rtol=0)
    torch.testing.assert_close(draws.std(0), pred.std, rtol=0.03, atol=0)
    near = [float(((draws[:, 0] - centre).abs() < 3).float().mean()) for centre in (-5, 0, 5)]
    assert near[0] == pytest.approx(0.5, abs=0.02)
    assert near[1] < 0.05
    assert near[2] == pytest.approx(0.5, abs=0.02)
    assert float(((draws[:, 1] - 1).abs() > 3).double().mean()) == pytest.approx(
        (0.0027 + 0.4533) / 2, abs=0.01
    )  # one is wider
    assert torch.equal(draws, pred.sample(20000, generator=torch.Generator().manual_seed(0)))
    assert not torch.equal(pred.sample(3), pred.sample(3))
    assert KINDS["gaussian"]().sample(7).shape == (7, N, 2)
    assert KINDS["gaussian"]().sample(7).dtype == torch.float64
    both = Prediction(mean=torch.tensor([[[-5.0, -5.0]], [[5.0, 5.0]]]), variance=torch.full((2, 1, 2), 0.01)).sample(100)[:, 0]
    assert bool((both[:, 0].sign() == both[:, 1].sign()).all())  # all numbers of an example come from one member


def test_densities() -> None:
    """Densities are those of torch's mixtures."""
    targets = torch.randn(N, 2, dtype=torch.float64)
    parts = Normal(MEAN.movedim(0, -1), VARIANCE.movedim(0, -1).sqrt())
    mixture = MixtureSameFamily(Categorical(torch.ones(N, 2, M, dtype=torch.float64)), parts)
    for kind in ("gaussian", "known noise"):
        torch.testing.assert_close(KINDS[kind]().log_density(targets), mixture.log_prob(targets))
        torch.testing.assert_close(KINDS[kind]().log_density(targets.numpy()), mixture.log_prob(targets))
    far = Prediction(mean=torch.zeros(2, 1), variance=torch.ones(2, 1)).log_density(torch.tensor([1000.0]))
    assert float(far) == pytest.approx(-500000.92, rel=1e-6)  # where the density itself underflows


def test_densities_of_targets_without_an_axis() -> None:
    """Targets [N] fit predictions [N, 1]; transposed targets are refused."""
    pred = Prediction(mean=MEAN[..., :1], variance=VARIANCE[..., :1])
    assert torch.equal(pred.log_density(torch.arange(9.0)), pred.log_density(torch.arange(9.0)[:, None]))
    for wrong in (torch.zeros(2, N), torch.zeros(3)):
        with pytest.raises(mt.InputError, match="targets"):
            KINDS["gaussian"]().log_density(wrong)


def test_nothing_is_guessed_from_values() -> None:
    """Logits that look like probabilities stay logits, and the task is never guessed."""
    probs = LOGITS.softmax(2)
    torch.testing.assert_close(Prediction(logits=probs).probs, probs.softmax(2).mean(0))
    torch.testing.assert_close(Prediction(logits=probs, task="multilabel").probs, probs.sigmoid().mean(0))
    assert Prediction(logits=LOGITS[..., :1]).classes == 1
    assert Prediction(logits=LOGITS[..., :2], task="multilabel").shape == (N, 2)
    assert Prediction(logits=ONE, task="binary").shape == (N,)


def test_no_examples() -> None:
    """A prediction of no examples has all statistics, with no rows."""
    for kind, make in KINDS.items():
        pred = make()[:0]
        whole = said(make())
        for name, value in said(pred).items():
            assert value.shape == (0, *whole[name].shape[1:]), (kind, name)
            assert value.dtype == whole[name].dtype, (kind, name)
        assert len(pred) == 0
    empty = Prediction(logits=torch.zeros(3, 0, 7))
    assert (empty.probs.shape, empty.labels.shape, empty.labels.dtype) == ((0, 7), (0,), torch.int64)


def test_a_prediction_is_shown_in_one_line() -> None:
    """repr names task, members, examples and classes."""
    assert repr(KINDS["classes"]()) == "Prediction(classes: 4 members, 9 examples, 5 classes)"
    assert repr(KINDS["pixels"]()) == "Prediction(classes: 4 members, 9 examples, 5 classes, 2 × 3 each)"
    assert repr(KINDS["gaussian"]().subset([0])) == "Prediction(gaussian: 1 member, 9 examples, 2 each)"
    assert repr(Prediction(logits=torch.zeros(2, 1000, 3))) == "Prediction(classes: 2 members, 1,000 examples, 3 classes)"


def test_nothing_is_made_before_it_is_asked_for() -> None:
    """Statistics are computed on first access, and once only."""
    pred = KINDS["classes"]()
    assert pred._computed == {}
    assert pred.entropy is pred.entropy
    assert pred.probs is pred.probs
