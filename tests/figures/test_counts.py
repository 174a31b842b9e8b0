"""The figure of counts: a bar and a number for each method."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from multitudes.errors import InputError
from multitudes.figures import counts

RATIOS = {"Gaussian": 2.0, "MNFG": 300.0, "dropout": 1.0}


def test_bars_end_at_the_ratios() -> None:
    ax = counts(RATIOS).axes[0]
    ends = [bar.get_x() + bar.get_width() for bar in ax.patches]  # type: ignore[attr-defined]
    assert ends == pytest.approx([2, 300, 1])
    assert [text.get_text() for text in ax.texts] == ["2 ×", "300 ×", "1 ×"]
    assert [text.get_text() for text in ax.get_yticklabels()] == list(RATIOS)
    assert (ax.get_xscale(), ax.yaxis_inverted()) == ("log", True)
    figure = Figure()
    assert counts(RATIOS, ax=figure.subplots()) is figure


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="above 0"):
        counts({"a": 0.0})
    with pytest.raises(InputError, match="runs is empty"):
        counts({})
