"""Comparisons that no paper prints: every method on one dataset, by the same budget."""

from __future__ import annotations

from multitudes.shell.reproduce.item import Column, Item, Place, Scale

METHODS = {
    "Single": "single", "Deep": "deep", "Packed": "packed", "MIMO": "mimo", "Masksembles": "masksembles",
    "BatchEnsemble": "batchensemble", "MultiHead": "multihead", "TreeNet": "treenet", "MCDropout": "mcdropout",
    "DropConnect": "dropconnect", "EMP": "emp", "ECMP": "ecmp",
}  # fmt: skip
"""Rows by label, and their names in the job."""

SCORES = {"Acc": "accuracy", "NLL": "nll", "ECE": "ece", "AUROC": "auroc"}
"""Columns, and the names of their scores."""

COLUMNS = {
    "Acc": Column("accuracy", 100), "NLL": Column("nll"), "ECE": Column("ece"), "AUROC": Column("ood/auroc/msp", 100),
    **{f"{name} better": Column(f"measured/better/{score}", over="count") for name, score in SCORES.items()},
    "cost of a call": Column("relative/multiply_adds"),
}  # fmt: skip
"""Scores, and the number of seeds in which a method is better than the single network of the same seed."""

ITEMS = (
    Item(
        name="ours/fashion-mnist",
        title="twelve methods on Fashion-MNIST, against the single network",
        protocol="ResNet-18 with a quarter of its width on all 60,000 images, 15 epochs for every method, the settings of each "
        "method its defaults; digits of MNIST are detected by the maximum softmax probability. A method is compared with the "
        "single network of the same seed.",
        columns=COLUMNS,
        rows={label: Place(row, ("fashion-mnist",)) for label, row in METHODS.items()},
        derives="derive_better",
        misses="All methods but naive multihead have a lower NLL than the single network in every seed. MIMO and Masksembles"
        " pay with accuracy: at their default settings a network of this size has little room for several. Digits are"
        " detected worse than by the single network in nearly every seed: it is overconfident, so that nearly all its"
        " test images are at a probability of one, and whatever falls below stands out; the ensembles are less sure "
        "of test images too (inferred from ECE). By the energy, which does not saturate, Packed is ahead of it in two"
        " of three seeds.",
        scales={
            "smoke": Scale(
                time="seconds", jobs=("fashion-mnist",), rows=("Single", "Packed", "MCDropout"),
                differs="Three methods, SmallCNN, 512 images, one epoch.",
            ),
            "small": Scale(time="hours", jobs=("fashion-mnist",), seeds=(0, 1, 2)),
        },
    ),
)  # fmt: skip
