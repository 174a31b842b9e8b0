"""What the items of Masksembles run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from multitudes import data, figures, models
from multitudes.analysis.mask_sets import mask_statistics, mask_sweep
from multitudes.conversion.convert import ensemble
from multitudes.data.sources import Root
from multitudes.ensemble import Ensemble
from multitudes.method import Method
from multitudes.methods import Deep, Masksembles, MCDropout, Single
from multitudes.prediction.predict import predict
from multitudes.shell.jobs import Job
from multitudes.shell.reproduce.item import Column, Findings
from multitudes.shell.reproduce.masksembles import CAPACITIES, SCALES
from multitudes.shell.reproduce.results import Result
from multitudes.shell.reproduce.work import drawing
from multitudes.shell.reproduce.work.counting import counted, millions
from multitudes.shell.reproduce.work.image_jobs import image_job, imagenet_job
from multitudes.training.fit import fit
from multitudes.training.paper_recipe import Entry
from multitudes.training.recipe import Recipe
from multitudes.training.recipes import find

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPOCHS = 30
"""Epochs at small."""

draw_severities, draw_fig_8 = drawing.severities, drawing.over_severity


def fig_3(scale: str, seed: int, root: Root) -> Findings:
    """Size and overlap of masks over S and N."""
    draws, members = (5, (2, 4)) if scale == "smoke" else (50, (2, 4, 8, 16))
    found = mask_sweep(scales=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0), members=members, draws=draws, seed=seed)
    rows = {
        f"N = {count}, S = {at:g}": {
            "size": found.size[i, j],
            "expected size": found.expected_size[i, j],
            "IoU": found.iou[i, j],
            "1 / (2 S − 1)": found.expected_iou[i, j],
        }
        for i, count in enumerate(found.members)
        for j, at in enumerate(found.scales.tolist())
    }
    return Findings(rows, {"masks": found.figure()}, budget=f"{draws} sets of masks, M = {found.ones}")


def fig_4(scale: str, seed: int, root: Root) -> Findings:
    """Entropy over the plane, from one network over Masksembles with growing S to an ensemble."""
    smoke = scale == "smoke"
    train = data.sinusoids(examples=400 if smoke else 1000, seed=seed)
    test = data.sinusoids("test", examples=1000, seed=seed)
    recipe = Recipe(epochs=60 if smoke else 100, batch=50, lr=0.01, optimizer="adam", schedule="cosine", seed=seed)
    methods: dict[str, Method] = {"Single": Single()}
    for s in (1.1, 10.0) if smoke else (1.1, 2.0, 3.0, 10.0):
        methods[f"S = {s:g}"] = Masksembles(members=4, scale=s, width="grow")
    if not smoke:
        methods["Ensembles"] = Deep(members=4)
    x, y = torch.linspace(-15, 15, 61), torch.linspace(-5, 5, 41)
    grid = torch.cartesian_prod(y, x).flip(1)
    outside = grid[:, 0].abs() > 5
    rows, maps = {}, {}
    for name, method in methods.items():
        torch.manual_seed(seed)
        made = ensemble(models.masksembles_mlp(), method, train.batch(slice(0, 8))[0], seed=seed)
        fit(made, train, recipe, progress=False)
        pred, scored = predict(made, grid, progress=False), predict(made, test, progress=False)
        entropy = pred.entropy.double()
        between = pred.mutual_information[outside].mean() if made.members > 1 else torch.zeros(())
        rows[name] = {
            "entropy outside [−5, 5]": float(entropy[outside].mean()),
            "entropy inside": float(entropy[~outside].mean()),
            "mutual information outside": float(between),
            "accuracy": float((scored.labels == test.targets).double().mean()),
        }
        maps[name] = entropy.reshape(len(y), len(x))
    shown = figures.entropy_map(x, y, maps, (train.batch(slice(None))[0], train.targets), top=math.log(2), columns=3)
    return Findings(rows, {"entropy": shown}, budget=f"{recipe.epochs} epochs of {len(train)} points")


def _grown(base: Entry, scale: float, capacity: float = 1.0) -> Entry:
    """Returns the row of Masksembles with grown masks; with one full mask it is the network itself at another width."""
    return base.with_method(Masksembles(members=4, scale=scale, width="grow", capacity=capacity))


def table_1(job: str, scale: str, root: Root) -> Job:
    """WideResNet-16-4 on CIFAR-10: four methods, also on corrupted images."""
    paper = find("masksembles/cifar10")
    kinds = {"single": Single, "mcdropout": MCDropout, "masksembles": Masksembles, "deep": Deep}
    rows = {name: paper.entry(kind) for name, kind in kinds.items()}
    return image_job("cifar10", rows, scale, root, epochs=EPOCHS, shifted=True, about="Table 1 of Masksembles.")


def fig_7(job: str, scale: str, root: Root) -> Job:
    """WideResNet-16-4 on CIFAR-10: S and M of Masksembles."""
    paper = find("masksembles/cifar10")
    single = paper.entry(Single)
    rows = {"single": single, "deep": paper.entry(Deep)}
    rows |= {f"s{s:g}-m{c:g}": _grown(single, s, c) for s in SCALES for c in CAPACITIES}
    return image_job("cifar10", rows, scale, root, epochs=EPOCHS, about="Fig. 7 of Masksembles.")


def fig_8(job: str, scale: str, root: Root) -> Job:
    """WideResNet-16-4 on CIFAR-10: S in a network of the same size."""
    single = find("masksembles/cifar10").entry(Single)
    rows = {f"s{s:g}": single.with_method(Masksembles(members=4, scale=s)) for s in (1.0, 1.1, 1.4, 2.0, 3.0)}
    return image_job("cifar10", rows, scale, root, epochs=EPOCHS, shifted=True, about="Fig. 8 of Masksembles.")


def fig_9(job: str, scale: str, root: Root) -> Job:
    """WideResNet-16-4 on CIFAR-10: S at fixed M."""
    paper = find("masksembles/cifar10")
    single = paper.entry(Single)
    rows = {"single": single, "deep": paper.entry(Deep)}
    rows |= {f"s{s:g}-m1": _grown(single, s) for s in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)}
    return image_job("cifar10", rows, scale, root, epochs=EPOCHS, about="Fig. 9 of Masksembles.")


def _numbers(label: str) -> list[float]:
    """Returns the numbers in a label: S = 2, M = 0.5 C."""
    return [float(word) for word in label.replace(",", " ").split() if word.replace(".", "").isdigit()]


def draw_fig_7(results: Sequence[Result]) -> dict[str, Figure]:
    """ECE over accuracy: discs whose areas are sizes."""
    discs = []
    for one in results:
        values = [drawing.mean(one, Column(name)) for name in ("accuracy", "ece", "relative/parameters")]
        if None not in values:
            discs.append({"name": one.label, "cost": values[0], "quality": values[1], "size": values[2]})
    words: Any = {"cost": "accuracy", "quality": "ECE", "size": "parameters, one network = 1"}
    return {"span": figures.cost_quality(discs, **words)} if discs else {}


def draw_fig_9(results: Sequence[Result]) -> dict[str, Figure]:
    """Scores over S, with lines for one network and an ensemble."""
    columns = {"Accuracy": Column("accuracy"), "ECE": Column("ece"), "OOD ROC": Column("ood/auroc/entropy")}
    rows = [(_numbers(one.label)[0], one) for one in results if _numbers(one.label)]
    lines = {one.label: one for one in results if not _numbers(one.label)}
    return drawing.over_setting({"Masksembles": rows}, columns, "S", lines)


def _late_rows() -> Mapping[str, Entry]:
    """Returns the rows of Table 2 by name."""
    paper = find("masksembles/imagenet")
    rows = {"single": paper.entry(Single), "deep": paper.entry(Deep), "mcdropout": paper.entry(MCDropout)}
    for entry in paper.entries:
        if isinstance(entry.method, Masksembles):
            rows[f"s{entry.method.scale:g}"] = entry
    return rows


def table_2_counts(scale: str, seed: int, root: Root) -> Findings:
    """Parameters and overlaps of the rows of Table 2."""
    labels = {"single": "Single", "s1.21": "Masksembles, IoU = 0.7", "s2.17": "Masksembles, IoU = 0.3"}
    labels |= {"s3": "Masksembles, IoU = 0.2", "deep": "NaiveE"}
    rows = {}
    for name, entry in _late_rows().items():
        if name in labels:
            found: dict[str, float] = {"Params (M)": millions(counted(entry, 224).parameters)}
            if isinstance(entry.method, Masksembles) and scale != "smoke":
                found["IoU"] = float(mask_statistics(_converted(entry, seed)).mean_iou.mean())
            elif isinstance(entry.method, Single):
                found["IoU"] = 1.0
            rows[labels[name]] = found
    return Findings(rows, budget="counted on shapes alone")


def _converted(entry: Entry, seed: int) -> Ensemble:
    """Returns the ensemble of an entry on ImageNet; small images, since only its masks are looked at."""
    torch.manual_seed(seed)
    return ensemble(entry.network(), entry.method, torch.zeros(2, 3, 32, 32), seed=seed, **entry.conversion)


def table_2(job: str, scale: str, root: Root) -> Job:
    """ResNet-50 on ImageNet, also under the corruptions of ImageNet-C."""
    return imagenet_job(find("masksembles/imagenet"), _late_rows(), root, corrupted=True, about="Table 2 of Masksembles.")
