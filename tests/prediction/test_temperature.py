"""Temperatures: the lowest NLL against scipy's minimiser, and calibrators that stay with the ensemble."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from laws.compare import convert
from scipy import stats
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from zoo import ZOO

import multitudes as mt
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.temperature import LEAST, MOST, Calibrator

M, N, K = 3, 200, 4


def held_out(scale: float = 3.0, members: int = M, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Members' logits that are overconfident by about that factor, and labels."""
    generator = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(N, K, dtype=torch.float64, generator=generator)
    targets = truth.softmax(1).multinomial(1, generator=generator).squeeze(1)
    return scale * (truth + 0.3 * torch.randn(members, N, K, dtype=torch.float64, generator=generator)), targets


def nll(log_probs: Tensor, targets: Tensor, temperature: float) -> float:
    """The NLL of softmax(log p / T)."""
    return float(nn.functional.cross_entropy(log_probs / temperature, targets))


def least(log_probs: Tensor, targets: Tensor) -> float:
    """The best temperature by scipy."""
    bounds = (math.log(LEAST), math.log(MOST))
    options = {"xatol": 1e-10}
    found = minimize_scalar(lambda t: nll(log_probs, targets, math.exp(t)), bounds=bounds, method="bounded", options=options)
    return math.exp(found.x)


@pytest.mark.parametrize("scale", [0.2, 3.0, 20.0])
def test_the_mixture_has_the_least_nll(scale: float) -> None:
    """T is scipy's, and the calibrated prediction has that NLL."""
    logits, targets = held_out(scale)
    pred = Prediction(logits=logits, targets=targets)
    calibrator = mt.calibrate(pred)
    log_mean = logits.softmax(2).mean(0).log()
    assert calibrator.members is None
    assert calibrator.mixture == pytest.approx(least(log_mean, targets), rel=1e-5)
    after = -pred.calibrated(calibrator).probs.gather(1, targets[:, None]).log().mean()
    assert float(after) == pytest.approx(nll(log_mean, targets, calibrator.mixture))
    assert float(after) <= nll(log_mean, targets, 1.0)


@pytest.mark.parametrize("scale", [0.2, 20.0])
def test_each_member_has_its_least_nll(scale: float) -> None:
    """Each member's temperature minimises its own NLL."""
    logits, targets = held_out(scale)
    logits = logits * torch.tensor([0.5, 1.0, 4.0])[:, None, None]
    calibrator = mt.calibrate(Prediction(logits=logits), targets, of="members")
    assert calibrator.mixture is None
    assert calibrator.members == pytest.approx([least(logits[m], targets) for m in range(M)], rel=1e-5)
    assert calibrator.members[0] < calibrator.members[1] < calibrator.members[2]


def test_a_known_temperature_is_found() -> None:
    """With labels drawn from softmax(z / 2.5), the temperature is about 2.5."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(1, 20000, 5, generator=generator)
    targets = (logits[0] / 2.5).softmax(1).multinomial(1, generator=generator).squeeze(1)
    pred = Prediction(logits=logits)
    assert mt.calibrate(pred, targets).mixture == pytest.approx(2.5, rel=0.03)
    assert mt.calibrate(pred, targets, of="members").members[0] == pytest.approx(2.5, rel=0.03)


def test_what_is_calibrated_stays() -> None:
    """Fitted again, the temperature of a calibrated mixture is 1."""
    logits, targets = held_out()
    first = mt.calibrate(Prediction(logits=logits), targets)
    again = Prediction(probs=Prediction(logits=logits, calibrator=first).probs[None])
    assert mt.calibrate(again, targets).mixture == pytest.approx(1, rel=1e-6)


def test_calibrated_members_are_a_mixture_that_is_not_sure_enough() -> None:
    """A mixture of calibrated members is underconfident: calibrate the mixture (Rahaman and Thiery)."""
    logits, targets = held_out(members=8)
    logits = logits + 4 * torch.randn(8, N, K, dtype=torch.float64)
    pred = Prediction(logits=logits)
    members = pred.calibrated(mt.calibrate(pred, targets, of="members"))
    assert mt.calibrate(Prediction(probs=members.probs[None]), targets).mixture < 0.9


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.sampled_from([1e-3, 0.1, 1.0, 30.0, 1e3, 1e5]), st.integers(2, 8), st.integers(1, 40))
def test_it_ends_at_the_least_nll_whatever_the_logits(seed: int, scale: float, classes: int, count: int) -> None:
    """For logits of any scale, no temperature on a fine grid has a lower NLL."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(1, count, classes, dtype=torch.float64, generator=generator)
    wrong = torch.rand(count, generator=generator) < 0.3
    targets = torch.where(wrong, torch.randint(classes, (count,), generator=generator), logits[0].argmax(1))
    targets[0] = logits[0, 0].argmin()  # without an error there is no least NLL
    found = mt.calibrate(Prediction(logits=logits), targets).mixture
    assert LEAST * (1 - 1e-9) <= found <= MOST * (1 + 1e-9)
    logs = logits[0].log_softmax(1).clamp(min=-1e4)
    here = nll(logs, targets, found)
    for other in torch.logspace(-2, 2, 41, dtype=torch.float64).tolist():
        assert here <= nll(logs, targets, other) + 1e-9 * (1 + here)


def test_a_perfect_and_a_hopeless_prediction() -> None:
    """A prediction without an error keeps T = 1 and warns, an always wrong one gets the highest, and equal logits get 1."""
    logits = torch.eye(3, dtype=torch.float64)[None] * 5
    with pytest.warns(UserWarning, match="all 3 held-out examples are predicted right, so .* T = 1.*more held-out data"):
        assert mt.calibrate(Prediction(logits=logits), torch.arange(3)).mixture == 1
    with pytest.warns(UserWarning, match="^the one held-out example is predicted right"):
        assert mt.calibrate(Prediction(logits=logits[:, :1]), torch.arange(1)).mixture == 1
    assert mt.calibrate(Prediction(logits=logits), (torch.arange(3) + 1) % 3).mixture == pytest.approx(MOST)
    assert mt.calibrate(Prediction(logits=torch.zeros(2, 3, 4)), torch.arange(3)).mixture == pytest.approx(1)


def test_members_without_an_error_keep_their_probabilities() -> None:
    """Others are fitted all the same."""
    logits = torch.eye(3, dtype=torch.float64).repeat(2, 2, 1) * 5
    logits[1, 0] = logits[1, 1]
    with pytest.warns(UserWarning, match="right by 1 of 2 members"):
        first, second = mt.calibrate(Prediction(logits=logits), torch.arange(6) % 3, of="members").members
    assert first == 1
    assert second > 1


def test_probabilities_without_logits() -> None:
    """A mixture of probabilities has a temperature, with zeros among them too."""
    logits, targets = held_out()
    probs = logits.softmax(2)
    by_logits, by_probs = mt.calibrate(Prediction(logits=logits), targets), mt.calibrate(Prediction(probs=probs), targets)
    assert by_probs.mixture == pytest.approx(by_logits.mixture, rel=1e-6)
    sure = torch.eye(3)[None, torch.tensor([0, 1, 2, 0])]
    found = mt.calibrate(Prediction(probs=sure), torch.tensor([0, 1, 2, 1])).mixture
    assert math.isfinite(found)
    assert found > 1


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_yes_and_no(task: str) -> None:
    """No and yes are two classes, and all labels are calibrated together: T of the mixture's logit is scipy's."""
    generator = torch.Generator().manual_seed(0)
    shape = (M, N) if task == "binary" else (M, N, 2)
    logits = 4 * torch.randn(shape, dtype=torch.float64, generator=generator)
    mixed = logits.sigmoid().mean(0).logit()
    targets = (mixed / 2).sigmoid().bernoulli(generator=generator)
    pred = Prediction(logits=logits, task=task)
    bounds = (math.log(LEAST), math.log(MOST))
    expected = minimize_scalar(
        lambda t: float(nn.functional.binary_cross_entropy_with_logits(mixed / math.exp(t), targets)),
        bounds=bounds, method="bounded", options={"xatol": 1e-10},
    )  # fmt: skip
    found = mt.calibrate(pred, targets).mixture
    assert found == pytest.approx(math.exp(expected.x), rel=1e-5)
    torch.testing.assert_close(pred.calibrated(Calibrator(mixture=found)).probs, (mixed / found).sigmoid())


def test_pixels() -> None:
    """Pixels count as examples; ignored ones do not count."""
    logits, targets = held_out()
    dense = logits.reshape(M, 20, 10, K).movedim(-1, 2)
    flat = mt.calibrate(Prediction(logits=logits), targets)
    assert mt.calibrate(Prediction(logits=dense), targets.reshape(20, 10)).mixture == pytest.approx(flat.mixture, rel=1e-9)
    holes = targets.reshape(20, 10).clone()
    holes[:, 5:] = 255
    kept = logits.reshape(M, 20, 10, K)[:, :, :5].reshape(M, 100, K)
    some = mt.calibrate(Prediction(logits=kept), targets.reshape(20, 10)[:, :5].reshape(100))
    assert mt.calibrate(Prediction(logits=dense), holes, ignore=255).mixture == pytest.approx(some.mixture, rel=1e-9)


def test_targets_that_came_along() -> None:
    """Targets of the predicted dataset are the default."""
    logits, targets = held_out()
    assert mt.calibrate(Prediction(logits=logits, targets=targets)) == mt.calibrate(Prediction(logits=logits), targets)


CASE = ZOO["mlp"]
X = CASE.example(40).args[0]
Y = torch.randint(5, (40,), generator=torch.Generator().manual_seed(2))


@pytest.fixture(params=["mixture", "members"])
def ens(request: pytest.FixtureRequest) -> mt.Ensemble:
    """A calibrated ensemble."""
    ens = convert(mt.Deep(), CASE)
    ens.calibrator = mt.calibrate(mt.predict(ens, TensorDataset(X, Y)), of=request.param)
    return ens


CARRIED: dict[str, Callable[[mt.Ensemble, Path], mt.Ensemble]] = {
    "deepcopy": lambda ens, _: copy.deepcopy(ens),
    "pickle": lambda ens, _: pickle.loads(pickle.dumps(ens)),
    "file": lambda ens, path: (mt.save(ens, path / "a"), mt.load(path / "a", CASE.model()))[1],
    "train and eval": lambda ens, _: ens.train().eval(),
    "to": lambda ens, _: ens.to(torch.float64),
}


@pytest.mark.parametrize("how", CARRIED)
def test_it_travels_with_the_ensemble(how: str, ens: mt.Ensemble, tmp_path: Path) -> None:
    """Copies, files, modes and devices keep the calibrator."""
    before = ens.calibrator
    other = CARRIED[how](ens, tmp_path)
    assert before is not None
    assert other.calibrator == before
    torch.testing.assert_close(mt.predict(other, X).probs, mt.predict(ens, X).probs)


def test_the_average_is_calibrated(ens: mt.Ensemble) -> None:
    """The average is the log of the calibrated prediction's probabilities."""
    average = ens.average()(X).detach()
    torch.testing.assert_close(average.exp(), mt.predict(ens, X).probs)
    ens.calibrator = None
    assert not torch.allclose(average, ens.average()(X).detach())


def test_a_subset_has_its_members_temperatures(ens: mt.Ensemble) -> None:
    """A subset keeps its members' temperatures; a mixture temperature is dropped."""
    whole = ens.calibrator
    few = ens.subset([3, 1])
    if whole.members is None:
        assert few.calibrator is None
    else:
        assert few.calibrator == Calibrator(members=(whole.members[3], whole.members[1]))
        expected = mt.predict(ens, X).members.logits[[3, 1]]
        torch.testing.assert_close(mt.predict(few, X).members.logits, expected)


@pytest.mark.parametrize("method", [mt.Masksembles(fewest=2), mt.MIMO()], ids=lambda m: type(m).__name__)
def test_a_compact_ensemble_is_calibrated_alike(method: mt.Method) -> None:
    """A compact ensemble has the same outputs and temperatures; so has a subset that is compacted first."""
    ens = convert(method, CASE)
    ens.calibrator = Calibrator(members=tuple(1.0 + m for m in range(ens.members)))
    compact = ens.compact()
    assert compact.calibrator == ens.calibrator
    torch.testing.assert_close(mt.predict(compact, X).probs, mt.predict(ens, X).probs)
    assert ens.subset([2, 0]).calibrator == Calibrator(members=(3.0, 1.0))
    torch.testing.assert_close(mt.predict(ens.subset([2]), X).probs, mt.predict(ens, X).members.probs[2])


def test_what_is_calibrated_is_not_calibrated_again(ens: mt.Ensemble) -> None:
    """Calibrating twice is refused, and the error says how to start over."""
    with pytest.raises(mt.InputError, match=r"ens\.calibrator = None"):
        mt.calibrate(mt.predict(ens, TensorDataset(X, Y)))
    ens.calibrator = None
    mt.calibrate(mt.predict(ens, TensorDataset(X, Y)))


def test_some_of_the_members_can_be_calibrated_anew() -> None:
    """A subset of a calibrated mixture is not calibrated, and can be calibrated again."""
    logits, targets = held_out()
    few = Prediction(logits=logits, calibrator=Calibrator(mixture=2.0)).subset([0, 1])
    assert mt.calibrate(few, targets) == mt.calibrate(Prediction(logits=logits[:2]), targets)


def test_temperatures_are_plain_numbers() -> None:
    """Temperatures can be tensors or ints; calibrators are compared by value."""
    assert Calibrator(members=torch.tensor([1.0, 2.0])).members == (1.0, 2.0)
    assert Calibrator(members=[1, 2]) == Calibrator(members=(1.0, 2.0))
    assert hash(Calibrator(mixture=2.0)) == hash(Calibrator(mixture=2.0))
    assert Calibrator(**Calibrator(members=(1.0, 2.0)).settings()) == Calibrator(members=(1.0, 2.0))
    assert Calibrator(mixture=1.2).subset([0]) is None


def numbers(members: int, seed: int = 0, off: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    """Members' means and variances, which are too small by about that factor, and targets."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(members, N, 2, dtype=torch.float64, generator=generator) / 3
    variance = torch.rand(members, N, 2, dtype=torch.float64, generator=generator) + 0.2
    targets = torch.randn(N, 2, dtype=torch.float64, generator=generator) * (off * variance.mean(0)).sqrt()
    return mean, variance, targets


def density_nll(mean: Tensor, variance: Tensor, targets: Tensor) -> float:
    """The NLL of the mixture of Gaussians, by scipy."""
    logs = stats.norm(mean.numpy(), variance.sqrt().numpy()).logpdf(targets.numpy())
    return float(-(logsumexp(logs, axis=0) - math.log(len(mean))).mean())


@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize("off", [0.02, 1.0, 50.0])
def test_the_factor_of_variances_has_the_least_nll(members: int, off: float) -> None:
    """It is scipy's minimum of the mixture's NLL; means stay, and the aleatoric variance is scaled."""
    mean, variance, targets = numbers(members, off=off)
    pred = Prediction(mean=mean, variance=variance, targets=targets)
    factor = mt.calibrate(pred).variance
    assert factor is not None
    options = {"xatol": 1e-10}
    found = minimize_scalar(
        lambda log: density_nll(mean, math.exp(log) * variance, targets), bounds=(-9, 9), method="bounded", options=options
    )
    assert factor == pytest.approx(math.exp(found.x), rel=1e-5)
    after = pred.calibrated(Calibrator(variance=factor))
    assert -float(after.log_density(targets).mean()) == pytest.approx(found.fun)
    assert torch.equal(after.mean, pred.mean)
    torch.testing.assert_close(after.aleatoric, factor * variance.mean(0))
    assert torch.equal(after.epistemic, pred.epistemic)
    if members == 1:
        assert factor == pytest.approx(float(((targets - mean[0]) ** 2 / variance[0]).mean()), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("others", "expected"), [(1e-3, 1.0), (30.0, 1e6)])
def test_the_lowest_of_two_minima_is_found(others: float, expected: float) -> None:
    """Members of variance 1 and 1e-6: targets of size 1 fit either at a factor of 1 or of 1e6, and the others decide."""
    mean = torch.zeros(2, 100, dtype=torch.float64)
    variance = torch.tensor([1.0, 1e-6], dtype=torch.float64)[:, None].expand(2, 100)
    targets = torch.where(torch.arange(100) < 95, 1.0, others).double()
    logs = np.linspace(-18, 18, 721)
    tried = np.array([density_nll(mean, math.exp(log) * variance, targets) for log in logs])
    assert int(((tried[1:-1] < tried[:-2]) & (tried[1:-1] < tried[2:])).sum()) == 2
    factor = mt.calibrate(Prediction(mean=mean, variance=variance), targets).variance
    assert factor == pytest.approx(expected, rel=0.2)
    assert density_nll(mean, factor * variance, targets) <= tried.min()


def gaussians(method: mt.Method | None = None, task: str = "gaussian") -> mt.Ensemble:
    return mt.ensemble(nn.Linear(3, 4), method or mt.Deep(members=3), INPUTS[:2], seed=0, task=task)


INPUTS = torch.randn(30, 3, generator=torch.Generator().manual_seed(3))


def test_a_factor_is_applied_wherever_variances_are_read(tmp_path: Path) -> None:
    """Predictions, moments alone, the average as one network, files, subsets and parts of predictions."""
    ens = gaussians()
    plain = mt.predict(ens, INPUTS)
    ens.calibrator = Calibrator(variance=2.5)
    mt.save(ens, tmp_path / "a")
    for other in (ens, mt.load(tmp_path / "a", nn.Linear(3, 4)), copy.deepcopy(ens)):
        pred, held = mt.predict(other, INPUTS), mt.predict(other, INPUTS, moments_only=True)
        torch.testing.assert_close(pred.members.variance, 2.5 * plain.members.variance)
        for name in ("mean", "aleatoric", "epistemic", "variance"):
            torch.testing.assert_close(getattr(held, name), getattr(pred, name))
        mean, raw = other.average()(INPUTS).chunk(2, 1)
        torch.testing.assert_close(mean, plain.mean)
        torch.testing.assert_close(nn.functional.softplus(raw), pred.variance)
        few = mt.predict(other.subset([2, 0]), INPUTS)
        torch.testing.assert_close(few.members.variance, pred.members.variance[[2, 0]])
        assert few.calibrator == pred.subset([2, 0]).calibrator == Calibrator(variance=2.5)
    pred.save(tmp_path / "p")
    back = Prediction.load(tmp_path / "p")
    assert back.calibrator == pred.calibrator
    torch.testing.assert_close(back.variance, pred.variance)


def test_a_known_noise_is_scaled_too() -> None:
    """EMP's 1 / tau_output, in predictions and in `ens.moments`."""
    ens = gaussians(mt.EMP(members=3, tau_output=4.0), "regression").eval()
    targets = INPUTS @ torch.ones(3, 4) * 2
    ens.calibrator = mt.calibrate(mt.predict(ens, TensorDataset(INPUTS, targets)))
    assert ens.calibrator.variance is not None
    pred = mt.predict(ens, INPUTS)
    torch.testing.assert_close(pred.aleatoric, torch.full((30, 4), ens.calibrator.variance / 4))
    torch.testing.assert_close(ens.moments(INPUTS)[1], pred.variance)
    assert torch.equal(ens.average()(INPUTS), ens(INPUTS).mean(0))


def test_files_of_before_there_were_factors_are_the_same() -> None:
    """What a calibrator of temperatures writes is what older versions read."""
    assert Calibrator(mixture=1.5).settings() == {"members": None, "mixture": 1.5}
    assert Calibrator(**Calibrator(variance=0.5).settings()) == Calibrator(variance=0.5)
