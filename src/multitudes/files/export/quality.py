"""Scores of an exported graph on data, beside those of the live ensemble."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from multitudes.data.batches import batched
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.files.export.outputs import Meaning
from multitudes.files.export.verify import Runner, live_outputs, live_prediction
from multitudes.prediction.targets import IGNORED
from multitudes.prediction.values import CLASSES

BATCH = 64
"""Rows at once."""


def compare_scores(ensemble: Ensemble, data: Any, run: Runner, meaning: Meaning) -> dict[str, tuple[float, float]]:
    """Returns each score of the ensemble and of the graph: error and NLL of classes, the root mean squared error of numbers."""
    needed = "probs" if meaning.task in CLASSES else "mean"
    if needed not in meaning.outputs:
        raise InputError(f"data= needs {needed!r} among the outputs: add it to outputs=")
    _, batches = batched(data, BATCH, ensemble.engine.batch_axis, None, ensemble.call_form)
    sums: dict[str, list[float]] = {}
    count = 0
    for inputs, targets in batches:
        if targets is None:
            raise InputError("data= needs targets, to compute scores: give a dataset of pairs (input, target)")
        prediction = live_prediction(ensemble, inputs, meaning, None)
        found = [live_outputs(prediction, meaning)[needed], run(inputs.tensors())[needed]]
        if meaning.units is not None and meaning.units.target_std is not None and meaning.task not in CLASSES:
            targets = meaning.units.original(targets)  # the numbers of graph and ensemble are in these units
        kept, rows = _kept(targets, meaning)
        count += rows
        for place, values in enumerate(found):
            for name, value in _sums(values.double(), targets, kept, meaning).items():
                sums.setdefault(name, [0.0, 0.0])[place] += value
    if not count:
        raise InputError("data= has no examples with targets: give some")
    means = {name: (before / count, after / count) for name, (before, after) in sums.items()}
    return {"rmse": (means["squares"][0] ** 0.5, means["squares"][1] ** 0.5)} if "squares" in means else means


def _kept(targets: Tensor, meaning: Meaning) -> tuple[Tensor, int]:
    kept = targets != IGNORED if meaning.task in CLASSES else torch.ones_like(targets, dtype=torch.bool)
    return kept, int(kept.sum())


def _sums(values: Tensor, targets: Tensor, kept: Tensor, meaning: Meaning) -> dict[str, float]:
    if meaning.task not in CLASSES:
        return {"squares": float(((values.reshape(targets.shape) - targets.double()) ** 2).sum())}
    if meaning.task == "classes":
        values = values.movedim(1, -1)  # [B, ..., K]
        of_target = values.gather(-1, targets.long().clamp(min=0)[..., None])[..., 0]
        wrong = values.argmax(-1) != targets
    else:
        values = values.reshape(targets.shape)
        of_target = torch.where(targets.bool(), values, 1 - values)
        wrong = (values > 0.5) != targets.bool()
    nll = -of_target.clamp(min=1e-30).log()
    return {"error": float(wrong[kept].sum()), "nll": float(nll[kept].sum())}
