"""Looks at the last operation of a network: outputs that were made probabilities or positive would be treated so again."""

from __future__ import annotations

import warnings
from typing import Any

from multitudes.conversion.anatomy.structure import Structure

PROBABILITIES = {"classes": ("Softmax",), "binary": ("Sigmoid", "Softmax"), "multilabel": ("Sigmoid", "Softmax")}
POSITIVE = ("Softplus", "Exp", "Relu", "Sigmoid", "Abs", "Elu", "Square")


def warn_of_last_operation(structure: Structure, task: str) -> None:
    """Warns if the network ends in a softmax or sigmoid, or for task "gaussian" in variances that were made positive."""
    if len(structure.output_nodes) != 1:
        return
    last = _name(structure.output_nodes[0])
    if last in PROBABILITIES.get(task, ()):
        warnings.warn(
            f"the model ends in a {last.lower()}, but outputs for task={task!r} must be logits: probabilities would be made "
            f"probabilities again, and stay close to each other. Remove the {last.lower()}",
            stacklevel=5,
        )
    if task == "gaussian" and last in ("Cat", "Stack"):
        inputs = [_name(node) for node, _ in structure.output_nodes[0].next_functions]
        made = next((name for name in inputs[len(inputs) // 2 :] if name in POSITIVE), None)
        if made:
            warnings.warn(
                f"variances of this model come from a {made.lower()}, but outputs for task='gaussian' must be raw: the loss "
                f"and predictions apply a softplus themselves. Remove the {made.lower()}",
                stacklevel=5,
            )


def _name(node: Any) -> str:
    """Returns the name of an operation in the graph of gradients: "Softmax" for SoftmaxBackward0."""
    return "" if node is None else str(node.name()).partition("Backward")[0]
