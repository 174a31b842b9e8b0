"""Paper recipes: what the papers print, as they print it, and what the page about them says."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes import models
from multitudes.data import Augment, RandAugment
from multitudes.training.recipe import Recipe
from multitudes.training.recipes import ABSENT, RECIPES, PaperRecipe, find, recipe

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
STEPS = {25: (25, 50), 60: (60, 120, 160)}

TABLE_4 = [  # dataset, network, epochs, batch size, start lr, momentum, weight decay, γ-lr, first milestone, as printed
    ("cifar10-resnet18", 75, 128, 0.05, 0.9, 5e-4, 0.1, 25),
    ("cifar10-resnet50", 200, 128, 0.1, 0.9, 5e-4, 0.2, 60),
    ("cifar10-wideresnet28-10", 200, 128, 0.1, 0.9, 5e-4, 0.2, 60),
    ("cifar100-resnet18", 75, 128, 0.05, 0.9, 1e-4, 0.2, 25),
    ("cifar100-resnet50", 200, 128, 0.1, 0.9, 5e-4, 0.2, 60),
    ("cifar100-wideresnet28-10", 200, 128, 0.1, 0.9, 5e-4, 0.2, 60),
]
BASELINE = "packed/{}-resnet50-batchensemble"


@pytest.mark.parametrize("row", TABLE_4, ids=lambda row: row[0])
def test_table_4_of_the_supplement(row: tuple[Any, ...]) -> None:
    """Every row, with the padded crop that its numbers need."""
    found = recipe(f"packed/{row[0]}")
    told = (found.epochs, found.batch, found.lr, found.momentum, found.weight_decay, found.decay)
    assert told == row[1:7]
    assert found.milestones == STEPS[row[7]]
    assert (found.optimizer, found.schedule, found.nesterov, found.clip) == ("sgd", "multistep", False, None)
    assert (found.augment.crop, found.augment.flip, found.augment.fill) == (4, True, "zero")
    assert (found.augment.mixup > 0) is (row[0] == "cifar100-wideresnet28-10")


def test_there_are_no_other_rows_of_packed_ensembles() -> None:
    others = {name for name in RECIPES if name.startswith("packed/")} - {f"packed/{row[0]}" for row in TABLE_4}
    assert others == {BASELINE.format("cifar10"), BASELINE.format("cifar100")}


def test_the_medium_augmentation() -> None:
    """Appendix B: mixup and cutmix at even chances, RandAugment and smoothing; on top of crop and flip."""
    found = recipe("packed/cifar100-wideresnet28-10").augment
    assert found == Augment(
        crop=4, flip=True, mixup=0.5, cutmix=0.2, switch=0.5, rand_augment=RandAugment(magnitude=9, n=2, std=1, chance=0.5),
        smoothing=0.1, classes=100,
    )  # fmt: skip
    _, soft = found(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), torch.arange(4), torch.Generator().manual_seed(0))
    assert soft.shape == (4, 100)
    assert soft.min() == pytest.approx(0.1 / 100)


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_batchensemble_on_resnet_50_has_a_lower_rate(data: str) -> None:
    """0.08, and all else as the others; which leave it out."""
    others, its = find(f"packed/{data}-resnet50"), find(BASELINE.format(data))
    assert its.recipe == replace(others.recipe, lr=0.08)
    assert its.methods == (mt.BatchEnsemble(members=4),)
    assert not any(isinstance(method, mt.BatchEnsemble) for method in others.methods)


def test_the_methods_of_table_1() -> None:
    """With the settings that differ from their own defaults."""
    methods = find("packed/cifar10-resnet18").methods
    assert set(methods) == {
        mt.Single(), mt.Deep(members=4), mt.Packed(members=4, alpha=2, gamma=2),
        mt.MIMO(members=4, rho=1.0, reduction="mean"),
        mt.Masksembles(members=4, scale=2.0, position="after", feed="all"), mt.BatchEnsemble(members=4),
    }  # fmt: skip
    assert mt.Packed(members=4, alpha=2, gamma=1) in find("packed/cifar100-wideresnet28-10").methods


MIMO_B = [  # name, epochs, batch, L2 as printed, repetitions of an example
    ("mimo/cifar", 250, 512, 3e-4, 4),
    ("mimo/cifar-baselines-200", 200, 512, 2e-4, 1),
    ("mimo/cifar-baselines-250", 250, 512, 2e-4, 1),
    ("mimo/imagenet", 150, 4096, 1e-4, 2),
    ("mimo/imagenet-baselines-90", 90, 4096, 1e-4, 1),
    ("mimo/imagenet-baselines-135", 135, 4096, 1e-4, 1),
    ("mimo/imagenet-baselines-150", 150, 4096, 1e-4, 1),
]


@pytest.mark.parametrize(("name", "epochs", "batch", "l2", "repeat"), MIMO_B, ids=lambda value: str(value))
def test_appendix_b_of_mimo(name: str, epochs: int, batch: int, l2: float, repeat: int) -> None:
    """As printed; the reference code's milestones, a share of the epochs each."""
    entry, found = find(name), recipe(name)
    assert (found.epochs, found.batch, found.lr, found.decay) == (epochs, batch, 0.1, 0.1)
    assert found.weight_decay == pytest.approx(2 * l2)
    assert (found.optimizer, found.momentum, found.nesterov) == ("sgd", 0.9, True)
    assert entry.rows == batch * repeat
    first, whole = ((80, 160, 180), 200) if "cifar" in name else ((30, 60, 80), 90)
    assert found.milestones == tuple(epoch * epochs // whole for epoch in first)
    assert found.warmup == (1 if "cifar" in name else 5)


@pytest.mark.parametrize("data", ["cifar", "imagenet"])
def test_mimo_as_its_reference_code_has_it(data: str) -> None:
    """The printed batch is that of rows, and the rate belongs to 128 or 256 distinct examples."""
    printed, reference = find(f"mimo/{data}"), find(f"mimo/{data}-reference")
    assert reference.rows == printed.recipe.batch
    per = 128 if data == "cifar" else 256
    assert reference.recipe.lr == pytest.approx(0.1 * reference.recipe.batch / per)
    same = replace(reference.recipe, batch=printed.recipe.batch, lr=0.1, decay=0.1)
    assert same == printed.recipe
    assert reference.recipe.decay == (0.2 if data == "cifar" else 0.1)
    assert printed.methods == reference.methods
    assert printed.methods[0] == (mt.MIMO(repeat=4) if data == "cifar" else mt.MIMO(members=2, rho=0.6, repeat=2))


def test_mimos_warm_up_and_milestones() -> None:
    """As the reference code's piecewise schedule, whose step s of N in the warm-up has s/N: ours is one step ahead."""
    found, steps = recipe("mimo/cifar"), 10
    for step in range(found.epochs * steps):
        epoch = step / steps
        theirs = (step + 1) / steps if epoch < 1 else 0.1 ** sum(epoch >= m for m in (100, 200, 225))
        assert found.factor(step, steps) == pytest.approx(theirs)


@pytest.mark.parametrize("name", ["mimo/cifar", "mimo/imagenet", "emp/imagenet-baselines", "emp/cifar100-baselines"])
def test_a_penalty_is_half_of_torchs_decay(name: str) -> None:
    """SGD's step by weight decay is that by the gradient of the printed λ ‖w‖²."""
    printed = {"mimo/cifar": 3e-4, "mimo/imagenet": 1e-4}.get(name, 0.001 / 256)
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    (slope,) = torch.autograd.grad(printed * weight.square().sum(), weight)
    before = weight.detach().clone()
    weight.grad = torch.zeros_like(weight)
    torch.optim.SGD([weight], lr=1.0, weight_decay=recipe(name).weight_decay).step()
    torch.testing.assert_close(before - weight.detach(), slope)


def test_emp() -> None:
    """Adam at its defaults, batches of 256, the prior in the loss and nothing twice."""
    images, cifar, table_12 = recipe("emp/imagenet"), recipe("emp/cifar100"), recipe("emp/regression")
    assert [r.epochs for r in (images, cifar, table_12)] == [100, 400, 4000]
    assert [r.batch for r in (images, cifar, table_12)] == [256, 256, 100]
    default = torch.optim.Adam([nn.Parameter(torch.zeros(1))]).defaults["lr"]
    for name in ("emp/imagenet", "emp/cifar100"):
        assert recipe(name).weight_decay == 0
        for method in find(name).methods:
            assert isinstance(method, (mt.EMP, mt.ECMP))
            assert (method.components, method.members, method.prior, method.strength) == (5, 200, "l2", 0.001)
    for r in (images, cifar, table_12, recipe("emp/imagenet-baselines")):
        assert (r.optimizer, r.lr, r.schedule) == ("adam", default, "constant")
    assert cifar.augment == Augment(crop=4, flip=True)
    assert images.augment is None


def test_emps_regression() -> None:
    """Decay is the recipe's, so that the method has no prior besides."""
    entry = find("emp/regression")
    assert entry.recipe.weight_decay == 0.01
    patched = [method for method in entry.methods if isinstance(method, (mt.EMP, mt.ECMP))]
    assert len(patched) == 2
    for method in patched:
        told = (method.patch, method.gamma, method.tau_output, method.prior, method.members, method.components)
        assert told == ("norm", 0.2, 0.1, "none", 10_000, 5)


def test_masksembles() -> None:
    """By the works that the paper follows."""
    small, large = recipe("masksembles/cifar10"), recipe("masksembles/imagenet")
    assert (small.epochs, small.batch, small.lr, small.weight_decay, small.nesterov) == (200, 128, 0.1, 5e-4, True)
    assert (small.milestones, small.decay, small.augment.fill) == ((60, 120, 160), 0.2, "reflect")
    assert (large.epochs, large.batch, large.lr, large.weight_decay, large.nesterov) == (130, 256, 0.1, 1e-4, False)
    assert [large.factor(epoch, 1) for epoch in (29, 30, 60, 90, 129)] == pytest.approx([1, 0.1, 0.01, 1e-3, 1e-4])
    for name in ("masksembles/cifar10", "masksembles/imagenet"):
        assert "No number is printed" in find(name).silent
        assert all(method.members == 4 for method in find(name).methods if not isinstance(method, mt.Single))


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_states_what_tables_leave_out(name: str) -> None:
    """Where it is from, what is trained by it, how decay is meant, how losses are joined; and its settings are JSON."""
    entry = find(name)
    for field in fields(PaperRecipe):
        assert getattr(entry, field.name) or field.name == "ood"
    assert isinstance(entry.recipe, Recipe)
    assert json.loads(json.dumps(entry.recipe.settings()))["epochs"] == entry.recipe.epochs
    assert callable(getattr(models, entry.model))
    summing = (mt.Single, mt.Deep, mt.Packed, mt.MultiHead, mt.TreeNet, mt.MIMO)
    for method in entry.methods:
        same = isinstance(method, mt.MIMO) and method.rho == 1  # its heads learn the same, and no part is a member's own
        expected = "sum" if isinstance(method, summing) and not same else "mean"
        assert entry.reductions[type(method).__name__] == method.reduction == expected


@pytest.mark.parametrize("name", ["packed/cifar10-resnet18", "mimo/cifar", "emp/cifar100"])
def test_a_recipe_trains(name: str) -> None:
    """All of its methods, for an epoch on images of noise."""
    from torch.utils.data import TensorDataset

    from multitudes.training.fit import fit

    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(32, 3, 8, 8, generator=generator), torch.randint(10, (32,), generator=generator))
    for method in find(name).methods:
        layers = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
        net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
        few = method if method.members <= 4 else replace(method, members=2)
        ens = mt.ensemble(net, few, torch.zeros(2, 3, 8, 8), seed=0)
        before = {key: value.clone() for key, value in ens.named_parameters()}
        run = fit(ens, data, replace(recipe(name), epochs=1, batch=16, precision="32"), progress=False)
        assert run.metrics[0]["loss"] > 0
        assert any(not torch.equal(before[key], value) for key, value in ens.named_parameters())


@pytest.mark.parametrize("name", list(ABSENT))
def test_what_is_not_there_says_why(name: str) -> None:
    wanted = r"neither epochs nor" if name == "packed/uci" else r"LAMB and binary cross-entropy.*full-scale"
    with pytest.raises(mt.InputError, match=wanted):
        recipe(name)


def test_deviations_on_imagenet_are_told() -> None:
    assert "0.0005" in ABSENT["packed/imagenet-a3-batchensemble"]
    assert "1120" in ABSENT["packed/imagenet-a3-masksembles-resnet50x4"]
    assert not ABSENT.keys() & RECIPES.keys()


def test_an_unknown_name() -> None:
    with pytest.raises(mt.InputError, match=r"'packed/cifar10-resnet18'"):
        recipe("packed/cifar10-resnet-18")
