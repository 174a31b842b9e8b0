"""Architectures: what tells them apart, tensors aside."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch import nn
from zoo import ZOO

from multitudes.conversion.anatomy.architecture import differences, settings

PAIRS = {
    "stride": (nn.Conv2d(3, 4, 3, stride=1), nn.Conv2d(3, 4, 3, stride=2), "stride=[1, 1] there and stride=[2, 2] here"),
    "padding": (nn.Conv2d(3, 4, 3, padding="same"), nn.Conv2d(3, 4, 3, padding=1), "padding='same' there and padding=[1, 1]"),
    "mode": (nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3, padding_mode="circular"), "padding_mode='zeros' there"),
    "heads": (nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 4), "num_heads=2 there and num_heads=4 here"),
    "eps": (nn.LayerNorm(4), nn.LayerNorm(4, eps=0.1), "eps=1e-05 there and eps=0.1 here"),
    "slope": (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2), "the model, a LeakyReLU, has negative_slope=0.1 there"),
    "size": (nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((2, 2)), "output_size=1 there and output_size=[2, 2] here"),
    "scale": (nn.Upsample(scale_factor=2), nn.Upsample(scale_factor=3), "scale_factor=2.0 there"),
    "kind": (nn.ReLU(), nn.GELU(), "the model is ReLU there and GELU here"),
    "gelu": (nn.GELU(), nn.GELU(approximate="tanh"), "approximate='none' there"),
    "missing": (nn.Sequential(nn.ReLU(), nn.ReLU()), nn.Sequential(nn.ReLU()), "1 is ReLU there and nothing here"),
    "rnn": (nn.LSTM(3, 4), nn.LSTM(3, 4, batch_first=True), "batch_first=False there"),
}


class Half(nn.Conv2d):
    """A layer of somebody's own, with torch's settings and a count that is none."""

    def __init__(self, **options: Any) -> None:
        super().__init__(3, 4, 3, **options)
        self.calls = 0


class Holder(nn.Conv2d):
    """A layer that names as constants what JSON does not have."""

    __constants__ = ("kept", "parts", "size")

    def __init__(self) -> None:
        super().__init__(3, 4, 3)
        self.kept, self.parts, self.size = [object()], (nn.ReLU(),), (1, [2, None])


class Spoken(nn.Module):
    """A module that says its settings in words."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.power = power

    def extra_repr(self) -> str:
        return f"power={self.power}"


@pytest.mark.parametrize(("there", "here", "says"), PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("common", [False, True])
def test_what_differs_is_named(there: nn.Module, here: nn.Module, says: str, common: bool) -> None:
    """Also where only settings that both know are compared."""
    assert any(says in found for found in differences(settings(there), settings(here), common))
    assert differences(settings(there), settings(there)) == []


def test_what_is_no_setting() -> None:
    """Rates of dropout, and counts that a layer of somebody's own keeps."""
    assert differences(settings(nn.Dropout(0.1)), settings(nn.Dropout(0.2))) == []
    there, here = Half(), Half()
    here.calls = 7
    assert differences(settings(there), settings(here)) == []
    assert differences(settings(there), settings(Half(stride=2)))
    assert "says='power=2' there" in differences(settings(Spoken(2)), settings(Spoken(3)))[0]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if "hugging_face" in n else []) for n in ZOO])
def test_they_are_json(name: str) -> None:
    """And the same after it; two of a kind do not differ."""
    found = settings(ZOO[name].model())
    assert json.loads(json.dumps(found)) == found
    assert differences(found, settings(ZOO[name].model(seed=1))) == []


def test_what_json_does_not_have_is_left_out() -> None:
    found = settings(Holder())[""]
    assert found["size"] == [1, [2, None]]
    assert not {"kept", "parts"} & found.keys()


def test_a_setting_that_only_one_torch_has() -> None:
    """Counts between files of one version, and not between those of two."""
    there, here = settings(nn.BatchNorm2d(3)), settings(nn.BatchNorm2d(3))
    here[""]["new"] = True
    assert "new=None there and new=True here" in differences(there, here)[0]
    assert differences(there, here, common=True) == []
