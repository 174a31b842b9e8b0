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
from multitudes import data
from multitudes.conversion.draft import make_draft
from multitudes.conversion.plan import Plan
from multitudes.data import Augment, RandAugment, RandomCrop
from multitudes.methods.layers.dropout import MaskedDropout
from multitudes.methods.masksembles import Masked
from multitudes.training.paper_recipe import Entry, PaperRecipe
from multitudes.training.recipes import ABSENT, RECIPES, find, recipe

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
STEPS = {25: (25, 50), 60: (60, 120, 160)}

TABLE_4 = [  # dataset, network, epochs, batch size, start lr, momentum, weight decay, γ-lr, first milestone, as printed
    ("cifar10-resnet18", 75, 128, 0.05, 0.9, 5e-4, 0.1, 25),
    ("cifar10-resnet50", 200, 128, 0.1, 0.9, 5e-4, 0.2, 60),
    ("cifar10-wideresnet28-10", 200, 128, 0.1, 0.9, 5e-4, 0.2, 60),
    ("cifar100-resnet50", 200, 128, 0.1, 0.9, 5e-4, 0.2, 60),
    ("cifar100-wideresnet28-10", 200, 128, 0.1, 0.9, 5e-4, 0.2, 60),
]


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
    assert others == {"packed/cifar100-resnet18", "packed/imagenet-a3-resnet50", "packed/imagenet-a3-resnet50x4"}


def test_resnet_18_on_cifar_100_is_the_authors_codes() -> None:
    """Not the printed rate 0.05, weight decay 1e-4 and factor 0.2, and it is said."""
    found = find("packed/cifar100-resnet18")
    expected = replace(recipe("packed/cifar10-resnet18"), lr=0.1, nesterov=True)
    assert found.recipe == expected
    assert (expected.epochs, expected.weight_decay, expected.decay, expected.milestones) == (75, 5e-4, 0.1, (25, 50))
    for printed in ("0.05", "1e-4", "0.2", "Nesterov"):
        assert printed in found.silent


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
    """0.08, and all else as the others; on other networks it has theirs."""
    found = find(f"packed/{data}-resnet50")
    its = found.entry(mt.BatchEnsemble)
    assert its.recipe == replace(found.recipe, lr=0.08)
    assert {entry.recipe.lr for entry in found.entries if entry is not its} == {0.1}
    small = find(f"packed/{data}-resnet18")
    assert small.entry(mt.BatchEnsemble).recipe == small.recipe


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("packed/")])
def test_deep_is_trained_apart(name: str) -> None:
    """Supplement K: own batches, and each member's own best epoch; all else as the single network."""
    found = find(name)
    assert found.entry(mt.Deep).recipe == replace(found.entry(mt.Single).recipe, batches="own", best="members")
    others = [entry.recipe for entry in found.entries if not isinstance(entry.method, mt.Deep)]
    assert {(one.batches, one.best) for one in others} == {("same", "ensemble")}


def test_the_methods_of_table_1() -> None:
    """With the settings that differ from their own defaults."""
    methods = find("packed/cifar10-resnet18").methods
    assert set(methods) == {
        mt.Single(), mt.Deep(members=4), mt.Packed(members=4, alpha=2, gamma=2),
        mt.MIMO(members=4, rho=1.0, reduction="mean"),
        mt.Masksembles(members=4, scale=2.0, position="after", feed="all"), mt.BatchEnsemble(members=4),
    }  # fmt: skip
    assert mt.Packed(members=4, alpha=2, gamma=1) in find("packed/cifar100-wideresnet28-10").methods


NETWORKS = {  # parameters of the network as the papers print or imply them, with every digit
    "packed/cifar10-resnet18": 11_173_962, "packed/cifar10-resnet50": 23_520_842, "packed/cifar10-wideresnet28-10": 36_489_290,
    "packed/cifar100-resnet18": 11_220_132, "packed/cifar100-resnet50": 23_705_252,
    "packed/cifar100-wideresnet28-10": 36_489_290 + 90 * 641,
    "packed/imagenet-a3-resnet50": 25_557_032, "packed/imagenet-a3-resnet50x4": 383_571_176,
    "mimo/cifar10": 36_479_194, "mimo/cifar10-reference": 36_479_194,
    "mimo/cifar100": 36_479_194 + 90 * 641, "mimo/cifar100-reference": 36_479_194 + 90 * 641,
    "mimo/imagenet": 25_557_032, "mimo/imagenet-reference": 25_557_032,
    "masksembles/cifar10": 2_748_890, "masksembles/imagenet": 25_557_032,
    "emp/imagenet": 11_689_512, "emp/cifar100": 28_511_307, "emp/regression": 9 * 50 + 51 + 2 * (8 + 50),
}  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_each_names_the_very_network(name: str) -> None:
    """Stem, classes and biases: by the number of its parameters."""
    with torch.device("meta"):
        net = find(name).network(**({"inputs": 8} if name == "emp/regression" else {}))
    assert sum(p.numel() for p in net.parameters()) == NETWORKS[name]


def planned(entry: Entry, size: int) -> Plan:
    """The plan of an entry, as shapes only."""
    with torch.device("meta"):
        net, x = entry.network(), torch.zeros(2, 3, size, size)
    return mt.plan(net, entry.method, x, **{key: value for key, value in entry.conversion.items() if key != "task"})


ENSEMBLES = [  # name, method, millions of parameters as printed, decimals, G multiply-adds as printed
    ("packed/cifar10-wideresnet28-10", mt.Packed, "19.35", "4.06"), ("packed/cifar10-wideresnet28-10", mt.MIMO, "36.51", ""),
    ("packed/cifar10-wideresnet28-10", mt.Deep, "145.96", "23.8"), ("packed/cifar100-wideresnet28-10", mt.Packed, "36.62", ""),
    ("masksembles/cifar10", mt.Masksembles, "6.4", ""),
    pytest.param("packed/imagenet-a3-resnet50", mt.Packed, "59.1", "9.29", marks=pytest.mark.slow),
    pytest.param("packed/imagenet-a3-resnet50", mt.MIMO, "31.7", "", marks=pytest.mark.slow),
    pytest.param("packed/imagenet-a3-resnet50x4", mt.Packed, "392.0", "64.47", marks=pytest.mark.slow),
    pytest.param("packed/imagenet-a3-resnet50x4", mt.MIMO, "408.3", "", marks=pytest.mark.slow),
    pytest.param("packed/imagenet-a3-resnet50x4", mt.BatchEnsemble, "384.4", "", marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "millions", "adds"), ENSEMBLES)
def test_ensembles_have_their_printed_sizes(name: str, kind: type[mt.Method], millions: str, adds: str) -> None:
    """With the network, the settings by layer and the arguments of their entries."""

    def shown(value: float, printed: str) -> str:
        return f"{value:.{len(printed.partition('.')[2])}f}"

    counts = planned(find(name).entry(kind), 224 if "imagenet" in name else 32).counts
    assert shown(counts.parameters / 1e6, millions) == millions
    if adds:
        assert shown(counts.multiply_adds / 2e9, adds) == adds


def test_masksembles_table_1_is_2_3_times_the_network() -> None:
    """Its printed size; S is not printed, which is said. Masks keep as many channels as the network has."""
    found = find("masksembles/cifar10")
    counts = planned(found.entry(mt.Masksembles), 32).counts
    assert f"{counts.parameters / counts.base_parameters:.1f}" == "2.3"
    assert "S and M of Table 1 are not printed" in found.silent
    assert found.entry(mt.MCDropout).method.filterwise
    assert "whole channels" in found.silent


def drafted(entry: Entry, *shape: int, **arguments: Any) -> nn.Module:
    """The network of one member, as shapes only."""
    with torch.device("meta"):
        net, x = entry.network(**arguments), torch.zeros(2, *shape)
    unset = {"keep": (), "at": None, "seed": 0, "start": "fresh", "batch_axis": 0, "chunk": None}
    given = {key: value for key, value in entry.conversion.items() if key != "task"}
    return make_draft(net, entry.method, x, **{**unset, **given}).network


def dropping(entry: Entry, *shape: int, **arguments: Any) -> dict[str, float]:
    """The modules at which a member drops units, and their rates."""
    parts = drafted(entry, *shape, **arguments).named_modules()
    return {name: part.rate for name, part in parts if isinstance(part, MaskedDropout)}


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_mimos_dropout_is_where_the_reference_has_it(data: str) -> None:
    """Between the two convolutions of each of the twelve blocks, and nowhere else; one pass."""
    entry = find(f"mimo/{data}").entry(mt.MCDropout)
    places = dropping(entry, 3, 8, 8)
    assert places == {f"group{g}.{b}.dropout": 0.1 for g in (1, 2, 3) for b in range(4)}
    assert entry.method.members == 1


@pytest.mark.slow
def test_mimos_dropout_on_imagenet() -> None:
    """Behind the first activation, and behind the first two of each block."""
    places = dropping(find("mimo/imagenet").entry(mt.MCDropout), 3, 32, 32)
    blocks = [f"layer{stage}.{b}" for stage, count in enumerate((3, 4, 6, 3), start=1) for b in range(count)]
    assert places == {"pool": 0.1, **{f"{block}.conv{i}": 0.1 for block in blocks for i in (2, 3)}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [mt.Masksembles, mt.MCDropout])
def test_masks_on_imagenet_stand_from_stage_three_on(kind: type[mt.Method]) -> None:
    """Before every convolution of layer3 and layer4, and nowhere else."""
    net = drafted(find("masksembles/imagenet").entry(kind), 3, 32, 32)
    late = {n for n, part in net.named_modules() if isinstance(part, nn.Conv2d) and n.startswith(("layer3", "layer4"))}
    assert {n for n, part in net.named_modules() if isinstance(part, (Masked, MaskedDropout))} == late
    assert len(late) == 3 * 9 + 2
    scales = [entry.method.scale for entry in find("masksembles/imagenet").entries if isinstance(entry.method, mt.Masksembles)]
    assert [1 / (2 * scale - 1) for scale in scales] == pytest.approx([0.7, 0.3, 0.2], abs=0.01)


def test_emps_regression_networks() -> None:
    """BatchNorm with γ = 0.2 where it is patched, dropout in its place, or neither; after input and hidden layer."""
    found, x = find("emp/regression"), torch.randn(4, 8)
    kinds = {type(entry.method): [type(part).__name__ for part in entry.network(inputs=8).layers] for entry in found.entries}
    assert kinds[mt.EMP] == kinds[mt.ECMP] == ["BatchNorm1d", "Linear", "BatchNorm1d", "ReLU", "Linear"]
    assert kinds[mt.MCDropout] == ["Dropout", "Linear", "ReLU", "Dropout", "Linear"]
    assert kinds[mt.Deep] == ["Linear", "ReLU", "Linear"]
    assert bool(found.network(inputs=8).layers[2].weight.eq(0.2).all())
    entry = found.entry(mt.MCDropout)
    few = replace(entry, method=replace(entry.method, members=2))
    assert dropping(few, 8, inputs=8) == {"layers.0": 0.005, "layers.3": 0.005}
    ens = mt.ensemble(few.network(inputs=8, hidden=100), few.method, x, **few.conversion)
    assert ens.task == "regression"
    assert ens.template.layers[1].out_features == 100


def test_a3() -> None:
    """The procedure of Wightman et al., and what the supplement changes."""
    found = find("packed/imagenet-a3-resnet50")
    a3 = found.recipe
    assert (a3.epochs, a3.batch, a3.lr, a3.weight_decay, a3.optimizer) == (100, 2048, 0.008, 0.02, "lamb")
    assert (a3.schedule, a3.warmup, a3.loss, a3.threshold, a3.clip) == ("cosine", 5, "bce", 0.2, None)
    assert a3.augment == Augment(
        crop=0, flip=True, mixup=0.1, cutmix=1.0, switch=0.5, classes=1000, smoothing=0.0,
        rand_augment=RandAugment(magnitude=6, n=2, std=0.5, increasing=True),
    )  # fmt: skip
    assert found.train == {"size": 160, "crop": RandomCrop()}
    assert found.test["size"] / found.test["resize"] == pytest.approx(0.95, abs=0.005)
    assert found.entry(mt.BatchEnsemble).recipe == replace(a3, clip=0.0005, clip_by="all")
    wide = find("packed/imagenet-a3-resnet50x4")
    assert wide.entry(mt.Masksembles).recipe == replace(a3, batch=1120)
    assert [one.entry(mt.Packed).method.alpha for one in (found, wide)] == [3, 2]
    assert {entry.method.members for entry in (*found.entries, *wide.entries)} == {1, 4}


@pytest.mark.parametrize("name", [name for name in RECIPES if "imagenet" in name])
def test_images_of_imagenet_are_cropped_at_random(name: str, tmp_path: Path) -> None:
    """The arguments are those of `data.folder`; flips are the recipe's."""
    from PIL import Image

    (tmp_path / "n01440764").mkdir()
    Image.new("RGB", (300, 260)).save(tmp_path / "n01440764" / "a.png")
    found = find(name)
    train, test = (data.folder(tmp_path, classes="imagenet", **how) for how in (found.train, found.test))
    assert train.inputs.varies
    assert not test.inputs.varies
    assert test.shape == (3, 224, 224)
    for entry in found.entries:
        assert (entry.recipe.augment.crop, entry.recipe.augment.flip) == (0, True)
        assert entry.arguments.get("stem", "imagenet") == "imagenet"
        assert train.shape[-1] == (160 if "a3" in name else 224)


MIMO_B = [  # methods, epochs, batch, L2 as printed, repetitions of an example
    ("cifar", [mt.MIMO], 250, 512, 3e-4, 4),
    ("cifar", [mt.Single, mt.MCDropout, mt.Deep], 200, 512, 2e-4, 1),
    ("cifar", [mt.BatchEnsemble, mt.MultiHead, mt.TreeNet], 250, 512, 2e-4, 1),
    ("imagenet", [mt.MIMO], 150, 4096, 1e-4, 2),
    ("imagenet", [mt.Single, mt.MCDropout, mt.Deep], 90, 4096, 1e-4, 1),
    ("imagenet", [mt.BatchEnsemble], 135, 4096, 1e-4, 1),
    ("imagenet", [mt.MultiHead, mt.TreeNet], 150, 4096, 1e-4, 1),
]
MIMO_ROWS = [
    (f"mimo/{data}", kind, *rest)
    for images, kinds, *rest in MIMO_B
    for data in (("cifar10", "cifar100") if images == "cifar" else ("imagenet",))
    for kind in kinds
]


@pytest.mark.parametrize(("name", "kind", "epochs", "batch", "l2", "repeat"), MIMO_ROWS, ids=lambda value: str(value))
def test_appendix_b_of_mimo(name: str, kind: type[mt.Method], epochs: int, batch: int, l2: float, repeat: int) -> None:
    """As printed; the reference code's milestones, a share of the epochs each."""
    entry = find(name).entry(kind)
    found = entry.recipe
    assert (found.epochs, found.batch, found.lr, found.decay) == (epochs, batch, 0.1, 0.1)
    assert found.weight_decay == pytest.approx(2 * l2)
    assert (found.optimizer, found.momentum, found.nesterov) == ("sgd", 0.9, True)
    assert entry.rows == batch * repeat
    first, whole = ((80, 160, 180), 200) if "cifar" in name else ((30, 60, 80), 90)
    assert found.milestones == tuple(epoch * epochs // whole for epoch in first)
    assert found.warmup == (1 if "cifar" in name else 5)


@pytest.mark.parametrize("data", ["cifar10", "imagenet"])
def test_mimo_as_its_reference_code_has_it(data: str) -> None:
    """The printed batch is that of rows, and the rate belongs to 128 or 256 distinct examples."""
    printed, reference = find(f"mimo/{data}"), find(f"mimo/{data}-reference")
    assert reference.entries[0].rows == printed.recipe.batch
    per = 128 if data == "cifar10" else 256
    assert reference.recipe.lr == pytest.approx(0.1 * reference.recipe.batch / per)
    same = replace(reference.recipe, batch=printed.recipe.batch, lr=0.1, decay=0.1)
    assert same == printed.recipe
    assert reference.recipe.decay == (0.2 if data == "cifar10" else 0.1)
    assert printed.methods[:1] == reference.methods
    assert printed.methods[0] == (mt.MIMO(repeat=4) if data == "cifar10" else mt.MIMO(members=2, rho=0.6, repeat=2))


def test_mimos_warm_up_and_milestones() -> None:
    """As the reference code's piecewise schedule, whose step s of N in the warm-up has s/N: ours is one step ahead."""
    found, steps = recipe("mimo/cifar10"), 10
    for step in range(found.epochs * steps):
        epoch = step / steps
        theirs = (step + 1) / steps if epoch < 1 else 0.1 ** sum(epoch >= m for m in (100, 200, 225))
        assert found.factor(step, steps) == pytest.approx(theirs)


@pytest.mark.parametrize("name", ["mimo/cifar10", "mimo/imagenet", "emp/imagenet", "emp/cifar100"])
def test_a_penalty_is_half_of_torchs_decay(name: str) -> None:
    """SGD's step by weight decay is that by the gradient of the printed λ ‖w‖²."""
    printed = {"mimo/cifar10": 3e-4, "mimo/imagenet": 1e-4}.get(name, 0.001 / 256)
    entry = find(name).entry(mt.MIMO if name.startswith("mimo") else mt.Single)
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    (slope,) = torch.autograd.grad(printed * weight.square().sum(), weight)
    before = weight.detach().clone()
    weight.grad = torch.zeros_like(weight)
    torch.optim.SGD([weight], lr=1.0, weight_decay=entry.recipe.weight_decay).step()
    torch.testing.assert_close(before - weight.detach(), slope)


def test_emp() -> None:
    """Adam at its defaults, batches of 256, the prior in the loss and nothing twice."""
    images, cifar, table_12 = recipe("emp/imagenet"), recipe("emp/cifar100"), recipe("emp/regression")
    assert [r.epochs for r in (images, cifar, table_12)] == [100, 400, 4000]
    assert [r.batch for r in (images, cifar, table_12)] == [256, 256, 100]
    default = torch.optim.Adam([nn.Parameter(torch.zeros(1))]).defaults["lr"]
    for name in ("emp/imagenet", "emp/cifar100"):
        for entry in find(name).entries:
            method, r = entry.method, entry.recipe
            assert (r.optimizer, r.lr, r.schedule) == ("adam", default, "constant")
            if isinstance(method, (mt.EMP, mt.ECMP)):
                assert r.weight_decay == 0
                assert (method.components, method.members, method.prior, method.strength) == (5, 200, "l2", 0.001)
            else:
                assert r.weight_decay == pytest.approx(2 * 0.001 / 256)
        assert find(name).entry(mt.MCDropout).method == mt.MCDropout(members=200, p=0.005, position="norm")
    assert {(m.patch) for m in find("emp/imagenet").methods[:4]} == {"norm", "norm+output"}
    assert (table_12.optimizer, table_12.lr, table_12.schedule) == ("adam", default, "constant")
    assert cifar.augment == Augment(crop=4, flip=True)


def test_emps_regression() -> None:
    """Decay is the recipe's, so that the method has no prior besides."""
    entry = find("emp/regression")
    assert entry.recipe.weight_decay == 0.01
    patched = [method for method in entry.methods if isinstance(method, (mt.EMP, mt.ECMP))]
    assert len(patched) == 2
    for method in patched:
        told = (method.patch, method.gamma, method.tau_output, method.prior, method.components)
        assert told == ("norm", 0.2, 0.1, "none", 5)


@pytest.mark.slow
def test_emps_regression_is_scored_as_in_the_paper() -> None:
    """By 10,000 draws with a precision of 0.1 in the target's own units; the explicit ensemble has five members."""
    train, test = data.uci("yacht", 0, standardise="inputs")
    for entry in find("emp/regression").entries:
        ens = mt.ensemble(entry.network(inputs=6), entry.method, train.batch([0, 1, 2])[0], **entry.conversion)
        pred = mt.predict(ens, test.subset(range(3)), **{**entry.prediction, "progress": False})
        assert pred.count == (5 if isinstance(entry.method, mt.Deep) else 10_000)
        assert torch.allclose(pred.aleatoric, torch.tensor(10.0))
        assert "lpd" in mt.score(pred)


def test_masksembles() -> None:
    """By the works that the paper follows."""
    small, large = recipe("masksembles/cifar10"), recipe("masksembles/imagenet")
    assert (small.epochs, small.batch, small.lr, small.weight_decay, small.nesterov) == (200, 128, 0.1, 5e-4, True)
    assert (small.milestones, small.decay, small.augment.fill) == ((60, 120, 160), 0.2, "reflect")
    assert (large.epochs, large.batch, large.lr, large.weight_decay, large.nesterov) == (130, 256, 0.1, 1e-4, False)
    assert [large.factor(epoch, 1) for epoch in (29, 30, 60, 90, 129)] == pytest.approx([1, 0.1, 0.01, 1e-3, 1e-4])
    for name in ("masksembles/cifar10", "masksembles/imagenet"):
        assert "No number is printed" in find(name).silent
        assert find(name).entry(mt.Deep).recipe == replace(recipe(name), batches="own")
        assert all(method.members == 4 for method in find(name).methods if not isinstance(method, mt.Single))


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_states_what_tables_leave_out(name: str) -> None:
    """Where it is from, what is trained by it, how decay is meant, how losses are joined; and its settings are JSON."""
    found = find(name)
    for field in fields(PaperRecipe):
        assert getattr(found, field.name) or field.name in ("detection", "train", "test")
    assert found.methods == tuple(entry.method for entry in found.entries)
    assert bool(found.train) is bool(found.test) is (found.data == "ImageNet")
    summing = (mt.Single, mt.Deep, mt.Packed, mt.MultiHead, mt.TreeNet, mt.MIMO)
    for entry in found.entries:
        method = entry.method
        assert json.loads(json.dumps(entry.recipe.settings()))["epochs"] == entry.recipe.epochs
        same = isinstance(method, mt.MIMO) and method.rho == 1  # its heads learn the same, and no part is a member's own
        expected = "sum" if isinstance(method, summing) and not same else "mean"
        assert method.reduction == expected


def test_an_entry_that_is_not_there() -> None:
    with pytest.raises(mt.InputError, match=r"no EMP.*MIMO, Single"):
        find("mimo/cifar10").entry(mt.EMP)


def test_another_method_by_a_papers_recipe() -> None:
    """All as before but what is said."""
    first = find("packed/cifar10-resnet18").entries[0]
    other = first.with_method(mt.TreeNet(members=4), arguments={"width": 0.5}, conversion={"start": "copies"}, epochs=80)
    assert (other.method, other.model) == (mt.TreeNet(members=4), "resnet18")
    assert other.recipe == replace(first.recipe, epochs=80)
    assert other.arguments == {"classes": 10, "width": 0.5}
    assert other.conversion == {"start": "copies"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["packed/cifar10-resnet18", "mimo/cifar10", "emp/cifar100", "packed/imagenet-a3-resnet50"])
def test_a_recipe_trains(name: str) -> None:
    """All of its entries, for an epoch on images of noise."""
    from torch.utils.data import TensorDataset

    from multitudes.training.fit import fit

    generator = torch.Generator().manual_seed(0)
    images = torch.rand(32, 3, 8, 8, generator=generator)
    train = TensorDataset(images, torch.randint(10, (32,), generator=generator))
    for entry in find(name).entries:
        method = entry.method
        layers = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
        net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 1000 if "a3" in name else 10))
        few = method if method.members <= 4 else replace(method, members=2)
        ens = mt.ensemble(net, few, torch.zeros(2, 3, 8, 8), seed=0)
        before = {key: value.clone() for key, value in ens.named_parameters()}
        run = fit(ens, train, replace(entry.recipe, epochs=1, batch=16, precision="32", warmup=0.0), progress=False)
        assert run.metrics[0]["loss"] > 0
        assert any(not torch.equal(before[key], value) for key, value in ens.named_parameters())


@pytest.mark.parametrize("name", list(ABSENT))
def test_what_is_not_there_says_why(name: str) -> None:
    wanted = r"neither epochs nor" if name == "packed/uci" else r"never trained"
    with pytest.raises(mt.InputError, match=wanted):
        recipe(name)


def test_an_unknown_name() -> None:
    with pytest.raises(mt.InputError, match=r"'packed/cifar10-resnet18'"):
        recipe("packed/cifar10-resnet-18")
