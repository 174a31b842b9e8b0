"""What the items of Packed-Ensembles run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from multitudes import figures
from multitudes.data.sources import Root
from multitudes.methods import ECMP, EMP, MIMO, BatchEnsemble, Deep, Masksembles, Packed, Single
from multitudes.shell.jobs import TABLE_1, Job
from multitudes.shell.reproduce.item import Column, Findings
from multitudes.shell.reproduce.results import Result
from multitudes.shell.reproduce.work import drawing
from multitudes.shell.reproduce.work.counting import millions, on_meta
from multitudes.shell.reproduce.work.image_jobs import NORMED, at_smoke, by_kind, image_job, imagenet_job
from multitudes.training.recipes import find

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {
    "single": Single, "batchensemble": BatchEnsemble, "mimo": MIMO, "masksembles": Masksembles, "packed": Packed, "deep": Deep,
}  # fmt: skip

draw_table_1 = drawing.against


def table_1(job: str, scale: str, root: Root) -> Job:
    """A network on CIFAR by the recipe of its job's name; all members see the same batches but at full."""
    rows = by_kind(find(f"packed/{job}"), KINDS)
    if job.endswith("resnet18"):
        rows |= {
            "emp": rows["single"].with_method(EMP(**TABLE_1["emp"])),
            "ecmp": rows["single"].with_method(ECMP(**TABLE_1["ecmp"])),
        }
    if scale == "small":
        rows = {name: replace(one, recipe=replace(one.recipe, batches="same", best="ensemble")) for name, one in rows.items()}
    made = image_job(job.partition("-")[0], rows, scale, root, shifted=True, about=f"Table 1 of Packed-Ensembles: {job}.")
    if scale == "smoke":  # patches are of norms
        normed = {name: at_smoke(rows[name], NORMED) for name in ("emp", "ecmp")}
        made = replace(made, rows={**made.rows, **normed})
    return made


def draw_fig_1(results: Sequence[Result]) -> dict[str, Figure]:
    """Accuracy over images per second, with areas as parameters."""
    discs = []
    for one in results:
        accuracy, size, latency = (one.values(Column(key)) for key in ("accuracy", "cost/parameters", "cost/latency"))
        if accuracy and size and latency:
            speed = 32 * len(latency) / sum(latency)
            discs.append(
                {
                    "name": one.label.partition(",")[0],
                    "cost": speed,
                    "quality": 100 * sum(accuracy) / len(accuracy),
                    "size": size[0] / 1e6,
                }
            )
    words: Any = {"cost": "images per second", "quality": "accuracy in %", "size": "million parameters"}
    return {"speed": figures.cost_quality(discs, **words)} if discs else {}


def table_2_counts(scale: str, seed: int, root: Root) -> Findings:
    """Parameters of all rows."""
    return Findings({
        f"{label}, {net}": {"Params (M)": millions(counts.parameters)}
        for net, name in (("R50", "packed/imagenet-a3-resnet50"), ("R50x4", "packed/imagenet-a3-resnet50x4"))
        if net == "R50" or scale != "smoke"
        for label, counts in on_meta(find(name), 224).items()
        if (label, net) != ("Masksembles", "R50x4")
    }, budget="counted on shapes alone")  # fmt: skip


def table_2(job: str, scale: str, root: Root) -> Job:
    """A network on ImageNet by the A3 procedure."""
    paper = find(f"packed/imagenet-a3-{job}")
    return imagenet_job(
        paper, by_kind(paper, KINDS), root, ood={"textures": "textures", "imagenet-o": "imagenet-o"},
        shifts={"imagenet-r": "imagenet-r"}, about=f"Table 2 of Packed-Ensembles: {job}.",
    )  # fmt: skip
