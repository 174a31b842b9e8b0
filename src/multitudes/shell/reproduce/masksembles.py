"""Tables and figures of Durasov et al., "Masksembles for Uncertainty Estimation", CVPR 2021."""

from __future__ import annotations

from multitudes.shell.reproduce.item import Column, Item, Scale

TOY = "The paper gives neither the number of points, nor the noise, nor the training: 1,000 points, Adam."

SCORES = {
    "Accuracy": Column("accuracy"),
    "ECE": Column("ece"),
    "Size": Column("relative/parameters"),
    "OOD ROC": Column("ood/auroc/entropy"),
    "OOD PR": Column("ood/aupr_out/entropy"),
}
METHODS = {"Single": "single", "MC-D": "mcdropout", "MaskE": "masksembles", "NaiveE": "deep"}

ITEMS = (
    Item(
        name="masksembles/fig-3",
        title="size and overlap of masks over S and N",
        protocol="Masks with M ones are drawn among M·S positions. The size relative to one mask is drawn over S for "
        "several N, "
        "and the mean IoU of masks over S: 1 / (2 S − 1), whatever N and M. No number is printed.",
        scales={
            "smoke": Scale(time="seconds", differs="Five sets of masks for each pair of S and N."),
            "small": Scale(time="seconds", differs="N and M of the figure are not printed: N = 2, 4, 8, 16 and M = 100."),
        },
        columns={name: Column(name) for name in ("size", "expected size", "IoU", "1 / (2 S − 1)")},
    ),
)
