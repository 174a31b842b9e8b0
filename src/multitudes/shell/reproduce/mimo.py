"""Tables and figures of Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021."""

from __future__ import annotations

from multitudes.shell.reproduce.item import Column, Item, Place, Scale, printed

TABLE_1 = printed("""
row | Accuracy | NLL | ECE | cAcc | cNLL | cECE | Prediction time (ms) | Forward passes
Deterministic | 96 | 0.159 | 0.023 | 76.1 | 1.050 | 0.153 | 0.632 | 1
Dropout | 95.9 | 0.160 | 0.024 | 68.8 | 1.270 | 0.166 | 0.656 | 1
Naive multihead (M = 3) | 95.9 | 0.161 | 0.022 | 76.6 | 0.969 | 0.144 | 0.636 | 1
MIMO (M = 3) | 96.4 | 0.123 | 0.010 | 76.6 | 0.927 | 0.112 | 0.639 | 1
TreeNet (M = 3) | 95.9 | 0.158 | 0.018 | 75.5 | 0.969 | 0.137 | 0.961 | 1.5
BatchEnsemble (M = 4) | 96.2 | 0.143 | 0.021 | 77.5 | 1.020 | 0.129 | 2.552 | 4
Thin Ensemble (M = 4) | 96.3 | 0.115 | 0.008 | 77.2 | 0.840 | 0.089 | 0.823 | 4
Ensemble (M = 4) | 96.6 | 0.114 | 0.010 | 77.9 | 0.810 | 0.087 | 2.536 | 4
""")
TABLE_2 = printed("""
row | Accuracy | NLL | ECE | cAcc | cNLL | cECE | Prediction time (ms) | Forward passes
Deterministic | 79.8 | 0.875 | 0.086 | 51.4 | 2.700 | 0.239 | 0.632 | 1
Dropout | 79.6 | 0.830 | 0.050 | 42.6 | 2.900 | 0.202 | 0.656 | 1
Naive multihead (M = 3) | 79.5 | 0.834 | 0.048 | 52.1 | 2.339 | 0.156 | 0.636 | 1
MIMO (M = 3) | 82.0 | 0.690 | 0.022 | 53.7 | 2.284 | 0.129 | 0.639 | 1
TreeNet (M = 3) | 80.8 | 0.777 | 0.047 | 53.5 | 2.295 | 0.176 | 0.961 | 1.5
BatchEnsemble (M = 4) | 81.5 | 0.740 | 0.056 | 54.1 | 2.490 | 0.191 | 2.552 | 4
Thin Ensemble (M = 4) | 81.5 | 0.694 | 0.017 | 53.7 | 2.190 | 0.111 | 0.823 | 4
Ensemble (M = 4) | 82.7 | 0.666 | 0.021 | 54.1 | 2.270 | 0.138 | 2.536 | 4
""")
TABLE_3 = printed("""
row | Accuracy | NLL | ECE | cAcc | cNLL | cECE | Prediction time (ms) | Forward passes
Deterministic | 76.100 | 0.943 | 0.039 | 40.500 | 3.200 | 0.105 | 0.640 | 1
Naive multihead (M = 3) | 76.611 | 0.929 | 0.043 | 40.616 | 3.250 | 0.122 | 0.638 | 1
MIMO (M = 2) (ρ = 0.6) | 77.500 | 0.887 | 0.037 | 43.300 | 3.030 | 0.106 | 0.635 | 1
TreeNet (M = 2) | 78.139 | 0.852 | 0.017 | 42.420 | 3.052 | 0.073 | 0.848 | 1.5
BatchEnsemble (M = 4) | 76.700 | 0.944 | 0.049 | 41.800 | 3.180 | 0.110 | 2.592 | 4
Ensemble (M = 4) | 77.500 | 0.877 | 0.031 | 42.100 | 2.990 | 0.051 | 2.624 | 4
Wide Deterministic | 77.885 | 0.938 | 0.072 | 45.000 | 3.100 | 0.150 | 1.674 | 1
Wide MIMO (M = 2) (ρ = 0.6) | 79.300 | 0.843 | 0.061 | 45.791 | 3.048 | 0.147 | 1.706 | 1
""")
TABLE_4 = printed("""
row | NLL | Acc | ECE | NLL (C) | Acc (C) | ECE (C) | mCE | NLL (A) | Acc (A) | ECE (A) | NLL (V2) | Acc (V2) | ECE (V2) | Vid-Robust | YTTB-Robust | ObjectNet
Deterministic | 0.939 | 76.2 | 0.032 | 3.21 | 40.5 | 0.103 | 75.4 | 8.09 | 0.7 | 0.425 | 1.58 | 64.4 | 0.074 | 29.9 | 21.7 | 25.9
MIMO (M = 2) (ρ = 0.6) | 0.887 | 77.5 | 0.037 | 3.03 | 43.3 | 0.106 | 71.7 | 7.76 | 1.4 | 0.432 | 1.51 | 65.7 | 0.084 | 31.8 | 22.2 | 28.1
Wide MIMO (M = 2) (ρ = 0.6) | 0.843 | 79.3 | 0.061 | 3.1 | 45.0 | 0.150 | 69.6 | 7.52 | - | 0.46 | 1.49 | 67.9 | 0.109 | 35.3 | 22.9 | 29.5
""")  # noqa: E501 a line for each printed row

METHODS = {
    "Deterministic": "single", "Dropout": "dropout", "Naive multihead (M = 3)": "multihead", "MIMO (M = 3)": "mimo",
    "TreeNet (M = 3)": "treenet", "BatchEnsemble (M = 4)": "batchensemble", "Thin Ensemble (M = 4)": "thin",
    "Ensemble (M = 4)": "deep",
}  # fmt: skip
COLUMNS = {
    "Accuracy": Column("accuracy", 100), "NLL": Column("nll"), "ECE": Column("ece"), "cAcc": Column("cAcc", 100),
    "cNLL": Column("cNLL"), "cECE": Column("cECE"), "Prediction time (ms)": Column("measured/none"),
    "Forward passes": Column("measured/none"),
}  # fmt: skip
DIVERSITY = {"disagreement": Column("disagreement"), "kl_diversity": Column("kl_diversity")}
BOTH = {
    "accuracy": Column("accuracy"), "member accuracy": Column("member_accuracy"), "NLL": Column("nll"),
    "member NLL": Column("member_nll"),
}  # fmt: skip
SMOKE = "SmallCNN on 512 images of clothes for one epoch"
TPU = "Prediction times are of a TPU core, and are not compared, nor are forward passes."
CORRUPTED = ("cAcc", "cNLL", "cECE")
MEMBERS = (1, 2, 3, 4, 5)
RHOS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
REPEATS = (1, 2, 3, 4, 5)
L1 = (0.0, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4)
L2 = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
CAPACITY = "M = 1, 2, 3, 4 and the strengths are ours: the figure's are not in the text."


def _paths(kind: str, strengths: tuple[float, ...]) -> dict[str, Place]:
    """Makes the rows of a regularisation path."""
    return {
        f"{data}, M = {m}, {kind} = {s:g}": Place(f"m{m}-{s:g}", (f"{job}-{kind.lower()}",))
        for data, job in (("C10", "cifar10"), ("C100", "cifar100")) for m in (1, 2, 3, 4) for s in strengths
    }  # fmt: skip


def _capacity(kind: str, rows: tuple[str, ...]) -> dict[str, Scale]:
    """Makes the scales of a regularisation path."""
    jobs = tuple(f"{job}-{kind.lower()}" for job in ("cifar10", "cifar100"))
    return {
        "smoke": Scale(time="seconds", jobs=jobs[:1], rows=rows, beside=False, differs=f"{SMOKE}."),
        "small": Scale(time="hours", jobs=jobs[:1], differs=f"WideResNet-16-4 for 20 epochs on CIFAR-10, one run. {CAPACITY}"),
        "full": Scale(time="days", jobs=jobs, seeds=(0, 1, 2), differs=CAPACITY),
    }


def _cifar(number: int, job: str, numbers: object) -> Item:
    """Makes Table 1 or 2."""
    return Item(
        name=f"mimo/table-{number}",
        title=f"eight methods on {'CIFAR-10' if number == 1 else 'CIFAR-100'}",
        protocol=f"WideResNet-28-10; c means CIFAR-C, averaged over corruptions and severities. {TPU}",
        printed=numbers,  # type: ignore[arg-type]
        columns={**COLUMNS, **DIVERSITY},
        rows={label: Place(row, (job,)) for label, row in METHODS.items()},
        scales={
            "smoke": Scale(
                time="seconds", jobs=(job,), rows=("Deterministic", "Naive multihead (M = 3)", "MIMO (M = 3)"), beside=False,
                differs=f"{SMOKE}; corruptions are generated.",
            ),
            "small": Scale(
                time="hours", jobs=(job,), apart=CORRUPTED,
                differs="20 epochs in place of 200 or 250, one run; corruptions are generated, for 1,000 images, and are not"
                " the published files.",
            ),
            "full": Scale(time="days", jobs=(job,), seeds=(0, 1, 2), differs="docs/recipes.md says what the paper omits."),
        },
    )  # fmt: skip


ITEMS = (
    Item(
        name="mimo/fig-2",
        title="bias and variance over M, for a function of one variable",
        protocol="A network with hidden layers of 32 and 128 units learns the noisy function of Blundell et al. from 64 "
        "points; test error, squared bias and variance over training sets, M = 1 to 5. Training and number of sets are not"
        " in the text. No number is printed.",
        scales={
            "smoke": Scale(time="seconds", differs="M = 1, 3; four training sets of 8 points, 150 epochs."),
            "small": Scale(time="minutes", differs="Ten training sets; ours: Adam at 0.01 with a cosine, batches of 32, 1,500 "
            "epochs."),
        },
        columns={
            name: Column(name)
            for name in ("bias", "variance", "error", "member bias", "member variance", "member error")
        },
        misses="In the paper several members have a lower variance and a lower error than one. Here both are lowest at M = "
        "2. The ensemble's variance is below its members' at every M, but that of members rises from M = 3 on, and so does"
        " the bias: a network of this size, trained as long as with M = 1, fits several functions less well (inferred, not"
        " tested). With few training points, as at smoke, the variance falls with M.",
    ),
    Item(
        name="mimo/fig-3",
        title="landscapes of MIMO and of naive multihead",
        protocol="SmallCNN on CIFAR-10, M = 3: accuracy, and disagreement with each subnetwork, over the plane through the "
        "three in weight space. First and last layers move for MIMO, last layers for multihead. What the other slots see "
        "while one subnetwork moves is not said: here other examples, as in training. Accuracy and disagreement of the "
        "ensemble are of all test images, those of the plane of the first 2,000. No number is printed.",
        scales={
            "smoke": Scale(time="seconds", differs="1,000 images of clothes, 4 epochs, a grid of 5 × 5."),
            "small": Scale(time="minutes", differs="Training is not in the text: ours is Adam at 0.001 for 20 epochs, in full "
            "precision."),
        },
        columns={name: Column(name) for name in ("accuracy", "accuracy of members", "accuracy at the middle", "disagreement")},
    ),
    Item(
        name="mimo/fig-4",
        title="subnetworks: conditional variances, trajectories, diversity",
        protocol="Conditional variances of pre-activations by input (WideResNet-28-10, M = 2 and 3), t-SNE of predictions "
        "during training (SmallCNN, M = 3), and diversity of methods (WideResNet-28-10) on CIFAR-10. No number is printed.",
        scales={
            "smoke": Scale(time="seconds", differs="SmallCNN for all, 1,000 images of clothes, 4 epochs."),
            "small": Scale(time="minutes", differs="SmallCNN for all; Adam at 0.001 for 20 epochs, in full precision."),
            "full": Scale(
                time="days", jobs=("cifar10",), rows=tuple(label for label in METHODS if "M =" in label),
                differs="Diversity alone, of the networks of Table 1.",
            ),
        },
        columns={**DIVERSITY, "share of the larger variance": Column("share of the larger variance")},
        rows={label: Place(row, ("cifar10",)) for label, row in METHODS.items() if "M =" in label},
        source="mimo/table-1",
    ),
    Item(
        name="mimo/fig-5",
        title="ensemble and subnetworks over M",
        protocol="WideResNet-28-10 on CIFAR-10 and CIFAR-100, M = 1 to 5: accuracy and log-likelihood of the ensemble and of "
        "subnetworks. No number is printed.",
        columns=BOTH,
        rows={f"{data}, M = {m}": Place(f"m{m}", (job,)) for data, job in (("C10", "cifar10"), ("C100", "cifar100"))
              for m in MEMBERS},
        scales={
            "smoke": Scale(time="seconds", jobs=("cifar10",), rows=("C10, M = 1", "C10, M = 2"), differs=f"{SMOKE}."),
            "small": Scale(
                time="hours", jobs=("cifar10", "cifar100"), differs="WideResNet-16-4, 20 epochs, no repetition of examples, "
                "one run.",
            ),
            "full": Scale(
                time="days", jobs=("cifar10", "cifar100"), seeds=(0, 1, 2), differs="docs/recipes.md says what the paper "
                "omits.",
            ),
        },
        misses="In the paper the ensemble is best at M = 2 to 4. Here it falls from M = 1 on, while the ensemble stays above"
        " its subnetworks: a network with a thirteenth of the parameters and a twelfth of the epochs has no room for "
        "several, and examples are not repeated, which gains eight points at M = 2 (Fig. 6).",
        draws="draw_fig_5",
    ),
    Item(
        name="mimo/fig-6",
        title="repetition of inputs and of batches",
        protocol="(a) ResNet-50 and the one twice as wide on ImageNet, M = 2, accuracy over ρ. (b) Boxes over twelve "
        "settings of batch, rate and M for each number of repetitions; data and settings are not in the text. The text has"
        " roughly 74 to 77 % for ResNet-50 and 78 to 79 % for the wide one in (a); no number is printed.",
        columns=BOTH,
        rows={**{f"ρ = {rho:g}": Place(f"rho{rho:g}", ("rho",)) for rho in RHOS},
              **{f"{n} repetitions": Place(f"repeat{n}", ("repeat",)) for n in REPEATS},
              **{f"ImageNet, {net}, ρ = {rho:g}": Place(f"{net}-rho{rho:g}", ("imagenet",))
                 for net in ("R50", "R50x2") for rho in RHOS}},
        scales={
            "smoke": Scale(
                time="seconds", jobs=("rho", "repeat"), rows=("ρ = 0", "ρ = 1", "2 repetitions"), differs=f"{SMOKE}.",
            ),
            "small": Scale(
                time="hours", jobs=("rho", "repeat"),
                differs="WideResNet-16-4 on CIFAR-100 for 20 epochs, M = 2, one setting for each number of repetitions, one "
                "run.",
            ),
            "full": Scale(
                time="days", jobs=("imagenet", "rho", "repeat"),
                differs="(b) has one setting for each number of repetitions, on CIFAR-100.",
            ),
        },
        misses="The paper has a best ρ between 0 and 1. Here accuracy rises up to ρ = 1, where the subnetworks agree: the "
        "small network has no room for two, as the paper says of networks without spare capacity (inferred, not "
        "tested). Repetitions of a batch help up to five, as in the paper.",
        draws="draw_fig_6",
    ),
    _cifar(1, "cifar10", TABLE_1),
    _cifar(2, "cifar100", TABLE_2),
    Item(
        name="mimo/table-3",
        title="methods on ImageNet",
        protocol=f"ResNet-50 and the one twice as wide; c means ImageNet-C. {TPU}",
        printed=TABLE_3,
        columns={**COLUMNS, "Params (M)": Column("Params (M)")},
        rows={
            "Deterministic": Place("single", ("imagenet",)), "Naive multihead (M = 3)": Place("multihead", ("imagenet",)),
            "MIMO (M = 2) (ρ = 0.6)": Place("mimo", ("imagenet",)), "TreeNet (M = 2)": Place("treenet", ("imagenet",)),
            "BatchEnsemble (M = 4)": Place("batchensemble", ("imagenet",)), "Ensemble (M = 4)": Place("deep", ("imagenet",)),
            "Wide Deterministic": Place("wide", ("imagenet",)),
            "Wide MIMO (M = 2) (ρ = 0.6)": Place("wide-mimo", ("imagenet",)),
        },
        scales={
            "smoke": Scale(time="seconds", work="table_3_counts", differs="Parameters are counted, nothing is trained."),
            "small": Scale(time="seconds", work="table_3_counts", differs="Parameters are counted, nothing is trained."),
            "full": Scale(time="days", jobs=("imagenet",), differs="docs/recipes.md says what the paper omits."),
        },
    ),
    Item(
        name="mimo/table-4",
        title="ImageNet and its shifted sets",
        protocol="NLL, accuracy and ECE on ImageNet, ImageNet-C, -A and -V2; mCE; stability on ImageNet-Vid-Robust and "
        "YTTB-Robust; accuracy on ObjectNet. In the text, one number is damaged and left out: the accuracy of the wide "
        "network on ImageNet-A.",
        printed=TABLE_4,
        columns={
            "NLL": Column("nll"), "Acc": Column("accuracy", 100), "ECE": Column("ece"), "NLL (C)": Column("cNLL"),
            "Acc (C)": Column("cAcc", 100), "ECE (C)": Column("cECE"), "mCE": Column("measured/mCE", 100),
            **{f"{name} ({short})": Column(f"{key}/{score}", 100 if name == "Acc" else 1)
               for short, key in (("A", "imagenet-a"), ("V2", "imagenetv2"))
               for name, score in (("NLL", "rNLL"), ("Acc", "rAcc"), ("ECE", "rECE"))},
            "Vid-Robust": Column("measured/vid-robust", 100), "YTTB-Robust": Column("measured/ytbb-robust", 100),
            "ObjectNet": Column("measured/objectnet", 100),
        },
        rows={
            "Deterministic": Place("single", ("imagenet",)), "MIMO (M = 2) (ρ = 0.6)": Place("mimo", ("imagenet",)),
            "Wide MIMO (M = 2) (ρ = 0.6)": Place("wide-mimo", ("imagenet",)),
        },
        scales={"full": Scale(time="days", jobs=("imagenet",), differs="docs/recipes.md says what the paper omits.")},
        derives="derive_mce",
    ),
    Item(
        name="mimo/fig-7",
        title="quality over L1 regularisation",
        protocol="WideResNet-28-10 on CIFAR-10 and CIFAR-100, L2 off, L1 varied, means over three runs. No number is printed.",
        columns={**BOTH, "weights in use": Column("measured/weights in use")},
        rows=_paths("L1", L1),
        scales=_capacity("L1", ("C10, M = 2, L1 = 0", "C10, M = 2, L1 = 0.0001")),
        draws="draw_fig_7",
    ),
    Item(
        name="mimo/fig-8",
        title="quality over L2 regularisation",
        protocol="WideResNet-28-10 on CIFAR-10 and CIFAR-100, L1 off, L2 varied, means over three runs. No number is printed.",
        columns=BOTH,
        rows=_paths("L2", L2),
        scales=_capacity("L2", ("C10, M = 1, L2 = 0.001", "C10, M = 2, L2 = 0.001")),
        draws="draw_fig_7",
    ),
    Item(
        name="mimo/fig-9",
        title="quality over sparsity",
        protocol="The networks of Fig. 7 over the share of weights with |w| > 1e-4. No number is printed.",
        columns={"weights in use": Column("measured/weights in use"), **BOTH},
        rows=_paths("L1", L1),
        source="mimo/fig-7",
        scales=_capacity("L1", ("C10, M = 2, L1 = 0", "C10, M = 2, L1 = 0.0001")),
        draws="draw_fig_9",
    ),
)  # fmt: skip
