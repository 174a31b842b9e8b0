"""One trained network and the four budgets of `recommend`: what each method makes of it, on the embedded images of clothes.

    python benchmarks/budgets.py                 # trains all, prints the table, and writes results/budgets.json
    python benchmarks/budgets.py --markdown      # prints the table of results/budgets.json

The network is LeNet with dropout, trained on the images for so many epochs. Then, by budget:

none      no training: temperature, MC dropout, Laplace (one pass over the training images)
head      its last layer alone is trained for a few epochs: MultiHead
finetune  all weights are trained for a few epochs, from the network's: Masksembles, BatchEnsemble, EMP, Snapshot, SWAG
scratch   all weights are trained anew for as many epochs as the network: Packed, MIMO, Deep
one       the ensemble Deep teaches one network, for as many epochs: distillation

A temperature is fitted on held-out images, in its own row only. AUROC tells digits from clothes by confidence. Seconds are
those of the process's CPU, on one thread. Each seed takes two to three minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn

import multitudes as mt
from multitudes import data
from multitudes.training.distill import distill

FILE = Path(__file__).parent.parent / "results" / "budgets.json"
SCORES = {"accuracy": "accuracy", "NLL": "nll", "ECE": "ece", "AUROC": "digits/auroc/msp"}
"""Heads of the table's columns, and the scores in them."""


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
        found = {name: round(float(scores[key]), 5) for name, key in SCORES.items()}
        self.rows.append({"budget": budget, "method": name, **found, "seconds": round(seconds, 2)})
        print(self.rows[-1], flush=True)

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
    """Returns the rows of one seed, and prints each as it is measured."""
    run = Comparison(images, epochs, few, seed)
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
        teacher = run.trained("scratch", name, network(seed), method, run.recipe)
    start = time.process_time()
    student = distill(teacher, network(seed), run.train, run.recipe, progress=False)
    run.row("one", "distilled from Deep", student, time.process_time() - start)
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


def measure(seeds: int, **sizes: int) -> dict[str, Any]:
    """Runs the comparison with each seed."""
    runs = [compare(**sizes, seed=seed) for seed in range(seeds)]
    machine = f"{platform.machine()}, 1 thread, Python {platform.python_version()}"
    packages = {"torch": str(torch.__version__), "multitudes": mt.__version__}
    return {**sizes, "seeds": seeds, "machine": machine, "packages": packages, "runs": runs}


def table(found: dict[str, Any]) -> str:
    """Returns the means over seeds as Markdown, with standard deviations."""
    lines = [f"| budget | method | {' | '.join(SCORES)} | seconds |", "|---|---|" + "---:|" * (len(SCORES) + 1)]
    for rows in zip(*found["runs"], strict=True):
        cells = [spread([row[name] for row in rows]) for name in SCORES]
        name = rows[0]["method"]
        shown = f"`{name}`" if hasattr(mt, name) else name
        lines.append(f"| {rows[0]['budget']} | {shown} | {' | '.join(cells)} | {mean(row['seconds'] for row in rows):.1f} |")
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items())
    below = (
        f"Mean ± standard deviation over {found['seeds']} seeds: {found['images']:,} training images, {found['epochs']} "
        f"epochs, {found['few']} for heads and finetuned weights; {found['machine']}; {packages}."
    )
    return "\n".join([*lines, "", below])


def spread(values: Sequence[float]) -> str:
    """Returns mean ± standard deviation, or the only value."""
    return f"{mean(values):.3f} ± {stdev(values):.3f}" if len(values) > 1 else f"{values[0]:.3f}"


def main() -> None:
    """Reads the options, measures unless told otherwise, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print the table of the results that are there")
    for name, value in {"images": 2000, "epochs": 20, "few": 5, "seeds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path, default=FILE)
    options = vars(parser.parse_args())
    out, markdown = options.pop("out"), options.pop("markdown")
    if not markdown:
        out.write_text(json.dumps(measure(**options), indent=1) + "\n", encoding="utf-8")
    print(table(json.loads(out.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
