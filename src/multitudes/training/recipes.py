"""Recipes of the papers by name, each with its source, dataset, and the methods, networks and recipes of its entries.

Laurent et al., "Packed-Ensembles for Efficient Uncertainty Estimation", ICLR 2023, https://arxiv.org/abs/2210.09184
Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, https://arxiv.org/abs/2010.06610
Durasov et al., "Masksembles for Uncertainty Estimation", CVPR 2021, https://arxiv.org/abs/2012.08334
Chang et al., "Ensemble Model Patching", 2019, https://arxiv.org/abs/1905.09453
Wightman et al., "ResNet strikes back", 2021, https://arxiv.org/abs/2110.00476

>>> for entry in find("packed/cifar10-resnet18").entries:  # doctest: +SKIP
...     ens = mt.ensemble(entry.network(), entry.method, x, **entry.conversion)
...     mt.fit(ens, train, entry.recipe)

`batch` counts the distinct examples of a step: MIMO(repeat=4) makes four rows of each. `weight_decay` is torch's: a paper's
penalty λ ‖w‖² is 2λ here, and λ/2 ‖w‖² is λ. It applies to all parameters that the method does not exempt. Learning rates are
meant for the method's `reduction`, the sum or the mean of members' losses. Deep has `batches="own"`: its members were trained
apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from multitudes.data import Augment, RandAugment, RandomCrop
from multitudes.errors import InputError
from multitudes.methods import ECMP, EMP, MIMO, BatchEnsemble, Deep, Masksembles, MCDropout, MultiHead, Packed, Single, TreeNet
from multitudes.training.paper_recipe import Entry, PaperRecipe
from multitudes.training.recipe import Recipe

IMAGENET = {"stem": "imagenet", "classes": 1000}
"""Arguments of a ResNet for ImageNet."""

TRAIN, TEST = {"size": 224, "crop": RandomCrop()}, {"size": 224}
"""How images of ImageNet are read, where nothing else is said: `data.folder(path, classes="imagenet", **TRAIN)`."""

CROP, FLIP = Augment(crop=4, flip=True), Augment(crop=0, flip=True)
MEDIUM = Augment(
    crop=4, flip=True, mixup=0.5, cutmix=0.2, switch=0.5, rand_augment=RandAugment(magnitude=9, n=2, std=1), smoothing=0.1,
    classes=100,
)  # fmt: skip
"""The supplement's medium augmentation, for the hundred classes of CIFAR-100."""

SHORT = Recipe(
    epochs=75, batch=128, lr=0.05, momentum=0.9, weight_decay=5e-4, schedule="multistep", milestones=(25, 50), decay=0.1,
    precision="bf16", channels_last=True, best_by="accuracy", augment=CROP,
)  # fmt: skip
LONG = replace(SHORT, epochs=200, lr=0.1, milestones=(60, 120, 160), decay=0.2)
A3 = Recipe(
    epochs=100, batch=2048, lr=0.008, optimizer="lamb", weight_decay=0.02, schedule="cosine", warmup=5.0, loss="bce",
    threshold=0.2, precision="bf16", channels_last=True, best_by="accuracy",
    augment=Augment(
        crop=0, flip=True, mixup=0.1, cutmix=1.0, switch=0.5, classes=1000,
        rand_augment=RandAugment(magnitude=6, n=2, std=0.5, increasing=True),
    ),
)  # fmt: skip
"""The A3 procedure."""

PACKED = Packed(members=4, alpha=2, gamma=2)
APART: dict[str, Any] = {"batches": "own", "best": "members"}
"""Members that are trained one after the other, each with its own best epoch: supplement K of Packed-Ensembles."""

EVERYWHERE = {"group[23].*.conv1": PACKED, "group2.0.conv1": replace(PACKED, gamma=1)}
"""γ = 2 in the first convolutions of a WideResNet's blocks too, where a group still has 64 channels."""

UNSAID_PACKED = (
    "The table names flips only, but its numbers need the padded crop too. Precision, memory layout and the reduction of "
    "MIMO's losses are not stated; MIMO's row needs the mean. The epoch of the highest validation accuracy is kept, for Deep "
    "that of each member."
)
NESTEROV = (
    "The authors' code has Nesterov momentum too, which the paper does not name; ResNet-18 on CIFAR-10 meets its rows without."
)
PUBLISHED = (
    "The recipe is that of the authors' code: rate 0.1, Nesterov, weight decay 5e-4, × 0.1. The table prints rate 0.05, weight "
    "decay 1e-4 and × 0.2, with which the single network stays far from its row; by the published settings it meets it "
    "(docs/decisions.md)."
)
WRN_10 = (
    "The network has biases in its convolutions and the stride in the second of a block, as the printed counts. Packed's "
    "printed 19.35 M parameters and 4.06 G multiply-adds are those of γ = 2 in all convolutions that then have 64 channels per "
    "group, without biases. So it is here; the caption has γ = 1."
)
WRN_100 = (
    "The network has biases in its convolutions and the stride in the second of a block; the printed counts are those of "
    "CIFAR-10. Packed's printed 36.62 M parameters are those of the caption's γ = 1, without biases."
)


def _packed(
    data: str, model: str, recipe: Recipe, silent: str, packed: Packed = PACKED, changes: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> PaperRecipe:  # fmt: skip
    """Makes the rows of Table 1 of the Packed-Ensembles paper for a dataset and a network; `changes` are for Packed."""
    single = Entry(
        method=Single(), recipe=recipe, model=model, arguments={"classes": 100 if data == "CIFAR-100" else 10, **arguments}
    )
    lower: dict[str, Any] = {"lr": 0.08} if model == "resnet50" else {}
    return PaperRecipe(
        entries=(
            single,
            single.with_method(Deep(members=4), **APART),
            single.with_method(packed, **(changes or {})),
            single.with_method(MIMO(members=4, rho=1.0, reduction="mean")),
            single.with_method(Masksembles(members=4, scale=2.0, position="after", feed="all")),
            single.with_method(BatchEnsemble(members=4), **lower),
        ),
        source="Packed-Ensembles, supplement, Table 4 and appendices B and K",
        data=data,
        decay="torch's; none on BatchEnsemble's factors",
        silent=f"{UNSAID_PACKED} {silent}",
        detection="maximum softmax probability, SVHN",
    )


def _a3(model: str, alpha: float, masksembles: Mapping[str, Any], **arguments: Any) -> PaperRecipe:
    """Makes the rows of Table 2 of the Packed-Ensembles paper for a network."""
    single = Entry(method=Single(), recipe=A3, model=model, arguments=arguments)
    return PaperRecipe(
        entries=(
            single,
            single.with_method(Deep(members=4), **APART),
            single.with_method(Packed(members=4, alpha=alpha, gamma=1)),
            single.with_method(MIMO(members=4, rho=1.0, reduction="mean")),
            single.with_method(Masksembles(members=4, scale=2.0, position="after", feed="all"), **masksembles),
            single.with_method(BatchEnsemble(members=4), clip=0.0005, clip_by="all"),
        ),
        source="Packed-Ensembles, Table 2 and supplement, appendix B, by the A3 procedure of ResNet strikes back",
        data="ImageNet",
        decay="LAMB's; none on tensors of one axis, as in timm, and none on BatchEnsemble's factors",
        silent="The paper names the procedure alone: the settings are those of Wightman et al. LAMB scales each member's "
        "tensors apart, MIMO's heads too, so that members learn as they would alone; theirs has one ratio per tensor and clips "
        "all gradients at a norm of 1, which is not done here. The loss is the mean over rows and classes; a class whose share "
        "in a mixed image is above 0.2 counts as present, as in timm. Warm-up rises from 0 and the cosine falls to 0, at each "
        "step; in timm from 1e-4 and to 1e-6, at each epoch. Images are resized bilinearly, in timm bicubically too. "
        "Precision is bfloat16, theirs float16. MIMO's ρ and the reduction of its losses are those of CIFAR. "
        "The clipped norm of BatchEnsemble's gradients is read as one norm over all."
        + (" Masksembles has a batch of 1120 at the same rate, and no printed result." if masksembles else ""),
        detection="mutual information of ensembles, maximum softmax probability of the single network and MIMO; Textures, "
        "ImageNet-O",
        train={"size": 160, "crop": RandomCrop()},
        test={"size": 224, "resize": 235},
    )


WIDE = Recipe(
    epochs=250, batch=512, lr=0.1, nesterov=True, weight_decay=6e-4, schedule="multistep", milestones=(100, 200, 225),
    decay=0.1, warmup=1.0, augment=Augment(crop=2, flip=True),
)  # fmt: skip
LARGE = replace(WIDE, epochs=150, batch=4096, weight_decay=2e-4, milestones=(50, 100, 133), warmup=5.0, augment=FLIP)
RATE = "Momentum, warm-up and milestones are the reference code's; the paper gives the rate and its factor. "
PRINTED = RATE + "The reference code takes that rate for {per} distinct examples and scales it: {rate} for this batch."
AS_IN_CODE = "As in the reference code: the printed batch of {rows} counts rows, of {batch} examples; "
CROPPED = "Crops and flips are not stated: these are the reference code's."
DROPPED_WIDE = (
    "Dropout stands between the two convolutions of each block, as in the reference code; the paper does not say where."
)
DROPPED_LARGE = (
    "Dropout stands where the reference code has it, which the paper does not say: behind the first activation, and behind the "
    "first two of each block. That code drops behind the convolutions of shortcuts too: not here."
)


def _mimo_cifar(data: str) -> PaperRecipe:
    """Makes the recipe of Table 1 or 2 of the MIMO paper (appendix B)."""
    arguments = {"classes": 100 if data == "CIFAR-100" else 10}
    mimo = Entry(method=MIMO(members=3, repeat=4), recipe=WIDE, model="wideresnet28_10", arguments=arguments)
    single = mimo.with_method(Single(), epochs=200, weight_decay=4e-4, milestones=(80, 160, 180))
    longer: dict[str, Any] = {"epochs": 250, "milestones": WIDE.milestones}
    return PaperRecipe(
        entries=(
            mimo, single,
            single.with_method(MCDropout(members=1, p=0.1), arguments={"dropout": 0.1}),
            single.with_method(Deep(members=4), batches="own"),
            single.with_method(BatchEnsemble(members=4, lr_factor=0.5), **longer),
            single.with_method(MultiHead(members=3), **longer),
            single.with_method(TreeNet(members=3), **longer),
        ),
        source="MIMO, appendix B", data=data,
        decay="L2 of 0.0003 ‖w‖² for MIMO and 0.0002 ‖w‖² for its baselines, on all parameters",
        silent=f"{PRINTED.format(per=128, rate=0.4)} {CROPPED} {DROPPED_WIDE}",
        detection="maximum softmax probability",
    )  # fmt: skip


def _mimo_imagenet() -> PaperRecipe:
    """Makes the recipe of Table 3 of the MIMO paper (appendix B)."""
    mimo = Entry(method=MIMO(members=2, rho=0.6, repeat=2), recipe=LARGE, model="resnet50", arguments=IMAGENET)
    single = mimo.with_method(Single(), epochs=90, milestones=(30, 60, 80))
    longer: dict[str, Any] = {"epochs": 150, "milestones": LARGE.milestones}
    places = ("pool", "layer*.conv2", "layer*.conv3")
    return PaperRecipe(
        entries=(
            mimo, single,
            single.with_method(MCDropout(members=1, p=0.1, position=places)),
            single.with_method(Deep(members=4), batches="own"),
            single.with_method(BatchEnsemble(members=4, lr_factor=0.25), epochs=135, milestones=(45, 90, 120)),
            single.with_method(MultiHead(members=3), **longer),
            single.with_method(TreeNet(members=2), **longer),
        ),
        source="MIMO, appendix B", data="ImageNet",
        decay="L2 of 0.0001 ‖w‖², in the paper on kernels and biases, not on norms; here on all parameters",
        silent=f"{PRINTED.format(per=256, rate=1.6)} Random resized crops and flips are not stated. {DROPPED_LARGE}",
        detection="maximum softmax probability", train=TRAIN, test=TEST,
    )  # fmt: skip


def _reference(printed: PaperRecipe, silent: str, **settings: Any) -> PaperRecipe:
    """Makes the recipe of MIMO's reference code from that of the paper; only for MIMO."""
    mimo = printed.entries[0]
    text = AS_IN_CODE.format(rows=mimo.recipe.batch, batch=settings["batch"]) + silent
    return replace(printed, entries=(mimo.with_method(mimo.method, **settings),), silent=text)


def _masksembles_cifar() -> PaperRecipe:
    """Makes the recipe of Table 1 of the Masksembles paper."""
    recipe = Recipe(
        epochs=200, batch=128, lr=0.1, nesterov=True, weight_decay=5e-4, schedule="multistep", milestones=(60, 120, 160),
        decay=0.2, augment=Augment(crop=4, fill="reflect", flip=True),
    )  # fmt: skip
    single = Entry(method=Single(), recipe=recipe, model="wideresnet16_4", arguments={"classes": 10})
    return PaperRecipe(
        entries=(
            single,
            single.with_method(MCDropout(members=4, p=0.1, position="layers", filterwise=True)),
            single.with_method(Masksembles(members=4, scale=1.55, width="grow")),
            single.with_method(Deep(members=4), batches="own"),
        ),
        source="Masksembles, §4.2, by Wide Residual Networks (Zagoruyko and Komodakis, 2016)",
        data="CIFAR-10",
        decay="torch's, as in the code of Wide Residual Networks",
        silent="No number is printed: the paper refers to the network's authors, whose settings these are. S and M of Table 1 "
        "are not printed either: with M that of the network, S = 1.55 gives the printed 2.3 times its size, as other pairs do. "
        "Dropout is of whole channels, as masks are: §3.3 says that MC-Dropout can do so, not that it does.",
        detection="uncertainty of the prediction, SVHN",
    )


def _masksembles_imagenet() -> PaperRecipe:
    """Makes the recipe of Table 2 of the Masksembles paper."""
    recipe = Recipe(
        epochs=130, batch=256, lr=0.1, weight_decay=1e-4, schedule="multistep", milestones=(30, 60, 90, 120), augment=FLIP
    )
    single = Entry(method=Single(), recipe=recipe, model="resnet50", arguments=IMAGENET)
    late = {"keep": ("conv1", "layer1", "layer2", "fc")}
    return PaperRecipe(
        entries=(
            single,
            single.with_method(MCDropout(members=4, position="layers", filterwise=True), conversion=late),
            *(single.with_method(Masksembles(members=4, scale=scale), conversion=late) for scale in (1.21, 2.17, 3.0)),
            single.with_method(Deep(members=4), batches="own"),
        ),
        source="Masksembles, §4.3, by Pitfalls of In-Domain Uncertainty Estimation (Ashukha et al., 2020)",
        data="ImageNet",
        decay="torch's, as in the code of Ashukha and others",
        silent="No number is printed: the paper refers to Ashukha et al., whose settings these are, with random resized crops "
        "and flips. Masks and dropout stand before convolutions from the third stage on: layer3, layer4 and their shortcuts. "
        "The scales follow from the overlaps of Table 2, 0.7, 0.3 and 0.2, by IoU = 1 / (2 S − 1). The dropout rate is tuned "
        "and not stated: 0.1 here, of whole channels.",
        train=TRAIN,
        test=TEST,
    )


PATCHED = Recipe(epochs=100, batch=256, lr=1e-3, optimizer="adam")
PENALTY = 0.001
"""Appendix C.1's λ times the batch."""


def _emp(
    recipe: Recipe, data: str, model: str, arguments: Mapping[str, Any], silent: str, where: str, **images: Any
) -> PaperRecipe:
    """Makes a recipe of the EMP paper. The penalty is in the loss of EMP and ECMP, and is weight decay for baselines."""
    emp = Entry(method=EMP(members=200), recipe=recipe, model=model, arguments=arguments)
    only = (EMP(members=200, patch="norm"), ECMP(members=200, patch="norm")) if data == "ImageNet" else ()
    plain = (Single(), MCDropout(members=200, p=0.005, position="norm"))
    return PaperRecipe(
        entries=(
            emp, *(emp.with_method(method) for method in (ECMP(members=200), *only)),
            *(emp.with_method(method, weight_decay=2 * PENALTY / recipe.batch) for method in plain),
        ),
        source=f"Ensemble Model Patching, §5, appendices C.1 and {where}", data=data,
        decay=f"λ ‖w‖² with λ = 0.001 / {recipe.batch}, in the loss of EMP and ECMP; as weight decay for the others",
        silent=f"Adam at its defaults, the last epoch. {silent} Whether the baselines have the penalty is not stated.",
        **images,
    )  # fmt: skip


def _emp_regression() -> PaperRecipe:
    """Makes the recipe of Table 12 of the EMP paper."""
    patched: dict[str, Any] = {"patch": "norm", "gamma": 0.2, "tau_output": 0.1, "prior": "none"}
    many = {"draws": 10_000, "moments_only": True, "tau_output": 0.1}
    emp = Entry(
        method=EMP(**patched),
        recipe=replace(PATCHED, epochs=4000, batch=100, weight_decay=0.01),
        model="emp_regression",
        conversion={"task": "regression"},
        prediction=many,
    )
    return PaperRecipe(
        entries=(
            emp,
            emp.with_method(ECMP(**patched)),
            emp.with_method(MCDropout(p=0.005), arguments={"norm": "none", "dropout": 0.005}),
            emp.with_method(Deep(members=5), arguments={"norm": "none"}, prediction={"tau_output": 0.1}, batches="own"),
        ),
        source="Ensemble Model Patching, appendix D.7",
        data="UCI",
        decay="0.01, read as torch's, on all components, in place of the prior",
        silent="Adam at its defaults, the last epoch. The convention of the decay of 0.01 is not stated. EMP and ECMP patch "
        "BatchNorm; for dropout it is replaced by dropout after the input and the hidden layer; the explicit ensemble has "
        "neither. Networks need inputs=, the dataset's features, for Protein and Year hidden=100, for Energy and Naval "
        "outputs=2. Data: `data.uci(name, split, standardise='inputs')`, with targets=2 for Energy and Naval: the tables show "
        "that τ is in the targets' own units.",
    )


MIMO_10, MIMO_100, MIMO_IMAGENET = _mimo_cifar("CIFAR-10"), _mimo_cifar("CIFAR-100"), _mimo_imagenet()
TO_A_FIFTH = "the rate falls to a fifth."
WRN: dict[str, Any] = {"bias": True, "late_stride": True}

RECIPES: dict[str, PaperRecipe] = {
    "packed/cifar10-resnet18": _packed("CIFAR-10", "resnet18", SHORT, NESTEROV),
    "packed/cifar10-resnet50": _packed("CIFAR-10", "resnet50", LONG, NESTEROV),
    "packed/cifar10-wideresnet28-10": _packed(
        "CIFAR-10", "wideresnet28_10", LONG, f"{WRN_10} {NESTEROV}",
        changes={"arguments": {"bias": False}, "conversion": {"at": EVERYWHERE}}, **WRN,
    ),
    "packed/cifar100-resnet18": _packed("CIFAR-100", "resnet18", replace(SHORT, lr=0.1, nesterov=True), PUBLISHED),
    "packed/cifar100-resnet50": _packed("CIFAR-100", "resnet50", LONG, NESTEROV),
    "packed/cifar100-wideresnet28-10": _packed(
        "CIFAR-100", "wideresnet28_10", replace(LONG, augment=MEDIUM), f"{WRN_100} {NESTEROV}",
        packed=replace(PACKED, gamma=1), changes={"arguments": {"bias": False}}, **WRN,
    ),
    "packed/imagenet-a3-resnet50": _a3("resnet50", 3, {}, **IMAGENET),
    "packed/imagenet-a3-resnet50x4": _a3("resnet50x4", 2, {"batch": 1120}),
    "mimo/cifar10": MIMO_10,
    "mimo/cifar10-reference": _reference(MIMO_10, TO_A_FIFTH, batch=128, decay=0.2),
    "mimo/cifar100": MIMO_100,
    "mimo/cifar100-reference": _reference(MIMO_100, TO_A_FIFTH, batch=128, decay=0.2),
    "mimo/imagenet": MIMO_IMAGENET,
    "mimo/imagenet-reference": _reference(MIMO_IMAGENET, "the rate is 0.1 per 256 of these.", batch=2048, lr=0.8),
    "masksembles/cifar10": _masksembles_cifar(),
    "masksembles/imagenet": _masksembles_imagenet(),
    "emp/imagenet": _emp(
        replace(PATCHED, augment=FLIP), "ImageNet", "resnet18", IMAGENET,
        "Images are cropped and resized to 224 at random; the ranges are not stated, nor flips.", "D.3", train=TRAIN, test=TEST,
    ),
    "emp/cifar100": _emp(
        replace(PATCHED, epochs=400, augment=CROP), "CIFAR-100", "pyramidnet110_270", {"classes": 100},
        "The crop's padding is not stated.", "D.5",
    ),
    "emp/regression": _emp_regression(),
}  # fmt: skip
"""The papers' recipes by name."""

ABSENT: dict[str, str] = {
    "packed/uci": "the supplement's appendix N gives neither epochs nor an optimiser",
    "emp/mlp": "the network of 100 layers in Table 3, models.emp_mlp(), is counted there and never trained",
}
"""Recipes that are missing, and why."""


def recipe(name: str) -> Recipe:
    """Returns the recipe of a paper's first entry: `recipe("packed/cifar10-resnet18")`. docs/recipes.md lists all names."""
    return find(name).recipe


def find(name: str) -> PaperRecipe:
    """Returns a paper's recipe with its source and entries: `find("mimo/cifar10").entries`."""
    from difflib import get_close_matches

    if name in ABSENT:
        raise InputError(f"recipe {name!r} is missing: {ABSENT[name]}. Build one with mt.Recipe(...)")
    if name not in RECIPES:
        near = get_close_matches(str(name), RECIPES, n=1, cutoff=0.0)
        raise InputError(f"there is no recipe {name!r}. Did you mean {near[0]!r}? There are {', '.join(RECIPES)}")
    return RECIPES[name]
