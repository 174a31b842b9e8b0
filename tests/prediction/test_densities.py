"""Densities of regressions: the precision of an observation in the target's own units, and many draws in a stream."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

import multitudes as mt
from multitudes import models
from multitudes.data import Data
from multitudes.engine import tree

TAU, CHUNK = 0.1, 32
X = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
OWN = torch.randn(12, 2, generator=torch.Generator().manual_seed(1)) * torch.tensor([15.0, 0.5]) + torch.tensor([10.0, -3.0])
MEAN, STD = OWN.mean(0), OWN.std(0)
PLAIN = Data(X, OWN)
STANDARDISED = Data(X, (OWN - MEAN) / STD, target_mean=MEAN, target_std=STD)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 32 draws, so that a few draws are several chunks."""
    for module in ("multitudes.engine.draws", "multitudes.prediction.predict"):
        monkeypatch.setattr(f"{module}.CHUNK", CHUNK)


def converted(method: mt.Method, outputs: int = 2, task: str = "regression") -> mt.Ensemble:
    """An ensemble on the network that the EMP paper has for the method."""
    own = {"norm": "none", **({"dropout": 0.3} if isinstance(method, mt.MCDropout) else {})}
    torch.manual_seed(0)
    net = models.emp_regression(5, outputs=outputs, **({} if isinstance(method, (mt.EMP, mt.ECMP)) else own))
    return mt.ensemble(net, method, X[:4], task=task, seed=0).eval()


METHODS = {
    "Deep": mt.Deep(members=3),
    "Packed": mt.Packed(members=3, alpha=2),
    "MCDropout": mt.MCDropout(members=3),
    "DropConnect": mt.DropConnect(members=3),
    "EMP": mt.EMP(members=3, patch="norm"),
    "Single": mt.Single(),
}
DRAWN = {
    "EMP": mt.EMP(members=3, patch="norm", tau_output=TAU),
    "ECMP": mt.ECMP(members=3, patch="norm", tau_output=TAU),
    "MCDropout": mt.MCDropout(members=3, tau_output=TAU),
    "DropConnect": mt.DropConnect(members=3, tau_output=TAU),
}


def density(outputs: np.ndarray, targets: np.ndarray) -> float:
    """The mean over entries of log 1/M Σ_m N(y; f_m, 1/τ), by scipy: ``[M, N, D]``, ``[N, D]``."""
    logs = norm.logpdf(targets, outputs, TAU**-0.5)
    return float((np.logaddexp.reduce(logs, 0) - math.log(len(logs))).mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("moments_only", [False, True])
def test_every_method_has_a_density(name: str, moments_only: bool) -> None:
    """Given τ, every member predicts N(f, 1/τ); without it there is none."""
    ens = converted(METHODS[name])
    with torch.no_grad():
        outputs = ens(X).numpy()
    pred = mt.predict(ens, PLAIN, tau_output=TAU, moments_only=moments_only)
    scores = mt.score(pred)
    assert scores["lpd"] == pytest.approx(density(outputs.astype(np.float64), OWN.double().numpy()), rel=1e-6)
    variance = outputs.var(0) + 1 / TAU
    expected = -norm.logpdf(OWN.numpy(), outputs.mean(0), np.sqrt(variance)).mean()
    assert scores["gaussian_nll"] == pytest.approx(expected, rel=1e-5)
    assert "lpd" not in mt.score(mt.predict(ens, PLAIN, moments_only=moments_only))


def test_the_density_of_a_known_prediction() -> None:
    """½ log(τ/2π) − τ/2 err², averaged over examples and targets: −2.07 of the paper's Naval is that of its two targets."""
    net = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(net.weight)
    ens = mt.ensemble(net, mt.Single(), torch.zeros(2, 1), task="regression")
    errors = torch.tensor([[1.0, 2.0], [0.0, 3.0], [-4.0, 0.5]])
    own = Data(torch.zeros(3, 1), errors)
    expected = 0.5 * math.log(TAU / (2 * math.pi)) - TAU / 2 * (1 + 4 + 0 + 9 + 16 + 0.25) / 6
    for moments_only in (False, True):
        pred = mt.predict(ens, own, tau_output=TAU, moments_only=moments_only)
        assert mt.score(pred)["lpd"] == pytest.approx(expected, rel=1e-6)
        assert mt.score(pred)["rmse"] == pytest.approx(math.sqrt(30.25 / 6), rel=1e-6)
        torch.testing.assert_close(pred.log_density().mean().item(), expected, rtol=1e-6, atol=0)
    exact = mt.predict(ens, Data(torch.zeros(3, 1), torch.zeros(3, 2)), tau_output=TAU)
    assert round(mt.score(exact)["lpd"], 2) == -2.07


@pytest.mark.slow
@pytest.mark.parametrize("moments_only", [False, True])
@pytest.mark.parametrize("wrap", [lambda d: d, lambda d: DataLoader(d, 5), lambda d: DataLoader(Subset(d, range(12)), 5)])
def test_a_standardised_target_has_the_same_density(moments_only: bool, wrap: Any) -> None:
    """τ is in the target's own units: a network on standardised targets scores as one with the same outputs in own units."""
    ens = converted(mt.EMP(members=3, patch="norm", tau_output=TAU))
    with torch.no_grad():
        outputs = (ens(X) * STD + MEAN).double().numpy()
    scaled = mt.predict(ens, wrap(STANDARDISED), moments_only=moments_only)
    pred = scaled.in_original_units(STANDARDISED)
    torch.testing.assert_close(pred.aleatoric, torch.full_like(OWN, 1 / TAU))
    torch.testing.assert_close(pred.targets, OWN)
    scores = mt.score(pred)
    assert scores["lpd"] == pytest.approx(density(outputs, OWN.double().numpy()), rel=1e-5)
    assert scores["rmse"] == pytest.approx(float(np.sqrt(((outputs.mean(0) - OWN.numpy()) ** 2).mean())), rel=1e-5)
    standardised = mt.score(scaled)["lpd"]
    assert standardised == pytest.approx(scores["lpd"] + float(STD.log().mean()), rel=1e-4)


def test_original_units() -> None:
    """Means are scaled and shifted, variances scaled twice; other predictions are unchanged."""
    dataset = Data(torch.zeros(4, 2), torch.zeros(4, 1), target_mean=[3.0], target_std=[2.0])
    pred = mt.Prediction(mean=torch.ones(2, 4, 1), variance=torch.ones(2, 4, 1), targets=torch.zeros(4, 1))
    restored = pred.in_original_units(dataset)
    assert torch.equal(restored.members.mean, torch.full((2, 4, 1), 5.0))
    assert torch.equal(restored.members.variance, torch.full((2, 4, 1), 4.0))
    assert torch.equal(restored.targets, torch.full((4, 1), 3.0))
    assert torch.equal(pred.members.mean, torch.ones(2, 4, 1))
    assert pred.mean.equal(torch.ones(4, 1))
    assert torch.equal(pred.in_original_units(dataset).variance, torch.full((4, 1), 4.0))  # also if moments are computed
    classes = mt.Prediction(logits=torch.zeros(2, 4, 3))
    assert classes.in_original_units(dataset) is classes
    assert pred.in_original_units(PLAIN) is pred


def test_a_gaussian_head_streams_its_density() -> None:
    """With moments alone, the density is that of the members' own variances."""
    ens = converted(mt.Deep(members=3), outputs=4, task="gaussian")
    whole, held = (mt.predict(ens, STANDARDISED, moments_only=only, batch_size=5) for only in (False, True))
    assert mt.score(held)["lpd"] == pytest.approx(mt.score(whole)["lpd"], rel=1e-6)
    mean, raw = ens(X).detach().double().chunk(2, 2)
    logs = norm.logpdf(STANDARDISED.targets.numpy(), mean.numpy(), np.sqrt(np.log1p(np.exp(raw.numpy()))))
    assert mt.score(held)["lpd"] == pytest.approx((np.logaddexp.reduce(logs, 0) - math.log(3)).mean(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_draws_in_a_stream(name: str) -> None:
    """Several chunks of draws give the moments and the density of all draws held at once."""
    ens, count = converted(DRAWN[name]), CHUNK + 44
    whole, held = (mt.predict(ens, PLAIN, draws=count, moments_only=only, batch_size=7) for only in (False, True))
    assert (whole.count, held.count) == (count, count)
    for moment in ("mean", "aleatoric", "epistemic"):
        torch.testing.assert_close(getattr(held, moment), getattr(whole, moment), rtol=1e-5, atol=1e-5)
    assert mt.score(held)["lpd"] == pytest.approx(mt.score(whole)["lpd"], abs=1e-6)
    outputs = whole.members.mean.double().numpy()
    assert mt.score(held)["lpd"] == pytest.approx(density(outputs, OWN.double().numpy()), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_draws_begin_with_the_members(name: str) -> None:
    """Few draws are the beginning of many, and an ensemble of that many members; resampling changes all."""
    ens = converted(DRAWN[name])
    few, many = (mt.predict(ens, PLAIN, draws=count).members.mean for count in (5, CHUNK + 3))
    torch.testing.assert_close(many[:5], few)
    torch.testing.assert_close(few[:3], mt.predict(ens, PLAIN).members.mean)
    torch.testing.assert_close(mt.predict(ens, PLAIN, draws=2).members.mean, few[:2])
    assert len(many.flatten(1).unique(dim=0)) > 10  # of 25 networks for EMP
    larger = converted(type(DRAWN[name])(**{**DRAWN[name].settings(), "members": 7}))
    torch.testing.assert_close(mt.predict(ens, PLAIN, draws=7).members.mean, mt.predict(larger, PLAIN).members.mean)
    ens.resample(1)
    again = mt.predict(ens, PLAIN, draws=CHUNK + 3).members.mean
    assert not any(torch.equal(again[i], many[i]) for i in (0, 4, CHUNK + 2))
    torch.testing.assert_close(again[:3], mt.predict(ens, PLAIN).members.mean)


def test_members_are_streamed_too() -> None:
    """An ensemble of more members than a chunk has the same moments by either way."""
    ens = converted(mt.EMP(members=CHUNK + 10, patch="norm", tau_output=TAU))
    held = mt.predict(ens, PLAIN, moments_only=True)
    with torch.no_grad():
        outputs = ens(X)
    torch.testing.assert_close(held.epistemic, outputs.var(0, correction=0), rtol=1e-4, atol=1e-6)
    assert held.count == CHUNK + 10


def test_equal_draws_have_no_variance() -> None:
    """Exactly none, over several chunks."""
    ens = converted(mt.EMP(members=2, patch="norm", init="copies", tau_output=TAU))
    assert not mt.predict(ens, PLAIN, draws=CHUNK + 9, moments_only=True).epistemic.any()


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are alive, and remembers the most."""

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[int, int] = {}
        self.bytes = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree.tensors(result) if isinstance(result, (Tensor, tuple, list)) else []:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            self.bytes += 0 if key in self.users else size
            self.users[key] = self.users.get(key, 0) + 1
            weakref.finalize(tensor, self.release, key, size)
        self.most = max(self.most, self.bytes)
        return result

    def release(self, key: int, size: int) -> None:
        """Counts one tensor less on this storage."""
        self.users[key] -= 1
        if not self.users[key]:
            del self.users[key]
            self.bytes -= size


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_memory_does_not_grow_with_the_number_of_draws(name: str) -> None:
    """32 chunks need as much memory as 16; a plain prediction needs the outputs of 16 chunks more."""
    ens, most = converted(DRAWN[name]), {}
    data = TensorDataset(X.repeat(4, 1), OWN.repeat(4, 1))
    for chunks in (16, 32):
        for moments_only in (True, False):
            with LiveBytes() as live:
                mt.predict(ens, data, draws=chunks * CHUNK, moments_only=moments_only)
            most[chunks, moments_only] = live.most
    outputs = 16 * CHUNK * len(data) * 2 * 4
    assert most[32, True] - most[16, True] < outputs / 4  # what Python has not collected yet
    assert most[32, False] - most[16, False] >= outputs


def test_moments_without_all_targets() -> None:
    """Have no density: if a batch has none, or if other targets are scored."""
    ens = converted(mt.EMP(members=3, patch="norm", tau_output=TAU))
    batches = [(X[:6], OWN[:6]), X[6:]]
    pred = mt.predict(ens, iter(batches), moments_only=True)
    assert pred.targets is None
    assert not pred.has_log_density
    assert "lpd" not in mt.score(pred, OWN)
    held = mt.predict(ens, PLAIN, moments_only=True)
    assert "lpd" in mt.score(held, OWN)
    held.targets = None
    assert "lpd" not in mt.score(held, OWN + 1)
    with pytest.raises(mt.InputError, match="needs targets"):
        held.log_density()


def test_densities_are_kept(tmp_path: Any) -> None:
    """By a file, by parts, and by concatenation."""
    held = mt.predict(converted(mt.EMP(members=3, patch="norm", tau_output=TAU)), PLAIN, moments_only=True)
    expected = mt.score(held)["lpd"]
    held.save(tmp_path / "a")
    for other in (mt.Prediction.load(tmp_path / "a"), mt.Prediction.cat([held[:5], held[5:]])):
        assert mt.score(other)["lpd"] == pytest.approx(expected, rel=1e-9)


CALLS = {
    "a precision of classes": (lambda: mt.predict(converted(mt.Deep()), X, task="classes", tau_output=0.1), "'regression'"),
    "no precision": (lambda: mt.predict(converted(mt.Deep()), X, tau_output=0.0), "tau_output=0.0"),
    "no draws": (lambda: mt.predict(converted(DRAWN["EMP"]), X, draws=0), "draws=0"),
    "draws of networks": (lambda: mt.predict(converted(mt.Deep()), X, draws=5), "Deep has no random draws"),
}


@pytest.mark.parametrize("name", CALLS)
def test_refusals(name: str) -> None:
    """Each names its argument."""
    use, text = CALLS[name]
    with pytest.raises(mt.InputError, match=text):
        use()


@pytest.mark.parametrize("name", ["Deep", "EMP"])
def test_intervals_of_two_targets(name: str) -> None:
    """The share of the 24 numbers inside the interval of each, and its mean width, by scipy's quantiles of a Gaussian."""
    pred = mt.predict(converted(METHODS[name]), PLAIN, tau_output=TAU, moments_only=True)
    scores = mt.score(pred, level=0.9)
    half = norm.ppf(0.95) * pred.std.numpy()
    inside = np.abs(OWN.numpy() - pred.mean.numpy()) <= half
    assert scores["coverage"] == pytest.approx(inside.mean())
    assert scores["interval_width"] == pytest.approx(2 * half.mean(), rel=1e-6)


def test_units_are_those_of_the_parts_of_a_concatenation() -> None:
    """Also inside a dataloader; parts in different units are refused."""
    ens = converted(mt.Deep(members=2))
    whole = mt.predict(ens, STANDARDISED, tau_output=TAU).variance
    both = ConcatDataset([Subset(STANDARDISED, range(5)), Subset(STANDARDISED, range(5, 12))])
    for data in (both, DataLoader(both, batch_size=4)):
        torch.testing.assert_close(mt.predict(ens, data, tau_output=TAU).variance, whole)
    with pytest.raises(mt.InputError, match="different units"):
        mt.predict(ens, ConcatDataset([STANDARDISED, PLAIN]), tau_output=TAU)


@pytest.mark.parametrize("kind", [mt.EMP, mt.MCDropout])
def test_an_elbo_is_not_trained_on_standardised_targets(kind: Any) -> None:
    """The precision is in the targets' own units, so errors of standardised targets would weigh too little."""
    more = {"patch": "norm"} if kind is mt.EMP else {}
    ens = converted(kind(members=2, prior="elbo", tau_output=TAU, examples=12, **more))
    recipe = mt.Recipe(epochs=1, batch=12, lr=1e-6)
    for data in (STANDARDISED, Subset(STANDARDISED, range(12))):
        with pytest.raises(mt.InputError, match=r"own units.*standardise='inputs'"):
            mt.fit(ens, data, recipe)
    mt.fit(ens, PLAIN, recipe, progress=False)
