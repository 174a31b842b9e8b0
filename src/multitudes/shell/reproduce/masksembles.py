"""Tables and figures of Durasov et al., "Masksembles for Uncertainty Estimation", CVPR 2021."""

from __future__ import annotations

from multitudes.shell.reproduce.item import Column, Item, Place, Scale, printed

TABLE_1 = printed("""
row | Accuracy | ECE | Size | Time (min) | OOD ROC | OOD PR
Single | 0.89 | 0.06 | 1 | 10 | 0.91 | 0.94
MC-D | 0.90 | 0.01 | 1 | 12 | 0.92 | 0.95
MaskE | 0.92 | 0.01 | 2.3 | 16 | 0.94 | 0.96
NaiveE | 0.92 | 0.01 | 4 | 40 | 0.94 | 0.96
""")
TABLE_2 = printed("""
row | Accuracy | ECE | IoU | Time (h)
Single | 0.71 | 0.07 | 1.0 | 50
Masksembles, IoU = 0.7 | 0.72 | 0.03 | 0.7 | 55
Masksembles, IoU = 0.3 | 0.71 | 0.02 | 0.3 | 60
Masksembles, IoU = 0.2 | 0.70 | 0.02 | 0.2 | 70
NaiveE | 0.74 | 0.02 | - | 200
MC-DP | 0.69 | 0.03 | - | 80
""")

QUALITY = {"Accuracy": Column("accuracy"), "ECE": Column("ece")}
DETECTION = {"OOD ROC": Column("ood/auroc/entropy"), "OOD PR": Column("ood/aupr_out/entropy")}
SIZE = {"Size": Column("relative/parameters")}
CORRUPTED = {"Accuracy, corrupted": Column("cAcc"), "ECE, corrupted": Column("cECE")}

JOB = "wideresnet16-4"
SMOKE = "SmallCNN on 512 images of clothes for one epoch, digits out of distribution"
SMALL = "30 epochs in place of 200, one run"
NONE = "The paper prints no hyperparameters: those of Wide Residual Networks."
GENERATED = "corruptions are generated, for 1,000 images, and are not the files of CIFAR-10-C"

SCALES, CAPACITIES = (1.0, 2.0, 3.0, 5.0), (0.3, 0.5, 1.0, 2.0)
SPAN = {f"S = {s:g}, M = {c:g} C": Place(f"s{s:g}-m{c:g}", ("span",)) for s in SCALES for c in CAPACITIES}
ENDS = {"Single": Place("single", ("span",)), "NaiveE": Place("deep", ("span",))}
SAME = {f"S = {s:g}": Place(f"s{s:g}", ("same-size",)) for s in (1.0, 1.1, 1.4, 2.0, 3.0)}
FIXED = {f"S = {s:g}": Place(f"s{s:g}-m1", ("fixed",)) for s in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)}
LATE = "Masks and dropout stand before convolutions from the third stage on."


def _trained(smoke: tuple[str, ...], small: str, job: str, beside: bool = True, shifted: bool = False) -> dict[str, Scale]:
    """Makes the scales of an item on CIFAR-10: rows at smoke, and what differs at small."""
    more = f"; {GENERATED}" if shifted else ""
    return {
        "smoke": Scale(time="seconds", jobs=(job,), rows=smoke, beside=False, differs=f"{SMOKE}."),
        "small": Scale(time="minutes" if job == JOB else "hours", jobs=(job,), beside=beside, differs=f"{small}{more}. {NONE}"),
        "full": Scale(time="hours" if job == JOB else "days", jobs=(job,), seeds=(0, 1, 2), beside=beside, differs=NONE),
    }


ITEMS = (
    Item(
        name="masksembles/fig-3",
        title="size and overlap of masks over S and N",
        protocol="Masks with M ones are drawn among M·S positions. The size relative to one mask is drawn over S for several "
        "N, and the mean IoU of masks over S: 1 / (2 S − 1), whatever N and M. No number is printed.",
        scales={
            "smoke": Scale(time="seconds", differs="Five sets of masks for each pair of S and N."),
            "small": Scale(time="seconds", differs="N and M of the figure are not printed: N = 2, 4, 8, 16 and M = 100."),
        },
        columns={name: Column(name) for name in ("size", "expected size", "IoU", "1 / (2 S − 1)")},
    ),
    Item(
        name="masksembles/fig-4",
        title="from one network to an ensemble on a task in the plane",
        protocol="Two noisy sinusoids with x in [−5, 5] are classified by networks of one hidden layer with 100 units per "
        "mask: one network, Masksembles with N = 4 and S = 1.1, 2, 3, 10, and an ensemble. The entropy is drawn over the "
        "plane; away from the data it grows with S. No number is printed.",
        scales={
            "smoke": Scale(time="seconds", differs="400 points, 60 epochs, three networks, one run."),
            "small": Scale(
                time="minutes", seeds=(0, 1, 2),
                differs="Number of points, noise, optimiser and epochs are not printed: 1,000 points, Adam at 0.01, 100 "
                "epochs. The number of networks in the ensemble is not printed either: 4.",
            ),
        },
        columns={
            name: Column(name)
            for name in ("entropy outside [−5, 5]", "entropy inside", "mutual information outside", "accuracy")
        },
        misses="The entropy outside grows from S = 1.1 to 2 and 3. At S = 10 it is lower again, within the spread of three "
        "seeds; so is the ensemble's.",
    ),
    Item(
        name="masksembles/table-1",
        title="four methods on CIFAR-10",
        protocol="WideResNet-16-4, four members. SVHN is out of distribution. S and M of Masksembles are not printed, only its "
        "size. Time is that of training, on the paper's device: not compared.",
        printed=TABLE_1,
        columns={**QUALITY, **SIZE, "Time (min)": Column("measured/minutes"), **DETECTION},
        rows={"Single": Place("single", (JOB,)), "MC-D": Place("mcdropout", (JOB,)), "MaskE": Place("masksembles", (JOB,)),
              "NaiveE": Place("deep", (JOB,))},
        scales=_trained(("Single", "MaskE"), SMALL, JOB),
    ),
    Item(
        name="masksembles/fig-6",
        title="four methods on corrupted CIFAR-10",
        protocol="Accuracy and ECE of the networks of Table 1 on CIFAR-10-C: boxes over 19 corruptions by severity; columns "
        "are means over the 15 standard ones. No number is printed.",
        columns={**QUALITY, **CORRUPTED},
        rows={"Single": Place("single", (JOB,)), "MC-D": Place("mcdropout", (JOB,)), "MaskE": Place("masksembles", (JOB,)),
              "NaiveE": Place("deep", (JOB,))},
        source="masksembles/table-1",
        scales=_trained(("Single", "MaskE"), SMALL, JOB, beside=False, shifted=True),
        draws="draw_severities",
    ),
    Item(
        name="masksembles/fig-7",
        title="the span of S and M on CIFAR-10",
        protocol="N = 4 masks, S from 1 to 5 and M from 0.3 to 2 times the channels of WideResNet-16-4: ECE over accuracy, "
        "with colours for size. The grid is not printed: S = 1, 2, 3, 5 and M = 0.3, 0.5, 1, 2. No number is printed.",
        columns={**QUALITY, **SIZE, **DETECTION},
        rows={**ENDS, **SPAN},
        scales=_trained(("Single", "S = 2, M = 1 C", "S = 3, M = 0.5 C"), SMALL, "span"),
        draws="draw_fig_7",
    ),
    Item(
        name="masksembles/fig-8",
        title="ECE over severity, masks in a network of the same size",
        protocol="N = 4 masks, M·S the channels of WideResNet-16-4, S = 1, 1.1, 1.4, 2, 3: ECE over the severity of "
        "corruptions; columns are means over the 15 standard ones. No number is printed.",
        columns={**QUALITY, **CORRUPTED},
        rows=SAME,
        scales=_trained(("S = 1", "S = 2"), SMALL, "same-size", beside=False, shifted=True),
        draws="draw_fig_8",
    ),
    Item(
        name="masksembles/fig-9",
        title="accuracy, ECE and OOD over S at fixed capacity",
        protocol="N = 4 masks, M the channels of WideResNet-16-4, S from 1 to 4; lines for one network and an ensemble. The "
        "values of S are not printed. No number is printed.",
        columns={**QUALITY, **SIZE, **DETECTION},
        rows={"Single": Place("single", ("fixed",)), "NaiveE": Place("deep", ("fixed",)), **FIXED},
        scales=_trained(("Single", "S = 2"), SMALL, "fixed"),
        draws="draw_fig_9",
    ),
    Item(
        name="masksembles/table-2",
        title="Masksembles on ImageNet",
        protocol=f"ResNet-50, N = 4, all of the size of one network but the ensemble. {LATE} Time is that of training, on the "
        "paper's device: not compared.",
        printed=TABLE_2,
        columns={**QUALITY, "IoU": Column("IoU"), "Time (h)": Column("measured/hours"), "Params (M)": Column("Params (M)")},
        rows={
            "Single": Place("single", ("resnet50",)), "Masksembles, IoU = 0.7": Place("s1.21", ("resnet50",)),
            "Masksembles, IoU = 0.3": Place("s2.17", ("resnet50",)), "Masksembles, IoU = 0.2": Place("s3", ("resnet50",)),
            "NaiveE": Place("deep", ("resnet50",)), "MC-DP": Place("mcdropout", ("resnet50",)),
        },
        scales={
            "smoke": Scale(time="seconds", work="table_2_counts", differs="Parameters are counted, nothing is trained."),
            "small": Scale(time="seconds", work="table_2_counts", differs="Parameters are counted and overlaps of all layers' "
            "masks measured, nothing is trained. S is ours: 1.21, 2.17, 3."),
            "full": Scale(time="days", jobs=("resnet50",), differs="The paper prints no hyperparameters: those of Ashukha "
            "et al."),
        },
    ),
    Item(
        name="masksembles/fig-10",
        title="ECE over severity on ImageNet-C, for several S",
        protocol=f"ResNet-50, N = 4, M·S its channels: ECE over the severity of corruptions. {LATE} No number is printed.",
        columns={**QUALITY, **CORRUPTED},
        rows={f"S = {s:g}": Place(f"s{s:g}", ("resnet50",)) for s in (1.21, 2.17, 3.0)},
        source="masksembles/table-2",
        scales={"full": Scale(time="days", jobs=("resnet50",), differs="S is that of Table 2's overlaps.")},
        draws="draw_fig_8",
    ),
    Item(
        name="masksembles/fig-11",
        title="four methods on ImageNet-C",
        protocol="Accuracy and ECE of the networks of Table 2 on ImageNet-C: boxes over corruptions by severity. No number is "
        "printed.",
        columns={**QUALITY, **CORRUPTED},
        rows={"Single": Place("single", ("resnet50",)), "MaskE": Place("s2.17", ("resnet50",)),
              "NaiveE": Place("deep", ("resnet50",)), "MC-DP": Place("mcdropout", ("resnet50",))},
        source="masksembles/table-2",
        scales={"full": Scale(time="days", jobs=("resnet50",), differs="MaskE is the row of IoU = 0.3; the paper prints no "
                              "hyperparameters: those of Ashukha et al.")},
        draws="draw_severities",
    ),
)  # fmt: skip
