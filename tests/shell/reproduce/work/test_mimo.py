"""What the items of MIMO run: the laws that must hold in smoke."""

from __future__ import annotations

import pytest

from multitudes.shell.reproduce.results import Measured, Result
from multitudes.shell.reproduce.work import mimo


@pytest.mark.slow
def test_the_variance_of_an_ensemble_falls_with_its_members() -> None:
    """Fig. 2: averaging takes variance away, with M and from members to their ensemble; error is squared bias and variance."""
    rows = mimo.fig_2("smoke", 0, None).rows
    one, three = (({name: float(value) for name, value in rows[f"M = {m}"].items()}) for m in (1, 3))
    assert three["variance"] < 0.8 * one["variance"]
    assert three["variance"] < 0.95 * three["member variance"] and three["error"] < three["member error"]
    assert one["variance"] == pytest.approx(one["member variance"])
    for row in (one, three):
        assert row["error"] == pytest.approx(row["bias"] + row["variance"], rel=1e-6)


@pytest.mark.slow
def test_subnetworks_differ_and_separate() -> None:
    """Fig. 4: MIMO's members disagree more than heads on one body, and units vary with one input more than with the others."""
    rows = mimo.fig_4("smoke", 0, None).rows
    assert rows["MIMO (M = 3)"]["disagreement"] > 3 * rows["Naive multihead (M = 3)"]["disagreement"]
    assert rows["MIMO (M = 3)"]["share of the larger variance"] > 1.5 / 3
    assert rows["MIMO (M = 2)"]["share of the larger variance"] > 1.3 / 2


def test_networks_have_a_curve_each_over_rho() -> None:
    """Fig. 6 at full has ImageNet's two networks and CIFAR's."""
    labels = [f"{net}ρ = {rho:g}" for net in ("", "ImageNet, R50, ", "ImageNet, R50x2, ") for rho in (0.0, 0.5, 1.0)]
    run = Measured(seed=0, scores={"accuracy": 0.5, "nll": 1.0})
    drawn = mimo.draw_fig_6([Result(item="mimo/fig-6", scale="full", label=label, runs=(run,)) for label in labels])
    (legend,) = drawn["rho"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["MIMO", "ImageNet, R50", "ImageNet, R50x2"]
