"""Class weights: the loss is torch's weighted mean, for every method, in parts of a step, and with labels that are ignored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from training.small import TRAIN, X, Y, made

import multitudes as mt
from multitudes.engine.seeds import seed_all
from multitudes.training.class_weights import ClassWeights
from multitudes.training.feed import seed_of

WEIGHTS = torch.tensor([1.0, 5.0, 0.5])
RECIPE = mt.Recipe(epochs=1, lr=0.0, momentum=0, class_weights=WEIGHTS.tolist())


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [mt.Deep(members=2), mt.Packed(members=2), mt.MIMO(members=2), mt.MultiHead(members=2), mt.BatchEnsemble(members=2),
     mt.Masksembles(members=2), mt.Masksembles(members=2, feed="all"), mt.MCDropout(members=2, p=0.5), mt.EMP(members=2),
     mt.DropConnect(members=2, p=0.5), mt.ECMP(members=2), mt.TreeNet(members=2, branch_at="3"), mt.Single()],
    ids=str,
)  # fmt: skip
def test_every_method_has_the_loss_of_torchs_criterion(method: mt.Method) -> None:
    """A batch with all examples, in their order: the same step with nn.CrossEntropyLoss(weight=...)."""
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 3))
    ens = mt.ensemble(net, method, X[:2], seed=0, check=False)
    run = mt.fit(ens, DataLoader(TRAIN, 200), RECIPE)
    seed = seed_of(0, 1)
    seed_all(seed_of(seed, 1))
    ens.generator.manual_seed(seed)
    expected = ens.train().loss(X[:200], Y[:200], nn.CrossEntropyLoss(weight=WEIGHTS))
    assert run.metrics[0]["loss"] == pytest.approx(expected.item(), rel=1e-5)
    ens.generator.manual_seed(seed)
    plain = ens.loss(X[:200], Y[:200], nn.CrossEntropyLoss())
    assert run.metrics[0]["loss"] != pytest.approx(plain.item(), rel=1e-3)


def test_training_equals_plain_loops() -> None:
    ens = made(mt.Deep(members=2))
    nets = [ens.member(m) for m in range(2)]
    mt.fit(ens, DataLoader(TRAIN, 50), mt.Recipe(epochs=2, lr=0.1, momentum=0, class_weights=(1, 5, 0.5)))
    for m, net in enumerate(nets):
        net.train()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for start in list(range(0, 200, 50)) * 2:
            optimizer.zero_grad()
            rows = slice(start, start + 50)
            nn.functional.cross_entropy(net(X[rows]), Y[rows], WEIGHTS).backward()
            optimizer.step()
        for key, value in net.state_dict().items():
            torch.testing.assert_close(ens.state_dict()[key][m], value)


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_parts_of_a_step_count_by_their_weights(scale: float) -> None:
    """Two parts of other classes: the step's loss is the weighted mean over both, and not the mean of two means.

    Weights of another scale give the same mean.
    """
    order = Y[:200].argsort()
    x, y = X[:200][order], Y[:200][order]
    ens = mt.ensemble(nn.Linear(6, 3), mt.Deep(members=2), X[:2], seed=0, check=False)
    batches = DataLoader(TensorDataset(x, y), 100, drop_last=True)
    run = mt.fit(ens, batches, mt.Recipe(epochs=1, lr=0.0, momentum=0, accumulate=2, class_weights=WEIGHTS * scale))
    logits = ens(x).detach()
    whole = sum(nn.functional.cross_entropy(logits[m], y, WEIGHTS) for m in range(2))
    parts = (slice(100), slice(100, 200))
    halves = sum(nn.functional.cross_entropy(logits[m][part], y[part], WEIGHTS) / 2 for m in range(2) for part in parts)
    assert run.metrics[0]["loss"] == pytest.approx(float(whole), rel=1e-5)
    assert float(halves) != pytest.approx(float(whole), rel=1e-3)


def test_ignored_labels_and_shares_of_classes() -> None:
    logits, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, -100, 1, -100])
    loss = ClassWeights((1.0, 5.0, 0.5), "classes")
    torch.testing.assert_close(loss(logits, labels), nn.functional.cross_entropy(logits, labels, WEIGHTS))
    shares = torch.randn(6, 3).softmax(1)
    torch.testing.assert_close(loss(logits, shares), nn.functional.cross_entropy(logits, shares, WEIGHTS))
    assert loss(logits, torch.full((6,), -100)) == 0


def test_yes_or_no() -> None:
    """By hand: each label's loss by its weight, over the sum of weights."""
    logits, labels = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([1, 0, 1])
    loss = ClassWeights((1.0, 3.0), "binary")
    losses = [-torch.sigmoid(logits[0]).log(), -torch.sigmoid(-logits[1]).log(), -torch.sigmoid(logits[2]).log()]
    torch.testing.assert_close(loss(logits, labels), (3 * losses[0] + losses[1] + 3 * losses[2]) / 7)
    torch.testing.assert_close(loss(logits[:, None], labels.float()[:, None]), loss(logits, labels))
    ignored = torch.tensor([1, 0, -100])
    torch.testing.assert_close(loss(logits, ignored), (3 * losses[0] + losses[1]) / 4)


@pytest.mark.parametrize(
    ("task", "settings", "options", "match"),
    [
        ("classes", {"class_weights": (1, 2)}, {}, "2 numbers for 3 classes"),
        ("binary", {"class_weights": (1, 2, 3)}, {}, "'binary' needs 2"),
        ("multilabel", {"class_weights": (1, 2, 3)}, {}, r"pos_weight"),
        ("regression", {"class_weights": (1, 2, 3)}, {}, "is for classes"),
        ("classes", {"class_weights": (1, 2, 3)}, {"criterion": nn.CrossEntropyLoss()}, "not both"),
    ],
)
def test_refusals(task: str, settings: Any, options: Any, match: str) -> None:
    ens = mt.ensemble(nn.Linear(6, 3), mt.Deep(members=2), X[:2], task=task, check=False)
    with pytest.raises(mt.InputError, match=match):
        mt.fit(ens, TRAIN, mt.Recipe(epochs=1, **settings), **options)


@pytest.mark.parametrize("weights", [(-1, 2), (0, 0), "balanced", 3, (1, "a")])
def test_settings_that_are_no_weights(weights: Any) -> None:
    with pytest.raises(mt.InputError, match="class_weights"):
        mt.Recipe(class_weights=weights)
    assert mt.Recipe(class_weights=torch.tensor([1, 2])).class_weights == (1.0, 2.0)
    with pytest.raises(mt.InputError, match="loss='task'"):
        mt.Recipe(class_weights=(1, 2), loss="bce")
