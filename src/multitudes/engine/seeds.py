"""Seeds: randomness of one member or one call, which leaves torch's global generator unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from multitudes.engine.modules import named_tensors
from multitudes.settings import check_value


@contextlib.contextmanager
def seeded(seed: int, module: nn.Module | None = None) -> Iterator[None]:
    """Seeds torch's global generators in a with-block, and restores them afterwards."""
    devices = {t.device.index for _, t in named_tensors(module) if t.device.type == "cuda"} if module is not None else set()
    with torch.random.fork_rng(devices=sorted(d for d in devices if d is not None)):
        torch.manual_seed(seed)
        yield


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
