"""CallForm: tuples, lists and dicts of tensors as the arguments of a network's forward."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import multitudes as mt
from multitudes.engine.call_form import CallForm, binds, call_of, signature_of
from multitudes.errors import InputError

A, B, Y = torch.randn(6, 3).double(), torch.randn(6, 2).double(), torch.arange(6) % 2


class Two(nn.Module):
    """Takes two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, num: Tensor, cat: Tensor) -> Tensor:
        return self.layer(torch.cat([num, cat], 1))


class Optional(Two):
    """Takes a tensor, and maybe a second."""

    def forward(self, num: Tensor, cat: Tensor | None = None) -> Tensor:  # type: ignore[override]
        return self.layer(torch.cat([num, torch.zeros(len(num), 2) if cat is None else cat], 1))


class Pair(Two):
    """Takes one argument, a pair or a dict."""

    def forward(self, parts: Any) -> Tensor:  # type: ignore[override]
        return self.layer(torch.cat(list(parts.values() if isinstance(parts, dict) else parts), 1))


class Either(Two):
    """Takes a pair in both forms."""

    def forward(self, num: Any, cat: Tensor | None = None) -> Tensor:  # type: ignore[override]
        parts = num if isinstance(num, tuple) else (num, cat)
        return self.layer(torch.cat(list(parts), 1))


class Named(NamedTuple):
    """A tuple with names."""

    num: Tensor
    cat: Tensor


def arguments(call: mt.Inputs) -> tuple[list[Any], dict[str, Any]]:
    return list(call.args), call.kwargs


def form(model: nn.Module, *args: Any, **kwargs: Any) -> CallForm:
    return CallForm(signature_of(model), mt.Inputs(*args, **kwargs).described())


@pytest.mark.parametrize("kind", [Two, Optional])
@pytest.mark.parametrize("example", [(A, B), [A, B], Named(A, B)])
def test_tuples_and_lists_are_unpacked_where_forward_takes_their_entries(kind: type[nn.Module], example: Any) -> None:
    call = call_of(kind(), example)
    assert [id(arg) for arg in call.args] == [id(A), id(B)]
    assert not call.kwargs


@pytest.mark.parametrize("kind", [Two, Optional])
def test_dicts_are_unpacked_by_name(kind: type[nn.Module]) -> None:
    call = call_of(kind(), {"cat": B, "num": A})
    assert not call.args
    assert call.kwargs["num"] is A and call.kwargs["cat"] is B


@pytest.mark.parametrize("example", [(A, B), [A, B], {"a": A, "b": B}])
def test_one_argument_stays_one(example: Any) -> None:
    call = call_of(Pair(), example)
    assert len(call.args) == 1
    assert call.args[0] is example


def test_an_example_that_runs_both_ways_is_refused_without_its_numbers() -> None:
    with pytest.raises(InputError, match=r"mt\.Inputs\(x\) or mt\.Inputs\(\*x\)") as caught:
        call_of(Either(), (A, B))
    assert "tensor(" not in str(caught.value)
    assert "[6, 3] torch.float64" in str(caught.value)


def test_an_example_that_runs_neither_way_names_both_errors() -> None:
    with pytest.raises(InputError, match=r"as one argument .*as 2 arguments") as caught:
        call_of(Optional(), (A, A))
    assert "tensor(" not in str(caught.value)


def test_an_example_that_forward_cannot_take_is_refused() -> None:
    with pytest.raises(InputError, match=r"forward\(num, cat\) does not take the example .*neither"):
        call_of(Two(), (A, B, Y))


def test_the_given_model_is_untouched_by_the_trial() -> None:
    class Normed(Optional):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, num: Tensor, cat: Tensor | None = None) -> Tensor:
            return super().forward(num, self.norm(cat))

    model = Normed()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert len(call_of(model, (A, B)).args) == 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training


@pytest.mark.parametrize(
    ("example", "x"),
    [
        (mt.Inputs(A, B), (A, B)),
        (mt.Inputs(A, B), [A, B]),
        (mt.Inputs(A, B), {"cat": B, "num": A}),
        (mt.Inputs(num=A, cat=B), {"cat": B, "num": A}),
        (mt.Inputs(A, cat=B), {"cat": B, "num": A}),
        (mt.Inputs(A, B), mt.Inputs(A, B)),
    ],
)
def test_inputs_take_the_form_of_the_example(example: mt.Inputs, x: Any) -> None:
    """So that `batch_axis`, which counts tensors in the order of the example, means the same."""
    call = form(Two(), *example.args, **example.kwargs).inputs(x)
    assert [id(tensor) for tensor in call.tensors()] == [id(A), id(B)]
    assert len(call.args) == len(example.args) and list(call.kwargs) == list(example.kwargs)


def test_a_pair_stays_one_argument_where_the_example_was_one() -> None:
    assert form(Pair(), (A, B)).inputs([A, B]).args == ([A, B],)


@pytest.mark.parametrize(
    ("x", "match"),
    [((A, B, Y), "too few or too many"), ({"num": A, "colour": B}, r"no argument colour: give them as mt.Inputs\(x\['num'\]")],
)
def test_inputs_that_forward_does_not_take(x: Any, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        form(Two(), A, B).inputs(x)
    assert "tensor(" not in str(caught.value)


@pytest.mark.parametrize(
    "batch",
    [
        [A, B, Y],
        (A, B, Y),
        [[A, B], Y],
        [(A, B), Y],
        [{"num": A, "cat": B}, Y],
        [mt.Inputs(A, B), Y],
        {"num": A, "cat": B, "labels": Y},
        {"label": Y, "cat": B, "num": A},
        {"targets": Y, "num": A, "cat": B},
    ],
)
def test_batches_of_two_inputs_with_targets(batch: Any) -> None:
    call, targets = form(Two(), A, B).unpack(batch)
    assert [id(tensor) for tensor in call.tensors()] == [id(A), id(B)]
    assert targets is Y


@pytest.mark.parametrize("batch", [[A, B], ((A, B),), {"num": A, "cat": B}, mt.Inputs(A, B)])
def test_batches_of_two_inputs_without_targets(batch: Any) -> None:
    call, targets = form(Two(), A, B).unpack(batch)
    assert [id(tensor) for tensor in call.tensors()] == [id(A), id(B)]
    assert targets is None


def test_a_pair_of_one_input_is_input_and_targets() -> None:
    call, targets = form(nn.Linear(3, 2), A).unpack([A, Y])
    assert call.args == (A,) and targets is Y


def test_unclear_batches_say_the_line_to_type() -> None:
    with pytest.raises(InputError, match="unclear which are targets") as caught:
        form(Optional(), A, B).unpack([A, Y])  # Y may be the targets or the second input
    assert "unpack=lambda batch: (mt.Inputs(batch[i], batch[j]), None), with your numbers" in str(caught.value)
    assert "targets need a column of their own" in str(caught.value)
    with pytest.raises(InputError, match="labels and target"):
        form(Two(), A, B).unpack({"num": A, "cat": B, "labels": Y, "target": Y})


def test_parts_are_not_given_to_arguments_of_another_order() -> None:
    """The example names cat before num, so the places of a batch's parts do not tell which is which."""
    with pytest.raises(InputError, match=r"unpack=lambda batch: \(mt.Inputs\(cat=batch\[i\], num=batch\[j\]\), batch\[k\]\)"):
        form(Two(), cat=B, num=A).unpack([A, B, Y])
    call, targets = form(Two(), num=A, cat=B).unpack([A, B, Y])
    assert call.kwargs["num"] is A and call.kwargs["cat"] is B and targets is Y


def test_parts_of_other_kinds_are_not_given_to_arguments() -> None:
    """A dataset (x, y, weight) for a network of x and a mask: y is of whole numbers, and no mask of floats."""
    with pytest.raises(InputError, match="unclear which part of a batch"):
        form(Optional(), A, B).unpack([A, Y, B])
    with pytest.raises(InputError, match="unclear which part of a batch"):
        form(Optional(), A, B).unpack([A, B[:, 0], Y])


@pytest.mark.parametrize(
    ("first", "batch"),
    [
        (A, True), (A[0], False), ((A, Y), True), ((A[0], Y[0]), False), ({"cat": B, "num": A}, True), ({"num": A[0]}, False),
        ({"cat": B[0], "num": A[0], "labels": Y[0]}, False), (((A[0], B[0]), Y[0]), False), (((A, B), Y), True),
        (mt.Inputs(A, B), True), ((mt.Inputs(A[0], B[0]), Y[0]), False), ({"labels": Y}, False), ("text", False),
    ],
)  # fmt: skip
def test_batches_and_single_examples_are_told_apart(first: Any, batch: bool) -> None:
    assert form(Two(), A, B).is_batch(first) is batch


def test_single_examples_are_told_apart_by_name() -> None:
    """One number and a row of ids: the row, first in the dict, has as many axes as a batch of numbers."""
    one = form(Two(), A[:, 0], B)
    assert not one.is_batch({"cat": B[0], "num": A[0, 0]})
    assert one.is_batch({"cat": B, "num": A[:, 0]})


def test_a_label_that_the_network_reads_is_no_target() -> None:
    class Reads(Two):
        def forward(self, num: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
            return num

    call, targets = form(Reads(), num=A, labels=Y).unpack({"num": A, "labels": Y})
    assert call.kwargs["labels"] is Y and targets is None


def test_a_dict_with_another_key_says_the_line_to_type() -> None:
    with pytest.raises(InputError, match="no argument image") as caught:
        form(nn.Linear(3, 2), A).unpack({"image": A, "label": Y})
    assert "unpack=lambda batch: (batch['image'], batch['label'])" in str(caught.value)


def test_inputs_are_not_proposed_as_their_own_targets() -> None:
    one = form(nn.Linear(3, 2), A)
    with pytest.raises(InputError, match=r"unpack=lambda batch: \(batch\['x'\], None\); it has no targets"):
        one.unpack({"x": A})
    with pytest.raises(InputError, match=r"unpack=lambda batch: \(batch\['x'\], batch\['w'\]\)$"):
        one.unpack({"x": A, "w": Y})


def test_of_several_columns_those_like_the_inputs_are_named() -> None:
    """Which of two is the input cannot be known: the line to type leaves the numbers open."""
    text = r"takes 1 of the 3 columns \(like its inputs: 0, 2\): .*lambda batch: \(batch\[i\], batch\[j\]\), with your"
    with pytest.raises(InputError, match=text):
        form(nn.Linear(3, 2), A).unpack([A, Y, A])


def test_datasets_of_inputs_are_collated() -> None:
    pairs = [(mt.Inputs(A[i], cat=B[i]), int(Y[i])) for i in range(6)]
    batches = list(DataLoader(pairs, batch_size=4))  # type: ignore[arg-type]
    call, targets = batches[0]
    assert torch.equal(call.args[0], A[:4]) and torch.equal(call.kwargs["cat"], B[:4])
    assert torch.equal(targets, Y[:4])
    with pytest.raises(InputError, match="different arguments"):
        next(iter(DataLoader([mt.Inputs(A[0]), mt.Inputs(A[0], B[0])], batch_size=2)))  # type: ignore[arg-type]


def test_a_forward_without_a_signature_takes_anything() -> None:
    model = Two()
    model.forward = min  # type: ignore[assignment]
    assert binds(signature_of(model), mt.Inputs(A, B, other=Y))


def test_the_plan_says_how_the_example_was_taken() -> None:
    notes = mt.plan(Two(), mt.Single(), (A, B)).notes
    assert "the tuple of the example holds arguments of forward: num, cat" in notes
    assert "the example is one argument of forward, a tuple" in mt.plan(Pair(), mt.Single(), (A, B)).notes
    assert not any("example" in note for note in mt.plan(Two(), mt.Single(), mt.Inputs(A, B)).notes)
