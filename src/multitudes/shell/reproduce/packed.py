"""Tables and figures of Laurent et al., "Packed-Ensembles for Efficient Uncertainty Estimation", ICLR 2023."""

from __future__ import annotations

from multitudes.shell.reproduce.item import Column, Item, Place, Scale, printed

JOBS = {
    "C10, R18": "cifar10-resnet18",
    "C10, R50": "cifar10-resnet50",
    "C10, WR": "cifar10-wideresnet28-10",
    "C100, R18": "cifar100-resnet18",
    "C100, R50": "cifar100-resnet50",
    "C100, WR": "cifar100-wideresnet28-10",
}
METHODS = {
    "Single Model": "single",
    "BatchEnsemble": "batchensemble",
    "MIMO": "mimo",
    "Masksembles": "masksembles",
    "Packed-Ensembles": "packed",
    "Deep Ensembles": "deep",
}
PATCHES = {"EMP": "emp", "ECMP": "ecmp"}
"""Rows beside the paper's: methods that it does not have, by the same protocol, with ResNet-18."""

TABLE_1 = printed("""
row | Acc | NLL | ECE | AUPR | AUC | FPR95 | Params (M) | Mult-Adds (G)
Single Model, C10, R18 | 94.0 | 0.238 | 0.035 | 94.0 | 89.7 | 33.8 | 11.17 | 0.56
BatchEnsemble, C10, R18 | 92.9 | 0.257 | 0.031 | 92.4 | 87.8 | 32.1 | 11.21 | 2.22
MIMO, C10, R18 | 94.0 | 0.228 | 0.033 | 94.4 | 90.2 | 28.6 | 11.19 | 2.24
Masksembles, C10, R18 | 94.0 | 0.188 | 0.009 | 93.6 | 89.5 | 27.8 | 11.24 | 2.22
Packed-Ensembles, C10, R18 | 94.3 | 0.178 | 0.007 | 94.7 | 91.3 | 23.2 | 8.18 | 0.48
Deep Ensembles, C10, R18 | 95.1 | 0.156 | 0.008 | 94.7 | 91.3 | 18.0 | 44.70 | 2.22
Single Model, C10, R50 | 95.1 | 0.211 | 0.031 | 95.2 | 91.9 | 23.6 | 23.52 | 1.30
BatchEnsemble, C10, R50 | 93.9 | 0.255 | 0.033 | 94.7 | 91.3 | 20.1 | 23.63 | 5.19
MIMO, C10, R50 | 95.4 | 0.197 | 0.030 | 95.1 | 90.8 | 26.0 | 23.59 | 5.22
Masksembles, C10, R50 | 95.3 | 0.175 | 0.019 | 95.7 | 92.2 | 22.1 | 23.81 | 5.19
Packed-Ensembles, C10, R50 | 95.9 | 0.137 | 0.008 | 97.3 | 95.2 | 14.4 | 14.55 | 1.00
Deep Ensembles, C10, R50 | 96.0 | 0.136 | 0.008 | 97.0 | 94.7 | 15.5 | 94.08 | 5.19
Single Model, C10, WR | 95.4 | 0.200 | 0.029 | 96.1 | 93.2 | 20.4 | 36.49 | 5.95
BatchEnsemble, C10, WR | 95.6 | 0.206 | 0.027 | 95.5 | 92.5 | 22.1 | 36.59 | 23.81
MIMO, C10, WR | 94.7 | 0.234 | 0.034 | 94.9 | 90.6 | 30.9 | 36.51 | 23.82
Masksembles, C10, WR | 94.0 | 0.186 | 0.016 | 97.2 | 95.0 | 14.5 | 36.53 | 23.82
Packed-Ensembles, C10, WR | 96.2 | 0.133 | 0.009 | 98.1 | 96.5 | 11.1 | 19.35 | 4.06
Deep Ensembles, C10, WR | 95.8 | 0.143 | 0.013 | 97.8 | 96.0 | 12.5 | 145.96 | 23.82
Single Model, C100, R18 | 75.1 | 1.016 | 0.093 | 88.6 | 79.5 | 55.0 | 11.22 | 0.56
BatchEnsemble, C100, R18 | 71.2 | 1.236 | 0.116 | 86.0 | 75.4 | 60.2 | 11.25 | 2.22
MIMO, C100, R18 | 75.3 | 0.962 | 0.069 | 89.2 | 80.7 | 52.9 | 11.36 | 2.24
Masksembles, C100, R18 | 74.2 | 1.054 | 0.061 | 86.7 | 76.3 | 59.8 | 11.24 | 2.22
Packed-Ensembles, C100, R18 | 76.4 | 0.858 | 0.041 | 88.7 | 79.8 | 57.1 | 8.18 | 0.48
Deep Ensembles, C100, R18 | 78.2 | 0.800 | 0.018 | 90.2 | 82.4 | 50.5 | 44.88 | 2.22
Single Model, C100, R50 | 78.3 | 0.905 | 0.089 | 87.4 | 77.9 | 57.6 | 23.70 | 1.30
BatchEnsemble, C100, R50 | 66.6 | 1.788 | 0.182 | 85.2 | 74.6 | 60.6 | 23.81 | 5.19
MIMO, C100, R50 | 79.0 | 0.876 | 0.079 | 87.5 | 76.9 | 64.7 | 24.33 | 5.22
Masksembles, C100, R50 | 78.5 | 0.832 | 0.046 | 90.3 | 81.9 | 52.3 | 23.81 | 5.19
Packed-Ensembles, C100, R50 | 81.2 | 0.703 | 0.020 | 90.0 | 81.7 | 56.5 | 15.55 | 1.00
Deep Ensembles, C100, R50 | 80.9 | 0.713 | 0.026 | 89.2 | 80.8 | 52.5 | 94.82 | 5.19
Single Model, C100, WR | 80.3 | 0.963 | 0.156 | 81.0 | 64.2 | 80.1 | 36.49 | 5.95
BatchEnsemble, C100, WR | 82.3 | 0.835 | 0.130 | 88.1 | 78.2 | 69.8 | 36.59 | 23.81
MIMO, C100, WR | 80.2 | 0.822 | 0.028 | 84.9 | 72.0 | 72.8 | 36.51 | 23.82
Masksembles, C100, WR | 74.4 | 0.937 | 0.063 | 76.1 | 60.0 | 75.1 | 36.53 | 23.82
Packed-Ensembles, C100, WR | 83.9 | 0.678 | 0.089 | 86.2 | 73.2 | 80.7 | 36.62 | 5.96
Deep Ensembles, C100, WR | 82.5 | 0.903 | 0.229 | 81.6 | 67.9 | 71.3 | 145.96 | 23.82
""")

TABLE_2 = printed("""
row | Acc | ECE | AUPR (T) | AUC (T) | FPR95 (T) | AUPR (IO) | AUC (IO) | FPR95 (IO) | rAcc | rNLL | rECE
Single Model, R50 | 77.8 | 0.1206 | 18.0 | 80.9 | 68.6 | 3.6 | 50.8 | 90.8 | 23.5 | 5.187 | 0.0822
BatchEnsemble, R50 | 75.9 | 0.0348 | 20.2 | 81.6 | 66.5 | 4.0 | 55.2 | 82.3 | 21.0 | 6.148 | 0.1649
MIMO, R50 | 77.6 | 0.1465 | 18.4 | 81.6 | 66.8 | 3.7 | 52.2 | 90.6 | 23.4 | 5.115 | 0.0585
Masksembles, R50 | 73.6 | 0.2093 | 13.6 | 79.7 | 68.3 | 3.3 | 47.7 | 87.7 | 21.2 | 5.139 | 0.0107
Packed-Ensembles, R50 | 77.9 | 0.1796 | 35.1 | 88.2 | 43.7 | 9.9 | 68.4 | 80.9 | 23.8 | 4.978 | 0.0221
Deep Ensembles, R50 | 79.2 | 0.2326 | 19.6 | 83.4 | 62.1 | 3.7 | 52.5 | 85.5 | 24.9 | 4.879 | 0.0182
Single Model, R50x4 | 80.2 | 0.0221 | 20.5 | 82.6 | 63.9 | 4.9 | 60.2 | 87.4 | 26.0 | 5.190 | 0.1721
BatchEnsemble, R50x4 | 77.7 | 0.0237 | 23.8 | 82.8 | 63.8 | 4.4 | 58.4 | 80.5 | 23.4 | 6.079 | 0.2029
MIMO, R50x4 | 80.3 | 0.0150 | 19.3 | 82.5 | 66.1 | 4.9 | 60.7 | 86.4 | 25.8 | 5.278 | 0.1886
Packed-Ensembles, R50x4 | 81.3 | 0.1034 | 34.6 | 88.1 | 50.3 | 9.6 | 69.9 | 79.2 | 26.6 | 4.848 | 0.0750
Deep Ensembles, R50x4 | 82.1 | 0.0534 | 23.0 | 85.6 | 58.1 | 5.0 | 62.7 | 81.9 | 28.2 | 4.789 | 0.1048
""")

DETECTED = {"AUPR": "aupr_out", "AUC": "auroc", "FPR95": "fpr95"}
SCORES = {"Acc": Column("accuracy", 100), "NLL": Column("nll"), "ECE": Column("ece")}
COLUMNS = {
    **SCORES,
    **{name: Column(f"ood/{kind}/msp", 100) for name, kind in DETECTED.items()},
    "Params (M)": Column("cost/parameters", 1e-6),
    "Mult-Adds (G)": Column("cost/multiply_adds", 1e-9 / 32),
}
"""A cost is that of a call with 32 images."""

ROWS = {
    f"{label}, {where}": Place(row, (job,))
    for where, job in JOBS.items()
    for label, row in {**METHODS, **(PATCHES if where.endswith("R18") else {})}.items()
}
LAST = (
    "Scores are of the last epoch, on all 50,000 training images; the paper keeps the epoch of the highest validation "
    "accuracy, and does not say of which images. Images are also cropped, as in the authors' code. On CIFAR-100, ResNet-18"
    " is trained by that code and not by Table 4: Nesterov momentum, rate 0.1 for 0.05, weight decay 5e-4 for 1e-4, × 0.1 "
    "for 0.2 at milestones (docs/decisions.md says why)."
)
"""What differs in all that is trained by Table 4 of the supplement."""
SAME = "All members of Deep Ensembles see the same batches."
SOME = ("Single Model, C10, R18", "Packed-Ensembles, C10, R18", "Deep Ensembles, C10, R18")
"""Rows at smoke."""
TEN = "ten classes of clothes in place of CIFAR, digits in place of SVHN, 512 images, one epoch"

ITEMS = (
    Item(
        name="packed/table-1",
        title="six methods on CIFAR-10 and CIFAR-100",
        protocol="ResNet-18, ResNet-50 and WideResNet-28-10, M = 4, by Table 4 of the supplement; means over five runs. SVHN"
        " is detected by the maximum softmax probability. Multiply-adds are of one image.",
        printed=TABLE_1,
        columns=COLUMNS,
        rows=ROWS,
        scales={
            "smoke": Scale(
                time="seconds", jobs=("cifar10-resnet18",), beside=False, rows=SOME, differs=f"Three methods, SmallCNN; {TEN}.",
            ),
            "small": Scale(
                time="hours", jobs=("cifar10-resnet18", "cifar100-resnet18"),
                differs=f"ResNet-18 alone, with all 75 epochs, one to three runs. All members of Deep Ensembles see the "
                f"same batches. "
                f"{LAST} "
                "EMP and ECMP are not in the paper.",
            ),
            "full": Scale(
                time="days", seeds=(0, 1, 2, 3, 4), jobs=tuple(JOBS.values()),
                differs=f"{LAST} EMP and ECMP are not in the paper.",
            ),
        },
        misses="Accuracy and NLL meet the paper's rows, or are better: within a point and 8 % for the single network, MIMO, "
        "Packed and Deep Ensembles. Masksembles on CIFAR-100 and BatchEnsemble on both are better by 1.2 to 3.8 points, "
        "and the ECE of Packed-Ensembles and Masksembles on CIFAR-100 is a third and half of the printed one; why is not "
        "known. OOD scores change by many points from seed to seed (three seeds of MIMO), so that one run neither meets "
        "nor misses them. For Packed-Ensembles on CIFAR-100 the paper prints the parameters of ten classes, for "
        "Masksembles those with masks of the network with 100 classes. Multiply-adds of MIMO are of its one pass; the "
        "paper prints four.",
        draws="draw_table_1",
    ),
    Item(
        name="packed/fig-1",
        title="accuracy, speed and size on CIFAR-100",
        protocol="Accuracy over images per second at inference, with areas as the number of parameters. The network is not "
        "named: here ResNet-50 at full, ResNet-18 at small. No number is printed.",
        columns={
            "Acc": Column("accuracy", 100), "seconds for 32 images": Column("cost/latency"),
            "Params (M)": Column("cost/parameters", 1e-6),
        },
        rows={label: place for label, place in ROWS.items() if label.startswith(tuple(METHODS)) and "C100, R" in label} | {
            label: place for label, place in ROWS.items() if place.jobs == ("cifar10-resnet18",)
        },
        source="packed/table-1",
        scales={
            "smoke": Scale(time="seconds", jobs=("cifar10-resnet18",), rows=SOME, differs=f"Three methods, SmallCNN; {TEN}."),
            "small": Scale(time="hours", jobs=("cifar100-resnet18",), differs=f"ResNet-18, one run; times on another "
            f"device. {SAME} {LAST}"),
            "full": Scale(time="days", seeds=(0, 1, 2, 3, 4), jobs=("cifar100-resnet50",), differs=f"Times on another "
            f"device. {LAST}"),
        },
        draws="draw_fig_1",
    ),
    Item(
        name="packed/table-2",
        title="six methods on ImageNet",
        protocol="ResNet-50 and ResNet-50x4, M = 4, γ = 1, by the A3 procedure. Textures and ImageNet-O are detected by mutual "
        "information, for the single network and MIMO by the maximum softmax probability; ImageNet-R is the shifted set.",
        printed=TABLE_2,
        columns={
            "Acc": Column("accuracy", 100), "ECE": Column("ece"),
            **{f"{name} (T)": Column(f"textures/{kind}/{{key}}", 100) for name, kind in DETECTED.items()},
            **{f"{name} (IO)": Column(f"imagenet-o/{kind}/{{key}}", 100) for name, kind in DETECTED.items()},
            "rAcc": Column("imagenet-r/rAcc", 100), "rNLL": Column("imagenet-r/rNLL"), "rECE": Column("imagenet-r/rECE"),
            "Params (M)": Column("Params (M)"),
        },
        rows={
            f"{label}, {net}": Place(row, (job,), "msp" if row in ("single", "mimo") else "mutual_information")
            for net, job in (("R50", "resnet50"), ("R50x4", "resnet50x4")) for label, row in METHODS.items()
            if (label, net) != ("Masksembles", "R50x4")
        },
        scales={
            "smoke": Scale(time="seconds", work="table_2_counts", differs="Parameters are counted, nothing is trained."),
            "small": Scale(time="seconds", work="table_2_counts", differs="Parameters are counted, nothing is trained."),
            "full": Scale(
                time="days", jobs=("resnet50", "resnet50x4"),
                differs="The paper names the procedure alone; docs/recipes.md says what is ours.",
            ),
        },
    ),
)  # fmt: skip
