"""What a conversion must leave as it was: the given model, the example, and everything random."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from multitudes.engine.inputs import Inputs

PLAIN = (bool, int, float, str, type(None))
State = Mapping[str, str]
"""A text for every thing that is watched."""


def state(model: nn.Module, inputs: Inputs) -> State:
    """Describes a model, its example, all random generators and torch's settings."""
    return dict(_described(model, inputs))


def changes(before: State, after: State) -> list[str]:
    """Names what differs."""
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _described(model: nn.Module, inputs: Inputs) -> Iterator[tuple[str, str]]:
    yield "python's random state", _digest(repr(random.getstate()).encode())
    yield "numpy's random state", _digest(repr(np.random.get_state()).encode())
    yield "torch's random state", _digest(torch.get_rng_state().numpy().tobytes())
    if torch.cuda.is_initialized():
        yield "CUDA's random state", _digest(b"".join(state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()))
    yield "torch's gradient mode", f"{torch.is_grad_enabled()} {torch.is_inference_mode_enabled()}"
    yield "torch's default dtype and device", f"{torch.get_default_dtype()} {torch.get_default_device()}"
    for index, tensor in enumerate(inputs.tensors()):
        yield f"tensor {index} of the example", _tensor(tensor)
    for name, module in model.named_modules():
        where = name or "the model"
        yield f"the class of {where}", type(module).__qualname__
        yield f"the hooks of {where}", repr({key: len(value) for key, value in vars(module).items() if key.endswith("_hooks")})
        for key, value in vars(module).items():
            if not key.startswith("_") and (text := _plain(value)) is not None:
                yield f"{key} of {where}", text
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield f"{key} of {where}", _tensor(tensor)


def _tensor(tensor: Tensor) -> str:
    """Describes a tensor: its values, whether it trains, its gradient."""
    grad = "with a gradient" if tensor.is_leaf and tensor.grad is not None else ""
    contents = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() if tensor.numel() else b""
    return f"{tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad} {grad} {_digest(contents)}"


def _plain(value: Any) -> str | None:
    """Describes an attribute: numbers, texts, tensors and collections of them; None for anything else."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, dict):
        return repr({str(key): _plain(part) for key, part in value.items()})
    if isinstance(value, (tuple, list)):
        return repr([_plain(part) for part in value])
    return None


def _digest(contents: Any) -> str:
    """Returns the digest of bytes, or of an array of them."""
    return hashlib.sha1(contents).hexdigest()
