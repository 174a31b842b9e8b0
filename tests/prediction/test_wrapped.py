"""predict and save of ensembles that are compiled, or wrapped for several processes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import multitudes as mt

X, Y = torch.randn(10, 4, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3


@pytest.fixture(scope="module")
def ensemble() -> mt.Ensemble:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return mt.ensemble(net, mt.Deep(members=2), X, seed=0, check=False)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def members(ens: mt.Ensemble) -> torch.Tensor:
    with torch.no_grad():
        return torch.stack([ens.member(m).eval()(X) for m in range(2)])


def check(wrapped: Any, ens: mt.Ensemble, path: Path) -> None:
    """Outputs are those of plain members, modes and buffers stay, and the file is the ensemble's."""
    wrapped.train()
    before = {name: value.clone() for name, value in ens.state_dict().items()}
    pred = mt.predict(wrapped, TensorDataset(X, Y), batch_size=4)
    torch.testing.assert_close(pred.members["logits"], members(ens))
    assert wrapped.training and ens.training and all(part.training for part in ens.modules())
    assert all(torch.equal(value, before[name]) for name, value in ens.state_dict().items())
    mt.save(wrapped, path / "a.multitude")
    torch.testing.assert_close(mt.load(path / "a.multitude", ens.base.to_empty(device="cpu")).state_dict(), before)


@pytest.mark.slow
def test_compiled(ensemble: mt.Ensemble, tmp_path: Path) -> None:
    calls = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(graph)
        return graph.forward

    ens = copy.deepcopy(ensemble)
    check(torch.compile(ens, backend=backend), ens, tmp_path)
    assert calls, "the compiled form is what runs"


def test_wrapped_for_processes(ensemble: mt.Ensemble, tmp_path: Path, process: None) -> None:
    ens = copy.deepcopy(ensemble)
    check(nn.parallel.DistributedDataParallel(ens), ens, tmp_path)


@pytest.mark.slow
def test_draws_of_a_compiled_ensemble(ensemble: mt.Ensemble) -> None:
    ens = mt.ensemble(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)), mt.MCDropout(members=2), X, seed=0)
    compiled = torch.compile(ens, backend="eager")
    torch.testing.assert_close(
        mt.predict(compiled, X, draws=5).members["logits"], mt.predict(ens, X, draws=5).members["logits"]
    )


def test_a_plain_network_in_a_wrapper_is_no_ensemble() -> None:
    with pytest.raises(mt.InputError, match="not Linear: make one with"):
        mt.predict(torch.compile(nn.Linear(4, 3), backend="eager"), X)  # type: ignore[arg-type]


def test_fit_compiles_and_wraps_itself(ensemble: mt.Ensemble, process: None) -> None:
    data = TensorDataset(X, Y)
    with pytest.raises(mt.InputError, match=r"Recipe\(compile=True\)"):
        mt.fit(torch.compile(ensemble, backend="eager"), data)  # type: ignore[arg-type]
    with pytest.raises(mt.InputError, match="start with torchrun"):
        mt.fit(nn.parallel.DistributedDataParallel(ensemble), data)  # type: ignore[arg-type]
    with pytest.raises(mt.InputError, match="fit takes an ensemble, not Linear"):
        mt.fit(nn.Linear(4, 3), data)  # type: ignore[arg-type]
