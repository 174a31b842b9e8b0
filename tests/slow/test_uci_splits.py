"""examples/uci_splits.py: what is trained in a stack is what is trained alone, and scores are in the units of the target."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import multitudes as mt
from multitudes.data import uci
from multitudes.data.embedded import stored

pytestmark = pytest.mark.slow

QUICK = ["yacht", "--splits", "4", "--epochs", "4"]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example, not run yet."""
    spec = importlib.util.spec_from_file_location("uci_splits", Path(__file__).parents[2] / "examples" / "uci_splits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def differences(stack: mt.Ensemble, alone: list[mt.Ensemble]) -> dict[str, float]:
    """How far the weights of a stack are from those of ensembles that were trained one by one."""
    joined = {name: torch.cat([few.state_dict()[name] for few in alone]) for name in stack.state_dict()}
    return {name: float((value - joined[name]).abs().max()) for name, value in stack.state_dict().items()}


@pytest.mark.parametrize("members", [1, 2])
def test_a_member_learns_in_the_stack_as_it_would_alone(example: ModuleType, members: int) -> None:
    """To the last bit, where members run one after the other."""
    found = example.main([*QUICK, "--apart", "--members", str(members)])["yacht"]
    (stack,), alone = found["stacked"].ensembles, found["one by one"].ensembles
    assert (stack.executor, stack.members, len(alone)) == ("loop", 4 * members, 4)
    assert set(differences(stack, alone).values()) == {0.0}
    assert torch.allclose(found["stacked"].rmse, found["one by one"].rmse, rtol=1e-6)
    assert torch.allclose(found["stacked"].nll, found["one by one"].nll, rtol=1e-5)


def test_the_fastest_executor_differs_by_rounding(example: ModuleType) -> None:
    """Which grows with the steps: after 8 of them it is still small."""
    found = example.main(["yacht", "--splits", "4", "--epochs", "1", "--apart", "--tune"])["yacht"]
    (stack,), alone = found["stacked"].ensembles, found["one by one"].ensembles
    assert max(differences(stack, alone).values()) < 1e-4


def test_scores_are_in_the_units_of_the_target(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """They equal those of each member alone on its split, and are better than those of a constant."""
    found = example.main(["yacht", "--epochs", "20"])["yacht"]["stacked"]
    assert found.rmse.shape == found.nll.shape == (20,)
    for s in (0, 19):
        train, test = uci("yacht", s)
        x, y = test.batch(slice(None))
        with torch.no_grad():
            mean, raw = found.ensembles[0].member(s)(x).chunk(2, 1)
        off = (mean - y) * train.target_std
        density = torch.distributions.Normal(mean * train.target_std, F.softplus(raw).sqrt() * train.target_std)
        assert float(off.square().mean().sqrt()) == pytest.approx(float(found.rmse[s]), rel=1e-4)
        assert float(density.log_prob(y * train.target_std).mean()) == pytest.approx(-float(found.nll[s]), rel=1e-3)
    assert 0.3 < float(found.rmse.mean()) < 5  # the target's standard deviation is 15, and its best constant's density −4.1
    assert 0 < float(found.nll.mean()) < 2.5
    printed = capsys.readouterr().out
    assert example.shown(found.rmse) in printed
    assert example.shown(-found.nll) in printed


def test_mean_and_standard_error(example: ModuleType) -> None:
    """Of 1, 2, 3: 2, and 1/√3."""
    assert example.shown(torch.tensor([1.0, 2.0, 3.0])) == "2.000 ± 0.577"


def test_files_of_a_folder(example: ModuleType, tmp_path: Path) -> None:
    """Yacht as a file is the yacht that is embedded."""
    folder = tmp_path / "uci" / "yacht"
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.csv", stored("regression.npz")["yacht"], delimiter=",", fmt="%.17g")
    options: list[Any] = ["yacht", "--splits", "2", "--epochs", "1"]
    given, embedded = (example.main([*options, *more])["yacht"]["stacked"] for more in (["--root", str(tmp_path)], []))
    assert torch.equal(given.rmse, embedded.rmse)


def test_any_method_by_the_gaussian_of_its_moments(example: ModuleType) -> None:
    """The NLL is that of one Gaussian with the mixture's mean and variance, as in Packed-Ensembles, not the mixture's."""
    text = "Packed(members=3, alpha=2)"
    found = example.main(["yacht", "--splits", "2", "--epochs", "3", "--method", text])["yacht"][text]
    train, test = uci("yacht", 1)
    x, y = test.batch(slice(None))
    with torch.no_grad():
        mean, raw = found.ensembles[1].eval()(x).double().chunk(2, 2)
    variance = F.softplus(raw).mean(0) + mean.var(0, correction=0)
    off = (mean.mean(0) - y) * train.target_std
    std = variance.sqrt() * train.target_std
    assert float(-torch.distributions.Normal(0.0, std).log_prob(off).mean()) == pytest.approx(float(found.nll[1]), rel=1e-5)
    assert found.rmse.shape == (2,)
