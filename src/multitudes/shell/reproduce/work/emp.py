"""What the items of Ensemble Model Patching run."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from multitudes import figures, models
from multitudes.analysis.functions import function_prior
from multitudes.analysis.parameter_counts import MULTIPLES, counts
from multitudes.conversion.convert import ensemble
from multitudes.data.sources import Root
from multitudes.ensemble import Ensemble
from multitudes.method import Method
from multitudes.methods import ECMP, EMP, Deep, DropConnect, MCDropout, Single
from multitudes.prediction.predict import predict
from multitudes.prediction.prediction import Prediction
from multitudes.report.row import Row
from multitudes.scores.calibration import reliability
from multitudes.scores.evidence import errors_in
from multitudes.scores.score import score
from multitudes.scores.shift import corruption_errors, mean_corruption_error
from multitudes.shell.jobs import Job
from multitudes.shell.reproduce.emp import SHORTER
from multitudes.shell.reproduce.item import Column, Findings
from multitudes.shell.reproduce.results import Result
from multitudes.shell.reproduce.work import drawing
from multitudes.shell.reproduce.work.counting import counted
from multitudes.shell.reproduce.work.image_jobs import NORMED, image_job, imagenet_job
from multitudes.shell.reproduce.work.uci_jobs import uci_job
from multitudes.training.paper_recipe import Entry
from multitudes.training.recipes import find

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS: dict[str, Any] = {"bins": 20, "drop": 5}
"""How the paper computes calibration errors."""
DRAWS = (1, 20, 100, 200)
WIDTH = 16
"""Units of the networks whose zeros are counted."""


@functools.cache
def _networks() -> dict[str, tuple[nn.Module, Tensor]]:
    """Returns the networks that are counted, and an input for each, as shapes only."""
    with torch.device("meta"):
        return {
            "MLP": (models.emp_mlp(), torch.zeros(4, 1)),
            "ResNet-18": (models.resnet18(stem="imagenet", classes=1000), torch.zeros(2, 3, 224, 224)),
            "PyramidNet": (models.pyramidnet110_270(), torch.zeros(2, 3, 32, 32)),
        }


@functools.cache
def _counts(net: str) -> dict[str, tuple[int, float]]:
    """Returns parameters and overhead of each method on a network."""
    found = counts(*_networks()[net])
    return {row.name: (row.parameters, row.overhead) for row in found.rows}


def table_1(scale: str, seed: int, root: Root) -> Findings:
    """Parameters of variational methods on ResNet-18 and PyramidNet."""
    labels = {"mean-field Gaussian": "Mean-Field Gaussian", "PBP": "PBP", "MNFG": "MNFG", "dropout": "Dropout"}
    labels["EMP"] = "Ensemble Model Patching"
    assert set(MULTIPLES) <= set(labels)
    rows: dict[str, dict[str, float]] = {label: {} for label in labels.values()}
    columns = {"ResNet-18": ("ResNet-18 (M)", "overhead (%)"), "PyramidNet": ("PyramidNet (M)", "PyramidNet, overhead (%)")}
    for net, (size, overhead) in list(columns.items())[: 1 if scale == "smoke" else 2]:
        for name, label in labels.items():
            parameters, more = _counts(net)[name]
            rows[label] |= {size: parameters / 1e6, overhead: 100 * more}
    return Findings(rows, budget="counted on shapes alone")


def table_3(scale: str, seed: int, root: Root) -> Findings:
    """Parameters of ensemble-based methods on three networks."""
    labels = {"EMP": "EMP", "ECMP": "ECMP", "dropout": "Dropout", "DropConnect": "DropConnect"}
    labels["explicit ensemble"] = "Explicit Ensemble"
    nets = ("MLP", "ResNet-18") if scale == "smoke" else ("MLP", "ResNet-18", "PyramidNet")
    rows = {label: {net: float(_counts(net)[name][0]) for net in nets} for name, label in labels.items()}
    return Findings(rows, budget="counted on shapes alone")


def table_2(scale: str, seed: int, root: Root) -> Findings:
    """How often members draw a component: of a layer (EMP), of an element (ECMP), or a zero (dropout, DropConnect)."""
    members = 200 if scale == "smoke" else 2000
    torch.manual_seed(seed)
    x = torch.randn(8, 4)
    rows: dict[str, dict[str, float]] = {}
    for name, method in (("EMP", EMP(members=members, patch="output")), ("ECMP", ECMP(members=members, patch="output"))):
        made = ensemble(nn.Sequential(nn.Linear(4, 4)), method, x, task="regression", seed=seed)
        (key,) = [name for name, _ in made.named_parameters() if name.endswith("weight")]
        stored = made.get_parameter(key).detach()
        drawn = torch.stack([made.member(m).get_parameter(key).detach() for m in range(members)])
        shares = [(drawn == component).double().mean() for component in stored]
        for k, share in enumerate(shares):
            rows[f"{name}, component {k + 1}"] = {"expected": 1 / len(shares), "drawn": float(share), "draws": members}
    passing = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))
    for name, other in (("Dropout", MCDropout(members=members, p=0.3)), ("DropConnect", DropConnect(members=members, p=0.3))):
        for number, layer in enumerate(passing):
            full = number == 1 and name == "DropConnect"
            nn.init.constant_(layer.weight, 1.0) if full else nn.init.eye_(layer.weight)  # type: ignore[arg-type]
        made = ensemble(passing, other, torch.ones(2, WIDTH), task="regression", seed=seed, start="copies")
        rows[f"{name}, zero component"] = {"expected": 0.3, "drawn": _zeros(made), "draws": members}
    return Findings(rows, budget=f"{members} members")


def _zeros(made: Ensemble) -> float:
    """Returns the share of zeros among weights that members draw, or among the units of a network that passes ones on."""
    if isinstance(made.method, DropConnect):
        weights = [made.member(m).state_dict()["1.weight"] for m in range(made.members)]
        return float((torch.stack(weights) == 0).double().mean())
    with torch.no_grad():
        return float((made.eval()(torch.ones(1, WIDTH)) == 0).double().mean())


class Sign(nn.Module):
    """The activation of Fig. 3."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape: ``[...]`` → ``[...]``"""
        return x.sign()


def fig_3(scale: str, seed: int, root: Root) -> Findings:
    """Functions that the Gaussian prior, dropout, EMP and others draw."""
    draws, points = (50, 101) if scale == "smoke" else (500, 401)
    x = torch.linspace(-4, 4, points)
    net = nn.Sequential(nn.Linear(1, 100), Sign(), nn.Linear(100, 1))
    methods: dict[str, Method] = {
        "Gaussian prior": Single(), "Dropout": DropConnect(members=2, p=0.5),
        "EMP": EMP(members=2, components=5, patch=("0", "2")), "ECMP": ECMP(members=2, components=5, patch=("0", "2")),
    }  # fmt: skip
    rows, drawn = {}, {}
    for name, method in methods.items():
        made = ensemble(net, method, torch.randn(4, 1), task="regression", seed=seed)
        kept = 1 - method.p if isinstance(method, DropConnect) else 1.0  # it divides weights by this; Fig. 3 does not
        prior = function_prior(made, x, draws, weight_variance=5 * kept**2, bias_variance=20, seed=seed)
        jumps = (prior.values.diff(dim=1).abs() > 0).double().sum(1).mean()
        rows[name] = {"variance at 0": prior.variance[points // 2], "variance at 4": prior.variance[-1], "jumps": float(jumps)}
        drawn[name.lower().replace(" ", "-")] = prior.figure(curves=3)
    return Findings(rows, drawn, budget=f"{draws} functions on {points} points")


def table_4_counts(scale: str, seed: int, root: Root) -> Findings:
    """Parameter overheads of the rows of Table 4."""
    labels = {"emp": "EMP (BN+out)", "emp-bn": "EMP (BN)", "ecmp": "ECMP (BN+out)", "ecmp-bn": "ECMP (BN)"}
    labels |= {"dropout": "Dropout", "single": "Vanilla"}
    rows = {}
    for name, entry in _large().items():
        few = entry.method if name == "single" else replace(entry.method, members=2)
        found = counted(replace(entry, method=few), 224)
        rows[labels[name]] = {"overhead": found.parameters / found.base_parameters - 1}
    return Findings(rows, budget="counted on shapes alone")


def _large() -> dict[str, Entry]:
    """Returns the rows of Table 4 by name."""
    paper = find("emp/imagenet")
    rows = {"dropout": paper.entry(MCDropout), "single": paper.entry(Single)}
    for entry in paper.entries:
        if isinstance(entry.method, (EMP, ECMP)):
            bare = "-bn" if entry.method.patch == "norm" else ""
            rows[f"{type(entry.method).__name__.lower()}{bare}"] = entry
    return rows


def _measure(made: Ensemble, prediction: Prediction) -> dict[str, float]:
    """Overhead, the bins of the calibration curve, and the scores of fewer draws."""
    size = sum(p.numel() for p in made.parameters())
    found = {"overhead": size / sum(p.numel() for p in made.base.parameters()) - 1}
    targets = prediction.targets
    assert targets is not None
    bins = reliability(prediction.confidence, prediction.labels == targets, BINS["bins"])
    for index in torch.nonzero(bins.count > BINS["drop"]).flatten().tolist():
        means = {"confidence": float(bins.confidence[index]), "accuracy": float(bins.accuracy[index])}
        found |= {f"bins/{index:02d}/{name}": value for name, value in means.items()}
    if prediction.has_members:
        for count in DRAWS:
            if count <= prediction.count:
                few = score(prediction.subset(range(count)), **BINS)
                found |= {f"draws/{count}/{key}": few[key] for key in ("top5", "accuracy", "ece", "mce") if key in few}
    return found


def table_6(job: str, scale: str, root: Root) -> Job:
    """PyramidNet on CIFAR-100; at small ResNet-18."""
    paper = find("emp/cifar100")
    rows = {
        "emp": paper.entry(EMP),
        "ecmp": paper.entry(ECMP),
        "dropout": paper.entry(MCDropout),
        "single": paper.entry(Single),
    }
    rows |= {
        "emp-zero": rows["emp"].with_method(EMP(members=200, zero_component=True)),
        "ecmp-zero": rows["ecmp"].with_method(ECMP(members=200, zero_component=True)),
    }
    if scale == "smoke":
        rows = {name: _fewer(entry) for name, entry in rows.items()}
    elif scale == "small":
        rows = {name: replace(entry, model="resnet18", arguments={"classes": 100}) for name, entry in rows.items()}
    about = "Table 6 of Ensemble Model Patching."
    return image_job("cifar100", rows, scale, root, epochs=40, scoring=BINS, measure=_measure, network=NORMED, about=about)


def _fewer(entry: Entry) -> Entry:
    """Returns an entry with 4 draws at most."""
    return replace(entry, method=replace(entry.method, members=min(4, entry.method.members)))


def table_4(job: str, scale: str, root: Root) -> Job:
    """ResNet-18 on ImageNet, also under the corruptions of ImageNet-C."""
    about = "Table 4 of Ensemble Model Patching."
    made = imagenet_job(find("emp/imagenet"), _large(), root, corrupted=True, scoring=BINS, about=about)
    return replace(made, measure=functools.partial(_measure_again, made.test))


def _measure_again(test: Any, made: Ensemble, prediction: Prediction) -> dict[str, float]:
    """As `_measure`, and the scores of fewer draws by predicting again: members' outputs on ImageNet are too many to keep."""
    found = _measure(made, prediction)
    if made.method.draws:
        for count in (one for one in DRAWS if one <= made.members):
            few = predict(made.subset(range(count)), test, moments_only=True, progress=False)
            scores = score(few, **BINS)
            found |= {f"imagenet/{count}/{key}": scores[key] for key in ("top5", "accuracy", "ece", "mce") if key in scores}
    return found


def derive_corruption_errors(row: Row, rows: Mapping[str, Row]) -> dict[str, float]:
    """Errors under corruption over those of the vanilla network, as shares: CE, rCE, and their means."""
    if "single" not in rows or not all(f"{name}/1/accuracy" in row.scores for name in SHORTER):
        return {}
    each = corruption_errors(errors_in(row.scores), errors_in(rows["single"].scores))
    mean, relative = mean_corruption_error(each)
    found = {"mCE": mean, "rmCE": relative}
    for name, (ce, rce) in each.items():
        found |= {f"{name}/CE": ce, f"{name}/rCE": rce}
    return found


def draw_calibration(results: Sequence[Result]) -> dict[str, Figure]:
    """Accuracy over confidence, a curve for each row."""
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for one in results:
        found = one.runs[0].measured
        keys = sorted(key for key in found if key.startswith("bins/") and key.endswith("/confidence"))
        if keys:
            curves[one.label] = ([found[key] for key in keys], [found[key.replace("confidence", "accuracy")] for key in keys])
    if not curves:
        return {}
    return {"calibration": figures.sweep({"Accuracy": {**curves, "perfect": ([0.0, 1.0], [0.0, 1.0])}}, setting="Confidence")}


def draw_draws(results: Sequence[Result]) -> dict[str, Figure]:
    """Accuracy and ECE over the number of draws."""
    columns = {"Top-1": Column("measured/draws/{key}/accuracy"), "ECE": Column("measured/draws/{key}/ece")}
    rows = [(float(one.label.rpartition("=")[2]), one) for one in results]
    return drawing.over_setting({"draws": rows}, columns, "Number of draws", log=True)


def draw_fig_6(results: Sequence[Result]) -> dict[str, Figure]:
    """ECE over the number of draws, a curve for each method."""
    curves = {}
    for one in results:
        points = [(s, value) for s in DRAWS if (value := drawing.mean(one, Column(f"measured/draws/{s}/ece"))) is not None]
        if points:
            curves[one.label] = ([float(s) for s, _ in points], [value for _, value in points])
    return {"draws": figures.sweep({"ECE": curves}, setting="Number of draws", log=True)} if curves else {}


def table_12(job: str, scale: str, root: Root) -> Job:
    """A split of a UCI set: EMP, ECMP, dropout and an explicit ensemble with a fixed precision."""
    name, _, split = job.rpartition("-")
    paper = find("emp/regression")
    kinds: dict[str, type[Method]] = {"ecmp": ECMP, "emp": EMP, "dropout": MCDropout, "deep": Deep}
    large = {"hidden": 100} if name in ("protein-tertiary-structure", "year") else {}
    epochs, draws = {"smoke": (20, 100), "small": (400, 1000)}.get(scale, (4000, 10_000))
    rows = {}
    for row, kind in kinds.items():
        entry = paper.entry(kind)
        how = {**entry.prediction, **({"draws": draws} if "draws" in entry.prediction else {})}
        rows[row] = entry.with_method(entry.method, arguments=large, prediction=how, epochs=epochs)
    targets = 2 if name in ("energy", "naval-propulsion-plant") else 1
    about = "Tables 12 and 13 of Ensemble Model Patching."
    return uci_job(name, int(split), rows, root, task="regression", targets=targets, standardise="inputs", about=about)
