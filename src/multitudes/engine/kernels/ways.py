"""Chooses the way in which a convolution of members runs: as measured by `tune`, or by a rule of thumb.

Measurements are kept for the process, and on disk for the device and the versions of torch and cuDNN. A call never measures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multitudes.storage import write

HALF = (torch.float16, torch.bfloat16)

LARGE_ON_CPU = 4 * 10**6
"""Multiply-adds of one member from which on a CPU runs members one after another faster than in groups."""


@dataclass(frozen=True)
class Convolution:
    """The shape of a convolution of members, and where it runs."""

    members: int
    rows: int
    channels: int
    """Input channels of one member."""
    out: int
    kernel: tuple[int, ...]
    image: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    dtype: torch.dtype
    device: str
    channels_last: bool
    trains: bool
    """Whether gradients are computed too."""

    @classmethod
    def of(
        cls, x: Tensor, kernel: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
    ) -> Convolution:
        """Describes the convolution of x ``[B, M, C, ...]`` by kernels ``[M, K, C / groups, ...]``."""
        return cls(
            members=int(x.shape[1]), rows=_known(x.shape[0]), channels=int(x.shape[2]), out=int(kernel.shape[1]),
            kernel=tuple(kernel.shape[3:]), image=tuple(_known(size) for size in x.shape[3:]), stride=tuple(stride),
            padding=tuple(padding), dilation=tuple(dilation), groups=int(groups), dtype=x.dtype, device=x.device.type,
            channels_last=x.ndim > 3 and x.stride(2) == 1 and x.shape[2] > 1,
            trains=torch.is_grad_enabled() and (x.requires_grad or kernel.requires_grad),
        )  # fmt: skip

    @property
    def possible(self) -> tuple[str, ...]:
        """The ways in which it can run."""
        pixelwise = math.prod(self.kernel) == 1 and not any(self.padding) and self.groups == 1
        ways = ("product",) if pixelwise and self.channels_last else ()
        return (*ways, "grouped", "each", *(("block",) if self.groups == 1 else ()))

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one member's forward pass, without regard to padding."""
        pixels = math.prod(size // step for size, step in zip(self.image, self.stride, strict=True))
        return self.rows * pixels * self.out * self.channels // self.groups * math.prod(self.kernel)

    def key(self) -> str:
        """Names it in a file of measurements. Rows are rounded to a power of two."""
        values = dataclasses.asdict(self)
        values["rows"] = 2 ** round(math.log2(max(self.rows, 1)))
        return " ".join(f"{name}={str(value).replace(' ', '')}" for name, value in values.items())


def _known(size: int) -> int:
    """Returns a size; of a symbolic one, the example's size, without a guard."""
    return size if isinstance(size, int) else int(getattr(size.node, "hint", 0) or 0)


_answers: dict[tuple[Any, ...], str] = {}
"""What `way_of` has answered before: calls ask for each convolution."""
_measured: dict[str, str] = {}
_read: list[str] = []
"""The file from which measurements were read, once it was."""
_forced: list[str] = []
_met: list[dict[str, Convolution]] = []


def way_of(x: Tensor, kernel: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> str:
    """Returns the way in which x ``[B, M, C, ...]`` and kernels ``[M, K, C / groups, ...]`` run."""
    if _met or _forced or any(type(size) is not int for size in x.shape):  # symbolic sizes have no hash
        return fastest(Convolution.of(x, kernel, stride, padding, dilation, groups))
    trains = torch.is_grad_enabled() and (x.requires_grad or kernel.requires_grad)
    how = (*stride, *padding, *dilation, groups)
    switches = fp32_precisions() if x.dtype == torch.float32 else ()
    key = (x.shape, kernel.shape, x.stride(2), how, x.dtype, x.device.type, trains, switches)
    way = _answers.get(key)
    if way is None:
        way = _answers[key] = fastest(Convolution.of(x, kernel, stride, padding, dilation, groups))
    return way


def fastest(convolution: Convolution) -> str:
    """Returns the name of the way in which a convolution runs."""
    if _met:
        _met[-1][convolution.key()] = convolution
    if _forced and _forced[-1] in convolution.possible:
        return _forced[-1]
    known = _known_ways().get(convolution.key()) if convolution.device != "cpu" else None
    return known if known in convolution.possible else _rule_of_thumb(convolution)


def _rule_of_thumb(convolution: Convolution) -> str:
    """Returns the way that was fastest for most shapes like this one; `benchmarks/convolutions.py` prints such measurements."""
    possible = convolution.possible
    if possible[0] == "product" and not _rounds_in_convolutions_only(convolution):
        return "product"
    if convolution.device == "cpu":
        return "each" if convolution.multiply_adds >= LARGE_ON_CPU else "grouped"
    if _rounds_in_convolutions_only(convolution) and convolution.channels_last:
        return _rule_for_tf32(convolution)
    thin = convolution.members * convolution.channels <= (512 if convolution.trains else 256)
    strided = max(convolution.stride, default=1) > 1
    if convolution.device == "cuda" and convolution.dtype in HALF and convolution.channels_last and strided and thin:
        return "block" if "block" in possible else "grouped"
    return "grouped"


def _rule_for_tf32(convolution: Convolution) -> str:
    """Returns the way that is fastest for most convolutions in TF32: groups are slow, and multiplying zeros costs little."""
    pixelwise, width = convolution.possible[0] == "product", convolution.members * min(convolution.channels, convolution.out)
    if pixelwise and width <= (512 if convolution.trains else 1024):
        return "block"
    return "each" if convolution.trains and convolution.channels >= 128 else "grouped"


def _rounds_in_convolutions_only(convolution: Convolution) -> bool:
    """Whether torch lets a GPU round single precision to TF32 in convolutions, but not in products, which are then slower."""
    if convolution.device != "cuda" or convolution.dtype != torch.float32:
        return False
    convolutions, products = fp32_precisions()
    return convolutions == "tf32" and products != "tf32"


def fp32_precisions() -> tuple[str, str]:
    """Returns how torch lets a GPU round single precision in convolutions, and in products.

    `allow_tf32` says the same, but raises an error where the user has set a precision by the newer switches.
    """
    cudnn: Any = torch.backends.cudnn
    return cudnn.conv.fp32_precision, torch.backends.cuda.matmul.fp32_precision


@contextlib.contextmanager
def forced(way: str) -> Iterator[None]:
    """Makes all convolutions that can run in one way do so, in a with-block."""
    _forced.append(way)
    try:
        yield
    finally:
        _forced.pop()


@contextlib.contextmanager
def met() -> Iterator[dict[str, Convolution]]:
    """Collects the convolutions of members that run in a with-block, by key."""
    _met.append({})
    try:
        yield _met[-1]
    finally:
        _met.pop()


def remember(ways: dict[str, str]) -> None:
    """Keeps measured ways, by key: for this process, and on disk if that can be written."""
    _known_ways().update(ways)
    _answers.clear()
    with contextlib.suppress(OSError):
        stored = _stored()
        stored.setdefault(_machine(), {}).update(ways)
        _file().parent.mkdir(parents=True, exist_ok=True)
        write(_file(), json.dumps(stored, indent=1, sort_keys=True).encode())


def _known_ways() -> dict[str, str]:
    if not _read:
        _read.append(str(_file()))
        _measured.update(_stored().get(_machine(), {}))
    return _measured


def _stored() -> dict[str, dict[str, str]]:
    """Reads the file of measurements. One that cannot be read, or holds something else, counts as empty: it is a cache."""
    try:
        found = json.loads(_file().read_text())
        return {str(k): {str(a): str(b) for a, b in v.items()} for k, v in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _file() -> Path:
    """The file of measurements; the environment variable MULTITUDES_CACHE names another folder."""
    cache = (
        os.environ.get("MULTITUDES_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multitudes"
    )
    return Path(cache) / "convolutions.json"


@functools.cache
def _machine() -> str:
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return f"{name} torch {torch.__version__} cuDNN {torch.backends.cudnn.version()}"
