"""The figure of weight shares: bars are means, dots are members, the line is the total."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from multitudes.errors import InputError
from multitudes.figures import weight_share
from multitudes.figures.weight_share import READABLE

SHARES = {"a.weight": torch.tensor(0.5), "b.weight": torch.tensor([0.2, 0.6]), "b.bias": [1.0, 0.0]}


def test_bars_are_in_the_order_of_the_tensors() -> None:
    ax = weight_share(SHARES, 0.4, threshold=1e-4).axes[0]
    bars = {round(bar.get_y() + bar.get_height() / 2): bar.get_width() for bar in ax.patches}  # type: ignore[attr-defined]
    assert bars == {0: 0.5, 1: pytest.approx(0.4), 2: 0.5}
    assert [text.get_text() for text in ax.get_yticklabels()] == list(SHARES)
    assert ax.yaxis_inverted()
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    np.testing.assert_allclose([line.get_xdata() for line in dots], [[0.2, 0.6], [1, 0]], rtol=1e-6)
    assert "0.0001" in ax.get_xlabel()
    assert ax.lines[-1].get_xdata() == [0.4, 0.4]
    names = [text.get_text() for text in ax.figure.figure.legends[0].get_texts()]  # type: ignore[union-attr]
    assert sorted(names) == ["all weights: 0.400", "members' own", "shared"]


def test_many_tensors_have_some_names() -> None:
    ax = weight_share({f"layer{k}": 0.5 for k in range(3 * READABLE)}).axes[0]
    assert len(ax.get_yticklabels()) == READABLE


@pytest.mark.parametrize(
    ("shares", "message"),
    [({"a": 1.5}, "share of 'a' must be from 0 to 1"), ({}, "runs is empty"), ({"a": [[0.5]]}, r"share of 'a' .*\[M\]")],
)
def test_bad_input_is_refused(shares: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        weight_share(shares)
