"""A smaller example: the same operations on fewer rows, pixels and tokens; where that is not so, the example stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.proof import smaller as module
from multitudes.engine.proof.executors import NOT_APART
from multitudes.engine.proof.smaller import rows_are_apart, smaller


@pytest.fixture(autouse=True)
def every_network_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 0)


def cnn(*norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), *norm, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2)
    )


class Tokens(nn.Module):
    def __init__(self, positions: int = 512) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 8), nn.Linear(8, 3)
        self.places = nn.Parameter(torch.randn(positions, 8))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = self.words(ids) + self.places[: ids.shape[1]]
        return self.head((h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True))


class Fixed(nn.Module):
    """Made for one size, like a network with a table of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 4, 8, 8), nn.Parameter(torch.randn(64, 4))

    def forward(self, x: Tensor) -> Tensor:
        return (self.patches(x).flatten(2).transpose(1, 2) + self.places).mean(1)


def shapes(example: Any) -> list[list[int]]:
    return [list(tensor.shape) for tensor in example.inputs.tensors()]


def test_pixels_and_rows() -> None:
    example = smaller(cnn(), mt.Inputs(torch.randn(2, 3, 128, 128)), 0)
    assert shapes(example) == [[1, 3, 16, 16]]
    assert example.large


@pytest.mark.parametrize(
    ("norms", "rows"),
    [
        ([nn.BatchNorm2d(4)], 1),  # 49 values of each channel
        ([nn.BatchNorm2d(4), nn.AvgPool2d(2), nn.BatchNorm2d(4)], 2),  # 9 in the second one
        ([nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(4), nn.Upsample(scale_factor=2)], 2),  # one: it does not train
    ],
)
def test_batch_norm_over_few_values_needs_two_rows(norms: list[nn.Module], rows: int) -> None:
    assert shapes(smaller(cnn(*norms), mt.Inputs(torch.randn(2, 3, 128, 128)), 0)) == [[rows, 3, 16, 16]]


@pytest.mark.parametrize(("depth", "large"), [(10, False), (module.LONG, True)])
def test_a_long_network_is_large(depth: int, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its runs take long, however little it computes."""
    monkeypatch.setattr(module, "LARGE", 1e6)
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(depth)))
    few, many = (smaller(net, mt.Inputs(torch.randn(rows, 8)), 0) for rows in (2, 20))
    assert few.large == many.large == large
    assert shapes(few) == shapes(many) == [[1, 8] if large else [2, 8]]


class MixesInTraining(nn.Module):
    """Adds features of other rows, as manifold mixup does, where there are any."""

    def __init__(self, norm: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 4, 3, stride=2), norm, last
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.last(self.norm(self.first(x)).relu().mean((2, 3)))
        if self.training and len(h) > 1:
            h = h + h.roll(1, 0)
        return self.head(h.relu())


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4)], ids=lambda norm: type(norm).__name__)
def test_what_several_rows_do_in_training_alone_needs_two_rows(norm: nn.Module) -> None:
    example = smaller(MixesInTraining(norm, nn.Identity()), mt.Inputs(torch.randn(2, 3, 128, 128)), 0)
    assert shapes(example) == [[2, 3, 16, 16]]


def test_a_network_that_mixes_rows_in_training_trains_member_by_member() -> None:
    """It was proved on one row, and its rows then ran in one pass."""
    net, x = MixesInTraining(nn.GroupNorm(2, 4), nn.Linear(4, 4)), torch.randn(8, 3, 64, 64)
    ens = mt.ensemble(net, mt.Masksembles(members=4, fewest=2), x, seed=0).train()
    kwargs = ens.batch(x, torch.zeros(8)).kwargs
    outputs = ens(x, **kwargs)
    for place, m in enumerate(kwargs["rows"].flatten().tolist()):
        own = slice(2 * place, 2 * place + 2)
        torch.testing.assert_close(outputs[own], ens.member(m).train()(x[own]))


def test_tensors_of_one_sequence_shrink_together() -> None:
    ids, mask = torch.randint(50, (2, 100)), torch.ones(2, 100)
    assert shapes(smaller(Tokens(), mt.Inputs(ids, mask), 0)) == [[1, 16], [1, 16]]


def test_a_mask_keeps_some_of_its_ones() -> None:
    """Padded in front, the first tokens would be masked away."""
    ids, mask = torch.randint(1, 50, (2, 100)), torch.zeros(2, 100, dtype=torch.long)
    mask[:, 60:] = 1
    small = smaller(Tokens(), mt.Inputs(ids, mask), 0).inputs.tensors()
    assert small[1].shape[1] == 16
    assert bool(small[1].all())


def test_a_network_for_one_size_keeps_it() -> None:
    assert shapes(smaller(Fixed(), mt.Inputs(torch.randn(2, 3, 64, 64)), 0)) == [[1, 3, 64, 64]]


def test_another_batch_axis() -> None:
    net = nn.Linear(3, 2)
    assert shapes(smaller(net, mt.Inputs(torch.randn(64, 2, 3)), 1)) == [[16, 1, 3]]


def test_what_does_not_run_is_left_to_be_said_later() -> None:
    example = smaller(nn.Linear(3, 2), mt.Inputs(torch.randn(2, 5)), 0)
    assert shapes(example) == [[2, 5]]
    assert not example.large


def test_a_small_network_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 1e9)
    example = smaller(cnn(), mt.Inputs(torch.randn(2, 3, 128, 128)), 0)
    assert shapes(example) == [[2, 3, 128, 128]]
    assert not example.large


def test_two_rows_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE", 1e9)
    x = torch.randn(64, 3, 8, 8)
    assert torch.equal(smaller(cnn(), mt.Inputs(x), 0).inputs.tensors()[0], x[:2])
    assert smaller(cnn(), mt.Inputs(x[:3]), 0).inputs.tensors()[0].shape == (3, 3, 8, 8)


def test_rows_that_decide_what_runs_all_stay() -> None:
    """A mixture of experts: two rows choose two of them, the others would not be seen."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            choice, y = x.argmax(1), torch.zeros(len(x), 3)
            for e, expert in enumerate(self.experts):
                rows = torch.where(choice == e)[0]
                if len(rows):
                    y = y.index_add(0, rows, expert(x[rows]))
            return y

    x = torch.eye(4).repeat(3, 1)
    assert shapes(smaller(Experts(), mt.Inputs(x), 0)) == [[12, 4]]


def test_tensors_without_rows_keep_all_rows() -> None:
    """Edges of a graph name its nodes."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            return self.layer(x.index_add(0, edges[1], x[edges[0]]))

    edges = torch.stack([torch.arange(12), torch.arange(12).roll(1)])
    assert shapes(smaller(Graph(), mt.Inputs(torch.randn(12, 3), edges), [0, None]))[0] == [12, 3]


class Experts(nn.Module):
    """Each expert takes four rows of a batch; other rows pass it by."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.router, self.last = nn.Conv2d(1, width, 3, padding=1), nn.Linear(width, 2), nn.Linear(width, 3)
        self.experts = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu().mean((2, 3))
        chosen = nn.functional.one_hot(self.router(h).argmax(1), 2)
        taken = (chosen * (chosen.cumsum(0) <= 4)).to(h.dtype)
        y: Tensor = self.last(h + sum(taken[:, i : i + 1] * expert(h) for i, expert in enumerate(self.experts)))
        return y


class TestRowsThatSeeEachOther:
    """Many rows show it. Few rows do not, nor do two members that choose different experts."""

    @pytest.mark.parametrize("large", [0, 1e8])
    @pytest.mark.parametrize("rows", [9, 40])
    def test_they_are_found(self, rows: int, large: float, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "LARGE", large)
        x = torch.randn(rows, 1, 32, 32)
        assert not smaller(Experts(), mt.Inputs(x), 0).apart
        assert smaller(Experts(), mt.Inputs(x[:2]), 0).apart
        assert smaller(cnn(nn.BatchNorm2d(4)), mt.Inputs(x.expand(-1, 3, -1, -1)), 0).apart

    @pytest.mark.parametrize("method", [mt.Masksembles(members=3, fewest=2), mt.BatchEnsemble(members=3, feed="part")])
    def test_members_run_on_their_own_rows(self, method: mt.Method, tmp_path: Path) -> None:
        x = torch.randn(9, 1, 32, 32)
        ens = mt.ensemble(Experts(), method, x, seed=0)
        mt.save(ens, tmp_path / "a.multitude")
        loaded = mt.load(tmp_path / "a.multitude", Experts())
        rows = torch.arange(15) % 3
        for each in (ens, ens.eval().freeze(x), ens.tune(x), loaded):
            each.prove_later(["fold"])
            assert all("fold" not in names for names in each.engine.proven.values())
            assert each.engine.why["fold"] == NOT_APART
        for each in (ens.train(), loaded.train()):
            x = torch.randn(15, 1, 8, 8)
            found = each(x, rows=rows)
            for m in range(3):
                torch.testing.assert_close(found[rows == m], each.member(m).train()(x[rows == m]))

    def test_what_cannot_be_told(self) -> None:
        """Random outputs, and halves that do not run."""

        class Noisy(Experts):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + torch.rand(())

        class Whole(Experts):
            def forward(self, x: Tensor) -> Tensor:
                assert len(x) == 9
                return super().forward(x)

        for kind in (Noisy, Whole):
            assert rows_are_apart(kind(), mt.Inputs(torch.randn(9, 1, 8, 8)), 0)
