"""fit(calibrate=True): the last and the best weights each have the calibrator that fits them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from interruption import interrupted
from torch import nn
from torch.utils.data import TensorDataset
from training.small import TRAIN, VAL, X, made, network

import multitudes as mt
from multitudes.prediction.temperature import Calibrator
from multitudes.training.fit import fit
from multitudes.training.recipe import Recipe

NOISY = Recipe(epochs=4, batch=20, lr=0.3, seed=5)
"""Its best epoch is its second."""


def regressor() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def numbers(method: mt.Method | None = None, task: str = "gaussian") -> mt.Ensemble:
    torch.manual_seed(0)
    return mt.ensemble(regressor(), method or mt.Deep(members=2), X[:2], seed=0, task=task)


WAVES = X[:, :1].sin() + X[:, 1:2]
NUMBERS, HELD_OUT = TensorDataset(X[:200], WAVES[:200]), TensorDataset(X[200:], WAVES[200:])


def fitted(ens: mt.Ensemble, val: Any) -> Calibrator:
    """What `mt.calibrate` gives for these weights."""
    ens.calibrator = None
    return mt.calibrate(mt.predict(ens, val))


@pytest.mark.parametrize("settings", [{}, {"ema": 0.9}])
def test_of_labels(settings: dict[str, Any], tmp_path: Path) -> None:
    """A temperature of the mixture; what `use_best` loads has another. The validation is that of a run without."""
    recipe = Recipe(**{**vars(NOISY), **settings})
    ens = made()
    ens.calibrator = Calibrator(mixture=9.0)
    run = fit(ens, TRAIN, recipe, val=VAL, calibrate=True, out=tmp_path)
    plain = fit(made(), TRAIN, recipe, val=VAL)
    assert [line["val_nll"] for line in run.metrics] == [line["val_nll"] for line in plain.metrics]
    files = {name: mt.load(tmp_path / f"{name}.multitude", network()) for name in ("last", "best")}
    last = ens.calibrator
    assert last == files["last"].calibrator == fitted(ens, VAL)
    assert run.use_best() is ens
    best = ens.calibrator
    assert best == files["best"].calibrator == fitted(ens, VAL)
    assert (best != last) == (run.best_epoch != 4)
    assert settings or run.best_epoch != 4
    assert plain.ensemble.calibrator is None
    assert plain.use_best().calibrator is None


def test_of_numbers(tmp_path: Path) -> None:
    """A factor of variances, which lowers the NLL on the validation set."""
    run = fit(
        numbers(), NUMBERS, Recipe(epochs=3, batch=20, lr=0.01, optimizer="adam"), val=HELD_OUT, calibrate=True, out=tmp_path
    )
    assert run.ensemble.calibrator == fitted(run.ensemble, HELD_OUT)
    ens = run.use_best()
    assert ens.calibrator is not None
    assert ens.calibrator.variance is not None
    assert mt.load(tmp_path / "best.multitude", regressor()).calibrator == ens.calibrator
    after = mt.score(mt.predict(ens, HELD_OUT))["lpd"]
    ens.calibrator = None
    assert after > mt.score(mt.predict(ens, HELD_OUT))["lpd"]


def test_an_ignored_label_does_not_count() -> None:
    y = torch.cat([torch.stack([label for _, label in VAL]), torch.full((200,), 7)])
    val = TensorDataset(torch.cat([X[200:], X[:200]]), y)
    with_more = fit(made(), TRAIN, NOISY, val=val, ignore=7, calibrate=True).ensemble.calibrator
    without = fit(made(), TRAIN, NOISY, val=VAL, calibrate=True).ensemble.calibrator
    assert with_more is not None
    assert without is not None
    assert with_more.mixture == pytest.approx(without.mixture, rel=1e-5)


def test_a_resumed_run_is_calibrated_alike(tmp_path: Path) -> None:
    """Stopped and resumed, or resumed when it was over; also if only the last call asks for it."""
    whole = fit(made(), TRAIN, NOISY, val=VAL, calibrate=True)
    expected = whole.ensemble.calibrator, whole.use_best().calibrator
    with interrupted(25):
        fit(made(), TRAIN, NOISY, val=VAL, out=tmp_path)
    for _ in range(2):
        again = fit(made(), TRAIN, NOISY, val=VAL, calibrate=True, out=tmp_path, resume=True)
        assert (again.ensemble.calibrator, again.use_best().calibrator) == expected


def test_refusals() -> None:
    """Before any step."""
    cases = [
        (made(), TRAIN, {}, r"val=\.\.\., calibrate=True"),
        (
            numbers(task="regression"),
            TensorDataset(X, WAVES.repeat(1, 2)),
            {"val": TensorDataset(X, WAVES.repeat(1, 2))},
            "task='gaussian'",
        ),
    ]
    for ens, train, options, said in cases:
        before = {name: value.clone() for name, value in ens.state_dict().items()}
        with pytest.raises(mt.InputError, match=said):
            fit(ens, train, NOISY, calibrate=True, **options)
        assert all(torch.equal(value, before[name]) for name, value in ens.state_dict().items())


def test_a_known_noise_can_be_calibrated() -> None:
    """EMP gives every member the variance 1 / tau_output."""
    both = TensorDataset(X[:100], WAVES[:100].repeat(1, 2))
    ens = numbers(mt.EMP(members=2, tau_output=4.0), "regression")
    run = fit(ens, both, Recipe(epochs=1, batch=50, lr=0.01), val=both, calibrate=True)
    assert run.ensemble.calibrator == fitted(ens, both)
