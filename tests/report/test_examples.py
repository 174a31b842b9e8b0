"""Examples: which images are shown, their pixels, and the votes of the members."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable

import pytest
import torch

from multitudes.errors import InputError
from multitudes.prediction.prediction import Prediction
from multitudes.report.examples import Images, examples, png, select_examples, votes
from multitudes.report.groups import grouped
from multitudes.report.row import Row

Make = Callable[..., Row]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["bytes", "floats"])
def test_a_png_is_read_back_as_the_image(channels: int, kind: str) -> None:
    import numpy as np
    from PIL import Image

    image = torch.randint(256, (channels, 7, 5), dtype=torch.uint8)
    found = png(image if kind == "bytes" else image / 255)
    with Image.open(io.BytesIO(base64.b64decode(found.partition(",")[2]))) as opened:
        read = torch.from_numpy(np.array(opened)).reshape(7, 5, channels).movedim(-1, 0)
    assert torch.equal(read, image)


def test_large_images_are_made_smaller() -> None:
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(png(torch.rand(3, 400, 800)).partition(",")[2]))) as opened:
        assert opened.size == (160, 80)


def test_examples_are_the_most_uncertain_the_most_certain_and_the_certain_errors() -> None:
    sure = torch.tensor([0.5, 0.99, 0.7, 0.9, 0.6])
    pred = Prediction(probs=torch.stack([sure, 1 - sure], 1)[None], targets=torch.tensor([0, 0, 1, 1, 0]))
    selections = select_examples(pred)
    assert [selection.title for selection in selections] == ["Most uncertain", "Most certain", "Certain but wrong"]
    assert [selection.rows for selection in selections] == [[0, 4, 2, 3, 1], [1, 3, 2, 4, 0], [3, 2]]
    pred.targets = None
    assert len(select_examples(pred)) == 2


def test_votes_are_counted() -> None:
    labels = torch.tensor([[0], [2], [2], [1], [2]])
    pred = Prediction(logits=torch.nn.functional.one_hot(labels, 3).float())
    assert votes(pred, 0) == [(2, 0.6, "3"), (0, 0.2, "1"), (1, 0.2, "1")]


def test_one_network_has_probabilities_for_votes() -> None:
    pred = Prediction(probs=torch.tensor([[[0.1, 0.7, 0.2]]]))
    assert [(index, shown) for index, _, shown in votes(pred, 0)] == [(1, "70%"), (2, "20%"), (0, "10%")]
    binary = Prediction(probs=torch.tensor([[0.25]]), task="binary")
    assert [(index, shown) for index, _, shown in votes(binary, 0)] == [(0, "75%"), (1, "25%")]


@pytest.mark.parametrize("task", ["classes", "binary", "gaussian", "regression", "multilabel", "dense"])
def test_the_examples_of_every_task(made: Make, task: str) -> None:
    images = torch.rand(30, 3, 5, 4)
    text = examples(grouped([made(task=task)]), Images(images), ["a", "b", "<c>"] if task != "gaussian" else None)
    assert "<c>" not in text
    assert ("<img" in text) == (task not in ("multilabel", "dense"))
    assert ('class="votes"' in text) == (task in ("classes", "binary"))
    assert ("<svg" in text) == (task == "dense")


def test_the_best_ensemble_is_shown(made: Make) -> None:
    groups = grouped([made("single", members=1), made("packed")])
    text = examples(groups, Images(torch.rand(30, 1, 4, 4)), None)
    assert "<strong>packed</strong> (3 members)" in text
    assert re.search(r"class \d", text)


def test_without_images_there_are_no_examples(made: Make) -> None:
    assert examples(grouped([made()]), Images(), None) == ""


@pytest.mark.parametrize(
    ("images", "classes", "noun"),
    [
        (torch.rand(29, 1, 4, 4), None, "29 images.* 30 examples"),
        (torch.rand(30, 4, 4), None, r"\[N, C, H, W\]"),
        (torch.randn(30, 1, 4, 4), None, "from 0 to 1"),
        (torch.zeros(30, 1, 4, 4, dtype=torch.long), None, "from 0 to 1"),
        (torch.rand(30, 1, 4, 4), ["a"], "1 names for 3 classes"),
    ],
)
def test_wrong_images_and_classes_are_refused(made: Make, images: torch.Tensor, classes: list[str] | None, noun: str) -> None:
    with pytest.raises(InputError, match=noun):
        examples(grouped([made()]), Images(images), classes)


def test_images_out_of_distribution_are_shown_without_their_own_labels(made: Make) -> None:
    """Their labels count classes of another set, so nothing is right or wrong. The surest is the one of least entropy."""
    logits = torch.zeros(2, 9, 3)
    logits[:, 4, 1] = 9.0
    far = Prediction(logits=logits, targets=torch.ones(9, dtype=torch.long))
    images = torch.zeros(9, 1, 4, 4, dtype=torch.uint8)
    images[4] = 255
    row = made(ood={"svhn": far})
    text = examples(grouped([row]), Images(torch.rand(30, 1, 4, 4), {"svhn": images}), ["a", "b", "c"])
    _, surest = text.split("Out of distribution: svhn, most certain")
    surest, doubted = surest.split("Out of distribution: svhn, most uncertain")
    assert png(images[4]) in re.findall(r'<img src="([^"]*)"', surest)[0]
    assert png(images[4]) not in doubted
    assert surest.count("<img") == doubted.count("<img") == 6
    assert ">svhn<" in surest
    assert "b at 100%" in surest
    assert not re.search('predicted (right|wrong)|class="right"', surest + doubted)
    with pytest.raises(InputError, match=r"ood_images\['svhn'\] has 8 images.* 9 such"):
        examples(grouped([row]), Images(torch.rand(30, 1, 4, 4), {"svhn": images[1:]}), None)
    with pytest.raises(InputError, match=r"ood_images\['far'\] has 9 images.* none such"):
        examples(grouped([row]), Images(torch.rand(30, 1, 4, 4), {"far": images}), None)
