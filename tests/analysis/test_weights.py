"""The share of weights above a threshold: counted by hand, for shared tensors, members' tensors and both together."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.analysis import weight_share
from multitudes.errors import InputError

pytestmark = pytest.mark.slow


def two_heads() -> mt.Ensemble:
    """A shared layer of 4 weights and 2 biases; two heads of 2 weights and 1 bias."""
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    ens = mt.ensemble(net, mt.MultiHead(members=2), torch.randn(3, 2), seed=0, check=False)
    values = {
        "0.weight": [[1.0, 1e-4], [-0.5, 0.0]],  # 2 of 4: the threshold itself does not count, and the sign does not
        "0.bias": [0.0, 1.0],  # 1 of 2
        "2.weight": [[[1.0, -1.0]], [[1e-5, 1.0]]],  # 2 of 2 and 1 of 2
        "2.bias": [[0.0], [1.0]],  # 0 of 1 and 1 of 1
    }
    with torch.no_grad():
        for name, parameter in ens.named_parameters():
            parameter.copy_(torch.tensor(values[name]))
    return ens


def test_shares_are_counted_by_tensor_by_member_and_in_all() -> None:
    result = weight_share(two_heads())
    shown = {name: share.tolist() for name, share in result.shares.items()}
    assert shown == {"0.weight": 0.5, "0.bias": 0.5, "2.weight": [1.0, 0.5], "2.bias": [0.0, 1.0]}
    assert result.counts == {"0.weight": 4, "0.bias": 2, "2.weight": 2, "2.bias": 1}
    assert result.members.tolist() == pytest.approx([5 / 9, 5 / 9])
    assert result.total == pytest.approx((2 + 1 + 2 + 1 + 0 + 1) / 12)


def test_threshold_and_names_select() -> None:
    assert weight_share(two_heads(), 0.7, only="*weight").total == pytest.approx((1 + 2 + 1) / 8)
    assert weight_share(two_heads(), only=["2.*"]).members.tolist() == pytest.approx([2 / 3, 2 / 3])


def test_the_slots_of_mimo_are_its_members() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    ens = mt.ensemble(net, mt.MIMO(members=3), torch.randn(3, 2), seed=0, check=False)
    with torch.no_grad():
        dict(ens.named_parameters())["0.weight"][1].zero_()
    result = weight_share(ens, 0.0)
    assert result.shares["0.weight"].tolist() == [1, 0, 1]
    assert result.shares["0.bias"].ndim == 0


def test_a_plain_module_has_one_member() -> None:
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[3.0, 0.0]]))
        net.bias.zero_()
    result = weight_share(net)
    assert result.total == pytest.approx(1 / 3)
    assert result.members.tolist() == pytest.approx([1 / 3])


def test_the_figure_has_a_bar_for_each_tensor() -> None:
    ax = weight_share(two_heads()).figure(theme="dark").axes[0]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert "0.0001" in ax.get_xlabel()


def test_bad_input_is_refused() -> None:
    with pytest.raises(InputError, match="threshold must be"):
        weight_share(two_heads(), -1)
    with pytest.raises(InputError, match=r"only=.*'3.\*'.*There are 0.bias"):
        weight_share(two_heads(), only="3.*")
    with pytest.raises(InputError, match="ReLU has no parameters"):
        weight_share(nn.ReLU())
