"""Inputs: what a model is called with, and where its rows are."""

from __future__ import annotations

import json

import pytest
import torch

import multitudes as mt
from multitudes.engine.inputs import add_row, axes, count_rows, join_slots, row_axis, slot, take_rows, tile_rows


def both() -> mt.Inputs:
    """A call with rows first, rows second, and no rows."""
    first, second, fixed = torch.arange(12.0).view(3, 4), torch.arange(6.0).view(2, 3), torch.ones(5)
    return mt.Inputs(first, {"a": (second, "text")}, fixed=fixed, flag=True)


AXES = [0, 1, None]


def test_one_tensor_stands_for_itself() -> None:
    """A tensor, a tuple or a dict is one argument; Inputs are taken as they are."""
    x = torch.zeros(2, 3)
    assert mt.Inputs.of(x).args == (x,)
    assert mt.Inputs.of((x, x)).args == ((x, x),)
    call = mt.Inputs(x, mask=x)
    assert mt.Inputs.of(call) is call


def test_it_prints_shapes() -> None:
    """Shapes and dtypes in place of numbers, constants as they are."""
    assert repr(mt.Inputs(torch.zeros(2, 3, dtype=torch.float32), mask=torch.ones(2, dtype=torch.bool), flag=True)) == (
        "Inputs([2, 3] torch.float32, mask=[2] torch.bool, flag=True)"
    )


def test_refill_keeps_the_structure() -> None:
    """Other tensors in the same places, constants untouched."""
    call = both().refill([torch.zeros(1), torch.ones(2), torch.full((3,), 2.0)])
    assert call.args[0].tolist() == [0.0]
    assert call.args[1]["a"][0].tolist() == [1.0, 1.0]
    assert call.args[1]["a"][1] == "text"
    assert call.kwargs["fixed"].tolist() == [2.0, 2.0, 2.0]
    assert call.kwargs["flag"] is True


def test_rows() -> None:
    """The number of rows that all batched inputs agree on."""
    assert count_rows(both(), AXES) == 3
    assert count_rows(mt.Inputs(torch.zeros(7, 2)), 0) == 7
    assert count_rows(mt.Inputs(torch.zeros(7, 2)), -1) == 2


def test_rows_that_cannot_be_told() -> None:
    """Disagreement, no batch axis at all, an axis that is not there, a list of the wrong length."""
    with pytest.raises(mt.InputError, match=r"rows \(\[2, 3, 5\]\)"):
        count_rows(both(), 0)
    with pytest.raises(mt.InputError, match="batch axis"):
        count_rows(both(), None)
    with pytest.raises(mt.InputError, match=r"batch_axis=1 .*\(5,\)"):
        count_rows(both(), 1)
    with pytest.raises(mt.InputError, match=r"batch_axis=.* 2 .* 3 tensors"):
        axes(both(), [0, 0])


def test_take_rows() -> None:
    """Some rows in the order given; inputs without rows stay whole."""
    call = take_rows(both(), AXES, torch.tensor([2, 0]))
    assert call.args[0].tolist() == [[8.0, 9.0, 10.0, 11.0], [0.0, 1.0, 2.0, 3.0]]
    assert call.args[1]["a"][0].tolist() == [[2.0, 0.0], [5.0, 3.0]]
    assert call.kwargs["fixed"].shape == (5,)


def test_tile_rows() -> None:
    """All rows again behind all rows: member-major."""
    call = tile_rows(both(), AXES, 2)
    assert call.args[0][:, 0].tolist() == [0.0, 4.0, 8.0, 0.0, 4.0, 8.0]
    assert call.args[1]["a"][0].tolist() == [[0.0, 1.0, 2.0, 0.0, 1.0, 2.0], [3.0, 4.0, 5.0, 3.0, 4.0, 5.0]]
    assert call.kwargs["fixed"].shape == (5,)


def test_slots_and_their_join() -> None:
    """Each member's own inputs, and all of them as rows, member-major along the batch axis."""
    x, y = torch.randn(4, 3, 2), torch.randn(4, 2, 3)
    call = mt.Inputs(x, y, torch.ones(5))
    own = slot(call, AXES, 2)
    assert torch.equal(own.args[0], x[2])
    assert torch.equal(own.args[1], y[2])
    assert own.args[2].shape == (5,)
    joined = join_slots(call, AXES)
    assert torch.equal(joined.args[0], x.flatten(0, 1))
    assert torch.equal(joined.args[1], torch.cat(list(y), dim=1))


def test_a_call_is_described_and_made_again() -> None:
    """Structure, constants, shapes and dtypes by JSON; values are ones."""
    call = mt.Inputs(
        torch.zeros(2, 3),
        [torch.zeros(2, dtype=torch.long), (None, 2.5)],
        mask={"a": torch.ones(2, dtype=torch.bool)},
        flag="x",
    )
    again = mt.Inputs.like(json.loads(json.dumps(call.described())), torch.device("cpu"))
    assert again.described() == call.described()
    assert again.args[0].tolist() == [[1.0] * 3] * 2
    assert again.args[1][1] == (None, 2.5)
    assert again.kwargs["mask"]["a"].dtype == torch.bool
    assert again.kwargs["flag"] == "x"


def test_what_json_cannot_hold_is_named() -> None:
    """When it is needed, not before."""
    description = mt.Inputs(torch.zeros(2), object()).described()
    with pytest.raises(mt.InputError, match="object"):
        mt.Inputs.like(description, torch.device("cpu"))


@pytest.mark.parametrize(
    ("small", "large", "axis"),
    [((3, 4), (4, 4), 0), ((5, 3), (5, 4), 1), ((6, 2), (8, 2), 0), ((7, 3), (7, 3), None), ((), (), None)],
)
def test_the_batch_axis_grows_with_the_rows(small: tuple[int, ...], large: tuple[int, ...], axis: int | None) -> None:
    """By one entry per row, or by several: here from three rows to four."""
    assert row_axis(small, large, 3) == axis


@pytest.mark.parametrize(("small", "large"), [((3, 3), (4, 4)), ((5,), (6,)), ((3,), (4, 1)), ((3,), ()), ((3,), (3, 4))])
def test_an_unclear_batch_axis_is_refused(small: tuple[int, ...], large: tuple[int, ...]) -> None:
    """Two axes that grow, entries that are no multiple of the rows, another number of axes."""
    with pytest.raises(ValueError, match="batch axis"):
        row_axis(small, large, 3)


def test_one_row_more_is_the_first_again() -> None:
    x = torch.randn(2, 3)
    assert torch.equal(add_row(mt.Inputs(x), 0).tensors()[0], torch.cat([x, x[:1]]))
    assert torch.equal(add_row(mt.Inputs(x), 1).tensors()[0], torch.cat([x, x[:, :1]], 1))
