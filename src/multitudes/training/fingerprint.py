"""Fingerprints: whether tensors, training sets and criteria are the same as before."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from multitudes.conversion.anatomy.architecture import settings
from multitudes.data.dataset import Data
from multitudes.storage import digest

MUCH = 2**28
"""Tensors larger than this, in bytes, are known by some of their numbers."""


def tensor_fingerprint(tensors: Iterable[Tensor]) -> str:
    """Of any tensors, in short; empty where there are none that can be read."""
    try:
        found = {f"{number:06d}": _flat(tensor) for number, tensor in enumerate(tensors)}
    except (RuntimeError, TypeError, NotImplementedError):  # sparse, or on no device
        return ""
    return digest(found)[:16] if found else ""


def _flat(tensor: Tensor) -> Tensor:
    """The numbers of a tensor, or of a very large one some, side by side in memory."""
    some = tensor.detach().reshape(-1)[:: max(1, tensor.nbytes // MUCH)].cpu()
    return some.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def dataset_fingerprint(data: Any) -> str:
    """Of a dataset: how long it is, and what is in memory; of others the kind, as reading them may take long."""
    if isinstance(data, DataLoader):
        data = data.dataset
    try:
        length = f"{len(data)} examples"
    except TypeError:  # a stream
        length = type(data).__name__
    found = tensor_fingerprint(_contents(data))
    return f"{length}, {found}" if found else length


def _contents(data: Any) -> list[Tensor]:
    """The tensors of a set in memory, and its scale."""
    if isinstance(data, TensorDataset):
        return list(data.tensors)
    if isinstance(data, Data):
        scale = [part for part in (data.mean, data.std) if part is not None]
        return [data.targets, *([data.inputs] if isinstance(data.inputs, Tensor) else []), *scale]
    if isinstance(data, Subset):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # names, perhaps
            return [torch.as_tensor(data.indices).clone(), *_contents(data.dataset)]
    if isinstance(data, ConcatDataset):
        return [tensor for part in data.datasets for tensor in _contents(part)]
    return []


def criterion_fingerprint(what: Any) -> Any:
    """Of a criterion, or of what it is made with: its name and settings, as far as it tells them, as JSON."""
    if isinstance(what, nn.Module):
        return {"settings": settings(what), "state": tensor_fingerprint(what.state_dict().values())}
    if isinstance(what, partial):
        return [criterion_fingerprint(part) for part in (what.func, *what.args, *sum(sorted(what.keywords.items()), ()))]
    if isinstance(what, Tensor):
        return tensor_fingerprint([what])
    return getattr(what, "__qualname__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(what))
