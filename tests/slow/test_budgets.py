"""The four budgets of one trained network: the command of docs/pretrained.md, tiny, and what each budget changes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.data import Data
from multitudes.models import MLP

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "budgets.py"
BUDGETS = {
    "none": {"temperature", "MCDropout", "Laplace"},
    "head": {"MultiHead"},
    "finetune": {"Masksembles", "BatchEnsemble", "EMP", "Snapshot", "SWAG"},
    "scratch": {"Packed", "MIMO", "Deep"},
}
X = torch.randn(96, 8, generator=torch.Generator().manual_seed(0))
TRAIN = Data(X, X[:, :4].argmax(1))


@pytest.mark.slow
def test_the_command_scores_every_budget() -> None:
    rows: list[dict[str, Any]] = runpy.run_path(str(BENCHMARK))["compare"](images=200, epochs=4, few=4)
    found = {budget: {row["method"] for row in rows if row["budget"] == budget} for budget in BUDGETS}
    assert found == BUDGETS
    assert [row["method"] for row in rows if row["budget"] == "one"] == ["distilled from Deep"]
    assert all(0 < row["NLL"] < 5 and 0 <= row["accuracy"] <= 1 for row in rows)


@pytest.mark.slow
def test_recommend_knows_the_budgets() -> None:
    """What a method needs at least. Temperature is no method; EMP of the last layer alone would need its head."""
    names = [name for found in BUDGETS.values() for name in found - {"temperature", "EMP"}]
    methods: list[mt.Method] = [*(getattr(mt, name)() for name in names), mt.EMP(patch="input+output")]
    found = mt.recommend(MLP(8, (32, 32), 4, dropout=0.1), X[:4], methods=methods, repeats=1, progress=False)
    needs = {type(candidate.method).__name__: candidate.needs for candidate in found.candidates}
    assert needs == {name: budget for budget, names in BUDGETS.items() for name in names - {"temperature"}}


def trained() -> nn.Module:
    """A network with dropout, trained a little."""
    torch.manual_seed(0)
    ens = mt.ensemble(MLP(8, (32, 32), 4, dropout=0.1), mt.Single(), X[:2], seed=0)
    mt.fit(ens, TRAIN, mt.Recipe(epochs=8, batch=16, lr=0.1), progress=False)
    return ens.member(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [mt.MCDropout(), mt.Laplace(), mt.Masksembles(), mt.BatchEnsemble(), mt.SWAG(), mt.Snapshot()]
)
def test_methods_that_keep_weights_start_with_the_networks(method: mt.Method) -> None:
    """All given weights are in the ensemble, under their names; Laplace's pass over the data trains nothing."""
    net = trained()
    ens = mt.ensemble(net, method, X[:2], seed=0)
    if isinstance(method, mt.Laplace):
        ens.finish(TRAIN)
    state = ens.state_dict()
    for name, weight in net.named_parameters():
        torch.testing.assert_close(state[name][0] if state[name].ndim > weight.ndim else state[name], weight.detach())


@pytest.mark.slow
def test_a_frozen_trunk_stays() -> None:
    """MultiHead trains its heads alone."""
    net = trained().requires_grad_(False)
    last = [part for part in net.modules() if isinstance(part, nn.Linear)][-1].requires_grad_(True)
    ens = mt.ensemble(net, mt.MultiHead(members=3), X[:2], seed=0)
    before = {name: p.detach().clone() for name, p in ens.named_parameters()}
    mt.fit(ens, TRAIN, mt.Recipe(epochs=2, batch=16, lr=0.1), progress=False)
    moved = {name for name, p in ens.named_parameters() if not torch.equal(p, before[name])}
    head = next(name for name, part in net.named_modules() if part is last)
    assert moved == {f"{head}.weight", f"{head}.bias"}
