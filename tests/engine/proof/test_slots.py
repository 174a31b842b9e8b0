"""Other inputs for each member: of an example with one row, members take the rows of the engine's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.inputs import take_rows
from multitudes.engine.proof import executors
from multitudes.engine.proof.slots import different_inputs
from multitudes.engine.proof.trial import RUNS
from multitudes.engine.state import Engine
from multitudes.engine.tree import Tree
from multitudes.errors import RunError

M = 3


def engine_of(network: nn.Module, method: mt.Method, example: mt.Inputs) -> Engine:
    engine = mt.ensemble(network, method, example, seed=0).engine
    engine.example = example
    return engine


def first_row(inputs: mt.Inputs) -> mt.Inputs:
    return take_rows(inputs, 0, torch.zeros(1, dtype=torch.long))


class TestOneRow:
    def test_members_see_different_rows(self) -> None:
        """In the precision of the row, which may be another than that of the example."""
        example = mt.Inputs(torch.randn(2, 4))
        engine = engine_of(nn.Linear(4, 3), mt.Deep(members=M), example)
        row = first_row(example)
        (slots,) = different_inputs(engine, row.refill([t.double() for t in row.tensors()])).tensors()
        (rows,) = example.tensors()
        assert torch.equal(slots, rows[[0, 1, 0]].double()[:, None])

    def test_without_other_rows_members_see_the_same(self) -> None:
        example = mt.Inputs(torch.randn(2, 4))
        engine = engine_of(nn.Linear(4, 3), mt.Deep(members=M), example)
        engine.example = None
        (slots,) = different_inputs(engine, first_row(example)).tensors()
        assert torch.equal(slots, slots[:1].expand(M, 1, 4))

    @pytest.mark.parametrize("rows", [1, 2])
    def test_an_executor_that_gives_all_members_the_first_one_s_inputs_is_not_right(
        self, rows: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        example = mt.Inputs(torch.randn(2, 4))
        engine = engine_of(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), mt.Deep(members=M), example)
        inputs = example if rows == 2 else first_row(example)
        vmap = RUNS["vmap"]

        def wrong(engine: Engine, given: mt.Inputs, per_member: bool = False) -> Tree:
            if per_member:
                given = given.refill([tensor[:1].expand_as(tensor) for tensor in given.tensors()])
            return vmap(engine, given, per_member=per_member)

        for run, expected in ((vmap, True), (wrong, False)):
            monkeypatch.setitem(RUNS, "vmap", run)
            executors.prove_executors(engine, inputs, large=True, names=executors.ALL)
            assert engine.traits.vmap_per_member == expected

    def test_rows_that_depend_on_their_places_are_found(self) -> None:
        """A single row would follow any order."""
        example = mt.Inputs(torch.randn(2, 4))
        engine = engine_of(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), mt.MIMO(members=M), example)
        executors.prove_executors(engine, first_row(example), large=True, names=executors.ALL)
        template: Any = engine.template
        template.__class__ = Ranked
        with pytest.raises(RunError, match="rows depend on each other"):
            executors.prove_executors(engine, first_row(example), large=True, names=executors.ALL)


class Ranked(nn.Sequential):
    """Weighs rows by their places."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        return y * torch.arange(1.0, len(x) + 1).reshape(-1, *[1] * (y.ndim - 1))


def test_tables_lose_no_row_that_the_example_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.tensor([[5, 69_999, 300], [41_000, 301, 0]])
    network = nn.Sequential(nn.Embedding(70_000, 16), nn.Flatten(), nn.Linear(48, 3))
    example, seen = mt.Inputs(ids), []
    engine = engine_of(network, mt.MIMO(members=M), example)
    large = executors._prove_large

    def prove(few: Engine, inputs: mt.Inputs, tried: frozenset[str]) -> None:
        assert few.example is not None
        seen.append((few.template.get_submodule("0"), inputs.tensors()[0], few.example.tensors()[0]))
        large(few, inputs, tried)

    monkeypatch.setattr(executors, "_prove_large", prove)
    executors.prove_executors(engine, first_row(example), large=True, names=executors.ALL)
    ((table, row, rows),) = seen  # type: tuple[tuple[Any, Tensor, Tensor]]
    assert table.num_embeddings < 70_000 > int(ids.max())
    assert rows.shape == (2, 3) and torch.equal(row, rows[:1]) and int(rows.max()) < table.num_embeddings
    assert engine.traits.vmap_per_member or engine.traits.slots_in_turn
