"""Compares an exported graph with the live ensemble, on more than one batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from multitudes.engine.inputs import Inputs, count_rows, take_rows
from multitudes.engine.modules import named_tensors
from multitudes.engine.selected_output import output_of
from multitudes.ensemble import Ensemble
from multitudes.errors import RunError
from multitudes.files.export.outputs import RISING, Meaning
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.tasks import values_of
from multitudes.prediction.values import CLASSES

NEAR = 1e-4
"""Largest difference that rounding in single precision explains, relative to the largest value of an output, at least 1."""
STEPS = 8
"""The same in steps of a network's own numbers, if these have fewer bits."""
TIE = 1e-3
"""Members whose two best classes are nearer than this may vote either way."""
SIZES = (1, 3, 5)
"""The batch sizes of the comparison."""

Runner = Callable[[Sequence[Tensor]], Mapping[str, Tensor]]


def live_prediction(ensemble: Ensemble, call: Inputs, meaning: Meaning, output: str | None) -> Prediction:
    """Returns what the ensemble itself predicts for a call, in double precision where `Prediction` uses it."""
    modes = {part: part.training for part in ensemble.template.modules()}
    ensemble.eval()
    try:
        with torch.no_grad():
            members = output_of(ensemble(*call.args, **call.kwargs), output)
    finally:
        for part, mode in modes.items():
            part.training = mode
        ensemble.training = modes[ensemble.template]
    values = values_of(members, meaning.task, meaning.noise)
    given: dict[str, Any] = {**values, "task": meaning.task, "class_axis": meaning.class_axis}
    prediction = Prediction(**given, calibrator=meaning.calibrator)
    return prediction if meaning.units is None else prediction.in_original_units(meaning.units)


def rows_are_alone(ensemble: Ensemble, inputs: Inputs, meaning: Meaning) -> bool:
    """Whether a row has the same answer alone as beside others; BatchNorm without running statistics is where it has not."""
    axis = ensemble.engine.batch_axis
    together = live_prediction(ensemble, inputs, meaning, None).members
    for row in range(min(2, count_rows(inputs, axis))):
        try:
            alone = live_prediction(ensemble, take_rows(inputs, axis, torch.tensor([row])), meaning, None).members
        except (ValueError, RuntimeError):  # a norm over the rows of a batch needs several
            return False
        for name, value in alone.items():
            whole = together[name][:, row : row + 1]
            if value.shape != whole.shape or not torch.allclose(value, whole, rtol=1e-3, atol=1e-4, equal_nan=True):
                return False
    return True


def live_outputs(prediction: Prediction, meaning: Meaning) -> dict[str, Tensor]:
    """Returns the outputs of the graph as a prediction has them."""
    members = prediction.members
    own = {"member_probs": "probs", "member_logits": "logits", "member_mean": "mean", "member_variance": "variance"}
    found = {}
    for name in meaning.outputs:
        if name in own:
            found[name] = members[own[name]] if own[name] in members else getattr(members, own[name])
            found[name] = found[name].transpose(0, 1)
        elif name == "abstain":
            assert meaning.threshold is not None
            score, value = getattr(prediction, meaning.threshold.score), meaning.threshold.value
            found[name] = score < value if meaning.threshold.score in RISING else score > value
        else:
            found[name] = getattr(prediction, "labels" if name == "label" else name)
    return found


def compare(ensemble: Ensemble, run: Runner, inputs: Inputs, meaning: Meaning, output: str | None, strict: bool) -> float:
    """Runs graph and ensemble on the same rows. Returns the largest difference; if `strict`, refuses one that is too large.

    An answer that is not a number where the ensemble's is one is always refused.
    """
    axis, largest, near = ensemble.engine.batch_axis, 0.0, _near(ensemble)
    for size in SIZES:
        rows = take_rows(inputs, axis, torch.arange(size) % count_rows(inputs, axis))
        prediction = live_prediction(ensemble, rows, meaning, output)
        expected, found = live_outputs(prediction, meaning), run(rows.tensors())
        for name, value in expected.items():
            if value.shape != found[name].shape:
                raise RunError(
                    f"the exported graph returns {name} {list(found[name].shape)} for {size} rows, but the ensemble "
                    f"{list(value.shape)}: nothing is written. Please report this"
                )
            if bool((found[name].isnan() & ~value.isnan()).any()):
                raise RunError(
                    f"the exported graph answers NaN in {name} for {size} rows, where the ensemble has numbers: nothing is "
                    "written. With precision=, leave that out; otherwise please report this"
                )
            off = _difference(value, found[name], _clear(prediction, meaning, name))
            limit = near * max(1.0, float(value.double().abs().max())) if value.numel() else near
            if strict and not off <= limit:
                raise RunError(
                    f"the exported graph differs from the ensemble by {off:.2g} in {name} for {size} rows, over {limit:.2g}:"
                    " nothing is written. Please report this"
                )
            largest = max(largest, off)
    return largest


def _near(ensemble: Ensemble) -> float:
    """Returns the largest difference that rounding explains: two programs round half precision at other places."""
    kinds = {tensor.dtype for _, tensor in named_tensors(ensemble.template) if tensor.dtype in (torch.float16, torch.bfloat16)}
    return max([NEAR, *(STEPS * torch.finfo(kind).eps for kind in kinds)])


def _difference(expected: Tensor, found: Tensor, clear: Tensor | None) -> float:
    same = (expected == found) | (expected.isnan() & found.isnan())  # also where both are infinite
    off = torch.where(same, 0.0, (expected.double() - found.double()).abs())
    off = off if clear is None else off[clear]
    return float(off.max()) if off.numel() else 0.0


def _clear(prediction: Prediction, meaning: Meaning, name: str) -> Tensor | None:
    """Returns where an output that jumps is not at its jump, for labels, votes and abstentions; None for other outputs."""
    if name == "abstain":
        assert meaning.threshold is not None
        score = getattr(prediction, meaning.threshold.score).double()
        return (score - meaning.threshold.value).abs() > TIE * score.abs().clamp(min=1)
    if name == "label":
        return prediction.margin > TIE
    if name in ("variation_ratio", "disagreement") and meaning.task in CLASSES:
        probs = prediction.members.probs
        if meaning.task != "classes":
            return ((probs - 0.5).abs() > TIE).all(0)
        best = probs.topk(min(2, probs.shape[2]), dim=2).values
        return (best[:, :, 0] - best[:, :, -1] > TIE).all(0) if probs.shape[2] > 1 else None
    return None
