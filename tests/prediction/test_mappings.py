"""Vector, matrix, Dirichlet and isotonic calibration: against scikit-learn, scipy and the formulas of the papers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.prediction.mappings import Affine, Isotonic, fit_mapping
from multitudes.prediction.temperature import Calibrator

pytestmark = pytest.mark.slow

HOW = ["vector", "matrix", "dirichlet", "isotonic"]


def biased(count: int = 600, seed: int = 0, members: int = 3, k: int = 4) -> mt.Prediction:
    """Overconfident members that prefer class 0 and confuse the last two classes."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(count, k, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(truth.softmax(1), 1, generator=generator).squeeze(1)
    skewed = 2 * truth + torch.tensor([1.5, 0, 0, 0], dtype=torch.float64)[:k]
    skewed[:, -1] += 0.8 * truth[:, -2]
    noise = 0.3 * torch.randn(members, count, k, generator=generator, dtype=torch.float64)
    return mt.Prediction(logits=skewed + noise, targets=labels)


def targets_of(pred: mt.Prediction) -> Tensor:
    assert pred.targets is not None
    return pred.targets


@pytest.mark.parametrize("how", HOW)
def test_a_mapping_mends_what_a_temperature_cannot(how: Any) -> None:
    """On new data, NLL and the calibration of classes are better than with the best temperature."""
    held_out, new = biased(2000, 0), biased(2000, 1)
    tempered = mt.score(new.calibrated(mt.calibrate(held_out)))
    penalty = 0.01 if how == "dirichlet" else None
    mapped = mt.score(new.calibrated(mt.calibrate(held_out, how=how, penalty=penalty)))
    assert mapped["nll"] < tempered["nll"] - 0.01
    assert mapped["classwise_ece"] < 0.7 * tempered["classwise_ece"]


def objective(how: str, penalty: float, q: np.ndarray, y: np.ndarray) -> Any:
    """The NLL and the penalty of the paper, by its formula."""
    k = q.shape[1]

    def loss(flat: np.ndarray) -> float:
        weight = np.diag(flat[:k]) if how == "vector" else flat[: k * k].reshape(k, k)
        bias = flat[-k:]
        z = q @ weight.T + bias
        z = z - z.max(1, keepdims=True)
        nll = (np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean()
        off = (weight**2).sum() - (np.diag(weight) ** 2).sum()
        return float(nll + penalty * (off / (k * (k - 1)) + (bias**2).mean()))

    return loss


@pytest.mark.parametrize(("how", "penalty"), [("vector", 0.0), ("matrix", 0.0), ("dirichlet", 0.05)])
def test_the_fit_is_the_minimum_that_scipy_finds(how: Any, penalty: float) -> None:
    from scipy.optimize import minimize

    held_out = biased(300)
    q, y = held_out.logs, targets_of(held_out)
    found = fit_mapping(how, q, y, penalty if how == "dirichlet" else None)
    assert isinstance(found, Affine)
    loss = objective(how, penalty, q.numpy(), y.numpy())
    ours = loss(np.concatenate([np.ravel(found.weight), found.bias]))
    start = np.concatenate([np.ones(4) if how == "vector" else np.eye(4).ravel(), np.zeros(4)])
    assert ours == pytest.approx(minimize(loss, start, method="BFGS", options={"gtol": 1e-7}).fun, abs=1e-8)


def test_matrix_scaling_is_scikit_learns_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    held_out, new = biased(500), biased(200, 1)
    regression = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(
        held_out.logs.numpy(), targets_of(held_out).numpy()
    )
    ours = new.calibrated(mt.calibrate(held_out, how="matrix")).probs
    np.testing.assert_allclose(ours.numpy(), regression.predict_proba(new.logs.numpy()), atol=1e-5)


def test_isotonic_calibration_is_scikit_learns() -> None:
    """Its one-vs-rest curves, divided by their sum; ours mix in a share of a uniform distribution."""
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    class Given(ClassifierMixin, BaseEstimator):
        classes_ = np.arange(4)

        def __sklearn_is_fitted__(self) -> bool:
            return True

        def fit(self, X: Any, y: Any) -> Any:
            return self

        def predict_proba(self, X: Any) -> Any:
            return X

        def predict(self, X: Any) -> Any:
            return X.argmax(1)

    held_out, new = biased(400), biased(300, 1)
    theirs = CalibratedClassifierCV(FrozenEstimator(Given()), method="isotonic", ensemble=False)
    theirs.fit(held_out.logs.exp().numpy(), targets_of(held_out).numpy())
    calibrator = mt.calibrate(held_out, how="isotonic")
    assert isinstance(calibrator.mapping, Isotonic)
    floor = calibrator.mapping.floor
    assert floor == 1 / 401
    ours = (new.calibrated(calibrator).probs - floor / 4) / (1 - floor)
    np.testing.assert_allclose(ours.numpy(), theirs.predict_proba(new.logs.exp().numpy()), atol=1e-6)


def test_netcals_isotonic_curve_of_yes_and_no() -> None:
    netcal = pytest.importorskip("netcal.binning")
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(1, 400, generator=generator, dtype=torch.float64)
    labels = torch.bernoulli((logits[0] / 2).sigmoid(), generator=generator).long()
    pred = mt.Prediction(logits=logits, task="binary", targets=labels)
    theirs = netcal.IsotonicRegression().fit(pred.probs.numpy(), labels.numpy()).transform(pred.probs.numpy())
    calibrator = mt.calibrate(pred, how="isotonic")
    assert isinstance(calibrator.mapping, Isotonic)
    floor = calibrator.mapping.floor
    ours = (pred.calibrated(calibrator).probs - floor / 2) / (1 - floor)
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5)


def test_vector_scaling_of_one_number_is_temperature_scaling() -> None:
    """Weights that are equal, without biases, are 1 / T; the identity changes nothing."""
    pred = biased(50)
    tempered, vector = pred.calibrated(Calibrator(mixture=2.0)), Affine("vector", ((0.5,) * 4,), (0.0,) * 4)
    torch.testing.assert_close(pred.calibrated(Calibrator(mapping=vector)).probs, tempered.probs)
    identity = Affine("matrix", tuple(tuple(row) for row in torch.eye(4).tolist()), (0.0,) * 4)
    torch.testing.assert_close(pred.calibrated(Calibrator(mapping=identity)).probs, pred.probs)


def test_a_strong_penalty_leaves_the_diagonal() -> None:
    found = fit_mapping("dirichlet", biased().logs, targets_of(biased()), 1e6)
    assert isinstance(found, Affine)
    weight = torch.tensor(found.weight)
    assert float((weight - weight.diag().diag()).abs().max()) < 1e-5
    assert max(map(abs, found.bias)) < 1e-5
    assert float(weight.diag().min()) > 0


def test_few_examples_choose_a_strong_penalty() -> None:
    """By left-out folds: the penalised fit of few examples is better on new data than the free one."""
    held_out, new = biased(40), biased(2000, 1)
    flat = mt.Prediction(logits=0.1 * held_out[:15].members.logits, targets=1 - held_out.targets[:15] % 2)  # type: ignore[index]
    with pytest.warns(UserWarning, match="fits 20 numbers to 15 held-out examples|fits all 15"):
        mt.calibrate(flat, how="matrix")
    free, chosen = (mt.calibrate(held_out, how=how) for how in ("matrix", "dirichlet"))
    assert mt.score(new.calibrated(chosen))["nll"] < mt.score(new.calibrated(free))["nll"]


@pytest.mark.parametrize("how", HOW)
def test_all_right_examples(how: Any) -> None:
    """Weights without a limit become the identity, with a warning; a curve has a floor, so no NLL is infinite."""
    labels = torch.arange(30) % 3
    pred = mt.Prediction(logits=4 * nn.functional.one_hot(labels, 3).double()[None], targets=labels)
    if how == "isotonic":
        found = pred.calibrated(mt.calibrate(pred, how=how))
        assert mt.score(found)["nll"] < 0.05
        assert bool((found.probs > 0).all())
        return
    if how != "dirichlet":
        with pytest.warns(UserWarning, match="without an error, so no weights are best"):
            found = pred.calibrated(mt.calibrate(pred, how=how))
        torch.testing.assert_close(found.probs, pred.probs)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("task", ["classes", "binary", "multilabel"])
def test_everything_uses_the_mapping(how: Any, task: str, tmp_path: Path) -> None:
    """Probabilities, confidence, scores, parts, `ens.average()`, moments, and files of predictions and ensembles agree."""
    x = torch.randn(80, 5, generator=torch.Generator().manual_seed(0))
    outputs = {"classes": 3, "binary": 1, "multilabel": 2}[task]
    labels = {"classes": torch.arange(80) % 3, "binary": torch.arange(80) % 2, "multilabel": (x[:, :2] > 0.3).long()}[task]
    ens = mt.ensemble(nn.Linear(5, outputs), mt.Deep(members=2), x[:2], task=task, seed=0)
    pairs = torch.utils.data.TensorDataset(x, labels)
    plain = mt.predict(ens, pairs)
    ens.calibrator = mt.calibrate(plain, how=how, penalty=0.01 if how == "dirichlet" else None)
    pred = mt.predict(ens, pairs)
    assert not torch.allclose(pred.probs, plain.probs, atol=1e-3)
    torch.testing.assert_close(plain.calibrated(ens.calibrator).probs, pred.probs)
    shown = pred.logs.exp()[..., 1] if task != "classes" else pred.logs.exp()
    torch.testing.assert_close(shown.float(), pred.probs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(pred.confidence, pred.logs.exp().amax(-1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(torch.cat([pred[:30].probs, pred[30:].probs]), pred.probs)
    with torch.no_grad():
        average = ens.average()(x)
    average = average.softmax(1) if task == "classes" else average.sigmoid()
    torch.testing.assert_close(average.reshape(pred.probs.shape), pred.probs, rtol=1e-4, atol=1e-5)
    moments = mt.predict(ens, pairs, moments_only=True)
    torch.testing.assert_close(moments.probs.float(), pred.probs, rtol=1e-4, atol=1e-6)
    assert mt.score(moments)["nll"] == pytest.approx(mt.score(pred)["nll"], rel=1e-5)
    pred.save(tmp_path / "pred.safetensors")
    read = mt.Prediction.load(tmp_path / "pred.safetensors")
    assert read.calibrator == pred.calibrator
    torch.testing.assert_close(read.probs, pred.probs)
    mt.save(ens, tmp_path / "ens.multitude")
    loaded = mt.load(tmp_path / "ens.multitude", nn.Linear(5, outputs))
    assert loaded.calibrator == ens.calibrator
    assert pred.subset([0]).calibrator is None
    assert ens.subset([1]).calibrator is None


@pytest.mark.parametrize("how", HOW)
def test_settings_are_json(how: Any) -> None:
    calibrator = mt.calibrate(biased(100), how=how, penalty=0.1 if how == "dirichlet" else None)
    again = Calibrator(**json.loads(json.dumps(calibrator.settings())))
    assert again == calibrator
    assert hash(again) == hash(calibrator)
    assert len(str(calibrator)) < 120


def test_files_of_earlier_versions_are_read() -> None:
    """They have no mapping, and some no factor of variances."""
    assert Calibrator(members=None, mixture=1.5) == Calibrator(mixture=1.5)
    assert Calibrator(mixture=1.5).settings() == {"members": None, "mixture": 1.5}
    assert Calibrator(variance=2.0).settings() == {"members": None, "mixture": None, "variance": 2.0}


def test_zero_probabilities_are_calibrated() -> None:
    """−∞ times a weight of another sign would be NaN."""
    probs = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.1, 0.8, 0.1]]])
    pred = mt.Prediction(probs=probs, targets=[0, 1, 0, 1])
    for mapping in (Affine("matrix", ((1.0, -0.2, 0.1),) * 3, (0.0, 0.1, 0.2)), mt.calibrate(pred, how="isotonic").mapping):
        assert bool(pred.calibrated(Calibrator(mapping=mapping)).probs.isfinite().all())


def gaussian() -> mt.Prediction:
    return mt.Prediction(mean=torch.zeros(2, 5), variance=torch.ones(2, 5), targets=torch.zeros(5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mt.calibrate(biased(), how="platt"), "how='platt': choose one of temperature, vector, matrix, "),  # type: ignore[arg-type]
        (lambda: mt.calibrate(biased(), of="members", how="vector"), "how='vector' calibrates the mixture"),
        (lambda: mt.calibrate(biased(), how="matrix", penalty=0.1), "penalty=0.1 is for how='dirichlet'"),
        (lambda: mt.calibrate(biased(), how="dirichlet", penalty=-1.0), "penalty=-1.0: penalty must be"),
        (lambda: biased(k=3).calibrated(mt.calibrate(biased(), how="vector")), "of 4 classes, but the prediction has 3"),
        (lambda: Calibrator(mapping={"how": "spline"}), "must be one of vector, matrix, dirichlet, isotonic"),  # type: ignore[arg-type]
        (lambda: Calibrator(mapping={"how": "vector"}), "lacks numbers of how='vector'"),  # type: ignore[arg-type]
        (lambda: Affine("matrix", ((1.0, 0.0),), (0.0, 0.0)), "needs 2 rows of weights"),
        (lambda: Affine("vector", ((1.0, float("nan")),), (0.0, 0.0)), "not finite"),
        (lambda: Isotonic((((0.5, 0.2), (0.1, 0.2)),), 0.0), "no rising corners"),
        (lambda: Calibrator(mixture=1.0, mapping=Affine("vector", ((1.0,),), (0.0,))), "pass either"),
        (lambda: mt.calibrate(gaussian(), how="vector"), "is for classes"),
    ],
)  # fmt: skip
def test_refusals(call: Any, message: str) -> None:
    with pytest.raises(mt.InputError, match=message):
        call()
