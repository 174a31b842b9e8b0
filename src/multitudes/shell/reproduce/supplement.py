"""Tables and figures of the supplement of Laurent et al., "Packed-Ensembles", ICLR 2023."""

from __future__ import annotations

from multitudes.shell.reproduce.item import Column, Item, Place, Scale, printed
from multitudes.shell.reproduce.packed import COLUMNS, LAST, METHODS, ROWS, SAME, SCORES, SOME, TEN

TABLE_5 = printed("""
row | Acc | ECE | AUPR
α = 1, γ = 1, M = 4 | 0.7872 | 0.0165 | 0.8969
α = 2, γ = 1, M = 4 | 0.8116 | 0.0203 | 0.8966
α = 3, γ = 1, M = 4 | 0.8187 | 0.0201 | 0.8825
α = 4, γ = 1, M = 4 | 0.8183 | 0.0230 | 0.8939
α = 1, γ = 2, M = 4 | 0.7857 | 0.0185 | 0.9024
α = 2, γ = 2, M = 4 | 0.8103 | 0.0295 | 0.9115
α = 3, γ = 2, M = 4 | 0.8186 | 0.0197 | 0.9127
α = 4, γ = 2, M = 4 | 0.8242 | 0.0190 | 0.9088
α = 2, γ = 4, M = 4 | 0.8119 | 0.0180 | 0.9066
α = 3, γ = 4, M = 4 | 0.8182 | 0.0236 | 0.9140
α = 4, γ = 4, M = 4 | 0.8225 | 0.0226 | 0.9229
""")
TABLE_6 = printed("""
row | AUPR, MSP | AUPR, ML | AUPR, Ent. | AUPR, MI | AUPR, v | AUC, MSP | AUC, ML | AUC, Ent. | AUC, MI | AUC, v
α = 2, γ = 1, M = 4 | 0.8952 ± 0.0132 | 0.9183 ± 0.0098 | 0.9105 ± 0.0138 | 0.8649 ± 0.0061 | 0.8404 ± 0.0071 | 0.8056 ± 0.0260 | 0.8562 ± 0.0194 | 0.8361 ± 0.0271 | 0.7711 ± 0.0064 | 0.7305 ± 0.0153
α = 3, γ = 1, M = 8 | 0.9055 ± 0.0034 | 0.9175 ± 0.0044 | 0.9152 ± 0.0035 | 0.9139 ± 0.0077 | 0.8746 ± 0.0056 | 0.8204 ± 0.0101 | 0.8421 ± 0.0115 | 0.8427 ± 0.0095 | 0.8312 ± 0.0135 | 0.7799 ± 0.0129
α = 4, γ = 2, M = 8 | 0.9153 ± 0.0012 | 0.9285 ± 0.0012 | 0.9260 ± 0.0016 | 0.9157 ± 0.0072 | 0.8827 ± 0.0033 | 0.8408 ± 0.0033 | 0.8665 ± 0.0027 | 0.8662 ± 0.0027 | 0.8402 ± 0.0116 | 0.7943 ± 0.0082
α = 6, γ = 4, M = 8 | 0.9149 ± 0.0071 | 0.9265 ± 0.0070 | 0.9237 ± 0.0066 | 0.9196 ± 0.0109 | 0.8842 ± 0.0102 | 0.8432 ± 0.0134 | 0.8621 ± 0.0144 | 0.8617 ± 0.0136 | 0.8468 ± 0.0163 | 0.7999 ± 0.0166
α = 8, γ = 1, M = 16 | 0.9141 ± 0.0057 | 0.9268 ± 0.0068 | 0.9252 ± 0.0060 | 0.9245 ± 0.0091 | 0.8931 ± 0.0072 | 0.8387 ± 0.0094 | 0.8607 ± 0.0114 | 0.8614 ± 0.0096 | 0.8513 ± 0.0120 | 0.8092 ± 0.0113
""")  # noqa: E501 a line for each printed row
TABLE_7 = printed("""
row | Acc | ECE | AUPR | IDMI | OODMI
R18, none | 71.70 ± 0.06 | 0.0497 ± 0.0013 | 87.32 ± 0.91 | 0 ± 0 | 0 ± 0
R18, ND | 75.79 ± 0.22 | 0.0365 ± 0.0044 | 89.53 ± 0.47 | 0.1945 | 0.4001
R18, DI | 76.20 ± 0.04 | 0.0419 ± 0.0006 | 89.54 ± 0.39 | 0.2011 | 0.4391
R18, DB | 76.06 ± 0.02 | 0.0434 ± 0.0011 | 88.70 ± 0.27 | 0.1987 | 0.4079
R18, ND DI | 76.10 ± 0.05 | 0.0424 ± 0.0004 | 88.65 ± 0.42 | 0.1995 | 0.4360
R18, ND DB | 76.19 ± 0.11 | 0.0433 ± 0.0010 | 88.87 ± 0.15 | 0.2032 | 0.4090
R18, DI DB | 76.14 ± 0.07 | 0.0437 ± 0.0008 | 89.21 ± 0.38 | 0.1943 | 0.4195
R18, ND DI DB | 76.29 ± 0.07 | 0.0445 ± 0.0006 | 89.00 ± 0.54 | 0.1954 | 0.4060
R50, none | 77.63 ± 0.23 | 0.0825 ± 0.0018 | 89.19 ± 0.65 | 0 ± 0 | 0 ± 0
R50, ND | 80.94 ± 0.10 | 0.0179 ± 0.0010 | 90.23 ± 0.62 | 0.1513 | 0.4022
R50, DI | 81.01 ± 0.06 | 0.0202 ± 0.0011 | 91.10 ± 0.39 | 0.1524 | 0.4088
R50, DB | 80.87 ± 0.10 | 0.0178 ± 0.0010 | 90.80 ± 0.30 | 0.1505 | 0.4115
R50, ND DI | 81.16 ± 0.10 | 0.0210 ± 0.0008 | 91.69 ± 0.56 | 0.1584 | 0.4135
R50, ND DB | 81.14 ± 0.07 | 0.0200 ± 0.0007 | 90.41 ± 0.39 | 0.1503 | 0.3897
R50, DI DB | 81.10 ± 0.05 | 0.0186 ± 0.0016 | 90.85 ± 0.29 | 0.1521 | 0.4034
R50, ND DI DB | 81.08 ± 0.08 | 0.0198 ± 0.0013 | 90.68 ± 0.25 | 0.1534 | 0.4031
""")
TABLE_8 = printed("""
row | f32, s/epoch | f32, im/s | f16, s/epoch | f16, im/s
Single Model | 37.06 | 3709 | 22.42 | 5718
Packed-Ensembles-(2,4,1) | 179.50 | 1381 | 51.20 | 3406
Packed-Ensembles-(2,4,2) | 175.10 | 1501 | 52.11 | 3440
Deep Ensembles | 145.30 | 1001 | 84.86 | 1609
MIMO | 37.90 | 3574 | 24.44 | 5649
BatchEnsemble | 58.78 | 1809 | 53.97 | 1916
""")
TABLE_9 = printed("""
row | Acc | NLL | ECE | AUPR | AUC | FPR95 | Params (M)
PE ResNet-50 | 96.0 | 0.1367 | 0.0087 | 97.1 | 94.9 | 14.5 | 23.6
ResNeXt-50 | 90.4 | 0.4604 | 0.0709 | 90.4 | 82.5 | 63.4 | 23.0
""")
TABLE_10 = printed("""
row | Params (M) | Mult-Adds (G)
Single Model, R50 | 25.6 | 4.09
BatchEnsemble, R50 | 25.7 | 16.36
MIMO, R50 | 31.7 | 4.45
Masksembles, R50 | 25.7 | 16.36
Packed-Ensembles, R50 | 59.1 | 9.29
Deep Ensembles, R50 | 102.4 | 16.36
Single Model, R50x4 | 383.6 | 70.0
BatchEnsemble, R50x4 | 384.4 | 256.0
MIMO, R50x4 | 408.3 | 65.4
Masksembles, R50x4 | 384.0 | 256.0
Packed-Ensembles, R50x4 | 392.0 | 64.47
Deep Ensembles, R50x4 | 1534.4 | 280.0
""")
TABLE_11 = printed("""
row | RMSE | NLL
Boston housing, Packed-Ensembles | 2.218 ± 0.099 | 2.028 ± 0.034
Boston housing, Deep Ensembles | 2.219 ± 0.098 | 2.047 ± 0.028
Concrete, Packed-Ensembles | 5.092 ± 0.225 | 2.854 ± 0.028
Concrete, Deep Ensembles | 5.167 ± 0.234 | 2.885 ± 0.032
Energy, Packed-Ensembles | 1.675 ± 0.085 | 1.543 ± 0.072
Energy, Deep Ensembles | 1.712 ± 0.067 | 1.553 ± 0.060
Kin8nm, Packed-Ensembles | 0.058 ± 0.003 | -1.442 ± 0.010
Kin8nm, Deep Ensembles | 0.058 ± 0.003 | -1.452 ± 0.010
Naval Propulsion Plant, Packed-Ensembles | 0.002 ± 0.000 | -4.835 ± 0.066
Naval Propulsion Plant, Deep Ensembles | 0.002 ± 0.000 | -4.833 ± 0.097
Power Plant, Packed-Ensembles | 3.127 ± 0.018 | 2.607 ± 0.007
Power Plant, Deep Ensembles | 3.097 ± 0.020 | 2.600 ± 0.007
Protein, Packed-Ensembles | 3.476 ± 0.030 | 2.472 ± 0.033
Protein, Deep Ensembles | 3.412 ± 0.017 | 2.442 ± 0.015
Wine, Packed-Ensembles | 0.482 ± 0.006 | 0.622 ± 0.014
Wine, Deep Ensembles | 0.483 ± 0.006 | 0.611 ± 0.013
Yacht, Packed-Ensembles | 1.949 ± 0.215 | 2.023 ± 0.075
Yacht, Deep Ensembles | 2.511 ± 0.283 | 2.023 ± 0.074
""")
SECTION_J = printed("""
row | sd of Acc
Single Model, C100, R50 | 0.68
Packed-Ensembles, C100, R50 | 0.19
Deep Ensembles, C100, R50 | 0.43
""")

SMOKE = f"SmallCNN; {TEN}"
SHORT = "ResNet-50 for 20 epochs in place of 200, one run"
FIVE = (0, 1, 2, 3, 4)
UNIT = {"Acc": Column("accuracy"), "ECE": Column("ece"), "AUPR": Column("ood/aupr_out/msp")}
CRITERIA = {"MSP": "msp", "ML": "max_logit", "Ent.": "entropy", "MI": "mutual_information", "v": "variation_ratio"}

GRID = sorted(
    {(a, g, 4) for a in (1, 2, 3, 4) for g in (1, 2, 4) if (a, g) != (1, 4)}
    | {(a, 1, m) for a in (1, 2, 3, 4) for m in (2, 4, 8) if a <= m}
    | {(2, g, m) for g in (1, 2, 4) for m in (2, 4, 8)}
    | {(3, 1, 8), (4, 2, 8), (6, 4, 8), (8, 1, 16)}
)
"""(α, γ, M) of Tables 5 and 6 and Fig. 6 and 7."""


def _grid(*kept: tuple[int, int, int]) -> dict[str, Place]:
    """Makes the rows of these settings."""
    chosen = kept or GRID
    return {f"α = {a}, γ = {g}, M = {m}": Place(f"pe-{a}-{m}-{g}", ("grid",)) for a, g, m in GRID if (a, g, m) in chosen}


def _ablation(beside: bool = True) -> dict[str, Scale]:
    """Makes the scales of the items that show rows of the grid."""
    rows = ("α = 2, γ = 1, M = 4",)
    return {
        "smoke": Scale(time="seconds", jobs=("grid",), rows=rows, beside=False, differs=f"{SMOKE}."),
        "small": Scale(time="hours", jobs=("grid",), beside=beside, differs=f"{SHORT}. {LAST}"),
        "full": Scale(time="days", jobs=("grid",), seeds=FIVE, beside=beside, differs=LAST),
    }


SOURCES = ("none", "ND", "DI", "DB", "ND DI", "ND DB", "DI DB", "ND DI DB")
WIDTHS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
NAMES = {
    "Boston housing": "bostonHousing", "Concrete": "concrete", "Energy": "energy", "Kin8nm": "kin8nm",
    "Naval Propulsion Plant": "naval-propulsion-plant", "Power Plant": "power-plant", "Protein": "protein-tertiary-structure",
    "Wine": "wine-quality-red", "Yacht": "yacht",
}  # fmt: skip
"""UCI sets by their names in the paper."""
SMALL_SETS = ("bostonHousing", "concrete", "energy", "wine-quality-red", "yacht")
SPLITS = {name: 5 if name.startswith("protein") else 20 for name in NAMES.values()}


def splits(names: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Returns the jobs of the first splits of datasets."""
    return tuple(f"{name}-{split}" for name in names for split in range(min(count, SPLITS[name])))


ITEMS = (
    Item(
        name="supplement/fig-5",
        title="the bound on the divergence of a layer with fewer weights",
        protocol="The bound (8) over the share p of weights that are kept, for several σ of the layer's units, with μ = ω = "
        "0.1. The number of inputs C_j, which the bound needs, is not printed, nor are the σ. No number is printed.",
        scales={
            "smoke": Scale(time="seconds", differs="C_j = 100 and σ = 0.3, 1, 3 are ours. The divergence is also simulated."),
            "small": Scale(time="seconds", differs="C_j = 100 and σ = 0.3, 1, 3 are ours. The divergence is also simulated."),
        },
        columns={name: Column(name) for name in ("bound", "divergence", "simulated")},
    ),
    Item(
        name="supplement/table-5",
        title="width α and groups γ of Packed-Ensembles",
        protocol="ResNet-50 on CIFAR-100, M = 4, as in Table 1. The number of runs is five in the text.",
        printed=TABLE_5, columns=UNIT, rows=_grid(*((a, g, 4) for a in (1, 2, 3, 4) for g in (1, 2, 4))), scales=_ablation(),
    ),
    Item(
        name="supplement/fig-6",
        title="accuracy and AUPR over M, for α",
        protocol="ResNet-50 on CIFAR-100. Neither γ nor the values of M are printed: γ = 1, M = 2, 4, 8 here. No number is "
        "printed.",
        columns=UNIT, rows=_grid(*((a, 1, m) for a in (1, 2, 3, 4) for m in (2, 4, 8))), source="supplement/table-5",
        scales=_ablation(beside=False), draws="draw_fig_6",
    ),
    Item(
        name="supplement/fig-7",
        title="accuracy and AUPR over M, for γ",
        protocol="ResNet-50 on CIFAR-100. Neither α nor the values of M are printed: α = 2, M = 2, 4, 8 here. No number is "
        "printed.",
        columns=UNIT, rows=_grid(*((2, g, m) for g in (1, 2, 4) for m in (2, 4, 8))), source="supplement/table-5",
        scales=_ablation(beside=False), draws="draw_fig_7",
    ),
    Item(
        name="supplement/table-6",
        title="five criteria of OOD detection",
        protocol="Packed-Ensembles on CIFAR-100, SVHN out of distribution. The network is not named: ResNet-50, as in Table 5. "
        "What stands behind ± is not said: our ± is the standard deviation over runs.",
        printed=TABLE_6,
        columns={
            f"{name}, {short}": Column(f"ood/{kind}/{criterion}")
            for name, kind in (("AUPR", "aupr_out"), ("AUC", "auroc")) for short, criterion in CRITERIA.items()
        },
        rows=_grid((2, 1, 4), (3, 1, 8), (4, 2, 8), (6, 4, 8), (8, 1, 16)), source="supplement/table-5", scales=_ablation(),
    ),
    Item(
        name="supplement/table-7",
        title="sources of differences between members",
        protocol="Packed-Ensembles on CIFAR-100 with ND, non-deterministic algorithms, DI, different initialisations, and DB, "
        "different batches, on or off; standard errors over five runs. α and γ are not named: those of Table 1.",
        printed=TABLE_7,
        columns={
            "Acc": Column("accuracy", 100, "error"), "ECE": Column("ece", 1, "error"),
            "AUPR": Column("ood/aupr_out/msp", 100, "error"), "IDMI": Column("mean_mutual_information"),
            "OODMI": Column("ood/mean_mutual_information"),
        },
        rows={
            f"{net}, {source}": Place(source.replace(" ", "-").lower(), (job,))
            for net, job in (("R18", "resnet18"), ("R50", "resnet50")) for source in SOURCES
        },
        scales={
            "smoke": Scale(
                time="seconds", jobs=("resnet18",), rows=("R18, none", "R18, DI", "R18, DB"), beside=False, differs=f"{SMOKE}.",
            ),
            "small": Scale(time="hours", jobs=("resnet18",), differs="ResNet-18 alone, all 75 epochs, one run. In "
            "full precision, not compiled: the paper says that the effect of ND depends on the precision, not which it used. "
            f"{LAST}"),
            "full": Scale(
                time="days", jobs=("resnet18", "resnet50"), seeds=FIVE,
                differs="In full precision: the paper says that the effect of ND depends on the precision, not which it used. "
                f"{LAST}",
            ),
        },
    ),
    Item(
        name="supplement/fig-8",
        title="accuracy and AUPR over the width",
        protocol="ResNet-18 and ResNet-50 on CIFAR-100, all widths times a factor. The factors are not printed: 0.25 to 2 "
        "here. No number is printed.",
        columns={"Acc": Column("accuracy", 100), "AUPR": Column("ood/aupr_out/msp", 100)},
        rows={
            f"{net}, width {w:g}": Place(f"{job}-{w:g}", (job,))
            for net, job in (("R18", "resnet18"), ("R50", "resnet50")) for w in WIDTHS
        },
        scales={
            "smoke": Scale(
                time="seconds", jobs=("resnet18",), rows=("R18, width 0.5", "R18, width 1"), beside=False, differs=f"{SMOKE}.",
            ),
            "small": Scale(time="hours", jobs=("resnet18",), differs=f"ResNet-18 alone, one run of 30 epochs. {LAST}"),
            "full": Scale(time="days", jobs=("resnet18", "resnet50"), seeds=FIVE, differs=LAST),
        },
        draws="draw_fig_8",
    ),
    Item(
        name="supplement/table-8",
        title="seconds per epoch and images per second",
        protocol="ResNet-50 on CIFAR-100 on an RTX 3090 with torch 1.12, in 32 and 16 bits. The batch is not named: 128 as in "
        "training.",
        printed=TABLE_8,
        columns={name: Column(name) for name in TABLE_8.columns},
        scales={
            "smoke": Scale(time="seconds", beside=False, differs="SmallCNN, batches of 16, bfloat16 in place of float16."),
            "small": Scale(
                time="minutes",
                differs="Another device, another torch; an epoch is the time of a step times the number of batches. On a CPU"
                " 16 bits are bfloat16.",
            ),
        },
    ),
    Item(
        name="supplement/fig-9",
        title="six methods on corrupted CIFAR-100",
        protocol="Accuracy and ECE of networks of Table 1 on CIFAR-100-C by severity. The network is not named: ResNet-50 at "
        "full, ResNet-18 at small. No number is printed.",
        columns={"Acc": Column("accuracy", 100), "ECE": Column("ece"), "cAcc": Column("cAcc", 100), "cECE": Column("cECE")},
        rows={label: place for label, place in ROWS.items()
              if label.startswith(tuple(METHODS)) and ("C100, R" in label or "C10, R18" in label)},
        source="packed/table-1",
        scales={
            "smoke": Scale(time="seconds", jobs=("cifar10-resnet18",), rows=SOME, beside=False, differs=f"{SMOKE}."),
            "small": Scale(
                time="hours", jobs=("cifar100-resnet18",), beside=False,
                differs="ResNet-18, one run; corruptions are generated, for 1,000 images, and are not the published files. "
                f"{SAME} {LAST}",
            ),
            "full": Scale(time="days", jobs=("cifar100-resnet50",), seeds=FIVE, beside=False, differs=LAST),
        },
        draws="draw_fig_9",
    ),
    Item(
        name="supplement/table-9",
        title="grouped convolutions alone: ResNeXt-50",
        protocol="Packed-Ensembles of ResNet-50 and one ResNeXt-50 32×4d on CIFAR-10, as in Table 1. The count is that of α "
        "= 2, γ = 1.",
        printed=TABLE_9,
        columns=COLUMNS,
        rows={"PE ResNet-50": Place("packed", ("cifar10",)), "ResNeXt-50": Place("resnext", ("cifar10",))},
        scales={
            "smoke": Scale(time="seconds", jobs=("cifar10",), rows=("PE ResNet-50",), beside=False, differs=f"{SMOKE}."),
            "small": Scale(time="hours", jobs=("cifar10",), differs=f"20 epochs in place of 200, one run. {LAST}"),
            "full": Scale(time="days", jobs=("cifar10",), seeds=FIVE, differs=LAST),
        },
    ),
    Item(
        name="supplement/table-10",
        title="parameters and multiply-adds on ImageNet",
        protocol="Counts of the networks of Table 2 by torchinfo, M = 4, γ = 1. MIMO's first layer is as wide as M inputs in"
        " the paper; ours sums M first layers at prediction, which is the same work with one input: the wide one is "
        "counted here.",
        printed=TABLE_10,
        columns={name: Column(name) for name in TABLE_10.columns},
        scales={
            "smoke": Scale(time="seconds", differs="ResNet-50 alone."),
            "small": Scale(time="seconds"),
        },
        misses="BatchEnsemble and Masksembles share the first convolution's work, or own factors, otherwise than the "
        "authors' code. Deep Ensembles in the paper are four times a rounded count. For ResNet-50x4 the paper prints 70.0 "
        "G for the single network, 280.0 G for four and 256.0 G for BatchEnsemble and Masksembles: 256.0 is four times our"
        " 64.0.",
    ),
    Item(
        name="supplement/section-j",
        title="how much accuracy differs from run to run",
        protocol="Standard deviation of the accuracy in percent over five runs, ResNet-50 on CIFAR-100.",
        printed=SECTION_J,
        columns={"sd of Acc": Column("accuracy", 100, "sd"), "Acc": SCORES["Acc"]},
        rows={label: place for label, place in ROWS.items() if label in SECTION_J.rows or label in SOME
              or (label.startswith(("Single", "Packed", "Deep")) and "C100, R18" in label)},
        source="packed/table-1",
        scales={
            "smoke": Scale(
                time="seconds", jobs=("cifar10-resnet18",), rows=SOME[:2], seeds=(0, 1), beside=False, differs=f"{SMOKE}.",
            ),
            "small": Scale(
                time="hours", jobs=("cifar100-resnet18",), seeds=(0, 1, 2), differs=f"ResNet-18 in place of ResNet-50, three "
                f"runs. {SAME} {LAST}",
            ),
            "full": Scale(time="days", jobs=("cifar100-resnet50",), seeds=FIVE, differs=LAST),
        },
    ),
    Item(
        name="supplement/table-11",
        title="regression on UCI sets",
        protocol="One hidden layer of 200 units, 400 for Protein, mean and variance as outputs; Packed-Ensembles-(2, 3, 1) and "
        "Deep Ensembles. The NLL is that of the Gaussian with the mixture's moments. Neither epochs nor optimiser nor the "
        "number of networks in Deep Ensembles are printed, nor what stands behind ±: ours is the standard error over splits.",
        printed=TABLE_11,
        columns={"RMSE": Column("rmse", 1, "error"), "NLL": Column("gaussian_nll", 1, "error")},
        misses="Epochs and optimiser are ours. Our NLL is higher on Boston, Concrete and Wine, where 40 epochs without "
        "regularisation fit the training set too closely, and lower on Yacht and Energy. The RMSE is higher on Boston and "
        "Wine, by five splits of twenty; on Wine, Table 12 of EMP also prints 0.60 or more, not 0.48. Packed-Ensembles are"
        " within two standard errors of Deep Ensembles on all five sets, in both scores, as in the paper.",
        rows={
            f"{label}, {method}": Place(row, splits((name,), 20))
            for label, name in NAMES.items() for method, row in (("Packed-Ensembles", "packed"), ("Deep Ensembles", "deep"))
        },
        scales={
            "smoke": Scale(
                time="seconds", jobs=("yacht-0",), rows=("Yacht, Packed-Ensembles",), beside=False, differs="One split, 5 "
                "epochs.",
            ),
            "small": Scale(
                time="minutes", jobs=splits(SMALL_SETS, 5),
                differs="Five splits of the five smallest sets. Ours: Adam at 0.01 with a cosine, batches of 32, 40 epochs, "
                "three networks in Deep Ensembles.",
            ),
            "full": Scale(
                time="hours", jobs=splits(tuple(NAMES.values()), 20),
                differs="Ours: Adam at 0.01 with a cosine, batches of 32, 40 epochs, three networks in Deep Ensembles.",
            ),
        },
    ),
)  # fmt: skip
