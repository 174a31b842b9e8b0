"""Own optimizers and schedulers in fit: the same as in a plain loop, also after a resume; and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, NAdam
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.utils.data import DataLoader
from training.small import TRAIN, VAL, X, Y, made, same

import multitudes as mt

LOADER = DataLoader(TRAIN, 50)
RECIPE = mt.Recipe(epochs=3)


def plain_loop(net: nn.Module, make: Any, schedule: Any = None, by: str = "epoch", epochs: int = 3) -> nn.Module:
    net.train()
    optimizer = make(list(net.parameters()))
    scheduler = None if schedule is None else schedule(optimizer)
    for _ in range(epochs):
        for start in range(0, 200, 50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(X[start : start + 50]), Y[start : start + 50]).backward()
            optimizer.step()
            if scheduler is not None and by == "step":
                scheduler.step()
        if scheduler is not None and by == "epoch":
            scheduler.step()
    return net


def assert_members_are(ens: mt.Ensemble, nets: list[nn.Module]) -> None:
    for m, net in enumerate(nets):
        for key, value in net.state_dict().items():
            torch.testing.assert_close(ens.state_dict()[key][m], value)


SCHEDULES: dict[str, tuple[Any, str]] = {
    "none": (None, "epoch"),
    "StepLR": (lambda optimizer: StepLR(optimizer, 1, 0.5), "epoch"),
    "OneCycleLR": (lambda optimizer: OneCycleLR(optimizer, 0.02, total_steps=12), "step"),
    "LambdaLR": (lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)), "step"),
    "SequentialLR": (
        lambda optimizer: SequentialLR(optimizer, [StepLR(optimizer, 1, 2.0), CosineAnnealingLR(optimizer, 9)], milestones=[4]),
        "step",
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_functions_that_make_them(name: str) -> None:
    schedule, by = SCHEDULES[name]
    ens = made()
    nets = [ens.member(m) for m in range(2)]
    make = lambda parameters: NAdam(parameters, lr=0.01, weight_decay=0.1)  # noqa: E731
    mt.fit(ens, LOADER, RECIPE, optimizer=make, scheduler=schedule, scheduler_by=by)
    assert_members_are(ens, [plain_loop(net, make, schedule, by) for net in nets])


def test_objects_and_classes() -> None:
    ens, other = made(), made()
    nets = [ens.member(m) for m in range(2)]
    optimizer = AdamW(ens.parameters(), lr=0.01)
    mt.fit(ens, LOADER, RECIPE, optimizer=optimizer, scheduler=StepLR(optimizer, 1, 0.5))
    assert_members_are(ens, [plain_loop(net, lambda p: AdamW(p, lr=0.01), lambda o: StepLR(o, 1, 0.5)) for net in nets])
    mt.fit(other, LOADER, RECIPE, optimizer=NAdam)
    assert_members_are(other, [plain_loop(net, NAdam) for net in [made().member(m) for m in range(2)]])


def test_the_recipes_schedule_applies_to_an_own_optimizer() -> None:
    ens = made()
    nets = [ens.member(m) for m in range(2)]
    recipe = mt.Recipe(epochs=3, schedule="multistep", milestones=(1, 2), decay=0.5)
    mt.fit(ens, LOADER, recipe, optimizer=lambda parameters: SGD(parameters, lr=0.1))
    assert_members_are(ens, [plain_loop(net, lambda p: SGD(p, lr=0.1), lambda o: StepLR(o, 1, 0.5)) for net in nets])


def test_the_methods_rules_apply_to_what_a_function_makes() -> None:
    """BatchEnsemble's factors learn faster and have no weight decay, as with the recipe's optimizer."""
    method = mt.BatchEnsemble(members=2, lr_factor=3.0)
    own, usual = made(method), made(method)
    mt.fit(own, LOADER, RECIPE, optimizer=lambda parameters: SGD(parameters, lr=0.02, momentum=0.9, weight_decay=0.1))
    mt.fit(usual, LOADER, mt.Recipe(epochs=3, lr=0.02, weight_decay=0.1))
    assert same(own, usual)


@pytest.mark.parametrize("name", [*SCHEDULES, "plateau"])
def test_resume_equals_an_uninterrupted_run(name: str, tmp_path: Path) -> None:
    plateau = (lambda optimizer: ReduceLROnPlateau(optimizer, patience=0, threshold=10.0), "epoch")
    schedule, by = {**SCHEDULES, "plateau": plateau}[name]

    def options() -> dict[str, Any]:
        make = lambda parameters: AdamW(parameters, lr=0.01)  # noqa: E731
        return {"optimizer": make, "scheduler": schedule, "scheduler_by": by, "val": VAL}

    def interrupt(run: Any) -> None:
        if run.done == 2:
            raise KeyboardInterrupt

    whole, resumed = made(), made()
    first = mt.fit(whole, LOADER, RECIPE, **options())
    with pytest.raises(KeyboardInterrupt):
        mt.fit(made(), LOADER, RECIPE, out=tmp_path, callbacks=interrupt, **options())
    run = mt.fit(resumed, LOADER, RECIPE, out=tmp_path, resume=True, **options())
    assert same(whole, resumed)
    assert [line["lr"] for line in run.metrics] == [line["lr"] for line in first.metrics]
    if name != "none":
        assert len({line["lr"] for line in run.metrics}) > 1


def test_another_optimizer_is_another_run(tmp_path: Path) -> None:
    mt.fit(made(), LOADER, RECIPE, out=tmp_path, optimizer=lambda p: AdamW(p, lr=0.01))
    with pytest.raises(
        mt.FileError, match=r"another run: the AdamW in optimizer= has another lr \(was 0.01, is 0.02\)\. Resume"
    ):
        mt.fit(made(), LOADER, RECIPE, out=tmp_path, resume=True, optimizer=lambda p: AdamW(p, lr=0.02))
    with pytest.raises(mt.FileError, match=r"another run: optimizer= was AdamW and is the recipe's\. Resume"):
        mt.fit(made(), LOADER, RECIPE, out=tmp_path, resume=True)


def test_another_schedule_is_another_run(tmp_path: Path) -> None:
    """The text has no private names of torch."""
    options: Any = {"out": tmp_path, "optimizer": lambda p: AdamW(p, lr=0.01)}
    mt.fit(made(), LOADER, RECIPE, scheduler=lambda o: StepLR(o, 1), **options)
    with pytest.raises(mt.FileError, match=r"the StepLR in scheduler= has another step_size \(was 1, is 2\)\. Resume"):
        mt.fit(made(), LOADER, RECIPE, scheduler=lambda o: StepLR(o, 2), resume=True, **options)
    with pytest.raises(mt.FileError, match=r"scheduler= was StepLR and is the recipe's\. Resume"):
        mt.fit(made(), LOADER, RECIPE, resume=True, **options)


def test_a_plateau_reads_the_validation_score() -> None:
    """With a threshold that no epoch reaches, the rate drops after each epoch but the first."""
    run = mt.fit(
        made(), LOADER, mt.Recipe(epochs=4), val=VAL, optimizer=lambda p: SGD(p, lr=0.1),
        scheduler=lambda o: ReduceLROnPlateau(o, patience=0, threshold=10.0, threshold_mode="abs"),
    )  # fmt: skip
    assert [line["lr"] for line in run.metrics] == pytest.approx([0.1, 0.1, 0.01, 0.001])


def sgd(ens: mt.Ensemble) -> SGD:
    return SGD(ens.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("recipe", "options", "match"),
    [
        ({"lr": 0.1}, lambda ens: {"optimizer": sgd(ens)}, r"Recipe\(lr=0.1\) beside optimizer="),
        ({"optimizer": "adam"}, lambda ens: {"optimizer": sgd(ens)}, "leave optimizer= out of the recipe"),
        ({"weight_decay": 0.1}, lambda ens: {"optimizer": sgd(ens)}, "weight_decay"),
        ({"schedule": "cosine"}, lambda ens: {"scheduler": lambda o: StepLR(o, 1)}, "leave schedule= out"),
        ({"warmup": 1}, lambda ens: {"scheduler": lambda o: StepLR(o, 1)}, "leave warmup= out"),
        ({}, lambda ens: {"optimizer": 3}, "no torch.optim.Optimizer: give one of"),
        ({}, lambda ens: {"optimizer": lambda p: p}, "which returns one"),
        ({}, lambda ens: {"optimizer": sgd(made())}, "not the ensemble's: make it of ens.parameters"),
        ({}, lambda ens: {"optimizer": torch.optim.LBFGS}, "LBFGS uses norms"),
        ({}, lambda ens: {"scheduler": "cosine"}, "no scheduler of torch.optim"),
        ({}, lambda ens: {"optimizer": SGD(ens.parameters()), "scheduler": StepLR(sgd(ens), 1)}, "of another optimizer"),
        ({}, lambda ens: {"scheduler": StepLR(sgd(ens), 1)}, "of another optimizer"),
        ({}, lambda ens: {"scheduler": ReduceLROnPlateau}, "pass val="),
        ({"best_by": "accuracy"}, lambda ens: {"scheduler": ReduceLROnPlateau, "val": VAL}, "set mode='max'"),
        ({}, lambda ens: {"scheduler": lambda o: StepLR(o, 1), "scheduler_by": "batch"}, "scheduler_by"),
    ],
)  # fmt: skip
def test_refusals(recipe: Any, options: Any, match: str) -> None:
    ens = made()
    with pytest.raises(mt.InputError, match=match):
        mt.fit(ens, TRAIN, mt.Recipe(epochs=1, **recipe), **options(ens))
