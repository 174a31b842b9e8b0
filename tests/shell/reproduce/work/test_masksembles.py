"""What the items of Masksembles run: the laws that must hold in smoke."""

from __future__ import annotations

import pytest

from multitudes.shell.reproduce.work import masksembles


def test_masks_obey_the_law_of_overlap() -> None:
    """Fig. 3: the mean IoU is 1 / (2 S − 1), whatever N, and the size is that expected."""
    rows = masksembles.fig_3("smoke", 0, None).rows
    for label, row in rows.items():
        assert float(row["IoU"]) == pytest.approx(float(row["1 / (2 S − 1)"]), abs=0.035), label
        assert float(row["size"]) == pytest.approx(float(row["expected size"]), rel=0.04), label
