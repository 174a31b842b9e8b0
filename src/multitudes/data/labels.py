"""Labels: checks that targets are classes, probabilities or finite numbers, in the shape of the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from multitudes.errors import InputError

UNLABELLED = -100
"""The label that torch's cross entropy ignores."""
IGNORED = -1
"""The label that we use inside for a pixel or token without a label, whatever number the dataset uses."""
ROUNDING = 1e-2
"""How far probabilities may sum to something other than 1; half precision needs this much."""


def as_target_tensor(targets: Any) -> Tensor:
    """Returns targets as a tensor; refuses those that are not numbers."""
    try:
        return torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            "targets= must be numbers, classes as whole numbers from 0. For names: "
            "targets = torch.tensor([classes.index(name) for name in names])"
        ) from error


def labelled(target: Tensor) -> Tensor:
    """Mask of the entries that have a label."""
    return as_wide(target) != UNLABELLED


def as_wide(target: Tensor) -> Tensor:
    """Returns integers as int64, since −100 as a byte would be 156. Floats stay."""
    return target if target.is_floating_point() else target.long()


def check_range(labels: Tensor, classes: int, ignore: Sequence[int] = (), place: str = "example", hint: str = "") -> None:
    """Checks that every label is a class, 0 to K − 1, or one of the numbers to ignore."""
    wrong = (labels < 0) | (labels >= classes)
    for mark in ignore:
        wrong &= labels != mark
    if bool(wrong.any()):
        at = tuple(int(axis) for axis in wrong.nonzero()[0])
        value, where = int(labels[at]), f" of {place} {at[0]}" if at else ""
        if value == classes > 1 and not bool((labels == 0).any()):
            hint = f". If labels count from 1: targets - 1{hint}"
        elif value >= classes > 1 and labels.unique().numel() <= classes:
            hint = f". To number the values of all labels from 0: torch.unique(targets, return_inverse=True)[1]{hint}"
        raise InputError(f"target {value}{where} is not a class: classes are 0 to {classes - 1}{hint}")


def check_classes(target: Tensor, classes: int, ignore: int = UNLABELLED) -> None:
    """Checks training targets: labels (−100 or `ignore` for entries without one), or probabilities ``[B, K, ...]``."""
    if not target.is_floating_point():
        missing = f"; mark entries without a label by {UNLABELLED}, or pass their number as ignore="
        hint = _other_task(target, classes) or missing
        check_range(target.long(), classes, (ignore, UNLABELLED), "row", hint)
        return
    check_finite(target)
    if target.ndim > 1 and (bool((target < 0).any()) or bool(((target.sum(1) - 1).abs() > ROUNDING).any())):
        hint = _other_task(target, classes) or ": for labels use targets.long()"
        raise InputError(f"targets are floats, so they must be class probabilities, at least 0 with sum 1{hint}")


def _other_task(target: Tensor, classes: int) -> str:
    """Returns a hint, if targets of the task "classes" are those of another task: numbers, or 0 and 1 for one output."""
    values = target[target != UNLABELLED]
    if classes == 1 and bool(((values == 0) | (values == 1)).all()):
        return ". For labels 0 and 1 with one output: mt.ensemble(..., task='binary')"
    numbers = values.is_floating_point() and bool(((values != values.floor()) | (values < 0) | (values >= classes)).any())
    if classes == 1 or numbers:
        return ". To predict numbers: mt.ensemble(..., task='regression'), or task='gaussian' for means and variances"
    return ""


def check_yes_or_no(target: Tensor, ignore: int = UNLABELLED) -> None:
    """Checks binary training targets: 0, 1 or a probability; −100 or `ignore` for entries without a label."""
    check_finite(target)
    values = as_wide(target)
    wrong = ~((values >= 0) & (values <= 1)) & (values != ignore) & (values != UNLABELLED)
    if bool(wrong.any()):
        signs = bool(((values.abs() == 1) | ~wrong).all()) and not bool((values == 0).any())
        instead = "for targets -1 and 1 give (y > 0)" if signs else "mark missing labels by ignore="
        raise InputError(f"target {values[wrong][0].item()} is not 0, 1 or a probability between them: {instead}")


def first_not_finite(tensor: Tensor) -> tuple[int, ...] | None:
    """Returns the place of the first NaN or infinite value, or None. Whole numbers have neither."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or bool(tensor.isfinite().all()):
        return None
    return tuple((~tensor.isfinite()).nonzero()[0].tolist())


def check_finite(target: Tensor) -> None:
    """Checks that no target is NaN or infinite."""
    at = first_not_finite(target)
    if at is not None:
        raise InputError(f"a target is NaN or infinite{f', in row {at[0]}' if at else ''}: remove or replace it")


def as_classes(targets: Tensor, classes: int, ignore: int | None) -> Tensor:
    """Returns labels as int64, with −1 in place of −100 and `ignore`. Labels may also be floats that are whole numbers."""
    targets = targets.long() if targets.dtype == torch.bool else targets
    if targets.is_complex() or not bool((targets.isfinite() & (targets == targets.floor())).all()):
        raise InputError("class labels must be whole numbers, but some targets are fractional, NaN, infinite or complex")
    labels = targets.long()
    hint = "; if this number marks a missing label, pass it as ignore=" if ignore in (None, UNLABELLED) else ""
    marks = (UNLABELLED, UNLABELLED if ignore is None else ignore)
    check_range(labels, classes, marks, hint=hint)
    missing = (labels == marks[0]) | (labels == marks[1])
    return torch.where(missing, IGNORED, labels)


def reshape_like(targets: Tensor, shape: Sequence[int], outputs: str, hint: str = "") -> Tensor:
    """Reshapes targets to `shape`. Their shape may differ only by axes of length one."""
    if [n for n in targets.shape if n != 1] != [n for n in shape if n != 1]:
        raise InputError(
            f"targets are {list(targets.shape)}, but {outputs} are {list(shape)}{hint or ': give one target per output'}"
        )
    return targets.reshape(tuple(shape))


def check_class_shape(target: Tensor, output: Tensor) -> None:
    """Checks targets for outputs ``[B, K, ...]``: labels ``[B, ...]`` as integers, or probabilities ``[B, K, ...]``."""
    shape = output.shape[:1] + output.shape[2:]
    soft = target.is_floating_point() and target.shape == output.shape
    if soft or (target.shape == shape and not target.is_floating_point() and not target.is_complex()):
        return
    is_one_each = target.numel() == shape.numel() and output.ndim > 1 and not target.is_complex()
    hint = ""
    if is_one_each and (other := _other_task(target, output.shape[1])):
        hint = other
    elif target.shape == output.shape:
        hint = ". Use targets.float() for probabilities, targets.argmax(1) for labels"
    elif target.ndim == output.ndim and target.shape[1] == 1:
        hint = ". Use targets.squeeze(1)"
    elif target.shape == shape:
        hint = ". Use targets.long()"
    elif output.ndim > 2 and target.shape == output.shape[:-1]:
        hint = ". If classes are the last axis, pass class_axis=-1"
    kind = str(target.dtype).removeprefix("torch.")
    raise InputError(
        f"targets are {list(target.shape)} {kind} for outputs {list(output.shape)}: give labels, integers {list(shape)}, or "
        f"probabilities, floats {list(output.shape)}{hint}"
    )
