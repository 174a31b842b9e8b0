"""scikit-learn: `EnsembleClassifier` and `EnsembleRegressor`, ensembles of a tabular network as estimators.

The default is TabM-like: a BatchEnsemble of an MLP (Gorishniy, Kotelnikov, Babenko, "TabM: Advancing Tabular Deep Learning with
Parameter-Efficient Ensembling", ICLR 2025, https://arxiv.org/abs/2410.24210). Any method and any network may take its place.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from multitudes.conversion.convert import ensemble
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.integrations.tabular import Columns, Tabular, is_number
from multitudes.method import Method
from multitudes.methods import BatchEnsemble
from multitudes.prediction.predict import predict
from multitudes.prediction.prediction import Prediction
from multitudes.training.fit import fit
from multitudes.training.losses import GaussianNLL
from multitudes.training.recipe import Recipe

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.model_selection import train_test_split
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        assert_all_finite,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise ImportError("multitudes.integrations.sklearn needs scikit-learn: pip install 'multitudes[sklearn]'") from error

DEFAULT = BatchEnsemble(members=16, init="signs")
"""The method for ``method=None``."""
FEWEST = 40
"""The fewest rows of which some are held out for validation."""


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators share: see `EnsembleClassifier`."""

    def __init__(
        self,
        method: Method | None = None,
        *,
        network: Callable[[int, Sequence[int], int], nn.Module] | None = None,
        hidden: Sequence[int] = (256, 256),
        dropout: float = 0.1,
        categories: Sequence[Any] | None = None,
        epochs: int = 100,
        batch: int = 256,
        lr: float = 2e-3,
        weight_decay: float = 3e-4,
        patience: int | None = 16,
        held_out: float = 0.15,
        calibrate: bool = True,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.network = network
        self.hidden = hidden
        self.dropout = dropout
        self.categories = categories
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.weight_decay = weight_decay
        self.patience = patience
        self.held_out = held_out
        self.calibrate = calibrate
        self.device = device
        self.random_state = random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Returns the parameters by name; with deep=True also the method's settings, such as `method__members`."""
        found: dict[str, Any] = super().get_params(deep)
        method = _method_of(found["method"])
        inner = method.settings() if deep and isinstance(method, Method) else {}
        return {**found, **{f"method__{name}": value for name, value in inner.items()}}

    def set_params(self, **params: Any) -> Any:
        """Sets parameters; `method__members=8` changes a setting of the method."""
        inner = {name: params.pop(name) for name in list(params) if name.startswith("method__")}
        if inner:
            method = _method_of(params.get("method", self.method))
            known = method.settings().keys() if isinstance(method, Method) else set()
            settings = {name.removeprefix("method__"): value for name, value in inner.items()}
            if unknown := settings.keys() - known:
                raise InputError(f"{method} has no settings {', '.join(sorted(unknown))}: it has {', '.join(known) or 'none'}")
            params["method"] = dataclasses.replace(method, **settings)
        return super().set_params(**params)

    def _start(self, X: Any, y: Any, outputs: int, task: str) -> tuple[Ensemble, int]:
        """Makes the untrained ensemble, and its seed."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        method = _method_of(self.method)
        if not isinstance(method, Method):
            raise InputError(f"method must be a method such as mt.Packed(members=4), not {method!r}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            numbers, sizes = len(self.columns_.numbers), self.columns_.sizes
            make = self.network or functools.partial(Tabular, hidden=self.hidden, dropout=self.dropout)
            net = make(numbers, sizes, outputs)
        return ensemble(net, method, X[:2] if len(X) > 1 else X, task=task, seed=seed), seed

    def _train(self, x: Tensor, y: Tensor, outputs: int, task: str, strata: Any) -> None:
        """Trains on some rows, and chooses the epoch and calibrates on the others."""
        x = x.float()
        ens, seed = self._start(x, y, outputs, task)
        rows, held = self._split(len(x), seed, strata)
        batch = max(1, min(self.batch, len(rows)))
        val = TensorDataset(x[held], y[held]) if len(held) else None
        recipe = Recipe(
            epochs=self.epochs,
            batch=batch,
            lr=self.lr,
            optimizer="adamw",
            weight_decay=self.weight_decay,
            patience=self.patience if val is not None else None,
            seed=seed,
        )
        ens.to(self.device)
        if len(rows) * self.epochs > 10_000:  # less is done sooner than timed
            ens.tune(x[rows[:batch]].to(self.device), seconds=0.05)
        criterion = GaussianNLL(beta=0.5) if task == "gaussian" else None
        calibrate = bool(self.calibrate and val is not None)
        options: Any = {"val": val, "criterion": criterion, "calibrate": calibrate, "progress": False}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "all .* held-out examples are predicted right")  # then T = 1
            run = fit(ens, TensorDataset(x[rows], y[rows]), recipe, **options)
        self.ensemble_ = (run.use_best() if val is not None else ens).double().eval()
        self.n_iter_ = run.done

    def _split(self, count: int, seed: int, strata: Any) -> tuple[Any, Any]:
        if not 0 <= self.held_out < 1:
            raise InputError(f"held_out={self.held_out!r} must be a share of the rows, such as 0.15, or 0 for none")
        if count < FEWEST or not self.held_out:
            return np.arange(count), np.arange(0)
        if strata is not None and (np.bincount(strata).min() < 2 or len(np.bincount(strata)) > count * self.held_out):
            strata = None
        return tuple(train_test_split(np.arange(count), test_size=self.held_out, random_state=seed, stratify=strata))

    def _learn_columns(self, X: Any) -> Any:
        """Checks a table, and learns its columns. Returns it as it is read."""
        X = self._checked(X, True)
        self.columns_ = Columns(self.categories).fit(X)
        return X

    def _checked(self, X: Any, reset: bool) -> Any:
        """Checks names and number of columns. A table with categories stays as it is; all else becomes an array of numbers."""
        frame = hasattr(X, "iloc")
        objects = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUS" and self.categories is not None
        if objects or (frame and (self.categories is not None or not all(is_number(kind) for kind in X.dtypes))):
            validate_data(self, X, reset=reset, skip_check_array=True)
            if not len(X):
                raise ValueError(f"Found array with 0 sample(s) (shape={X.shape}) while a minimum of 1 is required.")
            return X
        return validate_data(self, X, reset=reset, dtype="float64")

    def prediction(self, X: Any) -> Prediction:
        """Returns the members' predictions and their uncertainty, an `mt.Prediction`."""
        check_is_fitted(self)
        x = self.columns_.transform(self._checked(X, False))
        return predict(self.ensemble_, x, batch_size=4096, progress=False)


def _method_of(method: Any) -> Any:
    return DEFAULT if method is None else method


class EnsembleClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """An ensemble of networks that classifies the rows of a table.

    method        any method with its settings, such as mt.Packed(members=4); None for BatchEnsemble(members=16, init="signs").
                  A grid search may vary `method`, or its settings as `method__members`
    network       a function (numbers, sizes, outputs) that makes a network of inputs ``[B, numbers + len(sizes)]``; None for
                  an MLP with embeddings of the categories
    hidden        the hidden units of that MLP
    dropout       its dropout in training
    categories    names or places of columns that hold categories; those of a DataFrame that are no numbers always do
    epochs        the most passes over the training set
    batch, lr, weight_decay   of AdamW
    patience      stop after so many epochs without a better held-out NLL; None trains for all epochs
    held_out      the share of rows that are held out to choose the epoch and to calibrate; 0 for none
    calibrate     whether a temperature, or a factor of variances, is fitted on the held-out rows
    device        where to train and predict
    random_state  the seed of everything
    """

    def fit(self, X: Any, y: Any) -> EnsembleClassifier:
        """Trains on a table: an array of numbers, or a DataFrame of numbers and categories."""
        X = self._learn_columns(X)
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        check_classification_targets(y)
        assert_all_finite(y, input_name="y")
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        self._train(self.columns_.transform(X), torch.tensor(labels), len(self.classes_), "classes", labels)
        return self

    def predict_proba(self, X: Any) -> Any:
        """Returns the mixture's probabilities, ``[N, K]``, in the order of `classes_`."""
        probs = self.prediction(X).probs.numpy()
        return probs / probs.sum(1, keepdims=True)

    def predict(self, X: Any) -> Any:
        """Returns the likeliest class of each row."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]


class EnsembleRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """An ensemble of networks that predicts a number for each row of a table: a mixture of Gaussians.

    The parameters are those of `EnsembleClassifier`; a network has two outputs, a mean and a raw variance.
    """

    def fit(self, X: Any, y: Any) -> EnsembleRegressor:
        """Trains on a table: an array of numbers, or a DataFrame of numbers and categories."""
        X = self._learn_columns(X)
        y = np.asarray(column_or_1d(y, warn=True), dtype=np.float64)
        check_consistent_length(X, y)
        assert_all_finite(y, input_name="y")
        if len(y) < 2:
            raise ValueError("a regression needs at least 2 rows, but X has 1 sample")
        self.mean_, self.scale_ = float(y.mean()), float(y.std()) or 1.0
        targets = torch.tensor((y - self.mean_) / self.scale_).float()[:, None]
        self._train(self.columns_.transform(X), targets, 2, "gaussian", None)
        return self

    def prediction(self, X: Any) -> Prediction:
        """Returns the members' predictions and their uncertainty, an `mt.Prediction` in the units of y."""
        members = super().prediction(X).members
        mean, variance = (members[name].squeeze(-1) for name in ("mean", "variance"))
        return Prediction(mean=mean * self.scale_ + self.mean_, variance=variance * self.scale_**2)

    def predict(self, X: Any) -> Any:
        """Returns the mixture's mean of each row."""
        return self.prediction(X).mean.numpy()

    def predict_std(self, X: Any) -> Any:
        """Returns the mixture's standard deviation of each row: noise and disagreement of members."""
        return self.prediction(X).std.numpy()

    def predict_interval(self, X: Any, level: float = 0.9) -> Any:
        """Returns the lower and upper ends of the mixture's central interval of probability `level`, ``[N, 2]``."""
        return torch.stack(self.prediction(X).interval(level), 1).numpy()
