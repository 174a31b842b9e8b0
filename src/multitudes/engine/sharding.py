"""Sharded ensembles: torch's `fully_shard(ens)`, of the whole ensemble, whose weights lie in parts on several processes.

Members are run over all tensors at once, so parts of the model that are sharded by themselves are refused: `fully_shard` on the
ensemble gathers everything before a call. Checkpoints and files hold whole tensors, so that any number of processes goes on.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from multitudes.errors import RunError

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble


def is_sharded(ensemble: Ensemble) -> bool:
    """Whether the ensemble is sharded as a whole; sharded parts are refused by name."""
    if "torch.distributed.fsdp" not in sys.modules:  # what shards has not even been imported
        return False
    from torch.distributed.fsdp import FSDPModule

    parts = [name for name, part in ensemble.named_modules() if name and isinstance(part, FSDPModule)]
    if parts:
        raise RunError(
            f"{', '.join(parts[:3])} {'is' if len(parts) == 1 else 'are'} sharded by itself, and members are run over all "
            "tensors at once: shard the ensemble alone, fully_shard(ens)"
        )
    return isinstance(ensemble, FSDPModule)


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor, whose parts are on several processes, which must all ask for it; any other is itself."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(value: Tensor, own: Any) -> Tensor:
    """A whole tensor laid out as one of the ensemble's is."""
    if not hasattr(own, "full_tensor") or value.shape != own.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)


def reshard(ensemble: Ensemble) -> None:
    """Weights in parts again, where a call has left them whole."""
    if is_sharded(ensemble):
        ensemble.reshard()  # type: ignore[operator]


def load_full(ensemble: Ensemble, state: Mapping[str, Tensor]) -> None:
    """Loads whole tensors."""
    reshard(ensemble)
    own = ensemble.state_dict()
    ensemble.load_state_dict({name: shard_like(value, own[name]) for name, value in state.items()})


@contextlib.contextmanager
def gathered(ensemble: Ensemble) -> Iterator[None]:
    """Weights as whole tensors, for the time of a block that all processes enter."""
    if not is_sharded(ensemble):
        yield
        return
    ensemble.unshard()  # type: ignore[operator]
    try:
        yield
    finally:
        reshard(ensemble)
