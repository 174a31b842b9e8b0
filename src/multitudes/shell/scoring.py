"""Scores a finished run: predictions of all sets of its job, their scores, and the costs, as one Row."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from multitudes.conversion.cost import Cost, cost
from multitudes.data import corrupt
from multitudes.data.corruptions.published import SEVERITIES
from multitudes.data.dataset import Data
from multitudes.ensemble import Ensemble
from multitudes.prediction.predict import predict
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.temperature import Calibrator, calibrate
from multitudes.prediction.values import CLASSES
from multitudes.report.row import Row
from multitudes.report.sources import MOST
from multitudes.scores.score import score
from multitudes.scores.scores import Scores
from multitudes.shell.jobs import Job
from multitudes.training.fit import Run

INTERVALS = 100
"""Bootstrap samples of the test set, for the intervals of the scores."""
COST_BATCH = 32
"""Rows of the batch on which the cost is measured."""

Shifted = Prediction | dict[int, Prediction]
"""Predictions of a shifted set, by severity if it has severities."""


def scored_row(run: Run, job: Job, *, name: str, command: str, settings: Mapping[str, Any], row: str = "") -> Row:
    """Scores the epoch that the job names; the other epoch, and the calibrated ensemble, become variants.

    settings    those that the recipe does not hold: the job as it was typed, the budget
    row         the row of the job, if it has rows
    """
    run.ensemble.to(memory_format=torch.contiguous_format)
    made = replace(
        _scored_epochs(run, job, row),
        name=name,
        command=command,
        seed=run.recipe.seed,
        seconds=sum(line["seconds"] for line in run.metrics),
        settings={
            **settings,
            "data": job.name,
            "network": type(run.ensemble.base).__name__,
            "epoch": job.epoch if job.validation is not None else "last",
            "recipe": {key: value for key, value in run.recipe.settings().items() if key != "seed"},
        },
    )
    return made


def _scored_epochs(run: Run, job: Job, name: str) -> Row:
    """Returns the row of the job's epoch, with its variants."""
    ensemble, variants, calibrator = run.ensemble, {}, None
    options: dict[str, Any] = {"intervals": INTERVALS, **job.scoring}
    if job.validation is not None and job.epoch == "best":
        variants["last epoch"] = score(predicted(ensemble, job.test, job, name), **options)
        run.use_best()
    shift = {key: _shifted(ensemble, one, job, name) for key, one in {**corrupted(job), **job.shifts}.items()}
    test = predicted(ensemble, job.test, job, name)
    row = _scored_once(ensemble, job, test, shift, name)
    if job.validation is not None and (job.task in CLASSES or job.task == "gaussian"):
        calibrator = calibrate(predict(ensemble, job.validation, progress=False))
        calm = {key: _calibrated(one, calibrator) for key, one in shift.items()}
        variants["calibrated"] = score(test.calibrated(calibrator), shift=calm or None, **options)
    if job.validation is not None and job.epoch == "last":
        run.use_best()
        variants["best epoch"] = score(predicted(ensemble, job.test, job, name), **options)
    every = {"": row.scores, **variants}
    losses = {name: values for name, scores in every.items() if (values := _losses(scores)) is not None}
    return replace(row, variants=variants, losses=losses, calibrator=calibrator)


def _shifted(ensemble: Ensemble, sets: Any, job: Job, row: str) -> Shifted:
    """Predicts a shifted set, or a corruption at each severity."""
    if not isinstance(sets, Mapping):
        return predicted(ensemble, sets, job, row)
    return {severity: predicted(ensemble, data, job, row) for severity, data in sets.items()}


def _calibrated(one: Shifted, calibrator: Calibrator) -> Shifted:
    """Applies a calibrator to the predictions of a shifted set."""
    if isinstance(one, Prediction):
        return one.calibrated(calibrator)
    return {severity: own.calibrated(calibrator) for severity, own in one.items()}


def _scored_once(ensemble: Ensemble, job: Job, test: Prediction, shift: Mapping[str, Shifted], name: str) -> Row:
    """Scores predictions of the test set and of shifted sets, predicts out-of-distribution sets, measures the cost."""
    ood = {key: predicted(ensemble, data, job, name) for key, data in job.ood.items()}
    options: dict[str, Any] = {"intervals": INTERVALS, **job.scoring}
    device = next(ensemble.parameters()).device
    call = ensemble.call_form.inputs(job.inputs(COST_BATCH))
    batch = call.refill([tensor.to(device) for tensor in call.tensors()])
    return Row(
        name=job.name,
        method=repr(ensemble.method),
        scores=score(test, ood=ood or None, shift=shift or None, **options),
        prediction=test,
        ood=ood,
        cost=_cost_columns(cost(ensemble, batch, training=True)),
        measured={} if job.measure is None else dict(job.measure(ensemble, test)),
    )


@functools.lru_cache(maxsize=2)
def corrupted(job: Job) -> Mapping[str, Mapping[int, Data]]:
    """Returns the job's test images under each of its corruptions, by name and severity; cached for a sweep's other trials."""
    if not job.corruptions:
        return {}
    assert isinstance(job.test, Data)
    clean = job.test.subset(range(min(job.corrupted, len(job.test)))).in_memory()
    assert isinstance(clean.inputs, Tensor)
    return {
        name: {severity: replace(clean, inputs=corrupt(clean.inputs, name, severity), name=name) for severity in SEVERITIES}
        for name in job.corruptions
    }


def predicted(ensemble: Ensemble, data: Any, job: Job, row: str = "") -> Prediction:
    """Predicts a dataset, in the original units of the job's targets."""
    return job.in_original_units(predict(ensemble, data, progress=False, **job.prediction_of(row)))


def _losses(scores: Scores) -> Tensor | None:
    """Returns the NLL of each example, or minus its log density; None without densities, or for very many pixels."""
    assert scores.evidence is not None
    columns = scores.evidence.columns
    losses = columns["nll"] if "nll" in columns else -columns["log_density"] if "log_density" in columns else None
    return losses if losses is not None and len(losses) <= MOST else None


def _cost_columns(measured: Cost) -> dict[str, float]:
    """Returns the costs of a call by name, and those of the single network as `single_...`."""
    names = ("parameters", "multiply_adds", "memory", "latency", "step")
    ensemble = {name: float(getattr(measured.ensemble, name)) for name in names}
    single = {f"single_{name}": float(getattr(measured.base, name)) for name in names}
    return {**ensemble, **single}
