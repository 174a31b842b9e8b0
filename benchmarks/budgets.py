"""One trained network and the four budgets of `recommend`: what each method makes of it, on the embedded images of clothes.

    python benchmarks/budgets.py [--images 2000] [--epochs 20] [--few 5] [--seed 0]

The network is LeNet with dropout, trained on the images for so many epochs. Then, by budget:

none      no training: temperature, MC dropout, Laplace (one pass over the training images)
head      its last layer alone is trained for a few epochs: MultiHead
finetune  all weights are trained for a few epochs, from the network's: Masksembles, BatchEnsemble, EMP, Snapshot, SWAG
scratch   all weights are trained anew for as many epochs as the network: Packed, MIMO, Deep

Temperatures are fitted on held-out images, in the first rows only. It takes about three minutes on one core.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import multitudes as mt
from multitudes import data

HEADER = f"{'budget':<10}{'method':<28}{'accuracy':>9}{'NLL':>8}{'ECE':>8}{'AUROC':>8}{'seconds':>9}"


def network(seed: int) -> nn.Module:
    """LeNet-5 with dropout before its last two layers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Dropout(0.2), nn.Linear(120, 84), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(84, 10),
    )  # fmt: skip


class Comparison:
    """Trains and scores, and prints a row for each method."""

    def __init__(self, images: int, epochs: int, few: int, seed: int) -> None:
        self.train, self.test = data.fashion("train").subset(range(images)), data.fashion("test")
        self.val, self.digits = data.fashion("validation"), data.digits()
        self.example = self.train.batch(torch.arange(2))[0]
        self.recipe = mt.Recipe(epochs=epochs, batch=32, lr=0.002, optimizer="adamw", schedule="onecycle", seed=seed)
        self.gentle = replace(self.recipe, epochs=few, lr=0.0005)
        self.seed, self.rows = seed, list[dict[str, Any]]()

    def row(self, budget: str, name: str, ens: mt.Ensemble, seconds: float) -> None:
        """Scores an ensemble and prints its row."""
        scores = mt.score(mt.predict(ens, self.test), ood={"digits": mt.predict(ens, self.digits)})
        found = {key: float(scores[key]) for key in ("accuracy", "nll", "ece", "digits/auroc/msp")}
        self.rows.append({"budget": budget, "method": name, **found, "seconds": seconds})
        numbers = f"{found['accuracy']:>9.3f}{found['nll']:>8.3f}{found['ece']:>8.3f}{found['digits/auroc/msp']:>8.3f}"
        print(f"{budget:<10}{name:<28}{numbers}{seconds:>9.1f}", flush=True)

    def converted(self, net: nn.Module, method: mt.Method, start: str = "fresh") -> mt.Ensemble:
        """Converts a network."""
        return mt.ensemble(net, method, self.example, seed=self.seed, start=start)

    def trained(self, budget: str, name: str, net: nn.Module, method: mt.Method, recipe: mt.Recipe) -> mt.Ensemble:
        """Converts, trains and scores."""
        start = time.process_time()
        ens = self.converted(net, method)
        mt.fit(ens, self.train, recipe, progress=False)
        self.row(budget, name, ens, time.process_time() - start)
        return ens


def compare(images: int = 2000, epochs: int = 20, few: int = 5, seed: int = 0) -> list[dict[str, Any]]:
    """Prints the table, and returns its rows."""
    run = Comparison(images, epochs, few, seed)
    print(HEADER)
    base = run.trained("", "the network", network(seed), mt.Single(), run.recipe).member(0)
    none(run, base)
    frozen = network(seed)
    frozen.load_state_dict(base.state_dict())
    frozen.requires_grad_(False)
    last = [part for part in frozen.modules() if isinstance(part, nn.Linear)][-1]
    last.requires_grad_(True)
    run.trained("head", "MultiHead", frozen, mt.MultiHead(members=4), replace(run.recipe, epochs=few))
    cycles = replace(run.gentle, epochs=max(few, 4), schedule="cosine", cycles=4, lr=4 * run.gentle.lr)
    for name, method, recipe in (
        ("Masksembles", mt.Masksembles(members=4, feed="all"), run.gentle),
        ("BatchEnsemble", mt.BatchEnsemble(members=4), run.gentle),
        ("EMP", mt.EMP(members=20, init="copies", sigma=0.02, prior="none"), run.gentle),
        ("Snapshot", mt.Snapshot(members=4), cycles),
        ("SWAG", mt.SWAG(members=10, begin=0.0), replace(run.gentle, schedule="constant")),
    ):
        run.trained("finetune", name, base, method, recipe)
    for name, method in (("Packed", mt.Packed(members=4, alpha=2)), ("MIMO", mt.MIMO(members=2)), ("Deep", mt.Deep(members=4))):
        run.trained("scratch", name, network(seed), method, run.recipe)
    return run.rows


def none(run: Comparison, base: nn.Module) -> None:
    """Prints the rows of methods that train nothing."""
    start = time.process_time()
    single = run.converted(base, mt.Single())
    single.calibrator = mt.calibrate(mt.predict(single, run.val))
    run.row("none", "temperature", single, time.process_time() - start)
    start = time.process_time()
    dropout = run.converted(base, mt.MCDropout(members=20))
    run.row("none", "MCDropout", dropout, time.process_time() - start)
    start = time.process_time()
    laplace = run.converted(base, mt.Laplace(members=20)).finish(run.train)
    run.row("none", "Laplace", laplace, time.process_time() - start)


def main() -> None:
    """Reads the options and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--few", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    compare(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
