"""One image of a segmentation: image, true labels, predicted labels and entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from multitudes.errors import InputError
from multitudes.figures import canvas
from multitudes.figures.theme import Look, Theme, look
from multitudes.figures.values import Floats, Numbers, entropy_limit, legend_text, read, read_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

PER_LINE = {4: 8, 2: 5, 1: 4}
"""Number of classes per line of the legend, for each number of columns."""


def segmentation(
    image: Numbers,
    labels: Numbers,
    predicted: Numbers,
    entropy: Numbers,
    *,
    classes: Sequence[str] | None = None,
    ignore: int | None = None,
    top: float | None = None,
    columns: int = 4,
    theme: Theme = "light",
) -> Figure:
    """Draws an image ``[3, H, W]`` or ``[1, H, W]`` beside its labels, predicted labels and entropy, each ``[H, W]``.

    The image is uint8, or float from 0 to 1. `classes` names the labels 0, 1, ... in a legend. Pixels labelled `ignore` stay
    blank and do not count. The colour scale of the entropy ends at `top`, by default the largest entropy. `columns` is 4, 2
    or 1.
    """
    colours, sizes = look(theme), {}  # type: Look, dict[str, int]
    picture = _picture(image, sizes)
    truth, guess = read_labels(labels, "labels", "H W", sizes), read_labels(predicted, "predicted", "H W", sizes)
    doubt = read(entropy, "entropy", "H W", sizes)
    limit = entropy_limit([doubt], top)
    void = np.zeros_like(truth, dtype=bool) if ignore is None else truth == ignore
    if void.all():
        raise InputError(f"every pixel has the label ignore={ignore}: give labels with at least one other pixel")
    count = _count(truth[~void], guess, classes)
    palette = _palette(count, colours)
    first, second, third, fourth = _panels(columns, sizes["H"] / sizes["W"], len(classes or ()), colours)
    right = float((truth == guess)[~void].mean())
    canvas.style_image_axes(first, colours, "Image")
    canvas.style_image_axes(second, colours, "Truth")
    canvas.style_image_axes(third, colours, f"Prediction: {right:.1%} correct")
    canvas.style_image_axes(fourth, colours, "Entropy in nats")
    first.imshow(picture, cmap="gray", vmin=0, vmax=1)
    second.imshow(np.ma.array(truth, mask=void), cmap=palette, vmin=-0.5, vmax=count - 0.5, interpolation="nearest")
    third.imshow(guess, cmap=palette, vmin=-0.5, vmax=count - 0.5, interpolation="nearest")
    scale = fourth.imshow(doubt, cmap=canvas.scale(colours), vmin=0, vmax=limit, interpolation="nearest")
    canvas.colour_bar(scale, [fourth], "", colours)
    if classes is not None:
        _class_legend(canvas.figure_of(first), classes, palette, colours, PER_LINE[columns])
    return canvas.figure_of(first)


def _panels(columns: int, shape: float, names: int, look: Look) -> list[Axes]:
    """Returns four panels for images with `shape` = height / width, above a legend of `names` names."""
    if columns not in PER_LINE:
        raise InputError(f"columns={columns} must be 1, 2 or 4")
    width = {4: 10.0, 2: 6.0, 1: canvas.WIDTH}[columns]
    lines = math.ceil(names / PER_LINE[columns])
    picture = (width - 0.6) / columns - 0.15
    figure = canvas.new_figure(width, (picture * shape + 0.4) * (4 // columns) + 0.2 * lines + 0.2 * (lines > 0), look)
    figure.set_layout_engine("compressed", w_pad=0.08, h_pad=0.05)
    return list(figure.subplots(4 // columns, columns, squeeze=False).flat)


def _picture(image: Numbers, sizes: dict[str, int]) -> Floats:
    """Returns the image as ``[H, W, 3]`` or ``[H, W]``, from 0 to 1."""
    is_bytes = str(image.dtype).endswith("uint8") if isinstance(image, (Tensor, np.ndarray)) else False
    picture = read(image, "image", "C H W", sizes) / (255 if is_bytes else 1)
    if len(picture) not in (1, 3):
        raise InputError(
            f"image must be [3, H, W] or [1, H, W], not {list(picture.shape)}: for [H, W, 3] give image.permute(2, 0, 1)"
        )
    if picture.min() < -1e-6 or picture.max() > 1 + 1e-6:
        raise InputError(f"image must be in 0 to 1, not {picture.min():.3g} to {picture.max():.3g}: undo its normalisation")
    return picture[0] if len(picture) == 1 else picture.clip(0, 1).transpose(1, 2, 0)


def _count(truth: NDArray[np.int64], guess: NDArray[np.int64], classes: Sequence[str] | None) -> int:
    """Returns the number of classes: the number of names, or the largest label + 1."""
    largest = max(int(truth.max()), int(guess.max()))
    if min(int(truth.min()), int(guess.min())) < 0:
        raise InputError("a label is negative: pass it as ignore= if it marks unlabelled pixels")
    if classes is not None and largest >= len(classes):
        raise InputError(
            f"label {largest} has no name in classes, which has {len(classes)}: add its name, or pass it as ignore="
        )
    return largest + 1 if classes is None else len(classes)


def _palette(count: int, look: Look) -> ListedColormap:
    """Returns one colour per class: the theme's colours if there are enough, else evenly spaced ones."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    colours = look.colours[:count]
    return ListedColormap(colours if count <= len(colours) else colormaps["turbo"](np.linspace(0.03, 0.97, count)))


def _class_legend(figure: Figure, classes: Sequence[str], palette: ListedColormap, look: Look, per_line: int) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=palette(index)) for index in range(len(classes))]
    across = min(per_line, len(classes))
    canvas.legend(
        figure,
        look,
        handles=handles,
        labels=list(map(legend_text, classes)),
        loc="outside lower center",
        ncols=across,
        frameon=False,
    )
