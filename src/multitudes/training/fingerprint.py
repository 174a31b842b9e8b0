"""Fingerprints: short digests that show whether a resumed run has the same datasets and criterion as before."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, Subset, TensorDataset

from multitudes.conversion.anatomy.architecture import settings
from multitudes.data.dataset import Data
from multitudes.data.lazy import Lazy

LARGE = 2**28
"""Size in bytes of a large tensor: of one that is n times as large, only every n-th number is read."""


def tensor_fingerprint(tensors: Iterable[Tensor]) -> str:
    """Returns a digest of tensors; "" if there are none, or they cannot be read (sparse, or on the meta device)."""
    total, parts = hashlib.sha256(), list(tensors)
    try:
        for tensor in parts:
            total.update(_numbers(tensor).view(torch.uint8).numpy().tobytes())
    except (RuntimeError, TypeError, NotImplementedError):
        return ""
    return total.hexdigest()[:16] if parts else ""


def _numbers(tensor: Tensor) -> Tensor:
    """Returns a tensor's numbers as one contiguous row on the CPU; for a large tensor, a sample of them."""
    some = tensor.detach().reshape(-1)[:: max(1, tensor.nbytes // LARGE)].cpu()
    return some.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def dataset_fingerprint(data: Any, batches: bool = False) -> str:
    """Returns the length of a dataset and the digest of its tensors in memory, as text. Nothing is read from disk.

    With `batches`, a dataloader also has its batch size and sampler.
    """
    loader = _loading(data) if batches else ""
    data = data.dataset if isinstance(data, DataLoader) else data
    try:
        length = f"{len(data)} examples"
    except TypeError:  # a stream
        length = type(data).__name__
    return ", ".join(filter(None, [length, tensor_fingerprint(_tensors(data)), *_crops(data), loader]))


def _loading(data: Any) -> str:
    """Returns the batch size and the sampler of a dataloader, as text; "" for a dataset."""
    if not isinstance(data, DataLoader):
        return ""
    size = "" if data.batch_size is None else f" of {data.batch_size}{', the last dropped' if data.drop_last else ''}"
    batch_sampler = data.batch_sampler
    samplers = [data.sampler] if type(batch_sampler) in (BatchSampler, type(None)) else [batch_sampler]
    weights = [getattr(sampler, "weights", None) for sampler in samplers]
    digest = tensor_fingerprint([weight for weight in weights if isinstance(weight, Tensor)])
    return f"batches{size} by {type(samplers[0]).__name__}{f' {digest}' if digest else ''}"


def _crops(data: Any) -> list[str]:
    """Returns the random crops and their size, as text, for image files that are cropped at random."""
    if isinstance(data, Subset):
        return _crops(data.dataset)
    if isinstance(data, ConcatDataset):
        return [text for part in data.datasets for text in _crops(part)]
    crop = getattr(data.inputs.read, "crop", None) if isinstance(data, Data) and isinstance(data.inputs, Lazy) else None
    return [] if crop is None else [f"{crop} to {data.shape[-1]}"]


def _tensors(data: Any) -> list[Tensor]:
    """Returns the tensors that a dataset holds in memory."""
    if isinstance(data, TensorDataset):
        return list(data.tensors)
    if isinstance(data, Data):
        return [part for part in (data.targets, data.inputs, data.mean, data.std) if isinstance(part, Tensor)]
    if isinstance(data, Subset):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # indices may be names
            return [torch.as_tensor(data.indices).clone(), *_tensors(data.dataset)]
    if isinstance(data, ConcatDataset):
        return [tensor for part in data.datasets for tensor in _tensors(part)]
    return []


def criterion_fingerprint(part: Any) -> Any:
    """Describes a criterion, or an argument of one, as JSON: its name, settings and weights."""
    if isinstance(part, nn.Module):
        return {"settings": settings(part), "state": tensor_fingerprint(part.state_dict().values())}
    if isinstance(part, partial):
        return [criterion_fingerprint(one) for one in (part.func, *part.args, *sum(sorted(part.keywords.items()), ()))]
    if isinstance(part, Tensor):
        return tensor_fingerprint([part])
    return getattr(part, "__qualname__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(part))
