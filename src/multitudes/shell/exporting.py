"""The work of `multitudes export`: a trained run becomes one file for a runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multitudes.data import Data
from multitudes.data.batches import batched
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.files.export.export import export
from multitudes.files.export.result import Exported
from multitudes.prediction.predict import predict
from multitudes.prediction.values import CLASSES
from multitudes.scores.held_out import threshold
from multitudes.shell.jobs import Job, find_job
from multitudes.shell.steps import calibrator_of, load_ensemble, told_of


def export_run(
    run: Path,
    out: Path,
    *,
    job_name: str | None,
    model: str | None,
    root: Path | None,
    outputs: Sequence[str],
    calibrated: bool,
    error: float | None,
    coverage: float | None,
    precision: Any,
    prefer: Any,
    aot: bool,
) -> Exported:
    """Exports the ensemble of a run. Threshold, reference and scores are those of the job's validation set."""
    told = told_of(run, job_name, model, root)
    job = find_job(told.job, told.root)
    ensemble = load_ensemble(run, job, told)
    calibrator = calibrator_of(run, job.epoch) if calibrated else None
    held_out = job.validation
    abstain = error is not None or coverage is not None
    if held_out is None and abstain:
        raise InputError("--error and --coverage need a job with validation=: leave them out, or add a validation set to it")
    reference = None
    if held_out is not None:
        reference = predict(ensemble, held_out, progress=False)
        reference = reference if calibrator is None else reference.calibrated(calibrator)
    limit = threshold(reference, error=error, coverage=coverage) if abstain and reference is not None else None
    units = job.train if isinstance(job.train, Data) else None
    standardised = units is not None and units.target_std is not None and job.task not in CLASSES
    if reference is not None and standardised and units is not None:
        reference = reference.in_original_units(units)
    return export(
        ensemble,
        _example(ensemble, job),
        out,
        outputs=outputs or None,
        calibrator=calibrator,
        threshold=limit,
        precision=precision,
        prefer=prefer,
        data=held_out if precision != "float32" and not standardised else None,
        reference=reference,
        labels=list(job.classes) if job.classes is not None and job.task in CLASSES else None,
        units=units,
        aot=aot,
    )


def _example(ensemble: Ensemble, job: Job) -> Any:
    """Returns the first inputs of the job's test set."""
    _, batches = batched(job.test, 3, 0, None, ensemble.call_form)
    return next(batches)[0]
