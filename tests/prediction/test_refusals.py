"""Refusals of the room: a bad call raises an error that names the argument, the shape or the place at fault."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from laws.compare import convert
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from zoo import ZOO

import multitudes as mt
from multitudes.engine.selected_output import output_of
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.tasks import combine
from multitudes.prediction.temperature import Calibrator

GENERATOR = torch.Generator().manual_seed(3)
LOGITS = 2 * torch.randn(4, 9, 5, dtype=torch.float64, generator=GENERATOR)
PROBS = LOGITS.softmax(2)
PIXELS = 2 * torch.randn(4, 9, 5, 2, 3, dtype=torch.float64, generator=GENERATOR)
ONE, MEAN = LOGITS[..., 0], LOGITS[..., :2]
VARIANCE = MEAN.exp()


def broken(value: Tensor, at: tuple[Any, ...], number: float) -> Tensor:
    """The values with one of them replaced."""
    value = value.clone()
    value[at] = number
    return value


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({}, "nothing"),
    ({"logits": LOGITS, "probs": PROBS}, "logits and probs"),
    ({"logits": LOGITS, "mean": MEAN}, "logits and mean"),
    ({"variance": VARIANCE}, "mean= and variance="),
    ({"mean": MEAN, "task": "gaussian"}, "mean= and variance="),
    ({"mean": MEAN, "task": "classes"}, "logits= or probs="),
    ({"logits": LOGITS, "task": "regression"}, "mean="),
    ({"logits": LOGITS, "task": "numbers"}, "task='numbers'"),
    ({"mean": MEAN, "variance": VARIANCE[:, :, :1]}, r"\[4, 9, 2\] and \[4, 9, 1\]"),
    ({"logits": torch.ones(4, 9, 5, dtype=torch.long)}, "logits .*torch.int64"),
    ({"logits": torch.ones(4, 9, 5, dtype=torch.complex64)}, "logits .*torch.complex64"),
    ({"mean": torch.ones(4)}, r"mean .*\[4\].*mean\[None\]"),
    ({"logits": torch.ones(0, 9, 5)}, r"logits .*\[0, 9, 5\]"),
    ({"logits": ONE}, r"\[4, 9\].*task='binary'"),
    *(({"logits": LOGITS, "class_axis": axis}, f"class_axis={axis}") for axis in (0, 2, -2, -3)),
    ({"logits": LOGITS, "targets": torch.zeros(8)}, r"targets .*\[8\].* 9 "),
    ({"probs": LOGITS}, "probs .*logits="),
    ({"probs": LOGITS.sigmoid()}, "probs .*task='multilabel'"),
    ({"probs": -ONE.sigmoid(), "task": "binary"}, "probs .*-0"),
    ({"probs": torch.full((2, 3), 1.5), "task": "multilabel"}, "probs .*1.5"),
    ({"probs": PROBS * torch.tensor([1, 1, 1, 0.99])[:, None, None]}, r"member 3 and example 0 sum to 0\.99"),
    ({"mean": MEAN, "variance": -VARIANCE}, "variance"),
    ({"logits": broken(LOGITS, (2, 6, 1), math.nan)}, "logits .*NaN.*member 2 and example 6"),
    ({"logits": broken(PIXELS, (2, 6, 1), math.nan).movedim(2, -1), "class_axis": -1}, "member 2 and example 6"),
    ({"probs": broken(PROBS, (2, 6, 1), math.nan)}, "probs .*NaN"),
    ({"mean": broken(MEAN, (1, 0), math.nan)}, "mean .*NaN.*member 1 and example 0"),
    ({"mean": MEAN, "variance": broken(VARIANCE, (1, 2), math.nan)}, "variance .*NaN"),
    ({"logits": broken(LOGITS, (1, 2), math.inf)}, "logits .*inf"),
    ({"probs": broken(PROBS, (1, 2), math.inf)}, "probs .*inf"),
    ({"mean": broken(MEAN, (1, 2), -math.inf)}, "mean .*inf"),
    ({"mean": MEAN, "variance": broken(VARIANCE, (1, 2), math.inf)}, "variance .*inf"),
    ({"logits": broken(LOGITS, (1, 4), -math.inf)}, "member 1 and example 4"),
]


@pytest.mark.parametrize(("arguments", "noun"), ARGUMENTS)
def test_arguments_of_a_prediction(arguments: dict[str, Any], noun: str) -> None:
    """Wrong names, dtypes, shapes and axes, and values that have no meaning."""
    with pytest.raises(mt.InputError, match=noun):
        Prediction(**arguments)


CLASSES, GAUSSIAN = Prediction(logits=LOGITS), Prediction(mean=MEAN, variance=VARIANCE)
GIVEN_PROBS, MEANS = Prediction(probs=PROBS), Prediction(mean=MEAN)
TARGETS = torch.zeros(9, dtype=torch.int64)
HELD = Prediction.of_moments("gaussian", 4, {name: getattr(GAUSSIAN, name) for name in ("mean", "aleatoric", "epistemic")})
HELD_CLASSES = Prediction.of_moments("classes", 4, {**CLASSES.described(), "logs": CLASSES.logs})
OTHERS = {
    "members": Prediction(logits=LOGITS[:3]),
    "probs": GIVEN_PROBS,
    "classes": Prediction(logits=LOGITS[..., :4]),
    "pixels": Prediction(logits=PIXELS),
    "calibrator": CLASSES.calibrated(Calibrator(mixture=2.0)),
    "binary": Prediction(logits=ONE, task="binary"),
    "mean": MEANS,
}

CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    **{f"classes.{name}": (lambda n=name: getattr(CLASSES, n), "task='classes'") for name in ("mean", "std", "epistemic")},
    "classes.interval": (lambda: CLASSES.interval(0.9), "task='classes'"),
    "classes.sample": (lambda: CLASSES.sample(2), "task='classes'"),
    "classes.log_density": (lambda: CLASSES.log_density(0), "task='classes'"),
    **{f"gaussian.{n}": (lambda n=n: getattr(GAUSSIAN, n), "task='gaussian'") for n in ("labels", "probs", "classes")},
    "gaussian.described": (lambda: GAUSSIAN.described(), "task='gaussian'"),
    "probs.energy": (lambda: GIVEN_PROBS.energy, "energy .*logits="),
    "means.sample": (lambda: MEANS.sample(2), "sample .*tau_output"),
    "means.log_density": (lambda: MEANS.log_density(MEAN[0]), "log_density .*task='gaussian'"),
    "one mean.interval": (lambda: MEANS.subset([0]).interval(), "interval .*task='gaussian'"),
    "moments.sample": (lambda: HELD.sample(3), "moments_only=False"),
    "moments.log_density": (lambda: HELD.log_density(MEAN[0]), "moments_only=False"),
    **{f"level={x}": (lambda x=x: GAUSSIAN.interval(x), f"level={x}") for x in (0.0, 1.0, -0.1, 95, math.nan)},
    "no members": (lambda: CLASSES.subset([]), "subset"),
    "cat nothing": (lambda: Prediction.cat([]), "cat"),
    **{f"cat {name}": (lambda other=other: Prediction.cat([CLASSES, other]), "cat") for name, other in OTHERS.items()},
    "calibrated twice": (lambda: OTHERS["calibrator"].calibrated(Calibrator(mixture=2.0)), "already calibrated"),
    "calibrate twice": (lambda: mt.calibrate(OTHERS["calibrator"], TARGETS), "ens.calibrator = None"),
    "calibrate of": (lambda: mt.calibrate(CLASSES, TARGETS, of="all"), "of='all'"),
    "calibrate untargeted": (lambda: mt.calibrate(CLASSES), "no targets"),
    "calibrate lengths": (lambda: mt.calibrate(CLASSES, TARGETS[:7]), "targets"),
    "calibrate labels": (lambda: mt.calibrate(CLASSES, TARGETS + 5), "target 5"),
    "calibrate nothing": (lambda: mt.calibrate(CLASSES[:0], TARGETS[:0]), "at least one example"),
    "calibrate ignored": (lambda: mt.calibrate(CLASSES, TARGETS, ignore=0), "at least one example"),
    "calibrate moments": (lambda: mt.calibrate(HELD_CLASSES, TARGETS), "moments_only=False"),
    "calibrate means": (lambda: mt.calibrate(MEANS, MEAN[0]), "only means: convert with task='gaussian'"),
    "calibrate each variance": (lambda: mt.calibrate(GAUSSIAN, MEAN[0], of="members"), "of='mixture'"),
    "calibrate no numbers": (lambda: mt.calibrate(GAUSSIAN[:0], MEAN[0][:0]), "at least one example"),
    "calibrate held": (lambda: mt.calibrate(HELD, MEAN[0]), "moments_only=False"),
    "calibrate no variance": (lambda: mt.calibrate(Prediction(mean=MEAN, variance=0 * MEAN), MEAN[0]), "variances are 0"),
    "calibrated gaussian": (lambda: GAUSSIAN.calibrated(Calibrator(mixture=2.0)), r"task='gaussian'.*Calibrator\(variance="),
    "calibrated means": (lambda: MEANS.calibrated(Calibrator(variance=2.0)), "only means"),
    "calibrated variance": (lambda: CLASSES.calibrated(Calibrator(variance=2.0)), "task='classes' has no variances"),
    "both": (lambda: Calibrator(variance=2.0, mixture=2.0), "either"),
    **{f"factor {x}": (lambda x=x: Calibrator(variance=x), "factor of variances") for x in (0.0, -1.0, math.nan, math.inf)},
    "calibrated probs": (lambda: GIVEN_PROBS.calibrated(Calibrator(members=(1.0,) * 4)), "logits"),
    "calibrated members": (lambda: CLASSES.calibrated(Calibrator(members=(1.0, 2.0))), "2 .* 4 members"),
    **{
        f"temperatures {settings}": (lambda s=settings: Calibrator(**s), "temperature")
        for settings in (
            {}, {"mixture": 1.0, "members": (1.0,)}, {"mixture": 0.0}, {"mixture": -1.0}, {"mixture": math.inf},
            {"mixture": math.nan}, {"members": (1.0, 0.0)}, {"members": (1.0, math.nan)}, {"members": ()},
        )
    },
    "unnamed output": (lambda: output_of({"scores": ONE, "more": [ONE]}, None), r"scores, more\.0.*output="),
    "no output": (lambda: output_of({"note": "text"}, None), "no tensor"),
    "odd gaussian": (lambda: combine(LOGITS, "gaussian"), r"task='gaussian'.*\[4, 9, 5\]"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    """Statistics that a task does not have, invalid temperatures, outputs without a name."""
    call, noun = CALLS[name]
    with pytest.raises(mt.InputError, match=noun):
        call()


N = 23
X = ZOO["mlp"].example(N).args[0]
Y = torch.randint(5, (N,), generator=GENERATOR)
ROWS = TensorDataset(X, Y)


@pytest.fixture(scope="module")
def ens() -> mt.Ensemble:
    """Four members in double precision."""
    return convert(mt.Deep(), ZOO["mlp"])


class Stream(IterableDataset[Any]):
    """Examples of unknown number."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


def sampled(sampler: Any, **options: Any) -> DataLoader[Any]:
    """A dataloader with a sampler."""
    return DataLoader(ROWS, 7, sampler=sampler, **options)


DATA: dict[str, tuple[Callable[[], Any], str]] = {
    "dropped rows": (lambda: DataLoader(ROWS, 7, drop_last=True), "drop_last"),
    "dropped stream": (lambda: DataLoader(Stream(), 7, drop_last=True), "drop_last"),
    "dropped batches": (lambda: DataLoader(ROWS, batch_sampler=BatchSampler(SequentialSampler(ROWS), 7, True)), "drop_last"),
    "dropped samples": (lambda: sampled(SubsetRandomSampler(range(20)), drop_last=True), "drop_last"),
    "replacement": (lambda: sampled(RandomSampler(ROWS, replacement=True)), "at random"),
    "few": (lambda: sampled(RandomSampler(ROWS, num_samples=5)), "at random"),
    "weighted": (lambda: sampled(WeightedRandomSampler([1.0] * N, N)), "at random"),
    "dicts": (lambda: [{"pixels": x, "label": y} for x, y in zip(X, Y, strict=True)], "dict.*unpack="),
    "triples": (lambda: TensorDataset(X, X, Y), "list of 3"),
    "text": (lambda: iter(["text"]), "str"),
    "few targets": (lambda: iter([(X[:4], Y[:3])]), r"4 .*targets.*\[3\]"),
    "scalar target": (lambda: iter([(X[:4], 3)]), r"targets.*\[\]"),
    "list of batches": (lambda: [(X[:4], Y[:4]), (X[4:8], Y[4:8])], r"iter\(batches\)"),
    "tuple": (lambda: (X, Y), "tuple"),
    "dict": (lambda: {"x": X}, "dict"),
    "path": (lambda: "images", "str"),
    "None": (lambda: None, "NoneType"),
    "number": (lambda: 7, "int"),
    "scalar": (lambda: torch.tensor(1.0), "batch_axis=0"),
    "no list": (list, "no examples"),
    "no iterator": (lambda: iter([]), "no examples"),
    "no loader": (lambda: DataLoader([], 4), "no examples"),
    "no rows": (lambda: X[:0], "no examples"),
    "no inputs": (lambda: mt.Inputs(X[:0]), "no examples"),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_data_of_predict(name: str, ens: mt.Ensemble) -> None:
    """Data that would silently lose or reorder examples, and objects that are no data."""
    data, noun = DATA[name]
    with pytest.raises(mt.InputError, match=noun):
        mt.predict(ens, data(), moments_only=name.startswith("no "))


@pytest.mark.parametrize(
    ("options", "noun"),
    [
        *(({"batch_size": size}, "batch_size=") for size in (0, -1, 2.5, "8", None, True)),
        ({"task": "class"}, "task='class'"),
        ({"task": "gaussian"}, "task='gaussian'"),
        ({"output": "logits"}, "output='logits'"),
        ({"class_axis": 2}, "class_axis=2"),
    ],
)
def test_options_of_predict(options: dict[str, Any], noun: str, ens: mt.Ensemble) -> None:
    """Batch sizes, tasks, outputs and axes that do not exist."""
    with pytest.raises(mt.InputError, match=noun):
        mt.predict(ens, X, **options)


def test_predict_without_an_ensemble(ens: mt.Ensemble) -> None:
    """The error shows how to make one."""
    for wrong, noun in (
        (nn.Linear(4, 5), r"Linear.*mt\.ensemble\(model, mt\.Single\(\), x\)"),
        (3, r"int.*mt\.ensemble\("),
        (ens.average(), "Average"),
        (nn.Linear, "type"),
    ):
        with pytest.raises(mt.InputError, match=noun):
            mt.predict(wrong, X)


def test_temperatures_of_another_ensemble(ens: mt.Ensemble) -> None:
    """Other numbers of members, and tasks without a temperature, are refused where the calibrator is used."""
    ens = convert(mt.Deep(), ZOO["mlp"])
    ens.calibrator = Calibrator(members=(1.0, 2.0))
    for use in (lambda: mt.predict(ens, X), lambda: ens.average()(X)):
        with pytest.raises(mt.InputError, match="2 temperatures"):
            use()
    ens = mt.ensemble(nn.Linear(4, 2), mt.Deep(members=2), torch.randn(2, 4), task="regression")
    ens.calibrator = Calibrator(mixture=2.0)
    with pytest.raises(mt.InputError, match="task='regression'"):
        ens.average()(torch.randn(2, 4))


def test_a_broken_network(ens: mt.Ensemble) -> None:
    """A NaN in the outputs names member and example."""
    ens = convert(mt.Deep(), ZOO["mlp"])
    with torch.no_grad():
        list(ens.parameters())[-1][2] = torch.nan
    with pytest.raises(mt.InputError, match="member 2 and example 0"):
        mt.predict(ens, X)
