"""What the items of MIMO run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from multitudes import data, figures, models
from multitudes.analysis.planes import landscape
from multitudes.analysis.recorder import Trajectories
from multitudes.analysis.slots import conditional_variance
from multitudes.analysis.training_sets import bias_variance
from multitudes.analysis.weights import weight_share
from multitudes.conversion.convert import ensemble
from multitudes.data.dataset import Data
from multitudes.data.sources import Root, top_folder
from multitudes.ensemble import Ensemble
from multitudes.method import Method
from multitudes.methods import MIMO, BatchEnsemble, Deep, MCDropout, MultiHead, Packed, Single, TreeNet
from multitudes.prediction.predict import predict
from multitudes.prediction.prediction import Prediction
from multitudes.report.row import Row
from multitudes.scores.evidence import errors_in
from multitudes.scores.score import score
from multitudes.scores.shift import BASELINES, corruption_errors, mean_corruption_error, stability
from multitudes.shell.jobs import Job
from multitudes.shell.reproduce.item import Column, Findings
from multitudes.shell.reproduce.mimo import L1, L2, MEMBERS, REPEATS, RHOS
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

QUALITY = {"Accuracy": Column("accuracy"), "NLL": Column("nll")}
OF_MEMBERS = {"Accuracy": Column("member_accuracy"), "NLL": Column("member_nll")}


def fig_2(scale: str, seed: int, root: Root) -> Findings:
    """Squared bias, variance and error over the number of members."""
    smoke = scale == "smoke"
    sets, members, size = (4, (1, 3), 8) if smoke else (10, (1, 2, 3, 4, 5), 64)
    how = Recipe(epochs=150 if smoke else 1500, batch=min(size, 32), lr=0.01, optimizer="adam", schedule="cosine")

    def learn(points: Data, count: int, number: int) -> Ensemble:
        torch.manual_seed(1000 * seed + number)
        example = points.batch(slice(0, 8))[0]
        made = ensemble(models.mimo_mlp(), MIMO(members=count), example, task="regression", seed=1000 * seed + number)
        fit(made, points, replace(how, seed=1000 * seed + number), progress=False)
        return made

    test = data.noisy_function("test", seed=seed)
    found = bias_variance(
        learn,
        lambda number: data.noisy_function(examples=size, seed=1000 * seed + number + 1),
        test,
        members=members,
        sets=sets,
        progress=False,
    )
    names = ("bias", "variance", "error", "member_bias", "member_variance", "member_error")
    rows = {
        f"M = {count}": {name.replace("_", " "): getattr(found, name)[i] for name in names}
        for i, count in enumerate(found.members)
    }
    x = torch.linspace(-0.1, 0.6, 141)[:, None]
    points = data.noisy_function(examples=size, seed=1000 * seed + 1)
    learned = learn(points, 3, 0).eval()
    with torch.no_grad():
        outputs = learned(x).squeeze(-1)
    curves = figures.bands(
        x[:, 0],
        outputs.mean(0),
        outputs.var(0),
        outputs,
        (points.inputs[:, 0], points.targets[:, 0]),  # type: ignore[index]
    )
    return Findings(
        rows, {"parts": found.figure(), "members": curves}, budget=f"{sets} training sets, {how.epochs} epochs each"
    )


def _images(scale: str, root: Root) -> tuple[Data, Data, Recipe]:
    """Returns images for SmallCNN, and how it is trained."""
    how = Recipe(epochs=20, batch=128, lr=0.001, optimizer="adam", schedule="cosine")
    if scale == "smoke":
        train, test = data.fashion("train").subset(range(1000)), data.fashion("test").subset(range(300))
        return train, test, replace(how, epochs=4, batch=32, lr=0.003)
    return data.cifar10("train", root), data.cifar10("test", root), how


def _small(
    method: Method, train: Data, how: Recipe, seed: int, watch: Data | None = None
) -> tuple[Ensemble, Trajectories | None]:
    """Trains SmallCNN by a method; `watch` are images whose predictions are recorded after each epoch."""
    torch.manual_seed(seed)
    example = train.batch(slice(0, 8))[0]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made = ensemble(models.SmallCNN(channels=train.shape[0]), method, example, seed=seed).to(device)
    paths = None if watch is None else Trajectories(made, watch.batch(slice(None), device)[0])
    fit(made, train, replace(how, seed=seed), progress=False, loggers=paths)
    return made, paths


def fig_3(scale: str, seed: int, root: Root) -> Findings:
    """Landscapes of MIMO and of naive multihead."""
    train, test, how = _images(scale, root)
    steps, some = (5, test.subset(range(200))) if scale == "smoke" else (21, test.subset(range(2000)))
    rows, drawn = dict[str, Any](), dict[str, Any]()
    methods: dict[str, Method] = {"MIMO": MIMO(members=3), "Naive multihead": MultiHead(members=3)}
    for name, method in methods.items():
        made, _ = _small(method, train, how, seed)
        plane = landscape(made, some, (0, 1, 2), steps=steps, progress=False, seed=seed)
        scores = score(predict(made, test, progress=False))
        middle = (plane.corners.mean(0) - torch.stack(torch.meshgrid(plane.x, plane.y, indexing="xy"), -1)).norm(dim=-1)
        assert plane.accuracy is not None and plane.corner_accuracy is not None
        rows[name] = {
            "accuracy": scores["accuracy"], "accuracy of members": plane.corner_accuracy.mean(),
            "accuracy at the middle": plane.accuracy.flatten()[middle.flatten().argmin()],
            "disagreement": scores["disagreement"],
        }  # fmt: skip
        slug = name.lower().replace(" ", "-")
        drawn |= {f"{slug}-accuracy": plane.figure("accuracy"), f"{slug}-disagreement": plane.figure("disagreement")}
    return Findings(rows, drawn, budget=f"{how.epochs} epochs of {len(train)} images")


def fig_4(scale: str, seed: int, root: Root) -> Findings:
    """Conditional variances, trajectories and diversity of subnetworks."""
    train, test, how = _images(scale, root)
    some = test.subset(range(64 if scale == "smoke" else 500))
    methods: dict[str, Method] = {"MIMO (M = 3)": MIMO(members=3), "Naive multihead (M = 3)": MultiHead(members=3)}
    if scale != "smoke":
        methods |= {
            "TreeNet (M = 3)": TreeNet(members=3), "BatchEnsemble (M = 4)": BatchEnsemble(members=4),
            "Ensemble (M = 4)": Deep(members=4),
        }  # fmt: skip
    rows, drawn = dict[str, dict[str, float]](), dict[str, Any]()
    for name, method in methods.items():
        made, paths = _small(method, train, how, seed, some if name.startswith("MIMO") else None)
        scores = score(predict(made, test, progress=False))
        rows[name] = {key: scores[key] for key in ("disagreement", "kl_diversity")}
        if paths is not None:
            drawn["trajectories"] = paths.figure("pca" if scale == "smoke" else "tsne")
            rows[name]["share of the larger variance"], drawn["variances-3"] = _separation(made, some)
    pair, _ = _small(MIMO(members=2), train, how, seed)
    larger, drawn["variances-2"] = _separation(pair, some)
    rows["MIMO (M = 2)"] = {"share of the larger variance": larger}
    return Findings(rows, drawn, budget=f"{how.epochs} epochs of {len(train)} images")


def _separation(made: Ensemble, images: Data) -> tuple[float, Figure]:
    """Returns the mean share of a unit's variance that its own input has: 1/M if units belong to all inputs alike, at most "
    "1."""
    device = next(made.parameters()).device
    found = conditional_variance(made, images.batch(slice(None), device)[0], contexts=8)
    used = found.variance.sum(0) > 0
    return float((found.variance.max(0).values[used] / found.variance.sum(0)[used]).mean()), found.figure()


def _wide(job: str, scale: str) -> Entry:
    """Returns MIMO on a WideResNet: 28-10 at full, 16-4 at small, without repetition of examples."""
    entry = find(f"mimo/{job}").entry(MIMO)
    if scale == "full":
        return entry
    return replace(entry, model="wideresnet16_4", method=MIMO(members=3), recipe=replace(entry.recipe, batch=128, warmup=0.0))


def fig_5(job: str, scale: str, root: Root) -> Job:
    """A WideResNet on CIFAR: the number of subnetworks."""
    base = _wide(job, scale)
    rows = {f"m{m}": base.with_method(replace(base.method, members=m)) for m in MEMBERS}
    return image_job(job, rows, scale, root, epochs=20, about="Fig. 5 of MIMO.")


def draw_fig_5(results: Sequence[Result]) -> dict[str, Figure]:
    """Accuracy and NLL over M, of ensembles and of subnetworks."""
    drawn = {}
    for kind in ("C10", "C100"):
        rows = [(float(one.label.rpartition("=")[2]), one) for one in results if one.label.startswith(f"{kind},")]
        if rows:
            points = {"ensemble": QUALITY, "subnetworks": OF_MEMBERS}
            scores = {
                heading: {name: _curve(rows, columns[heading]) for name, columns in points.items()} for heading in QUALITY
            }
            drawn[kind.lower()] = figures.sweep(scores, setting="M")
    return drawn


def _curve(rows: Sequence[tuple[float, Result]], column: Column) -> tuple[list[float], list[float]]:
    points = sorted((at, value) for at, row in rows if (value := drawing.mean(row, column)) is not None)
    return [x for x, _ in points], [y for _, y in points]


def fig_6(job: str, scale: str, root: Root) -> Job:
    """MIMO with repeated inputs, or repeated batches."""
    if job == "imagenet":
        paper = find("mimo/imagenet")
        own = {
            f"{net}-rho{rho:g}": replace(
                paper.entry(MIMO), method=MIMO(members=2, rho=rho, repeat=2), model=model, arguments=arguments
            )
            for net, model, arguments in (("R50", "resnet50", paper.entry(MIMO).arguments), ("R50x2", "resnet50x2", {}))
            for rho in RHOS
        }
        return imagenet_job(paper, own, root, about="Fig. 6 of MIMO.")
    base = _wide("cifar100", scale)
    if job == "rho":
        rows = {f"rho{rho:g}": base.with_method(MIMO(members=2, rho=rho)) for rho in RHOS}
    else:
        rows = {f"repeat{n}": base.with_method(MIMO(members=2, repeat=n)) for n in REPEATS}
    return image_job("cifar100", rows, scale, root, epochs=20, about="Fig. 6 of MIMO.")


def draw_fig_6(results: Sequence[Result]) -> dict[str, Figure]:
    """Accuracy and NLL over ρ and over repetitions."""
    rho, repeat = dict[str, list[tuple[float, Result]]](), dict[str, list[tuple[float, Result]]]()
    for one in results:
        if found := re.search(r"ρ = ([\d.]+)", one.label):
            network = one.label[: found.start()].rstrip(", ") or "MIMO"
            rho.setdefault(network, []).append((float(found[1]), one))
        elif found := re.match(r"(\d+) rep", one.label):
            repeat.setdefault("MIMO", []).append((float(found[1]), one))
    drawn = {}
    for name, groups, setting in (("rho", rho, "ρ"), ("repetition", repeat, "Repetitions of a batch")):
        if groups:
            drawn[name] = drawing.over_setting(groups, QUALITY, setting)["curves"]
    return drawn


def _rows(job: str) -> dict[str, Entry]:
    """Returns the rows of Table 1 or 2 by name."""
    paper = find(f"mimo/{job}")
    kinds: dict[str, type[Method]] = {
        "single": Single, "dropout": MCDropout, "multihead": MultiHead, "mimo": MIMO, "treenet": TreeNet,
        "batchensemble": BatchEnsemble, "deep": Deep,
    }  # fmt: skip
    rows = {name: paper.entry(kind) for name, kind in kinds.items()}
    return {**rows, "thin": rows["single"].with_method(Packed(members=4, alpha=2, gamma=1), batches="same")}


def table_1(job: str, scale: str, root: Root) -> Job:
    """WideResNet-28-10 on CIFAR-10, also on corrupted images."""
    return image_job(job, _rows(job), scale, root, epochs=20, shifted=True, about=f"MIMO, {job}.")


table_2 = table_1


def _imagenet() -> Mapping[str, Entry]:
    """Returns the rows of Table 3 by name."""
    paper = find("mimo/imagenet")
    kinds: dict[str, type[Method]] = {
        "single": Single, "multihead": MultiHead, "mimo": MIMO, "treenet": TreeNet,
        "batchensemble": BatchEnsemble, "deep": Deep,
    }  # fmt: skip
    rows = {name: paper.entry(kind) for name, kind in kinds.items()}
    wide: dict[str, Any] = {"model": "resnet50x2", "arguments": {}}
    return {**rows, "wide": replace(rows["single"], **wide), "wide-mimo": replace(rows["mimo"], **wide)}


def table_3_counts(scale: str, seed: int, root: Root) -> Findings:
    """Parameters of the rows of Table 3."""
    labels = {
        "single": "Deterministic", "mimo": "MIMO (M = 2) (ρ = 0.6)", "deep": "Ensemble (M = 4)", "wide": "Wide Deterministic",
        "wide-mimo": "Wide MIMO (M = 2) (ρ = 0.6)",
    }  # fmt: skip
    shown = ("single", "mimo") if scale == "smoke" else tuple(labels)
    rows = _imagenet()
    found = {labels[name]: {"Params (M)": millions(counted(rows[name], 224).parameters)} for name in shown}
    return Findings(found, budget="counted on shapes alone")


def table_3(job: str, scale: str, root: Root) -> Job:
    """ResNet-50 on ImageNet and ImageNet-C."""
    return imagenet_job(find("mimo/imagenet"), _imagenet(), root, corrupted=True, about="Table 3 of MIMO.")


def table_4(job: str, scale: str, root: Root) -> Job:
    """ResNet-50 on ImageNet and all its shifted sets."""
    rows = {name: entry for name, entry in _imagenet().items() if name in ("single", "mimo", "wide-mimo")}
    top = Path(top_folder("imagenet", root))

    def measure(made: Ensemble, prediction: Prediction) -> dict[str, float]:
        objects = data.objectnet(top)
        assert objects.groups is not None
        answers = data.grouped(predict(made, objects, progress=False).probs, objects.groups).argmax(-1)
        found = {"objectnet": float((answers == objects.targets).double().mean())}
        for name, folder in (("vid-robust", "imagenet-vid-robust"), ("ytbb-robust", "ytbb-robust")):
            videos = data.frames(top / folder)
            seen = predict(made, videos.data, progress=False)
            found[name] = stability(videos.correct(seen.labels), videos.anchors)
        return found

    return imagenet_job(
        find("mimo/imagenet"), rows, root, corrupted=True, shifts={"imagenet-a": "imagenet-a", "imagenetv2": "imagenetv2"},
        measure=measure, about="Table 4 of MIMO.",
    )  # fmt: skip


def derive_mce(row: Row, rows: Mapping[str, Row]) -> dict[str, float]:
    """The mean corruption error against AlexNet, as a share."""
    if not any(name.endswith("/accuracy") for name in row.scores):
        return {}
    return {"mCE": mean_corruption_error(corruption_errors(errors_in(row.scores), BASELINES["alexnet"]))[0]}


def fig_7(job: str, scale: str, root: Root) -> Job:
    """A WideResNet on CIFAR: numbers of subnetworks and strengths of L1."""
    kind = job.partition("-")[0]
    base = _wide(kind, scale)
    rows = {
        f"m{m}-{s:g}": base.with_method(replace(base.method, members=m), weight_decay=0.0, l1=s)
        for m in (1, 2, 3, 4) for s in L1
    }  # fmt: skip

    def measure(made: Ensemble, prediction: Prediction) -> dict[str, float]:
        return {"weights in use": weight_share(made, 1e-4).total}

    return image_job(kind, rows, scale, root, epochs=20, measure=measure, about="Fig. 7 of MIMO.")


def fig_8(job: str, scale: str, root: Root) -> Job:
    """A WideResNet on CIFAR: numbers of subnetworks and strengths of L2; torch's weight decay is twice the strength."""
    kind = job.partition("-")[0]
    base = _wide(kind, scale)
    rows = {
        f"m{m}-{s:g}": base.with_method(replace(base.method, members=m), weight_decay=2 * s)
        for m in (1, 2, 3, 4) for s in L2
    }  # fmt: skip
    return image_job(kind, rows, scale, root, epochs=20, about="Fig. 8 of MIMO.")


def _by_members(results: Sequence[Result]) -> dict[str, list[tuple[float, Result]]]:
    """Groups rows by data and M: (strength, row)."""
    groups: dict[str, list[tuple[float, Result]]] = {}
    for one in results:
        kind, members, strength = (part.strip() for part in one.label.split(","))
        groups.setdefault(f"{kind}, {members}", []).append((float(strength.rpartition("=")[2]), one))
    return groups


def draw_fig_7(results: Sequence[Result]) -> dict[str, Figure]:
    """Accuracy and NLL over the strength of the regularisation; a strength of 0 has no place on the axis."""
    groups = {name: [(at, row) for at, row in rows if at > 0] for name, rows in _by_members(results).items()}
    return drawing.over_setting(groups, QUALITY, "Strength", log=True)


def draw_fig_9(results: Sequence[Result]) -> dict[str, Figure]:
    """Accuracy and NLL over the share of weights in use."""
    column = Column("measured/weights in use")
    groups = {
        name: [(share, row) for _, row in rows if (share := drawing.mean(row, column)) is not None]
        for name, rows in _by_members(results).items()
    }
    return drawing.over_setting(groups, QUALITY, "Share of weights with |w| > 1e-4")
