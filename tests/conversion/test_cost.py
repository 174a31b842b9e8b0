"""cost: what an ensemble takes, beside the base model."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from laws import taken
from laws.compare import assert_exact, convert, run_by
from torch import nn
from zoo import ZOO

import multitudes as mt
from multitudes.engine.counting import multiply_adds, saved_numbers
from multitudes.engine.modules import named_tensors


def test_counts_by_hand() -> None:
    """Parameters and multiply-adds of a small perceptron with a shared body and six heads."""
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.randn(5, 4)
    cost = mt.cost(mt.ensemble(net, mt.MultiHead(members=6), x, seed=0), x, repeats=1)
    assert cost.base.parameters == 4 * 8 + 8 + 8 * 3 + 3
    assert cost.ensemble.parameters == 4 * 8 + 8 + 6 * (8 * 3 + 3)
    assert cost.base.multiply_adds == 5 * (4 * 8 + 8 * 3)
    assert cost.ensemble.multiply_adds == 5 * (4 * 8 + 6 * 8 * 3)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "case"), taken("resnet", "vit", "lstm"))
def test_it_does_not_depend_on_the_executor(kind: type[mt.Method], case: str) -> None:
    """Each executor counts shared parts once, and the plan gives the same numbers beforehand."""
    ens = convert(kind(), ZOO[case])
    found = {}
    for executor in ens.plan.proven["eval"]:
        if executor != "fold":  # all rows pass the shared part there
            found[executor] = mt.cost(run_by(ens, executor), ZOO[case].example(), repeats=1).ensemble.multiply_adds
    assert set(found.values()) == {ens.plan.counts.multiply_adds}


def test_attention_is_counted_for_the_base_model_too() -> None:
    """Its projections count in eval mode, where torch would take a fused path."""
    patches, blocks, head = 3 * 4 * 8 * 48, 3 * 3 * 5 * (8 * 24 + 8 * 8 + 2 * 8 * 16), 3 * 8 * 5
    cost = mt.cost(convert(mt.MultiHead(), ZOO["vit"]), ZOO["vit"].example(), repeats=1)
    products = 3 * 2 * 3 * 2 * 5 * 5 * 4
    assert cost.base.multiply_adds in (patches + blocks + head, patches + blocks + head + products)
    assert cost.ensemble.multiply_adds == cost.base.multiply_adds + 3 * head


def test_time_and_memory_are_measured() -> None:
    """Both are positive; memory holds the weights at least, and grows with the batch."""
    ens = convert(mt.Deep(), ZOO["resnet"])
    small, large = (mt.cost(ens, ZOO["resnet"].example(batch), repeats=3) for batch in (2, 16))
    for row in (small.ensemble, small.base):
        assert row.latency > 0
        assert row.memory > 8 * row.parameters
    assert large.ensemble.memory > small.ensemble.memory
    assert large.ensemble.multiply_adds == 8 * small.ensemble.multiply_adds


def test_it_prints_as_a_table() -> None:
    """One line for each quantity: ensemble, single, ratio."""
    lines = str(mt.cost(convert(mt.Deep(), ZOO["mlp"]), ZOO["mlp"].example(), repeats=1)).splitlines()
    line = next(line for line in lines if "parameters" in line)
    assert "516" in line
    assert "129" in line
    assert "4.00 ×" in line
    assert any("multiply-adds" in line for line in lines)
    assert any("latency" in line and " ms" in line for line in lines)


def test_on_the_meta_device_there_is_no_time() -> None:
    """Counts need no weights; a time would mean nothing."""
    with torch.device("meta"):
        net, x = nn.Linear(1000, 1000), torch.zeros(8, 1000)
    cost = mt.cost(mt.ensemble(net, mt.Deep(members=8), x), x)
    assert cost.ensemble.multiply_adds == 8 * 8 * 1000 * 1000
    assert math.isnan(cost.ensemble.latency)


def test_it_changes_nothing() -> None:
    """Not the tensors, not the statistics, not the mode, not torch's randomness."""
    case = ZOO["resnet"]
    ens = convert(mt.TreeNet(), case).train()
    state, random = {name: tensor.detach().clone() for name, tensor in named_tensors(ens)}, torch.get_rng_state()
    mt.cost(ens, case.example(), repeats=2)
    assert_exact([tensor.detach() for _, tensor in named_tensors(ens)], state.values())
    assert ens.training
    assert ens.template.training
    assert torch.equal(torch.get_rng_state(), random)


def test_multiply_adds_of_layers() -> None:
    """By torch's formulas, halved: a multiplication and an addition are one."""
    x = torch.randn(2, 4, 8, 8)
    assert multiply_adds(lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2)(x)) == 2 * 8 * 8 * 6 * 2 * 9
    assert multiply_adds(lambda: nn.Linear(8, 5)(x)) == 2 * 4 * 8 * 8 * 5
    assert multiply_adds(lambda: nn.ReLU()(x)) == 0


def test_saved_numbers_are_what_backward_needs() -> None:
    """A product keeps both factors, weights apart; without gradients nothing would be kept."""
    x, weight = torch.randn(5, 4, requires_grad=True), nn.Parameter(torch.randn(4))
    assert saved_numbers(lambda: (x * x).sum()) == 20
    assert saved_numbers(lambda: (x.detach() * weight).sum()) == 20


@pytest.mark.slow
def test_memory_is_that_of_a_training_step() -> None:
    """What a step keeps is what the method calls with: one draw, each row by one member, or all members."""
    net, x = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)), torch.randn(64, 16)

    def kept(method: mt.Method) -> float:
        found = mt.cost(mt.ensemble(net, method, x, seed=0), x, repeats=1)
        weights = [4 * row.parameters for row in (found.ensemble, found.base)]
        return (found.ensemble.memory - weights[0]) / (found.base.memory - weights[1])

    assert kept(mt.DropConnect(members=12)) < 2.5
    assert kept(mt.Masksembles(members=4)) < 3
    assert kept(mt.Masksembles(members=4, feed="all")) > 4
    assert kept(mt.Deep(members=4)) > 3


class Slow(nn.Module):
    """A linear layer that notes the dtype of its product, and waits: longer in training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = self.layer(x)
        DTYPES.append(product.dtype)
        time.sleep(0.02 if self.training else 0.005)
        return product


DTYPES: list[torch.dtype] = []


@pytest.fixture
def slow() -> tuple[mt.Ensemble, torch.Tensor]:
    """An ensemble of three slow networks, run one after the other."""
    x = torch.randn(10, 4)
    return run_by(mt.ensemble(Slow(), mt.Deep(members=3), x, seed=0), "loop"), x


@pytest.mark.slow
def test_throughput_and_epochs_follow_from_the_times(slow: tuple[mt.Ensemble, torch.Tensor]) -> None:
    """Three networks that wait 5 ms each answer 10 examples in 15 ms; a step takes 60 ms, and 45 examples are 5 steps."""
    measured = mt.cost(*slow, repeats=3, training=True)
    assert measured.base.latency >= 0.005
    assert measured.ensemble.latency >= 0.015
    for row in (measured.ensemble, measured.base):
        assert row.throughput == pytest.approx(10 / row.latency)
        assert row.epoch(45) == pytest.approx(5 * row.step)  # type: ignore[operator]
    assert measured.ensemble.step is not None
    assert measured.base.step is not None
    assert measured.ensemble.step >= 0.06
    assert 0.02 <= measured.base.step < measured.ensemble.step
    lines = str(measured).splitlines()
    assert any("throughput" in line and f"{measured.base.throughput:,.0f} / s" in line for line in lines)
    assert any("step" in line and f"{measured.base.step * 1e3:.2f} ms" in line for line in lines)


@pytest.mark.slow
def test_a_step_is_not_measured_unless_asked_for(slow: tuple[mt.Ensemble, torch.Tensor]) -> None:
    measured = mt.cost(*slow, repeats=1)
    assert measured.ensemble.step is None
    assert "step" not in str(measured)
    with pytest.raises(mt.InputError, match="training=True"):
        measured.ensemble.epoch(100)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "dtype"), [("32", torch.float32), ("bf16", torch.bfloat16)])
def test_timed_calls_have_the_precision(slow: tuple[mt.Ensemble, torch.Tensor], precision: Any, dtype: torch.dtype) -> None:
    """Calls and training steps of both networks run in it; what is counted does not change."""
    plain = mt.cost(*slow, repeats=1)
    DTYPES.clear()
    measured = mt.cost(*slow, repeats=2, precision=precision, training=True)
    timed = 3 * (3 + 1) * 2  # a warm-up and two turns of three members and the base model, in eval mode and in training
    assert sum(one == dtype for one in DTYPES) >= timed
    assert {torch.float32, dtype} == set(DTYPES)
    assert measured.ensemble.memory == plain.ensemble.memory
    assert measured.ensemble.multiply_adds == plain.ensemble.multiply_adds


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [mt.Deep(), mt.Packed(), mt.MIMO(), mt.Masksembles(fewest=2), mt.EMP(), mt.DropConnect()],
    ids=lambda method: type(method).__name__,
)
def test_every_kind_of_step_is_timed_and_changes_nothing(method: mt.Method) -> None:
    """Methods that split rows, fill slots, draw weights or have a prior; weights, gradients, mode and randomness stay."""
    case = ZOO["resnet"]
    ens = convert(method, case)
    state, random = {name: tensor.detach().clone() for name, tensor in named_tensors(ens)}, torch.get_rng_state()
    drawn = ens.generator.get_state()
    measured = mt.cost(ens, case.example(4), repeats=1, training=True)
    assert measured.ensemble.step is not None
    assert measured.ensemble.step > 0
    assert_exact([tensor.detach() for _, tensor in named_tensors(ens)], state.values())
    assert all(weight.grad is None for weight in ens.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(ens.generator.get_state(), drawn)


@pytest.mark.slow
def test_a_step_has_gradients_where_the_caller_has_none(slow: tuple[mt.Ensemble, torch.Tensor]) -> None:
    with torch.no_grad():
        assert mt.cost(*slow, repeats=1, training=True).ensemble.step is not None
    with torch.device("meta"):
        net, x = nn.Linear(10, 10), torch.zeros(8, 10)
    assert mt.cost(mt.ensemble(net, mt.Deep(), x), x, training=True).ensemble.step is None


@pytest.mark.slow
def test_what_cannot_be_timed_is_refused(slow: tuple[mt.Ensemble, torch.Tensor]) -> None:
    """A precision that is none, half precision without a GPU, one row with BatchNorm, and an ensemble without gradients."""
    with pytest.raises(mt.InputError, match="'16' must be one of 32, bf16, fp16"):
        mt.cost(*slow, precision="16")  # type: ignore[arg-type]
    with pytest.raises(mt.InputError, match="'fp16' needs a GPU"):
        mt.cost(*slow, precision="fp16")
    net, x = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)), torch.randn(5, 4)
    ens = mt.ensemble(net, mt.Deep(), x, seed=0)
    with pytest.raises(mt.InputError, match="training step fails"):
        mt.cost(ens, x[:1], repeats=1, training=True)
    with pytest.raises(mt.InputError, match="requires a gradient"):
        mt.cost(ens.requires_grad_(False), x, repeats=1, training=True)


def test_an_ensemble_in_another_precision() -> None:
    """The base model is measured in that of the ensemble."""
    case = ZOO["resnet"]
    ens = convert(mt.Packed(), case).float()
    x = case.example(8).refill([tensor.float() for tensor in case.example(8).tensors()])
    measured = mt.cost(ens, x, repeats=1, training=True)
    assert measured.base.step is not None
    assert measured.base.memory == mt.cost(convert(mt.Packed(), case), case.example(8), repeats=1).base.memory / 2


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32", "bf16", "fp16"])
def test_every_precision_is_timed_on_a_gpu(precision: Any) -> None:
    """Images per second and the time of a step, which waits for the device."""
    case = ZOO["resnet"]
    ens = convert(mt.Packed(), case).float().to("cuda")
    inputs = case.example(64)
    x = inputs.refill([tensor.float().to("cuda") for tensor in inputs.tensors()])
    measured = mt.cost(ens, x, repeats=3, precision=precision, training=True)
    for row in (measured.ensemble, measured.base):
        assert row.throughput > 0
        assert row.step is not None
        assert row.step > row.latency
