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
    **{f"{name} better": Column(f"measured/better/{score}", 100) for name, score in SCORES.items()},
    "cost of a call": Column("relative/multiply_adds"),
}  # fmt: skip
"""Scores, and the share of seeds, in percent, in which a method is better than the single network of the same seed."""

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
        scales={
            "smoke": Scale(
                time="seconds", jobs=("fashion-mnist",), rows=("Single", "Packed", "MCDropout"),
                differs="Three methods, SmallCNN, 512 images, one epoch.",
            ),
            "small": Scale(time="hours", jobs=("fashion-mnist",), seeds=(0, 1, 2)),
        },
    ),
)  # fmt: skip
