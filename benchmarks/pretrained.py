"""The gain from the channels of a trained network: Packed(pretrained=True) against Packed from scratch on CIFAR-10.

    python benchmarks/pretrained.py --root FOLDER [--epochs 3] [--base-epochs 30] [--seeds 3]

FOLDER holds cifar-10-batches-bin as published. The script trains a ResNet-18; then, for each seed, both ensembles for a few
epochs by the same recipe. It takes a few minutes on a fast GPU.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch

import multitudes as mt
from multitudes import data
from multitudes.models import resnet18
from multitudes.training.recipe import Recipe

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
RECIPE = Recipe(
    batch=512, lr=0.1, nesterov=True, weight_decay=5e-4, schedule="onecycle", precision="bf16", channels_last=True,
    augment=data.Augment(crop=4, flip=True),
)  # fmt: skip


def accuracy(ensemble: mt.Ensemble, test: data.Data) -> float:
    """Returns the accuracy in percent."""
    return 100 * float(mt.score(mt.predict(ensemble, test, batch_size=1000, amp=True))["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of the datasets; default: the folder in MULTITUDES_DATA")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--base-epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    train, test = (data.cifar10(split, options.root) for split in ("train", "test"))
    example = torch.zeros(2, 3, 32, 32, device=DEVICE)
    start = time.perf_counter()
    trained = mt.ensemble(resnet18().to(DEVICE), mt.Single(), example, seed=0)
    mt.fit(trained, train, replace(RECIPE, epochs=options.base_epochs, lr=0.2))
    base = trained.member(0).to(memory_format=torch.contiguous_format)
    print(f"ResNet-18, {options.base_epochs} epochs: {accuracy(trained, test):.2f} % in {time.perf_counter() - start:.0f} s")
    results: dict[str, list[float]] = {"scratch": [], "pretrained": []}
    print(f"{'start':<12}{'seed':>5}{'at once':>10}{f'after {options.epochs} epochs':>18}{'seconds':>9}")
    for seed in range(options.seeds):
        for name in results:
            ens = mt.ensemble(base, mt.Packed(members=4, alpha=2, pretrained=name == "pretrained"), example, seed=seed)
            few = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[: 20 * RECIPE.batch]
            ens.estimate_norms(train.batch(rows, DEVICE) for rows in few.split(RECIPE.batch))
            first, start = accuracy(ens, test), time.perf_counter()
            mt.fit(ens, train, replace(RECIPE, epochs=options.epochs, seed=seed))
            results[name].append(accuracy(ens, test))
            seconds = time.perf_counter() - start
            print(f"{name:<12}{seed:>5}{first:>10.2f}{results[name][-1]:>18.2f}{seconds:>9.0f}", flush=True)
    gain = mean(results["pretrained"]) - mean(results["scratch"])
    print(f"pretrained members are {gain:.2f} points better after {options.epochs} epochs, over {options.seeds} seeds")


if __name__ == "__main__":
    main()
