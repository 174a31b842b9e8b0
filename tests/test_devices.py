"""Devices of a run, and torch's settings for the time of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.devices import device_of, fabric_for, settled
from multitudes.recipes import Recipe


def test_settings_are_as_they_were() -> None:
    """Randomness, and which algorithms are allowed."""
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with pytest.raises(ValueError, match="now"), settled(Recipe(deterministic=True), torch.device("cpu")):
        assert torch.are_deterministic_algorithms_enabled()
        torch.manual_seed(99)
        raise ValueError("now")
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.rand(2), expected)


def test_the_ensembles_device() -> None:
    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2), torch.randn(2, 3), seed=0)
    assert device_of(ens) == torch.device("cpu")
    fabric = fabric_for(ens, Recipe(precision="bf16"), None)
    assert fabric.device == torch.device("cpu")
    assert (fabric.world_size, fabric.global_rank) == (1, 0)


def test_fabric_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is said."""

    def missing(name: str, *args: Any) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("multitudes.devices.import_module", missing)
    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2), torch.randn(2, 3), seed=0)
    with pytest.raises(mt.InputError, match=r"pip install 'multitudes\[train\]'"):
        fabric_for(ens, Recipe(), None)
