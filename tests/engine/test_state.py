"""The template and its tensors: ties, buffers, what forward keeps, names, copies, and what an optimiser does with them."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
from engine.separate import WAYS, B, M, assert_separate, members
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import run_loop, run_vmap


class Tied(nn.Module):
    """An embedding whose matrix is the output layer's too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.body = nn.Linear(5, 5)
        self.out = nn.Linear(5, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens).mean(1)
        return self.out(self.body(h).relu())


class Twice(nn.Module):
    """One layer under two names, with a norm of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.first = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
        self.second = nn.ModuleDict({"inner": self.first})
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second["inner"](self.first(self.stem(x)).relu()))


def tokens(count: int = B) -> Tensor:
    return torch.randint(7, (count, 4))


class TestTies:
    def test_one_tensor_under_all_its_names(self) -> None:
        """The stack is one parameter, listed once; the state dict has every name. Every executor is right."""
        ens = mt.ensemble(Tied(), mt.Deep(members=M), tokens())
        for way in WAYS:
            assert_separate(copy.deepcopy(ens), tokens(), way, training=True)
        assert ens.out.weight is ens.embed.weight
        assert [n for n, _ in ens.named_parameters()] == [n for n, _ in Tied().named_parameters()]
        assert list(ens.state_dict()) == list(Tied().state_dict())

    @pytest.mark.parametrize("way", ["loop", "vmap"])
    def test_stay_tied_while_they_learn(self, way: str) -> None:
        """Three steps of SGD with momentum are those of M tied networks."""
        ens = mt.ensemble(Tied(), mt.Deep(members=M), tokens()).train()
        nets = members(ens)
        ens.engine.picked["train"] = way
        ours = torch.optim.SGD(ens.param_groups(lr=0.1), momentum=0.9)
        theirs = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets]
        for _ in range(3):
            x = tokens()
            for optimiser, nets_of in ((ours, [ens]), *zip(theirs, ([net] for net in nets), strict=True)):
                optimiser.zero_grad()
                sum(net(x).square().sum() for net in nets_of).backward()
                optimiser.step()
        assert ens.out.weight is ens.embed.weight
        for m, net in enumerate(nets):
            assert net.out.weight is net.embed.weight
            torch.testing.assert_close(ens.embed.weight[m], net.embed.weight)
            torch.testing.assert_close(ens.body.weight[m], net.body.weight)

    def test_survive_copies_and_moves(self) -> None:
        ens = mt.ensemble(Tied(), mt.Deep(members=M), tokens())
        for other in (copy.deepcopy(ens), ens.subset([2, 0]), ens.to(torch.float32)):
            assert other.out.weight is other.embed.weight
        member = ens.member(1)
        assert member.out.weight is member.embed.weight

    @pytest.mark.parametrize("method", [mt.Deep(members=M), mt.MultiHead(members=M)], ids=["Deep", "MultiHead"])
    def test_a_module_under_two_names(self, method: mt.Method) -> None:
        """It is one module of each member, or one of the trunk, that runs twice."""
        ens = mt.ensemble(Twice(), method, torch.randn(B, 4))
        assert ens.second["inner"] is ens.first
        for way in WAYS:
            assert_separate(copy.deepcopy(ens), torch.randn(B, 4), way, training=True, steps=2)
        assert_separate(ens, torch.randn(B, 4), training=False)

    def test_between_a_member_and_the_trunk_are_refused_by_name(self) -> None:
        """A head tied to a shared embedding could not be a member's own."""
        with pytest.raises(mt.ConversionError, match=r"out .*tied to embed\.weight"):
            mt.ensemble(Tied(), mt.MultiHead(members=M, head="out"), tokens())


class Average(nn.Module):
    """Keeps a moving average of its activations, by replacing the buffer or by writing into it."""

    def __init__(self, how: str, uses: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.ones(3))
        self.how, self.uses = how, uses

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        output = h * self.mean if self.uses else h
        if self.training:
            new = 0.9 * self.mean + 0.1 * h.detach().mean(0)
            if self.how == "replaced":
                self.mean = new
            elif self.how == "data":
                self.mean.data = new
            elif self.how == "data, in place":
                self.mean.data.copy_(new)
            else:
                self.mean.copy_(new)
        return output


class Outliers(nn.Module):
    """Counts activations that are out of bounds."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("found", torch.zeros((), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        self.found = self.found + (h.abs() > 100).sum()
        return h


class TestBuffers:
    @pytest.mark.parametrize("how", ["replaced", "in place", "data, in place"])
    def test_are_stored_for_each_member(self, how: str) -> None:
        """Over three steps; in eval they are read."""
        ens = mt.ensemble(Average(how), mt.Deep(members=M), torch.randn(B, 4))
        if "vmap" not in ens.plan.proven["train"]:
            assert how == "data, in place" and "data" in ens.plan.why["vmap"]
        for way in ("call", *(n for n in ("loop", "vmap") if n in ens.plan.proven["train"])):
            twin = copy.deepcopy(ens)
            assert_separate(twin, torch.randn(B, 4), way, training=True, steps=3)
            assert twin.mean.shape == (M, 3)
            assert len({tuple(row.tolist()) for row in twin.mean}) == M

    def test_whose_data_is_replaced(self) -> None:
        """`buffer.data = new` reaches no further than the member's slice: stored all the same, or refused by name."""
        try:
            ens = mt.ensemble(Average("data"), mt.Deep(members=M), torch.randn(B, 4))
            assert_separate(ens, torch.randn(B, 4), training=True, steps=2)
        except mt.MultitudesError as error:
            assert "mean" in str(error)

    def test_that_the_gradient_needs_may_be_replaced(self) -> None:
        """The output was computed with the old value, which backward still finds."""
        ens = mt.ensemble(Average("replaced", uses=True), mt.Deep(members=M), torch.randn(B, 4))
        for way in WAYS:
            assert_separate(copy.deepcopy(ens), torch.randn(B, 4), way, training=True, steps=3)

    def test_that_count_in_eval_mode_too(self) -> None:
        """A counter that every call moves and the output is multiplied by."""

        class Counting(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 3)
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x: Tensor) -> Tensor:
                self.calls += 1
                return self.layer(x) * self.calls

        ens = mt.ensemble(Counting(), mt.Deep(members=M), torch.randn(B, 4))
        assert_separate(ens, torch.randn(B, 4), "loop", training=False, steps=3)
        assert ens.calls.tolist() == [3.0] * M

    def test_that_forward_makes_on_its_first_call(self) -> None:
        """A table registered as None and filled when its size is known, as rotary embeddings are."""

        class Lazy(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 3)
                self.register_buffer("table", None, persistent=False)

            def forward(self, x: Tensor) -> Tensor:
                if self.table is None or self.table.shape[0] < x.shape[0]:
                    self.table = torch.arange(x.shape[0], dtype=x.dtype).cos()
                return self.layer(x) * self.table[: x.shape[0], None]

        net = Lazy()
        try:
            ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
        except mt.InputError as error:
            assert "table" in str(error)
            net(torch.randn(B, 4))
            ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
        for count in (B, 2, 7, 4):
            x = torch.randn(count, 4)
            torch.testing.assert_close(ens(x), torch.stack([net(x) for net in members(ens)]))

    def test_shared_ones_are_stored_once(self) -> None:
        """A trunk's buffer that forward replaces has one value."""

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.trunk, self.head = Average("replaced"), nn.Linear(3, 2)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.trunk(x))

        ens = mt.ensemble(Net(), mt.MultiHead(members=M), torch.randn(B, 4))
        for way in WAYS:
            try:
                assert_separate(copy.deepcopy(ens), torch.randn(B, 4), way, training=True, steps=3)
            except mt.RunError as error:
                assert way == "vmap" and "trunk.mean" in str(error)
                assert "vmap" not in ens.engine.proven["train"]

    def test_that_are_not_persistent(self) -> None:
        """They carry members, and stay out of the state dict."""

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 3)
                self.register_buffer("scale", torch.randn(3), persistent=False)

            def forward(self, x: Tensor) -> Tensor:
                return self.layer(x) * self.scale

        ens = mt.ensemble(Net(), mt.Deep(members=M), torch.randn(B, 4))
        assert "scale" not in ens.state_dict()
        assert_separate(ens, torch.randn(B, 4), training=True)

    @pytest.mark.parametrize(
        ("how", "method"), [("in place", mt.Deep(members=M)), ("replaced", mt.MultiHead(members=M, head="head"))]
    )
    def test_whole_numbers_that_members_count_by_themselves(self, how: str, method: mt.Method) -> None:
        """Equal at conversion, different after a step: they stay so when the ensemble is called in eval, by any executor."""

        class Counting(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(6, 3)
                self.register_buffer("active", torch.zeros(3, dtype=torch.long))

            def forward(self, x: Tensor) -> Tensor:
                h = self.layer(x)
                if self.training and how == "in place":
                    self.active += (h > 0).sum(0)
                elif self.training:
                    self.active = self.active + (h > 0).sum(0)
                return h

        net = nn.Sequential(OrderedDict(stem=nn.Linear(4, 6), head=Counting()))
        ens = mt.ensemble(net, method, torch.randn(B, 4))
        assert_separate(ens, torch.randn(B, 4), training=True, steps=2)
        counted = ens.head.active.clone()
        assert len({tuple(row.tolist()) for row in counted}) > 1
        for way in WAYS:
            assert_separate(ens, torch.randn(B, 4), way, training=False)
            assert torch.equal(ens.head.active, counted), way
        assert_separate(ens, torch.randn(B, 4), training=True)

    @pytest.mark.parametrize("dtype", [torch.long, torch.float64])
    def test_a_count_of_what_the_example_has_none_of(self, dtype: torch.dtype) -> None:
        """A buffer that forward replaces by an equal one at conversion, and by another later, in one member only."""
        ens = mt.ensemble(Outliers(dtype), mt.Deep(members=M), torch.randn(B, 4))
        with torch.no_grad():
            ens.layer.weight[2] *= 1e4
        for way in ("call", *(n for n in ("loop", "vmap") if n in ens.plan.proven["train"])):
            twin = copy.deepcopy(ens)
            assert_separate(twin, torch.randn(B, 4), way, training=True, steps=2)
            assert twin.found[2] > 0

    @pytest.mark.slow
    @pytest.mark.parametrize("executor", [pytest.param("loop", marks=pytest.mark.slow), "vmap"])
    def test_a_count_of_what_the_example_has_none_of_compiled(self, executor: str) -> None:
        torch._dynamo.reset()
        ens = mt.ensemble(Outliers(torch.float64), mt.Deep(members=M), torch.randn(B, 4)).train()
        ens.engine.picked.update(train=executor, eval=executor)
        with torch.no_grad():
            ens.layer.weight[2] *= 1e4
        nets, x = members(ens), torch.randn(B, 4)
        torch.testing.assert_close(torch.compile(ens, backend="eager")(x), torch.stack([net(x) for net in nets]))
        torch.testing.assert_close(ens.found, torch.stack([net.found for net in nets]))

    def test_counters_are_looked_at_again_when_loaded(self) -> None:
        """Members whose counters differ after `load_state_dict` keep them."""
        net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4)).train()
        state = ens.state_dict()
        state["1.num_batches_tracked"] = torch.tensor([5, 1, 0, 3])
        ens.load_state_dict(state)
        for executor in (run_loop, run_vmap):
            executor(ens.engine, mt.Inputs(torch.randn(B, 4)))
        assert ens.get_submodule("1").num_batches_tracked.tolist() == [7, 3, 2, 5]


class Keeping(nn.Module):
    """Keeps its last activations on itself."""

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.last: Tensor | None = None
        self.history: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layer(x)
        self.history.append(self.last)
        return self.last.tanh()


def wrapped(ens: mt.Ensemble) -> list[str]:
    """Names of what modules hold that is a tensor of vmap's."""
    found = []
    for name, part in ens.template.named_modules():
        for key, value in vars(part).items():
            held = [
                value,
                *(value if isinstance(value, (list, tuple)) else []),
                *(value.values() if isinstance(value, dict) else []),
            ]
            found += [
                f"{name}.{key}" for v in held if isinstance(v, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(v)
            ]
    return found


class TestWhatForwardKeeps:
    def test_is_right_and_nothing_escapes(self) -> None:
        """The loop runs it; what stays on the module is an ordinary tensor, and copies can be made afterwards."""
        ens = mt.ensemble(Keeping(), mt.Deep(members=M), torch.randn(B, 4))
        assert ens.executor == "loop"
        assert "last" in ens.engine.why["vmap"] or "history" in ens.engine.why["vmap"]
        assert_separate(ens, torch.randn(B, 4), training=True)
        assert wrapped(ens) == []
        twin = copy.deepcopy(ens)
        assert_separate(twin, torch.randn(B, 4), training=True)
        ens.member(0)(torch.randn(B, 4))

    def test_the_model_given_keeps_nothing_of_the_conversion(self) -> None:
        net = Keeping()
        mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
        assert net.last is None
        assert net.history == []

    def test_in_a_container_nothing_escapes_either(self) -> None:
        """A dict is emptied after each member's call, so that no tensor of vmap outlives it."""

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 3)
                self.kept: dict[str, Tensor] = {}

            def forward(self, x: Tensor) -> Tensor:
                self.kept = {"h": self.layer(x)}
                return self.kept["h"].tanh()

        ens = mt.ensemble(Net(), mt.Deep(members=M), torch.randn(B, 4))
        for executor in ens.plan.proven["train"]:
            ens.engine.picked["train"] = executor
            ens.train()(torch.randn(B, 4)).sum().backward()
            assert wrapped(ens) == []
        copy.deepcopy(ens)

    def test_hooks_run_by_the_loop(self) -> None:
        """They see one member at a time, with ordinary tensors, M calls of them."""
        seen: list[Tensor] = []
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
        net[1].register_forward_hook(lambda module, args, output: seen.append(output))
        net[2].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
        assert ens.executor == "loop"
        assert "hook" in ens.engine.why["vmap"]
        seen.clear()
        ens(torch.randn(B, 4))
        assert [t.shape for t in seen] == [(B, 6)] * M
        assert not any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in seen)
        assert_separate(copy.deepcopy(ens), torch.randn(B, 4), training=True)

    def test_backward_hooks_change_gradients(self) -> None:
        """A full backward hook that scales what passes: each member's own."""
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        net[1].register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
        assert_separate(ens, torch.randn(B, 4), training=True)

    def test_parameter_hooks(self) -> None:
        """A gradient hook on a parameter is carried over to each member, or refused: never dropped without a word."""
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        net[0].weight.register_hook(lambda grad: grad * 0)
        x = torch.randn(B, 4)
        try:
            ens = mt.ensemble(net, mt.Deep(members=M), x).train()
        except mt.MultitudesError as error:
            assert "hook" in str(error)
        else:
            ens(x).sum().backward()
            assert not ens.get_submodule("0").weight.grad.any()
