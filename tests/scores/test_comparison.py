"""Two runs compared: a table that says which is better."""

from __future__ import annotations

import multitudes as mt
from multitudes.scores.comparison import Comparison, Difference, verdict


def test_a_comparison_is_a_table() -> None:
    """Each score has a line: direction, difference, interval, p-value, and who is better if that is clear."""
    found = Comparison(
        accuracy=Difference(0.1, 0.05, 0.15, 0.01), nll=Difference(0.2, 0.1, 0.3, 0.002),
        ece=Difference(-0.01, -0.1, 0.1, 0.4), disagreement=Difference(0.3, 0.2, 0.4, 0.01),
    )  # fmt: skip
    for text in (str(found), repr(found)):
        lines = {line.split("│")[1].split()[0]: line.split("│")[1:-1] for line in text.splitlines() if "│" in line}
        cells = {name: [cell.strip() for cell in line] for name, line in lines.items()}
        assert cells["accuracy"] == ["accuracy ↑", "+0.1000", "+0.0500 to +0.1500", "0.010", "better"]
        assert cells["nll"] == ["nll ↓", "+0.2000", "+0.1000 to +0.3000", "0.002", "worse"]
        assert cells["ece"][-1] == ""
        assert cells["disagreement"][-1] == "different"
    assert found["nll"].p_value == 0.002


def test_verdicts_follow_the_direction_of_each_score() -> None:
    less = Difference(-0.1, -0.2, -0.05, 0.04)
    words = {name: verdict(name, less) for name in ("svhn/fpr95/msp", "svhn/aupr_in/msp", "rmse", "coverage")}
    assert words == {"svhn/fpr95/msp": "better", "svhn/aupr_in/msp": "worse", "rmse": "better", "coverage": "different"}
    assert verdict("rmse", less._replace(p_value=float("nan"))) == ""


def test_help_explains_every_score() -> None:
    """Direction, meaning, and which class is positive."""
    text = mt.score.__doc__ or ""
    for name, one in mt.scores.meaning.MEANINGS.items():
        arrow = {"higher": "↑", "lower": "↓", "": ""}[one.better]
        assert any(line.split()[:1] == [name] and arrow in line and one.about in line for line in text.splitlines()), name
    assert "OOD is the positive class; for aupr_in and fpr95_in it is in-distribution." in text
    assert all(name in text for name in mt.scores.meaning.CRITERIA)
