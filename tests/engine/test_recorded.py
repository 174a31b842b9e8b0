"""Recorded calls of frozen ensembles, with a stand-in for CUDA graphs; tests/gpu has the true ones."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import recorded
from multitudes.engine.inputs import Inputs


class Stand:
    """Does what a CUDA graph does: reads its own inputs, where the weights lie at the recording."""

    made: list[Stand] = []

    def __init__(self, call: Callable[[list[Tensor]], Tensor], tensors: list[Tensor], other: Any) -> None:
        self.inputs, self.call, self.other, self.replays = [t.clone() for t in tensors], call, other, 0
        call(self.inputs)
        Stand.made.append(self)

    def __call__(self, tensors: list[Tensor]) -> Tensor:
        for mine, given in zip(self.inputs, tensors, strict=True):
            mine.copy_(given)
        self.replays += 1
        return self.call(self.inputs)


class Unrecordable(Stand):
    def __init__(self, *args: Any) -> None:
        Stand.made.append(self)
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> mt.Ensemble:
    Stand.made.clear()
    monkeypatch.setattr(recorded, "Replay", Stand)
    monkeypatch.setattr(recorded, "can_be_recorded", lambda engine, call: True)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    return mt.ensemble(net, mt.Deep(members=2), images(2)).eval().freeze()


def images(rows: int) -> Tensor:
    return torch.randn(rows, 1, 4, 4)


def wanted(ens: mt.Ensemble, x: Tensor) -> Tensor:
    return torch.stack([ens.member(m)(x) for m in range(ens.members)])


class TestRecorded:
    def test_the_second_call_of_a_kind_is_recorded_and_later_ones_replayed(self, frozen: mt.Ensemble) -> None:
        for call, (made, replays) in enumerate([(0, 0), (1, 1), (1, 2), (1, 3)]):
            x = images(5)
            torch.testing.assert_close(frozen(x), wanted(frozen, x))
            assert (len(Stand.made), sum(stand.replays for stand in Stand.made)) == (made, replays), call

    def test_other_rows_precisions_and_layouts_are_other_kinds(self, frozen: mt.Ensemble) -> None:
        calls: list[Tensor] = [images(5), images(3), images(5).transpose(2, 3)]
        for x in calls * 2:
            frozen(x)
        with torch.inference_mode():
            frozen(calls[0])
        assert len(Stand.made) == 3 and len(frozen.recorded.replays) == 4
        assert [stand.other for stand in Stand.made] == [None, Stand.made[0], Stand.made[0]]

    def test_weights_that_change_in_place_are_read(self, frozen: mt.Ensemble) -> None:
        x = images(4)
        for _ in range(3):
            frozen(x)
        with torch.no_grad():
            for buffer in (*frozen.parameters(), *frozen.buffers()):
                buffer.mul_(1.5)
        torch.testing.assert_close(frozen(x), wanted(frozen, x))
        assert len(Stand.made) == 1

    def test_weights_in_other_memory_are_recorded_again(self, frozen: mt.Ensemble) -> None:
        x = images(4)
        for _ in range(3):
            frozen(x)
        frozen.float()  # the tests of this folder are in double precision
        for _ in range(3):
            torch.testing.assert_close(frozen(x.float()), wanted(frozen, x.float()))
        assert len(Stand.made) == 2

    def test_what_cannot_be_recorded_runs_as_usual(self, frozen: mt.Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recorded, "Replay", Unrecordable)
        for _ in range(4):
            x = images(4)
            torch.testing.assert_close(frozen(x), wanted(frozen, x))
        assert len(Stand.made) == 1, "a kind is tried once"

    def test_no_more_kinds_than_are_allowed(self, frozen: mt.Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recorded, "MOST", 2)
        for rows in (1, 2, 3, 1, 2, 3, 3):
            x = images(rows)
            torch.testing.assert_close(frozen(x), wanted(frozen, x))
        assert len(Stand.made) == 2

    def test_copies_record_on_their_own(self, frozen: mt.Ensemble) -> None:
        x = images(4)
        for _ in range(2):
            frozen(x)
        for other in (copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen))):
            assert other.recorded is not None and other.recorded.replays == {}
            torch.testing.assert_close(other(x), frozen(x))

    def test_calls_per_member_and_by_rows_are_not_recorded(self, frozen: mt.Ensemble) -> None:
        x = images(4)
        for _ in range(3):
            frozen(torch.stack([x, x]), per_member=True)
            frozen(x, rows=torch.tensor([0, 1, 0, 1]))
        assert not Stand.made and not frozen.recorded.replays

    def test_only_frozen_ensembles_record(self) -> None:
        ens = mt.ensemble(nn.Linear(2, 2), mt.Deep(members=2), torch.randn(2, 2))
        assert ens.recorded is None and ens.subset([0]).recorded is None


def test_nothing_is_recorded_on_a_cpu() -> None:
    ens = mt.ensemble(nn.Linear(2, 2), mt.Deep(members=2), torch.randn(2, 2)).eval().freeze()
    assert not recorded.can_be_recorded(ens.engine, Inputs(torch.randn(2, 2)))
    for _ in range(3):
        ens(torch.randn(2, 2))
    assert not ens.recorded.replays
