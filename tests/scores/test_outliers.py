"""OOD scores from features: against scikit-learn and the formulas, on any method, in scores, tables and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.prediction.features import Features
from multitudes.scores import outliers


def data(count: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Three clusters of points; shifted ones lie off the plane of the clusters."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = 3 * torch.eye(3, 8)
    x = centres[labels] + 0.5 * torch.randn(count, 8, generator=generator)
    x[:, 4:] += shift
    return x, labels


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.fixture(scope="module")
def ens() -> mt.Ensemble:
    x, y = data(120, 0)
    made = mt.ensemble(network(), mt.Deep(members=2), x[:2], seed=0)
    optimizer = torch.optim.Adam(made.param_groups(lr=0.02))
    for _ in range(60):
        optimizer.zero_grad()
        made.loss(x, y, nn.functional.cross_entropy).backward()
        optimizer.step()
    return made.eval()


def predicted(ens: mt.Ensemble, count: int, seed: int, shift: float = 0.0) -> mt.Prediction:
    return mt.predict(ens, torch.utils.data.TensorDataset(*data(count, seed, shift)), batch_size=50, features=True)


def features_of(pred: mt.Prediction) -> Features:
    assert pred.features is not None
    return pred.features


def test_features_are_the_inputs_of_the_last_layer(ens: mt.Ensemble) -> None:
    """Put through it they give the logits; the origin is where all logits are 0."""
    pred = predicted(ens, 70, 1)
    found = features_of(pred)
    assert found.values.shape == (2, 70, 6)
    assert found.origins is not None
    for m in range(2):
        member = ens.member(m)
        assert isinstance(member, nn.Sequential)
        with torch.no_grad():
            torch.testing.assert_close(member[4](found.values[m]), pred.members.logits[m])
            torch.testing.assert_close(member[4](found.origins[m]), torch.zeros(3), rtol=0, atol=1e-5)
    assert ens.find_head(torch.zeros(2, 8)) == "4"
    other = mt.predict(ens, data(5, 1)[0], features="2")
    assert features_of(other).values.shape == (2, 5, 16)


@pytest.mark.parametrize(
    "method",
    [mt.Single(), mt.Packed(members=2, alpha=2), mt.BatchEnsemble(members=2), mt.MIMO(members=2), mt.MCDropout(members=3),
     mt.Masksembles(members=4), mt.MultiHead(members=2), mt.EMP(members=3)],
    ids=lambda method: type(method).__name__,
)  # fmt: skip
def test_every_method_has_features(method: mt.Method) -> None:
    """What a member's last layer is given, for every batch: the member alone gives the ensemble's outputs, or it is refused."""
    net = nn.Sequential(
        nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3)
    )
    made = mt.ensemble(net, method, data(2, 0)[0], seed=0)
    pred = predicted(made, 70, 0)
    assert features_of(pred).values.shape[:2] == (made.members, 70)
    assert set(outliers(pred, k=5)(pred).criteria) >= {"mahalanobis", "knn"}


class Pooled(nn.Module):
    """A network whose last layer is a convolution, and is averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Conv2d(1, 5, 3, padding=1), nn.Conv2d(5, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x).relu()).mean((2, 3))


def test_positions_are_averaged() -> None:
    made = mt.ensemble(Pooled(), mt.Deep(members=2), torch.randn(2, 1, 4, 4), seed=0)
    pred = mt.predict(made, torch.utils.data.TensorDataset(torch.randn(20, 1, 4, 4), torch.arange(20) % 3), features=True)
    found = features_of(pred)
    assert found.values.shape == (2, 20, 5)
    assert found.origins is None
    assert "vim" not in outliers(pred, k=3)(pred).criteria


def test_the_distance_of_mahalanobis_is_scikit_learns(ens: mt.Ensemble) -> None:
    from sklearn.covariance import EmpiricalCovariance

    train, test = predicted(ens, 300, 0), predicted(ens, 40, 1)
    labels, expected = data(300, 0)[1].numpy(), []
    for known, new in zip(features_of(train).values.double().numpy(), features_of(test).values.double().numpy(), strict=True):
        means = np.stack([known[labels == c].mean(0) for c in range(3)])
        shared = EmpiricalCovariance(assume_centered=True).fit(known - means[labels])
        expected.append(np.min([shared.mahalanobis(new - mean) for mean in means], 0))
    found = outliers(train)(test).criteria["mahalanobis"]
    np.testing.assert_allclose(found.numpy(), np.mean(expected, 0), rtol=1e-3)


def test_the_distance_of_neighbours_is_scikit_learns(ens: mt.Ensemble) -> None:
    from sklearn.neighbors import NearestNeighbors
    from sklearn.preprocessing import normalize

    train, test = predicted(ens, 300, 0), predicted(ens, 40, 1)
    expected = [
        NearestNeighbors(n_neighbors=7).fit(normalize(known)).kneighbors(normalize(new))[0][:, -1]
        for known, new in zip(features_of(train).values.numpy(), features_of(test).values.numpy(), strict=True)
    ]
    np.testing.assert_allclose(outliers(train, k=7)(test).criteria["knn"].numpy(), np.mean(expected, 0), atol=1e-5)


def test_the_virtual_logit_is_that_of_the_paper(ens: mt.Ensemble) -> None:
    """With numpy: the part outside the first d principal axes about the origin, as large as the largest logit on average."""
    train, test = predicted(ens, 300, 0), predicted(ens, 40, 1)
    origins = features_of(train).origins
    assert origins is not None
    expected = []
    for m in range(2):
        known, new = (features_of(one).values[m].double().numpy() - origins[m].double().numpy() for one in (train, test))
        _, _, axes = np.linalg.svd(known, full_matrices=False)
        rest = axes[2:]
        logits = train.members.logits[m].double().numpy()
        alpha = logits.max(1).sum() / np.linalg.norm(known @ rest.T, axis=1).sum()
        energy = np.log(np.exp(test.members.logits[m].double().numpy()).sum(1))
        expected.append(alpha * np.linalg.norm(new @ rest.T, axis=1) - energy)
    found = outliers(train, dimensions=2)(test).criteria["vim"]
    np.testing.assert_allclose(found.numpy(), np.mean(expected, 0), rtol=1e-4, atol=1e-4)


def test_scores_and_tables_have_them(ens: mt.Ensemble, tmp_path: Path) -> None:
    find = outliers(predicted(ens, 300, 0))
    test, far = find(predicted(ens, 200, 1)), find(predicted(ens, 200, 2, shift=2.0))
    scores = mt.score(test, ood={"far": far})
    for name in ("mahalanobis", "knn", "vim"):
        assert scores[f"far/auroc/{name}"] > 0.8, name
        assert scores[f"far/fpr95/{name}"] < 1
    assert "mahalanobis" in str(scores)
    assert "far/auroc/vim" in mt.score(test, ood={"far": far}, intervals=5).intervals
    halves = mt.score(test[:90], ood={"far": far}), mt.score(test[90:], ood={"far": far})
    assert type(scores).merge(halves)["far/auroc/knn"] == pytest.approx(scores["far/auroc/knn"])
    whole = mt.Prediction.cat([test[:90], test[90:]])
    torch.testing.assert_close(whole.criteria["knn"], test.criteria["knn"])
    torch.testing.assert_close(features_of(whole).values, features_of(test).values)
    test.save(tmp_path / "test.safetensors")
    read = mt.Prediction.load(tmp_path / "test.safetensors")
    torch.testing.assert_close(read.criteria["vim"], test.criteria["vim"])
    torch.testing.assert_close(features_of(read).values, features_of(test).values)
    one = test.subset([1])
    assert not one.criteria
    assert features_of(one).values.shape == (1, 200, 6)
    assert str(find) == "Outliers(mahalanobis, knn, vim: 2 members, 300 training examples, 6 features)"


def test_a_regression_has_distances(ens: mt.Ensemble) -> None:
    x, _ = data(120, 0)
    made = mt.ensemble(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)), mt.Deep(members=2), x[:2], task="regression")
    train, far = (
        mt.predict(made, torch.utils.data.TensorDataset(data(120, 0, shift)[0], torch.zeros(120)), features=True)
        for shift in (0, 3)
    )
    find = outliers(train, k=5)
    assert {"ood/auroc/mahalanobis", "ood/auroc/knn"} <= set(mt.score(find(train), ood=find(far)))


def test_ignored_labels_do_not_count(ens: mt.Ensemble) -> None:
    x, y = data(100, 0)
    y[:40] = 9
    some = mt.predict(ens, torch.utils.data.TensorDataset(x, y), features=True, ignore=9)
    assert outliers(some, k=5).neighbours.shape[1] == 60


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ens: outliers(mt.predict(ens, data(60, 0)[0])), "outliers needs features: predict with"),
        (lambda ens: outliers(predicted(ens, 30, 0)), "k=50 needs more than 50 training examples, but there are 30"),
        (lambda ens: outliers(predicted(ens, 60, 0), k=3, dimensions=6), "dimensions=6 must be below 6"),
        (lambda ens: outliers(predicted(ens, 60, 0), neighbours=3), "there is no such argument"),
        (lambda ens: outliers(predicted(ens, 60, 0), k=3)(predicted(ens, 60, 0).subset([0])), r"are \[1, 6\], but \[2, 6\]"),
        (
            lambda ens: mt.predict(ens, data(5, 0)[0], features="body"),
            "features='body': the network has no such layer; there are 0",
        ),
        (lambda ens: mt.predict(ens, data(5, 0)[0], features=True, moments_only=True), "remove moments_only="),
        (lambda ens: mt.predict(ens, data(5, 0)[0], features=1), "features=1: features must be"),
    ],
)
def test_refusals(ens: mt.Ensemble, call: Any, message: str) -> None:
    with pytest.raises(mt.InputError, match=message):
        call(ens)


def test_several_last_layers_are_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.left(x) + self.right(x.relu())

    made = mt.ensemble(Two(), mt.Deep(members=2), torch.randn(2, 8))
    with pytest.raises(mt.InputError, match="one last layer, but here are left, right: name a layer"):
        mt.predict(made, torch.randn(4, 8), features=True)
    assert features_of(mt.predict(made, torch.randn(4, 8), features="left")).values.shape == (2, 4, 8)


def test_pixels_are_refused() -> None:
    made = mt.ensemble(nn.Conv2d(1, 3, 1), mt.Deep(members=2), torch.randn(2, 1, 4, 4))
    pairs = torch.utils.data.TensorDataset(torch.randn(9, 1, 4, 4), torch.zeros(9, 4, 4).long())
    with pytest.raises(mt.InputError, match="one label or number per example"):
        outliers(mt.predict(made, pairs, features=True), k=3)
