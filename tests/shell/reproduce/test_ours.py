"""Comparisons of our own: which method is better than the single network of the same seed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from multitudes.shell.reproduce.work.ours import derive_better


def row(**scores: float) -> Any:
    return SimpleNamespace(scores={name.replace("__", "/"): value for name, value in scores.items()}, ood=["mnist"])


def test_better_means_less_of_an_error_and_more_of_the_rest() -> None:
    single = row(accuracy=0.9, nll=0.3, ece=0.02, mnist__auroc__msp=0.8)
    other = row(accuracy=0.91, nll=0.25, ece=0.03, mnist__auroc__msp=0.7)
    rows = {"single": single, "packed": other}
    assert derive_better(other, rows) == {"better/accuracy": 1, "better/nll": 1, "better/ece": 0, "better/auroc": 0}
    assert derive_better(single, rows) == {} == derive_better(other, {"packed": other})
