"""The template and its tensors: ties, buffers, what forward keeps, names, copies, and what an optimiser does with them."""

from __future__ import annotations

import copy
import threading
import warnings
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from engine.separate import WAYS, B, M, answer, assert_same_gradients, assert_separate, leaves, members, score
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import run_loop, run_vmap
from multitudes.engine.modules import copy_with, detached_copy, named_tensors, owning_module


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
        """vmap is refused there too, since a tensor in a dict would outlive it."""

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = nn.Linear(4, 3)
                self.kept: dict[str, Tensor] = {}

            def forward(self, x: Tensor) -> Tensor:
                self.kept = {"h": self.layer(x)}
                return self.kept["h"].tanh()

        ens = mt.ensemble(Net(), mt.Deep(members=M), torch.randn(B, 4))
        assert "vmap" not in ens.plan.proven["eval"]
        assert "kept" in ens.plan.why["vmap"]
        ens(torch.randn(B, 4)).sum().backward()
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


class Pair(NamedTuple):
    logits: Tensor
    features: Tensor


@dataclass
class Result:
    logits: Tensor
    hidden: tuple[Tensor, ...]
    loss: Tensor | None = None
    name: str = "result"
    count: int = 3


class Cache:
    """Holds tensors in a way of its own."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


def outputs_of(kind: str, h: Tensor, y: Tensor) -> Any:
    return {
        "list": [y, [h, None]],
        "dict": {"logits": y, "aux": {"h": h}, "epoch": 3, "name": "net"},
        "named tuple": Pair(y, h),
        "dataclass": Result(y, (h, h * 2)),
        "none": (y, None, 7, "text", 2.5, True),
        "nothing of a member's": (y, torch.ones(2)),
        "integers": (y, y.argmax(1), y > 0),
    }[kind]


OUTPUTS = ["list", "dict", "named tuple", "dataclass", "none", "nothing of a member's", "integers"]


class Returning(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.a, self.b, self.kind = nn.Linear(4, 6), nn.Linear(6, 3), kind

    def forward(self, x: Tensor) -> Any:
        h = self.a(x)
        return outputs_of(self.kind, h, self.b(h.tanh()))


class TestOutputs:
    @pytest.mark.parametrize("kind", OUTPUTS)
    def test_keep_their_structure(self, kind: str) -> None:
        """Every tensor gains the member axis, every constant stays, the type is the model's own."""
        ens = mt.ensemble(Returning(kind), mt.Deep(members=M), torch.randn(B, 4))
        assert "vmap" in ens.engine.proven["eval"], ens.engine.why
        for way in ("loop", "vmap"):
            assert_separate(copy.deepcopy(ens), torch.randn(B, 4), way, training=True)
            output, plain = answer(ens, way, torch.randn(B, 4)), ens.member(0)(torch.randn(B, 4))
            assert type(output) is type(plain)
            assert all(a.shape == (M, *b.shape) for a, b in zip(leaves(output), leaves(plain), strict=True))
        if kind == "none":
            assert output[1:] == plain[1:]
        if kind == "dict":
            assert (output["epoch"], output["name"]) == (3, "net")

    REFUSED = {
        "an object with tensors": (lambda h, y: {"logits": y, "past_key_values": Cache(h)}, "past_key_values.*Cache"),
        "constants that differ": (lambda h, y: (y, y.detach().sum().item()), "different"),
        "no tensor": (lambda h, y: None, "output"),
    }

    @pytest.mark.parametrize("kind", REFUSED)
    def test_that_cannot_be_stacked_are_refused(self, kind: str) -> None:
        make, noun = self.REFUSED[kind]

        class Net(Returning):
            def forward(self, x: Tensor) -> Any:
                h = self.a(x)
                return make(h, self.b(h))

        with pytest.raises(mt.MultitudesError, match=noun):
            mt.ensemble(Net(""), mt.MultiHead(members=M), torch.randn(B, 4))


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(6, 3))


REFUSALS = {
    "scripted": (lambda: nn.Sequential(nn.Linear(4, 6), scripted()), "(?s)1 .*scripted"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(3)), "(?s)0 .*lazy.*2 .*lazy"),
    "old weight norm": (
        lambda: nn.Sequential(nn.Linear(4, 6), torch.nn.utils.weight_norm(nn.Linear(6, 3))),
        r"(?s)1 .*parametrizations\.weight_norm",
    ),
    "two at once": (
        lambda: nn.Sequential(nn.LazyLinear(6), torch.nn.utils.spectral_norm(nn.Linear(6, 3))),
        r"(?s)1 .*parametrizations\.spectral_norm.*0 .*lazy.*keep=",
    ),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize("kind", REFUSALS)
def test_modules_that_cannot_be_converted_are_refused(kind: str) -> None:
    """By name, with what to use instead; a lazy module is taken after its first call."""
    make, nouns = REFUSALS[kind]
    net = make()
    with pytest.raises(mt.ConversionError, match=nouns):
        mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
    if kind == "lazy":
        net(torch.randn(B, 4))
        assert_separate(mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4)), torch.randn(B, 4), training=True)


class TestNamesAndCopies:
    def net(self) -> nn.Module:
        return nn.Sequential(OrderedDict(stem=nn.Linear(4, 6), norm=nn.BatchNorm1d(6), head=nn.Linear(6, 3)))

    def test_moved_to_another_precision(self) -> None:
        """`.to` and `.float` reach what the executors use."""
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4))
        for dtype, tol in ((torch.float32, 1e-4), (torch.float64, 1e-9)):
            moved, x = ens.to(dtype), torch.randn(B, 4, dtype=dtype)
            for way in ("loop", "vmap"):
                assert_separate(copy.deepcopy(moved), x, way, training=True, tol=tol)

    def test_a_move_to_the_meta_device(self) -> None:
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4)).to("meta")
        assert ens(torch.randn(B, 4, device="meta")).shape == (M, B, 3)

    def test_parameters_replaced_from_outside(self) -> None:
        """What is set on the ensemble, or on one of its modules, is what runs."""
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4)).eval()
        ens.head.weight = nn.Parameter(torch.zeros(M, 3, 6))
        x = torch.randn(B, 4)
        expected = ens.head.bias[:, None].expand(M, B, 3)
        for way in WAYS:
            torch.testing.assert_close(answer(ens, way, x), expected)
        ens.load_state_dict({n: torch.ones_like(t) for n, t in ens.state_dict().items()}, assign=True)
        for way in WAYS:
            torch.testing.assert_close(answer(ens, way, x), torch.stack([net(x) for net in members(ens)]))

    def test_frozen_parts_stay_frozen(self) -> None:
        net = self.net()
        net.stem.requires_grad_(False)
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4)).train()
        assert not ens.stem.weight.requires_grad
        score(ens(torch.randn(B, 4))).backward()
        assert ens.stem.weight.grad is None
        assert ens.head.weight.grad is not None
        assert_separate(ens, torch.randn(B, 4), training=True)

    def test_modes_of_single_modules(self) -> None:
        """A frozen norm inside a training ensemble stays frozen, for every executor."""
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4)).train()
        ens.norm.eval()
        for way in WAYS:
            answer(ens, way, torch.randn(B, 4))
        assert not ens.norm.num_batches_tracked.any()
        assert not ens.member(0).norm.training

    def test_from_two_threads(self) -> None:
        """Calls put tensors into the template for a while: from two threads they still do not meet."""
        ens = mt.ensemble(self.net(), mt.Deep(members=M), torch.randn(B, 4)).eval()
        inputs = [torch.randn(B, 4) for _ in range(2)]
        wanted = [ens(x).detach() for x in inputs]
        wrong: list[int] = []

        def work(index: int) -> None:
            for _ in range(30):
                if not torch.equal(ens(inputs[index]), wanted[index]):
                    wrong.append(index)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def trained(make: Any, method: mt.Method, steps: int = 4) -> tuple[mt.Ensemble, list[nn.Module]]:
    """An ensemble and its members as plain networks, trained on the same batches by an optimiser each."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    ens = mt.ensemble(net, method, torch.randn(B, 4)).train()
    nets = members(ens)
    ours, theirs = make(ens.param_groups(lr=0.05, weight_decay=0.01)), [make(net.parameters()) for net in nets]
    for _ in range(steps):
        x, y = torch.randn(B, 4), torch.randint(3, (B,))
        ours.zero_grad()
        ens.loss(x, y, F.cross_entropy).backward()
        ours.step()
        for net, optimiser in zip(nets, theirs, strict=True):
            optimiser.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimiser.step()
    return ens, nets


SEPARABLE = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.01),
}


class TestOptimisers:
    @pytest.mark.parametrize("kind", SEPARABLE)
    def test_that_work_entry_by_entry_train_separate_networks(self, kind: str) -> None:
        """Four steps on the stack give the weights and statistics of M separate runs."""
        ens, nets = trained(SEPARABLE[kind], mt.Deep(members=M))
        for name, tensor in named_tensors(ens.template):
            torch.testing.assert_close(tensor, torch.stack([dict(named_tensors(net))[name] for net in nets]), msg=name)

    def test_that_look_at_whole_tensors_are_refused_by_name(self) -> None:
        class Mine(torch.optim.LBFGS):
            pass

        ens = mt.ensemble(nn.Linear(4, 3), mt.Deep(members=M), torch.randn(B, 4))
        kinds = {kind: getattr(torch.optim, kind) for kind in ("Adafactor", "Muon") if hasattr(torch.optim, kind)}
        for name, optimizer in {"LBFGS": Mine, **kinds}.items():
            with pytest.raises(mt.InputError, match=name):
                ens.param_groups(lr=0.1, optimizer=optimizer)
        assert ens.param_groups(lr=0.1, optimizer=torch.optim.SGD)[0]["lr"] == 0.1

    def test_one_network_may_take_any(self) -> None:
        ens = mt.ensemble(nn.Linear(4, 3), mt.Single(), torch.randn(B, 4))
        assert ens.param_groups(lr=0.1, optimizer=torch.optim.LBFGS)

    @pytest.mark.parametrize("norm", [0.5, 1e3])
    def test_clipping_is_each_members_own(self, norm: float) -> None:
        """The members' norms are those of their networks, and so are the clipped gradients."""
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4)).train()
        nets, x = members(ens), torch.randn(B, 4)
        (ens(x) * torch.arange(1.0, M + 1).view(M, 1, 1)).square().sum().backward()
        for m, one in enumerate(nets):
            (one(x) * (m + 1)).square().sum().backward()
        norms = torch.stack([torch.nn.utils.clip_grad_norm_(one.parameters(), norm) for one in nets])
        torch.testing.assert_close(ens.clip_grad_norm_(norm), norms)
        assert_same_gradients(ens, nets)

    def test_clipping_with_a_shared_trunk(self) -> None:
        """Heads are clipped each by its own norm, the trunk by its own; a gradient within bounds stays as it is."""
        net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        ens = mt.ensemble(net, mt.MultiHead(members=M), torch.randn(B, 4)).train()
        (ens(torch.randn(B, 4)) * torch.tensor([1e-6, 1.0, 10.0, 100.0]).view(M, 1, 1)).square().sum().backward()
        before = {n: p.grad.clone() for n, p in ens.named_parameters()}
        ens.clip_grad_norm_(0.1)
        head = torch.stack(
            [torch.cat([ens.get_parameter(f"2.{k}").grad[m].flatten() for k in ("weight", "bias")]).norm() for m in range(M)]
        )
        assert bool((head <= 0.1 + 1e-6).all())
        torch.testing.assert_close(ens.get_parameter("2.weight").grad[0], before["2.weight"][0])
        trunk = torch.cat([ens.get_parameter(f"0.{k}").grad.flatten() for k in ("weight", "bias")]).norm()
        torch.testing.assert_close(trunk, torch.tensor(0.1), rtol=1e-4, atol=0)


class TestCopying:
    def test_a_copy_holds_the_tensors_given(self) -> None:
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        weight = torch.zeros(6, 4, requires_grad=True)
        twin = copy_with(net, {"0.weight": weight})
        assert twin[0]._parameters["weight"] is weight
        assert twin[0].bias is net[0].bias
        assert twin[1] is not net[1]

    def test_baked_tensors_are_apart(self) -> None:
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        twin = detached_copy(net, {})
        assert all(
            a is not b and torch.equal(a, b) for (_, a), (_, b) in zip(named_tensors(net), named_tensors(twin), strict=True)
        )
        assert all(isinstance(p, nn.Parameter) for p in twin.parameters())

    def test_the_owner_of_a_tensor(self) -> None:
        """A parametrized tensor belongs to the module that uses it."""
        assert owning_module("a.b.weight") == "a.b"
        assert owning_module("weight") == ""
        assert owning_module("a.parametrizations.weight.original0") == "a"
        assert owning_module("parametrizations.weight.original") == ""
