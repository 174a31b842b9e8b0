"""predict: whatever the data come in, the members' answers to all of it, in order, and an ensemble that stays as it was."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from laws.compare import assert_exact, convert, fingerprint
from nets import oddities as odd
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from zoo import ZOO, Case

import multitudes as mt
from multitudes.engine.modules import named_tensors
from multitudes.models import MLP
from multitudes.prediction.temperature import Calibrator

N = 23
CASE = ZOO["mlp"]
X = CASE.example(N).args[0]
Y = torch.randint(5, (N,), generator=torch.Generator().manual_seed(4))
METHODS = {kind.__name__: kind(**({"fewest": 2} if kind is mt.Masksembles else {})) for kind in mt.Method.all()}


@pytest.fixture
def ens() -> mt.Ensemble:
    """Four members, in double precision and in eval mode."""
    return convert(mt.Deep(), CASE)


def members_of(ens: mt.Ensemble, x: Tensor = X) -> Tensor:
    """What predict should keep."""
    with torch.no_grad():
        return copy.deepcopy(ens).eval()(x)


class Rows(Dataset[Any]):
    """Examples with targets."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return X[row], int(Y[row])


class Stream(IterableDataset[Any]):
    """Examples of which nobody knows how many there are."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y, strict=True))


def batches(size: int = 7) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches from nowhere."""
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
    """One answer, in the order of the data, with the targets where there are some; the last batch is smaller."""
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
    """In its own order; other targets in the order of the dataset are refused where they are used."""
    loader = DataLoader(Rows(), 7, shuffle=True, generator=torch.Generator().manual_seed(1))
    pred = mt.predict(ens, loader)
    order = [int((x == X).all(1).nonzero()) for x in _inputs_of(ens, pred)]
    assert sorted(order) == list(range(N)) != order
    assert torch.equal(pred.targets, Y[order])
    assert float((pred.labels == pred.targets).double().mean()) == pytest.approx(
        float((mt.predict(ens, X).labels == Y).double().mean())
    )
    with pytest.raises(mt.InputError, match="a shuffled loader gives its own order"):
        mt.calibrate(pred, Y)


def _inputs_of(ens: mt.Ensemble, pred: mt.Prediction) -> list[Tensor]:
    """The examples that gave these answers."""
    known = members_of(ens).movedim(1, 0)
    return [X[int((known - row).abs().flatten(1).sum(1).argmin())] for row in pred.members.logits.movedim(1, 0)]


def test_a_part_of_the_examples_on_purpose(ens: mt.Ensemble) -> None:
    """A sampler that names some of them."""
    pred = mt.predict(ens, DataLoader(Rows(), 4, sampler=SubsetRandomSampler([3, 5, 8, 13, 21])))
    assert sorted(pred.targets.tolist()) == sorted(Y[[3, 5, 8, 13, 21]].tolist())


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(Rows(), 7, drop_last=True),
        lambda: DataLoader(Stream(), 7, drop_last=True),
        lambda: DataLoader(Rows(), batch_sampler=BatchSampler(SequentialSampler(Rows()), 7, True)),
        lambda: DataLoader(Subset(Rows(), range(21)), 7, drop_last=True, sampler=SubsetRandomSampler(range(20))),
    ],
    ids=["rows", "stream", "batch sampler", "sampler"],
)
def test_a_loader_that_leaves_examples_out(loader: Callable[[], Any], ens: mt.Ensemble) -> None:
    """Would do so silently: it is refused with what to type, wherever drop_last stands."""
    with pytest.raises(mt.InputError, match=r"leaves out the last examples.*drop_last=False"):
        mt.predict(ens, loader())


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: RandomSampler(Rows(), replacement=True),
        lambda: RandomSampler(Rows(), num_samples=5),
        lambda: WeightedRandomSampler([1.0] * N, N),
    ],
    ids=["replacement", "few", "weighted"],
)
def test_a_loader_that_draws_examples(sampler: Callable[[], Any], ens: mt.Ensemble) -> None:
    """Some come twice and some never: it is refused."""
    with pytest.raises(mt.InputError, match=r"draws examples at random.*predict the dataset"):
        mt.predict(ens, DataLoader(Rows(), 7, sampler=sampler()))


def test_a_batch_is_taken_apart_as_told(ens: mt.Ensemble) -> None:
    """A batch of other form is refused with the line to type, and `split` says what is what."""
    data = [{"pixels": x, "label": y} for x, y in zip(X, Y, strict=True)]
    with pytest.raises(mt.InputError, match=r"a batch is a dict of 2.*split=lambda batch: \(mt\.Inputs"):
        mt.predict(ens, data)
    pred = mt.predict(ens, data, split=lambda batch: (batch["pixels"], batch["label"]))
    assert torch.equal(pred.targets, Y)
    torch.testing.assert_close(pred.members.logits, members_of(ens))
    assert mt.predict(ens, data, split=lambda batch: (mt.Inputs(batch["pixels"]), None)).targets is None
    with pytest.raises(mt.InputError, match="a batch is a list of 3"):
        mt.predict(ens, TensorDataset(X, X, Y))
    with pytest.raises(mt.InputError, match="a batch is a str"):
        mt.predict(ens, iter(["text"]))


def test_targets_of_some_batches_only(ens: mt.Ensemble) -> None:
    """Are none: they would not be in line."""
    assert mt.predict(ens, iter([(X[:4], Y[:4]), X[4:]])).targets is None


def test_targets_of_another_length(ens: mt.Ensemble) -> None:
    """Are an error."""
    with pytest.raises(mt.InputError, match=r"a batch of 4 examples has targets \[3\]"):
        mt.predict(ens, iter([(X[:4], Y[:3])]))
    with pytest.raises(mt.InputError, match=r"a batch of 4 examples has targets \[\]"):
        mt.predict(ens, iter([(X[:4], 3)]))


@pytest.mark.parametrize("name", METHODS)
def test_the_size_of_batches_does_not_show(name: str) -> None:
    """Every method there is: members are equal at batch 1, 7 and 64, and again, since draws stay as they are."""
    ens, x = convert(METHODS[name], CASE), X[:9]
    found = [mt.predict(ens, x, batch_size=size) for size in (1, 7, 64, 7)]
    expected = members_of(ens, x)
    for pred in found:
        assert pred.count == ens.members
        torch.testing.assert_close(pred.members.logits, expected, rtol=1e-9, atol=1e-11)
    assert_exact([found[3].members.logits], [found[1].members.logits])
    if ens.members > 1:
        assert (expected[0] - expected[1]).abs().max() > 1e-6


@pytest.mark.parametrize("name", ["EMP", "ECMP", "MCDropout", "DropConnect"])
def test_draws_are_fixed_until_they_are_drawn_again(name: str) -> None:
    """Two predictions agree; after resample they do not, and by the same seed they do."""
    ens = convert(getattr(mt, name)(members=3), ZOO["dropout"])
    x = ZOO["dropout"].example(5).args[0]
    ens.resample(7)
    first = mt.predict(ens, x, batch_size=2).members.logits
    assert torch.equal(first, mt.predict(ens, x, batch_size=2).members.logits)
    assert not torch.allclose(first, mt.predict(ens.resample(8), x).members.logits)
    torch.testing.assert_close(mt.predict(ens.resample(7), x).members.logits, first)


MIXED = ["", "0", "2"]


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("moments", [False, True])
def test_modes_come_back(ens: mt.Ensemble, bad: bool, moments: bool) -> None:
    """Of every module, mixed ones too, and also where the data fail in the middle; prediction itself is in eval mode."""
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

    if bad:
        with pytest.raises(ZeroDivisionError):
            mt.predict(ens, data(), moments_only=moments)
    else:
        mt.predict(ens, data(), moments_only=moments)
    assert fingerprint(ens.template) == before
    assert ens.training
    assert set(seen) == {(False, False)}


def test_nothing_in_the_ensemble_changes() -> None:
    """No tensor, statistic, gradient, generator or executor; not in training mode either, with BatchNorm and dropout."""
    case = ZOO["resnet"]
    for method in (mt.Deep(members=2), mt.MCDropout(members=2), mt.EMP(members=2)):
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
        assert (ens.engine.picked, ens.engine.proven) == (before.engine.picked, before.engine.proven)
        assert ens.training


def test_the_result_has_no_graph_and_is_its_own(ens: mt.Ensemble) -> None:
    """No gradients, on the CPU, and in memory that the model does not write to again."""
    pred = mt.predict(ens, X)
    logits = pred.members.logits
    assert not logits.requires_grad
    assert logits.device.type == "cpu"
    kept = logits.clone()
    mt.predict(ens, X + 1)
    assert torch.equal(logits, kept)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("amp", [True, torch.bfloat16])
def test_amp(amp: Any) -> None:
    """bfloat16 is near single precision, is really used, and the members are kept in single precision."""
    case, x = ZOO["cnn"], ZOO["cnn"].example(6, dtype=torch.float32).args[0]
    ens = mt.ensemble(case.model(dtype=torch.float32), mt.Deep(members=2), x, seed=0).eval()
    seen = []
    next(part for part in ens.template.modules() if isinstance(part, nn.Conv2d)).register_forward_hook(
        lambda part, inputs, output: seen.append(output.dtype)
    )
    plain = mt.predict(ens, x).members.logits
    half = mt.predict(ens, x, amp=amp).members.logits
    assert set(seen) == {torch.float32, torch.bfloat16}
    assert half.dtype == torch.float32
    assert not torch.equal(half, plain)
    torch.testing.assert_close(half, plain, rtol=0.05, atol=0.05)
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_model_has_the_say_in_dtypes(dtype: torch.dtype) -> None:
    """Double precision stays, half becomes single."""
    x = X.to(dtype)
    ens = mt.ensemble(CASE.model(dtype=dtype), mt.Deep(members=2), x, seed=0).eval()
    pred = mt.predict(ens, x)
    assert pred.members.logits.dtype == (torch.float32 if dtype == torch.bfloat16 else dtype)
    assert pred.probs.dtype == pred.members.logits.dtype
    torch.testing.assert_close(pred.members.logits, members_of(ens, x).to(pred.probs.dtype))


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), torch.device("cpu", 0)])
def test_a_device(device: Any, ens: mt.Ensemble) -> None:
    """By name or as such; the ensemble is where it was."""
    pred = mt.predict(ens, X, device=device)
    torch.testing.assert_close(pred.members.logits, members_of(ens))
    assert {tensor.device.type for tensor in ens.state_dict().values()} == {"cpu"}
    with pytest.raises(RuntimeError):
        mt.predict(ens, X, device="nowhere")


def test_a_device_and_back(ens: mt.Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes there before the first batch, and back again, also after an error."""
    gone: list[str] = []
    real = type(ens).to

    def to(self: mt.Ensemble, place: Any) -> mt.Ensemble:
        gone.append(torch.device(place).type)
        return real(self, place)

    monkeypatch.setattr(type(ens), "to", to)
    with pytest.raises((RuntimeError, NotImplementedError, mt.InputError)):
        mt.predict(ens, X, device="meta")  # answers without values cannot be kept
    assert gone == ["meta", "cpu"]


@pytest.mark.parametrize("kind", ["dict_output", "dataclass_output", "namedtuple_output", "tuple_output"])
@pytest.mark.parametrize("moments", [False, True])
def test_one_of_several_outputs(kind: str, moments: bool) -> None:
    """By its name; without it, the error lists them."""
    case = ZOO[kind]
    ens, x = convert(mt.Deep(members=3), case), case.example(5).args[0]
    name = "0" if kind == "tuple_output" else "scores"
    pred = mt.predict(ens, x, output=name, batch_size=2, moments_only=moments)
    expected = mt.Prediction(logits=case.scores(ens(x)))
    torch.testing.assert_close(pred.probs, expected.probs)
    for wrong in (None, "logits"):
        with pytest.raises(mt.InputError, match=rf"the model returns {name}, .*output="):
            mt.predict(ens, x, output=wrong)


def test_a_name_for_the_only_output(ens: mt.Ensemble) -> None:
    """A plain tensor has no name: the error does not say that there is no tensor."""
    with pytest.raises(mt.InputError, match=r"output='logits'.*one tensor|one tensor.*output="):
        mt.predict(ens, X, output="logits")


def test_hugging_face() -> None:
    """Ids and a mask go in as `mt.Inputs`, whole or by batches, and logits come out without being named if they are alone."""
    case = ZOO["hugging_face_bert"]
    ens, call = convert(mt.Deep(members=2), case), case.example(5)
    with torch.no_grad():
        expected = ens(*call.args, **call.kwargs).logits
    pred = mt.predict(ens, call, batch_size=2)
    torch.testing.assert_close(pred.members.logits, expected)
    torch.testing.assert_close(mt.predict(ens, call, output="logits").members.logits, expected)
    rows = [{"input_ids": i, "attention_mask": m} for i, m in zip(call.args[0], call.kwargs["attention_mask"], strict=True)]
    by_batch = mt.predict(ens, rows, batch_size=2, split=lambda b: (mt.Inputs(b.pop("input_ids"), **b), None))
    torch.testing.assert_close(by_batch.members.logits, expected)


def test_tokens() -> None:
    """[B, T, K] with class_axis=-1; words are [N, T]."""
    case = ZOO["tied"]
    ens, x = convert(mt.Deep(members=3), case), case.example(5).args[0]
    for moments in (False, True):
        pred = mt.predict(ens, x, class_axis=-1, batch_size=2, moments_only=moments)
        assert (pred.shape, pred.classes) == ((5, 5), 7)
        torch.testing.assert_close(pred.probs, ens(x).detach().softmax(-1).mean(0).movedim(-1, 1))


def test_pixels() -> None:
    """[B, K, H, W]; words are [N, H, W], and targets come along."""
    case = ZOO["unet"]
    ens, x = convert(mt.Deep(members=2), case), case.example(5).args[0]
    y = torch.randint(5, (5, 8, 8))
    for moments in (False, True):
        pred = mt.predict(ens, TensorDataset(x, y), batch_size=2, moments_only=moments)
        assert (pred.shape, pred.classes) == ((5, 8, 8), 5)
        torch.testing.assert_close(pred.probs, ens(x).detach().softmax(2).mean(0))
        assert torch.equal(pred.targets, y)


def small(outputs: int, task: str, flat: bool = False) -> tuple[mt.Ensemble, Tensor]:
    """A network for a task, and its outputs for X."""
    layers = [nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs), *([nn.Flatten(0)] if flat else [])]
    ens = mt.ensemble(nn.Sequential(*layers).double(), mt.Deep(members=3), X[:2], task=task, seed=0).eval()
    return ens, members_of(ens)


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_binary(flat: bool, moments: bool) -> None:
    """One logit, as [B, 1] or [B]."""
    ens, outputs = small(1, "binary", flat)
    assert outputs.shape == ((3, N) if flat else (3, N, 1))
    pred = mt.predict(ens, X, batch_size=7, moments_only=moments)
    assert (pred.task, pred.shape) == ("binary", (N,))
    torch.testing.assert_close(pred.probs, outputs.reshape(3, N).sigmoid().mean(0))


@pytest.mark.parametrize("moments", [False, True])
def test_multilabel(moments: bool) -> None:
    """Several yes or no."""
    ens, outputs = small(4, "multilabel")
    pred = mt.predict(ens, X, batch_size=7, moments_only=moments)
    assert (pred.task, pred.shape) == ("multilabel", (N, 4))
    torch.testing.assert_close(pred.probs, outputs.sigmoid().mean(0))


@pytest.mark.parametrize("moments", [False, True])
def test_gaussian(moments: bool) -> None:
    """Means, and softplus of the rest as variances."""
    ens, outputs = small(4, "gaussian")
    pred = mt.predict(ens, X, batch_size=7, moments_only=moments)
    mean, raw = outputs.chunk(2, 2)
    assert (pred.task, pred.shape) == ("gaussian", (N, 2))
    torch.testing.assert_close(pred.mean, mean.mean(0))
    torch.testing.assert_close(pred.aleatoric, nn.functional.softplus(raw).mean(0))
    torch.testing.assert_close(pred.epistemic, mean.var(0, correction=0))


@pytest.mark.parametrize("moments", [False, True])
def test_regression(moments: bool) -> None:
    """Means only."""
    ens, outputs = small(2, "regression")
    pred = mt.predict(ens, X, batch_size=7, moments_only=moments)
    torch.testing.assert_close(pred.mean, outputs.mean(0))
    torch.testing.assert_close(pred.variance, outputs.var(0, correction=0))
    assert not pred.aleatoric.any()


@pytest.mark.parametrize("moments", [False, True])
def test_emp_knows_the_noise_of_an_observation(moments: bool) -> None:
    """Appendix B.3: the moments of a prediction are those of `ens.moments`, 1/τ included."""
    x = torch.randn(6, 5, dtype=torch.float64)
    ens = mt.ensemble(MLP(5, (8,), 1, norm="hidden").double(), mt.EMP(members=5, tau_output=0.25), x, seed=0, task="regression")
    pred = mt.predict(ens.eval(), x, batch_size=4, moments_only=moments)
    mean, variance = ens.moments(x)
    torch.testing.assert_close((pred.mean, pred.variance), (mean, variance))
    torch.testing.assert_close(pred.aleatoric, torch.full_like(mean, 4.0))
    assert (pred.epistemic > 0).all()


def test_another_task(ens: mt.Ensemble) -> None:
    """Than the one that the ensemble was made for, on purpose."""
    pred = mt.predict(ens, X, task="multilabel")
    torch.testing.assert_close(pred.probs, members_of(ens).sigmoid().mean(0))
    assert ens.task == "classes"
    with pytest.raises(mt.InputError, match="say one of classes"):
        mt.predict(ens, X, task="class")
    with pytest.raises(mt.InputError, match=r"means and variances side by side"):
        mt.predict(ens, X, task="gaussian")


def test_moments_are_those_of_the_whole(ens: mt.Ensemble) -> None:
    """Every word, calibrated or not, and no members are held."""
    for calibrator in (None, Calibrator(mixture=1.5), Calibrator(members=(1.0, 2.0, 0.5, 3.0))):
        ens.calibrator = calibrator
        whole = mt.predict(ens, TensorDataset(X, Y), batch_size=7)
        held = mt.predict(ens, TensorDataset(X, Y), batch_size=7, moments_only=True)
        assert not held.has_members
        assert (held.count, held.shape, held.classes) == (whole.count, whole.shape, whole.classes)
        assert held.described().keys() == whole.described().keys()
        torch.testing.assert_close(held.described(), whole.described(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(held.probs, whole.probs)
        assert held.calibrator == calibrator


def test_several_inputs() -> None:
    """Rows are taken of those inputs that have some."""
    case = ZOO["several_inputs"]
    ens, call = convert(mt.Deep(members=2), case), case.example(5)
    pred = mt.predict(ens, call, batch_size=2)
    torch.testing.assert_close(pred.members.logits, ens(*call.args, **call.kwargs).detach())


@pytest.mark.parametrize("size", [2, 5])
def test_rows_that_are_not_first(size: int) -> None:
    """Where a model takes and gives steps first, its rows stand second in the outputs: an error, and no mixed-up table."""
    case = ZOO["steps_first"]
    ens, call = convert(mt.Deep(members=2), case), case.example(5)
    with pytest.raises(mt.InputError, match=r"outputs"):
        mt.predict(ens, call, batch_size=size, class_axis=-1)


def test_rows_that_are_not_first_in_the_inputs_alone() -> None:
    """Are taken from where they are."""
    case = ZOO["last_step"]
    ens, call = convert(mt.Deep(members=2), case), case.example(5)
    pred = mt.predict(ens, call, batch_size=2)
    torch.testing.assert_close(pred.members.logits, ens(*call.args).detach())


class Squeezing(nn.Module):
    """Answers with one number, and drops every axis of length one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = odd.mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[:, :1].squeeze()


@pytest.mark.parametrize("size", [1, 22])
def test_a_row_that_was_squeezed_away(size: int) -> None:
    """A batch of one row without its axis is said to be that, and not taken for something else."""
    ens = mt.ensemble(Squeezing().double(), mt.Deep(members=2), X[:3], task="regression", seed=0).eval()
    assert mt.predict(ens, X).shape == (N,)
    with pytest.raises(mt.InputError, match=r"1 example.*\[\]|outputs.*\[\].*1"):
        mt.predict(ens, X, batch_size=size)


@pytest.mark.parametrize("size", [1, 7])
def test_classes_that_were_squeezed_away(size: int) -> None:
    """The same of class scores."""
    case = ZOO["squeezed"]
    ens, x = convert(mt.Deep(members=2), case), case.example(8).args[0]
    with pytest.raises(mt.InputError, match=r"outputs|examples"):
        mt.predict(ens, x, batch_size=size)


class Growing(nn.Module):
    """Answers with a number for each step there is."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).movedim(-1, 1)


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("form", ["generator", "loader"])
def test_outputs_of_different_shapes(form: str, moments: bool) -> None:
    """From batch to batch: an error that says both."""
    ens = mt.ensemble(Growing(), mt.Deep(members=2), torch.randn(2, 3, 4), seed=0).eval()
    parts = [torch.randn(2, 3, 4), torch.randn(2, 6, 4)]
    data = iter(parts) if form == "generator" else DataLoader(parts, batch_size=None)
    with pytest.raises(mt.InputError, match=r"different|one batch and|one kind"):
        mt.predict(ens, data, moments_only=moments)


def test_outputs_of_different_shapes_from_a_sized_loader() -> None:
    """Also where room was taken beforehand."""
    ens = mt.ensemble(Growing(), mt.Deep(members=2), torch.randn(2, 3, 4), seed=0).eval()
    rows = [torch.randn(3, 4)] * 2 + [torch.randn(6, 4)] * 2
    with pytest.raises(mt.InputError, match=r"outputs are \[5, 6\] in one batch and \[5, 3\] in another"):
        mt.predict(ens, rows, batch_size=2)


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("data", [list, lambda: iter([]), lambda: DataLoader([], 4)], ids=["list", "iterator", "loader"])
def test_no_data(data: Callable[[], Any], moments: bool, ens: mt.Ensemble) -> None:
    """Nothing is known of what would have been predicted."""
    with pytest.raises(mt.InputError, match="no examples to predict"):
        mt.predict(ens, data(), moments_only=moments)


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("data", [lambda: X[:0], lambda: mt.Inputs(X[:0])], ids=["tensor", "inputs"])
def test_a_tensor_without_rows(data: Callable[[], Any], moments: bool, ens: mt.Ensemble) -> None:
    """Is a prediction of nothing, or an error that says so: not whatever the model runs into."""
    try:
        pred = mt.predict(ens, data(), moments_only=moments)
    except mt.InputError as error:
        assert "no examples" in str(error)
    else:
        assert (len(pred), pred.classes, pred.entropy.shape) == (0, 5, (0,))


@pytest.mark.parametrize("name", METHODS)
def test_a_tensor_without_rows_by_every_method(name: str) -> None:
    """The same for methods that look at shapes."""
    ens = convert(METHODS[name], CASE)
    try:
        assert len(mt.predict(ens, X[:0])) == 0
    except mt.InputError as error:
        assert "no examples" in str(error)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ((X, Y), "a tuple may mean several things"),
        ({"x": X}, "a dict may mean several things"),
        ("images", "a str may mean several things"),
        (None, "cannot predict a NoneType: give a tensor"),
        (7, "cannot predict a int"),
        (torch.tensor(1.0), "batch_axis=0, but an input has shape"),
    ],
)
def test_what_is_no_data(data: Any, says: str, ens: mt.Ensemble) -> None:
    """Is refused with what to give."""
    with pytest.raises(mt.InputError, match=says):
        mt.predict(ens, data)


@pytest.mark.parametrize("size", [0, -1, 2.5, "8", None, True])
def test_sizes_of_batches(size: Any, ens: mt.Ensemble) -> None:
    """Are whole numbers from 1 on."""
    with pytest.raises(mt.InputError, match="batch_size="):
        mt.predict(ens, X, batch_size=size)


def test_a_plain_network_is_refused(ens: mt.Ensemble) -> None:
    """With the line that makes an ensemble of it."""
    with pytest.raises(mt.InputError, match=r"not Sequential: mt\.ensemble\(model, mt\.Single\(\), x\) makes one"):
        mt.predict(CASE.model(), X)
    with pytest.raises(mt.InputError, match=r"not int: mt\.ensemble\(\.\.\.\)"):
        mt.predict(3, X)
    with pytest.raises(mt.InputError, match="not Average"):
        mt.predict(ens.average(), X)
    with pytest.raises(mt.InputError, match="not type"):
        mt.predict(nn.Linear, X)


def test_a_broken_network_is_named(ens: mt.Ensemble) -> None:
    """A NaN in the outputs says whose it is and where."""
    with torch.no_grad():
        ens.get_parameter("5.bias" if "5.bias" in dict(ens.named_parameters()) else "4.bias")[2] = torch.nan
    with pytest.raises(mt.InputError, match="NaN, first for member 2 and example 0"):
        mt.predict(ens, X)


class Terminal(io.StringIO):
    """A screen."""

    def isatty(self) -> bool:
        return True


def test_a_bar_where_somebody_looks(ens: mt.Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error: by default only on a terminal, or as told; never on standard output."""
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


def test_the_temperature_travels(ens: mt.Ensemble) -> None:
    """What the ensemble was calibrated by, its predictions are."""
    plain = mt.predict(ens, X)
    for calibrator in (Calibrator(mixture=2.0), Calibrator(members=(1.0, 2.0, 0.5, 3.0))):
        ens.calibrator = calibrator
        pred = mt.predict(ens, X, batch_size=7)
        assert pred.calibrator == calibrator
        torch.testing.assert_close(pred.probs, plain.calibrated(calibrator).probs)
        assert not torch.allclose(pred.probs, plain.probs)


def test_other_executors_predict_alike(ens: mt.Ensemble) -> None:
    """What is picked does not show."""
    expected = mt.predict(ens, X).members.logits
    for name in ens.engine.proven["eval"]:
        ens.engine.picked = dict.fromkeys(("train", "eval"), name)
        torch.testing.assert_close(mt.predict(ens, X, batch_size=7).members.logits, expected)


def test_compact_ensembles_predict_alike() -> None:
    """They are for that."""
    for method, case in ((METHODS["Masksembles"], ZOO["mlp"]), (mt.MIMO(), ZOO["cnn"])):
        ens, x = convert(method, case), case.example(5).args[0]
        expected = mt.predict(ens, x).members.logits
        torch.testing.assert_close(mt.predict(ens.compact(), x, batch_size=2).members.logits, expected)


def test_members_alone_are_rows_of_the_prediction(ens: mt.Ensemble) -> None:
    """Member m of a prediction is the prediction of member m."""
    pred = mt.predict(ens, X, batch_size=7)
    for m in range(ens.members):
        torch.testing.assert_close(pred.members.logits[m], ens.member(m)(X).detach())


def test_cases_are_what_they_are_taken_for() -> None:
    """The zoo's networks here have the outputs that the tests speak of."""
    case: Case
    for name, shape in (("tied", (5, 5, 7)), ("unet", (5, 5, 8, 8)), ("steps_first", (4, 5, 5))):
        case = ZOO[name]
        call = case.example(5)
        assert tuple(case.model()(*call.args, **call.kwargs).shape) == shape


def test_a_list_of_batches_is_no_list_of_examples() -> None:
    """Read as one, its batches would be taken for examples: refused, with what to type."""
    ens = mt.ensemble(nn.Linear(3, 2), mt.Deep(members=2), torch.randn(2, 3), seed=0)
    batches = [(torch.randn(4, 3), torch.zeros(4)), (torch.randn(4, 3), torch.zeros(4))]
    with pytest.raises(mt.InputError, match=r"list of batches.*iter\(batches\)"):
        mt.predict(ens, batches)
    assert len(mt.predict(ens, iter(batches))) == 8
    assert len(mt.predict(ens, [(x, 0) for x in torch.randn(5, 3)])) == 5
