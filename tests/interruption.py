"""Ctrl-C in the middle of a run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from torch import Tensor

import multitudes.training.fit as training


@contextlib.contextmanager
def interrupted(step: int) -> Iterator[None]:
    """Interrupts the `fit` in a with-block before this step, counted from 1; fails if `fit` does not get there."""
    numbers, real = itertools.count(1), training._step

    def stopping(*args: Any) -> Tensor:
        if next(numbers) == step:
            raise KeyboardInterrupt
        return real(*args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training, "_step", stopping)
        yield
