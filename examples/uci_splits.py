"""Many small runs as one: the standard splits of a UCI regression set, trained as members of one stack.

    python examples/uci_splits.py                            # yacht and energy, which come with multitudes
    python examples/uci_splits.py --apart                    # also one split after the other, to compare
    python examples/uci_splits.py --members 5                # five networks for each split, 100 in the stack
    python examples/uci_splits.py --method "Packed(members=3, alpha=2)"    # any method, one split after the other
    python examples/uci_splits.py concrete --root ~/data     # the publishers' files: docs/data.md says which

Papers average over 20 splits, so a score takes 20 runs of a network so small that most of a step is overhead.
`Deep(members=20)` is 20 networks that share nothing. Given a list of 20 training sets, `fit` trains each member on its own set.
Losses are summed, so each member learns as it would alone. `ens(x, per_member=True)` then runs each member on its own test set.

The network is a perceptron with one hidden layer that predicts a mean and a variance. Inputs and targets are standardised by
the training part of each split; scores are in the units of the target. The NLL is that of one Gaussian with the mean and the
variance of the mixture, as in Packed-Ensembles.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import lightning_fabric  # noqa: F401  loaded here, so that no run is charged with the seconds it takes
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import multitudes as mt
from multitudes.data import Data, uci
from multitudes.models import MLP
from multitudes.prediction.tasks import variance_of
from multitudes.shell.parse import method as parse_method
from multitudes.training.fit import fit
from multitudes.training.recipe import Recipe

PRINTED = {
    "bostonHousing": ("2.219 ± 0.098", "-2.047 ± 0.028"),
    "concrete": ("5.167 ± 0.234", "-2.885 ± 0.032"),
    "energy": ("1.712 ± 0.067", "-1.553 ± 0.060"),
    "kin8nm": ("0.058 ± 0.003", "1.452 ± 0.010"),
    "naval-propulsion-plant": ("0.002 ± 0.000", "4.833 ± 0.097"),
    "power-plant": ("3.097 ± 0.020", "-2.600 ± 0.007"),
    "protein-tertiary-structure": ("3.412 ± 0.017", "-2.442 ± 0.015"),
    "wine-quality-red": ("0.483 ± 0.006", "-0.611 ± 0.013"),
    "yacht": ("2.511 ± 0.283", "-2.023 ± 0.074"),
}
"""RMSE and −NLL of Deep Ensembles in Packed-Ensembles, supplement, Table 11: three networks of 200 units (protein 400)."""


class Result(NamedTuple):
    """Scores of all splits, and the time of training."""

    rmse: Tensor  # [splits]
    nll: Tensor  # [splits], of a Gaussian with the mixture's mean and variance
    seconds: float
    ensembles: list[mt.Ensemble]  # the stack, or one for each split


def start(inputs: int, members: int, hidden: int, seed: int) -> mt.Ensemble:
    """Makes the untrained ensemble."""
    model = MLP(inputs, (hidden,), 2)  # a mean and a raw variance
    return mt.ensemble(model, mt.Deep(members=members), torch.zeros(2, inputs), task="gaussian", seed=seed)


def scores(ens: mt.Ensemble, tests: Sequence[Data]) -> list[mt.scores.Scores]:
    """Scores the members of each split on its test set. The members of a split are neighbours in the stack."""
    each = ens.members // len(tests)
    x = torch.stack([test.batch(slice(None))[0] for test in tests for _ in range(each)])  # [M, B, D]
    with torch.no_grad():
        mean, raw = ens.eval()(x, per_member=True).chunk(2, -1)
    found = []
    for test, ours, raw_ours in zip(tests, mean.split(each), raw.split(each), strict=True):
        pred = mt.Prediction(mean=ours, variance=variance_of(raw_ours), targets=test.targets)
        found.append(mt.score(pred.in_original_units(test)))
    return found


def stacked(ens: mt.Ensemble, splits: Sequence[tuple[Data, Data]], recipe: Recipe) -> Result:
    """Trains all splits in one run."""
    each, started = ens.members // len(splits), time.perf_counter()
    fit(ens, [train for train, _ in splits for _ in range(each)], recipe)
    return result([ens], scores(ens, [test for _, test in splits]), started)


def apart(ens: mt.Ensemble, splits: Sequence[tuple[Data, Data]], recipe: Recipe) -> Result:
    """Trains one split after the other, each from the weights that its members have in the stack."""
    each, started = ens.members // len(splits), time.perf_counter()
    alone = [ens.subset(range(each * s, each * (s + 1))) for s in range(len(splits))]
    found = []
    for few, (train, test) in zip(alone, splits, strict=True):
        fit(few, train, recipe)
        found += scores(few, [test])
    return result(alone, found, started)


def by_method(method: mt.Method, splits: Sequence[tuple[Data, Data]], recipe: Recipe, hidden: int) -> Result:
    """Trains any method on one split after the other, each with its own seed."""
    ensembles, found, started = [], [], time.perf_counter()
    for s, (train, test) in enumerate(splits):
        torch.manual_seed(recipe.seed + s)
        model = MLP(train.shape[0], (hidden,), 2)
        ens = mt.ensemble(model, method, train.batch([0, 1])[0], task="gaussian", seed=recipe.seed + s)
        fit(ens, train, recipe)
        found.append(mt.score(mt.predict(ens, test).in_original_units(test)))
        ensembles.append(ens)
    return result(ensembles, found, started)


def result(ensembles: list[mt.Ensemble], found: Sequence[mt.scores.Scores], started: float) -> Result:
    rmse, nll = (torch.tensor([one[name] for one in found]) for name in ("rmse", "gaussian_nll"))
    return Result(rmse, nll, time.perf_counter() - started, ensembles)


def shown(values: Tensor) -> str:
    """Mean ± standard error over splits."""
    return f"{float(values.mean()):.3f} ± {float(values.std() / len(values) ** 0.5):.3f}"


def in_a_stack(splits: Sequence[tuple[Data, Data]], recipe: Recipe, options: argparse.Namespace) -> dict[str, Result]:
    """Trains Deep on all splits at once; with --apart also on one after the other."""
    ens = start(splits[0][0].shape[0], len(splits) * options.members, options.hidden, options.seed)
    found = {"one by one": apart(ens, splits, recipe)} if options.apart else {}
    if options.tune:
        ens.tune(splits[0][0].batch(slice(options.batch))[0])
    return {**found, "stacked": stacked(ens, splits, recipe)}


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, Result]]:
    """Returns the results by dataset and by way of training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", default=["yacht", "energy"], help="yacht, energy, or others with --root")
    parser.add_argument("--root", type=Path, help="folder of the published files")
    parser.add_argument("--splits", type=int, help="use only the first N splits, at least 2")
    parser.add_argument("--members", type=int, default=1, help="networks for each split; their mixture is scored")
    parser.add_argument("--method", help='another method than Deep, with its settings: "Packed(members=3, alpha=2)"')
    parser.add_argument("--hidden", type=int, default=50, help="hidden units")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--apart", action="store_true", help="also train the splits one after the other")
    parser.add_argument("--tune", action="store_true", help="use the fastest executor; results are equal but for rounding")
    options = parser.parse_args(arguments)

    recipe = Recipe(epochs=options.epochs, batch=options.batch, lr=0.01, optimizer="adam", schedule="cosine", seed=options.seed)
    table = Table(title="mean ± standard error over splits", title_justify="left")
    table.add_column("set", overflow="fold")
    for name in ("splits", "trained", "seconds", "RMSE ↓", "−NLL ↑"):
        table.add_column(name, justify="left" if name == "trained" else "right", no_wrap=True)
    found: dict[str, dict[str, Result]] = {}
    for name in options.sets:
        count = options.splits or (5 if name.startswith("protein") else 20)
        splits = [uci(name, split, options.root) for split in range(count)]
        found[name] = (
            {options.method: by_method(parse_method(options.method), splits, recipe, options.hidden)}
            if options.method
            else in_a_stack(splits, recipe, options)
        )
        for way, outcome in reversed(found[name].items()):
            first = (name, str(count)) if way == next(reversed(found[name])) else ("", "")
            table.add_row(*first, way, f"{outcome.seconds:.1f}", shown(outcome.rmse), shown(-outcome.nll))
        if name in PRINTED:
            table.add_row("", "", "printed*", "", *PRINTED[name], style="dim")
        table.add_section()
    Console(highlight=False).print(table)
    print(f"{options.method or options.members} × {options.hidden} hidden units a split, {options.epochs} epochs.")
    print("* Deep Ensembles of 3 × 200 units (protein 400), trained otherwise: Packed-Ensembles, supplement, Table 11.")
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)  # steps this small are slower on more
    main()
