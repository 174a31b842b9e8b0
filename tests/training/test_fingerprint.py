"""Fingerprints: what is the same as before, and what is not."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from multitudes.data import Data
from multitudes.storage import digest
from multitudes.training import fingerprint
from multitudes.training.fingerprint import criterion_fingerprint, dataset_fingerprint, tensor_fingerprint

X, Y = torch.arange(23.0)[:, None].repeat(1, 3), torch.arange(23)
SET = TensorDataset(X, Y)


def changed(tensor: Tensor) -> Tensor:
    """Another one in the midst."""
    other = tensor.clone()
    other[11] = 0
    return other


def test_digests() -> None:
    """Of all that a file holds."""
    others = [X.T.contiguous(), X.double(), changed(X), X[:0]]
    some = [digest({"a": X}), digest({"b": X}), digest({"a": X}, "text"), *(digest({"a": one}) for one in others)]
    assert len(set(some)) == len(some)
    assert digest({"a": X.clone()}) == some[0]


def test_sets_in_memory() -> None:
    """Their length, inputs, targets, scale, and which of the examples they are."""
    sets = [
        SET, TensorDataset(X, changed(Y)), TensorDataset(changed(X), Y), Data(X, Y), Data(changed(X), Y), Data(X, changed(Y)),
        Data(X, Y, mean=[0.0] * 3, std=[2.0] * 3), Subset(SET, range(5)), Subset(SET, range(5, 10)), ConcatDataset([SET, SET]),
    ]  # fmt: skip
    found = [dataset_fingerprint(one) for one in sets]
    assert len(set(found)) == len(sets)
    assert found[0].startswith("23 examples, ")
    assert found[-1].startswith("46 examples, ")
    assert dataset_fingerprint(TensorDataset(X.clone(), Y.clone())) == dataset_fingerprint(DataLoader(SET, 4)) == found[0]


class Stream(torch.utils.data.IterableDataset[Any]):
    """No length."""

    def __iter__(self) -> Any:
        return iter(())


def test_sets_that_are_read() -> None:
    """Are known by their length, or their kind."""
    assert dataset_fingerprint(list(SET)) == "23 examples"
    assert dataset_fingerprint(Stream()) == "Stream"
    assert dataset_fingerprint(Subset({"a": 1}, ["a"])) == "1 examples"  # type: ignore[arg-type]


ODD = {
    "sparse": X.to_sparse(), "conjugate": torch.complex(X, X).conj(), "meta": X.to("meta"), "bfloat16": X.bfloat16(),
    "none": X.new_zeros(23, 0), "bool": X > 0, "gradient": X.clone().requires_grad_(), "stride": torch.arange(23 * 23)[::23],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_fingerprint_fails_no_run(name: str) -> None:
    """What cannot be read is known by its length."""
    assert dataset_fingerprint(TensorDataset(ODD[name], Y)).startswith("23 examples")
    assert (tensor_fingerprint([ODD[name]]) == "") == (name in ("sparse", "meta"))


def test_one_example_of_many() -> None:
    assert dataset_fingerprint(TensorDataset(X[:1], Y[::23])) == dataset_fingerprint(TensorDataset(X[:1].clone(), Y[:1]))


def test_some_numbers_of_very_large_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not rows, of which there may be few."""
    monkeypatch.setattr(fingerprint, "LARGE", 1000)
    large = torch.zeros(1, 2000, dtype=torch.bool)
    before = tensor_fingerprint([large])
    large[0, -1] = True
    assert tensor_fingerprint([large]) == before
    large[0, -2] = True
    assert tensor_fingerprint([large]) != before


def test_criteria() -> None:
    """Their names, settings, weights, and what they are made with; not where they lie."""
    some: list[Any] = [F.cross_entropy, F.mse_loss, partial(F.cross_entropy), partial(F.mse_loss), nn.CrossEntropyLoss()]
    some += [nn.CrossEntropyLoss(label_smoothing=0.1), partial(F.cross_entropy, label_smoothing=0.1)]
    some += [nn.CrossEntropyLoss(weight=torch.tensor([1.0, weight])) for weight in (1, 2)]
    some += [partial(F.cross_entropy, weight=torch.tensor([1.0, weight])) for weight in (1, 2)]
    found = [json.dumps(criterion_fingerprint(one)) for one in some]
    assert len(set(found)) == len(some)
    assert json.dumps(criterion_fingerprint(nn.CrossEntropyLoss())) in found
    assert "0x" not in json.dumps(criterion_fingerprint(partial(F.cross_entropy, inner=[len, lambda x: x])))


def test_fingerprints_are_those_of_earlier_versions() -> None:
    """A run that an earlier version began can be resumed."""
    assert tensor_fingerprint([torch.arange(4.0), torch.tensor([True, False])]) == "6e99e2c19218852a"
    assert dataset_fingerprint(TensorDataset(torch.arange(6.0).view(3, 2), torch.arange(3))) == "3 examples, 8cd48fecccc77cbc"
    assert criterion_fingerprint(nn.CrossEntropyLoss(weight=torch.ones(3)))["state"] == "8a31a40ecac0ceb4"
