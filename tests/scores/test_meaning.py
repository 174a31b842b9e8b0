"""Meanings: every score has one, and its direction is right."""

from __future__ import annotations

from math import isnan

import pytest
import torch

import multitudes as mt
from multitudes.data.corruptions.published import STANDARD
from multitudes.scores.meaning import CRITERIA, MEANINGS, SPREADS, Meaning, meaning

TARGETS = torch.arange(60) % 6


def classes(strength: float, noise: float = 1.0, seed: int = 0) -> mt.Prediction:
    """Logits of 6 classes, larger by `strength` for the right one."""
    logits = torch.randn(3, 60, 6, generator=torch.Generator().manual_seed(seed)) * noise
    return mt.Prediction(logits=logits + strength * torch.eye(6)[TARGETS])


def classified(strength: float, outside: float) -> mt.scores.Scores:
    """Scores of a classification, with OOD sets, corruptions and frames."""
    pred = classes(strength)
    corrupted = {name: dict.fromkeys(range(1, 6), (classes(strength / 2), TARGETS)) for name in STANDARD}
    frames = (classes(strength, seed=1), TARGETS, torch.arange(60) // 3)
    others = {"far": classes(0, outside), "near": classes(0, outside, seed=2)}
    return mt.score(pred, TARGETS, ood=others, shift={**corrupted, "frames": frames}, baseline="alexnet")


def segmented(strength: float) -> mt.scores.Scores:
    logits = torch.randn(3, 4, 6, 5, 3) + strength * torch.eye(6)[TARGETS.reshape(4, 5, 3)].movedim(-1, 1)
    return mt.score(mt.Prediction(logits=logits), TARGETS.reshape(4, 5, 3))


def labelled(strength: float) -> mt.scores.Scores:
    wanted = TARGETS.reshape(20, 3) % 2
    return mt.score(mt.Prediction(logits=torch.randn(3, 20, 3) + strength * (2 * wanted - 1), task="multilabel"), wanted)


def regressed(noise: float, variance: float, outside: float) -> mt.scores.Scores:
    wanted = torch.randn(60)
    pred = mt.Prediction(mean=wanted + noise * torch.randn(3, 60), variance=torch.full((3, 60), variance))
    far = mt.Prediction(mean=outside * torch.randn(3, 60), variance=torch.full((3, 60), variance + outside))
    return mt.score(pred, wanted, ood=far)


def pairs() -> list[tuple[mt.scores.Scores, mt.scores.Scores]]:
    """Pairs of a better and a worse run."""
    return [
        (classified(12, 0.01), classified(0.5, 4)),
        (segmented(12), segmented(0.5)),
        (labelled(12), labelled(0.5)),
        (regressed(0.01, 0.01, 3.0), regressed(2.0, 9.0, 0.0)),
    ]


def test_every_score_has_a_meaning_and_better_is_better() -> None:
    """Every score has a meaning, and the better run is better in its direction."""
    seen = set()
    for good, bad in pairs():
        assert list(good) == list(bad)
        for name in good:
            found = meaning(name)
            assert found.about, name
            seen |= {part for part in name.split("/") if part in MEANINGS}
            if name.startswith("error_"):  # the good run makes no errors
                assert isnan(good[name]), name
            elif found.better and not name.endswith(("variation_ratio", "mutual_information")):
                assert (good[name] > bad[name]) if found.better == "higher" else (good[name] < bad[name]), name
    assert seen == set(MEANINGS)


@pytest.mark.parametrize(
    ("key", "like"),
    [
        ("nll", "nll"),
        ("auroc/msp", "auroc"),
        ("svhn/auroc/msp", "auroc"),
        ("fog/3/nll", "nll"),
        ("sketches/rAcc", "rAcc"),
        ("cECE", "cECE"),
        ("fog/rCE", "rCE"),
        ("error_auroc/entropy", "error_auroc"),
        ("video/stability", "stability"),
        ("svhn/fpr95_in/energy", "fpr95_in"),
    ],
)
def test_keys_with_a_set_or_a_criterion(key: str, like: str) -> None:
    """A key has the meaning of the score in it."""
    assert meaning(key) == MEANINGS[like]


def test_what_is_no_score() -> None:
    """Unknown keys have an empty meaning."""
    assert meaning("svhn/beauty") == Meaning("", "")


def test_names_are_apart() -> None:
    """No criterion has the name of a score, so that keys are unambiguous."""
    assert not {*CRITERIA, *SPREADS} & set(MEANINGS)
