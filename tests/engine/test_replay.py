"""Replay: what members have in common is computed once in the loop, and nothing else is.

Every network here has a shared trunk and a head for each member, and its forward tries to make the loop hand one member
what belongs to another. The reference is always M plain networks, which remember nothing.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine.separate import B, M, answer, assert_same_buffers, assert_same_gradients, assert_separate, members
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import run_loop
from multitudes.engine.replay import Replay

Forward = Callable[["Net", Tensor], Any]


class Head(nn.Module):
    """A member's own part: a layer, a vector and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.p = nn.Parameter(torch.randn(6))
        self.gate = nn.Parameter(torch.tensor([-1.0, -2.0]))

    def forward(self, h: Tensor) -> Tensor:
        return self.layer(h)


class Net(nn.Module):
    """A shared trunk, with BatchNorm or without, a loose parameter and a head; what is done with them is given."""

    def __init__(self, forward: Forward, norm: bool = False) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 6)
        if norm:
            self.norm = nn.BatchNorm1d(6)
        self.scale = nn.Parameter(torch.randn(6))
        self.register_buffer("seen", torch.zeros(()))
        self.head = Head()
        self.how = forward

    def forward(self, x: Tensor) -> Any:
        return self.how(self, x)


def heads(forward: Forward, norm: bool = False, **options: Any) -> mt.Ensemble:
    """M heads on a shared trunk."""
    return mt.ensemble(Net(forward, norm), mt.MultiHead(members=M, head="head"), torch.randn(B, 4), **options)


def assert_without_gradients(ens: mt.Ensemble, x: Tensor) -> None:
    """The loop's outputs are those of M plain networks where autograd does not watch over versions."""
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(run_loop(ens.engine, mt.Inputs(x)), torch.stack([net(x) for net in members(ens)]))


def open_gates(ens: mt.Ensemble, gates: list[float]) -> mt.Ensemble:
    """Sets the members' gates, which were all shut at conversion."""
    with torch.no_grad():
        for m, value in enumerate(gates):
            ens.get_submodule("head").gate[m] = value
    return ens


class TestInPlace:
    """Writes, by the trunk and by members, into tensors that members have in common."""

    @staticmethod
    def shared_into_zeros(net: Net, x: Tensor) -> Tensor:
        z = torch.zeros(x.shape[0], 6)
        z[:, 1:5] = x
        return net.head(z + net.trunk(x))

    @staticmethod
    def trunk_into_zeros(net: Net, x: Tensor) -> Tensor:
        z = torch.zeros(x.shape[0], 6)
        z[:, 1:] = net.trunk(x)[:, 1:]
        return net.head(z)

    @staticmethod
    def member_into_zeros(net: Net, x: Tensor) -> Tensor:
        z = torch.zeros(x.shape[0], 6)
        z[:, 1:] = net.head.p[1:]
        return net.head(z + net.trunk(x))

    @staticmethod
    def member_into_zeros_like(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        z = torch.zeros_like(h)
        z[:, :3] = net.head.p[:3]
        z[:, 3:] = h[:, 3:]
        return net.head(z)

    @staticmethod
    def member_into_a_view(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        left = h[:, :3]
        left += net.head.p[:3]
        return net.head(h)

    @staticmethod
    def member_into_a_slice(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x).clone()
        h[:, :3] += net.head.p[:3]
        return net.head(h * 2)

    @staticmethod
    def member_into_a_view_of_zeros(net: Net, x: Tensor) -> Tensor:
        z = torch.zeros(x.shape[0], 6)
        row = z.view(-1)[:6]
        row.copy_(net.head.p)
        return net.head(net.trunk(x) + z)

    @staticmethod
    def member_by_out(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        z = torch.empty(h.shape)
        torch.mul(h.detach(), net.head.p.detach(), out=z)
        return net.head(h + z)

    @staticmethod
    def trunk_by_out(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        z = torch.empty(h.shape)
        torch.mul(h.detach(), 3.0, out=z)
        return net.head(h + z)

    @staticmethod
    def trunk_writes_before_member(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        h.mul_(2).add_(1)
        h.relu_()
        return net.head(h)

    @staticmethod
    def member_reads_before_trunk_writes(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        y = h + net.head.p
        h.relu_()
        return net.head(y + h)

    @staticmethod
    def trunk_reads_around_a_write(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x).clone()
        before = h + 1
        h.relu_()
        return net.head(before - (h + 1))

    @staticmethod
    def view_is_read_before_a_write(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x).clone()
        first = h[0, 0].item()
        h.zero_()
        return net.head(h) + first

    @staticmethod
    def member_writes_after_the_trunk_read(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        twice = h * 2
        h = h.clone()
        h += net.head.p
        return net.head(twice + h * 2)

    @staticmethod
    def member_into_the_trunk_output(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        h += net.head.p
        return net.head(h)

    @staticmethod
    def member_into_the_norm_output(net: Net, x: Tensor) -> Tensor:
        h = net.norm(net.trunk(x))
        h += net.head.p
        return net.head(h)

    @staticmethod
    def positions_scaled_by_a_member(net: Net, x: Tensor) -> Tensor:
        positions = torch.arange(6.0)
        positions *= net.head.p.detach()
        return net.head(net.trunk(x) + positions)

    @staticmethod
    def shape_changed_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x).clone()
        assert h.ndim == 2
        h.unsqueeze_(1)
        return net.head(h)[:, 0]

    @staticmethod
    def by_mask(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x).clone()
        h[h < 0] = 0
        h[:, 0] = net.head.p[0]
        return net.head(h)

    @staticmethod
    def in_place_relu_module(net: Net, x: Tensor) -> Tensor:
        return net.head(nn.ReLU(inplace=True)(net.norm(net.trunk(x))))

    @staticmethod
    def in_place_relu_of_a_member(net: Net, x: Tensor) -> Tensor:
        return F.relu(net.head(nn.ReLU(inplace=True)(net.trunk(x))), inplace=True)

    @staticmethod
    def set_to_a_members(net: Net, x: Tensor) -> Tensor:
        z = torch.zeros(6)
        z.set_(net.head.p.detach().clone())
        return net.head(net.trunk(x) + z * 2)

    @staticmethod
    def data_of_zeros(net: Net, x: Tensor) -> Tensor:
        z = torch.zeros(6)
        z.data = net.head.p.detach() * 3
        return net.head(net.trunk(x) + z * 2)

    @staticmethod
    def foreach(net: Net, x: Tensor) -> Tensor:
        z = torch.zeros(6)
        torch._foreach_add_([z], 1.0)
        torch._foreach_mul_([z], [net.head.p.detach()])
        return net.head(net.trunk(x) + z)

    @staticmethod
    def two_results_of_one_operation(net: Net, x: Tensor) -> Tensor:
        left, right = net.trunk(x).clone().chunk(2, 1)
        left, right = left.clone(), right.clone()
        left *= net.head.p[:3]
        return net.head(torch.cat([left, right], 1))

    @staticmethod
    def list_of_results(net: Net, x: Tensor) -> Tensor:
        parts = torch.split(net.trunk(x), 2, 1)
        if isinstance(parts, list):
            parts.append(net.head.p[:0].expand(x.shape[0], 0))
        return net.head(torch.cat(list(parts), 1))

    CASES = [
        "shared_into_zeros", "trunk_into_zeros", "member_into_zeros", "member_into_zeros_like", "member_into_a_view",
        "member_into_a_slice", "member_into_a_view_of_zeros", "member_by_out", "trunk_by_out", "trunk_writes_before_member",
        "member_reads_before_trunk_writes", "trunk_reads_around_a_write", "view_is_read_before_a_write",
        "member_writes_after_the_trunk_read", "member_into_the_trunk_output", "member_into_the_norm_output",
        "positions_scaled_by_a_member", "shape_changed_in_place", "by_mask", "in_place_relu_module",
        "in_place_relu_of_a_member", "set_to_a_members", "data_of_zeros", "foreach", "two_results_of_one_operation",
        "list_of_results",
    ]  # fmt: skip

    ODD = ("view_is_read_before_a_write", "shape_changed_in_place", "set_to_a_members", "data_of_zeros")
    """What hardly any network does: it may also be refused at conversion, which names the law that does not hold."""

    NORM = ("member_into_the_norm_output", "in_place_relu_module")

    def converted(self, case: str) -> mt.Ensemble:
        try:
            return heads(getattr(self, case), norm=case in self.NORM)
        except mt.ConversionError as error:
            if case not in self.ODD:
                raise
            assert "member" in str(error)
            pytest.skip(f"refused: {error}")

    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("case", CASES)
    def test_is_each_members_own(self, case: str, training: bool) -> None:
        """Outputs, gradients, and the trunk's statistics over two steps, by the loop and by the call."""
        ens = self.converted(case)
        if not training:
            assert_without_gradients(ens.eval(), torch.randn(B, 4))
        if training and ens.engine.traits.coupled:
            pytest.skip("the norm is run by fold in training: the next test")
        assert_separate(copy.deepcopy(ens), torch.randn(B, 4), "loop", training=training, steps=2)
        assert_separate(ens, torch.randn(B, 4), training=training, steps=2)

    def test_a_norm_whose_output_a_member_writes_into(self) -> None:
        """In training: moved once, or over the rows of all members at once, or refused by name; not M times."""
        ens = self.converted("member_into_the_norm_output").train()
        nets, x = members(ens), torch.randn(B, 4)
        try:
            ens(x)
        except mt.RunError as error:
            assert "norm" in str(error)
        else:
            nets[0](x)
            norm = ens.get_submodule("norm")
            assert norm.num_batches_tracked == 1
            torch.testing.assert_close(norm.running_mean, nets[0].norm.running_mean)

    def test_a_custom_operator_that_writes(self) -> None:
        """Known by its schema, since its name does not say so; its arguments by name too."""

        @torch.library.custom_op("multitudes_tests::scale", mutates_args=("target",))
        def scale(target: Tensor, factor: Tensor) -> None:
            target.mul_(factor)

        def by_position(net: Net, x: Tensor) -> Tensor:
            z = torch.ones(6)
            torch.ops.multitudes_tests.scale(z, net.head.p.detach())
            return net.head(net.trunk(x) + z)

        def by_name(net: Net, x: Tensor) -> Tensor:
            z = torch.ones(6)
            torch.ops.multitudes_tests.scale(target=z, factor=net.head.p.detach())
            return net.head(net.trunk(x) + z)

        def common(net: Net, x: Tensor) -> Tensor:
            z = torch.ones(6)
            torch.ops.multitudes_tests.scale(z, torch.full((), 2.0))
            return net.head(net.trunk(x) + z)

        for forward in (by_position, by_name, common):
            assert_separate(heads(forward, check=False), torch.randn(B, 4), "loop", training=False)

    def test_memory_written_behind_torchs_back(self) -> None:
        """A numpy view of what the trunk made: right, or refused at conversion."""

        def forward(net: Net, x: Tensor) -> Tensor:
            h = net.trunk(x)
            h.detach().numpy()[:] += 1
            return net.head(h)

        try:
            ens = heads(forward)
        except mt.MultitudesError as error:
            assert "member" in str(error)
        else:
            assert_separate(ens, torch.randn(B, 4), "loop", training=False)


class TestStatistics:
    @pytest.mark.parametrize("momentum", [0.1, None])
    def test_the_trunks_batch_norm_moves_once_a_step(self, momentum: float | None) -> None:
        def forward(net: Net, x: Tensor) -> Tensor:
            return net.head(net.norm(net.trunk(x)))

        net = Net(forward, norm=True)
        net.norm.momentum = momentum
        ens = mt.ensemble(net, mt.MultiHead(members=M, head="head"), torch.randn(B, 4))
        assert_separate(ens, torch.randn(B, 4), "loop", training=True, steps=4)
        assert ens.get_submodule("norm").num_batches_tracked.item() == 4

    def test_a_norm_that_runs_twice_moves_twice(self) -> None:
        ens = heads(lambda net, x: net.head(net.norm(net.norm(net.trunk(x)))), norm=True)
        assert_separate(ens, torch.randn(B, 4), "loop", training=True, steps=2)
        ens = heads(lambda net, x: net.head(net.norm(net.trunk(x)) + net.norm(net.trunk(x)).relu()), norm=True)
        assert_separate(ens, torch.randn(B, 4), "loop", training=True, steps=2)

    def test_a_counter_in_the_trunk_counts_calls(self) -> None:
        """A shared buffer that forward adds to."""

        def forward(net: Net, x: Tensor) -> Tensor:
            net.seen += 1
            return net.head(net.trunk(x)) * net.seen

        ens = heads(forward)
        assert_separate(ens, torch.randn(B, 4), "loop", training=True, steps=3)
        assert ens.seen.item() == 3

    def test_after_a_members_values_steered_the_program(self) -> None:
        """The trunk's statistics still move once a step, or the model is refused by name."""

        def forward(net: Net, x: Tensor) -> Tensor:
            extra = 1.0 if net.head.gate.sum() > 0 else 0.0
            return net.head(net.norm(net.trunk(x))) + extra

        try:
            assert_separate(heads(forward, norm=True), torch.randn(B, 4), training=True, steps=2)
        except mt.MultitudesError as error:
            assert "norm" in str(error)

    @pytest.mark.parametrize("how", ["in place", "replaced"])
    def test_a_buffer_of_the_trunk_where_members_steer(self, how: str) -> None:
        """A moving average that the trunk divides by, and a member that goes its own way: moved once, or refused by name."""

        def forward(net: Net, x: Tensor) -> Tensor:
            h = net.trunk(x)
            if net.training:
                new = 0.9 * net.seen + 0.1 * h.detach().abs().mean()
                if how == "in place":
                    net.seen.copy_(new)
                else:
                    net.seen = new
            y = net.head(h / (1 + net.seen))
            return y if y.sum() > 0 else -y

        try:
            assert_separate(heads(forward), torch.randn(B, 4), training=True, steps=2)
        except mt.MultitudesError as error:
            assert "seen" in str(error)

    def test_on_a_way_that_the_example_did_not_take(self) -> None:
        """Larger batches go where a member writes into the trunk's output: moved once all the same, or refused."""

        def forward(net: Net, x: Tensor) -> Tensor:
            h = net.norm(net.trunk(x))
            if x.shape[0] > B:
                h += net.head.p
            return net.head(h)

        ens = heads(forward, norm=True).train()
        ens.engine.picked.update(train="loop", eval="loop")
        try:
            assert_separate(ens, torch.randn(2 * B, 4), training=True, steps=2)
        except mt.MultitudesError as error:
            assert "norm" in str(error)

    def test_behind_a_hook_on_the_trunk(self) -> None:
        """A backward hook wraps the trunk's input anew for each member."""
        net = Net(lambda net, x: net.head(net.norm(net.trunk(x))), norm=True)
        net.norm.register_full_backward_hook(lambda module, into, out: None)
        ens = mt.ensemble(net, mt.MultiHead(members=M, head="head"), torch.randn(B, 4))
        assert_separate(ens, torch.randn(B, 4), training=True, steps=2)

    @pytest.mark.parametrize("how", ["in place", "replaced"])
    def test_a_shared_buffer_that_each_member_would_set(self, how: str) -> None:
        """It can have one value only: refused by the buffer's name, at conversion or at the call."""

        def forward(net: Net, x: Tensor) -> Tensor:
            h = net.trunk(x)
            if how == "in place":
                net.seen.add_(net.head(h).mean().detach())
            else:
                net.seen = net.seen + net.head(h).mean().detach()
            return net.head(h)

        with pytest.raises(mt.MultitudesError, match="seen"):
            heads(forward)(torch.randn(B, 4))


class TestSteering:
    """Programs that a member's own values lead another way. At conversion every gate is shut, so nothing shows then."""

    GATES = ([1.0, -1.0, -1.0, -1.0], [-1.0, 1.0, -1.0, 1.0], [1.0, 1.0, -1.0, 1.0], [-1.0, -1.0, -1.0, 1.0])

    @staticmethod
    def bool_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if net.head.gate[0] > 0:
            h.add_(1)
        return net.head(h)

    @staticmethod
    def item_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        for _ in range(round(2 + net.head.gate[0].item())):
            h.mul_(2)
        return net.head(h)

    @staticmethod
    def length_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if len((net.head.gate > 0).nonzero()):
            h.add_(1)
        return net.head(h)

    @staticmethod
    def shape_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        for _ in range(net.head.gate[net.head.gate > 0].shape[0]):
            h.add_(1)
        return net.head(h)

    @staticmethod
    def numel_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if torch.masked_select(net.head.gate, net.head.gate > 0).numel() > 0:
            h.add_(1)
        return net.head(h)

    @staticmethod
    def iteration_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        for value in net.head.gate.detach().clamp(min=0).unique():
            h.add_(1 if value > 0 else 0)
        return net.head(h)

    @staticmethod
    def where_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if torch.where(net.head.gate > 0)[0].shape[0]:
            h.add_(1)
        return net.head(h)

    @staticmethod
    def repeats_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if torch.ones(2).repeat_interleave((net.head.gate > 0).long()).numel():
            h.add_(1)
        return net.head(h)

    @staticmethod
    def counts_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if torch.bincount((net.head.gate > 0).long()).numel() > 1:
            h.add_(1)
        return net.head(h)

    @staticmethod
    def one_hot_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if F.one_hot((net.head.gate > 0).long()).shape[1] > 1:
            h.add_(1)
        return net.head(h)

    @staticmethod
    def text_then_in_place(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if "-" not in str(net.head.gate[0].item()):
            h.add_(1)
        return net.head(h)

    @staticmethod
    def written_by_some(net: Net, x: Tensor) -> Tensor:
        z = torch.zeros(x.shape[0], 3)
        if net.head.gate[0] > 0:
            z[:] = net.head(net.trunk(x))
        return z

    @staticmethod
    def written_by_some_and_used(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        z = torch.zeros_like(h)
        if net.head.gate[0] > 0:
            z += net.head.p
        return net.head(h + z)

    @staticmethod
    def norm_output_written_by_some(net: Net, x: Tensor) -> Tensor:
        h = net.norm(net.trunk(x))
        if net.head.gate[0] > 0:
            h += net.head.p
        return net.head(h)

    @staticmethod
    def early_exit(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if net.head.gate[0] > 0:
            return net.head(h)
        h = F.relu(h, inplace=True)
        return net.head(h + 1)

    @staticmethod
    def different_order(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        first, second = (h * 2, h.relu()) if net.head.gate[0] > 0 else (h.relu(), h * 2)
        return net.head(first - 3 * second)

    @staticmethod
    def skipped_repeat(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x).clone()
        total = h + 1 if net.head.gate[0] > 0 else h * 0
        h.relu_()
        return net.head(total + (h + 1))

    @staticmethod
    def slice_by_a_tensor(net: Net, x: Tensor) -> Tensor:
        count = (net.head.gate > 0).sum() + 1
        return net.head(net.trunk(x) + net.trunk(x)[:, :count].sum(1, keepdim=True))

    @staticmethod
    def sorted_by_a_member(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        parts = [h[:, :3], h[:, 3:]]
        parts.sort(key=lambda part: float((part * net.head.gate[0]).sum()))
        return net.head(torch.cat(parts, 1))

    CASES = [
        "bool_then_in_place", "item_then_in_place", "length_then_in_place", "shape_then_in_place", "numel_then_in_place",
        "iteration_then_in_place", "where_then_in_place", "repeats_then_in_place", "counts_then_in_place",
        "one_hot_then_in_place", "text_then_in_place", "written_by_some", "written_by_some_and_used",
        "norm_output_written_by_some", "early_exit",
        "different_order", "skipped_repeat", "slice_by_a_tensor", "sorted_by_a_member",
    ]  # fmt: skip

    @pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
    @pytest.mark.parametrize("case", CASES)
    def test_each_member_goes_its_own_way(self, case: str) -> None:
        """In eval without gradients, where autograd would not notice, and with them."""
        ens = heads(getattr(self, case), norm=case.startswith("norm")).eval()
        x = torch.randn(B, 4)
        for gates in self.GATES:
            open_gates(ens, gates)
            nets = members(ens)
            with torch.no_grad():
                torch.testing.assert_close(run_loop(ens.engine, mt.Inputs(x)), torch.stack([net(x) for net in nets]))
        assert_separate(ens, x, "loop", training=False)


class TestNoise:
    """What is random in the trunk is drawn once; what is random in a head is drawn for each member."""

    def outputs(self, forward: Forward, way: str = "loop") -> tuple[Tensor, mt.Ensemble]:
        ens = heads(forward, start="copies").train()
        torch.manual_seed(0)
        return answer(ens, way, torch.ones(B, 4)).detach(), ens

    def test_dropout_twice_on_the_same_tensor(self) -> None:
        """Two draws, not one used twice; both common to all members."""

        def forward(net: Net, x: Tensor) -> Tensor:
            h = torch.ones(1, 6) + 0 * net.trunk(x)
            return torch.stack([net.head(h), F.dropout(h, 0.5, net.training)[:, :3], F.dropout(h, 0.5, net.training)[:, :3]])

        output, _ = self.outputs(forward)
        assert not torch.equal(output[0, 1], output[0, 2])
        assert all(torch.equal(output[0], output[m]) for m in range(M))

    def test_dropout_of_the_trunk_is_one_draw(self) -> None:
        output, _ = self.outputs(lambda net, x: net.head(F.dropout(net.trunk(x), 0.5, net.training)))
        assert all(torch.equal(output[0], output[m]) for m in range(M))

    OF_A_HEAD: dict[str, Forward] = {
        "randn": lambda net, x: torch.randn(x.shape[0], 3),
        "rand_like": lambda net, x: torch.rand_like(net.head(net.trunk(x))),
        "filled": lambda net, x: torch.empty(x.shape[0], 3).normal_(),
        "zeros, then drawn": lambda net, x: torch.zeros(x.shape[0], 3).uniform_(),
        "bernoulli of constants": lambda net, x: torch.bernoulli(torch.full((x.shape[0], 3), 0.5)),
        "normal of constants": lambda net, x: torch.normal(torch.zeros(x.shape[0], 3), torch.ones(x.shape[0], 3)),
        "dropout of constants": lambda net, x: F.dropout(torch.ones(x.shape[0], 3), 0.5, True),
        "multinomial of constants": lambda net, x: torch.multinomial(torch.ones(50), 3).double(),
        "rand_like of constants": lambda net, x: torch.rand_like(torch.zeros(x.shape[0], 3)),
        "distribution": lambda net, x: torch.distributions.Normal(torch.zeros(3), torch.ones(3)).sample((x.shape[0],)),
        "gamma": lambda net, x: torch.distributions.Gamma(torch.ones(3), torch.ones(3)).sample(),
        "beta": lambda net, x: torch.distributions.Beta(torch.ones(3), torch.ones(3)).sample(),
        "fresh weights": lambda net, x: nn.init.kaiming_uniform_(torch.empty(3, 3))[0],
        "permutation": lambda net, x: torch.randperm(50)[:3].double(),
        "python index": lambda net, x: torch.arange(50.0)[torch.randint(50, (3,))],
    }

    @pytest.mark.parametrize("way", ["loop", "call"])
    @pytest.mark.parametrize("kind", OF_A_HEAD)
    def test_noise_added_to_a_members_output_is_its_own(self, kind: str, way: str) -> None:
        """However it is made, also from constants, which members have in common without sharing the noise."""

        def forward(net: Net, x: Tensor) -> Tensor:
            y = net.head(net.trunk(x))
            return y + self.OF_A_HEAD[kind](net, x) if net.training else y

        output, _ = self.outputs(forward, way)
        assert all(not torch.equal(output[i], output[j]) for i in range(M) for j in range(i))

    OF_THE_TRUNK: dict[str, Callable[[Tensor], Tensor]] = {
        "rand_like": lambda h: h + torch.rand_like(h),
        "bernoulli": lambda h: h * torch.bernoulli(torch.full_like(h, 0.5)),
        "new_empty": lambda h: h * h.new_empty(h.shape[0], 1).bernoulli_(0.5),
        "in place": lambda h: h.clone().normal_() + h,
        "dropout": lambda h: F.dropout(h, 0.5),
        "alpha dropout": lambda h: F.alpha_dropout(h, 0.5, True),
        "rrelu": lambda h: F.rrelu(h, 0.1, 0.9, training=True),
        "gumbel": lambda h: F.gumbel_softmax(h),
        "dropout2d": lambda h: F.dropout2d(h[:, :, None, None], 0.5)[:, :, 0, 0],
    }

    @pytest.mark.parametrize("kind", OF_THE_TRUNK)
    def test_noise_of_the_trunk_is_common_to_members(self, kind: str) -> None:
        """Equal heads give equal outputs; every executor that conversion calls right says the same."""

        def forward(net: Net, x: Tensor) -> Tensor:
            h = net.trunk(x)
            return net.head(self.OF_THE_TRUNK[kind](h) if net.training else h)

        output, ens = self.outputs(forward)
        assert all(torch.equal(output[0], output[m]) for m in range(M))
        assert not torch.equal(output, answer(ens, "loop", torch.ones(B, 4)))
        if "vmap" in ens.engine.proven["train"]:
            again = answer(ens, "vmap", torch.ones(B, 4)).detach()
            torch.testing.assert_close(again, again[:1].expand_as(again))

    def test_pythons_randomness(self) -> None:
        """A block of the trunk that is left out by chance: each member has it or has it not, once."""
        generator = random.Random(0)

        def forward(net: Net, x: Tensor) -> Tensor:
            h = net.trunk(x)
            if net.training and generator.random() < 0.5:
                h += net.scale
            return net.head(h)

        try:
            ens = heads(forward, start="copies").train()
        except mt.MultitudesError as error:
            assert "call to call" in str(error) or "member" in str(error)
            return
        x, net = torch.randn(B, 4), ens.member(0)
        without, once = net.head(net.trunk(x)), net.head(net.trunk(x) + net.scale)
        for _ in range(8):
            with torch.no_grad():
                for output in run_loop(ens.engine, mt.Inputs(x)):
                    assert torch.allclose(output, without) or torch.allclose(output, once)

    def test_an_explicit_generator(self) -> None:
        """Drawn from once for the trunk, going on from step to step; or refused, since no call can be made twice."""
        generator = torch.Generator().manual_seed(3)

        def forward(net: Net, x: Tensor) -> Tensor:
            h = net.trunk(x)
            if net.training:
                h = h + torch.empty_like(h).normal_(generator=generator)
            return net.head(h)

        try:
            ens = heads(forward, start="copies").train()
        except mt.MultitudesError as error:
            assert "call to call" in str(error)
            return
        outputs = [run_loop(ens.engine, mt.Inputs(torch.ones(B, 4))) for _ in range(2)]
        assert all(torch.equal(outputs[0][0], outputs[0][m]) for m in range(M))
        assert not torch.equal(outputs[0], outputs[1])


class Double(torch.autograd.Function):
    """2 x, with a gradient of its own: 3 times what comes in."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


class Weighted(torch.autograd.Function):
    """x p, where part of the work depends on x alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: Tensor) -> Tensor:
        inner = x.exp()
        ctx.save_for_backward(inner, p)
        return inner * p

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        inner, p = ctx.saved_tensors
        return grad * inner * p, (grad * inner).sum(0)


class Dirty(torch.autograd.Function):
    """Writes into its input and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class SavesOutput(torch.autograd.Function):
    """exp, whose gradient is its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.saved_tensors[0]


def rows_of(vector: Tensor, x: Tensor) -> Tensor:
    return vector.expand(x.shape[0], *vector.shape)


OPERATIONS: dict[str, Forward] = {
    "keywords": lambda net, x: net.head(torch.add(input=net.trunk(x), other=net.scale, alpha=2)),
    "keywords, a member's": lambda net, x: net.head(torch.add(input=net.trunk(x), other=net.head.p, alpha=2)),
    "keyword of a functional": lambda net, x: net.head(F.linear(x, weight=net.trunk.weight, bias=net.head.p)),
    "clamp by a tensor": lambda net, x: net.head(net.trunk(x).clamp(min=net.head.p)),
    "cat": lambda net, x: net.head(torch.cat([net.trunk(x)[:, :3], rows_of(net.scale[:3], x)], 1)),
    "cat by name": lambda net, x: net.head(torch.cat(tensors=[net.trunk(x)[:, :3], rows_of(net.head.p[:3], x)], dim=1)),
    "cat of two orders": lambda net, x: net.head((torch.cat([net.trunk(x), x], 1) - torch.cat([x, net.trunk(x)], 1))[:, :6]),
    "stack": lambda net, x: net.head(torch.stack((net.trunk(x), rows_of(net.scale, x), rows_of(net.head.p, x))).sum(0)),
    "einsum": lambda net, x: net.head(torch.einsum("bi,ji->bj", x, net.trunk.weight)),
    "einsum, a member's": lambda net, x: torch.einsum("bi,ji->bj", net.trunk(x), net.head.layer.weight),
    "where": lambda net, x: net.head(torch.where(net.trunk(x) > 0, net.trunk(x), net.head.p)),
    "T": lambda net, x: net.head(net.trunk(x).T.T),
    "mT": lambda net, x: net.head((net.trunk(x).mT * 2).mT),
    "data": lambda net, x: net.head(net.trunk(x).data + net.trunk(x)),
    "detach": lambda net, x: net.head(net.trunk(x).detach() * net.scale),
    "index": lambda net, x: net.head(net.trunk(x)[..., [1, 0, 2, 3, 5, 4]] + net.trunk(x)[:, None].flip(2)[:, 0]),
    "index by a tensor": lambda net, x: net.head(net.trunk(x)[:, torch.arange(5, -1, -1)]),
    "index by a member": lambda net, x: net.head(net.trunk(x)[:, net.head.p.argsort()]),
    "embedding of a member": lambda net, x: net.head(F.embedding(x.argmax(1) % 3, net.head.layer.weight) + net.trunk(x)),
    "full of two kinds": lambda net, x: net.head(net.trunk(x) + torch.full((6,), 2) // 4 + torch.full((6,), 2.0) / 4),
    "tensor of lists": lambda net, x: net.head(net.trunk(x) * torch.tensor([1.0, 2, 3, 4, 5, 6]) + torch.tensor([6.0] * 6)),
    "unbind": lambda net, x: net.head(torch.stack([row + net.head.p for row in net.trunk(x)])),
    "attention": lambda net, x: net.head(F.scaled_dot_product_attention(net.trunk(x), net.trunk(x), net.trunk(x) * net.scale)),
    "vmap inside": lambda net, x: net.head(torch.func.vmap(net.trunk)(x)),
    "vmap inside, a member's": lambda net, x: net.head(torch.func.vmap(lambda row: net.trunk(row) * net.head.p)(x)),
    "function": lambda net, x: net.head(Double.apply(net.trunk(x))),
    "function twice": lambda net, x: net.head(Double.apply(net.trunk(x)) + Double.apply(Double.apply(net.trunk(x)))),
    "function of both": lambda net, x: net.head(Weighted.apply(net.trunk(x), net.head.p)),
    "function that saves its output": lambda net, x: net.head(SavesOutput.apply(net.trunk(x)) * 2),
    "function that writes": lambda net, x: net.head(Dirty.apply(net.trunk(x) + 1)),
}  # fmt: skip


class TestOperations:
    @pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
    @pytest.mark.parametrize("kind", OPERATIONS)
    def test_values_and_gradients(self, kind: str, training: bool) -> None:
        """The trunk's gradients are the sum over members."""
        ens = heads(OPERATIONS[kind])
        if not training:
            assert_without_gradients(ens.eval(), torch.randn(B, 4))
        assert_separate(ens, torch.randn(B, 4), "loop", training=training)

    def test_a_region_without_gradients(self) -> None:
        """The same operation, once without and once with gradients."""

        def forward(net: Net, x: Tensor) -> Tensor:
            with torch.no_grad():
                fixed = net.trunk(x).tanh()
            return net.head(net.trunk(x).tanh() * fixed)

        assert_separate(heads(forward), torch.randn(B, 4), "loop", training=True)

    def test_gradients_inside_forward(self) -> None:
        """A network that differentiates its own energy."""

        def forward(net: Net, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                energy = net.head(net.trunk(x).tanh()).square().sum()
                return torch.autograd.grad(energy, x, create_graph=True)[0]

        assert_separate(heads(forward), torch.randn(B, 4), "loop", training=True)

    def test_second_order(self) -> None:
        """The gradient of a gradient's norm."""
        ens = heads(lambda net, x: net.head(net.trunk(x).tanh())).train()
        x = torch.randn(B, 4)
        nets = members(ens)

        def penalty(output: Tensor, parameters: list[nn.Parameter]) -> Tensor:
            grads = torch.autograd.grad(output.square().sum(), parameters, create_graph=True)
            return grads[0].square().sum()

        penalty(run_loop(ens.engine, mt.Inputs(x)), [ens.get_submodule("head").layer.weight]).backward()
        for net in nets:
            penalty(net(x), [net.head.layer.weight]).backward()
        assert_same_gradients(ens, nets)

    def test_two_forwards_and_one_backward(self) -> None:
        ens = heads(lambda net, x: net.head(net.norm(net.trunk(x)).relu_()), norm=True).train()
        nets, x, y = members(ens), torch.randn(B, 4), torch.randn(B, 4)
        (run_loop(ens.engine, mt.Inputs(x)).square().sum() + run_loop(ens.engine, mt.Inputs(y)).exp().sum()).backward()
        for net in nets:
            (net(x).square().sum() + net(y).exp().sum()).backward()
        assert_same_gradients(ens, nets)
        assert_same_buffers(ens, nets)

    def test_the_same_input_again_is_computed_again(self) -> None:
        """Nothing is kept from one call to the next."""
        ens = heads(lambda net, x: net.head(net.trunk(x))).eval()
        x = torch.randn(B, 4)
        before = run_loop(ens.engine, mt.Inputs(x)).detach()
        with torch.no_grad():
            ens.get_submodule("trunk").weight.add_(1)
            x.mul_(2)
        after = run_loop(ens.engine, mt.Inputs(x)).detach()
        assert not torch.allclose(before, after)
        torch.testing.assert_close(after, torch.stack([net(x) for net in members(ens)]))

    @pytest.mark.parametrize("factor", [-1.0, 0.5])
    def test_a_gradient_hook_in_the_trunk_acts_once(self, factor: float) -> None:
        """A hook set by forward on a common tensor, in training only: gradient reversal, gradient scaling."""

        def forward(net: Net, x: Tensor) -> Tensor:
            h = net.trunk(x)
            if net.training and h.requires_grad:
                h.register_hook(lambda grad: grad * factor)
            return net.head(h)

        for way in ("loop", "call"):
            assert_separate(heads(forward), torch.randn(B, 4), way, training=True)

    def test_one_input_given_twice(self) -> None:
        """The same tensor as two arguments."""

        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.trunk, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

            def forward(self, x: Tensor, y: Tensor) -> Tensor:
                return self.head(self.trunk(x) - self.trunk(y).tanh())

        x = torch.randn(B, 4)
        ens = mt.ensemble(Two(), mt.MultiHead(members=M, head="head"), mt.Inputs(x, x))
        nets = members(ens)
        torch.testing.assert_close(run_loop(ens.engine, mt.Inputs(x, x)), torch.stack([net(x, x) for net in nets]))

    def test_each_member_with_inputs_of_its_own(self) -> None:
        """Nothing of the trunk is common then."""
        ens = heads(lambda net, x: net.head(net.trunk(x).tanh())).eval()
        nets, x = members(ens), torch.randn(M, B, 4)
        wanted = torch.stack([net(part) for net, part in zip(nets, x, strict=True)])
        torch.testing.assert_close(run_loop(ens.engine, mt.Inputs(x), True), wanted)
        same = x[:1].expand_as(x)
        wanted = torch.stack([net(part) for net, part in zip(nets, same, strict=True)])
        torch.testing.assert_close(run_loop(ens.engine, mt.Inputs(same), True), wanted)


class TestAfterAFailure:
    def test_nothing_is_left_behind(self) -> None:
        """A member whose forward raises: the error is the user's own, and the next call is as if nothing had happened."""

        class Odd(Exception):
            pass

        def forward(net: Net, x: Tensor) -> Tensor:
            h = net.trunk(x)
            if net.head.gate[0] > 0:
                raise Odd
            return net.head(h)

        ens = heads(forward).train()
        registers = {name: (id(tensor), tensor.shape) for name, tensor in [*ens.named_parameters(), *ens.named_buffers()]}
        open_gates(ens, [-1.0, -1.0, 1.0, -1.0])
        for _ in range(2):
            with pytest.raises(Odd):
                ens(torch.randn(B, 4))
        assert torch.overrides._get_current_function_mode_stack() == []
        assert {
            name: (id(tensor), tensor.shape) for name, tensor in [*ens.named_parameters(), *ens.named_buffers()]
        } == registers
        open_gates(ens, [-1.0] * M)
        assert_separate(ens, torch.randn(B, 4), training=True)

    def test_no_tensor_outlives_the_call(self) -> None:
        """What is remembered for one call is let go with it."""
        import gc
        import weakref

        alive: list[weakref.ref[Tensor]] = []

        def forward(net: Net, x: Tensor) -> Tensor:
            h = net.trunk(x)
            alive.append(weakref.ref(h))
            return net.head(h)

        ens = heads(forward).eval()
        alive.clear()
        with torch.no_grad():
            ens(torch.randn(B, 4))
        gc.collect()
        assert alive and all(ref() is None for ref in alive)


class TestOnce:
    """That the work is done once is the point of it."""

    def test_operations_are_counted(self) -> None:
        calls = {"trunk": 0, "head": 0}

        class Counted(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                if func is F.linear:
                    calls["trunk" if args[1].shape[1] == 4 else "head"] += 1
                return func(*args, **(kwargs or {}))

        ens = heads(lambda net, x: net.head(net.trunk(x))).eval()
        with Counted():
            run_loop(ens.engine, mt.Inputs(torch.randn(B, 4)))
        assert calls == {"trunk": 1, "head": M}

    def test_shared_tensors_are_told_from_members(self) -> None:
        x, p = torch.randn(3), torch.randn(3)
        with Replay({"x": x}) as replay:
            common, own = x * 2, x * p
            z = torch.zeros(3)
            assert replay.is_shared(x) and replay.is_shared(common) and replay.is_shared(z)
            assert not replay.is_shared(p) and not replay.is_shared(own)
            z += p
            assert not replay.is_shared(z)
        replay.restart()
        with replay:
            assert (x * 2) is common
            assert (x * p) is not own
            assert not replay.is_shared(torch.zeros(3))
