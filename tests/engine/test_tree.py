"""Nested values: taken apart into tensors and put together again as what they were."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import multitudes as mt
from multitudes.engine import tree

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Frozen:
    """A dataclass that forbids assignment."""

    scores: Any
    note: str = "n"


def leaves() -> st.SearchStrategy[Any]:
    """Tensors and constants."""
    numbers = st.integers(-3, 3)
    return numbers.map(lambda n: torch.tensor([float(n), 1.0])) | st.none() | numbers | st.text(max_size=2) | st.booleans()


def nests(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Everything a model may return its values in."""
    lists = st.lists(inner, max_size=3)
    return (
        lists
        | lists.map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner).map(lambda pair: Pair(*pair))
        | inner.map(Frozen)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2).map(OrderedDict)
    )


def same(a: Any, b: Any) -> bool:
    """Equal in type, structure and values."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    inner, other = tree.parts(a), tree.parts(b)
    if inner is None or other is None:
        return inner is other and type(a) is type(b) and a == b
    return type(a) is type(b) and len(inner) == len(other) and all(
        n == k and same(x, y) for (n, x), (k, y) in zip(inner, other, strict=True)
    )  # fmt: skip


TREES = st.recursive(leaves(), nests, max_leaves=8)


@pytest.mark.slow
@given(TREES)
def test_taken_apart_and_put_together(value: Any) -> None:
    """Refilling with its own tensors gives the value back, type by type."""
    assert same(tree.refill(value, tree.tensors(value)), value)


@pytest.mark.slow
@given(TREES)
def test_apply_reaches_every_tensor_and_nothing_else(value: Any) -> None:
    """Applying a change and its inverse is no change; the tensors in between are changed."""
    shifted = tree.apply(lambda tensor: tensor + 1, value)
    assert [(t - 1).tolist() for t in tree.tensors(shifted)] == [t.tolist() for t in tree.tensors(value)]
    assert tree.plain(shifted) == tree.plain(value)
    assert same(tree.apply(lambda tensor: tensor - 1, shifted), value)


@given(TREES)
def test_stack_and_take_are_inverse(value: Any) -> None:
    """Entry m of stacked outputs is output m."""
    outputs = [tree.apply(lambda tensor, m=m: tensor + m, value) for m in range(4)]
    stacked = tree.stack(outputs)
    for m in range(4):
        assert same(tree.take(stacked, m), outputs[m])


@given(TREES)
def test_leaves_are_named_apart(value: Any) -> None:
    """As many names as leaves; tensors come in the order of `tensors`."""
    found = list(tree.leaves(value))
    assert [leaf for _, leaf in found if isinstance(leaf, Tensor)] == tree.tensors(value)


def test_names_are_dotted() -> None:
    """By key, index and field."""
    value = {"a": (torch.zeros(1), Pair(1, Frozen(torch.ones(1))))}
    assert [name for name, _ in tree.leaves(value)] == ["a.0", "a.1.left", "a.1.right.scores", "a.1.right.note"]
    assert [name for name, _ in tree.leaves(torch.zeros(1))] == [""]


def test_hugging_face_outputs() -> None:
    """An output object is a mapping of what is not None, and comes back as itself."""
    from transformers.modeling_outputs import SequenceClassifierOutput

    value = SequenceClassifierOutput(logits=torch.zeros(2, 3), hidden_states=(torch.ones(2), torch.ones(2)))
    stacked = tree.stack([value, value])
    assert type(stacked) is SequenceClassifierOutput
    assert stacked.logits.shape == (2, 2, 3)
    assert [h.shape for h in stacked.hidden_states] == [(2, 2), (2, 2)]
    assert stacked.loss is None


def test_outputs_that_cannot_be_stacked() -> None:
    """Other shapes, other constants, other structures: named, never guessed."""
    with pytest.raises(RuntimeError, match="equal size"):
        tree.stack([{"a": torch.zeros(2)}, {"a": torch.zeros(3)}])
    with pytest.raises(mt.RunError, match="different structure"):
        tree.stack([{"a": torch.zeros(2), "n": 1}, {"a": torch.zeros(2), "n": 2}])
    with pytest.raises(mt.RunError, match="different structure"):
        tree.stack([(torch.zeros(2),), (torch.zeros(2), torch.zeros(2))])


def test_objects_are_no_constants() -> None:
    """An object that may hide tensors is refused by name, with what to do about it."""
    with pytest.raises(mt.RunError, match=r"output thing is a object.*return its tensors"):
        tree.plain({"scores": torch.zeros(1), "thing": object()})


class KeysCache:
    """A cache by its name, whatever it holds."""

    def __init__(self) -> None:
        self.keys = torch.zeros(2)


class Slotted:
    """Holds a tensor, but not in a dict."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class NestedCache(dict[str, Tensor]):
    """A cache that is a mapping too."""


def test_caches_and_objects_without_tensors_are_left_out() -> None:
    """None takes their place; what holds a tensor in another way stays, to be refused."""
    scores, held = torch.zeros(2), Slotted([Slotted(torch.zeros(1))])
    output = {"scores": scores, "more": (KeysCache(), 3, Frozen(NestedCache(a=scores))), "kind": Slotted("a"), "held": held}
    assert tree.left_out(output) == {"more.0": "KeysCache", "more.2.scores": "NestedCache", "kind": "Slotted"}
    cleared = tree.without_objects(output)
    assert cleared == {"scores": scores, "more": (None, 3, Frozen(None)), "kind": None, "held": held}
    with pytest.raises(mt.RunError, match="output held is a Slotted"):
        tree.plain(cleared)
    assert tree.without_objects(held) is held  # the output itself is never left out
    assert tree.left_out(KeysCache()) == {}
