"""Dropout with masks from outside: one for each call, over units or channels, with rows wherever they are."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from laws.compare import assert_same
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine.draws import drawing_layers
from multitudes.methods.layers import dropout
from multitudes.methods.layers.dropout import CallShape, MaskedDropout, _slot, _without


class Twice(nn.Module):
    """One dropout module in two places; with `turned`, on the transposed activation the second time."""

    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.drop, self.layer, self.turned = nn.Dropout(0.5), nn.Linear(8, 8), turned

    def forward(self, x: Tensor) -> Tensor:
        first = self.drop(x)
        second = self.drop(x.unsqueeze(1).transpose(1, 2)).squeeze(2) if self.turned else self.drop(x)
        return self.layer(first + second)


def masked(net: Twice, members: int = 4, seed: int = 0) -> mt.Ensemble:
    """Its ensemble, in double precision and eval mode."""
    return mt.ensemble(net.double(), mt.MCDropout(members=members), torch.randn(3, 8).double(), seed=seed).eval()


@pytest.mark.parametrize("turned", [False, True])
def test_every_call_has_a_mask_of_its_own(turned: bool) -> None:
    """As with torch's own dropout, two calls drop independently; the output is that of both masks."""
    ens = masked(Twice(turned), members=400)
    first, second = (ens.get_buffer(f"drop.mask{index}").reshape(400, 8) for index in (0, 1))
    assert not torch.equal(first, second)
    assert abs(torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]) < 0.1
    x = torch.randn(5, 8).double()
    layer = ens.get_submodule("layer")
    wanted = torch.stack([layer(x * a + x * b) for a, b in zip(first, second, strict=True)])
    assert_same(ens(x), wanted)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [1, 8, 16])
def test_batches_do_not_choose_masks(turned: bool, size: int) -> None:
    """Though what a call is given has the same shape as another one's at some batch size."""
    ens, x = masked(Twice(turned)), torch.randn(16, 8).double()
    whole = ens(x)
    assert_same(torch.cat([ens(part) for part in x.split(size)], 1), whole)


def _stop(*_: Any) -> None:
    raise InterruptedError


def test_members_count_their_calls() -> None:
    """A member taken out, copied and pickled; after a call that failed, too."""
    ens, x = masked(Twice()), torch.randn(3, 8).double()
    for m, member in ((m, ens.member(m)) for m in range(4)):
        member.drop.register_forward_hook(_stop)  # type: ignore[union-attr]
        with pytest.raises(InterruptedError):
            member(x)  # between its two calls
        member.drop._forward_hooks.clear()  # type: ignore[union-attr]
        for one in (member, copy.deepcopy(member), pickle.loads(pickle.dumps(member))):
            assert_same(one(x), ens(x)[m])
    handle = ens.get_submodule("drop").register_forward_hook(_stop)
    with pytest.raises(InterruptedError):
        ens(x)
    handle.remove()
    assert_same(ens(x)[0], ens.member(0)(x))


def test_channels_are_dropped_in_training_too() -> None:
    """A live dropout module that is to drop channels does so in both modes."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout(0.5), nn.Identity())
    ens = mt.ensemble(net, mt.MCDropout(filterwise=True), torch.randn(2, 3, 8, 8), seed=0).train()
    seen: list[Tensor] = []
    ens.template.get_submodule("2").register_forward_hook(lambda _, __, output: seen.append(output))
    batch = ens.batch(torch.randn(16, 3, 8, 8), torch.zeros(16))
    dropped = ens(*batch.inputs, **batch.kwargs)[0] == 0
    share = dropped.flatten(2).double().mean(-1)
    assert set(share.unique().tolist()) == {0.0, 1.0}
    assert 0.3 < float(share.mean()) < 0.7
    assert not torch.equal(share[0], share[1])


class Across(nn.LayerNorm):
    """A norm over the channels of images, as several libraries have it."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def test_where_channels_are() -> None:
    """Of a norm with a forward of its own by its size; where they cannot be told, an error says so."""
    x = torch.randn(2, 3, 8, 8)
    ens = mt.ensemble(nn.Sequential(nn.Conv2d(3, 5, 3), Across(5)), mt.MCDropout(position="norm", filterwise=True), x, seed=0)
    assert ens.get_buffer("1.mask0").shape == (10, 1, 5, 1, 1)
    same = nn.Sequential(nn.Conv2d(3, 6, 3), Across(6))  # images of 6 x 6
    with pytest.raises(mt.ConversionError, match="Across"):
        mt.ensemble(same, mt.MCDropout(position="norm", filterwise=True), x)
    steps = nn.Sequential(nn.Conv1d(3, 8, 3), nn.Dropout(0.5), nn.Conv1d(8, 8, 3))
    with pytest.raises(mt.ConversionError, match=r"nn\.Dropout1d"):
        mt.ensemble(steps, mt.MCDropout(filterwise=True), torch.randn(2, 3, 12))


def test_rows_on_another_axis_have_noise_of_their_own() -> None:
    """In training, channels are dropped row by row, for all steps alike."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8))
    method = mt.MCDropout(p=0.5, position="layers", filterwise=True)
    ens = mt.ensemble(net, method, torch.randn(5, 2, 6), batch_axis=1, seed=0).train()
    layer = dict(drawing_layers(ens.template))["1"]
    assert isinstance(layer, MaskedDropout)
    left = layer.noise(torch.ones(5, 64, 8))
    assert torch.equal(left, left[:1].expand_as(left))
    assert not torch.equal(left[:, 0], left[:, 1])


def test_everything_dropped() -> None:
    """A rate of one leaves nothing, and no NaN."""
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(1.0), nn.Linear(4, 2))
    ens, x = mt.ensemble(net, mt.MCDropout(members=2), torch.randn(3, 4), seed=0).eval(), torch.randn(3, 4)
    assert_same(ens(x), net[2](torch.zeros(3, 4)).expand(2, 3, 2), tight=False)


def test_which_calls_a_slot_is_for() -> None:
    """All axes but the rows' have to be as they were."""
    slot = CallShape((0, 4, 3), 0, 2)
    assert slot.fits(torch.zeros(6, 4, 3))
    assert slot.fits(torch.zeros(2, 4, 3))
    assert not slot.fits(torch.zeros(6, 3, 4))
    assert not slot.fits(torch.zeros(6, 4))


def windows(rounding: float, apart: bool) -> Tensor:
    """Returns 2 rows of 4 windows each and the first row again, as one axis; `apart` has the rows of a window together."""
    torch.manual_seed(0)
    rows = torch.randn(3, 4, 5)
    rows[2] = rows[0] + rounding * torch.randn(4, 5)
    return rows.transpose(0, 1).flatten(0, 1) if apart else rows.flatten(0, 1)


class TestWindowsOfARow:
    """An axis may hold several entries of each row, such as windows of an image."""

    @pytest.mark.parametrize("rounding", [0.0, 1e-5])
    def test_that_lie_together(self, rounding: float) -> None:
        """A row that is repeated differs from itself by rounding: torch sums in another order elsewhere in a batch."""
        assert _slot((8, 5), windows(rounding, apart=False), 2) == CallShape((0, 5), 0, 4)

    def test_that_lie_apart(self) -> None:
        with pytest.raises(ValueError, match="4 entries lie apart"):
            _slot((8, 5), windows(1e-5, apart=True), 2)

    def test_rows_that_are_alike_prove_nothing(self) -> None:
        x = torch.ones(12, 5) + 1e-4 * torch.randn(12, 5)
        with pytest.raises(ValueError, match="4 entries lie apart"):
            _slot((8, 5), x, 2)


def test_many_places_are_named_by_globs() -> None:
    every = [f"blocks.{at}.{name}" for at in range(12) for name in ("qkv", "proj", "fc1")]
    says = _without({name: "a row's 4 entries lie apart" for name in every if name.endswith("qkv")}, every)
    assert "nor at blocks.1.qkv, blocks.10.qkv, blocks.11.qkv and 8 more" in says
    assert says.endswith("Leave it out: mt.MCDropout(position=['*fc1', '*proj'])")


class Windows(nn.Module):
    """Halves each row, and puts the halves of a row together, or those of all rows."""

    def __init__(self, apart: bool = False) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 8), nn.Linear(4, 4), nn.Linear(4, 3)
        self.apart = apart

    def forward(self, x: Tensor) -> Tensor:
        halves = self.first(x).view(len(x), 2, 4)
        halves = halves.transpose(0, 1) if self.apart else halves
        y = self.inner(halves.reshape(-1, 4))
        y = y.view(2, len(x), 4).transpose(0, 1) if self.apart else y.view(len(x), 2, 4)
        return self.last(y.mean(1))


def test_values_show_where_rows_lie_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later, calls of the same shapes but for the rows are known by their shapes: a large network runs at no cost."""
    monkeypatch.setattr(dropout.smaller, "LARGE", 0)
    seen, run = [], dropout.on_copy
    monkeypatch.setattr(dropout, "on_copy", lambda *args: (seen.append(True), run(*args))[1])
    x = torch.randn(4, 8)
    ens = mt.ensemble(Windows(), mt.MCDropout(members=2, position="layers"), x)
    assert len(seen) == 1  # the network with neutral settings has the same places
    ens(torch.randn(7, 8))
    assert len(seen) == 1
    with pytest.raises(mt.ConversionError, match="2 entries lie apart"):
        mt.ensemble(Windows(apart=True), mt.MCDropout(members=2, position="layers"), x)


class Deciding(nn.Module):
    """A step more where values are large; they are `halted` before the first dropout, or after it."""

    def __init__(self, halted: str) -> None:
        super().__init__()
        self.halted, self.first, self.step, self.head = halted, nn.Linear(5, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        steps = 2 + int(hidden.abs().max() > 1) if self.halted == "before" else 2
        for _ in range(steps):
            hidden = self.step(hidden)
        if self.halted == "after" and hidden.abs().max() > 1:
            hidden = self.step(hidden)
        return self.head(hidden)


@pytest.mark.parametrize("halted", ["before", "after"])
def test_a_place_that_values_call_more_often_is_refused(halted: str) -> None:
    """Masks are drawn for the calls of the example. A file made them for those of fresh weights, and predicted otherwise."""
    torch.manual_seed(0)
    net, x = Deciding(halted), torch.randn(3, 5) / 10
    typed = re.escape("mt.MCDropout(position=['head'])")
    with pytest.raises(mt.errors.ConversionError, match=f"step: it is called 2 times, but 3 times with .* {typed}"):
        mt.ensemble(net, mt.MCDropout(members=3), x, seed=0)
    ens = mt.ensemble(net, mt.MCDropout(members=3, position=["head"]), x, seed=0).eval()
    assert_same(ens(100 * x), torch.stack([ens.member(m)(100 * x) for m in range(3)]))


def test_every_member_starts_with_its_first_mask() -> None:
    """The loop left the count of a member's calls to the next one: where they were more than masks, all masks were shifted."""
    torch.manual_seed(0)
    net, x = Deciding("after").double(), torch.randn(3, 5).double() / 1000
    net.step.weight.data.mul_(1e-3)  # no input of the trial is large enough
    ens = mt.ensemble(net, mt.MCDropout(members=3, p=0.5), x, seed=0).eval()
    with torch.no_grad():
        ens(x)
        ens.get_parameter("step.weight").mul_(2e3)
    assert_same(ens(100 * x), torch.stack([ens.member(m)(100 * x) for m in range(3)]))
