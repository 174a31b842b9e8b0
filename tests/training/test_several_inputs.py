"""Networks with several inputs, given as people have them: every form trains and predicts as a plain loop does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import multitudes as mt
from multitudes.training.feed import Feed

NUM, CAT, Y = (
    torch.randn(24, 3, generator=torch.Generator().manual_seed(0)),
    torch.arange(24)[:, None] % 5,
    torch.arange(24) % 2,
)


class Tabular(nn.Module):
    """Numbers beside an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.out = nn.Linear(7, 2)

    def forward(self, num: Tensor, cat: Tensor) -> Tensor:
        return self.out(torch.cat([num, self.embed(cat[:, 0])], 1))


DATASETS: dict[str, Any] = {
    "tensors": TensorDataset(NUM, CAT, Y),
    "tuples": [((NUM[i], CAT[i]), Y[i]) for i in range(24)],
    "dicts": [({"cat": CAT[i], "num": NUM[i]}, Y[i]) for i in range(24)],
    "Inputs": [(mt.Inputs(NUM[i], CAT[i]), Y[i]) for i in range(24)],
    "labels": [{"num": NUM[i], "cat": CAT[i], "labels": Y[i]} for i in range(24)],
}


@pytest.fixture(scope="module")
def ensemble() -> mt.Ensemble:
    torch.manual_seed(0)
    return mt.ensemble(Tabular(), mt.Deep(members=2), (NUM, CAT), seed=0)


@pytest.mark.parametrize("name", DATASETS)
def test_fit_equals_plain_loops(ensemble: mt.Ensemble, name: str) -> None:
    ens = copy.deepcopy(ensemble)
    plain = [ens.member(m) for m in range(2)]
    mt.fit(ens, DATASETS[name], mt.Recipe(epochs=2, batch=8, lr=0.1, momentum=0, seed=3), val=DATASETS[name])
    feed = Feed(TensorDataset(torch.arange(24), Y), batch=8, seed=3, members=2, own=False)
    for net in plain:
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for epoch in (1, 2):
            for call, _ in feed.epoch(epoch):
                rows = call.args[0]
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(NUM[rows], CAT[rows]), Y[rows]).backward()
                optimizer.step()
    for m, net in enumerate(plain):
        for key, value in net.state_dict().items():
            torch.testing.assert_close(ens.state_dict()[key][m], value)


@pytest.mark.parametrize("name", DATASETS)
def test_predict_equals_members(ensemble: mt.Ensemble, name: str) -> None:
    pred = mt.predict(ensemble, DATASETS[name], batch_size=7)
    with torch.no_grad():
        expected = torch.stack([ensemble.member(m).eval()(NUM, CAT) for m in range(2)])
    torch.testing.assert_close(pred.members["logits"], expected)
    assert pred.targets is not None and torch.equal(pred.targets, Y)


@pytest.mark.parametrize(
    "data", [(NUM, CAT), [NUM, CAT], {"cat": CAT, "num": NUM}, mt.Inputs(NUM, CAT), TensorDataset(NUM, CAT)]
)
def test_predict_of_whole_inputs(ensemble: mt.Ensemble, data: Any) -> None:
    pred = mt.predict(ensemble, data, batch_size=7)
    with torch.no_grad():
        expected = torch.stack([ensemble.member(m).eval()(NUM, CAT) for m in range(2)])
    torch.testing.assert_close(pred.members["logits"], expected)
    assert pred.targets is None


@pytest.mark.parametrize("data", [(NUM, CAT, Y), ((NUM, CAT), Y), {"cat": CAT, "num": NUM, "labels": Y}])
def test_predict_of_whole_inputs_with_targets(ensemble: mt.Ensemble, data: Any) -> None:
    pred = mt.predict(ensemble, data, batch_size=7)
    assert pred.targets is not None and torch.equal(pred.targets, Y)


@pytest.mark.parametrize("x", [(NUM, CAT), [NUM, CAT], {"cat": CAT, "num": NUM}])
def test_loss_equals_members(ensemble: mt.Ensemble, x: Any) -> None:
    loss = ensemble.loss(x, Y, nn.CrossEntropyLoss())
    expected = sum(nn.functional.cross_entropy(ensemble.member(m)(NUM, CAT), Y) for m in range(2))
    torch.testing.assert_close(loss, expected)


def test_a_function_may_return_a_tuple_of_inputs(ensemble: mt.Ensemble) -> None:
    pred = mt.predict(ensemble, TensorDataset(Y, NUM, CAT), unpack=lambda batch: ((batch[1], batch[2]), batch[0]))
    assert pred.targets is not None and torch.equal(pred.targets, Y)


def test_inputs_without_targets_are_no_training_set(ensemble: mt.Ensemble) -> None:
    with pytest.raises(mt.InputError, match="inputs without targets"):
        mt.fit(copy.deepcopy(ensemble), TensorDataset(NUM, CAT), mt.Recipe(epochs=1, batch=8))


def test_check_and_cost_take_tuples(ensemble: mt.Ensemble) -> None:
    assert mt.check(ensemble, (NUM[:4], CAT[:4]))
    assert mt.cost(ensemble, {"num": NUM[:4], "cat": CAT[:4]}, repeats=1)


def test_files_keep_the_order_of_arguments(tmp_path: Path) -> None:
    """By name, num before cat, which a file would sort: a loaded ensemble takes TensorDataset(num, cat, y) too."""
    ens = mt.ensemble(Tabular(), mt.Deep(members=2), {"num": NUM, "cat": CAT}, seed=0, check=False, batch_axis=[0, 0])
    mt.save(ens, tmp_path / "a.multitude")
    loaded = mt.load(tmp_path / "a.multitude", Tabular())
    for one in (ens, loaded):
        pred = mt.predict(one, DATASETS["tensors"])
        with torch.no_grad():
            torch.testing.assert_close(pred.members["logits"][1], ens.member(1).eval()(NUM, CAT))
