"""Comparisons of our own: which method is better than the single network of the same seed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multitudes.shell.reproduce.command import check
from multitudes.shell.reproduce.run import run_item
from multitudes.shell.reproduce.work.ours import derive_better


def row(**scores: float) -> Any:
    return SimpleNamespace(scores={name.replace("__", "/"): value for name, value in scores.items()}, ood=["mnist"])


def test_better_means_less_of_an_error_and_more_of_the_rest() -> None:
    single = row(accuracy=0.9, nll=0.3, ece=0.02, mnist__auroc__msp=0.8)
    other = row(accuracy=0.91, nll=0.25, ece=0.03, mnist__auroc__msp=0.7)
    rows = {"single": single, "packed": other}
    assert derive_better(other, rows) == {"better/accuracy": 1, "better/nll": 1, "better/ece": 0, "better/auroc": 0}
    assert derive_better(single, rows) == {} == derive_better(other, {"packed": other})


@pytest.mark.slow
def test_a_row_alone_is_compared_with_the_single_network_that_was_trained_before(tmp_path: Path) -> None:
    for only in (("single",), ("packed",)):
        results = run_item(check("ours/fashion-mnist", "smoke", "", only).item, "smoke", out=tmp_path, runs=tmp_path / "runs")
    packed = next(one for one in results if one.label == "Packed")
    assert set(packed.runs[0].measured) == {"better/accuracy", "better/nll", "better/ece", "better/auroc"}
