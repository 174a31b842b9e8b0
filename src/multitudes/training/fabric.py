"""Sets up devices and processes with Lightning Fabric, and torch's global settings during a run."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from multitudes.engine.seeds import kept_randomness
from multitudes.engine.sharding import is_sharded
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.training.lamb import LAMB
from multitudes.training.recipe import Recipe

FABRICS = ("lightning_fabric", "lightning.fabric")
PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def device_of(ensemble: Ensemble) -> torch.device:
    """Returns the device of the ensemble's parameters."""
    return next((p.device for p in ensemble.parameters()), torch.device("cpu"))


def fabric_for(ensemble: Ensemble, recipe: Recipe, loggers: Any) -> Any:
    """Makes a Fabric for the ensemble's device; under torchrun, one for all processes."""
    if recipe.precision == "fp16" and device_of(ensemble).type == "cpu":
        raise InputError("Recipe(precision='fp16') needs a GPU: on a CPU take 'bf16' or '32'")
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    kind = "cuda" if device_of(ensemble).type == "cuda" or (ranks > 1 and torch.cuda.is_available()) else "cpu"
    here = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    with quiet_fabric():
        library, strategy = _fabric(), "ddp"
        if _is_sharded(ensemble, recipe):
            strategy = _unwrapped(library)
        many = {"strategy": strategy, "devices": here, "num_nodes": max(1, ranks // here)} if ranks > 1 else {"devices": 1}
        fabric = library.Fabric(accelerator=kind, precision=PRECISIONS[recipe.precision], loggers=loggers, **many)
        fabric.launch()
    return fabric


def _is_sharded(ensemble: Ensemble, recipe: Recipe) -> bool:
    """Checks whether the ensemble is sharded. If it is, raises an error for settings that need whole tensors."""
    if not is_sharded(ensemble):
        return False
    needs_whole = {
        "clip": recipe.clip is not None,
        "channels_last": recipe.channels_last,
        "optimizer": recipe.optimizer == "lamb",
    }
    for name in [name for name, needed in needs_whole.items() if needed]:
        raise InputError(
            f"Recipe({name}={getattr(recipe, name)!r}) needs whole tensors, but the ensemble is sharded: train without it"
        )
    return True


def check_fabric(fabric: Any, ensemble: Ensemble, recipe: Recipe) -> None:
    """Checks the caller's Fabric: one device or DDP, in the recipe's precision, and no sharded ensemble."""
    if _is_sharded(ensemble, recipe):
        raise InputError("a sharded ensemble needs the Fabric that fit makes: leave out fabric=, and start with torchrun")
    kind = type(getattr(fabric, "strategy", fabric)).__name__
    if kind not in ("SingleDeviceStrategy", "DDPStrategy"):
        raise InputError(f"fabric= must have one device or strategy='ddp', not {kind}; to shard, use fully_shard(ens)")
    actual, expected = str(fabric.strategy.precision.precision), PRECISIONS[recipe.precision]
    if actual != expected:
        raise InputError(
            f"Recipe(precision={recipe.precision!r}) needs Fabric(precision={expected!r}), but it has {actual!r}: change one"
        )


def replay_log(fabric: Any, lines: Sequence[Mapping[str, float]]) -> None:
    """Logs the metrics of earlier epochs again, for CSV loggers: in a resumed run they start a new file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Experiment logs directory")  # its lines are written again
        for logger in [one for one in fabric.loggers if type(one).__name__ == "CSVLogger"]:
            for line in lines:
                logger.log_metrics(dict(line), int(line["epoch"]))


@contextlib.contextmanager
def quiet_fabric() -> Iterator[None]:
    """Silences Fabric's messages about precision and processes, which the recipe has set on purpose."""
    parts = [f"{name}.utilities.{part}" for name in FABRICS for part in ("rank_zero", "distributed")]
    loggers = [logging.getLogger(part) for part in parts]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def compiled(ensemble: Ensemble, recipe: Recipe, device: torch.device) -> Any:
    """Compiles the ensemble if recipe.compile is on; on a GPU with CUDA graphs.

    Accumulated gradients would outlive the memory of a CUDA graph, so with accumulate > 1 there are none.
    """
    if not recipe.compile:
        return ensemble
    graphs = device.type == "cuda" and recipe.accumulate == 1
    return torch.compile(ensemble, mode="reduce-overhead" if graphs else "default", dynamic=False)


def optimizer_for(ensemble: Ensemble, recipe: Recipe, device: torch.device) -> torch.optim.Optimizer:
    """Makes the recipe's optimizer over the method's parameter groups. Each group stores its initial rate as first_lr."""
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "lamb": LAMB}
    kind: type[Any] = kinds[recipe.optimizer]
    more: dict[str, Any] = {"momentum": recipe.momentum, "nesterov": recipe.nesterov} if kind is torch.optim.SGD else {}
    if device.type == "cuda" and recipe.precision != "fp16" and kind is not LAMB:
        more["fused"] = True
    if not any(p.requires_grad for p in ensemble.parameters()):
        raise InputError("all parameters are frozen: unfreeze them with ens.requires_grad_(True)")
    groups = ensemble.param_groups(lr=recipe.lr, weight_decay=recipe.weight_decay, optimizer=kind)
    optimizer: torch.optim.Optimizer = kind(groups, lr=recipe.lr, **more)
    for group in optimizer.param_groups:
        group.setdefault("first_lr", group["lr"])
    return optimizer


def _unwrapped(library: Any) -> Any:
    """Makes a DDP strategy that does not wrap the model, since a sharded ensemble averages gradients itself."""
    strategy = import_module(f"{library.__name__}.strategies").DDPStrategy

    class Sharded(strategy):  # type: ignore[misc, valid-type]
        def setup_module(self, module: Any) -> Any:
            return module

    sharded = Sharded()
    sharded._backward_sync_control = _AlwaysSync()
    return sharded


class _AlwaysSync:
    """Averages gradients after each accumulated part, since a sharded ensemble cannot store them whole."""

    def no_backward_sync(self, module: Any, enabled: bool) -> Any:
        return contextlib.nullcontext()


def _fabric() -> Any:
    for name in FABRICS:
        with contextlib.suppress(ImportError), _versions_from_metadata():
            return import_module(name)
    raise InputError("fit needs Lightning Fabric: pip install 'multitudes[train]'")


@contextlib.contextmanager
def _versions_from_metadata() -> Iterator[None]:
    """Lets Fabric read the version of torchmetrics from its metadata: to import it for that takes seconds."""
    from lightning_utilities.core import imports
    from packaging.version import Version

    compare = imports.compare_version

    def quick(package: str, op: Any, wanted: str, use_base_version: bool = False) -> bool:
        if package != "torchmetrics":
            return bool(compare(package, op, wanted, use_base_version))
        with contextlib.suppress(PackageNotFoundError):
            found = Version(version(package))
            return bool(op(Version(found.base_version) if use_base_version else found, Version(wanted)))
        return False

    imports.compare_version = quick  # type: ignore[assignment]
    try:
        yield
    finally:
        imports.compare_version = compare


@contextlib.contextmanager
def torch_settings(recipe: Recipe) -> Iterator[None]:
    """Sets deterministic algorithms if recipe.deterministic is on. Restores them, and all random states, at the end."""
    before, benchmark = _determinism(), torch.backends.cudnn.benchmark
    with kept_randomness():
        try:
            if recipe.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses
                torch.use_deterministic_algorithms(True)
                torch.backends.cudnn.benchmark = False
            yield
        finally:
            if _determinism() != before:  # torch imports its compiler to set it, which takes seconds
                torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            torch.backends.cudnn.benchmark = benchmark


def _determinism() -> tuple[bool, bool]:
    """Whether torch takes deterministic algorithms only, and whether it only warns of others."""
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
