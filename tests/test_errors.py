"""Errors: one tree, drawn in its docstring, what a caller may catch them as, and what mistakes are answered with."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import multitudes as mt
from multitudes import errors
from multitudes.data import Data, of, uci


def test_the_drawing_shows_the_tree() -> None:
    """Every error stands in the drawing, and every line of the drawing is an error."""
    drawn = {word for line in (errors.__doc__ or "").splitlines() for word in line.split() if word.endswith("Error")}
    kinds = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert drawn - {"ValueError)", "RuntimeError)"} == kinds


def test_all_are_public_and_have_one_parent() -> None:
    """So that one except clause catches what multitudes raises on purpose."""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert getattr(mt, name) is kind
            assert issubclass(kind, mt.MultitudesError)


def test_the_familiar_kinds() -> None:
    """Bad arguments are also ValueErrors, calls that cannot be answered RuntimeErrors."""
    assert issubclass(mt.InputError, ValueError)
    assert issubclass(mt.RunError, RuntimeError)


X, Y = torch.randn(8, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
PAIRS = TensorDataset(X, Y)
LOGITS = torch.randn(8, 4, 3, generator=torch.Generator().manual_seed(0))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))


class Words(nn.Module):
    """Ids to two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.table(ids).mean(1)


class TwoHeads(nn.Module):
    """Returns a mean and a variance as two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.variance = nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mean(x), self.variance(x)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.first(a) + self.second(b)


RAGGED = [(X[0], 0), (X[0, :4], 1)]


def words() -> mt.Ensemble:
    return converted(nn.Embedding(5, 3), torch.arange(4))


def two_inputs() -> mt.Ensemble:
    return converted(TwoInputs(), (X, X))


def converted(model: nn.Module, example: object = X, **options: str) -> mt.Ensemble:
    return mt.ensemble(model, mt.Deep(members=2), example, seed=0, check=False, **options)  # type: ignore[arg-type]


def one_output(task: str = "classes") -> mt.Ensemble:
    return converted(nn.Linear(6, 1), task=task)


def with_norm() -> mt.Ensemble:
    return converted(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)))


@pytest.fixture(scope="module")
def ens() -> mt.Ensemble:
    return mt.ensemble(network(), mt.Deep(members=2), X, seed=0, check=False)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (lambda ens: mt.ensemble(ens, mt.Deep(), X), "is an ensemble already.*ens.member"),
        (lambda ens: mt.ensemble([network(), network()], mt.Deep(), X), r"2 models.*mt.Deep.from_models\(\["),
        (lambda ens: mt.ensemble(mt.Deep(), network(), X), r"the model comes first.*ensemble\(model, Deep\("),
        (lambda ens: mt.ensemble(network(), network(), X), "^a Sequential is not a method: .*Packed"),
        (lambda ens: mt.ensemble(network(), mt.Deep(), X[0]), r"\[6\] is one example, not a batch: .*x\[None\]"),
        (lambda ens: mt.ensemble(nn.Linear(6, 5), mt.Deep(), X[0]), r"x\[None\]"),
        (lambda ens: mt.ensemble(nn.Conv2d(1, 4, 3), mt.Deep(), torch.zeros(1, 8, 8)), r"an axis of channels: x\[:, None\]"),
        (lambda ens: mt.ensemble(images(), mt.Deep(), torch.zeros(3, 8, 8)), r"rows first: x\[None\] for one"),
        (lambda ens: mt.ensemble(images(), mt.Deep(), torch.zeros(2, 8, 8, 3)), r"x.movedim\(-1, 1\)"),
        (lambda ens: mt.ensemble(images(), mt.Deep(), torch.zeros(2, 1, 8, 8)), "that its forward takes$"),
        (lambda ens: mt.ensemble(network(), mt.Deep(), torch.zeros(4, 2, 3)), r"x.flatten\(1\)"),
        (lambda ens: mt.plan(network(), mt.Deep(), (8, 6)), r"a shape, \(8, 6\), not a tensor: .*torch.randn\(8, 6\)"),
        (lambda ens: mt.plan(network(), mt.Deep(), "8,6"), r"the example is a str.*torch.randn\(2, 30\)"),
        (lambda ens: mt.plan(network(), mt.Deep(), X.numpy()), r"the example is a ndarray.*torch.as_tensor\(x\)"),
        (lambda ens: mt.ensemble(nn.Conv2d(1, 4, 3), mt.Deep(), torch.zeros(8, 8, 8)), r"an axis of channels: x\[:, None\]"),
        (lambda ens: mt.cost(network(), X), r"cost takes an ensemble, not Sequential: .*mt.ensemble\(model"),
        (lambda ens: mt.check(network(), X), "check takes an ensemble, not Sequential"),
        (lambda ens: mt.save("a.multitude", ens), "save takes an ensemble, not str"),
        (lambda ens: mt.load(network(), "a.multitude"), r"path comes first.*load\(path, model\)"),
        (lambda ens: mt.predict(ens, torch.zeros(5, 7)), r"\[5, 7\].*converted for Inputs\(\[8, 6\].*give such inputs"),
        (lambda ens: mt.Prediction(logits=LOGITS, targets=Y), r"8 members: members come first.*logits.transpose\(0, 1\)"),
        (lambda ens: mt.score(mt.Prediction(logits=LOGITS), Y), r"members come first, as in logits.transpose\(0, 1\)"),
        (lambda ens: mt.Prediction(logits=LOGITS[0]), r"one network: logits\[None\]"),
        (lambda ens: mt.score(mt.predict(ens, X), ["a", "b"] * 4), r"targets= must be numbers.*classes.index"),
        (lambda ens: mt.Prediction(logits=LOGITS, targets=list("abcd")), "targets= must be numbers"),
        (lambda ens: mt.predict(ens, X).std, "'classes' has no std: use probs"),
        (lambda ens: mt.predict(ens, X).variance, "'classes' has no variance: use probs"),
        (lambda ens: mt.predict(ens, X).interval(0.9), "'classes' has no interval: use probs"),
        (lambda ens: mt.predict(ens, X).calibrated(2.0), r"takes a calibrator, not a float: mt.calibrate"),
        (lambda ens: mt.score(mt.Prediction(logits=LOGITS[..., :2], task="binary"), Y[:4]), "two logits.*task='classes'"),
        (lambda ens: mt.calibrate(LOGITS), "calibrate takes a Prediction, not a Tensor: mt.predict"),
        (lambda ens: mt.threshold(LOGITS, error=0.1), "threshold takes a Prediction, not a Tensor"),
        (lambda ens: mt.score(mt.predict(ens, X), Y).compare(mt.predict(ens, X)), "compare takes other scores, not a Pred"),
        (lambda ens: mt.report("a.html", [mt.score(mt.predict(ens, X), Y)]), r"rows come first.*report\(rows, path\)"),
        (lambda ens: mt.fit(ens, X, Y), r"one dataset: fit\(ens, torch.utils.data.TensorDataset\(X, y\)"),
        (lambda ens: mt.fit(ens, (X.numpy(), Y.numpy())), r"cannot train on a tuple: .*TensorDataset\(x, y\)"),
        (lambda ens: mt.fit(ens, PAIRS, criterion=nn.CrossEntropyLoss), r"is a class: .*nn.CrossEntropyLoss\(\)$"),
        (lambda ens: ens.loss(X, Y, nn.CrossEntropyLoss), r"is a class: .*criterion=nn.CrossEntropyLoss\(\)$"),
        (lambda ens: mt.fit(ens, PAIRS, criterion=nn.GaussianNLLLoss()), r"one by one.*pass mt.GaussianNLL\(\)"),
        (lambda ens: mt.fit(ens, TensorDataset(X, X[:, 0])), r"\. To predict numbers: .*task='regression'\), or .*gaussian"),
        (lambda ens: mt.fit(ens, TensorDataset(X, X[:, :3])), r"sum 1\. To predict numbers: .*task='regression'"),
        (lambda ens: mt.fit(ens, TensorDataset(X, Y.float())), r"\. Use targets.long\(\)"),
        (lambda ens: mt.fit(one_output(), TensorDataset(X, Y % 2)), r"labels 0 and 1 with one output: .*task='binary'"),
        (lambda ens: mt.fit(one_output(), TensorDataset(X, (Y % 2).float())), "one output: .*task='binary'"),
        (lambda ens: mt.fit(one_output(), TensorDataset(X, Y.float())), "To predict numbers: .*task='regression'"),
        (lambda ens: one_output(task="gaussian"), r"\[8, 1\]: return torch.cat\(.*nn.Linear\(\.\.\., 2\) for one target"),
        (lambda ens: converted(TwoHeads(), task="gaussian"), r"two of \[8, 1\]: return torch.cat\(\[mean, raw_variance\], 1\)"),
        (lambda ens: mt.predict(two_inputs(), X), r"forward\(a, b\) takes 2 inputs, but the data has 1.*mt.Inputs\(a, b\)"),
        (lambda ens: two_inputs().loss(X, Y, nn.CrossEntropyLoss()), r"forward\(a, b\) takes 2 inputs.*the tuple \(a, b\)"),
        (lambda ens: converted(TwoHeads()).loss(X, Y, nn.CrossEntropyLoss()), r"a tuple of 0, 1.*, output=0\)"),
        (lambda ens: mt.fit(converted(TwoHeads()), PAIRS), "the model returns 0, 1: choose one, as in output=0"),
        (lambda ens: one_output("regression").loss(X, X[:, 0], nn.MSELoss()), r"\[8, 1\] and targets \[8\].*y\[:, None\]"),
        (lambda ens: converted(network(), X.numpy()), r"is a ndarray, .*give a tensor, torch.as_tensor\(x\)"),
        (lambda ens: converted(network(), PAIRS), r"is a TensorDataset, .*next\(iter\(DataLoader\(dataset,"),
        (lambda ens: converted(network(), X.double()), r"Give a batch that the model takes, x.float\(\)$"),
        (lambda ens: ens(torch.zeros(5, 7)), r"the call has .*\[5, 7\].*converted for Inputs\(\[8, 6\].*give such inputs"),
        (lambda ens: ens(X.double()), r"the call has .*converted for .*: x.float\(\) \("),
        (lambda ens: mt.fit(ens, TensorDataset(X, 1 + Y % 3)), r"classes are 0 to 2\. If labels count from 1: targets - 1;"),
        (lambda ens: mt.score(mt.predict(ens, X), 1 + torch.arange(8) % 3), "If labels count from 1: targets - 1;"),
        (lambda ens: mt.predict(ens, X.double()), r"converted for .*: x.float\(\) \("),
        (lambda ens: mt.fit(ens, TensorDataset(X.double(), Y)), r"the training set has .*converted for .*: x.float\(\) \("),
        (lambda ens: mt.fit(with_norm(), DataLoader(PAIRS, batch_size=7)), "two rows or more.*drop_last=True"),
        (lambda ens: mt.predict(ens, X).in_original_units(PAIRS), r"takes the Data .*not a TensorDataset: .*pred.mean \* std"),
        (lambda ens: mt.MCDropout(samples=10), "type members="),
        (lambda ens: mt.fit(ens, [X, Y]), r"list of two tensors: .*TensorDataset\(x, y\)"),
        (lambda ens: mt.fit(ens, RAGGED), "different shapes make no batch: pad .*collate_fn"),
        (lambda ens: mt.predict(ens, RAGGED), "different shapes make no batch: pad .*collate_fn"),
        (lambda ens: mt.predict(words(), torch.tensor([1, 9])), "ids from 1 to 9, but an embedding of 5 rows takes 0 to 4"),
        (lambda ens: two_inputs()((X, X)), r"forward\(a, b\) takes its inputs one by one: call ens\(\*x\)"),
        (lambda ens: mt.select(ens, mt.predict(ens, X), 2), "data= is a Prediction already: give .* the dataset"),
        (lambda ens: ens.loss(X, Y), r"loss needs criterion: call loss\(x, y, criterion\)"),
        (lambda ens: ens.loss(X, Y, "cross_entropy"), r"criterion='cross_entropy' must be a function.*nn.CrossEntropyLoss\(\)"),
        (lambda ens: ens.loss(X, Y[:3], nn.CrossEntropyLoss()), r"outputs \[8, 3\] and targets \[3\].*one target per row"),
        (lambda ens: mt.fit(ens, PAIRS, criterion=nn.BCEWithLogitsLoss()), r"BCEWithLogitsLoss fails on .*nn.CrossEntropyLoss"),
        (lambda ens: mt.fit(ens, PAIRS, callbacks=[lambda: None]), "must be functions that take the run"),
        (lambda ens: converted(nn.Linear(6, 2), task="binary"), r"takes one logit.*\[8, 2\]: .*task='classes'"),
        (lambda ens: converted(TwoInputs()), r"with every argument of its forward: mt.Inputs"),
        (lambda ens: converted(nn.Embedding(5, 3), X), r"whole numbers for the embedding: x.long\(\)"),
        (lambda ens: converted(nn.Embedding(5, 3), Y + 4), "ids from 0 to 4, or make the embedding larger"),
        (lambda ens: converted(network(), X[:, :5]), "takes: inputs of the shapes, and in the order, that its forward takes"),
        (lambda ens: mt.ensemble(network(), X, mt.Packed()), "^a Tensor is not a method"),
        (lambda ens: mt.predict(nn.DataParallel(ens), X), "not a DataParallel of it: give its .module"),
        (lambda ens: uci("enrgy", root="nowhere"), r"no standard dataset 'enrgy': did you mean 'energy'\?"),
        (lambda ens: mt.predict(converted(TwoHeads()), X, output=5), "output=5 names no output: .* as in output=0"),
        (lambda ens: mt.score(mt.predict(ens, X), Y, bins=0), r"^score\(bins=0\): bins must be"),
        (lambda ens: mt.ensemble(network(), mt.Deep(), X, keep=["nosuch*"]), r"'nosuch\*'. There are 0, 1, 2"),
        (lambda ens: mt.fit(ens, PAIRS, epochs=3), r"fit\(epochs=3\): .* a setting of the recipe, mt.Recipe\(epochs=3\)"),
        (lambda ens: mt.fit(ens, PAIRS, batch_size=3), r"a setting of the recipe, mt.Recipe\(batch=3\)"),
        (lambda ens: mt.fit(ens, PAIRS, validation=PAIRS), r"fit\(validation=\.\.\.\): there is no such argument: type val="),
        (lambda ens: mt.fit(ens, PAIRS, device="cuda"), r"move the ensemble, ens.to\('cuda'\)"),
        (lambda ens: mt.fit(ens, X, Y, mt.Recipe()), r"4 arguments are given: .*one dataset, fit\(ens, torch.*TensorDataset"),
        (lambda ens: mt.fit(ens), r"fit needs train: call fit\(ensemble, train\)"),
        (lambda ens: mt.predict(ens, X, batch=7), "type batch_size="),
        (lambda ens: mt.predict(ens, X, X), r"several inputs as one tuple, predict\(ens, \(x1, x2\)\)"),
        (lambda ens: mt.score(mt.predict(ens, X), Y, bin=3), r"score\(bin=3\): .*type bins="),
        (lambda ens: mt.ensemble(network(), mt.Deep(), X, members=8), r"a setting of the method, as in mt.Deep\(members=8\)"),
        (lambda ens: mt.ensemble(network(), mt.Deep()), r"ensemble needs example: call ensemble\(model, method, example\)"),
        (lambda ens: mt.ensemble(network(), mt.Deep(), X, ["0"]), "4 arguments are given: .*keep="),
        (lambda ens: mt.plan(network(), mt.Deep(), X, sed=1), "type seed="),
        (lambda ens: mt.select(mt.predict(ens, X), 2), r"select needs k: call select\(ensemble, data, k\)"),
        (lambda ens: mt.fit(ensemble=ens, train=PAIRS, recipe=3), "fit takes a Recipe, not a int"),
        (lambda ens: mt.fit(ens, PAIRS, ensemble=ens), "multiple values for argument 'ensemble'"),
        (lambda ens: Data([[1.0]], [0]), r"inputs= is a list: give a tensor or an array, torch.as_tensor\(x\)"),
        (lambda ens: Data(PAIRS, Y), r"is a TensorDataset: convert the dataset with data.of\(dataset\)"),
        (lambda ens: Data(np.array([["a"], ["b"]]), [0, 1]), "is a ndarray of <U1, not of numbers"),
        (lambda ens: Data(X, ["a", "b"] * 4), r"targets= must be numbers.*classes.index"),
        (lambda ens: of((X.numpy(), Y.numpy())), r"a pair of inputs and targets.*Data\(x, y\)"),
        (lambda ens: of({"data": X, "target": Y}), r"is a dict with 'data', 'target': .*Data\(dataset\['data'\], "),
        (lambda ens: of([(row, "cat") for row in X]), r"targets= must be numbers.*classes.index"),
        (lambda ens: mt.fit(ens, [(row, "cat") for row in X]), r"targets= must be numbers.*classes.index"),
        (lambda ens: mt.predict(ens, [(row, "cat") for row in X]), r"targets= must be numbers.*classes.index"),
        (lambda ens: mt.plan(nn.Linear(6, 1), mt.Deep(), X, task="gaussian"), r"\[8, 1\]: return torch.cat\("),
        (lambda ens: mt.plan(network(), mt.Deep(), X, task="class"), "task='class' is unknown"),
        (lambda ens: mt.plan(network(), mt.Deep(), X, class_axis=2), "class_axis=2"),
        (lambda ens: mt.fit(ens, TensorDataset(X, Y * 0 - 100)), "no target of the training set has a label: all are -100"),
        (lambda ens: mt.fit(ens, TensorDataset(X, Y * 0 + 9), ignore=9), "has a label: all are -100 or ignore=9"),
        (lambda ens: setattr(ens, "calibrator", 1.3), r"ens.calibrator takes a calibrator, not a float: .*mixture=1.3\)"),
        (lambda ens: mt.Recipe(epochs=2, warmup=5), r"Recipe\(epochs=2, warmup=5\): the warm-up would end after the training"),
        (lambda ens: mt.score(mt.predict(ens, X), Y, ood={"": mt.predict(ens, X)}), "a set without a name, '': .*'svhn'"),
        (lambda ens: mt.fit(one_output("binary"), TensorDataset(X, Y % 2 * 2 - 1)), r"target -1 is not .*give \(y > 0\)"),
        (lambda ens: mt.ensemble(network(), "packed", X), r"give an instance, mt.Packed\(\)$"),
        (lambda ens: mt.ensemble(network(), mt.Deep(), mt.Inputs(X[0])), r"x\[None\]"),
        (lambda ens: mt.ensemble(network(), mt.Deep(), X.tolist()), r"give a tensor, torch.tensor\(x\)"),
        (lambda ens: mt.ensemble(network(), mt.Deep(), [[1], [2, 3]]), "rnn.pad_sequence"),
        (lambda ens: mt.ensemble(Words(), mt.Deep(), {"ids": Y[:, None], "labels": Y}), r"no argument 'labels': leave it out"),
        (lambda ens: mt.plan(network(), mt.Deep(), X, task="classification"), "type task='classes', or another of classes, "),
        (lambda ens: mt.fit(ens, PAIRS, val=0.2), r"val= is a float: .*random_split\(dataset, \[0.8, 0.2\]\)"),
        (lambda ens: mt.fit(ens, PAIRS, val=(X, Y)), r"val= is a tuple: give a dataset, val=.*TensorDataset\(\*val\)"),
        (lambda ens: mt.fit(ens, PAIRS, val=X), r"val= is a Tensor: give a dataset"),
        (lambda ens: mt.fit(ens, PAIRS, optimizer="adam"), r"mt.Recipe\(optimizer='adam'\)"),
        (lambda ens: mt.fit(ens, [{"text": "good", "label": 1}] * 4), "no tensor, but dict: .*ids of a tokenizer"),
        (lambda ens: mt.fit(ens, TensorDataset(X, Y * 127)), r"not a class.*torch.unique\(targets, return_inverse=True\)\[1\]"),
        (lambda ens: mt.fit(ens, TensorDataset(X, Y * 127.0)), "To predict numbers: .*task='regression'"),
        (lambda ens: mt.threshold(mt.predict(ens, PAIRS), error=5), "error=5 must be between 0 and 1, such as 0.05"),
        (lambda ens: mt.report(mt.predict(ens, PAIRS), "a.html"), r"pass \[mt.score\(pred\)\]"),
        (lambda ens: mt.report([mt.predict(ens, PAIRS)], "a.html"), r"rows\[0\] .*pass \[mt.score\(pred\)\]"),
        (lambda ens: mt.report(mt.score(mt.predict(ens, PAIRS)), "a.html"), r"for one run pass \[scores\]"),
        (lambda ens: mt.Packed(members=1), r"one member is the single network: use Single\(\)"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_with_what_to_type(mistake: Callable[[mt.Ensemble], object], text: str, ens: mt.Ensemble) -> None:
    with pytest.raises(mt.MultitudesError, match=text):
        mistake(ens)


def test_arrays_are_data() -> None:
    """Inputs and targets as numpy arrays, also such that cannot be written to, keep their dtype."""
    array = X.double().numpy()
    array.flags.writeable = False
    held = Data(array, Y.numpy())
    assert torch.equal(held.inputs, X.double())
    assert torch.equal(held.targets, Y)


def test_a_plan_takes_what_an_ensemble_takes() -> None:
    """So that `plan` shows what `ensemble` would do with the same arguments."""
    names = [[*inspect.signature(function).parameters] for function in (mt.plan, mt.ensemble)]
    assert names[0] == names[1]
    assert not mt.plan(nn.Linear(6, 2), mt.Deep(), X, task="gaussian", class_axis=-1, check=False).refused


def test_what_looks_like_a_mistake_and_is_none() -> None:
    """A batch of single numbers has one axis; a dict with the name of an argument may be this argument."""

    class OfNumbers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(1, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x[:, None])

    class OfDict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 2)

        def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.last(x["x"] * x["scale"])

    assert mt.ensemble(OfNumbers(), mt.Deep(), X[0], seed=0, check=False)(X[0]).shape == (4, 6, 2)
    whole = {"x": X, "scale": X}
    assert mt.ensemble(OfDict(), mt.Deep(), whole, seed=0, check=False)(whole).shape == (4, 8, 2)


def test_what_is_no_attribute_and_no_key_is_told(ens: mt.Ensemble) -> None:
    pred = mt.predict(ens, X)
    with pytest.raises(AttributeError, match=r"scores\['accuracy'\]"):
        mt.score(pred, Y).accuracy  # noqa: B018
    with pytest.raises(KeyError, match=r"member 0 are pred\.members\.logits\[0\]"):
        pred.members[0]  # type: ignore[index]
    with pytest.raises(KeyError, match="no score 'accuracy'; there are rmse"):
        mt.score(mt.Prediction(mean=LOGITS), LOGITS[0])["accuracy"]
    with pytest.raises(AttributeError, match="has no 'probabilities': did you mean 'probs'"):
        pred.probabilities  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"from multitudes\.shell\.jobs import Job"):
        mt.Job  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(KeyError, match="no score 'acc'; similar names: accuracy"):
        mt.score(pred, Y)["acc"]
    with pytest.raises(AttributeError, match=r"pandas.Series\(dict\(scores\)\)"):
        mt.score(pred, Y).to_frame()
    with pytest.raises(AttributeError, match="entropy, confidence and mutual_information"):
        pred.uncertainty  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="std, aleatoric and epistemic"):
        mt.Prediction(mean=LOGITS).uncertainty  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match="a Prediction has no 'prob': did you mean 'probs'"):
        pred.prob  # type: ignore[attr-defined]  # noqa: B018


def test_a_gpu_that_is_not_there_is_told(ens: mt.Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(mt.InputError, match="device='cuda', but torch finds no CUDA GPU here: leave device= out"):
        mt.predict(ens, X, device="cuda")


def test_a_name_near_a_public_one_is_suggested() -> None:
    for wrong, right in (
        ("packed", "Packed"),
        ("Pakced", "Packed"),
        ("ensembl", "ensemble"),
        ("mimo", "MIMO"),
        ("DeepEnsemble", "Deep"),
    ):
        with pytest.raises(AttributeError, match=f"did you mean '{right}'"):
            getattr(mt, wrong)


def test_long_lists_of_names_are_cut() -> None:
    """A text names the first, and says how many there are."""
    assert errors.listed(["b", "a"]) == "a, b"
    assert errors.listed({"e", "d", "c", "b", "a"}) == "a, b, c and 2 more"
