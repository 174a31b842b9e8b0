"""The criterion and the validation of a run: what outputs and targets mean."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import multitudes as mt
from multitudes import data
from multitudes.data.dataset import ignore_of
from multitudes.training import validation
from multitudes.training.criterion import TaskCriterion
from multitudes.training.fit import fit
from multitudes.training.recipe import Recipe

pytestmark = pytest.mark.slow

G = torch.Generator().manual_seed(0)
TOKENS = torch.randint(20, (64, 5), generator=G)
WORDS = TensorDataset(TOKENS, TOKENS % 5)
IMAGES = torch.randn(40, 3, 4, 4, generator=G).double()
PIXELS = IMAGES.argmax(1)
FEW_TOKENS, FEW_IMAGES = TOKENS[:2], IMAGES[:2]


class Tokens(nn.Module):
    """Classes last, as language models have them."""

    def __init__(self, classes: int = 5, several: bool = False) -> None:
        super().__init__()
        self.embed, self.head, self.several = nn.Embedding(20, 16), nn.Linear(16, classes), several

    def forward(self, tokens: Tensor) -> Any:
        hidden = self.embed(tokens)
        return {"logits": self.head(hidden), "hidden": hidden} if self.several else self.head(hidden)


@functools.cache
def converted(model: Callable[[], nn.Module], example: Tensor, method: mt.Method | None = None) -> mt.Ensemble:
    torch.manual_seed(0)
    return mt.ensemble(model(), method or mt.Deep(members=2), example, seed=0)


def dense() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 1), nn.Tanh(), nn.Conv2d(8, 3, 1)).double()


def words(model: Callable[[], nn.Module] = Tokens) -> mt.Ensemble:
    """The same new ensemble each time."""
    return copy.deepcopy(converted(model, FEW_TOKENS))


def pixels(method: mt.Method | None = None) -> mt.Ensemble:
    """The same new ensemble each time."""
    return copy.deepcopy(converted(dense, FEW_IMAGES, method))


def holes(mark: int) -> Tensor:
    """Labels of which some examples have few, some none."""
    lacking = torch.rand(PIXELS.shape, generator=torch.Generator().manual_seed(1)) < torch.linspace(0, 1, 40)[:, None, None]
    return torch.where(lacking, mark, PIXELS)


LONG = Recipe(epochs=8, batch=16, lr=1.0)


def test_classes_last() -> None:
    """They are learned, and the validation reads them where they are."""
    run = fit(words(), WORDS, LONG, val=WORDS, class_axis=-1)
    assert run.metrics[-1]["val_accuracy"] == 1
    assert run.metrics[-1]["val_nll"] == pytest.approx(run.metrics[-1]["loss"] / 2, rel=0.5)


def test_classes_last_are_said_once(tmp_path: Path) -> None:
    """To the conversion, or to fit: predictions, averages, parts and files know it."""
    first = mt.ensemble(Tokens(), mt.Deep(members=2), WORDS.tensors[0][:2], seed=0, class_axis=-1, check=False)
    second = words()
    for ens in (first, second):
        fit(ens, WORDS, LONG, val=WORDS, **({"class_axis": -1} if ens is second else {}))
        mt.save(ens, tmp_path / "a.multitude")
        for one in (ens, mt.load(tmp_path / "a.multitude", Tokens()), ens.subset([0]), copy.deepcopy(ens)):
            assert mt.score(mt.predict(one, WORDS))["accuracy"] == 1
            assert one.average().class_axis == -1
    with pytest.raises(mt.InputError, match="class_axis"):
        mt.ensemble(Tokens(), mt.Deep(members=2), WORDS.tensors[0][:2], class_axis=2)


@pytest.mark.parametrize("options", [{}, {"moments_only": True}])
def test_predictions_know_what_the_dataset_ignores(options: dict[str, Any]) -> None:
    pred = mt.predict(pixels(), BOUNDARY, **options)
    assert pred.ignore == 255
    assert mt.score(pred)["accuracy"] == mt.score(pred, ignore=255)["accuracy"]
    assert mt.predict(pixels(), IMAGES, ignore=7, **options).ignore == 7
    assert mt.predict(words(), WORDS, **options).ignore is None


def test_classes_last_of_a_criterion_of_ones_own() -> None:
    """The criterion has the outputs as they are; the validation wants to be told."""

    def criterion(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.movedim(-1, 1), target)

    assert fit(words(), WORDS, LONG, val=WORDS, class_axis=-1, criterion=criterion).metrics[-1]["val_accuracy"] == 1
    with pytest.warns(UserWarning, match=r"\[B, 5, 5\].*class_axis=-1"):
        fit(words(), WORDS, Recipe(epochs=1, batch=16), val=WORDS, criterion=criterion)


def test_classes_that_may_be_either_axis() -> None:
    """What they are taken for is said, unless the caller has said it."""
    with pytest.warns(UserWarning, match=r"\[B, 5, 5\].*class_axis=1"):
        fit(words(), WORDS, Recipe(epochs=1, batch=16))
    for axis in (1, -1):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit(words(), WORDS, Recipe(epochs=1, batch=16), val=WORDS, class_axis=axis)
    with pytest.raises(mt.InputError, match="class_axis=-1"):
        fit(words(lambda: Tokens(classes=7)), WORDS, Recipe(epochs=1, batch=16))


def test_one_of_several_outputs() -> None:
    several = functools.partial(Tokens, several=True)
    run = fit(words(several), WORDS, LONG, val=WORDS, class_axis=-1, output="logits")
    assert run.metrics[-1]["val_accuracy"] == 1
    with pytest.raises(mt.InputError, match="output="):
        fit(words(several), WORDS, LONG)


@pytest.mark.parametrize("mark", [255, -100])
@pytest.mark.parametrize("how", ["said", "by the set"])
def test_pixels_without_a_label(mark: int, how: str) -> None:
    """They are neither learned from nor counted, whoever says which they are."""
    labels = holes(mark)
    known = {"train": TensorDataset(IMAGES, labels), "ignore": mark}
    if how == "by the set":
        known = {"train": data.Data(IMAGES, labels, classes=("a", "b", "c"), ignore=mark)}
    ens = pixels()
    run = fit(ens, recipe=Recipe(epochs=8, batch=10, lr=0.3), val=known["train"], **known)
    found = mt.score(mt.predict(ens, IMAGES), labels, ignore=mark)
    assert run.metrics[-1]["val_accuracy"] == pytest.approx(found["accuracy"])
    assert run.metrics[-1]["val_nll"] == pytest.approx(found["nll"])
    assert found["accuracy"] > 0.7


def test_labels_as_torch_marks_them_need_no_word() -> None:
    """−100 is no label to torch's cross entropy, and so not to us."""
    train = TensorDataset(IMAGES, holes(-100))
    assert fit(pixels(), train, Recipe(epochs=1, batch=10), val=train).metrics[0]["val_accuracy"] > 0


@pytest.mark.parametrize(
    ("method", "batches"),
    [
        (mt.Deep(members=2), "same"),
        (mt.Deep(members=2), "own"),
        (mt.BatchEnsemble(members=2, feed="all"), "same"),
        (mt.MIMO(members=2, rho=1.0), "same"),
        pytest.param(mt.MIMO(members=2, rho=1.0, repeat=2), "same", marks=pytest.mark.slow),
    ],
)
def test_parts_of_a_step_count_labels(method: mt.Method, batches: Any) -> None:
    """In parts or whole, a step is the same, also where labels are many in one part and none in another.

    With batches of their own, each member's labels count in its own mean.
    """
    train = TensorDataset(IMAGES, holes(-100))
    states = []
    for parts in (1, 4, 20):
        ens = pixels(method)
        fit(ens, train, Recipe(epochs=2, batch=20, lr=0.5, accumulate=parts, batches=batches))
        states.append(ens.state_dict())
    for other in states[1:]:
        torch.testing.assert_close(other, states[0], rtol=1e-9, atol=1e-12)


def test_one_label_in_a_step() -> None:
    """It counts as a whole, in whichever of the parts it is."""
    labels = torch.full_like(PIXELS, -100)
    labels[3, 2, 2] = 1
    train = TensorDataset(IMAGES, labels)
    losses = [fit(pixels(), train, Recipe(epochs=1, batch=40, accumulate=n)).metrics[0]["loss"] for n in (1, 8)]
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0] > 0.1


@pytest.mark.parametrize(("task", "kind"), [("binary", torch.long), ("multilabel", torch.float64), ("multilabel", torch.uint8)])
def test_yes_or_no_without_a_label(task: str, kind: torch.dtype) -> None:
    """They are neither learned from nor counted."""
    wanted = (IMAGES[:, :1] > 0).long() if task == "binary" else (IMAGES > 0).long()
    lacking = (
        torch.rand(wanted.shape, generator=torch.Generator().manual_seed(1)) < torch.linspace(0, 1, 40)[:, None, None, None]
    )
    train = TensorDataset(IMAGES, torch.where(lacking, 255, wanted).to(kind))
    found = []
    for parts in (1, 5):
        torch.manual_seed(0)
        net = nn.Conv2d(3, wanted.shape[1], 1).double()
        ens = mt.ensemble(net, mt.Deep(members=2), IMAGES[:2], task=task, seed=0)
        found.append(fit(ens, train, Recipe(epochs=5, batch=20, lr=0.5, accumulate=parts), val=train, ignore=255))
    torch.testing.assert_close(found[0].ensemble.state_dict(), found[1].ensemble.state_dict(), rtol=1e-9, atol=1e-12)
    labels = mt.predict(found[0].ensemble, IMAGES).labels.reshape(wanted.shape)
    assert found[0].metrics[-1]["val_accuracy"] == pytest.approx(float((labels == wanted)[~lacking].double().mean()))
    assert found[0].metrics[-1]["val_accuracy"] > 0.8


def test_probabilities_of_classes_that_are_last() -> None:
    """They lie as outputs do."""
    soft = F.one_hot(TOKENS % 5, 5).float() * 0.9 + 0.02
    found = [fit(words(), TensorDataset(TOKENS, y), LONG, class_axis=-1) for y in (soft, TOKENS % 5)]
    assert bool((mt.predict(found[0].ensemble, TOKENS, class_axis=-1).labels == TOKENS % 5).all())
    assert found[0].metrics[-1]["loss"] > found[1].metrics[-1]["loss"]


class Empty(torch.utils.data.IterableDataset[Any]):
    """A stream without examples."""

    def __iter__(self) -> Any:
        return iter(())


BOUNDARY, GROUND = (data.Data(IMAGES, PIXELS, ignore=ignore) for ignore in (255, 0))
DICTS = [(image, {"y": y}) for image, y in zip(IMAGES, PIXELS, strict=True)]
NO_LABELS = TensorDataset(IMAGES, torch.full_like(PIXELS, -100))
ALL_LABELS = TensorDataset(IMAGES, PIXELS)


@pytest.mark.parametrize(
    ("ens", "train", "options", "nouns"),
    [
        (pixels, [BOUNDARY, GROUND], {}, "ignore.* 0 and 255"),
        (pixels, BOUNDARY, {"val": GROUND}, "val= has ignore=0.*255"),
        (words, WORDS, {"criterion": nn.CrossEntropyLoss(reduction="none")}, "reduction='none'.*reduction='mean'"),
        (words, WORDS, {"criterion": lambda output, target: (1, 2)}, "criterion .*tuple"),
        (words, WORDS, {"criterion": "ce"}, "criterion='ce'"),
        (words, WORDS, {"class_axis": 2}, "class_axis=2"),
        (words, WORDS, {"val": Empty(), "class_axis": -1}, "val=.*examples"),
        (words, WORDS, {"val": [(TOKENS[:8], TOKENS[:8] % 5)], "class_axis": -1}, "list of batches"),
        (words, WORDS, {"val": [WORDS, WORDS], "class_axis": -1}, "val= takes one dataset"),
        (pixels, ALL_LABELS, {"val": NO_LABELS}, "val=.*labels"),
        (pixels, ALL_LABELS, {"val": data.Data(IMAGES, holes(255))}, "val=: target 255 .*ignore="),
        (pixels, DICTS, {"val": DICTS, "criterion": lambda o, y: F.cross_entropy(o, y["y"])}, "targets are a dict.*unpack="),
        (pixels, TensorDataset(IMAGES, holes(255)), {}, "target 255 .*0 to 2.*ignore="),
        (pixels, TensorDataset(IMAGES, torch.full_like(PIXELS, 156).byte()), {}, "target 156"),
    ],
)
def test_refusals(ens: Callable[[], mt.Ensemble], train: Any, options: dict[str, Any], nouns: str) -> None:
    """The small type uint8 has no negative numbers: a byte of 156 is not −100."""
    with pytest.raises(mt.InputError, match=nouns):
        fit(ens(), train, Recipe(epochs=1, batch=16), **options)


def test_labels_to_ignore_are_no_regressions() -> None:
    with pytest.raises(mt.InputError, match=r"ignore=-100.*regression"):
        TaskCriterion("regression", ignore=-100)


def test_what_datasets_ignore() -> None:
    part, _ = torch.utils.data.random_split(BOUNDARY, [30, 10])
    assert ignore_of(part) == ignore_of([BOUNDARY, BOUNDARY]) == 255
    assert ignore_of(WORDS) is None


def test_a_criterion_may_return_one_number_in_any_shape() -> None:
    run = fit(
        words(), WORDS, Recipe(epochs=1, batch=16), criterion=lambda output, target: F.cross_entropy(output, target)[None]
    )
    assert run.metrics[0]["loss"] > 0


class Stream(torch.utils.data.IterableDataset[Any]):
    """Examples one after the other, and no length."""

    def __iter__(self) -> Any:
        return iter(list(WORDS))


def test_validations_of_any_kind() -> None:
    """Streams, loaders of them, lists with a split of one's own, classes as floating-point numbers: all the same."""
    loaders = [Stream(), torch.utils.data.DataLoader(Stream(), 4), torch.utils.data.ChainDataset([Stream()]), WORDS]
    floats = TensorDataset(TOKENS, (TOKENS % 5).float())
    found = [fit(words(), WORDS, Recipe(epochs=1, batch=16), val=val, class_axis=-1) for val in (*loaders, floats)]
    listed = [(x, int(y[0])) for x, y in WORDS]
    assert len({run.metrics[0]["val_nll"] for run in found}) == 1
    net = nn.Sequential(nn.Embedding(20, 8), nn.Flatten(), nn.Linear(40, 5))
    run = fit(
        mt.ensemble(net, mt.Deep(members=2), TOKENS[:2]), listed, Recipe(epochs=1, batch=16), val=listed,
        unpack=lambda batch: (batch[0], batch[1].long()),
    )  # fmt: skip
    assert run.metrics[0]["val_accuracy"] >= 0


@pytest.mark.parametrize("how", ["MIMO", "own", "sets"])
def test_probabilities_of_members_own_batches(how: str) -> None:
    """They are checked for each member."""
    soft = torch.randn(64, 5, generator=G).softmax(1)
    x = torch.randn(64, 6, generator=G)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
    ens = mt.ensemble(net, mt.MIMO(members=2) if how == "MIMO" else mt.Deep(members=2), x[:2])
    train: Any = [TensorDataset(x, soft)] * 2 if how == "sets" else TensorDataset(x, soft)
    for parts in (1, 2):
        recipe = Recipe(epochs=1, batch=16, batches="own" if how == "own" else "same", accumulate=parts)
        assert fit(ens, train, recipe).metrics[0]["loss"] > 1
    with pytest.raises(mt.InputError, match="probabilities"):
        fit(ens, TensorDataset(x, soft * 2), Recipe(epochs=1, batch=16))


@pytest.mark.parametrize("task", ["regression", "gaussian"])
def test_targets_that_are_not_finite(task: str) -> None:
    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2), torch.randn(2, 3), task=task)
    wanted = torch.full((8, 2 if task == "regression" else 1), torch.nan)
    with pytest.raises(mt.InputError, match=r"the training set has a NaN in the targets of example \d"):
        fit(ens, TensorDataset(torch.randn(8, 3), wanted), Recipe(epochs=1, batch=4))


@pytest.mark.parametrize(("classes", "kind"), [(256, torch.uint8), (300, torch.uint8), (200, torch.int8)])
def test_more_classes_than_a_small_type_counts(classes: int, kind: torch.dtype) -> None:
    ens = mt.ensemble(nn.Linear(3, classes), mt.Deep(members=2), torch.randn(2, 3))
    labels = torch.arange(100, 120).to(kind) if kind is torch.int8 else torch.arange(150, 170).to(kind)
    both = [TensorDataset(torch.ones(20, 3), y) for y in (labels, labels.long())]
    losses = [fit(copy.deepcopy(ens), one, Recipe(epochs=1, batch=20, accumulate=2)).metrics[0]["loss"] for one in both]
    assert losses[0] == losses[1] > 1


def test_small_types_have_no_negative_numbers() -> None:
    """255 as a byte is ignored as 255 is."""
    train = TensorDataset(IMAGES, holes(255).byte())
    runs = [
        fit(pixels(), one, Recipe(epochs=2, batch=10), val=one, ignore=255)
        for one in (train, TensorDataset(IMAGES, holes(255)))
    ]
    assert [line["val_nll"] for line in runs[0].metrics] == [line["val_nll"] for line in runs[1].metrics]


@pytest.mark.parametrize("ignore", [None, 0, 255])
def test_a_validation_that_begins_without_labels(ignore: int | None) -> None:
    """Also with both marks; and the class 0 may be what does not count."""
    labels = holes(-100 if ignore is None else ignore)
    labels[:2] = -100
    train = TensorDataset(IMAGES, labels)
    run = fit(pixels(), train, Recipe(epochs=1, batch=10), val=train, ignore=ignore)
    known = (labels != -100) & (labels != (-100 if ignore is None else ignore))
    found = mt.predict(run.ensemble, IMAGES).labels
    assert run.metrics[0]["val_accuracy"] == pytest.approx(float((found == labels)[known].double().mean()))


def test_a_batch_without_labels_teaches_nothing() -> None:
    """And a training set of such batches is refused."""
    ens = pixels()
    before = {name: value.clone() for name, value in ens.state_dict().items()}
    with pytest.raises(mt.InputError, match="no target of the training set has a label"):
        fit(ens, TensorDataset(IMAGES, torch.full_like(PIXELS, -100)), Recipe(epochs=1, batch=10))
    torch.testing.assert_close(ens.state_dict(), before)


def test_the_embedded_scenes() -> None:
    """The set that the library makes has pixels without a label, and says so."""
    train, val = data.scenes("train", examples=10), data.scenes("validation", examples=4)
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, len(train.classes or ()), 1))
    run = fit(mt.ensemble(net, mt.Deep(members=2), train.batch([0, 1])[0]), train, Recipe(epochs=3, batch=5, lr=0.1), val=val)
    assert bool((val.targets == val.ignore).any())
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]


def test_all_targets_of_a_validation_are_looked_at_first() -> None:
    """An epoch is not spent on what its validation refuses."""
    bad = TOKENS % 5
    bad[50, 0] = 9
    for val in (TensorDataset(TOKENS, bad), data.Data(TOKENS, bad)):
        with pytest.raises(mt.InputError, match=r"val=: target 9 of example 50.*0 to 4"):
            fit(words(), WORDS, LONG, val=val, class_axis=-1)


def test_a_validation_is_in_the_recipes_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def recorded(*args: Any, **options: Any) -> Any:
        seen.append(options["amp"])
        return predict(*args, **options)

    predict = validation.predict
    monkeypatch.setattr(validation, "predict", recorded)
    for precision in ("32", "bf16"):
        fit(words(), WORDS, Recipe(epochs=1, batch=16, precision=precision), val=WORDS, class_axis=-1)
    assert seen == [False, False, False, torch.bfloat16]


def test_what_it_is_known_by() -> None:
    assert TaskCriterion("classes", F.cross_entropy, ignore=3).settings() == {
        "criterion": "cross_entropy", "output": None, "class_axis": 1, "ignore": 3,
    }  # fmt: skip
    assert TaskCriterion("classes").settings()["criterion"] is None


@pytest.mark.parametrize(("scale", "shift", "warns"), [(1, 0, False), (1, 500, True), (70, 0, True)])
def test_numbers_far_from_a_networks_outputs_are_told(scale: float, shift: float, warns: bool) -> None:
    """A network that starts near 0 does not reach targets in the hundreds soon; the loss alone does not tell why."""
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2), x[:2], task="gaussian", seed=0, check=False)
    pairs = torch.utils.data.TensorDataset(x, x[:, 0] * scale + shift)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mt.fit(ens, pairs, mt.Recipe(epochs=1, lr=1e-4, optimizer="adam"))
    told = [str(one.message) for one in caught if "Standardise" in str(one.message)]
    assert len(told) == warns
    assert all("target_mean=mean, target_std=std" in text for text in told)
    with torch.no_grad():
        ens.template.bias.fill_(shift)  # a network that was trained on such targets
    assert shift == 0 or not TaskCriterion("gaussian").scale_advice(ens(x), x[:, 0] + shift)
