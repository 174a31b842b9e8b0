"""Devices of a run, and torch's settings for the time of it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.training.fabric import check_fabric, device_of, fabric_for, torch_settings
from multitudes.training.recipe import Recipe


def test_settings_are_as_they_were() -> None:
    """Randomness, and which algorithms are allowed."""
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with pytest.raises(ValueError, match="now"), torch_settings(Recipe(deterministic=True)):
        assert torch.are_deterministic_algorithms_enabled()
        torch.manual_seed(99)
        raise ValueError("now")
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("deterministic", [True, False])
def test_warnings_stay_warnings(deterministic: bool) -> None:
    """Where algorithms that are not deterministic were only warned of, they are not forbidden afterwards."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with torch_settings(Recipe(deterministic=deterministic)):
            assert torch.is_deterministic_algorithms_warn_only_enabled() != deterministic
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_settings_that_stay_are_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """To set them torch imports its compiler, for which every refusal and every short run waited."""
    calls: list[Any] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *args, **_: calls.append(args))
    with torch_settings(Recipe()):
        pass
    assert calls == []


def test_the_ensembles_device() -> None:
    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2), torch.randn(2, 3), seed=0)
    assert device_of(ens) == torch.device("cpu")
    fabric = fabric_for(ens, Recipe(precision="bf16"), None)
    assert fabric.device == torch.device("cpu")
    assert (fabric.world_size, fabric.global_rank) == (1, 0)


def test_fabrics_of_ones_own() -> None:
    """One device, or DDP; what would shard is refused by name."""
    from lightning_fabric import Fabric
    from lightning_fabric.strategies import ModelParallelStrategy

    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2), torch.randn(2, 3), seed=0)
    check_fabric(Fabric(accelerator="cpu", devices=1), ens, Recipe())
    check_fabric(Fabric(accelerator="cpu", devices=2, strategy="ddp"), ens, Recipe())
    with pytest.raises(mt.InputError, match=r"ModelParallelStrategy.*fully_shard\(ens\)"):
        check_fabric(SimpleNamespace(strategy=ModelParallelStrategy(lambda module, mesh: module)), ens, Recipe())
    with pytest.raises(mt.InputError, match="not str"):
        check_fabric("cpu", ens, Recipe())
    half = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    check_fabric(half, ens, Recipe(precision="bf16"))
    with pytest.raises(mt.InputError, match=r"Recipe\(precision='32'\).*Fabric\(precision='32-true'\).*'bf16-mixed'"):
        check_fabric(half, ens, Recipe())


@pytest.mark.parametrize("settings", [{"optimizer": "lamb"}, {"clip": 1.0}, {"channels_last": True}])
def test_what_a_sharded_ensemble_cannot_do(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms of whole tensors are not there, nor layouts; the setting is named."""
    monkeypatch.setattr("multitudes.training.fabric.is_sharded", lambda ensemble: True)
    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2), torch.randn(2, 3), seed=0)
    with pytest.raises(mt.InputError, match=rf"Recipe\({next(iter(settings))}=.*sharded"):
        check_fabric(None, ens, Recipe(**settings))


@pytest.mark.slow
def test_torchmetrics_is_not_imported_for_its_version() -> None:
    """Lightning Fabric imports it only to read that, which takes seconds."""
    script = (
        "import sys\nfrom multitudes.training.fabric import _fabric\n_fabric()\n"
        "assert 'torchmetrics' not in sys.modules\n"
        "from importlib.util import find_spec\nfrom lightning_fabric.utilities import imports\n"
        "assert imports._TORCHMETRICS_GREATER_EQUAL_1_0_0 == (find_spec('torchmetrics') is not None)\n"
        "from lightning_utilities.core.imports import compare_version\nassert compare_version.__name__ == 'compare_version'\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_fabric_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is said."""

    def missing(name: str, *args: Any) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("multitudes.training.fabric.import_module", missing)
    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2), torch.randn(2, 3), seed=0)
    with pytest.raises(mt.InputError, match=r"pip install 'multitudes\[train\]'"):
        fabric_for(ens, Recipe(), None)
