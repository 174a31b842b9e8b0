"""Proofs without the rows of tables that nobody reads: exact where ids are looked up and nothing else, left alone elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.loop import run_loop
from multitudes.engine.proof import executors
from multitudes.engine.proof.executors import prove_executors
from multitudes.engine.proof.tables import FIRST, with_few_rows
from multitudes.engine.proof.trial import plain_member
from multitudes.engine.state import Engine
from multitudes.errors import RunError

ROWS, WIDTH = 70_000, 16
IDS = torch.tensor([[5, 69_999, 300, 5], [41_000, 301, 0, 69_998]])


class Words(nn.Module):
    """A large table of words, and a small one of positions."""

    def __init__(self, rows: int = ROWS) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(rows, WIDTH, padding_idx=rows - 1), nn.Embedding(8, WIDTH)
        self.mix, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def look_up(self, ids: Tensor) -> Tensor:
        return self.words(ids)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.look_up(ids) + self.places(torch.arange(ids.shape[1]))
        if mask is not None:
            h = h * mask[..., None]
        return self.head(self.mix(h).tanh().mean(1))


class Compared(Words):
    def look_up(self, ids: Tensor) -> Tensor:
        return self.words(ids) * (ids != 0)[..., None]


class ComparedInTraining(Words):
    def look_up(self, ids: Tensor) -> Tensor:
        return self.words(ids) * (ids != 0)[..., None] if self.training else self.words(ids)


class Listed(Words):
    def look_up(self, ids: Tensor) -> Tensor:
        return self.words(ids) * (1 + max(max(row) for row in ids.tolist()))


class Shifted(Words):
    def look_up(self, ids: Tensor) -> Tensor:
        return self.words((ids + 1) % ROWS)


class Written(Words):
    def look_up(self, ids: Tensor) -> Tensor:
        return self.words(ids.clamp_(max=100))


class Tied(Words):
    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.mix(self.words(ids)).mean(1) @ self.words.weight.T


class Several(Words):
    """Another table is called with the same ids, and it keeps its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(ROWS, 1)

    def look_up(self, ids: Tensor) -> Tensor:
        return self.words(ids) + self.kinds(ids)


class Remembers(Words):
    """Adds what the call before has left."""

    kept: Tensor | None = None

    def look_up(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        before, self.kept = self.kept, h.detach()
        return h if before is None else h + before


def engine_of(network: nn.Module, method: mt.Method, call: mt.Inputs) -> Engine:
    return mt.ensemble(network, method, call, seed=0).engine


def cut(engine: Engine, call: mt.Inputs) -> tuple[Engine, mt.Inputs] | None:
    return with_few_rows(engine, call, plain_member(engine, 0))


@pytest.mark.parametrize(
    "method", [mt.Deep(members=2), mt.Snapshot(members=2), mt.MCDropout(members=2), mt.MultiHead(members=2)]
)
def test_outputs_stay_the_same_to_the_last_bit(method: mt.Method) -> None:
    call = mt.Inputs(IDS, mask=torch.ones_like(IDS))
    engine = engine_of(Words(), method, call)
    engine.template.eval()
    found = cut(engine, call)
    assert found is not None
    few, renumbered = found
    table: Any = few.template.get_submodule("words")
    kept = FIRST + 5  # of the ids 5 and 0 are among the first
    assert table.num_embeddings == table.weight.shape[-2] == kept
    assert table.padding_idx == kept - 1
    assert few.template.get_submodule("places").num_embeddings == 8
    assert torch.equal(renumbered.args[0], torch.tensor([[5, 68, 64, 5], [66, 65, 0, 67]]))
    assert torch.equal(renumbered.kwargs["mask"], call.kwargs["mask"])
    with torch.no_grad():
        assert torch.equal(run_loop(few, renumbered), run_loop(engine, call))


def test_ids_that_are_small_keep_their_numbers() -> None:
    call = mt.Inputs(IDS % FIRST)
    found = cut(engine_of(Words(), mt.Deep(members=2), call), call)
    assert found is not None
    assert torch.equal(found[1].args[0], call.args[0])
    assert found[0].template.get_submodule("words").num_embeddings == FIRST + 1


@pytest.mark.parametrize("kind", [Compared, ComparedInTraining, Listed, Shifted, Written, Tied, Several])
def test_other_reads_of_ids_or_tables_leave_the_network_as_it_is(kind: type[Words]) -> None:
    call = mt.Inputs(IDS.clone())
    engine = Engine(kind(), 1, frozenset())
    assert cut(engine, call) is None
    assert cut(Engine(Words(), 1, frozenset()), call) is not None


def test_tables_that_forward_writes_into_or_that_are_small() -> None:
    call = mt.Inputs(IDS % 1000)
    for network in (Words(1000), Words()):
        network.words.max_norm = 1.0 if network.words.num_embeddings == ROWS else None
        assert cut(Engine(network, 1, frozenset()), call) is None


def test_proofs_run_on_few_rows_and_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    call, sizes = mt.Inputs(IDS), []
    engine = engine_of(Words(), mt.Snapshot(members=2), call)
    large = executors._prove_large

    def prove(few: Engine, inputs: mt.Inputs, tried: frozenset[str]) -> None:
        sizes.append(few.template.get_submodule("words").num_embeddings)
        large(few, inputs, tried)

    expected = engine.traits, engine.proven, engine.row_axes
    monkeypatch.setattr(executors, "_prove_large", prove)
    prove_executors(engine, call, large=True, names=executors.ALL)
    assert sizes == [FIRST + 5]
    assert (engine.traits, engine.proven, engine.row_axes) == expected
    assert engine.template.get_submodule("words").num_embeddings == ROWS


def test_a_leak_is_found_on_few_rows() -> None:
    call = mt.Inputs(IDS)
    engine = engine_of(Words(), mt.Deep(members=2), call)
    template: Any = engine.template
    template.__class__ = Remembers
    few = cut(engine, call)
    assert few is not None
    with pytest.raises(RunError, match="members are not independent"):
        executors._prove_large(*few, executors.ALL)
