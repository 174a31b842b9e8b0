"""Replay: the loop computes a shared trunk once, and hands no member what belongs to another.

Every network here has a shared trunk and a head for each member. Each forward is one way in which replay could go wrong.
The reference is always M plain networks. tests/slow/test_fuzz.py tries random combinations.
"""

from __future__ import annotations

import copy
import gc
import random
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
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
    """A shared trunk, with BatchNorm or without, a loose parameter and a head; the forward is given."""

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


def assert_right(ens: mt.Ensemble) -> None:
    """The loop is right in training over two steps, in eval mode, and without gradients, where autograd checks no versions."""
    x = torch.randn(B, 4)
    assert_separate(copy.deepcopy(ens), x, "loop", training=True, steps=2)
    assert_separate(ens, x, "loop", training=False)
    with torch.no_grad():
        torch.testing.assert_close(run_loop(ens.engine, mt.Inputs(x)), torch.stack([net(x) for net in members(ens)]))


def open_gates(ens: mt.Ensemble, gates: list[float]) -> mt.Ensemble:
    """Sets the members' gates, which were all shut at conversion."""
    with torch.no_grad():
        for m, value in enumerate(gates):
            ens.get_submodule("head").gate[m] = value
    return ens


def program(text: str) -> Forward:
    """A forward from its statements, which are separated by "; ". It returns the head of `h`, or `y` where one is given."""
    lines = ["def forward(net, x):", *text.split("; "), "return y" if re.search(r"\by = ", text) else "return net.head(h)"]
    space = {"torch": torch, "F": F, "nn": nn, "B": B}
    exec("\n    ".join(lines), space)
    return space["forward"]  # type: ignore[return-value]


IN_PLACE = {
    "member into zeros": "z = torch.zeros(x.shape[0], 6); z[:, 1:] = net.head.p[1:]; h = z + net.trunk(x)",
    "member into a view": "h = net.trunk(x); left = h[:, :3]; left += net.head.p[:3]",
    "member by out=": "h = net.trunk(x); z = torch.empty(6); torch.mul(h[0].detach(), net.head.p.detach(), out=z); h = h + z",
    "trunk writes before member": "h = net.trunk(x); h.mul_(2).add_(1); h.relu_()",
    "member reads before trunk writes": "h = net.trunk(x); own = h + net.head.p; h.relu_(); h = own + h",
    "trunk reads around a write": "h = net.trunk(x).clone(); before = h + 1; h.relu_(); h = before - (h + 1)",
    "member into the trunk's output": "h = net.trunk(x); h += net.head.p",
    "shape changed in place": "h = net.trunk(x).clone(); h.unsqueeze_(1); y = net.head(h)[:, 0]",
    "by mask": "h = net.trunk(x).clone(); h[h < 0] = 0; h[:, 0] = net.head.p[0]",
    "norm and ReLU in place": "h = nn.ReLU(inplace=True)(net.norm(net.trunk(x))); y = F.relu(net.head(h), inplace=True)",
    "data of zeros": "z = torch.zeros(6); z.data = net.head.p.detach() * 3; h = net.trunk(x) + z * 2",
    "foreach": "z = torch.ones(6); torch._foreach_mul_([z], [net.head.p.detach()]); h = net.trunk(x) + z",
    "two results": "a, b = (t.clone() for t in net.trunk(x).chunk(2, 1)); a *= net.head.p[:3]; h = torch.cat([a, b], 1)",
}
"""Writes, by the trunk and by members, into tensors that members have in common."""
GRADIENTS = {
    "no gradients inside": "h = net.trunk(x).tanh(); with torch.no_grad(): f = net.trunk(x).tanh(); h = h * f",
    "gradients inside": "z = x.detach().requires_grad_(); with torch.enable_grad(): e = net.head(net.trunk(z)).exp().sum(); "
    "y = torch.autograd.grad(e, z, create_graph=True)[0]",
    "hook that must act once": "h = net.trunk(x); net.training and h.requires_grad and h.register_hook(lambda grad: -grad)",
}


class Weighted(torch.autograd.Function):
    """exp(x) p: part of the work depends on x alone."""

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


def rows_of(vector: Tensor, x: Tensor) -> Tensor:
    return vector.expand(x.shape[0], *vector.shape)


FORWARDS: dict[str, Forward] = {
    **{name: program(text) for name, text in {**IN_PLACE, **GRADIENTS}.items()},
    "keywords, a member's": lambda net, x: net.head(torch.add(input=net.trunk(x), other=net.head.p, alpha=2)),
    "cat by name": lambda net, x: net.head(torch.cat(tensors=[net.trunk(x)[:, :3], rows_of(net.head.p[:3], x)], dim=1)),
    "cat of two orders": lambda net, x: net.head((torch.cat([net.trunk(x), x], 1) - torch.cat([x, net.trunk(x)], 1))[:, :6]),
    "data": lambda net, x: net.head(net.trunk(x).data + net.trunk(x)),
    "index by a tensor": lambda net, x: net.head(net.trunk(x)[:, torch.arange(5, -1, -1)]),
    "index by a member": lambda net, x: net.head(net.trunk(x)[:, net.head.p.argsort()]),
    "full of two kinds": lambda net, x: net.head(net.trunk(x) + torch.full((6,), 2) // 4 + torch.full((6,), 2.0) / 4),
    "tensor of lists": lambda net, x: net.head(net.trunk(x) * torch.tensor([1.0, 2, 3, 4, 5, 6]) + torch.tensor([6.0] * 6)),
    "unbind": lambda net, x: net.head(torch.stack([row + net.head.p for row in net.trunk(x)])),
    "vmap inside": lambda net, x: net.head(torch.func.vmap(lambda row: net.trunk(row) * net.head.p)(x)),
    "function of both": lambda net, x: net.head(Weighted.apply(net.trunk(x), net.head.p)),
    "function that writes": lambda net, x: net.head(Dirty.apply(net.trunk(x) + 1)),
}  # fmt: skip

ODD = ("shape changed in place", "data of zeros")
"""Hardly any network does this, so conversion may also refuse it, naming members."""


@pytest.mark.slow
@pytest.mark.parametrize("case", FORWARDS)
def test_each_member_gets_its_own_values(case: str) -> None:
    """Outputs, gradients and the trunk's statistics are those of M plain networks."""
    try:
        ens = heads(FORWARDS[case], norm=case.startswith("norm"))
    except mt.ConversionError as error:
        if case not in ODD:
            raise
        assert "member" in str(error)
    else:
        assert_right(ens)


def test_a_custom_operator_that_writes() -> None:
    """Its schema says so, not its name; arguments may be given by name."""

    @torch.library.custom_op("multitudes_tests::scale", mutates_args=("target",))
    def scale(target: Tensor, factor: Tensor) -> None:
        target.mul_(factor)

    def forward(net: Net, x: Tensor) -> Tensor:
        z = torch.ones(6)
        torch.ops.multitudes_tests.scale(z, torch.full((), 2.0))
        torch.ops.multitudes_tests.scale(z, net.head.p.detach())
        torch.ops.multitudes_tests.scale(target=z, factor=net.head.p.detach())
        return net.head(net.trunk(x) + z)

    assert_separate(heads(forward, check=False), torch.randn(B, 4), "loop", training=False)


STATISTICS = {
    "norm": "h = net.norm(net.trunk(x))",
    "norm twice": "h = net.norm(net.trunk(x)) + net.norm(net.trunk(x)).relu()",
    "counter": "net.seen += 1; h = net.trunk(x) * net.seen",
    "norm where a member branches": "h = net.norm(net.trunk(x)); y = net.head(h) + (1.0 if net.head.gate.sum() > 0 else 0.0)",
    "average where a member branches": "h = net.trunk(x); net.seen = 0.9 * net.seen + 0.1 * h.detach().abs().mean(); "
    "y = net.head(h / (1 + net.seen)); y = y if y.sum() > 0 else -y",
    "norm written by a member in large batches": "h = net.norm(net.trunk(x)); h = h.add_(net.head.p) if len(x) > B else h",
}
REFUSED = {name: "seen" if "average" in name else "norm" for name in STATISTICS if "member" in name}
"""Where a call may also be refused, and the noun in its error."""


@pytest.mark.parametrize("case", STATISTICS)
def test_shared_statistics_move_once_a_step(case: str) -> None:
    """In training they are one network's, or the call is refused by the name of norm or buffer."""
    rows = torch.randn(2 * B if "large" in case else B, 4)
    for way in ("call",) if case in REFUSED else ("loop", "call"):
        try:
            ens = heads(program(STATISTICS[case]), norm="norm" in case)
            ens.engine.picked.update(train="loop", eval="loop")
            assert_separate(ens, rows, way, training=True, steps=2)
        except mt.MultitudesError as error:
            assert REFUSED[case] in str(error)


def test_a_norm_whose_output_a_member_writes_into() -> None:
    """Its statistics move once, maybe over the rows of all members, or it is refused by name; they do not move M times."""
    ens, x = heads(program("h = net.norm(net.trunk(x)); h += net.head.p"), norm=True).train(), torch.randn(B, 4)
    net, norm = ens.member(0).train(), ens.get_submodule("norm")
    try:
        ens(x)
    except mt.RunError as error:
        assert "norm" in str(error)
    else:
        net(x)
        assert norm.num_batches_tracked == 1
        torch.testing.assert_close(norm.running_mean, net.norm.running_mean)


def test_statistics_behind_a_hook_on_the_trunk() -> None:
    """A backward hook wraps the trunk's input anew for each member."""
    net = Net(program(STATISTICS["norm"]), norm=True)
    net.norm.register_full_backward_hook(lambda module, into, out: None)
    ens = mt.ensemble(net, mt.MultiHead(members=M, head="head"), torch.randn(B, 4))
    assert_separate(ens, torch.randn(B, 4), training=True, steps=2)


@pytest.mark.parametrize("how", ["in place", "replaced"])
def test_a_shared_buffer_that_each_member_would_set_is_refused(how: str) -> None:
    """By the buffer's name: it can have one value only."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if how == "in place":
            net.seen.add_(net.head(h).mean().detach())
        else:
            net.seen = net.seen + net.head(h).mean().detach()
        return net.head(h)

    with pytest.raises(mt.MultitudesError, match="seen"):
        heads(forward)(torch.randn(B, 4))


STEERING = {
    "bool": "h = net.trunk(x); h = h.add_(1) if net.head.gate[0] > 0 else h",
    "length": "h = net.trunk(x); h = h.add_(1) if len((net.head.gate > 0).nonzero()) else h",
    "shape": "h = net.trunk(x); h = h.add_(1) if net.head.gate[net.head.gate > 0].shape[0] else h",
    "repeats": "h = net.trunk(x); r = torch.ones(2).repeat_interleave((net.head.gate > 0).long()); len(r) and h.add_(1)",
    "written by some": "h = net.trunk(x); z = torch.zeros_like(h); net.head.gate[0] > 0 and z.add_(net.head.p); h = h + z",
    "early exit": "h = net.trunk(x); h = h if net.head.gate[0] > 0 else F.relu(h, inplace=True) + 1",
    "skipped repeat": "h = net.trunk(x).clone(); t = h + 1 if net.head.gate[0] > 0 else h * 0; h.relu_(); h = t + (h + 1)",
    "slice by a tensor": "n = (net.head.gate > 0).sum() + 1; h = net.trunk(x) + net.trunk(x)[:, :n].sum(1, keepdim=True)",
}
"""Branches by a member's own values. At conversion every gate is shut, so nothing shows then."""


@pytest.mark.parametrize("case", STEERING)
def test_each_member_takes_its_own_branch(case: str) -> None:
    """In eval mode, without gradients, where autograd would not notice, and with them."""
    ens, x = heads(program(STEERING[case])).eval(), torch.randn(B, 4)
    for gates in ([1.0, -1.0, -1.0, -1.0], [-1.0, 1.0, -1.0, 1.0], [-1.0, -1.0, -1.0, 1.0]):
        nets = members(open_gates(ens, gates))
        with torch.no_grad():
            torch.testing.assert_close(run_loop(ens.engine, mt.Inputs(x)), torch.stack([net(x) for net in nets]))
    assert_separate(ens, x, "loop", training=False)


def test_a_shared_norm_behind_a_branch_cannot_be_trained() -> None:
    """It would need all members' rows at once, and each member takes its own branch: refused at conversion, not in training."""
    forward = program("h = net.norm(net.trunk(x)); h = h.add_(net.head.p) if net.head.gate[0] > 0 else h")
    with pytest.raises(
        mt.ConversionError, match=r"could not be trained: BatchNorm norm is shared.*Use .* mt.Deep\(members=4\)"
    ):
        heads(forward, norm=True)


OF_A_HEAD: dict[str, Forward] = {
    "randn": lambda net, x: torch.randn(x.shape[0], 3),
    "filled": lambda net, x: torch.empty(x.shape[0], 3).normal_(),
    "bernoulli of constants": lambda net, x: torch.bernoulli(torch.full((x.shape[0], 3), 0.5)),
    "dropout of constants": lambda net, x: F.dropout(torch.ones(x.shape[0], 3), 0.5, True),
    "gamma": lambda net, x: torch.distributions.Gamma(torch.ones(3), torch.ones(3)).sample(),
    "permutation": lambda net, x: torch.randperm(50)[:3].double(),
}
OF_THE_TRUNK: dict[str, Callable[[Tensor], Tensor]] = {
    "rand_like": torch.rand_like,
    "new_empty": lambda h: h.new_empty(6).bernoulli_(0.5),
    "in place": lambda h: h.clone().normal_(),
    "rrelu": lambda h: F.rrelu(h, 0.1, 0.9, training=True),
}


def noise_of(forward: Forward, *ways: str) -> tuple[mt.Ensemble, list[Tensor]]:
    """An ensemble of equal members, and its outputs by each way in training."""
    ens = heads(forward, start="copies").train()
    return ens, [answer(ens, way, torch.ones(B, 4)).detach() for way in ways]


@pytest.mark.parametrize("kind", OF_A_HEAD)
def test_noise_of_a_head_differs_between_members(kind: str) -> None:
    """Also noise made from constants, which members have in common without sharing the noise."""

    def forward(net: Net, x: Tensor) -> Tensor:
        y = net.head(net.trunk(x))
        return y + OF_A_HEAD[kind](net, x) if net.training else y

    for output in noise_of(forward, "loop", "call")[1]:
        assert all(not torch.equal(output[i], output[j]) for i in range(M) for j in range(i))


@pytest.mark.parametrize("kind", OF_THE_TRUNK)
def test_noise_of_the_trunk_is_common_to_members(kind: str) -> None:
    """Equal heads give equal outputs, by every proven executor; another call draws other noise."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        return net.head(h * OF_THE_TRUNK[kind](h) if net.training else h)

    ens, (output, other) = noise_of(forward, "loop", "loop")
    assert all(torch.equal(output[0], output[m]) for m in range(M))
    assert not torch.equal(output, other)
    if "vmap" in ens.engine.proven["train"]:
        again = answer(ens, "vmap", torch.ones(B, 4)).detach()
        torch.testing.assert_close(again, again[:1].expand_as(again))


def test_dropout_twice_on_the_same_tensor() -> None:
    """Two draws, not one used twice; both common to all members."""

    def forward(net: Net, x: Tensor) -> Tensor:
        h = torch.ones(1, 6) + 0 * net.trunk(x)
        return torch.stack([net.head(h), F.dropout(h, 0.5, net.training)[:, :3], F.dropout(h, 0.5, net.training)[:, :3]])

    _, (output,) = noise_of(forward, "loop")
    assert not torch.equal(output[0, 1], output[0, 2])
    assert all(torch.equal(output[0], output[m]) for m in range(M))


def test_randomness_that_torch_does_not_seed() -> None:
    """A block left out by Python's randomness, and an explicit generator: right for each member, or refused."""
    python, generator = random.Random(0), torch.Generator().manual_seed(3)

    def skips(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if net.training and python.random() < 0.5:
            h += net.scale
        return net.head(h)

    def draws(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        return net.head(h + torch.empty_like(h).normal_(generator=generator) if net.training else h)

    for forward in (skips, draws):
        try:
            ens = heads(forward, start="copies").train()
        except mt.MultitudesError as error:
            assert "member" in str(error)
            continue
        x, net = torch.randn(B, 4), ens.member(0)
        outputs = [run_loop(ens.engine, mt.Inputs(x)).detach() for _ in range(8)]
        if forward is draws:
            assert torch.equal(outputs[0][0], outputs[0][1]) and not torch.equal(outputs[0], outputs[1])
            continue
        without, once = net.head(net.trunk(x)), net.head(net.trunk(x) + net.scale)
        assert all(torch.allclose(one, without) or torch.allclose(one, once) for output in outputs for one in output)


def test_masks_of_numpy_that_are_written_into_the_trunk() -> None:
    """SpecAugment: each member's column is masked in a trunk of its own, not beside the columns of members before it."""
    drawn = np.random.default_rng(0)

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if net.training:
            h[:, torch.tensor(np.arange(6) == drawn.integers(6))] = 0.0
        return net.head(h)

    ens, x = heads(forward, start="copies").train(), torch.randn(B, 4)
    net = ens.member(0)
    masked = [net.head(net.trunk(x) * (torch.arange(6) != column)) for column in range(6)]
    for _ in range(8):
        outputs = run_loop(ens.engine, mt.Inputs(x))
        outputs.sum().backward()
        assert all(any(torch.allclose(one, other) for other in masked) for one in outputs)


def test_second_order() -> None:
    """The gradient of a gradient's norm."""
    ens = heads(lambda net, x: net.head(net.trunk(x).tanh())).train()
    x, nets = torch.randn(B, 4), members(ens)

    def penalty(output: Tensor, parameter: nn.Parameter) -> Tensor:
        return torch.autograd.grad(output.square().sum(), parameter, create_graph=True)[0].square().sum()

    penalty(run_loop(ens.engine, mt.Inputs(x)), ens.get_submodule("head").layer.weight).backward()
    for net in nets:
        penalty(net(x), net.head.layer.weight).backward()
    assert_same_gradients(ens, nets)


def test_two_forwards_and_one_backward() -> None:
    """Nothing is kept from one call to the next."""
    ens = heads(lambda net, x: net.head(net.norm(net.trunk(x)).relu_()), norm=True).train()
    nets, x, y = members(ens), torch.randn(B, 4), torch.randn(B, 4)
    (run_loop(ens.engine, mt.Inputs(x)).square().sum() + run_loop(ens.engine, mt.Inputs(y)).exp().sum()).backward()
    for net in nets:
        (net(x).square().sum() + net(y).exp().sum()).backward()
    assert_same_gradients(ens, nets)
    assert_same_buffers(ens, nets)


def test_inputs_that_are_common_or_are_not() -> None:
    """One tensor as two arguments; and an input for each member, where nothing of the trunk is common."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head(self.trunk(x) - self.trunk(y).tanh())

    x = torch.randn(M, B, 4)
    ens = mt.ensemble(Two(), mt.MultiHead(members=M, head="head"), mt.Inputs(x[0], x[0]))
    nets = members(ens)
    torch.testing.assert_close(run_loop(ens.engine, mt.Inputs(x[0], x[0])), torch.stack([net(x[0], x[0]) for net in nets]))
    expected = torch.stack([net(part, part) for net, part in zip(nets, x, strict=True)])
    torch.testing.assert_close(run_loop(ens.engine, mt.Inputs(x, x), True), expected)


def test_a_failure_leaves_nothing_behind() -> None:
    """A member whose forward raises: the error is the user's own, and the next call works as before."""

    class Odd(Exception):
        pass

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        if net.head.gate[0] > 0:
            raise Odd
        return net.head(h)

    ens = heads(forward).train()
    before = {name: id(tensor) for name, tensor in [*ens.named_parameters(), *ens.named_buffers()]}
    open_gates(ens, [-1.0, -1.0, 1.0, -1.0])
    for _ in range(2):
        with pytest.raises(Odd):
            ens(torch.randn(B, 4))
    assert torch.overrides._get_current_function_mode_stack() == []
    assert {name: id(tensor) for name, tensor in [*ens.named_parameters(), *ens.named_buffers()]} == before
    assert_separate(open_gates(ens, [-1.0] * M), torch.randn(B, 4), training=True)


@pytest.mark.slow
def test_the_trunk_runs_once_and_is_let_go() -> None:
    """One trunk and M heads are computed; no tensor of the trunk outlives the call."""
    calls, alive = {"trunk": 0, "head": 0}, []

    class Counted(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func is F.linear:
                calls["trunk" if args[1].shape[1] == 4 else "head"] += 1
            return func(*args, **(kwargs or {}))

    def forward(net: Net, x: Tensor) -> Tensor:
        h = net.trunk(x)
        alive.append(weakref.ref(h))
        return net.head(h)

    ens = heads(forward).eval()
    alive.clear()
    with Counted(), torch.no_grad():
        run_loop(ens.engine, mt.Inputs(torch.randn(B, 4)))
    assert calls == {"trunk": 1, "head": M}
    gc.collect()
    assert alive and all(ref() is None for ref in alive)


def test_shared_tensors_are_told_from_members() -> None:
    """A tensor is shared until a member's own values are written into it."""
    x, p = torch.randn(3), torch.randn(3)
    with Replay({"x": x}) as replay:
        common, own = x * 2, x * p
        z = torch.zeros(3)
        assert replay.is_shared(x) and replay.is_shared(common) and replay.is_shared(z)
        assert not replay.is_shared(p) and not replay.is_shared(own)
        z += p
        assert not replay.is_shared(z)
    replay.next_member()
    with replay:
        assert (x * 2) is common
        assert (x * p) is not own
        assert not replay.is_shared(torch.zeros(3))
