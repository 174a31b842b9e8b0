"""Public functions give the same result in every mode of torch, and leave randomness and the given model as they were."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import multitudes as mt
from multitudes.analysis import counts

pytestmark = pytest.mark.slow

MODES = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "autocast": lambda: torch.autocast("cpu")}


class LearnedQuery(nn.Module):
    """Reads its input by attention from a learned query. The first layer of the query has no input but a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 12))
        self.ask, self.read, self.norm, self.answer = nn.Linear(12, 12), nn.Linear(6, 12), nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        read = self.read(x)
        weights = torch.softmax(self.ask(self.query) @ read.transpose(1, 2), -1)
        answer: Tensor = self.answer(self.norm((weights @ read)[:, 0]))
        return answer


def network() -> nn.Module:
    torch.manual_seed(0)
    return LearnedQuery()


def thin_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))


def example() -> Tensor:
    return torch.randn(3, 5, 6, generator=torch.Generator().manual_seed(1))


METHODS = {
    "MCDropout": mt.MCDropout(members=3, position="layers"),
    "Masksembles": mt.Masksembles(members=3, fewest=2),
    "MIMO": mt.MIMO(members=2),
    "EMP": mt.EMP(members=3),
    "BatchEnsemble": mt.BatchEnsemble(members=3),
    "Deep": mt.Deep(members=2),
}

QUICK = ("MCDropout", "Masksembles", "MIMO")


def converted(name: str, **options: Any) -> mt.Ensemble:
    return mt.ensemble(network(), METHODS[name], example(), seed=0, **{"check": False, **options}).eval()


@functools.cache
def kept(name: str) -> mt.Ensemble:
    """The same ensemble for all tests that do not change it."""
    return converted(name)


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
def test_a_file_is_the_same_ensemble_in_every_mode(name: str, mode: str, tmp_path: Path) -> None:
    """Same outputs as the ensemble that was saved, and it can be trained."""
    expected = kept(name)(example())
    mt.save(kept(name), tmp_path / name)
    with MODES[mode]():
        loaded = mt.load(tmp_path / name, network())
    torch.testing.assert_close(loaded(example()), expected)
    trains(loaded)


def trains(ens: mt.Ensemble) -> None:
    """Takes a step, after which some weight differs and all are finite."""
    before = state(ens)
    optimizer = torch.optim.SGD(ens.train().parameters(), lr=0.1)
    ens.loss(example(), torch.tensor([0, 1, 2]), F.cross_entropy).backward()
    optimizer.step()
    after = state(ens)
    assert any(not torch.equal(after[n], before[n]) for n in before)
    assert all(t.isfinite().all() for t in after.values() if t.is_floating_point())


def cost(ens: mt.Ensemble, x: Tensor) -> list[Any]:
    measured = mt.cost(ens, x, repeats=1, training=True)
    return [
        getattr(row, key) for row in (measured.ensemble, measured.base) for key in ("parameters", "multiply_adds", "memory")
    ]


ENTRIES: dict[str, Callable[[Tensor], Any]] = {
    "plan": lambda x: str(replace(mt.plan(network(), METHODS["MCDropout"], x, seed=0), seconds={})),
    "ensemble": lambda x: state(mt.ensemble(network(), METHODS["Masksembles"], x, seed=0)),
    "ensemble of copies": lambda x: state(mt.ensemble(network(), mt.Deep(members=2), x, seed=0, start="copies")),
    "ensemble of a factory": lambda x: state(mt.ensemble(lambda ratio: network(), mt.Deep(members=2), x, seed=0)),
    "packed": lambda x: state(mt.ensemble(thin_network(), mt.Packed(members=2), x[:, 0], seed=0, check=False)),
    "resize": lambda x: state(mt.resize(thin_network(), 0.5, x[:, 0], seed=0)),
    "check": lambda x: str(mt.check(kept("MCDropout"), x)),
    "cost": lambda x: cost(kept("Deep"), x),
    "compact": lambda x: state(kept("Masksembles").compact()),
    "tune": lambda x: converted("BatchEnsemble").tune(x, seconds=0.0).plan.proven,
    "from_models": lambda x: state(mt.Deep.from_models([network(), network()], x)),
    "from_checkpoints": lambda x: state(mt.Deep.from_checkpoints([network().state_dict()] * 2, network(), x)),
    "member": lambda x: state(kept("Masksembles").member(1)),
    "subset": lambda x: state(kept("EMP").subset([0, 2])),
    "counts": lambda x: str(counts(network(), x, methods=[mt.Deep(members=3)])),
    "recommend": lambda x: [c.method for c in mt.recommend(network(), x, methods=[METHODS["MIMO"]], repeats=1).candidates],
}


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_public_function_does_not_depend_on_the_mode(entry: str) -> None:
    expected = ENTRIES[entry](example())
    for mode in MODES.values():
        with mode():
            result = ENTRIES[entry](example())
        if isinstance(expected, dict) and isinstance(next(iter(expected.values())), Tensor):
            torch.testing.assert_close(result, expected, rtol=0, atol=0)
        else:
            assert result == expected


MAKERS: dict[str, Callable[[Tensor], nn.Module]] = {
    "ensemble": lambda x: converted("MCDropout"),
    "checked": lambda x: converted("Masksembles", check=True),
    "subset": lambda x: converted("EMP").subset([0, 1]),
    "from_models": lambda x: mt.Deep.from_models([network(), network()], x),
    "prediction on another shape": lambda x: (ens := converted("MCDropout"), ens(torch.randn(2, 4, 6)))[0],
    "tuned": lambda x: converted("BatchEnsemble").tune(x, seconds=0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("maker", MAKERS)
def test_an_ensemble_made_in_inference_mode_can_be_trained(maker: str) -> None:
    with torch.inference_mode():
        made = MAKERS[maker](example())
    assert isinstance(made, mt.Ensemble)
    made.eval()(example())
    trains(made)
    assert not any(tensor.is_inference() for tensor in [*made.parameters(), *made.buffers()])


def test_a_member_taken_in_inference_mode_can_be_trained() -> None:
    with torch.inference_mode():
        member = converted("EMP").member(1)
    member(example()).sum().backward()
    assert all(p.grad is not None for p in member.parameters() if p.requires_grad)


class RandomForward(nn.Module):
    """Draws from python's, numpy's and torch's generators in its constructor, in training and in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 3)
        self.scale = 1 + random.random() + float(numpy.random.rand())

    def forward(self, x: Tensor) -> Tensor:
        noise = random.random() + float(numpy.random.rand()) + torch.rand(())
        answer: Tensor = self.outer(torch.tanh(self.inner(x))) * self.scale
        return answer + noise if self.training else answer + 0 * noise


class Refused(RandomForward):
    """Draws, and then fails."""

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        raise ValueError("no")


def states() -> list[Any]:
    return [random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]


RANDOM: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "plan": lambda net, x: mt.plan(net, mt.MCDropout(position="layers"), x, seed=0),
    "ensemble": lambda net, x: mt.ensemble(net, mt.BatchEnsemble(members=2), x, seed=0),
    "factory": lambda net, x: mt.ensemble(lambda ratio: type(net)(), mt.Deep(members=2), x, seed=0, check=False),
    "resize": lambda net, x: mt.resize(net, 0.5, x, seed=0),
    "Deep": lambda net, x: mt.ensemble(net, mt.Deep(members=2), x, seed=0),
    "from_models": lambda net, x: mt.Deep.from_models([net, net], x, seed=0),
    "recommend": lambda net, x: mt.recommend(net, x, methods=[mt.Deep(members=2)], repeats=1),
}


@pytest.mark.parametrize("kind", [RandomForward, Refused])
@pytest.mark.parametrize(
    "entry", [e if e in ("ensemble", "resize") else pytest.param(e, marks=pytest.mark.slow) for e in RANDOM]
)
def test_randomness_stays_as_it_was(entry: str, kind: type[nn.Module]) -> None:
    """Also after a refusal."""
    net, x = kind(), torch.randn(3, 6)
    before = states()
    try:
        RANDOM[entry](net, x)
    except mt.MultitudesError:
        assert kind is Refused
    assert states() == before


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["check", "cost", "tune", "load", "member"])
def test_randomness_stays_as_it_was_after_what_ensembles_do(entry: str, tmp_path: Path) -> None:
    net, x = RandomForward(), torch.randn(3, 6)
    ens = mt.ensemble(net, mt.BatchEnsemble(members=2), x, seed=0)
    mt.save(ens, tmp_path / "ens")
    does: dict[str, Callable[[], Any]] = {
        "check": lambda: mt.check(ens, x),
        "cost": lambda: mt.cost(ens, x, repeats=1, training=True),
        "tune": lambda: ens.tune(x, seconds=0.0),
        "load": lambda: mt.load(tmp_path / "ens", net),
        "member": lambda: ens.member(0),
    }
    before = states()
    does[entry]()
    assert states() == before


def test_a_seed_that_was_not_given_is_the_one_draw() -> None:
    """Two conversions differ, both can be repeated, and a refused one takes its draw back."""
    net, x = RandomForward(), torch.randn(3, 6)
    torch.manual_seed(3)
    seeds = [mt.ensemble(net, mt.Deep(members=2), x, check=False).seed for _ in range(2)]
    torch.manual_seed(3)
    assert seeds == [int(torch.randint(2**62, ())) for _ in range(2)]
    refused, before = Refused(), states()
    with pytest.raises(mt.MultitudesError):
        mt.ensemble(refused, mt.Deep(members=2), x)
    assert states() == before


@pytest.mark.parametrize("kind", [mt.MCDropout, mt.EMP, mt.DropConnect, mt.BatchEnsemble, mt.Masksembles])
def test_members_do_not_depend_on_the_default_dtype(kind: type[mt.Method], tmp_path: Path) -> None:
    """A seed has the same members under any default, and a file draws those again that were saved."""
    x, net = torch.randn(4, 6), nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    ens = mt.ensemble(net, kind(members=4), x, seed=0).eval()
    mt.save(ens, tmp_path / "a.multitude")
    torch.set_default_dtype(torch.float64)
    try:
        loaded, again = mt.load(tmp_path / "a.multitude", net), mt.ensemble(net, kind(members=4), x, seed=0).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(loaded(x), ens(x))
    torch.testing.assert_close(again(x), ens(x))
