"""Examples: the most and least certain images of an ensemble, in and out of distribution, with the votes of its members."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from multitudes import figures
from multitudes.errors import InputError
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.values import CLASSES
from multitudes.report import svg
from multitudes.report.groups import Group
from multitudes.report.wording import counted, number, safe, shortened

SHOWN = 6
"""Images per selection."""

LARGEST = 160
"""Largest side of an image in pixels; larger images are scaled down."""


MAGIC = b"\x89PNG\r\n\x1a\n"


class Images(NamedTuple):
    """The images of the predictions, ``[N, C, H, W]`` each."""

    test: Tensor | None = None
    ood: Mapping[str, Tensor] = {}
    """Those of out-of-distribution sets, by name."""


class Selection(NamedTuple):
    """Some examples (`rows`), with a title and the reason for the choice (`about`)."""

    title: str
    about: str
    rows: list[int]


def examples(ranked: Sequence[Group], given: Images, classes: Sequence[str] | None) -> str:
    """Returns the HTML of examples: images with the predictions of the best ensemble that has any. Empty without images."""
    images = given.test
    if images is None:
        return ""
    for name, own in {"images=": images, **{f"ood_images[{name!r}]": own for name, own in given.ood.items()}}.items():
        _check_images(name, own)
    fitting = [g for g in ranked if g.first.prediction is not None and len(g.first.prediction) == len(images) > 0]
    if not fitting:
        sizes = sorted({len(g.first.prediction) for g in ranked if g.first.prediction is not None})
        lengths = " or ".join(map(str, sizes)) or "no"
        raise InputError(
            f"images= has {len(images)} images, but the rows have predictions for {lengths} examples: "
            "pass the test set's images"
        )
    several = [group for group in fitting if group.first.prediction.count > 1]  # type: ignore[union-attr]
    group = (several or fitting)[0]
    prediction = group.first.prediction
    assert prediction is not None
    if classes is not None and prediction.task in CLASSES and len(classes) < prediction.classes:
        raise InputError(f"classes= has {len(classes)} names for {prediction.classes} classes: give one name per class")
    dense = len(prediction.shape) > 1
    body = _dense(prediction, images, classes) if dense else _cards(select_examples(prediction), prediction, images, classes)
    for name, own in {} if dense else given.ood.items():
        far = group.first.ood.get(name)
        if far is None or len(far) != len(own):
            has = "none" if far is None else len(far)
            raise InputError(
                f"ood_images[{name!r}] has {len(own)} images, but the rows have {has} such predictions: pass its own"
            )
        if far.task in CLASSES:
            body += _cards(select_ood(name, far), far, own, classes, name)
    seed = f", seed {group.first.seed}" if len(group.rows) > 1 else ""
    members = counted(prediction.count, "member")
    return f"<p>Predictions of <strong>{safe(group.label)}</strong> ({members}{seed}).</p>{body}" if body else ""


def _cards(
    selections: Sequence[Selection], prediction: Prediction, images: Tensor, classes: Sequence[str] | None, ood: str = ""
) -> str:
    """Returns the HTML of selected examples, each with its image; `ood` is the name of an out-of-distribution set."""
    card = _class_card if prediction.task in CLASSES else _number_card
    parts = []
    for selection in selections:
        cards = "".join(f"<li>{card(prediction, row, png(images[row]), classes, ood)}</li>" for row in selection.rows)
        head = f'<h3>{safe(selection.title)}</h3><p class="note">{safe(selection.about)}</p>'
        parts.append(f'{head}<ul class="examples">{cards}</ul>')
    return "".join(parts)


def select_examples(prediction: Prediction) -> list[Selection]:
    """Selects the most uncertain examples, the most certain ones, and the most certain errors."""
    if prediction.task not in CLASSES:
        order = prediction.std.argsort(descending=True, stable=True).tolist()
        return [
            Selection("Most uncertain", "Largest standard deviation.", order[:SHOWN]),
            Selection("Most certain", "Smallest standard deviation.", order[::-1][:SHOWN]),
        ]
    order = prediction.entropy.argsort(descending=True, stable=True).tolist()
    selections = [
        Selection("Most uncertain", "Highest entropy of the mixture.", order[:SHOWN]),
        Selection("Most certain", "Lowest entropy of the mixture.", order[::-1][:SHOWN]),
    ]
    if prediction.targets is not None and prediction.targets.numel() == len(prediction):
        wrong = (prediction.labels.cpu() != prediction.targets.flatten().cpu()).tolist()
        errors = [row for row in order[::-1] if wrong[row]]
        if errors:
            selections.append(Selection("Certain but wrong", "Errors with the lowest entropy.", errors[:SHOWN]))
    return selections


def select_ood(name: str, prediction: Prediction) -> list[Selection]:
    """Selects the out-of-distribution examples that an ensemble is most certain of, and those that it doubts most."""
    order = prediction.entropy.argsort(stable=True).tolist()
    return [
        Selection(f"Out of distribution: {name}, most certain", "Lowest entropy: taken for test images.", order[:SHOWN]),
        Selection(f"Out of distribution: {name}, most uncertain", "Highest entropy: told apart.", order[::-1][:SHOWN]),
    ]


def _class_card(prediction: Prediction, row: int, source: str, classes: Sequence[str] | None, ood: str = "") -> str:
    """Returns the HTML of an image with its true class, its predicted class and the votes of the members.

    `ood` is the name of an out-of-distribution set, whose own labels are of other classes and are not shown.
    """
    truth = None if prediction.targets is None or ood else int(prediction.targets.flatten()[row])
    label = int(prediction.labels[row])
    names = [_class_name(prediction, index, classes) for index in range(prediction.classes)]
    true_name = names[truth] if truth is not None and 0 <= truth < len(names) else ood or "unknown"
    verdict = "" if truth is None else "right" if truth == label else "wrong"
    confidence = f"{float(prediction.confidence[row]):.0%}"
    alt = f"Example {row}: {'out of distribution, ' if ood else 'true class '}{true_name}, predicted {names[label]}"
    lines = [_vote(names[index], share, count, index == truth) for index, share, count in votes(prediction, row)]
    return (
        f'<figure class="example"><img src="{source}" alt="{safe(alt)}">'
        f'<figcaption><span class="truth">{safe(true_name)}</span>'
        f'<span class="predicted {verdict}">{safe(names[label])} at {confidence}</span>'
        f'<ol class="votes">{"".join(lines)}</ol></figcaption></figure>'
    )


def votes(prediction: Prediction, row: int) -> list[tuple[int, float, str]]:
    """Returns (class, share, text) of the classes with the most votes; without several members, of the most probable."""
    if prediction.has_members and prediction.count > 1:
        counts = torch.bincount(prediction.members.labels[:, row].cpu(), minlength=prediction.classes)
        order = counts.argsort(descending=True, stable=True).tolist()
        return [(index, int(counts[index]) / prediction.count, str(int(counts[index]))) for index in order if counts[index]][:4]
    probs = prediction.probs[row].cpu()
    probs = torch.stack([1 - probs, probs]) if probs.ndim == 0 else probs
    order = probs.argsort(descending=True, stable=True).tolist()[:3]
    return [(index, float(probs[index]), f"{float(probs[index]):.0%}") for index in order]


def _vote(name: str, share: float, count: str, right: bool) -> str:
    mark = ' class="right"' if right else ""
    return f'<li{mark} style="--share: {share:.3f}"><span>{safe(name)}</span> <b>{count}</b></li>'


def _number_card(prediction: Prediction, row: int, source: str, classes: Sequence[str] | None, ood: str = "") -> str:
    """Returns the HTML of an image with its target, predicted mean and standard deviation."""
    predicted = f"{number(float(prediction.mean[row]))} ± {number(float(prediction.std[row]))}"
    truth = "" if prediction.targets is None else number(float(prediction.targets.flatten()[row]))
    return (
        f'<figure class="example"><img src="{source}" alt="Example {row}">'
        f'<figcaption><span class="truth">{truth}</span><span class="predicted">{predicted}</span></figcaption></figure>'
    )


def _class_name(prediction: Prediction, index: int, classes: Sequence[str] | None) -> str:
    if classes is not None:
        return str(classes[index])
    return ("no", "yes")[index] if prediction.task == "binary" else f"class {index}"


def _dense(prediction: Prediction, images: Tensor, classes: Sequence[str] | None) -> str:
    """Returns the HTML of a segmentation's most uncertain and most certain image."""
    shape = tuple(prediction.shape[1:])
    if prediction.task != "classes" or len(shape) != 2 or images.shape[1] not in (1, 3) or tuple(images.shape[2:]) != shape:
        return ""
    targets = prediction.targets
    if targets is None or targets.numel() != prediction.labels.numel():
        return ""
    doubt = prediction.entropy.flatten(1).mean(1)
    order = doubt.argsort(descending=True, stable=True).tolist()
    parts: list[str] = []
    names = None if classes is None else [shortened(str(name)) for name in classes]
    for title, row in (("Most uncertain", order[0]), ("Most certain", order[-1])):
        truth = targets.reshape(prediction.shape)[row].cpu().long()
        void = (truth < 0) | (truth >= prediction.classes)
        if not bool(void.all()):
            body = _segmentation(prediction, row, images[row], truth.masked_fill(void, -1), names, len(parts))
            parts.append(f"<figure>{body}<figcaption>{title}: example {row}.</figcaption></figure>")
    return f'<div class="figures">{"".join(parts)}</div>' if parts else ""


def _segmentation(
    prediction: Prediction,
    row: int,
    image: Tensor,
    truth: Tensor,
    classes: Sequence[str] | None,
    index: int,
) -> str:
    """Returns the figure of one segmented image as SVG; pixels with truth -1 are unlabelled."""
    maps = image.cpu(), truth, prediction.labels[row].cpu(), prediction.entropy[row].cpu()
    return svg.inline_both_themes(
        lambda theme: figures.segmentation(*maps, classes=classes, ignore=-1, columns=2, theme=theme),
        f"segmentation-{index}",
        f"Example {row}: image, true labels, predicted labels and entropy",
    )


def _check_images(name: str, images: Tensor) -> None:
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] < 1 or not images.numel():
        shape = list(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"{name} must be a tensor [N, C, H, W], not {shape}")
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point() or not -1e-4 <= float(images.min()) <= float(images.max()) <= 1 + 1e-4:
        raise InputError(f"{name} must be uint8, or float from 0 to 1: undo the normalisation, or pass data.raw(slice(None))")


def png(image: Tensor) -> str:
    """Returns an image ``[C, H, W]`` as a data URL of a PNG: grey with one channel, colour with three."""
    values = image.detach().cpu().float() / (255 if image.dtype == torch.uint8 else 1)
    values = values[:3] if len(values) >= 3 else values[:1]
    if max(values.shape[1:]) > LARGEST:
        scale = LARGEST / max(values.shape[1:])
        values = F.interpolate(values[None], [max(1, round(side * scale)) for side in values.shape[1:]], mode="area")[0]
    pixels = (values * 255).round().clamp(0, 255).to(torch.uint8).movedim(0, -1).contiguous()  # [H, W, C]
    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + line.numpy().tobytes() for line in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return f"data:image/png;base64,{base64.b64encode(MAGIC + b''.join(chunks)).decode()}"
