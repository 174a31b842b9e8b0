"""Outcomes: what a pass leaves behind, and how two of them are compared."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine.separate import B, M, Own
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import run_loop, run_vmap
from multitudes.engine.kernels.ways import fp32_precisions
from multitudes.engine.proof.outcome import (
    Outcome,
    clean_autograd,
    close,
    difference,
    doubled,
    in_double,
    restored,
    run_executor,
    run_reference,
)


def outcome(**changes: Any) -> Outcome:
    plain = Outcome([torch.ones(2, 3)], {"w": torch.ones(4)}, {"count": torch.tensor([1, 2])})
    return replace(plain, **changes)


class TestDifference:
    def test_of_equal_outcomes_there_is_none(self) -> None:
        assert difference(outcome(), outcome()) is None

    def test_is_named(self) -> None:
        """The first thing that is off, in words."""
        assert difference(outcome(values=[torch.ones(2, 3) * 1.01]), outcome()) == "output differs"
        assert difference(outcome(gradients={"w": torch.zeros(4)}), outcome()) == "the gradient of w differs"
        assert difference(outcome(buffers={"count": torch.tensor([1, 3])}), outcome()) == "buffer count differs"
        assert difference(outcome(values=[]), outcome()) is not None
        assert "'w'" in (difference(outcome(gradients={}), outcome()) or "")

    def test_of_dtype_and_shape_counts(self) -> None:
        assert difference(outcome(values=[torch.ones(2, 3, dtype=torch.float32)]), outcome()) == "output differs"
        assert difference(outcome(values=[torch.ones(1, 3)]), outcome()) == "output differs"

    def test_a_gradient_of_zeros_is_no_gradient(self) -> None:
        assert difference(outcome(gradients={"w": torch.ones(4), "v": torch.zeros(2)}), outcome()) is None

    @pytest.mark.parametrize(("gap", "differs"), [(3e-8, None), (1e-4, "buffer norm.running_mean differs")])
    def test_a_running_mean_of_zero(self, gap: float, differs: str | None) -> None:
        """Beside a variance of 1, what differs by rounding is the same, however small the mean is."""

        def norm(mean: float) -> Outcome:
            buffers = {"norm.running_mean": torch.full((3,), mean), "norm.running_var": torch.ones(3)}
            return Outcome([], {}, {name: tensor.float() for name, tensor in buffers.items()})

        assert difference(norm(gap), norm(1e-8), 1e-3) == differs

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    def test_close_in_each_precision(self, dtype: torch.dtype) -> None:
        """Rounding passes; what is a thousand times as much does not."""
        x = torch.linspace(-1, 1, 101).to(dtype)
        eps = torch.finfo(dtype).eps
        assert close(x * (1 + eps), x)
        assert not close(x * (1.2 if dtype == torch.bfloat16 else 1.01), x)
        assert not close(-x, x)

    def test_nan_equals_nan_alone(self) -> None:
        nan = torch.tensor([1.0, float("nan")])
        assert close(nan, nan.clone())
        assert not close(torch.ones(2), nan)
        assert not close(nan, torch.ones(2))
        infinite = torch.tensor([1.0, float("inf")])
        assert close(infinite, infinite.clone())
        assert not close(-infinite, infinite)

    def test_tiny_values_are_compared_by_their_own_size(self) -> None:
        """An output of 1e-9 that is twice too large is no rounding."""
        assert not close(torch.full((3,), 2e-9), torch.full((3,), 1e-9))


class TestUndone:
    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))

    def test_puts_everything_back(self) -> None:
        net = self.net().train()
        net[1].eval()
        before = copy.deepcopy(net.state_dict())
        torch.manual_seed(9)
        expected = torch.rand(2)
        torch.manual_seed(9)
        with restored(net, "train", seed=3):
            assert net[1].training
            net(torch.randn(B, 4))
            assert net[1].num_batches_tracked == 1
        assert torch.equal(torch.rand(2), expected)
        assert net.training and not net[1].training
        assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())

    def test_after_a_failure_too(self) -> None:
        net = self.net().eval()
        with pytest.raises(RuntimeError), restored(net, "train"):
            net(torch.randn(B, 4))
            raise RuntimeError
        assert not net.training
        assert net[1].num_batches_tracked == 0

    def test_a_run_leaves_the_engine_as_it_was(self) -> None:
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4))
        before = {n: t.clone() for n, t in ens.state_dict().items()}
        x = torch.randn(B, 4)
        for executor in (run_loop, run_vmap):
            result = run_executor(executor, ens.engine, mt.Inputs(x), "train")
            assert result.buffers["1.num_batches_tracked"].tolist() == [1] * M
            assert set(result.gradients) == {n for n, _ in ens.named_parameters()}
        assert all(torch.equal(t, before[n]) for n, t in ens.state_dict().items())
        assert all(p.grad is None for p in ens.parameters())

    def test_randomness_is_noticed(self) -> None:
        """Dropout by function, which cannot be switched off, makes a pass random; dropout modules are off in a trial."""
        ens = mt.ensemble(Own(lambda h: F.dropout(h, 0.5), training=True), mt.Deep(members=M), torch.randn(B, 4))
        trial, inputs = in_double(ens.engine, mt.Inputs(torch.randn(B, 4)))
        assert run_reference(trial, inputs, "train").random
        assert not run_reference(trial, inputs, "eval").random
        trial, inputs = in_double(mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4)).engine, inputs)
        assert not run_reference(trial, inputs, "train").random

    def test_small_randomness_is_noticed_too(self) -> None:
        """In single precision, where it is less than the errors that pass: another draw may be more."""
        x = torch.randn(B, 4).float()
        net = Own(lambda h: h * (1 + 5e-4 * torch.rand(1, dtype=h.dtype)), training=True).float()
        engine = mt.ensemble(net, mt.Deep(members=M), x, seed=0).engine
        assert run_reference(engine, mt.Inputs(x), "train").random
        assert not run_reference(engine, mt.Inputs(x), "eval").random

    def test_noise_on_a_branch_that_starts_at_zero_is_noticed(self) -> None:
        """Another seed gives the same output, but other gradients."""
        net, x = DropsBranch(), torch.randn(B, 4)
        torch.manual_seed(0)
        first = net(x)
        torch.manual_seed(1)
        assert torch.equal(first, net(x))
        engine = mt.ensemble(net, mt.Deep(members=M), x, seed=0).engine
        assert run_reference(engine, mt.Inputs(x), "train").random
        assert not run_reference(engine, mt.Inputs(x), "eval").random


class DropsBranch(nn.Module):
    """Adds a branch whose last norm starts at zero, and drops it for some rows in training, as residual networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.norm, self.head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.norm(self.branch(x))
        if self.training:
            branch = branch * torch.bernoulli(torch.full((len(x), 1), 0.5, dtype=x.dtype)) / 0.5
        return self.head(x + branch)


class TestPrecision:
    def test_single_precision_models_are_tried_in_double(self) -> None:
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).float()
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4, dtype=torch.float32))
        trial, inputs = in_double(ens.engine, mt.Inputs(torch.randn(B, 4, dtype=torch.float32)))
        assert {p.dtype for p in trial.template.parameters()} == {torch.float64}
        assert inputs.tensors()[0].dtype == torch.float64
        assert {p.dtype for p in ens.parameters()} == {torch.float32}

    def test_a_model_that_fixes_its_precision_is_tried_in_it(self) -> None:
        torch.set_default_dtype(torch.float32)
        net = Own(lambda h: F.linear(h.float(), torch.ones(6, 6, dtype=torch.float32)))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
        trial, inputs = in_double(ens.engine, mt.Inputs(torch.randn(B, 4)))
        assert inputs.tensors()[0].dtype == torch.float32
        assert "vmap" in ens.engine.proven["eval"]
        assert {p.dtype for p in trial.template.parameters()} == {torch.float32}

    def test_conversion_in_the_midst_of_other_contexts(self) -> None:
        """Without gradients, in inference mode, under autocast: the same proofs, and parameters that can be trained."""
        net, x = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)), torch.randn(B, 4)
        for context in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
            with context:
                ens = mt.ensemble(net, mt.Deep(members=M), x)
            assert "vmap" in ens.engine.proven["train"]
            ens.train()(torch.randn(B, 4)).sum().backward()

    @pytest.mark.parametrize("example", [torch.zeros(2, 4), torch.arange(4.0)[None].sin()], ids=["zeros", "one row"])
    def test_an_example_whose_rows_are_equal(self, example: Tensor) -> None:
        """BatchNorm then divides by nothing, and a ReLU stands at its corner: no executor is blamed for rounding there."""
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        ens = mt.ensemble(net, mt.Deep(members=M), example.double())
        assert "vmap" in ens.engine.proven["train"], ens.engine.why
        mt.check(ens, example.double())

    def test_aside(self) -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), clean_autograd():
            assert torch.is_grad_enabled()
            assert not torch.is_autocast_enabled("cpu")
        with torch.inference_mode(), clean_autograd():
            assert not torch.is_inference_mode_enabled()


def test_a_model_that_casts_to_single_precision_is_tried_in_single_precision() -> None:
    """Its results are no more precise than that, whatever it is given; a table in single precision is no such cast."""

    class Norm(nn.Module):
        def __init__(self, casts: bool) -> None:
            super().__init__()
            self.layer, self.casts = nn.Linear(4, 3), casts
            self.table = torch.arange(3.0, dtype=torch.float32)

        def forward(self, x: Tensor) -> Tensor:
            h = self.layer(x)
            return h.float().tanh().to(h.dtype) if self.casts else h * self.table

    for casts, dtype in ((True, torch.float32), (False, torch.float64)):
        ens = mt.ensemble(Norm(casts).float(), mt.Deep(members=M), torch.randn(B, 4, dtype=torch.float32))
        trial, _ = in_double(ens.engine, mt.Inputs(torch.randn(B, 4, dtype=torch.float32)))
        assert {p.dtype for p in trial.template.parameters()} == {dtype}


def test_trials_compute_products_in_full_single_precision() -> None:
    """TF32 is off while networks are tried, and as before afterwards, also after a refusal."""
    seen: list[tuple[str, bool]] = []

    class Looking(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
            return super().forward(x)

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("medium")
        torch.backends.cudnn.allow_tf32 = True
        mt.ensemble(Looking(4, 3), mt.Deep(members=2), torch.randn(2, 4))
        assert set(seen) == {("highest", False)}
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("medium", True)
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.parametrize("switch", ["backends", "backends.cuda.matmul", "backends.cudnn.conv"])
def test_precisions_may_be_set_by_newer_switches(switch: str) -> None:
    """With them, torch raises an error where `allow_tf32` is read. Single precision is full in trials, and then as before."""
    seen: set[tuple[str, str]] = set()

    class Looking(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            seen.add(fp32_precisions())
            return super().forward(x)

    at: Any = functools.reduce(getattr, switch.split("."), torch)
    before, precisions = at.fp32_precision, fp32_precisions()
    at.fp32_precision = "ieee" if switch.endswith("conv") else "tf32"
    try:
        used, x = fp32_precisions(), torch.randn(2, 2, 4, 4)
        ens = mt.ensemble(nn.Sequential(Looking(2, 2, 3), Looking(2, 2, 1)), mt.Deep(members=2), x)
        assert seen == {("ieee", "ieee")} and fp32_precisions() == used
        torch.testing.assert_close(run_vmap(ens.engine, mt.Inputs(x)), run_loop(ens.engine, mt.Inputs(x)))
    finally:
        at.fp32_precision = before  # which sets those of convolutions and products too
        for each, precision in zip((torch.backends.cudnn.conv, torch.backends.cuda.matmul), precisions, strict=True):
            if each.fp32_precision != precision:
                each.fp32_precision = precision
    assert fp32_precisions() == precisions


class TestFlips:
    """A rounding error may turn a ReLU on or off: then few entries differ, and nothing as a whole."""

    def test_few_entries_may_differ_a_little(self) -> None:
        expected = torch.randn(100_000)
        flipped = expected.clone()
        flipped[7] += 0.004 * expected.abs().max()
        assert close(flipped, expected, tolerance=1e-4, flips=True)
        assert not close(flipped, expected, tolerance=1e-4)

    @pytest.mark.parametrize("wrong", ["one entry", "all entries", "NaN"])
    def test_more_is_an_error(self, wrong: str) -> None:
        expected = torch.randn(100_000)
        other = expected * 1.001 if wrong == "all entries" else expected.clone()
        if wrong != "all entries":
            other[7] = torch.nan if wrong == "NaN" else other[7] + expected.abs().max()
        assert not close(other, expected, tolerance=1e-4, flips=True)


def test_a_network_that_is_nan_in_double_precision_is_proved_in_its_own() -> None:
    """A mask of the least number of the inputs' type, added to singles: it is -inf if that type is double."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.ones(3, dtype=torch.float32) * torch.finfo(x.dtype).min
            return self.layer(x) + mask.softmax(0)

    inputs = mt.Inputs(torch.randn(3, 4).float())
    ens = mt.ensemble(Masked().float(), mt.Deep(members=2), inputs)
    assert doubled(ens.engine, inputs) is None
    assert not ens(*inputs.args).isnan().any()
