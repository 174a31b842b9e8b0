"""Formats numbers, scores and costs for readers, and escapes text for HTML."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Sequence
from typing import Any

from multitudes.scores.meaning import ALL_CRITERIA

TITLES = {
    "accuracy": "Accuracy", "exact_match": "Exact match", "top5": "Top 5", "nll": "NLL", "gibbs_nll": "Gibbs NLL",
    "brier": "Brier", "ece": "ECE", "mce": "MCE", "ace": "ACE", "classwise_ece": "Classwise ECE", "aurc": "AURC",
    "class_auroc": "Class AUROC", "class_aupr": "Class AUPR", "error_auroc": "Error AUROC", "error_aupr": "Error AUPR",
    "miou": "mIoU", "kl_diversity": "KL diversity", "member_accuracy": "Member accuracy", "member_nll": "Member NLL",
    "mean_mutual_information": "Mutual information", "auroc": "AUROC", "aupr_out": "AUPR-Out", "aupr_in": "AUPR-In",
    "fpr95": "FPR95", "fpr95_in": "FPR95-In", "rmse": "RMSE", "mae": "MAE", "gaussian_nll": "Gaussian NLL",
    "lpd": "Log density", "crps": "CRPS", "member_rmse": "Member RMSE", "epistemic_std": "Epistemic std", "msp": "MSP",
    "cAcc": "cAcc", "cNLL": "cNLL", "cECE": "cECE", "rAcc": "rAcc", "rNLL": "rNLL", "rECE": "rECE", "mCE": "mCE",
    "rmCE": "rmCE", "CE": "CE", "rCE": "rCE", "multiply_adds": "Multiply-adds", "seconds": "Training",
    "step": "Training step", "latency": "Prediction time",
}  # fmt: skip
"""Titles of scores and costs whose key in words is not a good title."""

IN_SENTENCE = {"accuracy": "accuracy", "brier": "Brier score"}
"""Titles that are written differently within a sentence."""


def safe(text: Any) -> str:
    """Escapes text for HTML."""
    return html.escape(readable(text), quote=True)


def readable(text: Any) -> str:
    """Replaces control characters and lone surrogates."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in str(text))


def title(key: str) -> str:
    """Returns the title of a score or cost: `svhn/auroc/entropy` becomes "AUROC svhn (entropy)"."""
    return " ".join(part for part in title_parts(key) if part)


def title_parts(key: str) -> tuple[str, str]:
    """Returns the title of a score or cost in two parts: what it is, and of which set and by which OOD score."""
    *front, last = key.split("/")
    if last in (*ALL_CRITERIA, "best") and front:
        *sets, kind = front
        return TITLES.get(kind, kind), " ".join([*sets, f"({TITLES.get(last, last).replace('_', ' ')})"])
    return TITLES.get(last) or last.replace("_", " ").capitalize(), " ".join(front)


def title_in_sentence(key: str) -> str:
    """Returns the title of a score for use within a sentence."""
    return IN_SENTENCE.get(key) or title(key)


def number(value: float, beside: float | None = None) -> str:
    """Formats a number with four decimals, or four digits if it is very large or small. With `beside`, as that number."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value if beside is None or not math.isfinite(beside) else beside)
    if size == 0 or 1e-3 <= size < 100:
        text = f"{value:.4f}"
    elif size < 1e-3:
        text = f"{value:.2e}" if size < 1e-4 else f"{value:.5f}"
    else:
        text = f"{value:,.1f}" if size < 1e6 else f"{value:.3e}"
    return text.replace("-", "−")


def counted(count: int, one: str, many: str = "") -> str:
    """Formats a count with its noun: 1 seed, 12 seeds."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """Joins names in a sentence: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def cost(key: str, value: float) -> str:
    """Formats a cost with its unit."""
    if not math.isfinite(value):
        return "–"
    if key in ("parameters", "multiply_adds"):
        return _large(value)
    if key == "memory":
        size, unit = next(((size, unit) for size, unit in ((2**30, "GiB"), (2**20, "MiB")) if value >= size), (2**10, "KiB"))
        return f"{value / size:,.{2 if unit == 'GiB' else 1}f} {unit}"
    if key in ("latency", "step"):
        return f"{value:,.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"
    if key == "seconds":
        return duration(value)
    return _large(value) if abs(value) >= 1e4 else f"{value:,.4g}"


def duration(seconds: float) -> str:
    """Formats a duration: 8.2 s, 3 min 20 s, 2 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def ratio(value: float) -> str:
    """Formats a cost relative to the single network: 1.50 ×."""
    return f"{value:.2f} ×" if value < 10 else f"{value:,.1f} ×"


def shortened(name: str, length: int = 28) -> str:
    """Shortens a name to one line that fits into a figure; long names lose their middle."""
    line = " ".join(readable(name).split())
    half = (length - 1) // 2
    return line if len(line) <= length else f"{line[: length - 1 - half]}…{line[-half:]}"


def _large(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if abs(value) < 999.5 * size else f"{value / size:,.0f} {unit}"
    return f"{value:,.4g}"
