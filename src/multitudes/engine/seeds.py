"""Seeds: randomness that belongs to one member or one call, and leaves torch's global generator alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from multitudes.engine.modules import named_tensors


@contextlib.contextmanager
def seeded(seed: int, module: nn.Module | None = None) -> Iterator[None]:
    """Torch's global randomness set to a seed, and put back afterwards."""
    devices = {t.device.index for _, t in named_tensors(module) if t.device.type == "cuda"} if module is not None else set()
    with torch.random.fork_rng(devices=sorted(d for d in devices if d is not None)):
        torch.manual_seed(seed)
        yield


def member_seed(seed: int, m: int) -> int:
    """Member m's own seed; not a mere sum, so that neighbouring seeds do not share members."""
    generator = torch.Generator().manual_seed(seed)
    return int(torch.randint(2**62, (m + 1,), generator=generator)[m])
