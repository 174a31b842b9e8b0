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
from multitudes.prediction.temperature import calibrate
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

Shifted = dict[str, dict[int, Prediction]]
"""Predictions of corrupted images, by corruption and severity."""


def scored_row(run: Run, job: Job, *, name: str, command: str, settings: Mapping[str, Any]) -> Row:
    """Scores the epoch that the job names; the other epoch, and the calibrated ensemble, become variants.

    settings    those that the recipe does not hold: the job as it was typed, the budget
    """
    run.ensemble.to(memory_format=torch.contiguous_format)
    row = replace(
        _scored_epochs(run, job),
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
    return row


def _scored_epochs(run: Run, job: Job) -> Row:
    """Returns the row of the job's epoch, with its variants."""
    ensemble, variants, calibrator = run.ensemble, {}, None
    if job.validation is not None and job.epoch == "best":
        variants["last epoch"] = score(predicted(ensemble, job.test, job), intervals=INTERVALS)
        run.use_best()
    sets = corrupted(job)
    shift = {name: {s: predicted(ensemble, data, job) for s, data in one.items()} for name, one in sets.items()}
    test = predicted(ensemble, job.test, job)
    row = _scored_once(ensemble, job, test, shift)
    if job.validation is not None and (job.task in CLASSES or job.task == "gaussian"):
        calibrator = calibrate(predict(ensemble, job.validation, progress=False))
        calm = {name: {s: one.calibrated(calibrator) for s, one in own.items()} for name, own in shift.items()}
        variants["calibrated"] = score(test.calibrated(calibrator), shift=calm or None, intervals=INTERVALS)
    if job.validation is not None and job.epoch == "last":
        run.use_best()
        variants["best epoch"] = score(predicted(ensemble, job.test, job), intervals=INTERVALS)
    every = {"": row.scores, **variants}
    losses = {name: values for name, scores in every.items() if (values := _losses(scores)) is not None}
    return replace(row, variants=variants, losses=losses, calibrator=calibrator)


def _scored_once(ensemble: Ensemble, job: Job, test: Prediction, shift: Shifted) -> Row:
    """Scores predictions of the test set and of corrupted images, predicts out-of-distribution sets, measures the cost."""
    ood = {name: predicted(ensemble, data, job) for name, data in job.ood.items()}
    device = next(ensemble.parameters()).device
    call = ensemble.call_form.inputs(job.inputs(COST_BATCH))
    batch = call.refill([tensor.to(device) for tensor in call.tensors()])
    return Row(
        name=job.name,
        method=repr(ensemble.method),
        scores=score(test, ood=ood or None, shift=shift or None, intervals=INTERVALS),
        prediction=test,
        ood=ood,
        cost=_cost_columns(cost(ensemble, batch, training=True)),
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


def predicted(ensemble: Ensemble, data: Any, job: Job) -> Prediction:
    """Predicts a dataset, in the original units of the job's targets."""
    return job.in_original_units(predict(ensemble, data, progress=False, tau_output=job.tau_output))


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
