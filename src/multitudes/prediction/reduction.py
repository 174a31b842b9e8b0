"""Checks that a criterion takes the mean over rows, before a step trusts it.

The losses of members that see different numbers of rows are joined, so a criterion must not depend on how many rows there are.
A criterion with a `reduction` says what it does. Any criterion is also tried on a few rows and on the same rows twice and three
times: a mean stays the same, a sum grows by the same amount each time.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.seeds import kept_randomness
from multitudes.engine.selected_output import typed
from multitudes.errors import InputError

ROWS = 4
"""Rows on which a criterion is tried."""
NEAR = 1e-4
"""Relative difference between values that count as equal."""
MEAN = "members' losses must be means over their rows: pass reduction='mean', or divide by the number of rows"


def check_declared(criterion: Any) -> None:
    """Refuses a class in place of a criterion, and one that has reduction="none" or "sum", also if partial() fixes it.

    Refuses also torch's Gaussian loss, which takes means and variances one by one.
    """
    if isinstance(criterion, type):
        name = f"nn.{criterion.__name__}" if criterion.__module__.startswith("torch.nn") else criterion.__name__
        raise InputError(f"criterion={name} is a class: make an object of it, criterion={name}()")
    if not callable(criterion) and criterion is not None:
        raise InputError(f"criterion={criterion!r} must be a function loss(output, target), such as nn.CrossEntropyLoss()")
    if isinstance(criterion, nn.GaussianNLLLoss):
        raise InputError(
            "nn.GaussianNLLLoss takes means and variances one by one, but an output holds both, [B, 2 D]: pass "
            "mt.GaussianNLL(), or leave criterion= out of fit with mt.ensemble(..., task='gaussian')"
        )
    value = _declared(criterion)
    if isinstance(value, str) and value in ("none", "sum"):
        raise InputError(f"criterion={_name(criterion)} has reduction={value!r}, but {MEAN}")


def _declared(criterion: Any) -> Any:
    if isinstance(criterion, functools.partial):
        return criterion.keywords.get("reduction", _declared(criterion.func))
    return getattr(criterion, "reduction", None)


def _name(criterion: Any) -> str:
    while isinstance(criterion, functools.partial):
        criterion = criterion.func
    return str(getattr(criterion, "__name__", type(criterion).__name__))


class ReductionCheck:
    """Checks each criterion at its first step, and trusts it afterwards."""

    def __init__(self) -> None:
        self.trusted: Any = None
        """The last criterion that was checked."""

    def __call__(self, criterion: Any) -> Callable[[Any, Any], Tensor]:
        """Returns a criterion that is checked already, or one that tries itself on the first outputs that it is given."""
        check_declared(criterion)
        if getattr(criterion, "takes_mean", False) or torch.compiler.is_compiling() or _is_same(criterion, self.trusted):
            return criterion
        untried = True

        def tried(output: Any, target: Any) -> Tensor:
            nonlocal untried
            settled, untried = untried and is_settled(criterion, output, target), False
            with _explain_several(output), _explain_shapes(criterion, output, target):
                loss = criterion(output, target)
            if settled:
                self.trusted = criterion
            return loss

        return tried


@contextlib.contextmanager
def _explain_several(output: Any) -> Iterator[None]:
    """Explains the error of a criterion that is given a dict or tuple of outputs and takes a tensor."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        paths = [path for path, leaf in tree.leaves(output) if isinstance(leaf, Tensor)]
        if isinstance(output, Tensor) or not paths:
            raise
        raise InputError(
            f"the model returns a {type(output).__name__} of {', '.join(paths)}, which this criterion does not take "
            f"({error}): choose one, mt.ensemble(..., output={typed(paths[0])}), or pass a criterion that takes them all"
        ) from error


@contextlib.contextmanager
def _explain_shapes(criterion: Any, output: Any, target: Any) -> Iterator[None]:
    """Explains the error of a criterion that is given targets of another shape than it takes for these outputs."""
    try:
        yield
    except (ValueError, RuntimeError, IndexError) as error:
        if isinstance(error, InputError) or not (isinstance(output, Tensor) and isinstance(target, Tensor)):
            raise
        if output.shape == target.shape:
            raise
        name = _name(getattr(criterion, "custom", criterion))
        rows = bool(output.ndim and target.ndim) and len(output) != len(target)
        labels = not target.is_floating_point() and not rows
        give = "nn.CrossEntropyLoss() takes labels" if labels else "give one target per row of the outputs"
        raise InputError(
            f"criterion={name} fails on outputs {list(output.shape)} and targets {list(target.shape)} "
            f"{target.dtype}: {give} ({error})"
        ) from error


def _is_same(criterion: Any, other: Any) -> bool:
    """Whether two criteria are one; functions made by the same line are, if they hold the same values."""
    if criterion is other:
        return True
    if not (isinstance(criterion, FunctionType) and isinstance(other, FunctionType)):
        return isinstance(criterion, MethodType) and criterion == other  # one is made at each access
    mine, theirs = ([cell.cell_contents for cell in one.__closure__ or ()] for one in (criterion, other))
    held = len(mine) == len(theirs) and all(a is b for a, b in zip(mine, theirs, strict=True))
    defaults = criterion.__defaults__ == other.__defaults__ and criterion.__kwdefaults__ == other.__kwdefaults__
    return held and defaults and criterion.__code__ is other.__code__


def is_settled(criterion: Any, output: Any, target: Any) -> bool:
    """Tries a criterion on a few rows of one member. Refuses one that sums over rows, or returns several numbers.

    Random states stay as they are, and so do buffers and counters of a module or object, of which a copy is tried. Whatever is
    not clearly a sum passes, such as a loss that compares rows with each other, or one that draws. Returns False if these rows
    say nothing, because their loss is 0 or not finite.
    """
    try:
        with torch.no_grad(), kept_randomness():
            private = _copied(criterion)
            mixes = _mixes_rows(private, output, target)
            if mixes:
                raise InputError(
                    f"outputs are {list(output.shape)} and targets {list(target.shape)}, so the criterion compares each output "
                    "with the targets of all rows: give targets the outputs' shape, y[:, None] for [B, 1] outputs"
                )
            values = [_value(private, output, target, times) for times in (1, 2)]
            if None not in values and not _are_equal(values[0], values[1]):
                values += [_value(private, output, target, times) for times in (3, 1)]
    except InputError:
        raise
    except Exception:  # what a stranger's function raises on other rows than its own: it is called on these as it is
        return True
    first, second, *more = values
    if first is None or second is None:
        raise InputError(f"the criterion returns several numbers, but {MEAN}")
    if more and _are_equal(first, more[1]) and _grows_evenly(first, second, more[0]):
        raise InputError(f"the criterion sums over rows: its value grows with each repetition of the same rows, but {MEAN}")
    return first != 0 and math.isfinite(first) and mixes is not None


def _mixes_rows(criterion: Any, output: Any, target: Any) -> bool | None:
    """Whether shapes such as ``[B, 1]`` and ``[B]`` are broadcast to all pairs of rows: then the targets' order has no effect.

    Returns None if these rows do not tell. The outputs themselves are tried as targets too: beside targets that are all larger
    than the outputs, a mean of absolute errors does not depend on their order either.
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor) or {output.ndim, target.ndim} != {1, 2}:
        return False
    if 1 not in (output.shape[-1], target.shape[-1]) or len(output) != len(target):
        return False
    try:
        outputs, targets = (t.detach()[:ROWS].double() if t.is_floating_point() else t[:ROWS] for t in (output, target))
        if torch.equal(targets.roll(1, 0), targets) or torch.equal(outputs.roll(1, 0), outputs):
            return None
        own = outputs.reshape(targets.shape).to(targets.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of the shapes
            pairs = [[float(criterion(outputs, one.roll(turn, 0))) for turn in (0, 1)] for one in (targets, own)]
    except Exception:  # it takes no such numbers
        return False
    return all(one != 0 and math.isclose(one, turned, rel_tol=1e-12) for one, turned in pairs)


def _are_equal(first: float | None, second: float | None) -> bool:
    assert first is not None and second is not None
    return not math.isfinite(first) or math.isclose(first, second, rel_tol=NEAR)


def _grows_evenly(once: float, twice: float, thrice: float | None) -> bool:
    """Whether each repetition of the rows adds as much: a sum, maybe with a term that does not depend on the rows."""
    assert thrice is not None
    return math.isfinite(thrice) and math.isclose(twice - once, thrice - twice, rel_tol=1e-2)


def _value(criterion: Any, output: Any, target: Any, times: int) -> float | None:
    """Returns the loss of a few rows, each given `times` times; None if it is not one number."""

    def repeated(tensor: Tensor) -> Tensor:
        rows = tensor.detach()[:ROWS] if tensor.ndim else tensor.detach()
        rows = rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows
        return torch.cat([rows] * times) if rows.ndim else rows

    loss = criterion(tree.apply(repeated, output), tree.apply(repeated, target))
    if not isinstance(loss, Tensor):
        raise TypeError("no tensor")
    return float(loss.detach().double()) if loss.numel() == 1 else None


def _copied(criterion: Any) -> Any:
    """Copies a module or object that may change when it is called, but not the weights of networks inside it."""
    if isinstance(criterion, MethodType):  # of an object that may hold anything, such as a trainer and its datasets
        return criterion
    inside = [criterion, *getattr(criterion, "__dict__", {}).values()]
    if isinstance(criterion, functools.partial):
        inside += [criterion.func, *criterion.args, *criterion.keywords.values()]
    memo = {id(p): p for part in inside if isinstance(part, nn.Module) for p in part.parameters()}
    try:
        return copy.deepcopy(criterion, memo)
    except Exception:  # it holds a lock, a file or the like: it is called as it is, as functions are
        return criterion
