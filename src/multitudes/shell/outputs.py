"""The files that commands write: nothing is overwritten without --force, and predictions can be tables."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multitudes.errors import FileError, InputError

if TYPE_CHECKING:
    from torch import Tensor

    from multitudes.prediction.prediction import Prediction

KINDS = (".safetensors", ".csv")
"""Endings of the files that `multitudes predict` writes."""

PAGES = (".html", ".htm")
"""Endings of the page that `multitudes report` writes."""

UNCERTAINTIES = ("confidence", "entropy", "expected_entropy", "mutual_information", "variation_ratio")
"""Columns of uncertainty in a table of classes. They are properties of `Prediction`."""


def check_output(path: Path, force: bool, kinds: Sequence[str] = (), *, typed: str = "--out") -> None:
    """Checks, before the work, that a file can be written: it is new or `force` is given, and its ending is known.

    typed    what the path is called on the command line, in "choose another --out"
    """
    if kinds and path.suffix.lower() not in kinds:
        raise InputError(f"--out {path} must end in {' or '.join(kinds)}: type --out {path.with_suffix(kinds[0])}")
    if path.is_dir():
        raise FileError(f"{path} is a folder: type the name of a file")
    if path.exists() and not force:
        raise FileError(f"{path} exists already: replace it with --force, or choose another {typed}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create the folder {path.parent}: {error.strerror or error}. Choose another {typed}") from error


def save_prediction(
    prediction: Prediction, path: Path, classes: Sequence[str] | None = None, *, with_targets: bool = True
) -> None:
    """Writes a prediction: all members' outputs into .safetensors, or one line per example into .csv.

    Give with_targets=False for an out-of-distribution set, whose targets count classes of its own: the table leaves them out.
    """
    if path.suffix.lower() != ".csv":
        prediction.save(path)
        return
    from multitudes.storage import write

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table(prediction, classes, targets=with_targets))
    write(path, text.getvalue().encode())


def check_table(prediction: Prediction) -> None:
    """Checks that a prediction has one answer, or one row of answers, per example."""
    if len(prediction.shape) > (1 if prediction.task == "classes" else 2):
        each = " × ".join(map(str, prediction.shape[1:]))
        raise InputError(
            f"a table has one line per example, but each example has {each} predictions: "
            "type --out with a name that ends in .safetensors"
        )


def table(prediction: Prediction, classes: Sequence[str] | None = None, *, targets: bool = True) -> Iterator[list[Any]]:
    """Yields the lines of a table, its header first: example, target, prediction, uncertainties, probabilities.

    Several labels or numbers per example have columns of their own, as in prediction_0, prediction_1. With `classes`, targets
    and predictions are names of classes.
    """
    check_table(prediction)
    columns = _columns(prediction, None if classes is None else [str(name) for name in classes], targets)
    yield ["example", *columns]
    for index, values in enumerate(zip(*columns.values(), strict=True)):
        yield [index, *values]


def _columns(prediction: Prediction, names: list[str] | None, targets: bool) -> dict[str, list[Any]]:
    numbers = prediction.task in ("gaussian", "regression")
    answers = prediction.mean if numbers else prediction.labels
    columns: dict[str, list[Any]] = {}
    if targets and prediction.targets is not None:
        columns |= _split("target", prediction.targets.reshape(answers.shape))
    columns |= _split("prediction", answers)
    if prediction.task == "classes" and names is not None:
        named = {key: [names[value] if 0 <= value < len(names) else value for value in own] for key, own in columns.items()}
        columns.update(named)
    uncertain = _deviations(prediction) if numbers else {name: getattr(prediction, name) for name in UNCERTAINTIES}
    for name, values in uncertain.items():
        columns |= _split(name, values)
    if prediction.task == "classes":
        kinds = names or [str(index) for index in range(prediction.classes)]
        columns |= {f"probability_{kind}": _listed(own) for kind, own in zip(kinds, prediction.probs.T, strict=False)}
    elif not numbers:
        columns |= _split("probability", prediction.probs)
    return columns


def _deviations(prediction: Prediction) -> dict[str, Tensor]:
    """Returns the uncertainties of predicted numbers, all in the unit of the targets.

    Members that predict no variance have no interval: one of their disagreement alone would not hold 95 % of the targets.
    """
    columns = {
        "std": prediction.std,
        "aleatoric_std": prediction.aleatoric.sqrt(),
        "epistemic_std": prediction.epistemic.sqrt(),
    }
    if bool((prediction.aleatoric > 0).any()):
        columns["lower_95"], columns["upper_95"] = prediction.interval(0.95)
    return columns


def _split(name: str, values: Tensor) -> dict[str, list[Any]]:
    """Returns the column of values ``[N]`` or ``[N, 1]``, or the columns of values ``[N, D]``, by name."""
    if values.ndim == 1 or values.shape[1] == 1:
        return {name: _listed(values.flatten())}
    return {f"{name}_{index}": _listed(own) for index, own in enumerate(values.T)}


def _listed(values: Tensor) -> list[Any]:
    """Returns numbers as text that a float32 survives; whole numbers as they are."""
    plain = values.cpu().tolist()
    return [f"{value:.9g}" for value in plain] if values.is_floating_point() else plain
