"""What the items of the supplement of Packed-Ensembles run: the laws that must hold in smoke."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from multitudes.data import Data
from multitudes.shell.reproduce.catalog import find_item
from multitudes.shell.reproduce.run import run_item
from multitudes.shell.reproduce.work import image_jobs, supplement


@pytest.mark.slow
def test_the_bound_is_above_the_simulated_divergence() -> None:
    """Fig. 5, at 201 pairs of p and σ, without a tolerance; the divergence itself is met within the simulation's error."""
    p = torch.linspace(0.05, 1, 67)
    found, simulated = supplement.bounds(p, draws=4_000, seed=0)
    assert simulated.shape == (3, 67)
    assert (found.bound >= found.kl - 1e-12).all()
    assert (found.bound >= simulated).all() and (found.bound[:, :-1] > 0).all()
    assert ((found.kl - simulated).abs() <= 0.03 + 0.1 * simulated).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the 4 members have collapsed")
def test_without_sources_of_differences_members_are_equal(tmp_path: Path) -> None:
    """Table 7: the mutual information is zero with all sources off, and not with another start or other batches."""
    results = run_item(find_item("supplement/table-7"), "smoke", out=tmp_path / "out", runs=tmp_path / "runs")
    found = {one.label: one.runs[0] for one in results}
    assert found["R18, none"].scores["mean_mutual_information"] == pytest.approx(0, abs=1e-6)
    assert found["R18, none"].scores["digits/mean_mutual_information"] == pytest.approx(0, abs=1e-6)
    for source in ("DI", "DB"):
        assert found[f"R18, {source}"].scores["mean_mutual_information"] > 1e-3


@pytest.mark.slow
def test_every_count_of_table_10() -> None:
    """ResNet-50: to the printed digit, apart from rows that are explained on the page."""
    item = find_item("supplement/table-10")
    rows = supplement.table_10("smoke", 0, None).rows
    exact = {
        "Single Model, R50": 2,
        "MIMO, R50": 2,
        "Packed-Ensembles, R50": 2,
        "Deep Ensembles, R50": 1,
        "BatchEnsemble, R50": 1,
    }
    for label, numbers in exact.items():
        for name in list(item.printed.columns)[2 - numbers :]:
            theirs = item.printed.rows[label][name]
            assert f"{rows[label][name]:.{theirs.digits}f}" == theirs.text, f"{label}, {name}"


def test_sources_of_differences_are_trained_in_full_precision_on_a_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 7: rounding and compiled operations would be sources of their own. Other rows are trained faster there."""
    images = Data(torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.arange(8), mean=[0.5] * 3, std=[0.25] * 3)
    for name in ("cifar100", "svhn"):
        monkeypatch.setattr(image_jobs.data, name, lambda split, root: images)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    made = {job: supplement.__dict__[job](kind, "small", None) for job, kind in (("table_7", "resnet18"), ("table_5", "grid"))}
    assert {(one.recipe.precision, one.recipe.compile) for one in made["table_7"].rows.values()} == {("32", False)}
    assert {(one.recipe.precision, one.recipe.compile) for one in made["table_5"].rows.values()} == {("bf16", True)}
    recipes = {name: one.recipe for name, one in made["table_7"].rows.items()}
    assert recipes["none"].deterministic and not recipes["nd"].deterministic and recipes["db"].batches == "own"
