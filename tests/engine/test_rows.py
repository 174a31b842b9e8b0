"""Rows of members: lookups of their tensors are those of an index, and a GPU is not waited for."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import multitudes as mt
from multitudes.engine import fold, rows
from multitudes.engine import run as running
from multitudes.engine.rows import (
    FEW_MEMBERS,
    LookUp,
    _note,
    among_all,
    in_dtype,
    of_each_row,
    of_repeated_rows,
    of_rows,
    split_evenly,
    values_of,
)
from multitudes.models import resnet18

M = 3
KINDS = (("index", "embedding"), "_to_copy")
"""Operations that look up, with their gradients, and those that cast."""


def tables(members: int = M) -> dict[str, Tensor]:
    """Parameters of two shapes, a buffer of whole numbers, and one value for each member."""
    torch.manual_seed(0)
    shapes = {"a": (5,), "b": (5,), "c": (2, 3), "d": ()}
    found: dict[str, Tensor] = {
        name: nn.Parameter(torch.randn(members, *shape, dtype=torch.float64)) for name, shape in shapes.items()
    }
    return {**found, "e": torch.arange(members * 2).view(members, 2)}


def by_operator(table: Tensor, members: Tensor) -> Tensor:
    """The way of a compiler."""
    return torch.stack(LookUp.apply(members, 1, *table.unbind(0)))


WAYS = [of_rows, by_operator, among_all]


class TestEntriesOfRows:
    """Values and gradients are those of an index."""

    @pytest.mark.parametrize("way", WAYS)
    @pytest.mark.parametrize("members", [M, FEW_MEMBERS + 1])
    @pytest.mark.parametrize("limit", [rows.BYTES, 1])
    def test_by_name(self, way: Callable[..., Tensor], members: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rows, "of_rows", way)
        monkeypatch.setattr(rows, "BYTES", limit)
        given, names = tables(members), torch.tensor([2, 0, 0, 2, 1])
        found = of_each_row(given, names)
        assert found.keys() == given.keys()
        for name, tensor in given.items():
            assert torch.equal(found[name], tensor[names]), name
            if tensor.requires_grad:
                weights = torch.randn_like(found[name])
                pair = [(y * weights).sum() for y in (found[name], tensor[names])]
                ours, plain = (torch.autograd.grad(y, tensor, retain_graph=True)[0] for y in pair)
                torch.testing.assert_close(ours, plain)
                assert ours.is_contiguous(), "torch would copy it"

    @pytest.mark.parametrize("members", [M, FEW_MEMBERS + 1])
    def test_compiled(self, members: int) -> None:
        """Also where another member's entry is not a number."""
        table = torch.randn(members, 5, dtype=torch.float64, requires_grad=True)
        names = torch.tensor([2, 0, 0, 2, 1])
        compiled = torch.compile(lambda t, n: of_each_row({"t": t}, n)["t"], backend="aot_eager", fullgraph=True)
        found = compiled(table, names)
        assert torch.equal(found, table[names])
        weights = torch.randn_like(found)
        ours, wanted = (torch.autograd.grad((y * weights).sum(), table)[0] for y in (found, table[names]))
        torch.testing.assert_close(ours, wanted)
        with torch.no_grad():
            table[1] = torch.nan
        assert not compiled(table, names)[:4].isnan().any()

    @pytest.mark.parametrize("way", WAYS)
    def test_a_gradient_that_is_not_a_number_stays_with_its_member(self, way: Callable[..., Tensor]) -> None:
        table, names = torch.randn(1, M, 4, requires_grad=True), torch.tensor([2, 0, 1])
        entries = way(table, names)
        entries.backward(torch.tensor([[torch.nan], [1.0], [1.0]]).expand(1, 3, 4))
        assert table.grad is not None
        assert table.grad[0, 2].isnan().all()
        assert torch.equal(table.grad[0, :2], torch.ones(2, 4))

    def test_gradients_of_gradients(self) -> None:
        table, names = torch.randn(2, M, 3, dtype=torch.float64, requires_grad=True), torch.tensor([2, 0, 0, 1])
        torch.autograd.gradcheck(lambda t: of_rows(t, names).square(), table)
        torch.autograd.gradgradcheck(lambda t: of_rows(t, names).pow(3), table)

    @pytest.mark.parametrize("each", [1, 3])
    def test_operator_of_blocks(self, each: int) -> None:
        """Values and gradients are those of an index."""
        tensors = [torch.randn(M, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
        names = torch.tensor([2, 0, 0])
        found = LookUp.apply(names, each, *tensors)
        for entries, tensor in zip(found, tensors, strict=True):
            assert torch.equal(entries, tensor[names.repeat_interleave(each)])
        torch.autograd.gradcheck(lambda *t: LookUp.apply(names, each, *t)[1].square(), tensors)

    def test_repeated(self) -> None:
        given = tables()
        for name, entries in of_repeated_rows(given, 4).items():
            assert torch.equal(entries, given[name].repeat_interleave(4, 0)), name

    def test_lowered_together(self) -> None:
        """Under autocast a layer gets what was cast for all; in single precision it gets single precision."""
        given = {name: nn.Parameter(torch.randn(M, 5, dtype=torch.float32)) for name in "ab"}
        names = torch.tensor([1, 1, 0, 2])
        with torch.autocast("cpu", torch.bfloat16):
            found = of_each_row(given, names)
        for name, entries in found.items():
            assert in_dtype(entries, torch.float32) is entries
            lower = in_dtype(entries, torch.bfloat16)
            assert lower is entries.multitudes_lowered  # type: ignore[attr-defined]
            assert torch.equal(lower, given[name][names].bfloat16())
            assert in_dtype(entries, torch.float16).dtype is torch.float16
            (grad,) = torch.autograd.grad(lower.sum() + 2 * entries.sum(), given[name], retain_graph=True)
            assert torch.equal(grad, 3.0 * torch.tensor([1, 2, 1])[:, None].expand(M, 5))


class Counter(TorchDispatchMode):
    """Counts operations that launch something, forward and backward."""

    VIEWS = (
        "view",
        "select",
        "expand",
        "unsqueeze",
        "squeeze",
        "detach",
        "unbind",
        "slice",
        "as_strided",
        "alias",
        "t.",
        "reshape",
    )

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if not name.startswith(self.VIEWS):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def step(ens: mt.Ensemble, x: Tensor, names: Tensor) -> tuple[Tensor, dict[str, Tensor], list[str]]:
    """Returns outputs, gradients and operations of a training step under autocast."""
    ens.zero_grad()
    with Counter() as counter:
        with torch.autocast("cpu", torch.bfloat16):
            output = ens(x, rows=names)
        output.float().square().mean().backward()
    return output.detach(), {n: p.grad.clone() for n, p in ens.named_parameters() if p.grad is not None}, counter.names


@pytest.mark.slow
def test_a_step_looks_up_all_layers_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few lookups and casts for the whole network, in place of several for each layer; values and gradients are the same."""
    torch.manual_seed(0)
    net, x, names = resnet18(width=0.125).float(), torch.randn(8, 3, 8, 8).float(), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    ens = mt.ensemble(net, mt.BatchEnsemble(feed="part"), x[:2], seed=0).train()
    together = step(ens, x, names)
    monkeypatch.setattr(fold, "of_each_row", lambda tensors, members, each: {n: t[members] for n, t in tensors.items()})
    apart = step(ens, x, names)
    torch.testing.assert_close(together[0], apart[0], rtol=0, atol=0)
    for name, gradient in together[1].items():
        torch.testing.assert_close(gradient, apart[1][name], rtol=1e-5, atol=1e-6, msg=name)
    lookups, casts = ([sum(name.startswith(kind) for name in found[2]) for found in (together, apart)] for kind in KINDS)
    assert lookups[0] < 20
    assert lookups[1] > 80
    assert casts[0] < casts[1] - 60


@pytest.mark.slow
@pytest.mark.parametrize("method", [mt.BatchEnsemble(members=M, feed="part"), mt.Masksembles(members=M, feed="part")], ids=str)
def test_a_compiled_step(method: mt.Method) -> None:
    """Values and gradients of eager mode, and of members one by one."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    ens, x, names = (
        mt.ensemble(net, method, torch.randn(2, 3, 6, 6), seed=0).train(),
        torch.randn(5, 3, 6, 6),
        torch.tensor([2, 0, 0, 1, 2]),
    )
    found = []
    for run in (ens, torch.compile(ens, backend="aot_eager", fullgraph=True), lambda x, rows: ens(x)[rows, torch.arange(5)]):
        ens.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = run(x, rows=names)
        y.square().sum().backward()
        found.append([y.detach(), *(p.grad.clone() for p in ens.parameters())])
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            torch.testing.assert_close(ours, theirs)


class TestRowsOfABatch:
    """Rows are made where the inputs are, and known on the CPU."""

    @pytest.mark.parametrize("count", [1, 3, 4, 7, 8])
    @pytest.mark.parametrize("first", [0, 3])
    def test_blocks(self, count: int, first: int) -> None:
        """Of nearly equal size, from the first member on."""
        names = split_evenly(count, 4, first, torch.device("cpu"))
        assert names.shape == ((4, 1) if count % 4 == 0 else (count,))
        assert names.flatten().repeat_interleave(count // len(names)).tolist() == [
            (at * 4 // max(count, 4) + first) % 4 for at in range(count)
        ]

    def test_on_another_device(self) -> None:
        """What is there cannot be read: its values are known all the same."""
        names = split_evenly(8, 4, 1, torch.device("meta"))
        assert names.is_meta
        assert values_of(names).tolist() == [[1], [2], [3], [0]]
        names += 1
        with pytest.raises(NotImplementedError):  # noted values are those of another version
            values_of(names)

    def test_in_inference_mode(self) -> None:
        with torch.inference_mode():
            assert split_evenly(8, 4, 1, torch.device("meta")).is_meta
            with pytest.raises(NotImplementedError):  # nothing is noted: such tensors do not count writes
                values_of(split_evenly(8, 4, 1, torch.device("meta")))

    def test_a_copy_of_rows_has_no_values_noted(self) -> None:
        """It takes the note along, but counts writes anew."""
        names = split_evenly(8, 4, 1, torch.device("meta"))
        names += 0
        names += 0
        _note(names, torch.tensor([[1], [2], [3], [0]]))
        other = copy.deepcopy(names)
        while other._version < names._version:
            other += 1
        with pytest.raises(NotImplementedError):
            values_of(other)
        assert values_of(names).tolist() == [[1], [2], [3], [0]]

    def test_of_a_batch(self) -> None:
        ens = mt.ensemble(nn.Linear(4, 3), mt.BatchEnsemble(feed="part"), torch.randn(2, 4))
        batch = ens.batch(torch.randn(8, 4, device="meta"), torch.zeros(8))
        assert batch.kwargs["rows"].is_meta
        assert sorted(values_of(batch.kwargs["rows"]).flatten().tolist()) == [0, 1, 2, 3]

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo asks for it where it goes on after a break
    @pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
    @pytest.mark.parametrize("make", [mt.BatchEnsemble, mt.Masksembles, mt.Deep])
    def test_of_blocks(self, make: Any, compiled: bool) -> None:
        """Named by block, rows have the outputs and the gradients that they have named one by one."""
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3)).double()
        x = torch.randn(8, 4).double()
        ens, found = mt.ensemble(net, make(), x[:2], seed=0).train(), []
        run = torch.compile(ens, backend="aot_eager") if compiled else ens
        for names in (torch.tensor([[2], [3], [0], [1]]), torch.tensor([2, 2, 3, 3, 0, 0, 1, 1])):
            ens.zero_grad()
            y = run(x, rows=names)
            y.square().sum().backward()
            found.append([y.detach(), *(p.grad.clone() for p in ens.parameters() if p.grad is not None)])
        assert len(found[0]) > 4
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)

    @pytest.mark.parametrize("names", [[[0], [1], [2]], [[0, 1]] * 4, [0, 1, 2, 3]])
    def test_blocks_that_do_not_fit(self, names: list[Any]) -> None:
        ens = mt.ensemble(nn.Linear(4, 3), mt.BatchEnsemble(feed="part"), torch.randn(2, 4))
        with pytest.raises(mt.InputError, match="8 whole numbers, one per row, or"):
            ens(torch.randn(8, 4), rows=torch.tensor(names))

    @pytest.mark.parametrize("names", [[0, 4], [-1, 0]])
    def test_of_a_user(self, names: list[int]) -> None:
        ens = mt.ensemble(nn.Linear(4, 3), mt.BatchEnsemble(feed="part"), torch.randn(2, 4))
        with pytest.raises(mt.InputError, match="0 to 3"):
            ens(torch.randn(2, 4), rows=torch.tensor(names))


class TestBlocksTogether:
    """On a GPU and in compiled calls, blocks of rows run by vmap: values, gradients and statistics are those of other ways."""

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("method", [mt.MultiHead(members=M), mt.TreeNet(members=M, branch_at="3")])
    def test_as_in_turn(self, method: mt.Method, training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        torch.manual_seed(0)
        layers = [nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.Flatten(), nn.Linear(64, 3)]
        net, x = nn.Sequential(*layers).double(), torch.randn(8, 2, 6, 6, dtype=torch.float64)
        names, found = torch.tensor([[2], [0], [0], [1]]), []
        for together in (True, False):
            ens = mt.ensemble(net, method, x, seed=0).train(training)
            asked: list[bool] = []
            monkeypatch.setattr(running, "_blocks_run_together", lambda *_, t=together, a=asked: a.append(t) or t)
            y = ens(x, rows=names)
            assert asked == [together]
            y.square().sum().backward()
            found.append((y, {n: p.grad for n, p in ens.named_parameters()}, dict(ens.named_buffers())))
        (y, gradients, buffers), (wanted, of_each, kept) = found
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(gradients, of_each)
        torch.testing.assert_close(buffers, kept)
        assert int(buffers["1.num_batches_tracked"]) == int(training)
        assert y.shape == (8, 3) and not torch.equal(y[:2], y[6:])

    def test_a_compiled_step_is_one_graph(self) -> None:
        """Where rows are searched for in turn, dynamo stops."""
        net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(6, 4)
        ens = mt.ensemble(net, mt.MultiHead(members=M), x, seed=0).train()
        names = torch.tensor([[2], [0], [1]])
        wanted = ens(x, rows=names)
        assert torch.equal(wanted[:2], ens(x)[2, :2])
        compiled = torch.compile(ens, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x, rows=names), wanted)

    def test_members_that_hold_constants(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Masks of members are constants, of which blocks take copies. Statistics of members would be lost with a copy."""
        net, x = Attending().double(), torch.randn(8, 5, 8, dtype=torch.float64)
        ens = mt.ensemble(net, mt.Masksembles(members=M, fewest=2, feed="part"), x, seed=0).train()
        assert ens.engine.owned and not running.takes_rows(ens.engine) and not ens.engine.writes_owned()
        names, found = torch.tensor([[2], [0], [0], [1]]), []
        for device in ("cpu", "cuda"):
            monkeypatch.setattr(type(ens.engine), "device_type", device)
            assert running._blocks_run_together(ens.engine, len(names)) == (device == "cuda")
            ens.zero_grad()
            y = ens(x, rows=names)
            y.square().sum().backward()
            found.append((y.detach(), {n: p.grad for n, p in ens.named_parameters()}))
        torch.testing.assert_close(*found)
        normed = mt.ensemble(nn.Sequential(Attending(), nn.BatchNorm1d(3)).double(), mt.MultiHead(members=M), x, seed=0)
        assert "1.running_mean" in normed.engine.owned and normed.engine.writes_owned()
        assert not running._blocks_run_together(normed.engine, len(names))


class Attending(nn.Module):
    """Attention between two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(8, 16), nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        output: Tensor = self.head((y + self.attention(y, y, y, need_weights=False)[0]).mean(1))
        return output


class CalledTwice(nn.Module):
    """A BatchNorm that is called twice, and one in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.still = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.still(self.twice(self.twice(self.first(x)))))


def test_compiled_counters_of_batches() -> None:
    """They count as in a plain call."""
    torch.manual_seed(0)
    ens, x = mt.ensemble(CalledTwice(), mt.BatchEnsemble(members=2), torch.randn(6, 4), seed=0), torch.randn(6, 4)
    ens.train().template.still.eval()
    plain, names = copy.deepcopy(ens), torch.tensor([[1], [0]])
    compiled = torch.compile(ens, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x, rows=names), plain(x, rows=names))
    assert [int(ens.get_buffer(f"{name}.num_batches_tracked")) for name in ("twice", "still")] == [4, 0]
    torch.testing.assert_close(dict(ens.named_buffers()), dict(plain.named_buffers()))


class Mixing(nn.Module):
    """Adds each row's features to those of the next row, in training only, as layers that mix a batch do."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.second, self.head = nn.Linear(4, 16), norm, nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.norm(self.first(x)).relu())
        return self.head((h + h.roll(1, 0) if self.training else h).relu())


BY_ROWS = pytest.mark.parametrize("method", [mt.Masksembles(members=2), mt.BatchEnsemble(members=2, feed="part")])


@BY_ROWS
def test_rows_that_mix_in_training_stay_among_their_member(method: mt.Method) -> None:
    """One pass over all rows is right in eval mode only, so members run on their rows in turn."""
    ens = mt.ensemble(Mixing(nn.LayerNorm(16)), method, torch.randn(4, 4), seed=0).train()
    x = torch.randn(4, 4)
    batch = ens.batch(x, torch.zeros(4))
    outputs = ens(x, **batch.kwargs)
    for m, own in enumerate((slice(0, 2), slice(2, 4))):
        torch.testing.assert_close(outputs[own], ens.member(m).train()(x[own]))


@BY_ROWS
def test_rows_that_mix_in_training_need_norms_of_their_own(method: mt.Method) -> None:
    """A shared norm must see all rows at once, and then rows would mix with those of other members."""
    with pytest.raises(mt.errors.ConversionError, match=r"norm is shared.* Run every member on all rows: .*feed='all'"):
        mt.ensemble(Mixing(nn.BatchNorm1d(16)), method, torch.randn(4, 4), seed=0)
    assert mt.ensemble(Mixing(nn.BatchNorm1d(16)), replace(method, feed="all"), torch.randn(4, 4), seed=0)  # type: ignore[call-arg]


class MixingAtRandom(Mixing):
    """Adds features of rows that are drawn anew in each call."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.second(self.norm(self.first(x)).relu())
        return self.head((h + h[torch.randperm(len(h))] if self.training else h).relu())


@BY_ROWS
def test_rows_that_mix_at_random_stay_among_their_member(method: mt.Method, tmp_path: Path) -> None:
    """Noise keeps fold from being compared with the loop: whether members mix is tried by itself, and files keep it."""
    x = torch.randn(8, 4)
    with pytest.raises(mt.errors.ConversionError, match=r"norm is shared.* rows of other members show.*feed='all'"):
        mt.ensemble(MixingAtRandom(nn.BatchNorm1d(16)), method, x, seed=0)
    ens = mt.ensemble(MixingAtRandom(nn.LayerNorm(16)), method, x, seed=0)
    mt.save(ens, tmp_path / "a.multitude")
    ens = mt.load(tmp_path / "a.multitude", MixingAtRandom(nn.LayerNorm(16))).train()
    kwargs, outputs = ens.batch(x, torch.zeros(8)).kwargs, []
    for other in (x, torch.cat([x[:4], x[4:] + 1])):
        torch.manual_seed(0)
        outputs.append(ens(other, **kwargs))
    torch.testing.assert_close(outputs[0][:4], outputs[1][:4])
    assert not torch.allclose(outputs[0][4:], outputs[1][4:])


class DroppingPaths(Mixing):
    """Leaves out a branch for rows that are drawn anew: random, but no row sees another."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x)).relu()
        kept = (torch.rand(len(h), 1) < 0.5) if self.training else 1
        return self.head(h + kept * self.second(h))


@BY_ROWS
def test_random_rows_that_do_not_mix_may_share_norms(method: mt.Method) -> None:
    ens = mt.ensemble(DroppingPaths(nn.BatchNorm1d(16)), method, torch.randn(8, 4), seed=0).train()
    batch = ens.batch(torch.randn(8, 4), torch.zeros(8))
    assert ens(*batch.inputs, **batch.kwargs).shape == (8, 3)
