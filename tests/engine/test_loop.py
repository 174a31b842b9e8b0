"""The loop: what vmap cannot take runs by it, rightly, and the plan names the operation that is in the way."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from engine.separate import B, M, answer, assert_separate, images, members, small_cnn
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import EXECUTORS


def net_of(forward: Callable[[nn.Module, Tensor], Tensor]) -> nn.Module:
    """A network of two layers `a` and `b`, a vector `p` and this forward."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 6)
            self.b = nn.Linear(6, 3)
            self.p = nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x)

    return Net()


class Recurrent(nn.Module):
    """A recurrent module and a head on its last step."""

    def __init__(self, kind: type[nn.RNNBase], **options: int) -> None:
        super().__init__()
        self.recurrent = kind(4, 5, batch_first=True, **options)
        self.head = nn.Linear(5 * (1 + options.get("bidirectional", 0)), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


class Cell(nn.Module):
    """A recurrent cell stepped by hand."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.cell = kind(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return state[0] if isinstance(state, tuple) else state


RECURRENT = {
    "LSTM, two layers, both ways": lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "GRU": lambda: Recurrent(nn.GRU),
    "LSTMCell": lambda: Cell(nn.LSTMCell),
    "RNNCell": lambda: Cell(nn.RNNCell),
}


class TestRecurrent:
    @pytest.mark.parametrize("kind", RECURRENT)
    def test_is_right(self, kind: str) -> None:
        """By the call, and by each proven executor; the plan names the operation that vmap cannot run."""
        x = torch.randn(B, 6, 4)
        ens = mt.ensemble(RECURRENT[kind](), mt.Deep(members=M), x)
        for training in (True, False):
            for way in ("call", *(n for n in ("loop", "vmap") if n in ens.engine.proven["train" if training else "eval"])):
                assert_separate(copy.deepcopy(ens), x, way, training=training)
        if kind != "RNNCell":
            assert ens.executor == "loop"
            assert "aten::" in ens.plan.why["vmap"]

    def test_in_a_shared_trunk(self) -> None:
        """Its weights stand in a list of their own as well: the gradients of a shared one are the sum over members."""
        ens = mt.ensemble(Recurrent(nn.LSTM), mt.MultiHead(members=M), torch.randn(B, 6, 4))
        assert_separate(ens, torch.randn(B, 6, 4), "loop", training=True)
        assert_separate(ens, torch.randn(B, 6, 4), training=True)

    def test_after_a_step_of_training(self) -> None:
        ens = mt.ensemble(Recurrent(nn.LSTM), mt.Deep(members=M), torch.randn(B, 6, 4)).train()
        optimiser = torch.optim.SGD(ens.param_groups(lr=0.1))
        ens(torch.randn(B, 6, 4)).square().sum().backward()
        optimiser.step()
        assert_separate(ens, torch.randn(B, 6, 4), training=True)


def boolean_mask(net: nn.Module, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.b(F.relu(h)) + h[h > 0].sum()


def write_where(net: nn.Module, x: Tensor) -> Tensor:
    h = net.a(x)
    z = torch.zeros_like(h)
    z[h > 0] = h[h > 0]
    return net.b(z)


def item(net: nn.Module, x: Tensor) -> Tensor:
    return net.b(net.a(x) / net.p.detach().abs().max().item())


def control_flow(net: nn.Module, x: Tensor) -> Tensor:
    h = net.a(x)
    return net.b(h) if h.sum() > 0 else net.b(h.relu() + 1)


def while_loop(net: nn.Module, x: Tensor) -> Tensor:
    h = net.a(x)
    while h.norm() > 0.5:
        h = h / 2
    return net.b(h)


def nonzero(net: nn.Module, x: Tensor) -> Tensor:
    rows = (net.a(x).sum(1) > -1e9).nonzero().flatten()
    return net.b(net.a(x)[rows])


def numpy(net: nn.Module, x: Tensor) -> Tensor:
    return net.b(net.a(x)) + float(net.p.detach().numpy().max())


def data(net: nn.Module, x: Tensor) -> Tensor:
    return net.b(net.a(x) - net.p.data)


def written_data(net: nn.Module, x: Tensor) -> Tensor:
    h = net.a(x)
    h.data.clamp_(min=0)
    return net.b(h)


def channels_last(net: nn.Module, x: Tensor) -> Tensor:
    h = net.a(x)[:, :, None, None].expand(-1, -1, 2, 2).contiguous(memory_format=torch.channels_last)
    return net.b(h.mean((2, 3)))


def zeros_then_write(net: nn.Module, x: Tensor) -> Tensor:
    z = torch.zeros(x.shape[0], 6)
    z[:, 1:] = net.a(x)[:, 1:]
    return net.b(z)


def zeros_then_write_shared(net: nn.Module, x: Tensor) -> Tensor:
    z = torch.zeros(x.shape[0], 5)
    z[:, 1:] = x
    z[:, 0] = net.p[0]
    return net.b(net.a(z[:, :4]) + z[:, 4:])


def unique(net: nn.Module, x: Tensor) -> Tensor:
    return net.b(net.a(x)) * net.a(x).round().unique().numel()


DATA_DEPENDENT = {
    f.__name__: f
    for f in (boolean_mask, write_where, item, control_flow, while_loop, nonzero, numpy, data, written_data, channels_last)
}
DATA_DEPENDENT |= {f.__name__: f for f in (zeros_then_write, zeros_then_write_shared, unique)}


SHARED = ("write_where", "control_flow", "nonzero", "written_data", "zeros_then_write_shared")
"""Those that are also tried behind a shared layer."""
REASONS = {
    "item": "item",
    "numpy": "numpy|storage",
    "data": "data",
    "written_data": "data",
    "channels_last": "contiguous|memory",
    "control_flow": "decides which operations run",
    "while_loop": "decides which operations run",
    "unique": "unique",
    "nonzero": "nonzero",
    "boolean_mask": "nonzero|index",
    "write_where": "nonzero|index",
}
"""Words of which one must stand in the plan's reason against vmap, for members that own everything."""


class TestWhatVmapCannotTake:
    @pytest.mark.parametrize(("kind", "shares"), [*((kind, False) for kind in DATA_DEPENDENT), *((k, True) for k in SHARED)])
    def test_is_right_and_the_plan_says_why(self, kind: str, shares: bool) -> None:
        """Each member follows its own values by the call and by every proven executor; the plan names the obstacle."""
        x = torch.randn(B, 4)
        method = mt.MultiHead(members=M, head="b") if shares else mt.Deep(members=M)
        ens = mt.ensemble(net_of(DATA_DEPENDENT[kind]), method, x)
        for way in ("call", *ens.engine.proven["train"]):
            assert_separate(copy.deepcopy(ens), x, way, training=True)
        if kind in REASONS and not shares:
            assert "vmap" not in ens.plan.proven["eval"] and ens.executor == "loop"
            reason = ens.plan.why["vmap"]
            assert any(word in reason for word in REASONS[kind].split("|")), reason
            assert reason[:30] in str(ens.plan)

    def test_members_whose_shapes_differ_are_refused(self) -> None:
        """A boolean mask in the output gives as many rows as it is true: that cannot be stacked, and is said."""
        net = net_of(lambda net, x: net.a(x)[net.a(x) > 0])
        with pytest.raises(mt.MultitudesError, match="equal size"):
            mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))


class TestInputs:
    """What forward does to its input is done to a copy."""

    @pytest.mark.parametrize("method", [mt.Deep(members=M), mt.MultiHead(members=M, head="b")], ids=["Deep", "MultiHead"])
    @pytest.mark.parametrize("kind", ["own", "constant", "relu"])
    def test_a_write_into_the_input(self, kind: str, method: mt.Method) -> None:
        """`x += p` with a member's p, with a constant, by an in-place ReLU: right, and the user's x stays as it is."""

        def forward(net: nn.Module, x: Tensor) -> Tensor:
            if kind == "own":
                x += net.p[:4]
            elif kind == "constant":
                x.mul_(2).sub_(1)
            else:
                F.relu(x, inplace=True)
            return net.b(net.a(x))

        x = torch.randn(B, 4)
        ens = mt.ensemble(net_of(forward), method, x.clone())
        for way in ("loop", "call", *(["vmap"] if "vmap" in ens.engine.proven["train"] else [])):
            assert_separate(copy.deepcopy(ens), x, way, training=True)
            given = x.clone()
            answer(ens, way, given)
            assert torch.equal(given, x)

    def test_conversion_leaves_the_example_as_it_is(self) -> None:
        """Also one that its model writes into."""
        x = torch.randn(B, 4)
        given = x.clone()
        mt.plan(net_of(lambda net, x: net.b(net.a(x.mul_(2)))), mt.Deep(members=M), given)
        mt.ensemble(net_of(lambda net, x: net.b(net.a(F.relu(x, inplace=True)))), mt.Deep(members=M), given)
        assert torch.equal(given, x)

    def test_a_check_leaves_its_input_as_it_is(self) -> None:
        x = torch.randn(B, 4)
        given = x.clone()
        ens = mt.ensemble(net_of(lambda net, x: net.b(net.a(x.mul_(2)))), mt.Deep(members=M), torch.randn(B, 4))
        mt.check(ens, given)
        mt.cost(ens, given, repeats=1)
        ens.tune(given, seconds=0.0)
        assert torch.equal(given, x)

    def test_an_input_that_needs_a_gradient(self) -> None:
        """It gets the sum over members, and may be a leaf."""
        ens = mt.ensemble(net_of(lambda net, x: net.b(net.a(x).tanh())), mt.Deep(members=M), torch.randn(B, 4))
        for way in ("loop", "vmap", "call"):
            x = torch.randn(B, 4, requires_grad=True)
            answer(ens, way, x).square().sum().backward()
            own = torch.zeros(B, 4)
            for net in members(ens):
                y = x.detach().clone().requires_grad_()
                net(y).square().sum().backward()
                own += y.grad
            torch.testing.assert_close(x.grad, own)

    def test_the_trunk_behind_a_written_input_is_still_one_network(self) -> None:
        """In-place normalisation of the input, then a shared trunk with BatchNorm: its statistics are one network's."""

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a = nn.Linear(4, 6)
                self.norm = nn.BatchNorm1d(6)
                self.b = nn.Linear(6, 3)

            def forward(self, x: Tensor) -> Tensor:
                x -= 0.5
                return self.b(self.norm(self.a(x)).relu())

        ens = mt.ensemble(Net(), mt.MultiHead(members=M, head="b"), torch.randn(B, 4)).train()
        for way in ("loop", "vmap", "call"):
            assert_separate(copy.deepcopy(ens), torch.randn(B, 4), way, training=True, steps=2)


def in_place_noise(h: Tensor) -> Tensor:
    return h * torch.empty(h.shape).bernoulli_(0.5)


def gumbel(h: Tensor) -> Tensor:
    return h * F.gumbel_softmax(torch.zeros(6))


def rrelu(h: Tensor) -> Tensor:
    return F.rrelu(h, 0.1, 0.9, training=True)


def fractional_max_pool(h: Tensor) -> Tensor:
    plane = h[:, None, None, :].expand(-1, 2, 40, -1) * torch.arange(40.0).sin().view(1, 1, -1, 1)
    return F.fractional_max_pool2d(plane, (2, 1), output_size=(13, 6)).mean((1, 2))


def random_of_constants(h: Tensor) -> Tensor:
    return h * torch.bernoulli(torch.full(h.shape, 0.5))


def distribution(h: Tensor) -> Tensor:
    return h + torch.distributions.Normal(torch.zeros(6), torch.ones(6)).sample()


def permuted(h: Tensor) -> Tensor:
    return h[:, torch.randperm(6)]


def drop_path(h: Tensor) -> Tensor:
    return h * h.new_empty((h.shape[0], 1)).bernoulli_(0.5)


NOISE = {f.__name__: f for f in (in_place_noise, gumbel, rrelu, fractional_max_pool)}
NOISE |= {f.__name__: f for f in (random_of_constants, distribution, permuted, drop_path)}


REFUSED_NOISE = {"in_place_noise": "random", "gumbel": "random", "rrelu": "rrelu", "fractional_max_pool": "fractional_max_pool"}
"""A word in the plan's reason why vmap cannot draw it."""


def noisy(kind: str) -> nn.Module:
    """A network that puts this noise between its layers in training."""
    return net_of(lambda net, x: net.b(NOISE[kind](net.a(x)) if net.training else net.a(x)))


class TestNoise:
    @pytest.mark.parametrize(
        ("kind", "shares"),
        [*((kind, False) for kind in NOISE), ("in_place_noise", True), ("random_of_constants", True), ("permuted", True)],
    )
    def test_differs_between_members_and_repeats_by_seed(self, kind: str, shares: bool) -> None:
        """Equal members differ by their noise, also behind a shared trunk, by every executor that is not refused."""
        x = torch.randn(B, 4)
        net = nn.Sequential(nn.Linear(4, 4), noisy(kind)) if shares else noisy(kind)
        method = mt.TreeNet(members=M, branch_at="1") if shares else mt.Deep(members=M)
        ens = mt.ensemble(net, method, x, start="copies").train()

        def draw(way: str, seed: int) -> Tensor:
            torch.manual_seed(seed)
            return answer(ens, way, x).detach()

        for way in ("call", *(n for n in ("loop", "vmap") if n in ens.engine.proven["train"])):
            draws = [draw(way, seed) for seed in range(6)]
            assert torch.equal(draws[0], draw(way, 0))
            for i in range(M):
                assert all(any(not torch.equal(d[i], d[j]) for d in draws) for j in range(i)), f"{way}: members {i} and another"
        if kind in REFUSED_NOISE and "vmap" not in ens.plan.proven["train"]:  # a later torch may have learnt it
            assert REFUSED_NOISE[kind] in ens.plan.why["vmap"]
        assert kind != "fractional_max_pool" or "vmap" not in ens.plan.proven["train"]  # it would draw the same for all members


class TestRows:
    """Each row by its own member, and rows of its own for each member."""

    def test_rows_are_the_members_answers(self) -> None:
        ens = mt.ensemble(net_of(lambda net, x: net.b(net.a(x).tanh())), mt.Deep(members=M), torch.randn(B, 4))
        x, rows = torch.randn(7, 4), torch.tensor([3, 0, 0, 2, 3, 3, 0])
        every = ens(x)
        torch.testing.assert_close(ens(x, rows=rows), every[rows, torch.arange(7)])

    def test_per_member_inputs(self) -> None:
        """Inputs ``[M, B, ...]``: member m sees its own rows, by each executor."""
        ens = mt.ensemble(small_cnn(), mt.Deep(members=M), images()).train()
        nets, x = members(ens), torch.stack([images() for _ in range(M)])
        wanted = torch.stack([net(part) for net, part in zip(nets, x, strict=True)])
        for executor in ("loop", "vmap"):
            torch.testing.assert_close(EXECUTORS[executor](ens.engine, mt.Inputs(x), True), wanted)
        torch.testing.assert_close(ens(x, per_member=True), wanted)


class StepsBefore(nn.Module):
    """Takes steps before rows, ``[T, B, C]``, and gives rows first, ``[B, K]``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean(0)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_rows_may_stand_elsewhere_in_outputs(count: int) -> None:
    """Where they are is seen at conversion, and not taken from the inputs: with as many rows as classes too."""
    x = torch.randn(4, count, 8)
    ens = mt.ensemble(StepsBefore(), mt.Deep(), x, batch_axis=1).eval()
    rows = torch.arange(count) % 4
    wanted = torch.stack([ens.member(m)(x)[b] for b, m in enumerate(rows.tolist())])
    torch.testing.assert_close(ens(x, rows=rows), wanted)


def test_slices_of_small_tensors_are_kept_and_follow_every_change() -> None:
    """Calls without gradients use the slices of the call before, unless tensors were replaced; plain members see the same."""
    x = torch.randn(B, 4)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    ens = mt.ensemble(net, mt.Deep(members=M), x, seed=0).eval()

    def kept() -> list[int]:
        return [id(slices[0]) for _, _, slices in ens.engine.slices.values()]

    @torch.no_grad()
    def check(x: Tensor) -> None:
        torch.testing.assert_close(ens(x), torch.stack([ens.member(m)(x) for m in range(M)]))

    with torch.inference_mode():
        ens(x)
    first = kept()
    check(x)
    assert len(first) == 9 and kept() == first  # 4 of Linear, 2 and 3 of BatchNorm
    ens(x).sum().backward()  # slices with a graph are not kept
    with torch.no_grad():
        ens.train()(x)  # writes statistics through the kept slices
        for parameter in ens.parameters():
            parameter.add_(1)
    ens.eval()
    check(x)
    assert kept() == first
    for parameter in ens.parameters():
        parameter.data = parameter.data * 2
    check(x)
    ens.double()
    check(x.double())
    ens.load_state_dict({name: tensor + 1 for name, tensor in ens.state_dict().items()}, assign=True)
    check(x.double())
    with torch.no_grad():
        torch.func.functional_call(ens, {name: p + 1 for name, p in ens.named_parameters()}, x.double())
    check(x.double())
    for parameter in ens.parameters():
        parameter.data = parameter.data.flip(0).clone()[:M]
    check(x.double())
