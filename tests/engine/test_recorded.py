"""Recorded calls of frozen ensembles, with a stand-in for CUDA graphs; tests/gpu has the true ones."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_hook

import multitudes as mt
from multitudes.engine import recorded
from multitudes.engine.inputs import Inputs
from multitudes.files.export.shortcuts import Shortcuts


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
    frozen = mt.ensemble(net, mt.Deep(members=2), images(2)).eval().freeze()
    monkeypatch.setattr(Shortcuts, "run", lambda self, engine, call: self.recorded.run(engine, call))  # as on a GPU
    return frozen


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
        assert len(Stand.made) == 3 and len(frozen.shortcuts.recorded.replays) == 4
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

    def test_weights_that_lie_otherwise_in_the_same_memory_are_recorded_again(self, frozen: mt.Ensemble) -> None:
        """What is freed may be taken by a tensor of another layout or precision."""
        x = images(4)
        for _ in range(3):
            frozen(x)
        weight = next(p for p in frozen.parameters() if p.ndim == 3)
        square = weight.data[:, :, : weight.shape[1]]
        weight.data = weight.data.as_strided(weight.shape, (square.stride(0), 1, square.shape[1]))
        for _ in range(2):
            torch.testing.assert_close(frozen(x), wanted(frozen, x))
        assert len(Stand.made) == 2

    def test_switches_of_torch_and_the_executor_are_part_of_the_kind(self, frozen: mt.Ensemble) -> None:
        call = Inputs(images(4))
        kinds = [recorded._kind(frozen.engine, call)]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            kinds.append(recorded._kind(frozen.engine, call))
        frozen.engine.picked = dict.fromkeys(frozen.engine.picked, "none of them")
        kinds.append(recorded._kind(frozen.engine, call))
        assert len(set(kinds)) == 3

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
            assert other.shortcuts is not None and other.shortcuts.recorded.replays == {}
            torch.testing.assert_close(other(x), frozen(x))

    def test_calls_per_member_and_by_rows_are_not_recorded(self, frozen: mt.Ensemble) -> None:
        x = images(4)
        for _ in range(3):
            frozen(torch.stack([x, x]), per_member=True)
            frozen(x, rows=torch.tensor([0, 1, 0, 1]))
        assert not Stand.made and not frozen.shortcuts.recorded.replays

    def test_only_frozen_ensembles_record(self) -> None:
        ens = mt.ensemble(nn.Linear(2, 2), mt.Deep(members=2), torch.randn(2, 2))
        assert ens.shortcuts is None and ens.subset([0]).shortcuts is None


class TestWhatIsRecorded:
    """A replay has neither gradients nor operations that others could see."""

    @pytest.fixture
    def ens(self, monkeypatch: pytest.MonkeyPatch) -> mt.Ensemble:
        monkeypatch.setattr(recorded, "_is_plain", lambda value: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        ens = mt.ensemble(nn.Linear(2, 2), mt.Deep(members=2), torch.randn(2, 2)).eval().freeze()
        assert self.recordable(ens)
        return ens

    def recordable(self, ens: mt.Ensemble) -> bool:
        return recorded.can_be_recorded(ens.engine, Inputs(torch.randn(2, 2)))

    def test_no_weights_that_require_gradients(self, ens: mt.Ensemble) -> None:
        ens.requires_grad_(True)
        assert not self.recordable(ens)
        with torch.no_grad():
            assert not self.recordable(ens), "autocast keeps what it casts of them"

    def test_not_under_forward_mode_gradients(self, ens: mt.Ensemble) -> None:
        with forward_ad.dual_level():
            assert not self.recordable(ens)

    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
    def test_not_in_a_trace(self, ens: mt.Ensemble) -> None:
        seen = []

        def look(x: Tensor) -> Tensor:
            seen.append(self.recordable(ens))
            return x + 1

        torch.jit.trace(look, torch.randn(2, 2), check_trace=False)
        assert seen == [False]

    def test_not_under_a_hook_on_all_modules(self, ens: mt.Ensemble) -> None:
        handle = register_module_forward_hook(lambda *_: None)
        try:
            assert not self.recordable(ens)
        finally:
            handle.remove()


def test_recordings_that_share_memory_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """On whatever streams they run: what one waits for is what the other says when it has ended."""
    said: list[tuple[str, Any]] = []

    class Event:
        def record(self, _: Any = None) -> None:
            said.append(("ends", self))

    class Stream:
        def wait_stream(self, _: Any) -> None: ...

        def wait_event(self, event: Event) -> None:
            said.append(("waits", event))

    class Graph:
        def pool(self) -> str:
            return "pool"

        def replay(self) -> None: ...

    for name, fake in {"Event": Event, "Stream": Stream, "CUDAGraph": Graph, "current_stream": Stream}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for name in ("device", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: contextlib.nullcontext())
    x = torch.randn(2)
    one = recorded.Replay(lambda own: own[0] + 1, [x], None)
    two = recorded.Replay(lambda own: own[0] + 2, [x], one)
    said.clear()
    one([x])
    two([x])
    assert [what for what, _ in said] == ["waits", "ends"] * 2 and said[2][1] is said[1][1]


def test_nothing_is_recorded_on_a_cpu() -> None:
    ens = mt.ensemble(nn.Linear(2, 2), mt.Deep(members=2), torch.randn(2, 2)).eval().freeze()
    assert not recorded.can_be_recorded(ens.engine, Inputs(torch.randn(2, 2)))
    for _ in range(3):
        ens(torch.randn(2, 2))
    assert not ens.shortcuts.recorded.replays
