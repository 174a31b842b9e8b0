"""ImageNet's classes by name and number, and classes that are groups of them."""

from __future__ import annotations

import torch

from multitudes import data
from multitudes.data.imagenet import class_groups, imagenet_class, wordnet_ids


def test_ids_are_a_thousand_in_order() -> None:
    ids = wordnet_ids()
    assert (len(set(ids)), list(ids)) == (1000, sorted(ids))
    assert (ids[0], ids[207], ids[999]) == ("n01440764", "n02099601", "n15075141")  # tench, golden retriever, toilet tissue


def test_a_folders_name_is_an_id_or_a_number() -> None:
    assert [imagenet_class(n) for n in ("n01440764", "n15075141", "0", "10", "999")] == [0, 999, 0, 10, 999]
    assert [imagenet_class(n) for n in ("1000", "-1", "n00000000", "tench", "²", "")] == [None] * 6


def test_outputs_are_grouped() -> None:
    values = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]]).expand(3, 2, 4)
    groups = torch.tensor([1, -1, 0, 1])
    torch.testing.assert_close(data.grouped(values, groups)[1], torch.tensor([[0.3, 0.5], [0.2, 0.5]]))
    torch.testing.assert_close(data.grouped(values, groups, by="max")[2], torch.tensor([[0.3, 0.4], [0.2, 0.4]]))
    torch.testing.assert_close(data.grouped(-values, groups, by="max")[0], torch.tensor([[-0.3, -0.1], [-0.2, -0.1]]))


def test_groups_number_the_classes_in_order() -> None:
    groups = class_groups({"a": [3, 999], "b": [], "c": [0]})
    assert (groups[3], groups[999], groups[0], groups[1], len(groups)) == (0, 0, 2, -1, 1000)
