"""What the items of the supplement of Packed-Ensembles run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from multitudes.analysis.dropped_weights import KLBound, kl_bound
from multitudes.conversion.convert import ensemble
from multitudes.conversion.cost import cost
from multitudes.data.sources import Root
from multitudes.method import Method
from multitudes.methods import MIMO, BatchEnsemble, Deep, Packed, Single
from multitudes.shell.jobs import Job
from multitudes.shell.reproduce.item import Column, Findings
from multitudes.shell.reproduce.results import Result
from multitudes.shell.reproduce.supplement import GRID, SOURCES, WIDTHS
from multitudes.shell.reproduce.work import drawing
from multitudes.shell.reproduce.work.counting import giga, millions, on_meta
from multitudes.shell.reproduce.work.image_jobs import TINY, at_smoke, image_job
from multitudes.shell.reproduce.work.uci_jobs import uci_job
from multitudes.training.paper_recipe import Entry
from multitudes.training.recipe import Recipe
from multitudes.training.recipes import find

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INPUTS, VALUE, SIGMAS = 100, 0.1, (0.3, 1.0, 3.0)
"""C_j, μ = ω, and σ of the units in Fig. 5. The paper prints only the second."""

draw_fig_9 = drawing.over_severity


def fig_5(scale: str, seed: int, root: Root) -> Findings:
    """The bound, the divergence of the Gaussians, and that of the simulated layer."""
    draws, p = 4_000 if scale == "smoke" else 40_000, torch.linspace(0.1, 1, 10)
    found, simulated = bounds(p, draws, seed)
    rows = {
        f"σ = {s:g}, p = {share:.1f}": {"bound": found.bound[i, j], "divergence": found.kl[i, j], "simulated": simulated[i, j]}
        for i, s in enumerate(SIGMAS)
        for j, share in enumerate(p.tolist())
    }
    shown = bounds(torch.linspace(0.05, 1, 96), 2, seed)[0].figure(names=[f"σ = {s:g}" for s in SIGMAS])
    return Findings(rows, {"bound": shown}, budget=f"{draws:,} draws of the layer for each pair")


def bounds(p: Tensor, draws: int, seed: int) -> tuple[KLBound, Tensor]:
    """Returns the bound for each σ and p, and the divergence of a simulated layer, ``[σ, p]``."""
    sigma = torch.tensor(SIGMAS, dtype=torch.float64)
    variance = (sigma**2 / (INPUTS * VALUE**2))[:, None]
    found = kl_bound(p, torch.full((len(SIGMAS), INPUTS), VALUE), VALUE, variance)
    generator = torch.Generator().manual_seed(seed)
    simulated = [[_simulated(share, float(own), draws, generator) for share in p.tolist()] for own in variance[:, 0]]
    return found, torch.tensor(simulated, dtype=torch.float64)


def _simulated(p: float, variance: float, draws: int, generator: torch.Generator) -> float:
    """Returns the divergence between a unit and the same unit with masked weights, by the moments of draws of both."""
    inputs = VALUE + variance**0.5 * torch.randn(draws, INPUTS, generator=generator, dtype=torch.float64)
    kept = torch.rand(draws, INPUTS, generator=generator) < p
    whole, masked = VALUE * inputs.sum(1), VALUE * (inputs * kept).sum(1)
    ratio = masked.var() / whole.var()
    apart = (whole.mean() - masked.mean()) ** 2 / masked.var()
    return float((ratio.log() + 1 / ratio + apart - 1) / 2)


def table_5(job: str, scale: str, root: Root) -> Job:
    """ResNet-50 on CIFAR-100: α, γ and M of Packed."""
    single = find("packed/cifar100-resnet50").entry(Single)
    rows = {f"pe-{a}-{m}-{g}": single.with_method(Packed(members=m, alpha=a, gamma=g)) for a, g, m in GRID}
    return image_job("cifar100", rows, scale, root, epochs=20, about="Tables 5 and 6 of the supplement of Packed-Ensembles.")


def _setting(result: Result) -> dict[str, float]:
    """Returns the settings in a label: α = 2, γ = 1, M = 4."""
    return {name.strip(): float(value) for name, _, value in (part.partition("=") for part in result.label.split(","))}


def _over_members(results: Sequence[Result], by: str) -> dict[str, Figure]:
    groups: dict[str, list[tuple[float, Result]]] = {}
    for one in results:
        found = _setting(one)
        groups.setdefault(f"{by} = {found[by]:g}", []).append((found["M"], one))
    return drawing.over_setting(groups, {"Accuracy": Column("accuracy"), "AUPR": Column("ood/aupr_out/msp")}, "M")


def draw_fig_6(results: Sequence[Result]) -> dict[str, Figure]:
    """Accuracy and AUPR over M, a curve for each α."""
    return _over_members(results, "α")


def draw_fig_7(results: Sequence[Result]) -> dict[str, Figure]:
    """Accuracy and AUPR over M, a curve for each γ."""
    return _over_members(results, "γ")


def table_7(job: str, scale: str, root: Root) -> Job:
    """Packed on CIFAR-100, each source of differences on or off."""
    packed = find(f"packed/cifar100-{job}").entry(Packed)
    rows: dict[str, Entry] = {}
    for source in SOURCES:
        on = source.split()
        how: dict[str, Any] = {"deterministic": "ND" not in on, "batches": "own" if "DB" in on else "same", "precision": "32"}
        start = {"start": "fresh" if "DI" in on else "copies"}
        rows[source.replace(" ", "-").lower()] = packed.with_method(packed.method, conversion=start, **how)
    about = f"Table 7 of the supplement of Packed-Ensembles: {job}."
    return image_job("cifar100", rows, scale, root, fast=False, about=about)  # compiled operations and rounding are sources too


def fig_8(job: str, scale: str, root: Root) -> Job:
    """One network on CIFAR-100 at several widths."""
    single = find(f"packed/cifar100-{job}").entry(Single)
    rows = {f"{job}-{w:g}": single.with_method(Single(), arguments={"width": w}) for w in WIDTHS}
    made = image_job("cifar100", rows, scale, root, epochs=30, about=f"Fig. 8 of the supplement of Packed-Ensembles: {job}.")
    if scale == "smoke":
        thin = {name: {**TINY, "arguments": {"channels": 1, "width": float(name.rpartition("-")[2])}} for name in rows}
        made = replace(made, rows={name: at_smoke(one, thin[name]) for name, one in rows.items()})
    return made


def draw_fig_8(results: Sequence[Result]) -> dict[str, Figure]:
    """Accuracy and AUPR over the width, a curve for each network."""
    groups: dict[str, list[tuple[float, Result]]] = {}
    for one in results:
        net, _, width = one.label.partition(", width ")
        groups.setdefault(net, []).append((float(width), one))
    return drawing.over_setting(groups, {"Accuracy": Column("accuracy"), "AUPR": Column("ood/aupr_out/msp")}, "Width")


def table_8(scale: str, seed: int, root: Root) -> Findings:
    """Seconds per epoch and images per second, by precision."""
    smoke, gpu = scale == "smoke", torch.cuda.is_available()
    entry = find("packed/cifar100-resnet50").entry(Single)
    methods: dict[str, Method] = {
        "Single Model": Single(), "Packed-Ensembles-(2,4,1)": Packed(members=4, alpha=2, gamma=1),
        "Packed-Ensembles-(2,4,2)": Packed(members=4, alpha=2, gamma=2), "Deep Ensembles": Deep(members=4),
        "MIMO": MIMO(members=4, rho=1.0, reduction="mean"), "BatchEnsemble": BatchEnsemble(members=4),
    }  # fmt: skip
    if smoke:
        entry, methods = at_smoke(entry), {name: methods[name] for name in ("Single Model", "Packed-Ensembles-(2,4,1)")}
    device = "cuda" if gpu else "cpu"
    x = torch.randn(16 if smoke else 128, 1 if smoke else 3, 32, 32, device=device)
    rows = {}
    for name, method in methods.items():
        torch.manual_seed(seed)
        made = ensemble(entry.network(), method, x[:2].cpu(), seed=seed).to(device)
        found: dict[str, float] = {}
        for label, precision in (("f32", "32"), ("f16", "fp16" if gpu else "bf16")):
            row = cost(made, x, 3 if smoke else 10, precision=precision, training=True).ensemble  # type: ignore[arg-type]
            found |= {f"{label}, s/epoch": row.epoch(50_000), f"{label}, im/s": row.throughput}
        rows[name] = found
    return Findings(rows, budget=f"medians of {3 if smoke else 10} calls with {len(x)} images")


def table_9(job: str, scale: str, root: Root) -> Job:
    """Packed ResNet-50 and one ResNeXt-50 on CIFAR-10."""
    single = find("packed/cifar10-resnet50").entry(Single)
    resnext = replace(single, model="resnext50", arguments={"classes": 10, "stem": "cifar"})
    rows = {"packed": single.with_method(Packed(members=4, alpha=2, gamma=1)), "resnext": resnext}
    return image_job("cifar10", rows, scale, root, epochs=20, about="Table 9 of the supplement of Packed-Ensembles.")


def table_10(scale: str, seed: int, root: Root) -> Findings:
    """Parameters and multiply-adds of the networks on ImageNet. MIMO's first layer is counted as wide as M inputs."""
    rows = {}
    for net, name in (("R50", "packed/imagenet-a3-resnet50"), ("R50x4", "packed/imagenet-a3-resnet50x4")):
        if net == "R50x4" and scale == "smoke":
            continue
        for label, counts in on_meta(find(name), 224).items():
            work = counts.multiply_adds + (_first_layers(find(name)) if label == "MIMO" else 0)
            rows[f"{label}, {net}"] = {"Params (M)": millions(counts.parameters), "Mult-Adds (G)": giga(work)}
    return Findings(rows, budget="counted on shapes alone")


def _first_layers(paper: Any) -> int:
    """Returns the multiply-adds that three more first layers take on two images."""
    with torch.device("meta"):
        network, x = paper.network(), torch.zeros(2, 3, 224, 224)
        first = network.conv1
        return int((paper.entry(MIMO).method.members - 1) * first.weight[0].numel() * first(x).numel())


def table_11(job: str, scale: str, root: Root) -> Job:
    """A split of a UCI set: Packed and Deep, means and variances."""
    name, _, split = job.rpartition("-")
    how = Recipe(
        epochs=5 if scale == "smoke" else 40, batch=32, lr=0.01, optimizer="adam", schedule="cosine", warmup=2, clip=100.0
    )
    hidden = {"hidden": 400} if name.startswith("protein") else {}
    packed = Entry(method=Packed(members=3, alpha=2, gamma=1), recipe=how, model="packed_regression", arguments=hidden)
    rows = {"packed": packed, "deep": packed.with_method(Deep(members=3), batches="own")}
    return uci_job(name, int(split), rows, root, task="gaussian", about="Table 11 of the supplement of Packed-Ensembles.")
