"""predict: members' outputs for every form of data and every task, in order; the ensemble does not change."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from laws.compare import assert_exact, convert, convert_apart, fingerprint, run_by
from nets import oddities as odd
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)
from zoo import ZOO

import multitudes as mt
from multitudes.engine.modules import named_tensors
from multitudes.models import MLP
from multitudes.prediction.temperature import Calibrator

N = 23
CASE = ZOO["mlp"]
X = CASE.example(N).args[0]
Y = torch.randint(5, (N,), generator=torch.Generator().manual_seed(4))
METHODS = {
    kind.__name__: kind(**({"fewest": 2} if kind is mt.Masksembles else {}))
    for kind in mt.Method.all()
    if kind.__module__.startswith("multitudes.methods.")
}


@pytest.fixture
def ens() -> mt.Ensemble:
    """Four members, in double precision and in eval mode."""
    return convert(mt.Deep(), CASE)


def members_of(ens: mt.Ensemble, x: Tensor = X) -> Tensor:
    """The outputs that predict should collect."""
    with torch.no_grad():
        return copy.deepcopy(ens).eval()(x)


def both(ens: mt.Ensemble, data: Any, **options: Any) -> tuple[mt.Prediction, mt.Prediction]:
    """The prediction with members, and with moments only."""
    return mt.predict(ens, data, **options), mt.predict(ens, data, **options, moments_only=True)


class Rows(Dataset[Any]):
    """Examples with targets."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return X[row], int(Y[row])


class Stream(IterableDataset[Any]):
    """Examples of unknown number."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


def batches(size: int = 7) -> Iterator[tuple[Tensor, Tensor]]:
    """A generator of batches."""
    yield from zip(X.split(size), Y.split(size), strict=True)


FORMS: dict[str, Callable[[], Any]] = {
    "tensor": lambda: X,
    "inputs": lambda: mt.Inputs(X),
    "dataset": Rows,
    "tensor dataset": lambda: TensorDataset(X, Y),
    "dataset without targets": lambda: TensorDataset(X),
    "list of pairs": lambda: [(X[row], Y[row]) for row in range(N)],
    "iterable dataset": Stream,
    "loader": lambda: DataLoader(Rows(), 7),
    "loader of one batch": lambda: DataLoader(Rows(), 100),
    "loader of single rows": lambda: DataLoader(Rows(), 1),
    "loader of a stream": lambda: DataLoader(Stream(), 7),
    "loader of whole batches": lambda: DataLoader(Subset(Rows(), range(21)), 7, drop_last=True),
    "loader with a batch sampler": lambda: DataLoader(Rows(), batch_sampler=BatchSampler(SequentialSampler(Rows()), 7, False)),
    "loader of ready batches": lambda: DataLoader(list(batches()), batch_size=None),
    "generator": batches,
    "generator of tensors": lambda: iter(X.split(7)),
    "generator of one batch": lambda: batches(100),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data(form: str, ens: mt.Ensemble) -> None:
    """Predictions are in the order of the data, with targets if there are some; the last batch is smaller."""
    count = 21 if form == "loader of whole batches" else N
    pred = mt.predict(ens, FORMS[form](), batch_size=8)
    assert isinstance(pred, mt.Prediction)
    assert (pred.task, pred.count, pred.shape) == ("classes", 4, (count,))
    torch.testing.assert_close(pred.members.logits, members_of(ens)[:, :count], rtol=1e-12, atol=1e-12)
    without = form in ("tensor", "inputs", "dataset without targets", "generator of tensors")
    assert pred.targets is None if without else torch.equal(pred.targets, Y[:count])
    held = mt.predict(ens, FORMS[form](), batch_size=8, moments_only=True)
    torch.testing.assert_close(held.probs, pred.probs)
    assert held.targets is None if without else torch.equal(held.targets, Y[:count])


def test_a_shuffled_loader_has_its_targets_along(ens: mt.Ensemble) -> None:
    """Targets are collected in the order of the dataloader; targets in the order of the dataset are refused later."""
    loader = DataLoader(Rows(), 7, shuffle=True, generator=torch.Generator().manual_seed(1))
    pred = mt.predict(ens, loader)
    order = [int((x == X).all(1).nonzero()) for x in _inputs_of(ens, pred)]
    assert sorted(order) == list(range(N)) != order
    assert torch.equal(pred.targets, Y[order])
    assert float((pred.labels == pred.targets).double().mean()) == pytest.approx(
        float((mt.predict(ens, X).labels == Y).double().mean())
    )
    with pytest.raises(mt.InputError, match=r"pred\.targets"):
        mt.calibrate(pred, Y)


def _inputs_of(ens: mt.Ensemble, pred: mt.Prediction) -> list[Tensor]:
    """The inputs of a prediction, found by their outputs."""
    known = members_of(ens).movedim(1, 0)
    return [X[int((known - row).abs().flatten(1).sum(1).argmin())] for row in pred.members.logits.movedim(1, 0)]


def test_a_part_of_the_examples_on_purpose(ens: mt.Ensemble) -> None:
    """A sampler of chosen indices predicts these examples."""
    pred = mt.predict(ens, DataLoader(Rows(), 4, sampler=SubsetRandomSampler([3, 5, 8, 13, 21])))
    assert sorted(pred.targets.tolist()) == sorted(Y[[3, 5, 8, 13, 21]].tolist())


def test_split(ens: mt.Ensemble) -> None:
    """`split` divides batches of any form; if some batches have no targets, the prediction has none."""
    data = [{"pixels": x, "label": y} for x, y in zip(X, Y, strict=True)]
    pred = mt.predict(ens, data, unpack=lambda batch: (batch["pixels"], batch["label"]))
    assert torch.equal(pred.targets, Y)
    torch.testing.assert_close(pred.members.logits, members_of(ens))
    assert mt.predict(ens, data, unpack=lambda batch: (mt.Inputs(batch["pixels"]), None)).targets is None
    assert mt.predict(ens, iter([(X[:4], Y[:4]), X[4:]])).targets is None


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_size_of_batches_does_not_show(name: str) -> None:
    """For every method, members are equal at batch sizes 1, 7 and 64, and in a second run, since draws are fixed."""
    ens, x = convert_apart(METHODS[name], CASE), X[:9]
    found = [mt.predict(ens, x, batch_size=size) for size in (1, 7, 64, 7)]
    expected = members_of(ens, x)
    for pred in found:
        assert pred.count == ens.members
        torch.testing.assert_close(pred.members.logits, expected, rtol=1e-9, atol=1e-11)
    assert_exact([found[3].members.logits], [found[1].members.logits])
    if ens.members > 1:
        assert (expected[0] - expected[1]).abs().max() > 1e-6


@pytest.mark.parametrize("name", ["EMP", "MCDropout"])
def test_draws_are_fixed_until_they_are_drawn_again(name: str) -> None:
    """Two predictions agree; after a resample they differ, and with the same seed they agree again."""
    ens = convert(getattr(mt, name)(members=3), ZOO["dropout"])
    x = ZOO["dropout"].example(5).args[0]
    ens.resample(7)
    first = mt.predict(ens, x, batch_size=2).members.logits
    assert torch.equal(first, mt.predict(ens, x, batch_size=2).members.logits)
    assert not torch.allclose(first, mt.predict(ens.resample(8), x).members.logits)
    torch.testing.assert_close(mt.predict(ens.resample(7), x).members.logits, first)


MIXED = ["", "0", "2"]


@pytest.mark.parametrize("bad", [False, True])
def test_modes_come_back(ens: mt.Ensemble, bad: bool) -> None:
    """Every module's mode is restored, also if the data raise an error; the prediction itself runs in eval mode."""
    seen = []
    for name, part in ens.template.named_modules():
        part.training = name in MIXED
    ens.training = True
    ens.get_submodule("2").register_forward_hook(lambda part, *_: seen.append((part.training, ens.training)))
    before = fingerprint(ens.template)

    def data() -> Iterator[Tensor]:
        yield X[:5]
        if bad:
            raise ZeroDivisionError
        yield X[5:]

    with pytest.raises(ZeroDivisionError) if bad else contextlib.nullcontext():
        mt.predict(ens, data())
    assert fingerprint(ens.template) == before
    assert ens.training
    assert set(seen) == {(False, False)}


def test_nothing_in_the_ensemble_changes() -> None:
    """No tensor, statistic, gradient, generator or executor changes, with BatchNorm and dropout in training mode."""
    for method, name in ((mt.Deep(members=2), "cnn"), (mt.MCDropout(members=2), "dropout"), (mt.EMP(members=2), "mlp")):
        case = ZOO[name]
        ens = convert(method, case)
        for parameter in ens.parameters():
            parameter.grad = torch.ones_like(parameter)
        ens.template.train()
        ens.training = True
        before = copy.deepcopy(ens)
        random = torch.get_rng_state()
        mt.predict(ens, case.example(5).args[0], batch_size=2)
        assert torch.equal(random, torch.get_rng_state())
        assert [n for n, _ in named_tensors(ens.template)] == [n for n, _ in named_tensors(before.template)]
        assert_exact([t for _, t in named_tensors(ens.template)], [t for _, t in named_tensors(before.template)])
        assert_exact([p.grad for p in ens.parameters()], [torch.ones_like(p) for p in ens.parameters()])
        assert torch.equal(ens.generator.get_state(), before.generator.get_state())
        assert (ens.plan.executor, ens.plan.proven) == (before.plan.executor, before.plan.proven)
        assert ens.training


def test_the_result_has_no_graph_and_is_its_own(ens: mt.Ensemble) -> None:
    """The prediction has no gradients, is on the CPU, and shares no memory with the model."""
    pred = mt.predict(ens, X)
    logits = pred.members.logits
    assert not logits.requires_grad
    assert logits.device.type == "cpu"
    kept = logits.clone()
    mt.predict(ens, X + 1)
    assert torch.equal(logits, kept)
    assert torch.is_grad_enabled()


def test_amp() -> None:
    """bfloat16 is near single precision, is really used, and the members are stored in single precision."""
    case, x = ZOO["cnn"], ZOO["cnn"].example(6, dtype=torch.float32).args[0]
    ens = mt.ensemble(case.model(dtype=torch.float32), mt.Deep(members=2), x, seed=0).eval()
    seen = []
    next(part for part in ens.template.modules() if isinstance(part, nn.Conv2d)).register_forward_hook(
        lambda part, inputs, output: seen.append(output.dtype)
    )
    plain = mt.predict(ens, x).members.logits
    half = mt.predict(ens, x, amp=True).members.logits
    assert torch.equal(half, mt.predict(ens, x, amp=torch.bfloat16).members.logits)
    assert set(seen) == {torch.float32, torch.bfloat16}
    assert half.dtype == torch.float32
    assert not torch.equal(half, plain)
    torch.testing.assert_close(half, plain, rtol=0.05, atol=0.05)
    assert not torch.is_autocast_enabled("cpu")


def test_a_device_and_back(ens: mt.Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ensemble is moved there before the first batch, and back again, also after an error."""
    torch.testing.assert_close(mt.predict(ens, X, device="cpu").members.logits, members_of(ens))
    gone: list[str] = []
    real = type(ens).to

    def to(self: mt.Ensemble, place: Any) -> mt.Ensemble:
        gone.append(torch.device(place).type)
        return real(self, place)

    monkeypatch.setattr(type(ens), "to", to)
    with pytest.raises((RuntimeError, NotImplementedError, mt.InputError)):
        mt.predict(ens, X, device="meta")  # answers without values cannot be kept
    assert gone == ["meta", "cpu"]


@pytest.mark.parametrize("kind", ["dataclass_output", "tuple_output"])
def test_one_of_several_outputs(kind: str) -> None:
    """`output` chooses one by its name; without it, the error lists the names."""
    case = ZOO[kind]
    ens, x = convert(mt.Deep(members=3), case), case.example(5).args[0]
    name = "0" if kind == "tuple_output" else "scores"
    for pred in both(ens, x, output=name, batch_size=2):
        torch.testing.assert_close(pred.probs, mt.Prediction(logits=case.scores(ens(x))).probs)
    for wrong in (None, "logits"):
        with pytest.raises(mt.InputError, match=rf"{name}, .*output="):
            mt.predict(ens, x, output=wrong)


@pytest.mark.slow
def test_hugging_face() -> None:
    """Ids and a mask are passed as `mt.Inputs`, whole or in batches; a single output tensor needs no name."""
    case = ZOO["hugging_face_bert"]
    ens, call = convert(mt.Deep(members=2), case), case.example(5)
    with torch.no_grad():
        expected = ens(*call.args, **call.kwargs).logits
    pred = mt.predict(ens, call, batch_size=2)
    torch.testing.assert_close(pred.members.logits, expected)
    torch.testing.assert_close(mt.predict(ens, call, output="logits").members.logits, expected)
    rows = [{"input_ids": i, "attention_mask": m} for i, m in zip(call.args[0], call.kwargs["attention_mask"], strict=True)]
    by_batch = mt.predict(ens, rows, batch_size=2, unpack=lambda b: (mt.Inputs(b.pop("input_ids"), **b), None))
    torch.testing.assert_close(by_batch.members.logits, expected)


def test_tokens_and_pixels() -> None:
    """[B, T, K] with class_axis=-1, and [B, K, H, W] with targets [B, H, W]."""
    ens, x = convert(mt.Deep(members=2), ZOO["tied"]), ZOO["tied"].example(5).args[0]
    for pred in both(ens, x, class_axis=-1, batch_size=2):
        assert (pred.shape, pred.classes) == ((5, 5), 7)
        torch.testing.assert_close(pred.probs, members_of(ens, x).softmax(-1).mean(0).movedim(-1, 1))
    ens, x, y = convert(mt.Deep(members=2), ZOO["unet"]), ZOO["unet"].example(5).args[0], torch.randint(5, (5, 8, 8))
    for pred in both(ens, TensorDataset(x, y), batch_size=2):
        assert (pred.shape, pred.classes) == ((5, 8, 8), 5)
        torch.testing.assert_close(pred.probs, members_of(ens, x).softmax(2).mean(0))
        assert torch.equal(pred.targets, y)


def small(outputs: int, task: str, *more: nn.Module) -> tuple[mt.Ensemble, Tensor]:
    """A network for a task, and its outputs for X."""
    net = nn.Sequential(nn.Linear(4, outputs), *more).double()
    ens = mt.ensemble(net, mt.Deep(members=3), X[:2], task=task, seed=0).eval()
    return ens, members_of(ens)


@pytest.mark.parametrize("task", ["binary", "flat binary", "multilabel", "gaussian", "regression"])
def test_tasks(task: str) -> None:
    """A binary logit is [B, 1] or [B]; Gaussian heads have means and raw variances; regression has means."""
    sizes = {"multilabel": 4, "gaussian": 4, "regression": 2}
    ens, outputs = small(sizes.get(task, 1), task.split()[-1], *([nn.Flatten(0)] if task == "flat binary" else []))
    for pred in both(ens, X, batch_size=7):
        assert pred.task == ens.task
        if task == "regression":
            torch.testing.assert_close(pred.mean, outputs.mean(0))
            torch.testing.assert_close(pred.variance, outputs.var(0, correction=0))
        elif task == "gaussian":
            mean, raw = outputs.chunk(2, 2)
            torch.testing.assert_close(pred.mean, mean.mean(0))
            torch.testing.assert_close(pred.aleatoric, nn.functional.softplus(raw).mean(0))
            torch.testing.assert_close(pred.epistemic, mean.var(0, correction=0))
        else:
            expected = outputs if task == "multilabel" else outputs.reshape(3, N)
            torch.testing.assert_close(pred.probs, expected.sigmoid().mean(0))


def test_emp_knows_the_noise_of_an_observation() -> None:
    """Appendix B.3: the moments of a prediction are those of `ens.moments`, 1/τ included."""
    x = torch.randn(6, 5, dtype=torch.float64)
    ens = mt.ensemble(MLP(5, (8,), 1, norm="hidden").double(), mt.EMP(members=5, tau_output=0.25), x, seed=0, task="regression")
    mean, variance = ens.eval().moments(x)
    for pred in both(ens, x, batch_size=4):
        torch.testing.assert_close((pred.mean, pred.variance), (mean, variance))
        torch.testing.assert_close(pred.aleatoric, torch.full_like(mean, 4.0))
        assert (pred.epistemic > 0).all()


def test_another_task(ens: mt.Ensemble) -> None:
    """`task` overrides the ensemble's task for one prediction."""
    pred = mt.predict(ens, X, task="multilabel")
    torch.testing.assert_close(pred.probs, members_of(ens).sigmoid().mean(0))
    assert ens.task == "classes"


def test_moments_are_those_of_the_whole(ens: mt.Ensemble) -> None:
    """Every statistic, calibrated or not; the ensemble's calibrator is applied to both."""
    plain = mt.predict(ens, X)
    for calibrator in (None, Calibrator(mixture=1.5), Calibrator(members=(1.0, 2.0, 0.5, 3.0))):
        ens.calibrator = calibrator
        whole, held = both(ens, TensorDataset(X, Y), batch_size=7)
        assert not held.has_members
        assert (held.count, held.shape, held.classes) == (whole.count, whole.shape, whole.classes)
        assert held.described().keys() == whole.described().keys()
        torch.testing.assert_close(held.described(), whole.described(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(held.probs, whole.probs)
        assert held.calibrator == whole.calibrator == calibrator
        torch.testing.assert_close(whole.probs, (plain.calibrated(calibrator) if calibrator else plain).probs)


def test_several_inputs() -> None:
    """Inputs with a batch axis are divided into batches, the others are passed whole."""
    case = ZOO["several_inputs"]
    ens, call = convert(mt.Deep(members=2), case), case.example(5)
    pred = mt.predict(ens, call, batch_size=2)
    torch.testing.assert_close(pred.members.logits, ens(*call.args, **call.kwargs).detach())


@pytest.mark.parametrize("size", [2, 5])
def test_rows_that_are_not_first(size: int) -> None:
    """A model whose outputs have steps first and the batch second is refused."""
    case = ZOO["steps_first"]
    ens, call = convert(mt.Deep(members=2), case), case.example(5)
    with pytest.raises(mt.InputError, match=r"outputs"):
        mt.predict(ens, call, batch_size=size, class_axis=-1)


def test_rows_that_are_not_first_in_the_inputs_alone() -> None:
    """Inputs whose batch axis is not the first are divided along it."""
    case = ZOO["last_step"]
    ens, call = convert(mt.Deep(members=2), case), case.example(5)
    pred = mt.predict(ens, call, batch_size=2)
    torch.testing.assert_close(pred.members.logits, ens(*call.args).detach())


class Squeezing(nn.Module):
    """Returns one number per example, and squeezes every axis of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = odd.mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, :1].squeeze()


@pytest.mark.parametrize("size", [1, 22])
def test_a_row_that_was_squeezed_away(size: int) -> None:
    """A batch of one example whose batch axis was squeezed away is refused."""
    ens = mt.ensemble(Squeezing().double(), mt.Deep(members=2), X[:3], task="regression", seed=0).eval()
    assert mt.predict(ens, X).shape == (N,)
    with pytest.raises(mt.InputError, match=r"1 example .*\[\]"):
        mt.predict(ens, X, batch_size=size)


class Growing(nn.Module):
    """Returns scores of each step, so that the output's shape depends on the input's."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).movedim(-1, 1)


def test_outputs_of_different_shapes() -> None:
    """Outputs whose shape differs between batches are an error, whether the number of examples is known or not."""
    ens = mt.ensemble(Growing(), mt.Deep(members=2), torch.randn(2, 3, 4), seed=0).eval()
    parts = [torch.randn(2, 3, 4), torch.randn(2, 6, 4)]
    with pytest.raises(mt.InputError, match=r"\[5, 6\].*\[5, 3\]"):
        mt.predict(ens, [row for part in parts for row in part], batch_size=2)
    with pytest.raises(RuntimeError, match=r"3.*6"):
        mt.predict(ens, iter(parts))
    with pytest.raises(mt.InputError, match="cat"):
        mt.predict(ens, iter(parts), moments_only=True)


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_bar_where_somebody_looks(ens: mt.Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is on standard error, by default on a terminal only; nothing is on standard output."""
    monkeypatch.setenv("TERM", "xterm")
    for screen, progress, shown in (
        (io.StringIO(), None, False),
        (Terminal(), None, True),
        (Terminal(), False, False),
        (Terminal(), True, True),
    ):
        out = io.StringIO()
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setattr(sys, "stdout", out)
        try:
            mt.predict(ens, X, batch_size=8, progress=progress)
            mt.predict(ens, batches(), progress=progress)
        finally:
            monkeypatch.undo()
        assert ("predict" in screen.getvalue()) == shown, (screen, progress)
        assert shown or screen.getvalue() == ""
        assert out.getvalue() == ""
        monkeypatch.setenv("TERM", "xterm")


def test_other_executors_predict_alike(ens: mt.Ensemble) -> None:
    """The members' outputs do not depend on the executor."""
    expected = mt.predict(ens, X).members.logits
    for name in ens.plan.proven["eval"]:
        torch.testing.assert_close(mt.predict(run_by(ens, name), X, batch_size=7).members.logits, expected)


def test_compact_ensembles_predict_alike() -> None:
    """Compact ensembles give the members' outputs of the original."""
    for method, case in ((METHODS["Masksembles"], ZOO["mlp"]), (mt.MIMO(), ZOO["cnn"])):
        ens, x = convert(method, case), case.example(5).args[0]
        expected = mt.predict(ens, x).members.logits
        torch.testing.assert_close(mt.predict(ens.compact(), x, batch_size=2).members.logits, expected)


def test_members_alone_are_rows_of_the_prediction(ens: mt.Ensemble) -> None:
    """Member m of a prediction is the prediction of member m."""
    pred = mt.predict(ens, X, batch_size=7)
    for m in range(ens.members):
        torch.testing.assert_close(pred.members.logits[m], ens.member(m)(X).detach())


@pytest.mark.parametrize("moments_only", [False, True])
def test_a_nan_in_the_inputs_is_named(moments_only: bool) -> None:
    """By the number of its example in the whole dataset; weights that are NaN are another matter."""
    x = torch.randn(40, 4)
    x[33, 2] = torch.nan
    ens = mt.ensemble(nn.Linear(4, 3), mt.Deep(members=2), x[:2])
    with pytest.raises(mt.InputError, match="a NaN in the inputs of example 33"):
        mt.predict(ens, x, batch_size=16, moments_only=moments_only)
    x[33, 2] = 0
    with torch.no_grad():
        next(ens.parameters())[1] = torch.nan
    with pytest.raises(mt.InputError, match="member 1 and example 0: training"):
        mt.predict(ens, x, batch_size=16, moments_only=moments_only)


@pytest.mark.parametrize("task", ["gaussian", "regression"])
def test_one_output_has_the_shape_of_its_targets(task: str) -> None:
    """Compared by hand, [N, 1] and [N] would make [N, N]."""
    net = nn.Linear(3, 2 if task == "gaussian" else 1)
    ens, x, y = mt.ensemble(net, mt.Deep(members=2), torch.randn(4, 3), task=task), torch.randn(7, 3), torch.randn(7)
    flat, column = mt.predict(ens, TensorDataset(x, y)), mt.predict(ens, TensorDataset(x, y[:, None]))
    assert flat.mean.shape == (7,)
    assert column.mean.shape == (7, 1)
    torch.testing.assert_close(flat.mean, column.mean[:, 0])
    by_hand = ((flat.mean - y) ** 2).mean().sqrt()
    assert mt.score(flat)["rmse"] == pytest.approx(float(by_hand)) == pytest.approx(mt.score(column)["rmse"])
