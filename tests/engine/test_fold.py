"""Fold: in training, a BatchNorm layer that members share takes one set of statistics over the rows of all of them."""

from __future__ import annotations

import copy
import types

import pytest
import torch
import torch.nn.functional as F
from engine.separate import B, M, assert_separate, members, score
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import EXECUTORS, fold, run_fold


def shared_norm(**norm: object) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, **norm), nn.ReLU(), nn.Linear(6, 3))


def by_hand(ens: mt.Ensemble, x: Tensor, norm: nn.BatchNorm1d) -> Tensor:
    """`shared_norm` with all members' rows behind each other before the norm, written out."""
    first, last = ens.get_submodule("0"), ens.get_submodule("3")
    rows = torch.cat([F.linear(part, first.weight[m], first.bias[m]) for m, part in enumerate(x)])
    rows = norm(rows).relu()
    return torch.stack([F.linear(part, last.weight[m], last.bias[m]) for m, part in enumerate(rows.chunk(len(x)))])


def with_norm(ens: mt.Ensemble) -> tuple[mt.Ensemble, nn.BatchNorm1d]:
    """Another copy of the ensemble, and its norm as a plain layer."""
    twin = copy.deepcopy(ens)
    return twin, twin.get_submodule("1")  # type: ignore[return-value]


NORMS = {
    "": {},
    "not affine": {"affine": False},
    "cumulative": {"momentum": None},
    "not tracking": {"track_running_stats": False},
    "bare": {"affine": False, "track_running_stats": False},
}


class TestSharedBatchNorm:
    @pytest.mark.parametrize(
        ("kind", "way"),
        [
            ("", "vmap"),
            ("", "fold"),
            ("not affine", "vmap"),
            ("cumulative", "fold"),
            ("not tracking", "vmap"),
            ("bare", "fold"),
        ],
    )
    def test_is_explicit_folding(self, kind: str, way: str) -> None:
        """Outputs, gradients and statistics of three steps, by the call, which takes vmap or fold and says so."""
        ens = mt.ensemble(shared_norm(**NORMS[kind]), mt.Deep(members=M), torch.randn(B, 4), keep=["1"]).train()
        ens.engine.picked["train"] = way
        assert ens.executor == way
        assert "1.weight" not in ens.engine.owned
        twin, norm = with_norm(ens)
        for _ in range(3):
            x = torch.randn(B, 4)
            found, wanted = ens(x), by_hand(twin, x.expand(M, B, 4), norm)
            torch.testing.assert_close(found, wanted)
            score(found).backward()
            score(wanted).backward()
        for name, parameter in ens.named_parameters():
            torch.testing.assert_close(parameter.grad, twin.get_parameter(name).grad)
        for name, buffer in ens.named_buffers():
            torch.testing.assert_close(buffer, twin.get_buffer(name))

    def test_members_with_rows_of_their_own(self) -> None:
        ens = mt.ensemble(shared_norm(), mt.Deep(members=M), torch.randn(B, 4), keep=["1"]).train()
        twin, norm = with_norm(ens)
        x = torch.randn(M, B, 4)
        torch.testing.assert_close(ens(x, per_member=True), by_hand(twin, x, norm))
        torch.testing.assert_close(ens.get_submodule("1").running_var, norm.running_var)

    def test_each_row_by_its_member(self) -> None:
        """Rows of all members are normalised together, whatever their order."""
        ens = mt.ensemble(shared_norm(), mt.Deep(members=M), torch.randn(B, 4), keep=["1"]).train()
        twin, norm = with_norm(ens)
        x, rows = torch.randn(2 * M, 4), torch.tensor([3, 1, 0, 2, 1, 3, 2, 0])
        order = rows.argsort(stable=True)
        wanted = by_hand(twin, x[order].unflatten(0, (M, 2)), norm).flatten(0, 1)
        torch.testing.assert_close(ens(x, rows=rows)[order], wanted)

    def test_rows_for_some_members_only(self) -> None:
        ens = mt.ensemble(shared_norm(), mt.Deep(members=M), torch.randn(B, 4), keep=["1"]).train()
        output = ens(torch.randn(5, 4), rows=torch.tensor([2, 2, 0, 2, 0]))
        assert output.shape == (5, 3)

    def test_in_eval_members_are_plain_networks(self) -> None:
        ens = mt.ensemble(shared_norm(), mt.Deep(members=M), torch.randn(B, 4), keep=["1"])
        for way in ("loop", "vmap", "call"):
            assert_separate(copy.deepcopy(ens), torch.randn(B, 4), way, training=False)

    def test_the_plan_says_so(self) -> None:
        planned = mt.plan(shared_norm(), mt.Deep(members=M), torch.randn(B, 4), keep=["1"])
        assert "in training, BatchNorm 1 is shared: one set of statistics over the rows of all members" in planned.notes
        assert planned.proven["train"] == ("loop", "vmap", "fold")
        bare = mt.plan(shared_norm(**NORMS["bare"]), mt.Deep(members=M), torch.randn(B, 4), keep=["1"])
        assert "BatchNorm 1" in bare.why["vmap"]

    def test_a_norm_put_into_eval_mode_couples_nothing(self) -> None:
        """Frozen statistics: the loop and vmap are right again, in training too."""
        ens = mt.ensemble(shared_norm(), mt.Deep(members=M), torch.randn(B, 4), keep=["1"]).train()
        ens.get_submodule("1").eval()
        assert ens.executor != "fold"
        nets = members(ens)
        for net in nets:
            net[1].eval()
        x = torch.randn(B, 4)
        torch.testing.assert_close(ens(x), torch.stack([net(x) for net in nets]))

    def test_convolutions(self) -> None:
        """Two shared norms, one of them behind the other's branch."""
        net = nn.Sequential(
            nn.Conv2d(2, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 4, 3),
            nn.BatchNorm2d(4),
            nn.Flatten(),
            nn.Linear(4, 3),
        )
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 2, 5, 5), keep=["1", "4"]).train()
        assert ens.executor == "vmap"
        x = torch.randn(B, 2, 5, 5)
        twin = copy.deepcopy(ens)
        rows = torch.cat(
            [F.conv2d(x, w, b) for w, b in zip(twin.get_submodule("0").weight, twin.get_submodule("0").bias, strict=True)]
        )
        rows = twin.get_submodule("1")(rows).relu().chunk(M)
        convolved = zip(rows, twin.get_submodule("3").weight, twin.get_submodule("3").bias, strict=True)
        rows = twin.get_submodule("4")(torch.cat([F.conv2d(part, w, b) for part, w, b in convolved])).flatten(1).chunk(M)
        last = zip(rows, twin.get_submodule("6").weight, twin.get_submodule("6").bias, strict=True)
        torch.testing.assert_close(ens(x), torch.stack([F.linear(part, w, b) for part, w, b in last]))


class Tables(nn.Module):
    """A member layer that is called with a table beside its rows."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 4))

        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            return F.linear(x, self.weight) + table.sum(0)

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.table = nn.Embedding(entries, 6)
        self.layer = self.Layer()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x, self.table.weight))


class Sequence(nn.Module):
    """Steps first, rows second: ``[T, B, C]``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(x).permute(1, 2, 0)).permute(2, 0, 1)


class Centred(nn.Module):
    """Subtracts the mean over the rows at hand behind a member layer, besides a shared norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return self.head(self.norm(h - 0.5 * h.mean(0)))


class Positions(nn.Module):
    """Adds a term for each row's place in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        return self.norm(h + torch.arange(len(h), dtype=h.dtype).sin()[:, None])


class TestNothingIsGuessed:
    """Shapes that look like rows and are none; models in which rows see each other."""

    @pytest.mark.parametrize("entries", [M * B, 5])
    def test_a_table_with_as_many_entries_as_there_are_rows(self, entries: int) -> None:
        """It is no tensor of rows, though its length is M B: right, or refused."""
        ens = mt.ensemble(Tables(entries), mt.Deep(members=M), torch.randn(2, 4), keep=["norm", "table"]).train()
        twin, x = copy.deepcopy(ens), torch.randn(B, 4)
        term = twin.get_submodule("table").weight.sum(0)
        rows = torch.cat([F.linear(x, weight) + term for weight in twin.get_submodule("layer").weight])
        wanted = twin.get_submodule("norm")(rows).unflatten(0, (M, B))
        try:
            found = ens(x)
        except mt.MultitudesError as error:
            assert "rows" in str(error)
        else:
            torch.testing.assert_close(found, wanted)

    @pytest.mark.parametrize("steps", [B, 5, M * B])
    def test_steps_before_rows(self, steps: int) -> None:
        """``[T, B, C]`` with T = B too: right, or refused in training; never rows of one member given to another."""
        ens = mt.ensemble(Sequence(), mt.Deep(members=M), torch.randn(steps, B, 4), keep=["norm"], batch_axis=1).train()
        twin, x = copy.deepcopy(ens), torch.randn(steps, B, 4)
        layer = twin.get_submodule("layer")
        rows = torch.cat([F.linear(x, w, b) for w, b in zip(layer.weight, layer.bias, strict=True)], 1)
        wanted = twin.get_submodule("norm")(rows.permute(1, 2, 0)).permute(2, 0, 1)
        try:
            found = ens(x)
        except mt.MultitudesError as error:
            assert "fold" in str(error) or "rows" in str(error)
        else:
            torch.testing.assert_close(found, torch.stack(wanted.chunk(M, 1)))

    def test_rows_that_see_each_other(self) -> None:
        """Folded, one member's rows would enter another's mean: vmap keeps them apart, but for the shared norm."""
        ens, x = mt.ensemble(Centred(), mt.Deep(members=M), torch.randn(B, 4), keep=["norm"]).train(), torch.randn(B, 4)
        assert "fold" not in ens.engine.proven["train"]
        twin = copy.deepcopy(ens)
        layer, head = twin.get_submodule("layer"), twin.get_submodule("head")
        hidden = [F.linear(x, w, b) for w, b in zip(layer.weight, layer.bias, strict=True)]
        rows = twin.get_submodule("norm")(torch.cat([h - 0.5 * h.mean(0) for h in hidden])).chunk(M)
        wanted = torch.stack([F.linear(part, head.weight[m], head.bias[m]) for m, part in enumerate(rows)])
        torch.testing.assert_close(ens(x), wanted)
        torch.testing.assert_close(ens.get_submodule("norm").running_var, twin.get_submodule("norm").running_var)
        own = torch.randn(M, B, 4)
        hidden = [F.linear(x, w, b) for x, w, b in zip(own, layer.weight, layer.bias, strict=True)]
        rows = twin.get_submodule("norm")(torch.cat([h - 0.5 * h.mean(0) for h in hidden])).chunk(M)
        wanted = torch.stack([F.linear(part, head.weight[m], head.bias[m]) for m, part in enumerate(rows)])
        torch.testing.assert_close(ens(own, per_member=True), wanted)

    def test_places_in_the_batch(self) -> None:
        """A term for each row's place is that of the member's own batch, not of all members' rows."""
        ens, x = mt.ensemble(Positions(), mt.Deep(members=M), torch.randn(B, 4), keep=["norm"]).train(), torch.randn(B, 4)
        twin, term = copy.deepcopy(ens), torch.arange(B, dtype=x.dtype).sin()[:, None]
        layer = twin.get_submodule("layer")
        hidden = [F.linear(x, w, b) + term for w, b in zip(layer.weight, layer.bias, strict=True)]
        torch.testing.assert_close(ens(x), twin.get_submodule("norm")(torch.cat(hidden)).unflatten(0, (M, B)))

    def test_an_output_without_rows(self) -> None:
        """A mean over the batch has no row for each member: not by fold, whose rows are all members'."""

        class Mean(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)

            def forward(self, x: Tensor) -> Tensor:
                return self.norm(self.layer(x)).mean(0)

        ens, x = mt.ensemble(Mean(), mt.Deep(members=M), torch.randn(B, 4), keep=["norm"]).train(), torch.randn(B, 4)
        assert "fold" not in ens.engine.proven["train"]
        twin = copy.deepcopy(ens)
        layer = twin.get_submodule("layer")
        rows = torch.cat([F.linear(x, w, b) for w, b in zip(layer.weight, layer.bias, strict=True)])
        torch.testing.assert_close(ens(x), twin.get_submodule("norm")(rows).unflatten(0, (M, B)).mean(1))

    def test_a_norm_inside_a_members_layer(self) -> None:
        """A module that owns a member's tensor and calls the shared norm itself: by vmap; fold would normalise it alone."""

        class Layer(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight, self.norm = nn.Parameter(torch.randn(6, 4)), nn.BatchNorm1d(6)

            def forward(self, x: Tensor) -> Tensor:
                return self.norm(F.linear(x, self.weight))

        ens, x = mt.ensemble(Layer(), mt.Deep(members=M), torch.randn(B, 4), keep=["norm"]), torch.randn(B, 4)
        assert_separate(copy.deepcopy(ens), x, training=False)
        twin = copy.deepcopy(ens.train())
        rows = torch.cat([F.linear(x, weight) for weight in twin.get_parameter("weight")])
        torch.testing.assert_close(ens(x), twin.get_submodule("norm")(rows).unflatten(0, (M, B)))
        own = torch.randn(M, B, 4)
        rows = torch.cat([F.linear(part, weight) for part, weight in zip(own, twin.get_parameter("weight"), strict=True)])
        torch.testing.assert_close(ens(own, per_member=True), twin.get_submodule("norm")(rows).unflatten(0, (M, B)))

    def test_what_only_the_loop_can_run_is_refused_in_training(self) -> None:
        """Control flow over all members' rows at once has no meaning: refused by the norm's name."""

        class Flow(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)

            def forward(self, x: Tensor) -> Tensor:
                h = self.layer(x)
                return self.norm(h if h.sum() > 0 else -h)

        try:
            ens = mt.ensemble(Flow(), mt.Deep(members=M), torch.randn(B, 4), keep=["norm"])
            with pytest.raises(mt.RunError, match="norm"):
                ens.train()(torch.randn(B, 4))
        except mt.ConversionError as error:
            assert "norm" in str(error)


class TestFoldInEval:
    """Without shared norms fold is one more way to the same values."""

    def test_equals_separate_networks(self) -> None:
        ens = mt.ensemble(shared_norm(), mt.TreeNet(members=M, branch_at="1"), torch.randn(B, 4))
        assert "fold" in ens.engine.proven["eval"]
        assert_separate(ens, torch.randn(B, 4), "fold", training=False)

    def test_deep_in_training(self) -> None:
        """Members' own norms see their own rows only."""
        ens = mt.ensemble(shared_norm(), mt.Deep(members=M), torch.randn(B, 4))
        assert_separate(ens, torch.randn(B, 4), "fold", training=True, steps=3)

    def test_a_trunks_norm_sees_each_row_once_in_training(self) -> None:
        """Its statistics are those of one network, not of M times the rows."""
        net, x = shared_norm(), torch.randn(B, 4)
        ens = mt.ensemble(net, mt.MultiHead(members=M, head="3"), x).train()
        assert "fold" in ens.engine.proven["train"]
        run_fold(ens.engine, mt.Inputs(x))
        net.train()(x)
        torch.testing.assert_close(dict(ens.named_buffers()), dict(net.named_buffers()))

    def test_the_template_is_as_it_was(self) -> None:
        """The forwards that fold puts in for the time of a call are taken out, after a failure too."""
        ens = mt.ensemble(shared_norm(), mt.Deep(members=M), torch.randn(B, 4)).eval()
        run_fold(ens.engine, mt.Inputs(torch.randn(B, 4)))
        with pytest.raises(RuntimeError):
            run_fold(ens.engine, mt.Inputs(torch.randn(B, 5)))
        assert all("forward" not in vars(module) for module in ens.modules() if module is not ens)
        assert_separate(ens, torch.randn(B, 4), "loop", training=False)

    def test_a_forward_of_the_modules_own_is_put_back(self) -> None:
        """A forward set on the instance is what runs, and stays."""
        net = shared_norm()
        net[0].forward = types.MethodType(lambda self, x: 2 * F.linear(x, self.weight, self.bias), net[0])
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4), check=False).eval()
        first = ens.get_submodule("0")
        before = vars(first)["forward"]
        EXECUTORS["fold"](ens.engine, mt.Inputs(torch.randn(B, 4)))
        assert vars(first)["forward"] is before

    def test_hooks_run_once_for_a_layer(self) -> None:
        """Hooks around a member layer see all rows, once."""
        shapes: list[torch.Size] = []
        net = shared_norm()
        net[0].register_forward_hook(lambda module, args, output: shapes.append(output.shape))
        ens = mt.ensemble(net, mt.Deep(members=M), torch.randn(B, 4)).eval()
        shapes.clear()
        run_fold(ens.engine, mt.Inputs(torch.randn(B, 4)))
        assert shapes == [(M * B, 6)]


class TestRowsOfTheirOwn:
    """Where every layer takes each row's own tensors, all rows go through it at once: as they do member by member."""

    @pytest.mark.parametrize(
        "method", [mt.BatchEnsemble(members=M, feed="all"), mt.Masksembles(members=M, feed="all", position="after")], ids=str
    )
    @pytest.mark.parametrize(("training", "per_member"), [(True, True), (False, False)])
    def test_values_gradients_and_statistics(
        self, method: mt.Method, training: bool, per_member: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 4, 5)).double()
        x = torch.randn(*([M] if per_member else []), B, 3, 4, 4, dtype=torch.float64)
        ens = mt.ensemble(net, method, torch.randn(2, 3, 4, 4, dtype=torch.float64), seed=0).train(training)
        assert fold.takes_rows(ens.engine)
        start, found = copy.deepcopy(ens.state_dict()), []
        for one_by_one in (False, True):
            ens.load_state_dict(start)
            ens.zero_grad()
            if one_by_one:
                monkeypatch.setattr(fold, "takes_rows", lambda engine: False)
            output = run_fold(ens.engine, mt.Inputs(x), per_member=per_member)
            (output**2).mean().backward()
            found.append([output.detach(), *(p.grad.clone() for p in ens.parameters()), *(b.clone() for b in ens.buffers())])
        for fast, plain in zip(*found, strict=True):
            torch.testing.assert_close(fast, plain)
