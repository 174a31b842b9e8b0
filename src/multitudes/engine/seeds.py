"""Seeds: randomness of one member or one call, which leaves the global generators unchanged.

Global generators are python's `random`, numpy's (if numpy is imported) and torch's on the CPU and on every GPU: a network may
draw from any of them, in its constructor and in forward.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from multitudes.settings import check_value


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the global generators of python, numpy and torch in a with-block, and restores them afterwards."""
    with kept_randomness():
        seed_all(seed)
        yield


def seed_all(seed: int) -> None:
    """Seeds the global generators of python, numpy and torch."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := _numpy()) is not None:
        numpy.random.seed(seed % 2**32)


@contextlib.contextmanager
def kept_randomness() -> Iterator[None]:
    """Restores the global generators of python, numpy and torch after a with-block, also after an error."""
    python, numpy, cpu, seed = random.getstate(), _numpy(), torch.get_rng_state(), torch.initial_seed()
    numbers = None if numpy is None else numpy.random.get_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numbers)
        torch.set_rng_state(cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
        elif torch.cuda.is_available():  # GPUs that were not in use yet begin with the seed that torch had
            torch.cuda.manual_seed_all(seed)


def generator_states() -> list[Any]:
    """Returns the states of the global generators; two lists are equal if nothing was drawn in between."""
    states: list[Any] = [random.getstate(), torch.get_rng_state().tolist()]
    if (numpy := _numpy()) is not None:
        kind, keys, *rest = numpy.random.get_state()
        states.append((kind, keys.tolist(), *rest))
    if torch.cuda.is_initialized():
        states += [state.tolist() for state in torch.cuda.get_rng_state_all()]
    return states


def _numpy() -> Any:
    """Returns numpy if it is imported, with its generators; otherwise None."""
    return sys.modules.get("numpy") if "numpy.random" in sys.modules else None


def member_seed(seed: int, m: int) -> int:
    """Returns the seed of member m. It is drawn, not `seed + m`, so that neighbouring seeds do not share members."""
    return member_seeds(seed, m + 1)[m]


def member_seeds(seed: int, count: int) -> list[int]:
    """Returns the seeds of members 0 to count − 1. A larger count continues the list."""
    generator = torch.Generator().manual_seed(seed)
    seeds: list[int] = torch.randint(2**62, (count,), generator=generator).tolist()
    return seeds


def checked_seed(seed: int | None) -> int:
    """Returns the seed, or for None a new one from torch's global generator."""
    check_value("seed", seed, int | None)
    return int(torch.randint(2**62, (), device="cpu")) if seed is None else seed
