"""Labels: checks that targets are classes, probabilities or finite numbers, in the shape of the outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from multitudes.errors import InputError

UNLABELLED = -100
"""The label that torch's cross entropy ignores."""
IGNORED = -1
"""Our mark for a pixel or token without a label, whatever number the dataset uses for it."""
ROUNDING = 1e-2
"""Largest distance from 1 of a sum of probabilities, for those in half precision."""


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
        raise InputError(f"target {value}{where} is not a class: classes are 0 to {classes - 1}{hint}")


def check_classes(target: Tensor, classes: int, ignore: int = UNLABELLED) -> None:
    """Checks training targets: labels, −100 or `ignore` for none; or probabilities of classes ``[B, K, ...]``."""
    if not target.is_floating_point():
        hint = f"; an entry without a label is {UNLABELLED}, or ignore="
        check_range(target.long(), classes, (ignore, UNLABELLED), "row", hint)
    elif target.ndim > 1 and (bool((~(target >= 0)).any()) or bool(((target.sum(1) - 1).abs() > ROUNDING).any())):
        raise InputError("targets as floats must be probabilities of classes: at least 0, and their sum must be 1")


def check_yes_or_no(target: Tensor, ignore: int = UNLABELLED) -> None:
    """Checks training targets of yes-or-no questions: 0, 1 or a probability; −100 or `ignore` for no label."""
    values = as_wide(target)
    wrong = ~((values >= 0) & (values <= 1)) & (values != ignore) & (values != UNLABELLED)
    if bool(wrong.any()):
        raise InputError(f"target {values[wrong][0].item()} must be 0, 1, or a probability between them")


def check_finite(target: Tensor) -> None:
    """Checks that no target is NaN or infinite."""
    if not bool(target.isfinite().all()):
        raise InputError("a target is NaN or infinite")


def as_classes(targets: Tensor, classes: int, ignore: int | None) -> Tensor:
    """Returns labels as int64, with −1 in place of `ignore`. Whole numbers may be floats."""
    targets = targets.long() if targets.dtype == torch.bool else targets
    if targets.is_complex() or not bool((targets.isfinite() & (targets == targets.floor())).all()):
        raise InputError("targets of classes must be whole numbers")
    labels = targets.long()
    hint = "; for entries without a label, pass ignore=255 or their number" if ignore in (None, UNLABELLED) else ""
    check_range(labels, classes, () if ignore is None else (ignore,), hint=hint)
    return labels if ignore is None else torch.where(labels == ignore, IGNORED, labels)


def reshape_like(targets: Tensor, shape: Sequence[int], outputs: str, hint: str = "") -> Tensor:
    """Reshapes targets to `shape`, from which they may differ only by axes of length one."""
    if [n for n in targets.shape if n != 1] != [n for n in shape if n != 1]:
        raise InputError(f"targets are {list(targets.shape)}, and {outputs} are {list(shape)}{hint}")
    return targets.reshape(tuple(shape))


def check_class_shape(target: Tensor, output: Tensor) -> None:
    """Checks targets for outputs ``[B, K, ...]``: labels ``[B, ...]`` as integers, or probabilities ``[B, K, ...]``."""
    shape = output.shape[:1] + output.shape[2:]
    soft = target.is_floating_point() and target.shape == output.shape
    if soft or (target.shape == shape and not target.is_floating_point() and not target.is_complex()):
        return
    hint = ""
    if target.shape == output.shape:
        hint = ": targets.float() for probabilities, targets.argmax(1) for classes"
    elif target.ndim == output.ndim and target.shape[1] == 1:
        hint = ": targets.squeeze(1)"
    elif target.shape == shape:
        hint = ": targets.long()"
    elif output.ndim > 2 and target.shape == output.shape[:-1]:
        hint = "; if classes are the last axis, pass class_axis=-1"
    kind = str(target.dtype).removeprefix("torch.")
    raise InputError(
        f"targets are {list(target.shape)} {kind}, and outputs {list(output.shape)}: targets must be classes, whole numbers "
        f"{list(shape)}, or a probability for each class{hint}"
    )
