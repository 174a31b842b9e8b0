"""What a compiled training step keeps between forward and backward: one network, and an ensemble of it.

    python -m benchmarks.saved [--network resnet50] [--method packed] [--batch 64] [--width 0.25] [--device cpu]

It prints the bytes of each kind of tensor, and their ratio to those of one network. Nothing is generated: the compiler's
partitioner decides what to keep, and the two graphs run as they are, so this needs no GPU and takes seconds. On a CPU,
convolutions of members run as they do on a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import warnings
from collections import Counter
from collections.abc import Iterator
from unittest import mock

import torch
from torch import Tensor, nn

import multitudes as mt
from benchmarks.speed import METHODS, NETWORKS
from multitudes.engine.kernels import convolution


def kept(module: nn.Module, x: Tensor, dtype: torch.dtype | None = torch.bfloat16) -> list[Tensor]:
    """Returns the tensors that a compiled call keeps for backward, each memory once, without parameters, buffers and input."""
    torch._dynamo.reset()
    run = torch.compile(module, backend="aot_eager_decomp_partition", dynamic=False)
    with torch.autocast(x.device.type, dtype or torch.bfloat16, enabled=dtype is not None), as_on_a_gpu(x.device.type):
        waiting = [run(x).grad_fn]
    seen = {_place(tensor) for tensor in (*module.parameters(), *module.buffers(), x)}
    found: list[Tensor] = []
    while waiting:
        node = waiting.pop()
        if "CompiledFunction" not in type(node).__name__:
            waiting += [before for before, _ in node.next_functions if before is not None] if node is not None else []
            continue
        for tensor in (*node.saved_tensors, *getattr(node, "_tensors_no_vc_check", ())):  # type: ignore[attr-defined]
            if _place(tensor) not in seen:
                seen.add(_place(tensor))
                found.append(tensor)
    return found


def size(tensors: list[Tensor]) -> int:
    """Returns the bytes of tensors' memories."""
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def together(ens: mt.Ensemble) -> mt.Ensemble:
    """Lets vmap run an ensemble, as a compiled call on a GPU does."""
    ens.prove_later(["vmap"])
    ens.engine.picked.update(train="vmap", eval="vmap")
    return ens


@contextlib.contextmanager
def as_on_a_gpu(device: str) -> Iterator[None]:
    """On a CPU, lets convolutions of members run in the ways of a GPU, in a with-block: products of pixels, or grouped."""
    if device != "cpu":
        yield
        return
    ways = {
        "product": lambda x, kernel, bias, *how: (convolution.product_beside(x, kernel.flatten(2), bias, how[0]), 1),
        "each": convolution.grouped,
    }
    with mock.patch.dict(convolution.WAYS, ways):
        yield


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _show(name: str, tensors: list[Tensor], alone: int) -> None:
    print(f"{name}: {size(tensors) / 2**20:.1f} MiB in {len(tensors)} tensors, {size(tensors) / alone:.2f} × single")
    kinds: Counter[str] = Counter()
    for tensor in tensors:
        kinds[f"{tensor.dtype} {list(tensor.shape)}".removeprefix("torch.")] += tensor.untyped_storage().nbytes()
    for kind, count in kinds.most_common(12):
        print(f"  {count / 2**20:10.2f} MiB  {kind}")


def main() -> None:
    """Reads the arguments, and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saved", description=__doc__)
    parser.add_argument("--network", default="resnet50", choices=list(NETWORKS))
    parser.add_argument("--method", default="packed", choices=list(METHODS))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=float, default=0.25)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    network, shape = NETWORKS[given.network]
    x = torch.randn(given.batch, *shape)
    ens = mt.ensemble(lambda: network(width=given.width), METHODS[given.method], x[:2], seed=0)
    x = x.to(given.device, memory_format=torch.channels_last)
    alone = 0
    for name, module in (("single", network(width=given.width)), (given.method, together(ens))):
        found = kept(module.to(given.device, memory_format=torch.channels_last).train(), x)
        alone = alone or size(found)
        _show(name, found, alone)


if __name__ == "__main__":
    main()
