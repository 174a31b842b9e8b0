"""The program of a network: the operations of a call, recorded without arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.program import Decisions, Tracer, shapes_only


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


class Masked(nn.Module):
    """Skips the mask if it has only ones, as transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.kept = torch.ones(4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = x * self.kept
        return self.layer(h if mask.all() else h * mask)


class TestProgram:
    def test_multiply_adds_by_hand(self) -> None:
        program = Tracer(cnn()).program(mt.Inputs(torch.randn(2, 3, 8, 8)))
        assert program.multiply_adds == 2 * (6 * 6 * 4 * 3 * 9 + 4 * 2)

    def test_a_smaller_call_covers_a_larger_one(self) -> None:
        tracer = Tracer(cnn())
        large, small = (tracer.program(mt.Inputs(torch.randn(2, 3, size, size))) for size in (32, 8))
        assert small.covers(large)
        assert small.names == large.names
        assert small.shapes != large.shapes

    def test_an_axis_of_one_entry_covers_nothing(self) -> None:
        tracer = Tracer(cnn())
        large, small = (tracer.program(mt.Inputs(torch.randn(2, 3, size, size))) for size in (32, 3))
        assert not small.covers(large)

    def test_one_row_covers_two_if_it_is_said(self) -> None:
        tracer = Tracer(cnn())
        two, one = (tracer.program(mt.Inputs(torch.randn(rows, 3, 8, 8))) for rows in (2, 1))
        assert one.covers(two, rows=2)
        assert not one.covers(two)

    def test_another_branch_covers_nothing(self) -> None:
        class Padding(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Conv2d(3, 4, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(nn.functional.pad(x, (1, 1)) if x.shape[-1] % 7 else x)

        tracer = Tracer(Padding())
        large, small = (tracer.program(mt.Inputs(torch.randn(2, 3, size, size))) for size in (14, 8))
        assert not small.covers(large)

    def test_modes_differ_by_their_arguments(self) -> None:
        tracer, x = Tracer(cnn()), mt.Inputs(torch.randn(2, 3, 8, 8))
        assert tracer.program(x, "train") != tracer.program(x, "eval")
        plain = Tracer(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)))
        assert plain.program(mt.Inputs(torch.randn(2, 4)), "train") == plain.program(mt.Inputs(torch.randn(2, 4)), "eval")

    def test_nothing_is_touched(self) -> None:
        net, x = cnn().train(), torch.randn(2, 3, 8, 8)
        before, random = [b.clone() for b in net.buffers()], torch.get_rng_state()
        Tracer(net).program(mt.Inputs(x), "train")
        assert all(torch.equal(a, b) for a, b in zip(before, net.buffers(), strict=True))
        assert torch.equal(torch.get_rng_state(), random)
        assert all(part.training for part in net.modules())


class Normed(nn.Module):
    """Writes unit weights before it reads them, and reads a value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.layer.weight.div_(self.layer.weight.norm())
        return self.layer(x * 2 if bool((x > 1e6).any()) else x)


class TestWrites:
    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_a_network_that_reads_values_keeps_the_weights_that_forward_writes(self, mode: str) -> None:
        net, x = Normed(), mt.Inputs(torch.randn(2, 4))
        before, tracer = net.layer.weight.clone(), Tracer(net)
        first, again = tracer.program(x, mode), tracer.program(x, mode)
        assert not tracer.on_meta
        assert torch.equal(net.layer.weight, before)
        assert first == again

    def test_so_does_a_conversion_of_it(self) -> None:
        net = Normed()
        before = net.layer.weight.clone()
        plan = mt.plan(net, mt.Deep(members=2), torch.randn(64, 4))
        assert torch.equal(net.layer.weight, before)
        assert [entry.name for entry in plan.refused] == ["layer"]
        assert not plan.converted, "what is refused is not converted"


class TestDecisions:
    def test_values_that_decide_are_read_on_the_models_own_device(self) -> None:
        tracer, x = Tracer(Masked()), torch.randn(2, 4)
        ones, zeros = (tracer.program(mt.Inputs(x, mask)) for mask in (torch.ones(2, 4), torch.zeros(2, 4)))
        assert not tracer.on_meta
        assert len(zeros.names) == len(ones.names) + 1
        assert not ones.covers(zeros)

    def test_equal_decisions_are_given_back(self) -> None:
        tracer = Tracer(Masked())
        tracer.program(mt.Inputs(torch.randn(2, 4), torch.ones(2, 4)))
        net = shapes_only(Masked())
        with tracer.decisions.on_meta():
            assert net(torch.randn(2, 4, device="meta"), torch.ones(2, 4, device="meta")).shape == (2, 2)

    def test_different_decisions_are_not(self) -> None:
        decisions = Decisions()
        with decisions:
            assert torch.tensor(1) > 0
            assert not torch.tensor(1) < 0
        with pytest.raises(RuntimeError, match="values decide"):
            decisions.on_meta()


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_without_values_have_the_shapes_of_those_with_values(mode: str, dtype: torch.dtype) -> None:
    """On the meta device they are not decomposed."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)).to(dtype)
    inputs = mt.Inputs(torch.randn(2, 3, 8, 8, dtype=dtype))
    with_values = Tracer(net)
    with_values.network, with_values.on_meta = net, False
    program, expected = Tracer(net).program(inputs, mode), with_values.program(inputs, mode)
    assert program.outputs == expected.outputs
    norms = [(a[0], b[0]) for n, a, b in zip(program.names, program.shapes, expected.shapes, strict=False) if "norm" in n]
    assert len(norms) == 2 and all(a == b for a, b in norms)


@pytest.mark.parametrize("ones", [True, False])
def test_a_mask_of_whole_numbers_decides_without_arithmetic(ones: bool) -> None:
    """Ids and masks keep their values on the meta device, so that the program is the one that the values choose."""
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[0, 1] = ones
    tracer, inputs = Tracer(Masked()), mt.Inputs(torch.randn(2, 4), mask)
    names = tracer.program(inputs).names
    assert tracer.on_meta
    tracer.network, tracer.on_meta = Masked(), False
    assert names == tracer.program(inputs).names
    assert names.count("aten.mul.Tensor") == (1 if ones else 2)
