"""Times the ways in which convolutions of members can run, on the shapes of a packed ResNet: what `ens.tune` measures.

python benchmarks/convolutions.py [--device cuda] [--rows 128 1024] [--dtype bfloat16]
python benchmarks/convolutions.py --fused       # with bias, residual and ReLU: in one kernel, one by one, and bytes alone
python benchmarks/convolutions.py --widths      # one plain convolution for 16 images on one core, by the number of channels
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from multitudes.engine.kernels.measure import milliseconds
from multitudes.engine.kernels.ways import Convolution, fastest

SHAPES = [
    (32, 32, 3, 1, 32), (32, 64, 3, 2, 32), (64, 64, 3, 1, 16), (64, 128, 3, 2, 16), (128, 128, 3, 1, 8), (128, 256, 3, 2, 8),
    (256, 256, 3, 1, 4), (32, 128, 1, 1, 32), (128, 32, 1, 1, 32), (64, 256, 1, 1, 16), (256, 64, 1, 1, 16),
]  # fmt: skip
"""Channels in and out of one member, kernel size, stride, image size."""


WIDTHS = (32, 34, 40, 48, 64, 68, 72, 80, 136, 144, 273, 280, 288)
"""Channels of a convolution; 34 and 68 are those of Masksembles with S = 2."""


def time_widths() -> None:
    """Prints the milliseconds of a 3 × 3 convolution by its width."""
    torch.set_num_threads(1)
    for channels in WIDTHS:
        x, kernel = torch.randn(16, channels, 32, 32), torch.randn(channels, channels, 3, 3)
        spent = []
        for _ in range(20):
            start = time.perf_counter()
            torch.nn.functional.conv2d(x, kernel, padding=1)
            spent.append(1e3 * (time.perf_counter() - start))
        print(f"{channels} channels: {statistics.median(spent):.2f} ms")


def time_fused(members: int, rows: int, dtype: torch.dtype) -> None:
    """Prints the milliseconds of convolutions with what follows them, on a GPU: in one kernel, and as operations of torch."""
    speed = _bytes_per_second()
    for shape in SHAPES:
        channels, out, size, stride, _ = shape
        in_one, one_by_one, moved = fused_calls(shape, members, rows, dtype)
        torch.testing.assert_close(in_one(), one_by_one(), rtol=0.05, atol=0.05)
        times = f"one kernel {_gpu_milliseconds(in_one):.3f}, one by one {_gpu_milliseconds(one_by_one):.3f}"
        layer = f"{rows} rows, {channels} to {out}, {size} x {size} / {stride}"
        print(f"{layer}: {times}, bytes alone {1e3 * moved / speed:.3f}")


def fused_calls(
    shape: tuple[int, ...], members: int, rows: int, dtype: torch.dtype
) -> tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor], int]:
    """Returns a layer's run in one kernel, its run one by one, and the bytes that it must read and write."""
    from multitudes.engine.kernels.fused import fused_kernel

    channels, out, size, stride, image = shape
    last: Any = {"memory_format": torch.channels_last}
    make: Any = {"device": "cuda", "dtype": dtype}
    how: Any = ([stride] * 2, [size // 2] * 2, [1, 1])
    x = torch.randn(rows, members * channels, image, image, **make).to(**last)
    kernel = (torch.randn(members * out, channels, size, size, **make) / (channels * size**2) ** 0.5).to(**last)
    bias = torch.randn(members * out, **make)
    other = torch.randn_like(torch.nn.functional.conv2d(x, kernel, bias, *how, members))

    def one_by_one() -> torch.Tensor:
        return torch.relu(torch.nn.functional.conv2d(x, kernel, bias, *how, members) + other)

    def in_one() -> torch.Tensor:
        return fused_kernel(x, kernel, bias, other, members, True, *how)

    return in_one, one_by_one, x.nbytes + 2 * other.nbytes + kernel.nbytes


def _bytes_per_second() -> float:
    """Measures how fast the GPU copies."""
    x = torch.empty(2**28, device="cuda")
    y = torch.empty_like(x)
    return 2e3 * x.nbytes / _gpu_milliseconds(lambda: y.copy_(x))


def _gpu_milliseconds(call: Callable[[], Any], turns: int = 10) -> float:
    times = []
    for turn in range(turns + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times += [start.elapsed_time(end)] if turn > 2 else []
    return statistics.median(times)


def main() -> None:
    """Prints one line per shape: the milliseconds of each way, and the way that would be chosen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", nargs="+", type=int, default=[128, 1024])
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "float16", "bfloat16"])
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--widths", action="store_true")
    parser.add_argument("--fused", action="store_true")
    arguments = parser.parse_args()
    if arguments.widths:
        time_widths()
        return
    torch.backends.cudnn.benchmark = True
    if arguments.fused:
        for rows in arguments.rows:
            time_fused(arguments.members, rows, getattr(torch, arguments.dtype))
        return
    for rows in arguments.rows:
        for channels, out, size, stride, image in SHAPES:
            for trains in (False, True):
                one = Convolution(
                    members=arguments.members, rows=rows, channels=channels, out=out, kernel=(size, size), image=(image, image),
                    stride=(stride, stride), padding=(size // 2, size // 2), dilation=(1, 1), groups=1,
                    dtype=getattr(torch, arguments.dtype), device=arguments.device, channels_last=True, trains=trains,
                )  # fmt: skip
                times = "  ".join(f"{way} {ms:.3f}" for way, ms in milliseconds(one).items())
                what = "forward and backward" if trains else "forward"
                print(
                    f"{rows} rows, {channels} to {out}, {size} x {size} / {stride}, {what}: {times}  (chosen: {fastest(one)})"
                )


if __name__ == "__main__":
    main()
