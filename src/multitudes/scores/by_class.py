"""Class scores: how well each class is told from the others, averaged over classes.

    AUROC, AUPR          each class against the others, ranked by its probability
    F1                   2 TP / (2 TP + FP + FN) of each class
    balanced accuracy    the share of correct labels among the examples of each class

Every class counts alike, however few examples it has. A class for which a score is undefined is left out: AUROC and AUPR need
examples of the class and of others, F1 needs the class among targets or predictions, balanced accuracy among targets. If no
class is left, the score is NaN. A binary task has AUROC, AUPR and F1 of "yes" alone; a multilabel task has means over labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from multitudes.scores.detection import ranking


def one_vs_rest(scores: Tensor, targets: Tensor) -> tuple[float, float]:
    """Returns AUROC and AUPR of each class against the others, averaged over classes; higher is better, 1 is best.

    Shape: scores ``[N, K]``, larger for more probable classes, and targets ``[N]``
    """
    each = [ranking(column, targets == index) for index, column in enumerate(scores.T)]
    return _mean_of_defined([auroc for auroc, _ in each]), _mean_of_defined([aupr for _, aupr in each])


def by_output(score: Tensor, targets: Tensor, output: Tensor) -> tuple[float, float]:
    """Returns AUROC and AUPR of "yes" for each output of a multilabel task, averaged over outputs. Shape: ``[n]`` each

    `output` tells which label of its example each entry is.
    """
    chosen = [output == index for index in range(int(output.max()) + 1)]
    each = [ranking(score[rows], targets[rows] == 1) for rows in chosen]
    return _mean_of_defined([auroc for auroc, _ in each]), _mean_of_defined([aupr for _, aupr in each])


def tallies(labels: Tensor, targets: Tensor, output: Tensor | None = None, classes: int = 0) -> Tensor:
    """Counts for each output and class the correct labels, all predicted labels, and all targets.

    Shape: ``[n]`` each → ``[3, L, K]``; L is 1 without `output`. K is at least `classes`.
    """
    classes = max(classes, int(torch.maximum(labels, targets).max()) + 1)
    outputs = 1 if output is None else int(output.max()) + 1
    offset = 0 if output is None else output * classes
    counts = [
        torch.bincount(cells, minlength=outputs * classes)
        for cells in ((targets + offset)[labels == targets], labels + offset, targets + offset)
    ]
    return torch.stack(counts).double().unflatten(1, (outputs, classes))


def tallies_of(matrix: Tensor) -> Tensor:
    """Returns the `tallies` of a confusion matrix with true classes in rows: ``[K, K]`` → ``[3, 1, K]``"""
    return torch.stack([matrix.diagonal(), matrix.sum(0), matrix.sum(1)])[:, None]


def f1(counts: Tensor, yes: bool = False) -> float:
    """Returns F1 of `tallies`, averaged over classes; higher is better, 1 is best. With `yes`, that of class 1 alone."""
    correct, predicted, true = counts[..., 1] if yes else counts
    either = predicted + true
    return float((2 * correct / either)[either > 0].mean())


def balanced_accuracy(counts: Tensor) -> float:
    """Returns the recall of each class of `tallies`, averaged over classes, then over outputs; higher is better, 1 is best."""
    correct, _, true = counts
    recalls = [(own / size)[size > 0].mean() for own, size in zip(correct, true, strict=True) if bool((size > 0).any())]
    return float(torch.stack(recalls).mean()) if recalls else float("nan")


def _mean_of_defined(values: list[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).nanmean())
