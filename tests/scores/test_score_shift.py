"""score(shift=): corruptions by severity, other sets and frames of a video, against values by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scores.logits import drawn, members, scored

import multitudes as mt
from multitudes.data.corruptions.published import STANDARD


def corrupted(strength: float) -> dict[str, Any]:
    """Corruptions of 40 images each, in two severities, of one ensemble."""
    return {
        name: {s: (mt.Prediction(logits=members(2, 40, 4, 100 * n + s, strength)), drawn(4, 40, n)) for s in (1, 2)}
        for n, name in enumerate([*STANDARD, "spatter"])
    }


def clean(seed: int) -> mt.Prediction:
    """A mostly right prediction of the same images."""
    return mt.Prediction(logits=members(2, 40, 4, seed) + 5 * torch.eye(4)[drawn(4, 40)])


def test_corruptions_by_hand() -> None:
    """Each severity is scored alone; means are over the standard corruptions only."""
    pred, targets, shift = mt.Prediction(logits=members(2, 40, 4)), drawn(4, 40), corrupted(2.0)
    found = scored(pred, targets, shift=shift)
    alone = {(name, s): scored(*part) for name, parts in shift.items() for s, part in parts.items()}
    for (name, s), one in alone.items():
        for key in ("accuracy", "nll", "ece"):
            assert found[f"{name}/{s}/{key}"] == one[key]
    for key, short in (("accuracy", "cAcc"), ("nll", "cNLL"), ("ece", "cECE")):
        counted = [one[key] for (name, _), one in alone.items() if name != "spatter"]
        assert len(counted) == 30
        assert found[short] == pytest.approx(sum(counted) / 30)
    assert "mCE" not in found


def test_corruptions_against_a_run_and_against_alexnet() -> None:
    """mCE and rmCE by hand, against a run and against AlexNet."""
    pred, targets = clean(0), drawn(4, 40)
    base = scored(clean(5), targets, shift=corrupted(1.0))
    found = scored(pred, targets, shift=corrupted(3.0), baseline=base)
    ratio, relative = [], []
    for name in STANDARD:
        own, other = (1 - sum(run[f"{name}/{s}/accuracy"] for s in (1, 2)) / 2 for run in (found, base))
        ratio.append(own / other)
        relative.append((own - 1 + found["accuracy"]) / (other - 1 + base["accuracy"]))
    assert found["mCE"] == pytest.approx(sum(ratio) / 15)
    assert found["rmCE"] == pytest.approx(sum(relative) / 15)
    assert [found[f"{name}/CE"] for name in STANDARD] == pytest.approx(ratio)
    assert [found[f"{name}/rCE"] for name in STANDARD] == pytest.approx(relative)
    assert "spatter/CE" not in found
    assert found.errors() == scored(pred, targets, shift=corrupted(3.0)).errors()
    itself = scored(pred, targets, shift=corrupted(3.0), baseline=found)
    assert (itself["mCE"], itself["rmCE"]) == pytest.approx((1, 1))
    with pytest.raises(mt.InputError, match=r"1, 2, the baseline 1, 2, 3, 4, 5"):
        scored(pred, targets, shift=corrupted(3.0), baseline="alexnet")
    five = {name: {s: given[min(s, 2)] for s in range(1, 6)} for name, given in corrupted(3.0).items()}
    assert 0 < scored(pred, targets, shift=five, baseline="alexnet")["mCE"] < 2


def test_shifted_sets_and_frames() -> None:
    """Keys have the set's name and the prefix r; an anchor counts with its worst frame."""
    pred, targets = mt.Prediction(logits=members(2, 40, 4)), drawn(4, 40)
    other, wanted = mt.Prediction(logits=members(2, 30, 4, seed=7)), drawn(4, 30)
    anchors = torch.arange(30) // 2 * 10
    alone = scored(other, wanted)
    found = scored(pred, targets, shift={"sketches": (other, wanted)})
    assert [found[f"sketches/{name}"] for name in ("rAcc", "rNLL", "rECE")] == [
        alone[name] for name in ("accuracy", "nll", "ece")
    ]
    found = scored(pred, targets, shift={"sketches": (other, wanted), "video": (other, wanted, anchors)})
    right = (other.labels == wanted).reshape(15, 2).all(1).double().mean()
    assert found["video/stability"] == pytest.approx(float(right))
    assert found["video/rAcc"] == found["sketches/rAcc"] == alone["accuracy"]
    with_own = mt.Prediction(logits=members(2, 30, 4, seed=7), targets=wanted)
    assert scored(pred, targets, shift={"sketches": with_own})["sketches/rNLL"] == alone["nll"]
