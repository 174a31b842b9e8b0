"""Times what Python and torch's dispatch cost in eager mode: networks so thin that arithmetic hardly counts, on one core.

python benchmarks/host.py

Beside one network and the ensemble, run by vmap, stands a network of the members' shapes that is written by hand with grouped
convolutions and wide BatchNorm layers. On a GPU small batches wait for the same Python. Calls alternate, in thread time.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes import models

MEMBERS = 4
METHODS: dict[str, mt.Method] = {"Packed": mt.Packed(members=MEMBERS, alpha=2), "Deep": mt.Deep(members=MEMBERS)}


class GroupedLinear(nn.Module):
    """Linear layers of members whose features lie beside each other."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = nn.Conv1d(MEMBERS * layer.in_features, MEMBERS * layer.out_features, 1, groups=MEMBERS)

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[B, (M C)]`` → ``[B, (M K)]``"""
        return self.layer(x.unsqueeze(-1)).squeeze(-1)


def grouped(net: nn.Module) -> nn.Module:
    """Returns a ResNet of all members by hand: its first convolution reads one image, all others have a group per member."""
    wide = copy.deepcopy(net)
    for name, part in list(wide.named_modules()):
        parent, key = wide.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        if isinstance(part, nn.Conv2d):
            groups = 1 if name == "conv1" else MEMBERS
            sizes = part.in_channels * groups, part.out_channels * MEMBERS, part.kernel_size
            setattr(parent, key, nn.Conv2d(*sizes, part.stride, part.padding, groups=groups, bias=False))
        elif isinstance(part, nn.BatchNorm2d):
            setattr(parent, key, nn.BatchNorm2d(part.num_features * MEMBERS))
        elif isinstance(part, nn.Linear):
            setattr(parent, key, GroupedLinear(part))
    return wide


def milliseconds(calls: dict[str, Callable[[], Any]], repeats: int = 60) -> dict[str, float]:
    """Returns a low quantile of each call's times: the machine may do other work."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.thread_time()
            call()
            times[name].append(time.thread_time() - start)
    return {name: 1e3 * sorted(spent)[repeats // 5] for name, spent in times.items()}


def main() -> None:
    """Prints a line for each method, precision and kind of call."""
    torch.set_num_threads(1)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    for name, method in METHODS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ens = mt.ensemble(lambda **k: models.resnet18(**({"width": 0.0625} | k)), method, x, seed=0)
        ens.prove_later(["vmap"])
        ens.engine.picked = dict.fromkeys(ens.engine.picked, "vmap")
        nets = {"single": models.resnet18(width=0.0625), "ours": ens, "by hand": grouped(ens.member(0))}
        for lower in (False, True):
            for kind in ("forward", "forward and backward", "prediction"):
                calls = {who: _call(net.to(memory_format=torch.channels_last), x, lower, kind) for who, net in nets.items()}
                found = milliseconds(calls)
                shown = ", ".join(f"{who} {ms:.2f} ms ({ms / found['single']:.2f} ×)" for who, ms in found.items())
                print(f"{name}, {'bf16' if lower else 'fp32'}, {kind}: {shown}", flush=True)


def _call(net: nn.Module, x: Tensor, lower: bool, kind: str) -> Callable[[], Any]:
    def run() -> None:
        with torch.set_grad_enabled(kind != "prediction"), torch.autocast("cpu", torch.bfloat16, enabled=lower):
            output = net.train(kind != "prediction")(x)
        if kind == "forward and backward":
            net.zero_grad()
            output.float().sum().backward()

    return run


if __name__ == "__main__":
    main()
