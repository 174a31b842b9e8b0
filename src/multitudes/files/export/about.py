"""The description of an ensemble in an exported file: what a client must know to use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from multitudes.engine.inputs import Inputs, axes
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.files.export.outputs import Meaning
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import check_prediction

FORMAT = 1
"""The version of the description."""
LEVELS = (0.5, 0.9, 0.95, 0.99)
"""The quantiles of a reference."""


def described(
    ensemble: Ensemble,
    inputs: Inputs,
    names: Sequence[str],
    meaning: Meaning,
    labels: Sequence[str] | None,
    reference: dict[str, Any] | None,
) -> dict[str, Any]:
    """Returns the description as JSON."""
    from multitudes.version import __version__

    calibrator = meaning.calibrator
    return {
        "format": FORMAT,
        "version": __version__,
        "task": meaning.task,
        "method": type(ensemble.method).__name__,
        "members": ensemble.members,
        "inputs": [
            {
                "name": name,
                "shape": [None if at == axis else size for at, size in enumerate(tensor.shape)],
                "dtype": str(tensor.dtype).removeprefix("torch."),
                **_normalisation(meaning, tensor, alone=len(names) == 1),
            }
            for name, tensor, axis in zip(names, inputs.tensors(), axes(inputs, ensemble.engine.batch_axis), strict=True)
        ],
        "outputs": list(meaning.outputs),
        "labels": _checked_labels(ensemble, inputs, meaning, labels),
        "threshold": meaning.threshold and {"score": meaning.threshold.score, "value": meaning.threshold.value},
        "temperature": calibrator and calibrator.settings(),
        "reference": reference,
    }


def _normalisation(meaning: Meaning, tensor: Tensor, alone: bool) -> dict[str, Any]:
    """Returns the mean and deviation by which an input is normalised before the graph, if the training data says so.

    Beside other inputs, they belong to images.
    """
    units = meaning.units
    if units is None or units.mean is None or units.std is None or not (alone or tensor.ndim == 4):
        return {}
    return {"mean": units.mean.flatten().tolist(), "std": units.std.flatten().tolist()}


def _checked_labels(ensemble: Ensemble, inputs: Inputs, meaning: Meaning, labels: Sequence[str] | None) -> list[str] | None:
    if labels is None:
        return None
    names = list(labels)
    if isinstance(labels, str) or not all(isinstance(name, str) for name in names):
        raise InputError(f"labels={labels!r} must be a list of the classes' names")
    from multitudes.files.export.verify import live_prediction

    prediction = live_prediction(ensemble, inputs, meaning, None)
    if meaning.task in ("gaussian", "regression"):
        raise InputError(f"labels= names classes, but task={meaning.task!r} has none: leave it out")
    wanted = prediction.shape[1] if meaning.task == "multilabel" and len(prediction.shape) > 1 else prediction.classes
    if len(names) != wanted:
        raise InputError(f"labels= has {len(names)} names for {wanted} classes: give one for each, in their order")
    return names


def reference_of(prediction: Prediction | None, meaning: Meaning) -> dict[str, Any] | None:
    """Returns the quantiles of the rows' uncertainty, for the first score that is an output of the graph."""
    if prediction is None:
        return None
    check_prediction(prediction, "reference=")
    if prediction.task != meaning.task:
        raise InputError(f"reference= is a prediction of task {prediction.task!r}, but the ensemble's is {meaning.task!r}")
    if prediction.calibrator != meaning.calibrator:
        raise InputError(
            "reference= was not predicted with the calibrator of the file, so that its uncertainties are others: give "
            "reference=mt.predict(ens, val).calibrated(calibrator), or that of an ensemble with ens.calibrator"
        )
    scores = ["entropy"] if prediction.count == 1 else ["mutual_information", "entropy"]
    scores += ["epistemic", "variance"] if prediction.count > 1 else ["variance"]
    score = next((name for name in scores if name in meaning.outputs), None)
    if score is None:
        raise InputError(f"reference= needs an uncertainty among the outputs: add {scores[0]!r} to outputs=")
    values = getattr(prediction, score).double()
    values = values.reshape(len(values), -1).mean(1)  # of pixels or tokens their mean: a row is unlike the others as a whole
    found = torch.quantile(values[: 2**24], torch.tensor(LEVELS, dtype=torch.float64))
    return {"score": score, "quantiles": {str(level): float(value) for level, value in zip(LEVELS, found, strict=True)}}
