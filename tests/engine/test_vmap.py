"""vmap: what it computes is what M plain networks compute, and what it cannot compute it is not used for."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine.separate import WAYS, B, M, answer, assert_separate, leaves, members
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

import multitudes as mt
from multitudes.engine import EXECUTORS
from multitudes.engine.choose import choose
from multitudes.engine.counting import multiply_adds
from multitudes.engine.vmap import over_members


def convolutional(*norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 4, 3), *norm, nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def images(count: int = B) -> Tensor:
    return torch.randn(count, 2, 5, 5)


NORMS = {
    "batch": lambda: nn.BatchNorm2d(4),
    "batch, neither": lambda: nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    "batch, cumulative average": lambda: nn.BatchNorm2d(4, momentum=None),
    "batch, synchronised": lambda: nn.SyncBatchNorm(4),
    "instance, affine, tracking": lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "group": lambda: nn.GroupNorm(2, 4),
}


class TestNorms:
    @pytest.mark.parametrize("norm", NORMS)
    def test_each_member_has_its_own(self, norm: str) -> None:
        """Over three steps, statistics and counters included; vmap needs no help for any of them."""
        ens = mt.ensemble(convolutional(NORMS[norm]()), mt.Deep(members=M), images())
        assert all("vmap" in names for names in ens.plan.proven.values())
        for way in ("vmap", "call"):
            assert_separate(copy.deepcopy(ens), images(), way, training=True, steps=3)
        assert_separate(ens, images(), "vmap", training=False)

    @pytest.mark.parametrize("way", WAYS)
    def test_a_cumulative_average_is_the_mean_over_batches(self, way: str) -> None:
        """momentum=None: after n batches each member's running mean is the mean of its n batch means."""
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, momentum=None))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 3)).train()
        batches = [torch.randn(B, 3) for _ in range(5)]
        for x in batches:
            answer(ens, way, x)
        layer = ens.get_submodule("0")
        for m in range(M):
            means = [F.linear(x, layer.weight[m], layer.bias[m]).mean(0) for x in batches]
            torch.testing.assert_close(ens.get_submodule("1").running_mean[m], torch.stack(means).mean(0))
        assert ens.get_submodule("1").num_batches_tracked.tolist() == [5] * M

    @pytest.mark.parametrize("chunk", [1, 3])
    def test_a_batch_is_counted_once_in_chunks_too(self, chunk: int) -> None:
        ens = mt.ensemble(convolutional(nn.BatchNorm2d(4, momentum=None)), mt.Deep(members=M), images(), chunk=chunk)
        for way in ("vmap", "call"):
            assert_separate(copy.deepcopy(ens), images(), way, training=True, steps=3)

    @pytest.mark.parametrize("way", WAYS)
    def test_counters_that_differ_between_members_are_kept_apart(self, way: str) -> None:
        """Networks trained for different times, stacked: each goes on from its own count."""
        nets = [convolutional(nn.BatchNorm2d(4, momentum=None)) for _ in range(M)]
        for m, net in enumerate(nets):
            for _ in range(m):
                net(images())
        ens = mt.Deep.from_models(nets, images()).train()
        try:
            assert_separate(ens, images(), way, training=True, steps=2)
        except RuntimeError as error:
            assert way == "vmap" and "item" in str(error)

    def test_update_bn(self) -> None:
        """torch's own recomputation of statistics, on the ensemble and on M networks."""
        ens = mt.ensemble(convolutional(nn.BatchNorm2d(4)), mt.Deep(members=M), images())
        for executor in ("loop", "vmap"):
            ens.engine.picked.update(train=executor, eval=executor)
            nets = members(ens)
            batches = [images(), images(7), images(2)]
            torch.optim.swa_utils.update_bn(batches, ens)
            for m, net in enumerate(nets):
                torch.optim.swa_utils.update_bn(batches, net)
                for name in ("running_mean", "running_var", "num_batches_tracked"):
                    torch.testing.assert_close(getattr(ens.get_submodule("1"), name)[m], getattr(net[1], name))


class Attention(nn.Module):
    """Self-attention by torch's module, its weights asked for or not."""

    def __init__(self, weights: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.weights = weights

    def forward(self, x: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=self.weights)


class Encoder(nn.Module):
    """A stack of torch's encoder layers, whose eval path is fused and uses nested tensors."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not options.get("norm_first", False))

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.encoder(x, src_key_padding_mask=padding)


class LearnedBias(nn.Module):
    """Attention with a learned bias as its mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.bias = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias).transpose(1, 2).flatten(2)


PADDING = torch.tensor([[False] * 4, [False, False, True, True], [False, False, False, True]])
ATTENTION = {
    "attention": (Attention, None),
    "attention with weights": (lambda: Attention(True), PADDING),
    "encoder with padding": (Encoder, PADDING),
    "encoder, norm first": (lambda: Encoder(norm_first=True), PADDING),
    "learned bias": (LearnedBias, None),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
class TestAttention:
    @pytest.mark.parametrize("kind", ATTENTION)
    def test_values_and_gradients(self, kind: str) -> None:
        """In both modes with gradients, and without them, where plain networks take torch's fused inference path.

        The CPU's attention kernel has no batching rule, so vmap is proven or refused by the kernel's name.
        """
        build, padding = ATTENTION[kind]
        x = torch.randn(B, 4, 8)
        call = mt.Inputs(x) if padding is None else mt.Inputs(x, padding=padding)
        ens = mt.ensemble(build(), mt.Deep(members=M), call)
        assert "vmap" in ens.plan.proven["eval"] or "attention" in ens.plan.why["vmap"]
        for training in (True, False):
            for way in WAYS:
                if way != "vmap" or "vmap" in ens.engine.proven["train" if training else "eval"]:
                    assert_separate(copy.deepcopy(ens), call, way, training=training)
        real = slice(None) if padding is None else ~padding  # the fused path differs on padded tokens
        nets = members(ens.eval())
        for way, mode in (("loop", torch.no_grad), ("call", torch.inference_mode)):
            with mode():
                output, plain = answer(ens, way, call), [net(*call.args, **call.kwargs) for net in nets]
                for m in range(M):
                    torch.testing.assert_close(leaves(output)[0][m][real], leaves(plain[m])[0][real], rtol=1e-9, atol=1e-9)

    def test_the_fused_path_is_switched_on_again(self) -> None:
        """Its switch is global: it is put back after a call, and after one that fails."""
        ens = mt.ensemble(Encoder(), mt.Deep(members=M), torch.randn(B, 4, 8)).eval()
        for executor in EXECUTORS.values():
            assert torch.backends.mha.get_fastpath_enabled()
            executor(ens.engine, mt.Inputs(torch.randn(B, 4, 8)))
            assert torch.backends.mha.get_fastpath_enabled()
            with pytest.raises(Exception, match=r"."):
                executor(ens.engine, mt.Inputs(torch.randn(B, 4, 5)))
            assert torch.backends.mha.get_fastpath_enabled()

    def test_a_learned_bias_gets_its_gradient(self) -> None:
        """The CPU's kernel gives none under vmap; the loop does, and vmap is proven only if it does too."""
        ens = mt.ensemble(LearnedBias(), mt.Deep(members=M), torch.randn(B, 4, 8)).train()
        ens(torch.randn(B, 4, 8)).square().sum().backward()
        assert all(bool(ens.bias.grad[m].abs().sum() > 0) for m in range(M))
        assert "vmap" in ens.engine.proven["train"] or "vmap" in ens.engine.why


def noisy(dropout: nn.Module, shape: str = "rows") -> nn.Module:
    if shape == "rows":
        return nn.Sequential(nn.Linear(6, 32), dropout, nn.Linear(32, 3))
    return nn.Sequential(nn.Conv2d(2, 16, 3), dropout, nn.Flatten(), nn.Linear(144, 3))


DROPOUTS = {
    "Dropout": (lambda: noisy(nn.Dropout(0.5)), (B, 6)),
    "Dropout, in place": (lambda: noisy(nn.Dropout(0.5, inplace=True)), (B, 6)),
    "AlphaDropout": (lambda: noisy(nn.AlphaDropout(0.5)), (B, 6)),
    "Dropout2d": (lambda: noisy(nn.Dropout2d(0.5), "images"), (B, 2, 5, 5)),
    "FeatureAlphaDropout": (lambda: noisy(nn.FeatureAlphaDropout(0.5), "images"), (B, 2, 5, 5)),
}


class TestDropout:
    @pytest.mark.parametrize("kind", DROPOUTS)
    def test_differs_between_members_and_repeats_by_seed(self, kind: str) -> None:
        """Equal members are told apart by their noise alone; the same seed gives the same noise, another seed another."""
        build, shape = DROPOUTS[kind]
        x = torch.randn(shape)
        ens = mt.ensemble(build(), mt.Deep(members=M), x, start="copies").train()

        def draw(way: str, seed: int) -> Tensor:
            torch.manual_seed(seed)
            return answer(ens, way, x)

        for way in WAYS:
            one, again, other = draw(way, 0), draw(way, 0), draw(way, 1)
            assert torch.equal(one, again)
            assert not torch.equal(one, other)
            for i in range(M):
                assert not any(torch.equal(one[i], one[j]) for j in range(i))

    @pytest.mark.parametrize("executor", ["loop", "vmap"])
    @pytest.mark.parametrize("shares", [False, True], ids=["Deep", "MultiHead"])
    def test_leaves_the_mean_and_zeroes_the_right_share(self, shares: bool, executor: str) -> None:
        """Behind a stacked layer: three in ten entries are 0, the others are divided by .7."""
        net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False), nn.Dropout(0.3))
        for layer in (net[0], net[1]):
            nn.init.ones_(layer.weight)
        method = mt.MultiHead(members=M, head="1") if shares else mt.Deep(members=M)
        ens = mt.ensemble(net, method, torch.ones(B, 1), start="copies").train()
        values = EXECUTORS[executor](ens.engine, mt.Inputs(torch.ones(4000, 1)))
        assert set(values.flatten().tolist()) == {0.0, 1 / 0.7}
        torch.testing.assert_close((values == 0).double().mean((1, 2)), torch.full((M,), 0.3), rtol=0, atol=0.03)


class Heads(nn.Module):
    """A trunk, dropout, another trunk layer, and a head."""

    def __init__(self, dropout: nn.Module, norm: bool = False) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 16)
        self.dropout = dropout
        self.body = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.body(self.dropout(self.stem(x)))))


class Calls(TorchDispatchMode):
    """Counts the products of two matrices, under vmap those of each member."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.products += func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm", "linear")
        return func(*args, **(kwargs or {}))


class TestSharedTrunk:
    """What depends only on shared tensors is computed once, dropout in the trunk included."""

    def work(self, ens: mt.Ensemble, x: Tensor, way: str) -> int:
        return multiply_adds(lambda: answer(ens, way, x))

    @pytest.mark.parametrize("dropout", [nn.Dropout(0.5), nn.Dropout(0.5, inplace=True)], ids=["drop", "in place"])
    def test_one_trunk_and_m_heads(self, dropout: nn.Module) -> None:
        """Multiply-adds, and products: two for the trunk, and for the heads one by vmap or one for each member."""
        x = torch.randn(B, 6)
        ens = mt.ensemble(Heads(dropout), mt.MultiHead(members=M), x)
        trunk, head = B * (6 * 16 + 16 * 16), B * 16 * 3
        for training in (False, True):
            for way in WAYS:
                assert self.work(ens.train(training), x, way) == trunk + M * head
        assert multiply_adds(lambda: ens.member(0)(x)) == trunk + head
        for way in WAYS:
            with Calls() as calls, torch.no_grad():
                answer(ens, way, x)
            assert calls.products == 2 + (M if (ens.executor if way == "call" else way) == "loop" else 1)

    def test_one_trunk_and_m_branches(self) -> None:
        """Dropout in the trunk is drawn once, and in a branch for each member."""
        x = torch.randn(B, 6)
        ens = mt.ensemble(Heads(nn.Dropout(0.5)), mt.TreeNet(members=M, branch_at="body"), x)
        for training in (False, True):
            for way in WAYS:
                assert self.work(ens.train(training), x, way) == B * 6 * 16 + M * B * (16 * 16 + 16 * 3)

    def test_a_convolutional_trunk(self) -> None:
        """With BatchNorm and 2-d dropout in training: still once."""
        net = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Dropout2d(0.5), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(4, 3)
        )
        ens = mt.ensemble(net, mt.MultiHead(members=M), images()).train()
        for way in WAYS:
            assert self.work(ens, images(), way) == B * (9 * 4 * 18 + 4 * 36) + M * B * 12

    @pytest.mark.parametrize("kind", [nn.Dropout, nn.AlphaDropout], ids=lambda kind: kind.__name__)
    def test_trunk_dropout_is_drawn_once(self, kind: type) -> None:
        """Equal heads behind it give equal outputs, and another seed gives another draw."""
        x = torch.randn(B, 6)
        ens = mt.ensemble(Heads(kind(0.5)), mt.MultiHead(members=M), x, start="copies").train()
        assert "vmap" in ens.plan.proven["train"] or "noise" in ens.plan.why["vmap"]
        for way in ("call", *(n for n in ("loop", "vmap") if n in ens.plan.proven["train"])):
            one, other = answer(ens, way, x), answer(ens, way, x)
            assert all(torch.equal(one[0], one[m]) for m in range(M))
            assert not torch.equal(one, other)

    def test_branch_dropout_is_drawn_for_each_member(self) -> None:
        net = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 16), nn.Dropout(0.5), nn.Linear(16, 3))
        ens = mt.ensemble(net, mt.TreeNet(members=M, branch_at="1"), torch.randn(B, 6), start="copies").train()
        for way in WAYS:
            output = answer(ens, way, torch.randn(B, 6))
            assert all(not torch.equal(output[i], output[j]) for i in range(M) for j in range(i))

    @pytest.mark.parametrize("chunk", [None, 1, 3])
    def test_trunk_batch_norm_counts_each_batch_once(self, chunk: int | None) -> None:
        """Its statistics move as one network's do, also where members run in chunks."""
        ens = mt.ensemble(Heads(nn.Identity(), norm=True), mt.MultiHead(members=M), torch.randn(B, 6), chunk=chunk)
        for way in WAYS if chunk is None else ("loop", "call"):
            assert_separate(copy.deepcopy(ens), torch.randn(B, 6), way, training=True, steps=3)

    def test_attention_dropout_in_the_trunk(self) -> None:
        """Dropout inside torch's attention: the trunk is computed once by the way that a call takes."""

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
                self.head = nn.Linear(8, 3)

            def forward(self, x: Tensor) -> Tensor:
                return self.head(self.body(x)[:, 0])

        x = torch.randn(B, 4, 8)
        ens = mt.ensemble(Net(), mt.MultiHead(members=M), x, start="copies").train()
        output = ens(x)
        assert all(torch.equal(output[0], output[m]) for m in range(M))
        one, four = multiply_adds(lambda: ens.member(0).train()(x)), multiply_adds(lambda: ens(x))
        assert four - one == (M - 1) * B * 8 * 3


NOISE = {
    F.dropout: (2000, 4),
    F.dropout1d: (500, 8, 3),
    F.dropout2d: (500, 8, 3, 2),
    F.dropout3d: (500, 8, 3, 2, 2),
}


class TestNoise:
    """The operator that draws dropout noise, one number for all entries along some last axes, and follows its input."""

    @pytest.mark.parametrize("p", [0.0, 0.3, 0.9])
    @pytest.mark.parametrize("trailing", [0, 1, 2])
    def test_values(self, trailing: int, p: float) -> None:
        """0 or 1/(1−p), with mean 1."""
        noise = torch.ops.multitudes.noise(torch.randn(100, 50, 3), p, trailing)
        assert noise.shape == {0: (100, 50, 3), 1: (100, 50, 1), 2: (100, 1, 1)}[trailing]
        kept = torch.full((), 1 / (1 - p))
        assert bool(((noise == 0) | (noise == kept)).all())
        share = (noise == 0).double().mean()
        assert abs(share - p) < 6 * (p * (1 - p) / noise.numel()) ** 0.5 + 1e-12

    def test_all_dropped(self) -> None:
        assert torch.equal(torch.ops.multitudes.noise(torch.randn(4, 5), 1.0, 0), torch.zeros(4, 5))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_dtype(self, dtype: torch.dtype) -> None:
        assert torch.ops.multitudes.noise(torch.ones(4, dtype=dtype), 0.5, 0).dtype == dtype

    def test_under_vmap_it_has_members_where_its_input_has(self) -> None:
        """On an input with members it draws for each; on a common one the result carries no member axis."""
        draw = torch.func.vmap(lambda x: torch.ops.multitudes.noise(x, 0.5, 0), randomness="different")
        one = draw(torch.ones(M, 50))
        assert one.shape == (M, 50)
        assert all(not torch.equal(one[i], one[j]) for i in range(M) for j in range(i))

        def batched(shared: Tensor, own: Tensor) -> Tensor:
            noise = torch.ops.multitudes.noise(shared, 0.5, 0)
            assert not torch._C._functorch.is_batchedtensor(noise)
            return own + noise

        common = torch.func.vmap(batched, in_dims=(None, 0), randomness="different")(torch.ones(50), torch.zeros(M, 50))
        assert all(torch.equal(common[0], common[m]) for m in range(M))

    @pytest.mark.parametrize("axis", [0, 1, 2])
    def test_the_member_axis_may_stand_anywhere(self, axis: int) -> None:
        x = torch.ones(5, 6, 7)
        draw = torch.func.vmap(lambda v: torch.ops.multitudes.noise(v, 0.5, 1), in_dims=axis, randomness="different")
        rest = [s for i, s in enumerate(x.shape) if i != axis]
        assert draw(x).shape == (x.shape[axis], rest[0], 1)

    def test_of_torch_library(self) -> None:
        """torch's own tests of an operator: schema, fake tensors, autograd, tracing."""
        torch.library.opcheck(torch.ops.multitudes.noise, (torch.randn(3, 4), 0.0, 0))
        torch.library.opcheck(torch.ops.multitudes.noise, (torch.randn(3, 4, 5), 0.0, 2))

    @pytest.mark.parametrize("rank", ["batched", "unbatched"])
    @pytest.mark.parametrize("function", NOISE, ids=lambda function: function.__name__)
    def test_the_pattern_is_that_of_torch(self, function, rank: str) -> None:  # type: ignore[no-untyped-def]
        """Which entries fall together: all channels' entries, whole channels, or rows, as the plain function has it."""
        from multitudes.engine.kernels import Together

        shape = NOISE[function]
        x = torch.ones(shape if rank == "batched" or function is F.dropout else shape[1:])

        def groups(y: Tensor) -> list[bool]:
            """For each axis, whether entries along it are always dropped together."""
            return [bool((y == y.narrow(axis, 0, 1)).all()) for axis in range(y.ndim)]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of inputs of unusual rank
            expected = function(x, 0.5, True)
            with Together(noise=True):
                found = function(x, 0.5, True)
        assert set(found.flatten().tolist()) == {0.0, 2.0}
        assert groups(found) == groups(expected)
        if x.numel() > 2000:
            assert abs(found.mean() - 1) < 0.1

    def test_bad_rates_are_refused_as_torch_does(self) -> None:
        from multitudes.engine.kernels import Together

        for p in (-0.1, 1.1):
            with pytest.raises(ValueError, match="probability"), Together(noise=True):
                F.dropout(torch.ones(4), p, True)


PARAMETRIZED = {
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
    "spectral_norm": parametrizations.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
class TestParametrizations:
    @pytest.mark.parametrize("kind", PARAMETRIZED)
    def test_each_member_has_its_own(self, kind: str) -> None:
        """Outputs, gradients of the underlying parameters, and spectral_norm's vectors over three steps."""
        net = nn.Sequential(PARAMETRIZED[kind](nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4))
        if kind == "orthogonal":
            assert "vmap" in ens.plan.proven["train"]
        elif kind == "weight_norm":  # its operation has no batching rule yet
            assert "vmap" in ens.plan.proven["train"] or "_weight_norm" in ens.plan.why["vmap"]
        else:  # its power iteration writes by out=, for which vmap has no rule
            assert ens.train().executor == "loop" and "out" in ens.plan.why["vmap"]
            assert ens.plan.why["vmap"][:40] in str(ens.plan).replace("\n", " ")
        for training in (True, False):
            for way in WAYS:
                if way != "vmap" or "vmap" in ens.engine.proven["train" if training else "eval"]:
                    assert_separate(copy.deepcopy(ens), torch.randn(B, 4), way, training=training, steps=3)

    def test_a_shared_parametrized_trunk(self) -> None:
        """spectral_norm shared in the trunk makes one power iteration a step."""
        net = nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2))
        ens = mt.ensemble(net, mt.MultiHead(members=M), torch.randn(B, 4))
        assert_separate(ens, torch.randn(B, 4), training=True, steps=3)


def test_padding_learns_nothing_with_other_ids_for_each_member() -> None:
    """The gradient of every member's padding row is zero, and that of other rows as in its own network."""
    net = nn.Sequential(nn.Embedding(5, 4, padding_idx=-5), nn.Flatten(), nn.Linear(12, 2)).double()
    ids = torch.tensor([[[0, 1, 2], [3, 0, 0]], [[4, 0, 0], [0, 0, 1]]])
    ens = mt.ensemble(net, mt.Deep(members=2), ids[0], seed=0)
    EXECUTORS["vmap"](ens.engine, mt.Inputs(ids), per_member=True).square().sum().backward()
    table = ens.get_parameter("0.weight").grad
    for m in range(2):
        member = ens.member(m)
        member(ids[m]).square().sum().backward()
        torch.testing.assert_close(table[m], member[0].weight.grad)
        assert not table[m, 0].any()


def test_members_under_vmap_are_those_of_torch() -> None:
    """Values, noise and gradients are those of torch.func.vmap, and an error leaves no level behind."""
    a, b = torch.randn(M, 4, requires_grad=True), torch.randn(M, 2, 4)

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x * y, (x + torch.rand(4)).sin(), torch.ones(3)

    for noise in ("same", "different"):
        torch.manual_seed(0)
        ours = over_members(run, M, noise, [a, b])
        torch.manual_seed(0)
        theirs = torch.func.vmap(run, randomness=noise)(a, b)
        assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))
        grads = [torch.autograd.grad(one[0].sum() + one[1].sum(), a)[0] for one in (ours, theirs)]
        assert torch.equal(*grads)
    with pytest.raises(RuntimeError, match="Expected size"):
        over_members(lambda x, y: (x @ y,), M, "same", [a, b])
    assert torch._C._functorch.maybe_current_level() is None


def test_hooks_set_after_conversion_are_seen() -> None:
    ens = mt.ensemble(convolutional(), mt.MultiHead(members=M), images(), seed=0, check=False)
    assert choose(ens.engine) == "vmap"
    handle = ens.template[0].register_forward_hook(lambda *_: None)
    assert choose(ens.engine) == "loop"
    handle.remove()
    assert choose(copy.deepcopy(ens).engine) == "vmap"


class Returning(nn.Module):
    """Returns a weight and a buffer beside its output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("table", torch.randn(3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.last(self.first(x).relu()), self.last.weight, self.first.weight, self.table


@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_outputs_are_never_the_ensembles_own_tensors(around: type) -> None:
    """A weight that forward returns is copied, owned or shared: who writes into an output must not change the ensemble."""
    x = torch.randn(B, 4)
    ens = mt.ensemble(Returning(), mt.MultiHead(members=M), x).eval()
    state = {name: tensor.clone() for name, tensor in ens.state_dict().items()}
    with around():
        outputs = EXECUTORS["vmap"](ens.engine, mt.Inputs(x))
        for output in outputs[1:]:
            assert not isinstance(output, nn.Parameter)
            output.detach().zero_()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ens.state_dict().items())


def test_outputs_are_no_memory_of_the_ensemble() -> None:
    """Autograd does not know that a detached tensor is a view."""

    class Net(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return super().forward(x), self.weight, self.weight.detach(), self.weight.detach().t(), x.detach()

    x = torch.randn(B, 4)
    ens = mt.ensemble(Net(4, 4), mt.Deep(members=M), x).eval()
    before = {name: p.detach().clone() for name, p in ens.named_parameters()}
    given = x.clone()
    with torch.no_grad():
        for output in EXECUTORS["vmap"](ens.engine, mt.Inputs(x)):
            output.zero_()
    assert torch.equal(x, given) and all(torch.equal(p, before[name]) for name, p in ens.named_parameters())


def test_what_forward_keeps_is_usable_after_the_call() -> None:
    """Under vmap a module would keep a tensor of vmap, which is dead once the call has ended."""

    class Noting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.seen = super().forward(x)
            return self.seen.relu()

    x = torch.randn(4, 5)
    ens = mt.ensemble(nn.Sequential(Noting(5, 8), nn.Linear(8, 3)), mt.Deep(members=3), x, seed=0).eval()
    assert "vmap" not in ens.plan.proven["eval"]
    ens(x)
    kept: Any = ens.get_submodule("0").seen
    assert kept.clone().shape == (4, 8)
