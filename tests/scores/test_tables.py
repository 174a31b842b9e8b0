"""Scores as tables: the whole dataset, OOD detection by criterion, corruptions by severity."""

from __future__ import annotations

import torch

import multitudes as mt
from multitudes.scores.tables import tables
from multitudes.terminal import rendered


def scored(**options: object) -> mt.scores.Scores:
    """Scores of ten classes, with two OOD sets and a corruption."""
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(3, 60, 10, generator=generator), torch.randint(10, (60,), generator=generator)
    pred = mt.Prediction(logits=logits)
    fog = {1: (pred, targets), 3: (pred, targets)}
    return mt.score(pred, targets, ood={"a": pred[:30], "b": pred[30:]}, shift={"fog": fog}, **options)  # type: ignore[arg-type]


def test_every_score_stands_in_one_table() -> None:
    """Every score is in one table, with four digits."""
    scores = scored()
    whole, errors, first, second, corruptions = tables(scores)
    text = rendered([whole])
    assert f"{scores['nll']:.4f}" in text
    assert "nll ↓" in text
    assert "accuracy ↑" in text
    assert "auroc/msp" not in text
    assert "fog/1/nll" not in text
    assert "error_auroc" not in text
    assert errors.title == "wrong predictions"
    assert [str(cell) for cell in errors.columns[0].cells] == ["msp", "entropy", "mutual_information"]
    assert list(errors.columns[2].cells)[1] == f"{scores['error_aupr/entropy']:.4f}"
    for name, table in (("a", first), ("b", second)):
        assert table.title == f"out of distribution: {name}"
        assert [str(cell) for cell in table.columns[0].cells] == [
            "msp", "max_logit", "entropy", "mutual_information", "variation_ratio", "energy",
        ]  # fmt: skip
        assert next(iter(table.columns[1].cells)) == f"{scores[f'{name}/auroc/msp']:.4f}"
        assert list(table.columns[3].cells)[2] == f"{scores[f'{name}/fpr95/entropy']:.4f}"
    assert [column.header for column in corruptions.columns] == ["corruption", "1", "3"]
    assert list(corruptions.columns[2].cells) == [f"{scores['fog/3/accuracy']:.4f}"]


def test_intervals_are_shown() -> None:
    """Intervals are beside the value or in its cell."""
    scores = scored(intervals=5)
    text = str(scores)
    low, high = scores.intervals["nll"]
    assert f"{low:.4f} – {high:.4f}" in text
    low, high = scores.intervals["a/auroc/msp"]
    assert f"{low:.4f} – {high:.4f}" in str([list(column.cells) for column in tables(scores)[2].columns])


def test_a_regression_has_one_table() -> None:
    """A regression has one table, and another one with an OOD set."""
    pred = mt.Prediction(mean=torch.randn(3, 20), variance=torch.rand(3, 20) + 0.1)
    assert len(tables(mt.score(pred, torch.randn(20)))) == 1
    found = tables(mt.score(pred, torch.randn(20), ood=pred))
    assert next(next(iter(column.cells)) for column in found[1].columns) == "variance"


def test_corruptions_have_their_errors_over_a_baseline() -> None:
    """CE and rCE stand beside the accuracies of a corruption, and nowhere else."""
    from multitudes.data.corruptions.published import STANDARD

    targets = torch.arange(12) % 3
    pred = mt.Prediction(logits=torch.randn(2, 12, 3) + 3 * torch.eye(3)[targets])
    noise = mt.Prediction(logits=torch.randn(2, 12, 3))
    shift = {name: dict.fromkeys(range(1, 6), (noise, targets)) for name in STANDARD}
    scores = mt.score(pred, targets, shift=shift, baseline="alexnet")
    whole, *_, table = tables(scores)
    assert [column.header for column in table.columns] == ["corruption", "1", "2", "3", "4", "5", "CE", "rCE"]
    row = list(table.columns[0].cells).index("fog")
    assert [list(column.cells)[row] for column in table.columns[6:]] == [
        f"{scores[f'fog/{kind}']:.4f}" for kind in ("CE", "rCE")
    ]
    assert "fog/CE" not in rendered([whole])
    assert "mCE" in rendered([whole])


def test_tables_of_detection_say_which_class_is_positive() -> None:
    pred = mt.Prediction(logits=torch.randn(2, 20, 3), targets=torch.arange(20) % 3)
    _, errors, far = mt.score(pred, ood={"svhn": pred}).tables()
    assert (errors.title, errors.caption) == ("wrong predictions", "Wrong predictions are the positive class.")
    assert far.title == "out of distribution: svhn"
    assert far.caption == "OOD is the positive class; for aupr_in and fpr95_in it is in-distribution."
