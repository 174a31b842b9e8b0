"""Devices and processes of a run: Lightning Fabric, and torch's own settings for the time of it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.recipes import Recipe

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def device_of(ensemble: Ensemble) -> torch.device:
    """Where the ensemble is."""
    return next((p.device for p in ensemble.parameters()), torch.device("cpu"))


def fabric_for(ensemble: Ensemble, recipe: Recipe, loggers: Any) -> Any:
    """A Fabric for the ensemble's device; under torchrun, one for all processes."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    kind = "cuda" if device_of(ensemble).type == "cuda" or (ranks > 1 and torch.cuda.is_available()) else "cpu"
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    many = {"strategy": "ddp", "devices": here, "num_nodes": max(1, ranks // here)} if ranks > 1 else {"devices": 1}
    fabric = _fabric()(accelerator=kind, precision=PRECISIONS[recipe.precision], loggers=loggers, **many)
    fabric.launch()
    return fabric


def _fabric() -> Any:
    for name in ("lightning_fabric", "lightning.fabric"):
        with contextlib.suppress(ImportError):
            return import_module(name).Fabric
    raise InputError("fit needs Lightning Fabric: pip install 'multitudes[train]'")


@contextlib.contextmanager
def settled(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """torch's own randomness and its choice of algorithms, as they were afterwards."""
    strict, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            if recipe.deterministic:
                torch.use_deterministic_algorithms(True)
                torch.backends.cudnn.benchmark = False
            yield
        finally:
            torch.use_deterministic_algorithms(strict)
            torch.backends.cudnn.benchmark = benchmark
