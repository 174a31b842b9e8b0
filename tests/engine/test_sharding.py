"""Sharded ensembles in one process: whole tensors are themselves, and sharded parts are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.engine.sharding import full_tensor, gathered, is_sharded, load_full, reshard, shard_like
from multitudes.training.fabric import check_fabric


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def made() -> mt.Ensemble:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    return mt.ensemble(net, mt.Deep(members=2), torch.randn(2, 6), seed=0)


def sharded(*parts: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for part in parts:
        fully_shard(part, mesh=init_device_mesh("cpu", (1,)))


def test_what_is_not_sharded_stays_as_it_is() -> None:
    ens = made()
    assert not is_sharded(ens)
    weight = ens.get_parameter("0.weight")
    assert full_tensor(weight) is weight
    value = torch.zeros_like(weight)
    assert shard_like(value, weight) is value
    reshard(ens)
    with gathered(ens):
        assert ens.get_parameter("0.weight") is weight
    load_full(ens, {name: torch.ones_like(tensor) for name, tensor in ens.state_dict().items()})
    assert weight.unique().tolist() == [1]


@pytest.mark.usefixtures("alone")
def test_whole_and_apart() -> None:
    """Tensors are gathered, laid out again, and loaded."""
    ens, plain = made(), made()
    sharded(ens)
    assert is_sharded(ens)
    for name, tensor in plain.state_dict().items():
        part = ens.state_dict()[name]
        assert torch.equal(full_tensor(part), tensor)
        assert torch.equal(full_tensor(shard_like(tensor, part)), tensor)
    with gathered(ens):
        assert type(ens.get_parameter("0.weight").data) is torch.Tensor
    assert hasattr(ens.get_parameter("0.weight"), "full_tensor")
    load_full(ens, {name: torch.ones_like(tensor) for name, tensor in plain.state_dict().items()})
    assert full_tensor(ens.get_parameter("0.weight")).unique().tolist() == [1]


@pytest.mark.usefixtures("alone")
def test_what_is_refused() -> None:
    """Parts by name, with or without the ensemble around them; settings that need whole tensors."""
    ens = made()
    sharded(ens.get_submodule("2"))
    with pytest.raises(mt.RunError, match=r"\(2\).*fully_shard\(ens\)"):
        is_sharded(ens)
    ens = made()
    sharded(ens.get_submodule("0"), ens.get_submodule("2"), ens)
    with pytest.raises(mt.RunError, match=r"sharded \(0, 2\)"):
        is_sharded(ens)
    ens = made()
    sharded(ens)
    for recipe, noun in ((mt.Recipe(clip=1.0), "clip=1.0"), (mt.Recipe(channels_last=True), "channels_last=True")):
        with pytest.raises(mt.InputError, match=noun):
            check_fabric(None, ens, recipe)
