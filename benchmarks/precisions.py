"""Time of methods on ResNet-50 beside one network by precision, and what Table 8 of the supplement of Packed-Ensembles has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PAPER = {
    "packed": ((179.50, 1381), (51.20, 3406)), "packed_gamma2": ((175.10, 1501), (52.11, 3440)),
    "deep": ((145.30, 1001), (84.86, 1609)), "mimo": ((37.90, 3574), (24.44, 5649)),
    "batchensemble": ((58.78, 1809), (53.97, 1916)),
}  # fmt: skip
"""Their seconds of an epoch and images/s, in single and in half precision: torch 1.12.1, RTX 3090, CIFAR-100."""
PAPER_SINGLE = ((37.06, 3709), (22.42, 5718))
"""The same of their single model."""

NAMES = {
    "packed": "Packed-Ensembles-(2, 4, 1)", "packed_frozen": "the same, frozen", "packed_gamma2": "Packed-Ensembles-(2, 4, 2)",
    "deep": "Deep Ensembles", "mimo": "MIMO", "batchensemble": "BatchEnsemble", "tu_packed": "torch-uncertainty, Packed",
}  # fmt: skip
"""Lines of the table."""
ROWS = 512


def precisions(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the table: × single in training and in prediction, theirs and ours."""
    head = [
        "| ResNet-50, × single: training / prediction | supplement, f32 | fp32 | supplement, f16 | fp16 | bf16 |",
        "|" + "---|" * 6,
    ]
    lines = []
    for name, shown in NAMES.items():
        paper = [_paper(name, place) for place in (0, 1)]
        found = [_ours(rows, name, precision) for precision in ("fp32", "fp16", "bf16")]
        if any(found) or any(paper):
            lines.append(f"| {shown} | {paper[0]} | {found[0]} | {paper[1]} | {found[1]} | {found[2]} |")
    return "\n".join([*head, *lines])


def _paper(name: str, place: int) -> str:
    """Returns the ratios of the paper's table; nothing if it has none."""
    if name not in PAPER:
        return ""
    (seconds, images), (seconds_single, images_single) = PAPER[name][place], PAPER_SINGLE[place]
    return f"{seconds / seconds_single:.2f} / {images_single / images:.2f}"


def _ours(rows: Sequence[dict[str, Any]], name: str, precision: str) -> str:
    """Returns our ratios, eager on a GPU; a dash for what was not measured."""
    found = {
        row["mode"]: f"{row['of_single']:.2f}"
        for row in rows
        if (row["network"], row["device"], row["compiled"], row["batch"]) == ("resnet50", "cuda", "no", ROWS)
        if row["contender"] == name and row["precision"] == precision and row.get("of_single")
    }
    return f"{found.get('train', '–')} / {found.get('infer', '–')}" if found else ""
