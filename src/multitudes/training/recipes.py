"""Recipes of the papers by name, each with its source, dataset, network and methods.

Laurent et al., "Packed-Ensembles for Efficient Uncertainty Estimation", ICLR 2023, https://arxiv.org/abs/2210.09184
Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, https://arxiv.org/abs/2010.06610
Durasov et al., "Masksembles for Uncertainty Estimation", CVPR 2021, https://arxiv.org/abs/2012.08334
Chang et al., "Ensemble Model Patching", 2019, https://arxiv.org/abs/1905.09453

`batch` counts the distinct examples of a step: MIMO(repeat=4) makes four rows of each. `weight_decay` is torch's: a paper's
penalty λ ‖w‖² is 2λ here, and λ/2 ‖w‖² is λ. It applies to all parameters that the method does not exempt. Learning rates are
meant for the method's `reduction`, the sum or the mean of members' losses. Recipes for ImageNet have no `augment`: the dataset
does the random resized crops.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from multitudes.data import Augment, RandAugment
from multitudes.errors import InputError
from multitudes.method import Method
from multitudes.methods import ECMP, EMP, MIMO, BatchEnsemble, Deep, Masksembles, MCDropout, MultiHead, Packed, Single, TreeNet
from multitudes.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class PaperRecipe:
    """A recipe of a paper, with its source, dataset, network and methods."""

    recipe: Recipe
    """The recipe for `fit`."""

    source: str
    """The paper and the place in it."""

    data: str
    """The training set."""

    model: str
    """The network, by its name in `multitudes.models`."""

    methods: tuple[Method, ...]
    """The methods that the paper trains by this recipe, with the paper's settings."""

    decay: str
    """How the source states weight decay; the recipe's `weight_decay` follows from it."""

    silent: str = ""
    """Settings that the source omits or contradicts, and our choice."""

    ood: str = ""
    """Score and dataset of the paper's out-of-distribution detection."""

    @property
    def reductions(self) -> dict[str, str]:
        """Reduction of the members' losses, by the method's name."""
        return {type(method).__name__: method.reduction for method in self.methods}

    @property
    def rows(self) -> int:
        """Number of rows in a step: examples times MIMO's `repeat`."""
        return self.recipe.batch * max(getattr(method, "repeat", 1) for method in self.methods)


CROP = Augment(crop=4, flip=True)
MEDIUM = Augment(
    crop=4, flip=True, mixup=0.5, cutmix=0.2, switch=0.5, rand_augment=RandAugment(magnitude=9, n=2, std=1), smoothing=0.1,
    classes=100,
)  # fmt: skip
"""The supplement's medium augmentation, for the hundred classes of CIFAR-100."""

SHORT = Recipe(
    epochs=75, batch=128, lr=0.05, momentum=0.9, weight_decay=5e-4, schedule="multistep", milestones=(25, 50), decay=0.1,
    precision="bf16", channels_last=True, augment=CROP,
)  # fmt: skip
LONG = replace(SHORT, epochs=200, lr=0.1, milestones=(60, 120, 160), decay=0.2)


def _packed(data: str, model: str, recipe: Recipe, *methods: Method) -> PaperRecipe:
    """Makes the recipe of one row of Table 4 of the Packed-Ensembles paper.

    Without `methods` it trains those of Table 1. BatchEnsemble on ResNet-50 has another learning rate, so its own recipe.
    """
    gamma = 1 if model == "wideresnet28_10" else 2
    return PaperRecipe(
        recipe=recipe,
        source="Packed-Ensembles, supplement, Table 4 and appendix B",
        data=data,
        model=model,
        methods=methods
        or (
            Single(), Deep(members=4), Packed(members=4, alpha=2, gamma=gamma),
            MIMO(members=4, rho=1.0, reduction="mean"),
            Masksembles(members=4, scale=2.0, position="after", feed="all"),
            *(() if model == "resnet50" else (BatchEnsemble(members=4),)),
        ),
        decay="torch's, as printed; none on BatchEnsemble's factors",
        silent="The table names flips only, but its numbers need the padded crop too. Precision, memory layout and the "
        "reduction of MIMO's losses are not stated; MIMO's row needs the mean. The epoch of the highest validation accuracy is "
        "kept, for Deep that of each member: best='members', batches='own'."
        + (" γ is the caption's; the printed parameter counts belong to γ = 2." if gamma == 1 else ""),
        ood="maximum softmax probability, SVHN",
    )  # fmt: skip


WIDE = Recipe(
    epochs=250, batch=512, lr=0.1, nesterov=True, weight_decay=6e-4, schedule="multistep", milestones=(100, 200, 225),
    decay=0.1, warmup=1.0, augment=Augment(crop=2, flip=True),
)  # fmt: skip
LARGE = replace(WIDE, epochs=150, batch=4096, weight_decay=2e-4, milestones=(50, 100, 133), warmup=5.0, augment=None)
RATE = "Momentum, warm-up and milestones are the reference code's; the paper gives the rate and its factor. "
PRINTED = RATE + "The reference code takes that rate for {per} distinct examples and scales it: {rate} for this batch."


def _mimo(recipe: Recipe, silent: str, *methods: Method) -> PaperRecipe:
    """Makes a recipe of the MIMO paper (appendix B), for CIFAR or ImageNet."""
    small = recipe.augment is not None
    loader = (
        "Crops and flips are not stated: these are the reference code's." if small else "Random resized crops are not stated."
    )
    scope = "on all parameters" if small else "in the paper on kernels and biases, not on norms; here on all parameters"
    return PaperRecipe(
        recipe=recipe,
        source="MIMO, appendix B",
        data="CIFAR-10, CIFAR-100" if small else "ImageNet",
        model="wideresnet28_10" if small else "resnet50",
        methods=methods,
        decay=f"L2 of {recipe.weight_decay / 2:g} ‖w‖², {scope}",
        silent=f"{silent} {loader}",
        ood="maximum softmax probability",
    )


CIFAR_AS_PRINTED, IMAGENET_AS_PRINTED = PRINTED.format(per=128, rate=0.4), PRINTED.format(per=256, rate=1.6)
PLAIN = (Single(), MCDropout(members=1, p=0.1), Deep(members=4))

PATCHED = Recipe(epochs=100, batch=256, lr=1e-3, optimizer="adam")
PENALTY = 0.001
"""Appendix C.1's λ times the batch."""


def _emp(recipe: Recipe, data: str, model: str, silent: str, *methods: Method) -> PaperRecipe:
    """Makes a recipe of the EMP paper. The penalty is in the loss of EMP and ECMP, and is weight decay for baselines."""
    penalty = f"λ ‖w‖² with λ = 0.001 / {recipe.batch}"
    decay = f"{penalty}, as weight decay" if recipe.weight_decay else f"{penalty}, in the loss of EMP and ECMP; no weight decay"
    where = "appendices C.1 and D.5" if data == "CIFAR-100" else "appendices C.1 and D.3"
    source = f"Ensemble Model Patching, §5, {where}"
    return PaperRecipe(
        recipe=recipe, source=source, data=data, model=model, methods=methods, decay=decay,
        silent=f"Adam at its defaults, the last epoch. {silent}",
    )  # fmt: skip


PATCHES = (EMP(members=200), ECMP(members=200))
BASELINES = (Single(), MCDropout(members=200, p=0.005, position="norm"))
UNSAID = "Whether the baselines have the penalty is not stated."
RESIZED = "Images are cropped and resized to 224 at random."

RECIPES: dict[str, PaperRecipe] = {
    "packed/cifar10-resnet18": _packed("CIFAR-10", "resnet18", SHORT),
    "packed/cifar10-resnet50": _packed("CIFAR-10", "resnet50", LONG),
    "packed/cifar10-resnet50-batchensemble": _packed(
        "CIFAR-10", "resnet50", replace(LONG, lr=0.08), BatchEnsemble(members=4)
    ),
    "packed/cifar10-wideresnet28-10": _packed("CIFAR-10", "wideresnet28_10", LONG),
    "packed/cifar100-resnet18": _packed("CIFAR-100", "resnet18", replace(SHORT, weight_decay=1e-4, decay=0.2)),
    "packed/cifar100-resnet50": _packed("CIFAR-100", "resnet50", LONG),
    "packed/cifar100-resnet50-batchensemble": _packed(
        "CIFAR-100", "resnet50", replace(LONG, lr=0.08), BatchEnsemble(members=4)
    ),
    "packed/cifar100-wideresnet28-10": _packed("CIFAR-100", "wideresnet28_10", replace(LONG, augment=MEDIUM)),
    "mimo/cifar": _mimo(WIDE, CIFAR_AS_PRINTED, MIMO(members=3, repeat=4)),
    "mimo/cifar-reference": _mimo(
        replace(WIDE, batch=128, decay=0.2),
        "As in the reference code: the printed batch of 512 counts rows, of 128 examples; the rate falls to a fifth.",
        MIMO(members=3, repeat=4),
    ),
    "mimo/cifar-baselines-200": _mimo(
        replace(WIDE, epochs=200, weight_decay=4e-4, milestones=(80, 160, 180)), CIFAR_AS_PRINTED, *PLAIN
    ),
    "mimo/cifar-baselines-250": _mimo(
        replace(WIDE, weight_decay=4e-4), CIFAR_AS_PRINTED, BatchEnsemble(members=4, lr_factor=0.5), MultiHead(members=3),
        TreeNet(members=3),
    ),
    "mimo/imagenet": _mimo(LARGE, IMAGENET_AS_PRINTED, MIMO(members=2, rho=0.6, repeat=2)),
    "mimo/imagenet-reference": _mimo(
        replace(LARGE, batch=2048, lr=0.8),
        "As in the reference code: the printed batch of 4096 counts rows, of 2048 examples; the rate is 0.1 per 256 of these.",
        MIMO(members=2, rho=0.6, repeat=2),
    ),
    "mimo/imagenet-baselines-90": _mimo(replace(LARGE, epochs=90, milestones=(30, 60, 80)), IMAGENET_AS_PRINTED, *PLAIN),
    "mimo/imagenet-baselines-135": _mimo(
        replace(LARGE, epochs=135, milestones=(45, 90, 120)), IMAGENET_AS_PRINTED, BatchEnsemble(members=4, lr_factor=0.25)
    ),
    "mimo/imagenet-baselines-150": _mimo(LARGE, IMAGENET_AS_PRINTED, MultiHead(members=3), TreeNet(members=2)),
    "masksembles/cifar10": PaperRecipe(
        recipe=Recipe(
            epochs=200, batch=128, lr=0.1, nesterov=True, weight_decay=5e-4, schedule="multistep", milestones=(60, 120, 160),
            decay=0.2, augment=Augment(crop=4, fill="reflect", flip=True),
        ),
        source="Masksembles, §4.2, by Wide Residual Networks (Zagoruyko and Komodakis, 2016)",
        data="CIFAR-10",
        model="wideresnet16_4",
        methods=(Single(), MCDropout(members=4, p=0.1, position="layers"), Masksembles(members=4), Deep(members=4)),
        decay="torch's, as in the code of Wide Residual Networks",
        silent="No number is printed: the paper refers to the network's authors, whose settings these are. Table 1's scale "
        "is not stated either: Fig. 7 tries S from 1 to 5 and widths from 0.3 to 2 times the network's.",
        ood="uncertainty of the prediction, SVHN",
    ),
    "masksembles/imagenet": PaperRecipe(
        recipe=Recipe(epochs=130, batch=256, lr=0.1, weight_decay=1e-4, schedule="multistep", milestones=(30, 60, 90, 120)),
        source="Masksembles, §4.3, by Pitfalls of In-Domain Uncertainty Estimation (Ashukha et al., 2020)",
        data="ImageNet",
        model="resnet50",
        methods=(Single(), MCDropout(members=4, position="layers"), Masksembles(members=4), Deep(members=4)),
        decay="torch's, as in the code of Ashukha et al.",
        silent="No number is printed: the paper refers to Ashukha et al., whose settings these are, with random resized crops "
        "and flips. Masks and dropout are placed before convolutions from the third stage on. Overlaps of 0.7, 0.3 and 0.2 "
        "are tried; the dropout rate is tuned, and not stated.",
    ),
    "emp/imagenet": _emp(
        PATCHED, "ImageNet", "resnet18", RESIZED, *PATCHES, EMP(members=200, patch="norm"), ECMP(members=200, patch="norm")
    ),
    "emp/imagenet-baselines": _emp(
        replace(PATCHED, weight_decay=2 * PENALTY / 256), "ImageNet", "resnet18", f"{RESIZED} {UNSAID}", *BASELINES
    ),
    "emp/cifar100": _emp(
        replace(PATCHED, epochs=400, augment=CROP), "CIFAR-100", "pyramidnet110_270", "The crop's padding is not stated.",
        *PATCHES,
    ),
    "emp/cifar100-baselines": _emp(
        replace(PATCHED, epochs=400, augment=CROP, weight_decay=2 * PENALTY / 256), "CIFAR-100", "pyramidnet110_270",
        f"The crop's padding is not stated. {UNSAID}", *BASELINES,
    ),
    "emp/regression": PaperRecipe(
        recipe=replace(PATCHED, epochs=4000, batch=100, weight_decay=0.01),
        source="Ensemble Model Patching, appendix D.7",
        data="UCI",
        model="emp_regression",
        methods=(
            EMP(members=10_000, patch="norm", gamma=0.2, tau_output=0.1, prior="none"),
            ECMP(members=10_000, patch="norm", gamma=0.2, tau_output=0.1, prior="none"),
            MCDropout(members=10_000, p=0.005), Deep(members=5),
        ),
        decay="0.01, read as torch's, on all components, in place of the prior",
        silent="Adam at its defaults, the last epoch. The convention of the decay of 0.01 is not stated. Dropout replaces "
        "BatchNorm; the explicit ensemble has neither.",
    ),
}  # fmt: skip
"""The papers' recipes by name."""

A3 = (
    "the supplement trains on ImageNet by the A3 procedure, which needs LAMB and binary cross-entropy. It belongs to the "
    "full-scale reproduction, and is missing because LAMB scales by whole tensors, which hold several members"
)
ABSENT: dict[str, str] = {
    "packed/imagenet-a3": A3,
    "packed/imagenet-a3-batchensemble": f"{A3}. BatchEnsemble further has the norm of gradients clipped to 0.0005",
    "packed/imagenet-a3-masksembles-resnet50x4": f"{A3}. Masksembles on ResNet-50×4 further has a batch of 1120",
    "packed/uci": "the supplement's appendix N gives neither epochs nor an optimiser",
}
"""Recipes that are missing, and why."""


def recipe(name: str) -> Recipe:
    """Returns a paper's recipe: `recipe("packed/cifar10-resnet18")`. docs/recipes.md lists all names."""
    return find(name).recipe


def find(name: str) -> PaperRecipe:
    """Returns a paper's recipe with its source and methods: `find("mimo/cifar").methods`."""
    from difflib import get_close_matches

    if name in ABSENT:
        raise InputError(f"recipe {name!r} is missing: {ABSENT[name]}. Build one with mt.Recipe(...)")
    if name not in RECIPES:
        near = get_close_matches(str(name), RECIPES, n=1, cutoff=0.0)
        raise InputError(f"there is no recipe {name!r}. Did you mean {near[0]!r}? There are {', '.join(RECIPES)}")
    return RECIPES[name]
