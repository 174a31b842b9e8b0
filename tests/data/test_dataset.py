"""Data: the same numbers one by one, in batches and through a dataloader; and its refusals."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

import multitudes as mt
from multitudes.data import Data
from multitudes.data.lazy import Lazy

MEAN, STD = (0.5, 0.25, 0.125), (0.25, 0.5, 2.0)


def images(count: int = 7) -> Tensor:
    """Images of three channels as bytes."""
    return torch.randint(256, (count, 3, 4, 5), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def made(count: int = 7, **other: Any) -> Data:
    """Images of three classes."""
    return Data(images(count), torch.arange(count) % 3, **{"classes": "a b c".split(), "mean": MEAN, "std": STD, **other})


def lazily(data: Data) -> Data:
    """The same dataset, lazy."""
    stored = data.inputs
    assert isinstance(stored, Tensor)
    return replace(data, inputs=Lazy(stored.__getitem__, torch.arange(len(stored)), tuple(stored.shape)))


def test_images_are_scaled_and_normalised_channel_by_channel() -> None:
    x, y = made()[4]
    by_hand = (images()[4].double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(x, by_hand.float())
    assert (y.item(), y.dtype) == (1, torch.int64)


@pytest.mark.parametrize("change", [lambda data: data, lazily], ids=["in memory", "lazy"])
def test_a_batch_is_its_examples_one_by_one(change: Any) -> None:
    data = change(made())
    x, y = data.batch([5, 0, 5, -1])
    alone = [data[i] for i in (5, 0, 5, 6)]
    torch.testing.assert_close(x, torch.stack([one for one, _ in alone]), rtol=0, atol=0)
    assert y.tolist() == [2, 0, 2, 0]


@pytest.mark.parametrize("index", [slice(1, 4), range(1, 4), torch.tensor([1, 2, 3]), [1, 2, 3]], ids=repr)
def test_examples_can_be_named_in_several_ways(index: Any) -> None:
    data = made()
    torch.testing.assert_close(data.batch(index)[0], data.batch([1, 2, 3])[0], rtol=0, atol=0)
    assert data.subset(index).targets.tolist() == [1, 2, 0]
    torch.testing.assert_close(data.subset(index).batch(slice(None))[0], data.batch([1, 2, 3])[0], rtol=0, atol=0)


def test_a_mask_names_examples() -> None:
    data = made()
    assert data.subset(data.targets == 2).targets.tolist() == [2, 2]
    assert len(lazily(data).subset(data.targets == 0)) == 3


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_the_same_batches(workers: int) -> None:
    data = made()
    found = list(DataLoader(data, 3, num_workers=workers))
    assert [len(y) for _, y in found] == [3, 3, 1]
    torch.testing.assert_close(torch.cat([x for x, _ in found]), data.batch(slice(None))[0], rtol=0, atol=0)
    assert torch.cat([y for _, y in found]).tolist() == data.targets.tolist()


def test_predict_takes_it_with_its_targets() -> None:
    data = made()
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(60, 3))
    ens = mt.ensemble(net, mt.Deep(members=2), data.batch([0, 1])[0], seed=0)
    pred = mt.predict(ens, data, batch_size=3)
    assert pred.targets is not None
    assert pred.targets.tolist() == data.targets.tolist()
    torch.testing.assert_close(pred.probs, mt.predict(ens, data.batch(slice(None))[0]).probs)


def test_raw_images_go_from_zero_to_one_and_normalise_leads_to_the_batch() -> None:
    data = made()
    raw = data.raw([2, 3])
    torch.testing.assert_close(raw, images()[2:4].float() / 255, rtol=0, atol=0)
    torch.testing.assert_close(data.normalise(raw), data.batch([2, 3])[0], rtol=0, atol=0)


def test_vectors_are_normalised_feature_by_feature_and_the_set_stays_as_it_is() -> None:
    vectors = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    data = Data(vectors, torch.zeros(2, 1), mean=[2, 20], std=[1, 10])
    assert data.batch(slice(None))[0].tolist() == [[-1, -1], [1, 1]]
    assert vectors.tolist() == [[1, 10], [3, 30]]
    assert Data(vectors, torch.zeros(2)).batch([1])[0].tolist() == [[3, 30]]


def test_like_normalises_as_another_set() -> None:
    ood = made(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)).like(made())
    torch.testing.assert_close(ood.batch([1])[0], made().batch([1])[0], rtol=0, atol=0)
    grey = Data(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2))
    with pytest.raises(mt.InputError, match=r"mean= .*channel"):
        grey.like(made())


def test_split_gives_parts_that_are_all_and_do_not_overlap() -> None:
    data = Data(torch.arange(20.0).unsqueeze(1), torch.arange(20))
    first, second = data.split([15, 5], seed=3)
    assert sorted(first.targets.tolist() + second.targets.tolist()) == list(range(20))
    assert first.targets.tolist() != list(range(15))
    assert data.split([15, 5], seed=3)[1].targets.tolist() == second.targets.tolist()
    assert data.split([15, 5], seed=4)[1].targets.tolist() != second.targets.tolist()
    for counts in ([15, 4], [20, 0], [15, 6]):
        with pytest.raises(mt.InputError, match=r"20 examples.*counts="):
            data.split(counts)


def test_a_set_on_a_device_gives_batches_there() -> None:
    data = made()
    assert data.to("cpu").batch([1])[0].device.type == "cpu"
    assert [part.device.type for part in data.batch([1, 2], "meta")] == ["meta", "meta"]
    with pytest.raises(mt.InputError, match=r"in_memory\(\)\.to\('cpu'\)"):
        lazily(data).to("cpu")
    torch.testing.assert_close(lazily(data).in_memory().inputs, images(), rtol=0, atol=0)


def test_standardised_targets_lead_back() -> None:
    data = Data(torch.zeros(2, 1), torch.tensor([[-1.0], [1.0]]), target_mean=[5.0], target_std=[2.0])
    assert data.original(data.targets).tolist() == [[3], [7]]
    assert made().original(torch.tensor([4.0])).tolist() == [4]


def test_it_says_what_it_is_and_can_be_sent_to_a_process() -> None:
    assert repr(made(name="toy")) == "Data(toy: 7 × [3, 4, 5] uint8, 3 classes)"
    assert repr(lazily(made(name="toy"))) == "Data(toy: 7 × [3, 4, 5] lazy, 3 classes)"
    again = pickle.loads(pickle.dumps(made()))
    torch.testing.assert_close(again.batch([3])[0], made().batch([3])[0], rtol=0, atol=0)


def test_pixels_without_a_label_are_no_class() -> None:
    labels = torch.tensor([[[0, 255], [1, 1]]])
    assert Data(images(1), labels, classes=["a", "b"], ignore=255).targets.tolist() == labels.tolist()
    with pytest.raises(mt.InputError, match=r"target 255 of example 0.*0 to 1"):
        Data(images(1), labels, classes=["a", "b"])


def bordered(**other: Any) -> Data:
    """Images with a class for each pixel, 255 for none."""
    labels = torch.arange(6)[:, None, None].expand(6, 4, 5).remainder(2).clone()
    labels[:, 0] = 255
    return Data(images(6), labels, **{"classes": ["a", "b"], "mean": MEAN, "std": STD, "ignore": 255, **other})


@pytest.mark.parametrize("change", [lambda data: data, lazily], ids=["in memory", "lazy"])
def test_the_ignored_label_is_kept(change: Any) -> None:
    """By every part, copy and sum of a set."""
    data = change(bordered())
    plain = Data(images(1), torch.zeros(1), mean=(0, 0, 0), std=(1, 1, 1))
    kept = {
        "subset": data.subset([1, 2]), "slice": data.subset(slice(3)), "like": data.like(plain), "in_memory": data.in_memory(),
        "to": data.in_memory().to("cpu"), "sum": data + data, "pickle": pickle.loads(pickle.dumps(bordered())),
        **dict(enumerate(data.split([2, 4]))),
    }  # fmt: skip
    for name, found in kept.items():
        assert found.ignore == 255, name
        assert bool((found.targets[:, 0] == 255).all()), name
        assert found.classes == ("a", "b"), name


@pytest.mark.parametrize("change", [lambda data: data, lazily], ids=["in memory", "lazy"])
def test_a_sum_is_the_one_and_then_the_other(change: Any) -> None:
    first, second = change(made(4, name="first")), change(made(7, name="second").subset([6, 5, 4]))
    both = first + second
    assert isinstance(both, Data)
    assert isinstance(both.inputs, type(first.inputs))
    assert (len(both), both.name, (first + first).name) == (7, "first + second", "first")
    order = [5, 0, 4, 3, 6]
    for part in (0, 1):
        expected = torch.cat([first.batch(slice(None))[part], second.batch(slice(None))[part]])
        torch.testing.assert_close(both.batch(order)[part], expected[order], rtol=0, atol=0)
        torch.testing.assert_close(both.subset([4, 5]).batch([1])[part], expected[[5]], rtol=0, atol=0)


def test_a_sum_with_another_dataset_is_torchs() -> None:
    found = made() + TensorDataset(torch.zeros(2, 3, 4, 5), torch.zeros(2))  # type: ignore[arg-type]
    assert isinstance(found, ConcatDataset)
    assert len(found) == 9


WRONG = {
    "sum of other ignored": (lambda: bordered() + bordered(ignore=None, classes=None), r"ignore \(255 and None\)"),
    "sum of other classes": (lambda: made() + made(classes="a b d".split()), "classes .*'c'.* and .*'d'"),
    "sum of other scales": (lambda: made() + made(mean=(0, 0, 0)), r"mean .* second\.like\(first\)"),
    "sum of other shapes": (
        lambda: made(mean=None, std=None) + Data(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), classes="a b c".split()),
        r"shape of inputs \(\[3, 4, 5\] and \[3\]\)",
    ),
    "sum of bytes and floats": (lambda: made() + replace(made(), inputs=images().float()), "torch.uint8 and torch.float32"),
    "sum of read and unread": (lambda: made() + lazily(made()), r"in_memory\(\)"),
    "empty": (lambda: made(0), "is empty"),
    "no tensor": (lambda: Data([1, 2], torch.zeros(2)), r"torch\.as_tensor\(x\)"),  # type: ignore[arg-type]
    "too few targets": (lambda: Data(images(3), torch.zeros(2)), "3 inputs.* targets"),
    "label too large": (lambda: Data(images(3), torch.tensor([0, 1, 3]), classes="a b c".split()), "target 3 of example 2"),
    "label below 0": (lambda: Data(images(3), torch.tensor([0, -1, 2]), classes="a b c".split()), "target -1 of example 1"),
    "labels as floats": (lambda: Data(images(3), torch.zeros(3), classes="a b c".split()), "float32"),
    "mean of one channel": (lambda: made(mean=(0.5,)), "mean= has shape"),
    "no std": (lambda: made(std=None), "mean= and std="),
    "std 0": (lambda: made(std=(1.0, 0.0, 1.0)), r"std=.*above 0"),
    "NaN": (lambda: Data(torch.tensor([[1.0], [torch.nan]]), torch.zeros(2)), "example 1 .*NaN"),
    "target NaN": (lambda: Data(torch.zeros(2, 1), torch.tensor([0.0, torch.inf])), "a target is NaN or infinite"),
    "subset beyond": (lambda: made().subset([0, 7]), "7 examples.* 7 "),
    "subset below": (lambda: made().subset([0, -8]), "7 examples.* -8 "),
    "empty subset": (lambda: made().subset([]), "selects no examples"),
    "empty slice": (lambda: made().subset(slice(7, 9)), "selects no examples"),
    "a number": (lambda: made().batch(3), "index= .*list"),
    "floats": (lambda: made().batch([0.5]), "index= .*list"),
    "backwards": (lambda: made().subset(slice(5, 1, -1)), "negative step"),
}


@pytest.mark.parametrize("case", WRONG)
def test_unfit_datasets_are_refused(case: str) -> None:
    call, noun = WRONG[case]
    with pytest.raises(mt.InputError, match=noun):
        call()


def test_an_index_beyond_the_end_stops_a_loop() -> None:
    assert len(list(made())) == 7
    with pytest.raises(IndexError, match=r"7 examples.* 7 "):
        made()[7]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda x, y: Data(x, y, clases=["a"]), r"Data\(clases=\['a'\]\): there is no such argument: type classes="),
        (lambda x, y: Data(X=x, y=y), "type inputs="),
        (lambda x, y: Data(x, labels=y), "type targets="),
        (lambda x, y: Data(x), r"Data needs targets: call Data\(inputs, targets\)"),
        (lambda x, y: Data(x, y + 1, classes=["a", "b"]), "target 2 .* If labels count from 1: targets - 1$"),
    ],
)
def test_mistakes_are_answered_with_what_to_type(wrong: Callable[..., Data], text: str) -> None:
    with pytest.raises(mt.InputError, match=text):
        wrong(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
