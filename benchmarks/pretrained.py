"""What channels of a trained network are worth: Packed(pretrained=True) against Packed from scratch on CIFAR-10.

    python benchmarks/pretrained.py FOLDER [--epochs 3] [--base-epochs 30] [--seeds 3]

FOLDER holds the binary version of CIFAR-10: data_batch_1.bin to data_batch_5.bin and test_batch.bin. A ResNet-18 is trained;
then, for each seed, both ensembles are trained for a few epochs by the same recipe. Takes about five minutes of a fast GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from multitudes.models import resnet18

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BATCH = 512


def read(folder: Path, names: list[str]) -> tuple[Tensor, Tensor]:
    """Images, normalised, and labels of some of the publisher's files."""
    rows = np.concatenate([np.fromfile(folder / name, np.uint8).reshape(-1, 3073) for name in names])
    x = torch.from_numpy(rows[:, 1:].reshape(-1, 3, 32, 32)).to(DEVICE).float() / 255
    x = (x - torch.tensor(MEAN, device=DEVICE)[:, None, None]) / torch.tensor(DEVIATION, device=DEVICE)[:, None, None]
    return x.contiguous(memory_format=torch.channels_last), torch.from_numpy(rows[:, 0].astype(np.int64)).to(DEVICE)


def batches(x: Tensor, y: Tensor, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch: shuffled, cropped after padding by 4, flipped."""
    padded = F.pad(x, (4, 4, 4, 4))
    for index in torch.randperm(len(x), generator=rng, device=DEVICE)[: len(x) // BATCH * BATCH].split(BATCH):
        down, right = torch.randint(9, (2, len(index), 1), generator=rng, device=DEVICE)
        rows, columns = torch.arange(32, device=DEVICE) + down, torch.arange(32, device=DEVICE) + right
        flip = torch.rand(len(index), 1, generator=rng, device=DEVICE) < 0.5
        columns = torch.where(flip, columns.flip(1), columns)
        part = padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # [B, 32, 32, 3]
        yield part.permute(0, 3, 1, 2), y[index]


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int, lr: float, seed: int) -> None:
    """SGD with Nesterov momentum in one cycle, in bfloat16."""
    rng = torch.Generator(DEVICE).manual_seed(seed)
    ours = isinstance(net, mt.Ensemble)
    groups = net.param_groups(lr=lr, weight_decay=5e-4) if ours else net.parameters()
    optimizer = torch.optim.SGD(groups, lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total_steps=epochs * (len(x) // BATCH))
    net.train()
    for _ in range(epochs):
        for part, target in batches(x, y, rng):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = net.loss(part, target, F.cross_entropy) if ours else F.cross_entropy(net(part), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """In percent; of an ensemble, by the mean of its members' probabilities."""
    net.eval()
    right = 0
    for part, target in zip(x.split(1000), y.split(1000), strict=True):
        with torch.autocast(DEVICE.type, torch.bfloat16):
            output = net(part).float()
        probabilities = output.softmax(-1).mean(0) if isinstance(net, mt.Ensemble) else output
        right += int((probabilities.argmax(-1) == target).sum())
    return 100 * right / len(y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--base-epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    x, y = read(options.folder, [f"data_batch_{i}.bin" for i in range(1, 6)])
    test = read(options.folder, ["test_batch.bin"])
    torch.manual_seed(0)
    base = resnet18().to(DEVICE, memory_format=torch.channels_last)
    start = time.perf_counter()
    train(base, x, y, options.base_epochs, 0.2, seed=0)
    print(f"ResNet-18, {options.base_epochs} epochs: {accuracy(base, *test):.2f} % in {time.perf_counter() - start:.0f} s")
    found: dict[str, list[float]] = {"scratch": [], "pretrained": []}
    print(f"{'start':<12}{'seed':>5}{'at once':>10}{f'after {options.epochs} epochs':>18}{'seconds':>9}")
    for seed in range(options.seeds):
        for name in found:
            ens = mt.ensemble(base, mt.Packed(members=4, alpha=2, pretrained=name == "pretrained"), x[:2], seed=seed)
            rng = torch.Generator(DEVICE).manual_seed(seed)
            few = [batch for batch, _ in zip(batches(x, y, rng), range(20), strict=False)]
            ens.estimate_norms(few)
            begun, start = accuracy(ens, *test), time.perf_counter()
            train(ens, x, y, options.epochs, 0.1, seed)
            found[name].append(accuracy(ens, *test))
            seconds = time.perf_counter() - start
            print(f"{name:<12}{seed:>5}{begun:>10.2f}{found[name][-1]:>18.2f}{seconds:>9.0f}", flush=True)
    gain = mean(found["pretrained"]) - mean(found["scratch"])
    print(f"pretrained members are {gain:.2f} points better after {options.epochs} epochs, over {options.seeds} seeds")


if __name__ == "__main__":
    main()
