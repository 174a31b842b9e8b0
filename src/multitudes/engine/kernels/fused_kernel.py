"""The GPU kernel of `fused.py`, in Triton: a convolution as products of tiles of pixels and channels. Imported late.

One program computes BM pixels of BN channels of one member. Programs of members that read the same pixels follow each other,
since channels of members lie beside each other in memory.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 8192
"""Entries of a tile of results in layers that wait for memory."""
LONG = 1024
"""Products in the sum of one result from which on a layer waits for arithmetic."""


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]  # Triton reads the annotations, and knows no others than constexpr
    x, kernel, bias, other, y, pixels, height, width, rows_out, columns_out,
    M: tl.constexpr, C: tl.constexpr, K: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_R: tl.constexpr, STRIDE_S: tl.constexpr, PAD_R: tl.constexpr, PAD_S: tl.constexpr,
    STEP_R: tl.constexpr, STEP_S: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_OTHER: tl.constexpr, RELU: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    tiles: tl.constexpr = (K + BN - 1) // BN
    blocks: tl.constexpr = (C + BK - 1) // BK
    program = tl.program_id(0)
    member = program % M
    out = (program // M) % tiles * BN + tl.arange(0, BN)
    pixel = (program // (M * tiles)) * BM + tl.arange(0, BM)
    column = pixel % columns_out
    row = pixel // columns_out % rows_out
    image = pixel // (columns_out * rows_out)
    within = tl.arange(0, BK)
    own = kernel + member * (K * R * S * C)
    target = pixel.to(tl.int64)[:, None] * (M * K) + member * K + out[None, :]
    valid = (pixel < pixels)[:, None] & (out < K)[None, :]
    if HAS_OTHER and EARLY:
        added = tl.load(other + target, mask=valid, other=0.0)
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(R * S * blocks):
        place, block = step // blocks, step % blocks
        h = row * STRIDE_R + place // S * STEP_R - PAD_R
        w = column * STRIDE_S + place % S * STEP_S - PAD_S
        inside = (pixel < pixels) & (h >= 0) & (h < height) & (w >= 0) & (w < width)
        start = ((image * height + h) * width + w).to(tl.int64) * (M * C) + member * C + block * BK
        channel = block * BK + within
        a = tl.load(x + start[:, None] + within[None, :], mask=inside[:, None] & (channel < C)[None, :], other=0.0)
        b = tl.load(
            own + out[None, :] * (R * S * C) + place * C + channel[:, None],
            mask=(out < K)[None, :] & (channel < C)[:, None],
            other=0.0,
        )
        total = tl.dot(a, b, total)
    if HAS_BIAS:
        total += tl.load(bias + member * K + out, mask=out < K, other=0.0).to(tl.float32)[None, :]
    if HAS_OTHER and EARLY:
        total += added.to(tl.float32)
    elif HAS_OTHER:
        total += tl.load(other + target, mask=valid, other=0.0).to(tl.float32)
    if RELU:
        total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + target, total.to(y.dtype.element_ty), mask=valid)


def run(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    other: Tensor | None,
    y: Tensor,
    members: int,
    relu: bool,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> None:
    """Writes the result of `fused.fused_kernel` into y. All images and the kernel are dense with channels last."""
    channels, out = kernel.shape[1], kernel.shape[0] // members
    tall, wide, deep, warps, stages = tiles(channels, out, kernel.shape[2] * kernel.shape[3])
    pixels = x.shape[0] * y.shape[2] * y.shape[3]
    if not pixels:
        return
    grid = (triton.cdiv(pixels, tall) * triton.cdiv(out, wide) * members,)
    with torch.device(x.device) if x.device.type == "cpu" else torch.cuda.device(x.device):
        _kernel[grid](
            x, kernel, x if bias is None else bias, x if other is None else other, y,
            pixels, x.shape[2], x.shape[3], y.shape[2], y.shape[3],
            members, channels, out, kernel.shape[2], kernel.shape[3], *stride, *padding, *dilation,
            bias is not None, other is not None, relu, tall, wide, deep, kernel.shape[2] * kernel.shape[3] == 1,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip


def tiles(channels: int, out: int, places: int) -> tuple[int, int, int, int, int]:
    """Returns pixels, output channels and input channels of a tile, warps, and stages, for a kernel of so many places.

    The fastest, or close to it, for the layers of Packed-Ensembles and compacted Masksembles of ResNets on an H200. A sum over
    many products waits for arithmetic, not for memory: its tiles are larger, and have less padding.
    """
    deep = 16 if channels <= 16 else 32 if channels <= 32 else 64
    if channels * places >= LONG and out >= 128:
        deep = 64 if channels % 64 == 0 else 32
        if triton.cdiv(out, 128) * 128 > 1.3 * out:
            return 256, 64, deep, 4, 4
        if triton.cdiv(out, 256) * 256 == triton.cdiv(out, 128) * 128:
            return 128, 256, deep, 8, 3
        return (256, 128, deep, 8, 3) if out > 256 and deep == 64 else (128, 128, deep, 4, 3)
    wide = min(128, max(16, triton.next_power_of_2(out)))
    if places > 1 and wide == 128:
        return 128, wide, deep, 8, 3
    return min(256, max(16, TILE // wide)), wide, deep, 4, 3
