"""Statistics of masks: by hand, by listing all masks, and against the numbers of the paper."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.analysis import mask_iou, mask_size, mask_statistics, mask_sweep
from multitudes.errors import InputError

pytestmark = pytest.mark.slow

TABLE = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])


def test_overlap_by_hand() -> None:
    expected = [[1, 1 / 3, 0], [1 / 3, 1, 1 / 3], [0, 1 / 3, 1]]
    np.testing.assert_allclose(mask_iou(TABLE), expected)
    result = mask_statistics(TABLE)
    np.testing.assert_allclose(result.iou[0], expected)
    assert float(result.mean_iou) == pytest.approx(2 / 9)
    assert (result.members, result.ones.tolist(), result.size.tolist()) == (3, [2], [4])


def test_features_without_a_mask_do_not_count() -> None:
    wider = torch.nn.functional.pad(TABLE, (0, 3))
    assert mask_statistics(wider).size.tolist() == [4]
    assert mask_statistics(wider).scale.tolist() == mask_statistics(TABLE).scale.tolist()


def test_the_expected_size_is_the_mean_over_all_masks() -> None:
    """Three masks of 2 ones among 4 positions, S = 2: all 216 choices are listed."""
    choices = list(combinations(range(4), 2))
    sizes = [len(set().union(*chosen)) for chosen in product(choices, repeat=3)]
    assert mask_size(2, 3, 2.0) == pytest.approx(np.mean(sizes))


def test_the_paper_s_sizes() -> None:
    """Fig. 4: 100 ones in 4 masks at S = 1.1, 2, 3 and 10 need 110, 188, 241 and 344 hidden units."""
    assert [round(mask_size(100, 4, scale)) for scale in (1.1, 2.0, 3.0, 10.0)] == [110, 188, 241, 344]
    assert mask_size(7, 5, 1.0) == 7


def test_the_scale_is_found_from_the_size() -> None:
    """At the scale of each layer, the expected size is the layer's: solved here by scipy."""
    from scipy.optimize import brentq

    result = mask_statistics(mt.masks(96, 4, 2.5, torch.Generator().manual_seed(1)))
    ones = float(result.ones)
    scale = brentq(lambda s: ones * s * (1 - (1 - 1 / s) ** 4) - 96, 1.001, 50)
    assert float(result.scale) == pytest.approx(scale)
    assert float(result.expected_iou) == pytest.approx(1 / (2 * scale - 1))
    assert float(result.expected_size) == pytest.approx(96)
    assert float(result.mean_iou) == pytest.approx(1 / (2 * scale - 1), abs=0.05)


def test_masks_of_an_ensemble_have_a_row_for_each_layer() -> None:
    net = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2))
    ens = mt.ensemble(net, mt.Masksembles(members=4), torch.randn(4, 3), seed=0, check=False)
    result = mask_statistics(ens)
    assert result.names == ("2.mask", "4.mask")
    assert result.size.tolist() == [24, 16]
    for row, layer in zip(result.iou, (ens.template[2], ens.template[4]), strict=True):  # type: ignore[index]
        kept = layer.mask.bool().numpy()
        expected = [[(a & b).sum() / (a | b).sum() for b in kept] for a in kept]
        np.testing.assert_allclose(row, expected)
    figure = result.figure(theme="dark")
    np.testing.assert_allclose(figure.axes[1].lines[1].get_xdata(), sorted(result.scale.tolist()))


def test_a_sweep_meets_what_is_expected() -> None:
    """Sizes within 2 %, overlaps within 0.02; at S = 1 all masks are equal."""
    result = mask_sweep((1.0, 2.0, 5.0), (2, 8), ones=100, draws=30)
    np.testing.assert_allclose(result.size, result.expected_size, rtol=0.02)
    np.testing.assert_allclose(result.iou, [[1, 1 / 3, 1 / 9]] * 2, atol=0.02)
    np.testing.assert_allclose(result.expected_size[:, 1], [2 * (1 - 1 / 4), 2 * (1 - 1 / 256)])
    assert result.size[:, 0].tolist() == [1, 1]
    assert result.figure().axes[0].get_title(loc="left") == "Size"


def test_masks_without_overlap_have_no_scale() -> None:
    result = mask_statistics(torch.eye(3))
    assert result.scale.tolist() == [float("inf")]
    assert (float(result.expected_iou), float(result.mean_iou)) == (0, 0)
    with pytest.raises(InputError, match="no two masks overlap"):
        result.figure()


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (torch.ones(4), r"\[N, C\]"),
        (torch.full((2, 3), 0.5), "zeros and ones"),
        (torch.tensor([[1, 0], [0, 0]]), "zeros and ones"),
        (torch.tensor([[1, 1], [0, 1]]), r"different numbers of ones, \[2, 1\]"),
        ("masks", "not a str"),
    ],
)
def test_bad_masks_are_refused(masks: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mask_statistics(masks)


def test_other_bad_input_is_refused() -> None:
    ens = mt.ensemble(nn.Linear(2, 2), mt.Deep(members=2), torch.randn(3, 2), check=False)
    with pytest.raises(InputError, match=r"Deep has no masks.*Masksembles"):
        mask_statistics(ens)
    with pytest.raises(InputError, match="scale must be"):
        mask_size(10, 4, 0.5)
    with pytest.raises(InputError, match="members must be"):
        mask_sweep(members=(1,))
