"""What the items of Masksembles run: the laws that must hold in smoke."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from multitudes.shell.reproduce.catalog import find_item
from multitudes.shell.reproduce.run import run_item
from multitudes.shell.reproduce.work import masksembles


def test_masks_obey_the_law_of_overlap() -> None:
    """Fig. 3: the mean IoU is 1 / (2 S − 1), whatever N, and the size is that expected."""
    rows = masksembles.fig_3("smoke", 0, None).rows
    for label, row in rows.items():
        assert float(row["IoU"]) == pytest.approx(float(row["1 / (2 S − 1)"]), abs=0.035), label
        assert float(row["size"]) == pytest.approx(float(row["expected size"]), rel=0.04), label


@pytest.mark.slow
def test_entropy_away_from_the_data_grows_with_s() -> None:
    """Fig. 4: masks that overlap less differ more where there are no data."""
    rows = masksembles.fig_4("smoke", 0, None).rows
    outside = [row["entropy outside [−5, 5]"] for row in (rows["S = 1.1"], rows["S = 10"])]
    between = [row["mutual information outside"] for row in (rows["S = 1.1"], rows["S = 10"])]
    assert outside[1] > 1.2 * outside[0] and between[1] > 2 * between[0]
    assert all(row["accuracy"] > 0.98 for row in rows.values())


@pytest.mark.slow
def test_ece_under_corruption_is_the_mean_over_corruptions(tmp_path: Path) -> None:
    """Fig. 6: by corruption and severity, each set scored alone."""
    results = run_item(find_item("masksembles/fig-6"), "smoke", out=tmp_path / "out", runs=tmp_path / "runs")
    assert [one.label for one in results] == ["Single", "MaskE"]
    for one in results:
        scores = one.runs[0].scores
        parts = [value for name, value in scores.items() if name.endswith("/ece") and name.count("/") == 2]
        assert len(parts) == 15
        assert scores["cECE"] == pytest.approx(statistics.fmean(parts))
    assert {file.name for file in (tmp_path / "out").rglob("*.png")} == {"accuracy.png", "ece.png"}
