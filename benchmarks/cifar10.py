"""ResNet-18 on CIFAR-10 or CIFAR-100, by the protocol of Table 1 in Packed-Ensembles, one seed each.

    python benchmarks/cifar10.py --root FOLDER [--data cifar100] [--rows single packed ...] [--seed 0]
    python benchmarks/cifar10.py --table [--data cifar100]

FOLDER holds cifar-10-batches-bin or cifar-100-binary, and svhn, as published. A row is trained, scored, and written as one JSON
file into results/; an interrupted run resumes. A row takes two to eight minutes on a fast GPU.

The protocol is that of the recipes packed/cifar10-resnet18 and packed/cifar100-resnet18 for the single network: all members of
Deep see the same batches, and every row is scored after its last epoch. Each method joins its members' losses in its own
way; MIMO's are averaged, for the reason in docs/decisions.md. SVHN, which is out of distribution, is detected by the maximum
softmax probability.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import multitudes as mt
from multitudes import data
from multitudes.models import resnet18
from multitudes.scores.old_names import current_names
from multitudes.shell import parse
from multitudes.shell.jobs import TABLE_1
from multitudes.training.recipe import Recipe
from multitudes.training.recipes import recipe

Printed = dict[str, tuple[float, float, str]]
TEN: Printed = {
    "single": (94.0, 0.238, "Table 1"),
    "packed": (94.3, 0.178, "Table 1"),
    "masksembles": (94.0, 0.188, "Table 1"),
    "batchensemble": (92.9, 0.257, "Table 1"),
    "mimo": (94.0, 0.228, "Table 1"),
    "deep": (95.1, 0.156, "Table 1"),
    "emp": (93.32, 0.211, "a run of the same protocol"),
    "ecmp": (93.66, 0.198, "a run of the same protocol"),
}
HUNDRED: Printed = {
    "single": (75.1, 1.016, "Table 1"),
    "packed": (76.4, 0.858, "Table 1"),
    "masksembles": (74.2, 1.054, "Table 1"),
}
ROWS = {"cifar10": TEN, "cifar100": HUNDRED}
"""The accuracy and NLL that each method is held against, and their source, by dataset."""

SETS = {"cifar10": data.cifar10, "cifar100": data.cifar100}


def method(name: str) -> mt.Method:
    """Makes the method of a row, with the settings of the table."""
    return parse.method(name, **TABLE_1.get(name, {}))


POINTS, SHARE = 0.5, 0.15
"""A row is met if accuracy is at most this many points lower, and NLL at most this share higher."""


def train(kind: str, name: str, root: Path | None, seed: int, runs: Path, how: Recipe) -> tuple[mt.Ensemble, float]:
    """Trains a row. Returns the ensemble after its last epoch, and the seconds of training."""
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = resnet18(classes=100 if kind == "cifar100" else 10)
    ensemble = mt.ensemble(network, method(name), torch.zeros(2, 3, 32, 32), seed=seed, check=False).to(device)
    run = mt.fit(ensemble, SETS[kind]("train", root), how, out=runs / f"{name}-{seed}", resume=True)
    return ensemble, sum(line["seconds"] for line in run.metrics)


def score(kind: str, ensemble: mt.Ensemble, root: Path | None) -> dict[str, float]:
    """Scores the test set, with SVHN as the out-of-distribution set."""
    test = SETS[kind]("test", root)
    here = mt.predict(ensemble, test, batch_size=500)
    far = mt.predict(ensemble, data.svhn("test", root).like(test), batch_size=500)
    scores = mt.score(here, ood={"svhn": far})
    return {key: float(value) for key, value in scores.items() if isinstance(value, (int, float))}


def write(kind: str, name: str, seed: int, out: Path, how: Recipe, scores: dict[str, float], seconds: float, size: int) -> None:
    """Writes a row as a JSON file."""
    accuracy, nll, source = ROWS[kind][name]
    met = 100 * scores["accuracy"] >= accuracy - POINTS and scores["nll"] <= nll * (1 + SHARE)
    content: dict[str, Any] = {
        "row": name, "method": repr(method(name)), "network": "resnet18", "seed": seed, "parameters": size, "scores": scores,
        "held_against": {"accuracy": accuracy / 100, "nll": nll, "from": source}, "met": bool(met),
        "recipe": how.settings(), "seconds": round(seconds, 1), "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "command": f"python benchmarks/cifar10.py --root FOLDER{'' if kind == 'cifar10' else f' --data {kind}'} --rows {name} "
        f"--seed {seed}",
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}-{seed}.json").write_text(json.dumps(content, indent=1) + "\n")


def lines(out: Path) -> list[list[str]]:
    """Returns the heading and the rows that are in the folder."""
    columns = {
        "accuracy": ("Acc %", 100.0), "nll": ("NLL", 1.0), "ece": ("ECE", 1.0), "svhn/aupr_out/msp": ("AUPR", 100.0),
        "svhn/auroc/msp": ("AUC", 100.0), "svhn/fpr95/msp": ("FPR95", 100.0),
    }  # fmt: skip
    table = [["method", *(heading for heading, _ in columns.values()), "held against", "parameters"]]
    for file in sorted(out.glob("*.json"), key=lambda f: (list(TEN).index(f.stem.rsplit("-", 1)[0]), f.stem)):
        row = json.loads(file.read_text())
        scores = current_names(row["scores"], ood="svhn")  # older files have other names
        values = [f"{100 * scores[k]:.2f}" if factor > 1 else f"{scores[k]:.3f}" for k, (_, factor) in columns.items()]
        against = row["held_against"]
        beside = f"{100 * against['accuracy']:.1f}, {against['nll']:.3f}{'' if row['met'] else ' (not met)'}"
        name = row["row"] if row["seed"] == 0 else f"{row['row']}, seed {row['seed']}"
        table.append([name, *values, beside, f"{row['parameters'] / 1e6:.2f} M"])
    return table


def markdown(out: Path) -> str:
    """Formats the table as in the guide."""
    heading, *rows = lines(out)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heading, ["---"] + ["---:"] * (len(heading) - 1), *rows))


def table(kind: str, out: Path) -> Table:
    """Formats the table for a terminal."""
    shown = Table(title=f"ResNet-18 on {kind}, SVHN out of distribution: one seed each, the last epoch")
    heading, *rows = lines(out)
    for name in heading:
        shown.add_column(name, justify="left" if name == "method" else "right")
    for cells in rows:
        shown.add_row(*cells)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="folder of the datasets; default: the folder in MULTITUDES_DATA")
    parser.add_argument("--data", choices=list(ROWS), default="cifar10")
    parser.add_argument("--rows", nargs="+", choices=list(TEN), help="methods; default: all that the table prints for the data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="fewer epochs, to see that it runs; milestones move along")
    parser.add_argument("--out", type=Path, help="folder of the JSON files; default: results/DATA-resnet18")
    parser.add_argument("--runs", type=Path, help="folder of the runs; default: runs/DATA-resnet18")
    parser.add_argument("--table", action="store_true", help="only print the rows that are there")
    parser.add_argument("--markdown", action="store_true", help="print them as in the guide")
    arguments = parser.parse_args()
    kind = arguments.data
    out, runs = arguments.out or Path(f"results/{kind}-resnet18"), arguments.runs or Path(f"runs/{kind}-resnet18")
    for name in [] if arguments.table or arguments.markdown else arguments.rows or ROWS[kind]:
        how = replace(recipe(f"packed/{kind}-resnet18"), seed=arguments.seed, compile=torch.cuda.is_available())
        if arguments.epochs:
            how = replace(how, epochs=arguments.epochs, milestones=(arguments.epochs // 3, 2 * arguments.epochs // 3))
        start = time.perf_counter()
        ensemble, seconds = train(kind, name, arguments.root, arguments.seed, runs, how)
        scores = score(kind, ensemble, arguments.root)
        size = sum(p.numel() for p in ensemble.parameters())
        write(kind, name, arguments.seed, out, how, scores, seconds, size)
        print(f"{name}: {time.perf_counter() - start:.0f} s in all", flush=True)
    if arguments.markdown:
        print(markdown(out))
    else:
        Console().print(table(kind, out))


if __name__ == "__main__":
    main()
