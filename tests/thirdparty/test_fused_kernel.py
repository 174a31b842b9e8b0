"""The GPU's kernel of fused convolutions, run by Triton's interpreter on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import torch
from multitudes.engine.kernels.fused import fused_kernel

LAST = {"memory_format": torch.channels_last}
torch.manual_seed(0)
for members, channels, out, side, stride, pad, step, image, added, relu, biased in (
    (2, 5, 7, (3, 3), (1, 1), (1, 1), (1, 1), (6, 6), True, True, True),      # tiles that are mostly padding
    (3, 16, 8, (1, 1), (1, 1), (0, 0), (1, 1), (5, 4), False, True, False),   # one pixel
    (2, 20, 33, (3, 3), (2, 2), (1, 1), (1, 1), (7, 5), True, False, True),   # more channels than a tile has
    (4, 40, 18, (3, 2), (1, 2), (2, 0), (2, 1), (6, 9), False, False, True),  # two axes that differ
    (2, 70, 140, (1, 1), (2, 2), (0, 0), (1, 1), (3, 3), True, True, True),   # several blocks and tiles
):
    x = torch.randn(2, members * channels, *image)
    kernel, bias = torch.randn(members * out, channels, *side), torch.randn(members * out) if biased else None
    wanted = torch.nn.functional.conv2d(x, kernel, bias, stride, pad, step, members)
    other = torch.randn_like(wanted) if added else None
    wanted = wanted if other is None else wanted + other
    wanted = wanted.relu() if relu else wanted
    for given in (x, x.contiguous(**LAST)):
        found = fused_kernel(given, kernel, bias, other, members, relu, list(stride), list(pad), list(step))
        assert found.shape == wanted.shape and found.is_contiguous(**LAST)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
x = torch.randn(1, 32, 4, 4); x[0, 3, 1, 1] = float("nan")
found = fused_kernel(x, torch.randn(32, 16, 1, 1), None, None, 2, True, [1, 1], [0, 0], [1, 1])
assert found[0, :16, 1, 1].isnan().all() and not found[0, 16:].isnan().any()  # ReLU keeps what is not a number
assert fused_kernel(x[:0], torch.randn(32, 16, 1, 1), None, None, 2, True, [1, 1], [0, 0], [1, 1]).shape == (0, 32, 4, 4)
print("equal")
"""


def test_the_kernel_is_the_convolution_with_what_follows() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip() == "equal"


COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from multitudes.engine.kernels.fused_kernel import _kernel, tiles

for channels, out, side, added in ((32, 128, 1, True), (40, 256, 1, True), (64, 64, 3, False)):
    tall, wide, deep, warps, stages = tiles(channels, out, side * side)
    fixed = dict(M=4, C=channels, K=out, R=side, S=side, STRIDE_R=1, STRIDE_S=1, PAD_R=side // 2, PAD_S=side // 2, STEP_R=1,
                 STEP_S=1, HAS_BIAS=True, HAS_OTHER=added, RELU=True, BM=tall, BN=wide, BK=deep, EARLY=side == 1)
    names = _kernel.arg_names
    kinds = {n: "constexpr" if n in fixed else "*bf16" if n in ("x", "kernel", "bias", "other", "y") else "i32" for n in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if name not in fixed}
    source = ASTSource(_kernel, kinds, {(names.index(name),): value for name, value in fixed.items()}, aligned)
    program = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": stages})
    text = program.asm["ptx"]
    assert "wgmma" in text and "st.global.v4" in text, "products by the matrix units, and 16 bytes in one store"
print("compiled")
"""


def test_the_kernel_compiles_for_a_gpu() -> None:
    """For Hopper, which needs no GPU: the interpreter takes programs that the compiler refuses."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILED], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip() == "compiled"
