"""TabM-like ensembles beside the tabm package: the same splits, width, steps and optimiser, in one run.

    python benchmarks/tabular.py                 # trains all, prints the table, and writes results/tabular.json
    python benchmarks/tabular.py --markdown      # prints the table of results/tabular.json

Digits (of scikit-learn, 10 classes) and energy (UCI, a mean and a variance). All hold out 15 % of the training rows to choose
the epoch and to stop 16 epochs after it, and nothing is calibrated. Seconds are those of the process's CPU for `fit`, on one
thread: the table is standardised, the model made, trained and set to its best epoch. Predictions of the test set are not timed.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import multitudes as mt
from multitudes.data import uci
from multitudes.integrations.sklearn import EnsembleClassifier, EnsembleRegressor
from multitudes.prediction.tasks import values_of

FILE = Path(__file__).parent.parent / "results" / "tabular.json"
MEMBERS, WIDTH, BLOCKS, DROPOUT, LR, DECAY, BATCH, HELD_OUT = 16, 256, 2, 0.1, 2e-3, 3e-4, 256, 0.15
SCORES = {"digits": ("accuracy", "nll"), "energy": ("rmse", "nll")}
WAYS = ("BatchEnsemble", "Packed", "tabm")


def tables(seed: int) -> dict[str, tuple[np.ndarray, ...]]:
    """Returns training and test parts by name: inputs and targets of each."""
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=seed, stratify=y)
    train, test = uci("energy", seed)
    energy = [
        one for part in (train, test) for one in (part.batch(slice(None))[0].numpy(), part.original(part.targets).numpy())
    ]
    return {"digits": (x_train, y_train, x_test, y_test), "energy": tuple(one.squeeze() for one in energy)}


def ours(name: str, way: str, parts: tuple[np.ndarray, ...], epochs: int, seed: int) -> tuple[mt.Prediction, float]:
    """Trains our estimator."""
    x, y, x_test, _ = parts
    method = None if way == "BatchEnsemble" else mt.Packed(members=4, alpha=2)
    kind = EnsembleClassifier if name == "digits" else EnsembleRegressor
    options = {
        "hidden": (WIDTH,) * BLOCKS,
        "dropout": DROPOUT,
        "epochs": epochs,
        "batch": BATCH,
        "lr": LR,
        "weight_decay": DECAY,
    }
    model = kind(method, **options, held_out=HELD_OUT, calibrate=False, random_state=seed)
    started = time.process_time()
    model.fit(x, y)
    seconds = time.process_time() - started
    return model.prediction(x_test), seconds


def theirs(name: str, parts: tuple[np.ndarray, ...], epochs: int, seed: int) -> tuple[mt.Prediction, float]:
    """Trains tabm's TabM by the same recipe: AdamW, the mean of the members' losses, the epoch of the least held-out NLL."""
    from tabm import TabM

    torch.manual_seed(seed)
    x, y, x_test, _ = parts
    classes = name == "digits"
    started = time.process_time()
    scaler = StandardScaler().fit(x)
    mean, scale = (0.0, 1.0) if classes else (y.mean(), y.std())
    inputs = torch.tensor(scaler.transform(x)).float()
    targets = torch.tensor(y) if classes else torch.tensor((y - mean) / scale).float()[:, None]
    train, held = train_test_split(np.arange(len(x)), test_size=HELD_OUT, random_state=seed, stratify=y if classes else None)
    outputs = 10 if classes else 2
    model = TabM.make(n_num_features=x.shape[1], d_out=outputs, k=MEMBERS, n_blocks=BLOCKS, d_block=WIDTH, dropout=DROPOUT)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    criterion = F.cross_entropy if classes else mt.GaussianNLL(beta=0.5)
    best, state, since, shuffle = float("inf"), {}, 0, np.random.default_rng(seed)
    for _ in range(epochs):
        model.train()
        order = torch.tensor(shuffle.permutation(train)[: len(train) // BATCH * BATCH])  # `fit` leaves out the rest, too
        for rows in order.split(BATCH):
            found = model(inputs[rows]).movedim(1, 0)  # [k, B, D]
            loss = torch.stack([criterion(member, targets[rows]) for member in found]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        nll = mt.score(members(model, inputs[held], classes), targets[held])["nll"]
        best, since = (nll, 0) if nll < best else (best, since + 1)
        if not since:
            state = {key: value.clone() for key, value in model.state_dict().items()}
        if since >= 16:
            break
    model.load_state_dict(state)
    seconds = time.process_time() - started
    pred = members(model, torch.tensor(scaler.transform(x_test)).float(), classes)
    if not classes:
        parts_of = pred.members
        pred = mt.Prediction(mean=parts_of.mean.squeeze(-1) * scale + mean, variance=parts_of.variance.squeeze(-1) * scale**2)
    return pred, seconds


@torch.no_grad()
def members(model: torch.nn.Module, x: Tensor, classes: bool) -> mt.Prediction:
    """Returns the prediction of TabM's members."""
    outputs = model.eval()(x).movedim(1, 0)
    return mt.Prediction(**values_of(outputs, "classes" if classes else "gaussian"))


def measure(epochs: int, seeds: int) -> dict[str, object]:
    """Trains each way on each set with each seed."""
    rows: dict[str, dict[str, dict[str, list[float]]]] = {}
    for seed in range(seeds):
        for name, parts in tables(seed).items():
            for way in WAYS:
                done = theirs(name, parts, epochs, seed) if way == "tabm" else ours(name, way, parts, epochs, seed)
                found = mt.score(done[0], torch.tensor(parts[3]))
                values = {**{score: found[score] for score in SCORES[name]}, "seconds": done[1]}
                for score, value in values.items():
                    rows.setdefault(name, {}).setdefault(way, {}).setdefault(score, []).append(round(value, 5))
                print(name, way, seed, {key: round(value, 4) for key, value in values.items()}, flush=True)
    packages = {name: version(name) for name in ("torch", "tabm", "scikit-learn")}
    machine = f"{platform.machine()}, 1 thread, Python {platform.python_version()}"
    return {
        "epochs": epochs,
        "seeds": seeds,
        "machine": machine,
        "packages": {**packages, "multitudes": mt.__version__},
        "rows": rows,
    }


def table(found: dict[str, object]) -> str:
    """Returns the means over seeds as Markdown, with standard deviations."""
    lines = ["| set | trained | members | accuracy ↑ or RMSE ↓ | NLL ↓ | CPU seconds |", "|---|---|---|---|---|---|"]
    for name, ways in found["rows"].items():  # type: ignore[attr-defined]
        for way, scores in ways.items():
            cells = [f"{np.mean(scores[score]):.3f} ± {np.std(scores[score], ddof=1):.3f}" for score in SCORES[name]]
            first = f"`{'EnsembleClassifier' if name == 'digits' else 'EnsembleRegressor'}`, {way}"
            shown, count = "`tabm.TabM`" if way == "tabm" else first, 4 if way == "Packed" else MEMBERS
            cells.append(f"{np.mean(scores['seconds']):.1f}")
            lines.append(f"| {name} | {shown} | {count} | {' | '.join(cells)} |")
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items())  # type: ignore[attr-defined]
    return "\n".join([*lines, "", f"Mean ± standard deviation over {found['seeds']} splits; {found['machine']}; {packages}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print the table of the results that are there")
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    if not options.markdown:
        options.out.write_text(json.dumps(measure(options.epochs, options.seeds), indent=1) + "\n", encoding="utf-8")
    print(table(json.loads(options.out.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
