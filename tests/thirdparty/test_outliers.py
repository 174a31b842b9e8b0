"""OOD scores from features are those of pytorch-ood, for each member, and so are the scores that need logits alone."""

from __future__ import annotations

import pytest
import torch
from pytorch_ood.detector import KNN, EnergyBased, Mahalanobis, MaxLogit, MaxSoftmax, ViM
from pytorch_ood.metrics import OODMetrics
from torch import Tensor, nn

import multitudes as mt
from multitudes.scores import outliers


def data(count: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    x = 3 * torch.eye(3, 8)[labels] + 0.5 * torch.randn(count, 8, generator=generator)
    x[:, 4:] += shift
    return x, labels


@pytest.fixture(scope="module")
def ens() -> mt.Ensemble:
    x, y = data(150, 0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3))
    made = mt.ensemble(net, mt.Deep(members=2), x[:2], seed=0)
    optimizer = torch.optim.Adam(made.param_groups(lr=0.02))
    for _ in range(60):
        optimizer.zero_grad()
        made.loss(x, y, nn.functional.cross_entropy).backward()
        optimizer.step()
    return made.eval()


def predicted(ens: mt.Ensemble, count: int, seed: int, shift: float = 0.0) -> mt.Prediction:
    return mt.predict(ens, torch.utils.data.TensorDataset(*data(count, seed, shift)), features=True)


@pytest.mark.parametrize("name", ["mahalanobis", "knn", "vim"])
def test_scores_of_features(ens: mt.Ensemble, name: str) -> None:
    """Of one member each, since theirs take one network; theirs of Mahalanobis is half the distance, by a sum for Σ."""
    train, test = predicted(ens, 300, 0), predicted(ens, 60, 1, shift=1.0)
    labels = data(300, 0)[1]
    for m in range(2):
        one, new = train.subset([m]), test.subset([m])
        assert one.features is not None
        assert new.features is not None
        head = list(ens.member(m).modules())[-1]
        assert isinstance(head, nn.Linear)
        theirs = {
            "mahalanobis": lambda: Mahalanobis(None),
            "knn": lambda: KNN(None, k=10, normalize=True),
            "vim": lambda head=head: ViM(None, d=2, w=head.weight, b=head.bias),
        }[name]()
        theirs.fit_features(one.features.values[0], labels)
        expected = theirs.predict_features(new.features.values[0]).double()
        found = outliers(one, k=10, dimensions=2)(new).criteria[name]
        factor = 2 * 300 if name == "mahalanobis" else 1
        torch.testing.assert_close(found, factor * expected, rtol=2e-3, atol=1e-4)


def test_scores_of_logits(ens: mt.Ensemble) -> None:
    pred = predicted(ens, 60, 1).subset([0])
    logits = pred.members.logits[0]
    torch.testing.assert_close(1 - pred.confidence.float(), 1 + MaxSoftmax(None).predict_logits(logits))
    torch.testing.assert_close(-pred.max_logit.float(), MaxLogit(None).predict_logits(logits))
    torch.testing.assert_close(pred.energy.float(), EnergyBased(None).predict_logits(logits))


def test_their_metrics_of_our_scores(ens: mt.Ensemble) -> None:
    find = outliers(predicted(ens, 300, 0))
    test, far = find(predicted(ens, 100, 1)), find(predicted(ens, 100, 2, shift=1.0))
    scores = mt.score(test, ood={"far": far})
    labels = torch.cat([torch.zeros(100), torch.full((100,), -1)])
    for name in ("mahalanobis", "knn", "vim"):
        theirs = OODMetrics().update(torch.cat([test.criteria[name], far.criteria[name]]), labels).compute()
        assert scores[f"far/auroc/{name}"] == pytest.approx(theirs["AUROC"], abs=1e-5)
        assert scores[f"far/fpr95/{name}"] == pytest.approx(theirs["FPR95TPR"], abs=1e-5)
