"""Sharded ensembles: torch's `fully_shard(ens)` splits the weights over several processes.

An executor needs all tensors at once, and `fully_shard` on the whole ensemble gathers them before a call. A model with sharded
parts is refused. Checkpoints and files hold whole tensors, so training can continue on another number of processes.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multitudes.errors import RunError

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble


def is_sharded(ensemble: Ensemble) -> bool:
    """Checks whether the ensemble is sharded as a whole. Raises an error if parts of it are sharded on their own."""
    if "torch.distributed.fsdp" not in sys.modules:  # nothing can be sharded without this import
        return False
    from torch.distributed.fsdp import FSDPModule

    parts = [name for name, part in ensemble.named_modules() if name and isinstance(part, FSDPModule)]
    if parts:
        raise RunError(
            f"parts of the ensemble are sharded ({', '.join(parts[:3])}), but members need all tensors at once: "
            "shard the whole ensemble only, fully_shard(ens)"
        )
    return isinstance(ensemble, FSDPModule)


def full_tensor(tensor: Tensor) -> Tensor:
    """Gathers a sharded tensor; all processes must call this. Any other tensor is returned as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def shard_like(value: Tensor, tensor: Any) -> Tensor:
    """Shards a whole tensor in the same way as `tensor`, a tensor of the ensemble."""
    if not hasattr(tensor, "full_tensor") or value.shape != tensor.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)


def reshard(ensemble: Ensemble) -> None:
    """Shards the weights of a sharded ensemble again, if a call left them gathered."""
    if is_sharded(ensemble):
        ensemble.reshard()  # type: ignore[operator]


def load_full(ensemble: Ensemble, state: Mapping[str, Tensor]) -> None:
    """Loads a state dict of whole tensors into a sharded or plain ensemble."""
    reshard(ensemble)
    current = ensemble.state_dict()
    ensemble.load_state_dict({name: shard_like(value, current[name]) for name, value in state.items()})


@contextlib.contextmanager
def gathered(ensemble: Ensemble, keep: bool = False) -> Iterator[None]:
    """Gathers all weights in a with-block. All processes must enter it. With `keep`, weights stay as the block leaves them."""
    if not is_sharded(ensemble):
        yield
        return
    ensemble.unshard()  # type: ignore[operator]
    left: dict[str, Tensor] = {}
    try:
        yield
        left = {name: weight.detach().clone() for name, weight in ensemble.named_parameters() if keep}
    finally:
        reshard(ensemble)
    with torch.no_grad():
        for name, weight in ensemble.named_parameters() if keep else ():
            weight.copy_(shard_like(left[name], weight))
