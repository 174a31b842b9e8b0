"""MIMO on tokens: M tables whose rows are added, and each slot's own mask, as in a network written out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_exact, assert_same, summed
from torch import Tensor, nn

import multitudes as mt

pytestmark = pytest.mark.slow

WORDS, LENGTH, SIZE, CLASSES, M = 9, 5, 6, 3, 2
IDS = torch.tensor([[3, 4, 5, 6, 2], [7, 2, 0, 0, 0], [8, 3, 7, 2, 0], [4, 4, 2, 0, 0]])
MASK = (IDS != 0).long()
KINDS = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 0, 0, 0], [0, 1, 1, 1, 0], [1, 0, 1, 0, 0]])
Y = torch.tensor([0, 2, 1, 1])


class Tokens(nn.Module):
    """Attention over words, kinds and places; pools at the last word, or over all."""

    def __init__(self, pool: str = "mean", branch: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE, padding_idx=0)
        self.kinds, self.places = nn.Embedding(2, SIZE), nn.Embedding(LENGTH, SIZE)
        self.mix, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, CLASSES)
        self.pool, self.branch = pool, branch

    def forward(self, ids: Tensor, mask: Tensor, kinds: Tensor) -> Tensor:
        h = self.words(ids) + self.kinds(kinds) + self.places(torch.arange(ids.shape[1]))
        if self.branch and bool(mask.all()):  # vmap cannot run this
            h = h * 1.0
        scores = self.mix(h) @ h.transpose(1, 2) / math.sqrt(SIZE)
        h = scores.masked_fill(mask[:, None] == 0, -1e9).softmax(-1) @ h
        if self.pool == "last":
            h = h[torch.arange(len(ids)), (ids != 0).sum(1) - 1]
        else:
            h = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(h)


def rows(table: Tensor, index: Tensor) -> Tensor:
    """Rows of a table as a product with one-hot vectors."""
    return F.one_hot(index, len(table)).to(table.dtype) @ table


def by_hand(tensors: dict[str, Tensor], ids: Tensor, mask: Tensor, kinds: Tensor, pool: str) -> Tensor:
    """The network of M tables and M heads, on ids, masks and kinds ``[M, B, T]``."""
    h = tensors["places.weight"].expand(ids.shape[1], -1, -1)
    for m in range(M):
        table = torch.cat([tensors["words.weight"][m][:1].detach(), tensors["words.weight"][m][1:]])  # padding learns nothing
        h = h + rows(table, ids[m]) + rows(tensors["kinds.weight"][m], kinds[m])
    outputs = []
    for m in range(M):
        scores = (h @ tensors["mix.weight"].T + tensors["mix.bias"]) @ h.transpose(1, 2) / math.sqrt(SIZE)
        kept = torch.where(mask[m][:, None] == 1, scores, torch.full_like(scores, -1e9)).softmax(-1) @ h
        if pool == "last":
            kept = torch.stack([row[int((own != 0).sum()) - 1] for row, own in zip(kept, ids[m], strict=True)])
        else:
            kept = torch.stack([(row * own[:, None]).sum(0) / own.sum() for row, own in zip(kept, mask[m], strict=True)])
        outputs.append(kept @ tensors["head.weight"][m].T + tensors["head.bias"][m])
    return torch.stack(outputs)


def converted(**options: Any) -> mt.Ensemble:
    torch.manual_seed(0)
    start = options.pop("start", "fresh")
    return mt.ensemble(Tokens(**options).double(), mt.MIMO(members=M), mt.Inputs(IDS, MASK, KINDS), seed=0, start=start)


def slots(same: bool) -> tuple[list[Tensor], Tensor]:
    """Ids, masks, kinds and labels of the slots: other rows in the second slot, or the same."""
    order = torch.arange(4) if same else torch.tensor([2, 0, 3, 1])
    return [torch.stack([t, t[order]]) for t in (IDS, MASK, KINDS)], torch.stack([Y, Y[order]])


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize(("pool", "branch", "turns"), [("mean", False, False), ("last", False, False), ("last", True, True)])
def test_a_step_is_that_of_tables_by_hand(pool: str, branch: bool, turns: bool, same: bool) -> None:
    """Values and every gradient, in training and eval mode, by vmap and, where it cannot run, one slot after another."""
    ens = converted(pool=pool, branch=branch).train()
    assert any("one after another" in note for note in ens.plan.notes) == turns
    inputs, targets = slots(same)
    tensors = {n: p.detach().clone().requires_grad_() for n, p in ens.named_parameters()}
    expected = by_hand(tensors, *inputs, pool)  # type: ignore[arg-type]
    wanted = torch.stack([F.cross_entropy(expected[m], targets[m]) for m in range(M)]).sum()
    wanted.backward()
    loss = ens.loss(mt.Inputs(*inputs), targets, F.cross_entropy, per_member=True)
    loss.backward()
    assert_same(loss.detach(), wanted.detach())
    assert_same({n: p.grad for n, p in ens.named_parameters()}, {n: t.grad for n, t in tensors.items()})
    assert not ens.get_parameter("words.weight").grad[:, 0].any()
    assert_same(ens.eval()(*inputs, per_member=True).detach(), expected.detach())
    if same:
        assert_same(ens(IDS, MASK, KINDS).detach(), expected.detach())


def test_only_what_reads_an_input_has_slots() -> None:
    """Words and kinds have a table for each slot, with padding at zero; places are counted and shared; the plan says so."""
    ens = converted()
    assert summed(ens) == {"words.weight", "kinds.weight"}
    assert ens.get_parameter("words.weight").shape == (M, WORDS, SIZE)
    assert not ens.get_parameter("words.weight")[:, 0].any()
    assert any("each slot has its own input 1" in note for note in ens.plan.notes)
    spread = ens.get_parameter("words.weight").detach()[:, 1:].sum(0).std().item()
    assert spread == pytest.approx(1, abs=0.25)  # as the rows of one fresh table


def test_copies_are_the_base_model() -> None:
    """Tables of W / M each add up to the given one, also in members and in the compact ensemble."""
    ens = converted(start="copies").eval()
    torch.manual_seed(0)
    expected = Tokens().double().eval()(IDS, MASK, KINDS).detach()
    assert_same(ens(IDS, MASK, KINDS).detach(), expected.expand(M, -1, -1))
    assert_same(ens.compact()(IDS, MASK, KINDS).detach(), expected.expand(M, -1, -1))
    member = ens.member(1)
    assert type(member.words) is nn.Embedding
    assert_same(member(IDS, MASK, KINDS).detach(), expected)


def test_a_batch_puts_whole_examples_into_slots() -> None:
    """Ids, mask and kinds of a row stay together, and its label with them; a step trains every table."""
    ens = converted().train()
    batch = ens.batch(mt.Inputs(IDS, MASK, KINDS), Y)
    for ids, mask, kinds, target in zip(*batch.inputs, batch.target, strict=True):
        index = [(row == IDS).all(1).nonzero().item() for row in ids]
        assert_exact([mask, kinds, target], [MASK[index], KINDS[index], Y[index]])
    ens.reduce(ens(*batch.inputs, **batch.kwargs), batch, F.cross_entropy).backward()
    assert all(bool(table.any()) for table in ens.get_parameter("words.weight").grad)


@pytest.mark.parametrize("branch", [False, True])
def test_a_file_keeps_tables_and_how_slots_run(branch: bool, tmp_path: Path) -> None:
    """Loaded with the model given, also under no_grad: the same outputs, and the same step on other examples in each slot."""
    ens = converted(branch=branch)
    mt.save(ens, tmp_path / "a.multitude")
    with torch.no_grad():
        twin = mt.load(tmp_path / "a.multitude", Tokens(branch=branch).double())
    inputs, targets = slots(same=False)
    assert_exact([twin.eval()(IDS, MASK, KINDS)], [ens.eval()(IDS, MASK, KINDS)])
    losses = [one.train().loss(mt.Inputs(*inputs), targets, F.cross_entropy, per_member=True) for one in (ens, twin)]
    for loss in losses:
        loss.backward()
    assert_exact([losses[1], twin.get_parameter("words.weight").grad], [losses[0], ens.get_parameter("words.weight").grad])


class InPlace(nn.Module):
    """Writes into what its table gives, and branches on values, so that slots run one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(WORDS, SIZE), nn.BatchNorm1d(SIZE), nn.Linear(SIZE, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        h *= 2.0
        h = self.norm(h.mean(1))
        return self.head(h.relu() if bool((ids > 0).any()) else h)


def test_slots_in_turn_are_one_network() -> None:
    """What follows may write in place; dropout-free statistics of BatchNorm count the batch once."""
    ens = mt.ensemble(InPlace().double(), mt.MIMO(members=M), IDS, seed=0).train()
    assert any("one after another" in note for note in ens.plan.notes)
    ids = torch.stack([IDS, IDS.roll(1, 0)])
    state = {n: t.detach().clone() for n, t in ens.state_dict().items()}
    pooled = sum(2 * rows(state["words.weight"][m], ids[m]) for m in range(M)).mean(1)
    hidden = ((pooled - pooled.mean(0)) / (pooled.var(0, correction=0) + 1e-5).sqrt()).relu()
    expected = torch.stack([hidden @ state["head.weight"][m].T + state["head.bias"][m] for m in range(M)])
    assert_same(ens(ids, per_member=True).detach(), expected)
    assert_same(ens.get_buffer("norm.running_mean"), 0.1 * pooled.mean(0))
    assert ens.get_buffer("norm.num_batches_tracked").item() == 1


class Masked(nn.Module):
    """BatchNorm behind a mask: its rows differ between slots."""

    def __init__(self, branch: bool = False) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(WORDS, SIZE), nn.BatchNorm1d(SIZE), nn.Linear(SIZE, CLASSES)
        self.branch = branch

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = (self.words(ids) * mask[..., None]).sum(1)
        return self.head(self.norm(h if not self.branch or bool(mask.any()) else 2 * h))


def test_batch_norm_behind_a_mask_sees_the_rows_of_all_slots() -> None:
    """One set of statistics over the rows of all slots, each under its own mask."""
    ens = mt.ensemble(Masked().double(), mt.MIMO(members=M), mt.Inputs(IDS, MASK), seed=0).train()
    ids, mask = torch.stack([IDS, IDS.roll(1, 0)]), torch.stack([MASK, MASK.roll(1, 0)])
    state = {n: t.detach().clone() for n, t in ens.state_dict().items()}
    words = sum(rows(state["words.weight"][m], ids[m]) for m in range(M))
    hidden = torch.cat([(words * mask[m][..., None]).sum(1) for m in range(M)])
    hidden = ((hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()).unflatten(0, (M, -1))
    expected = torch.stack([hidden[m] @ state["head.weight"][m].T + state["head.bias"][m] for m in range(M)])
    assert_same(ens(ids, mask, per_member=True).detach(), expected)


def test_what_could_not_train_is_refused_at_conversion() -> None:
    """Shared statistics over slots need vmap, and a branch on values forbids it."""
    with pytest.raises(mt.ConversionError, match=r"could not train .*norm.*MultiHead"):
        mt.ensemble(Masked(branch=True).double(), mt.MIMO(members=M), mt.Inputs(IDS, MASK), seed=0)


class TiedAliases(nn.Module):
    """Holds its table twice; forward calls one of them, as encoder-decoder networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.words, self.head = nn.Embedding(WORDS, SIZE), nn.Embedding(WORDS, SIZE), nn.Linear(SIZE, 3)
        self.words.weight = self.shared.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).tanh().mean(1))


def test_a_member_has_one_table_under_all_its_names() -> None:
    """Its state dict fits the given network, also under the name that forward does not call."""
    net = TiedAliases().double()
    ens = mt.ensemble(net, mt.MIMO(members=M), IDS, seed=0).eval()
    member = ens.member(0)
    assert member.shared.weight is member.words.weight
    plain = TiedAliases().double().eval()
    plain.load_state_dict(member.state_dict())
    assert_same(plain(IDS).detach(), ens(IDS)[0].detach())
