"""SVHN's .mat files, from a small file of the same format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data import small_sets as small

from multitudes import data


def test_images_are_transposed_and_label_ten_is_the_digit_zero(tmp_path: Path) -> None:
    (tmp_path / "svhn").mkdir()
    small.svhn(tmp_path / "svhn")
    test = data.svhn("test", tmp_path)
    assert test.targets.tolist() == [1, 0, 9, 5, 0]
    np.testing.assert_array_equal(test.inputs.numpy(), small.HOUSES.transpose(0, 3, 1, 2))
    assert test.mean.tolist() == pytest.approx([0.4377, 0.4438, 0.4728])
    assert test.std.tolist() == pytest.approx([0.1980, 0.2010, 0.1970])
