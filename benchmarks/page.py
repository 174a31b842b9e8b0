"""Writes the tables of docs/performance.md from results/speed.json.

python -m benchmarks --page             # writes them
python -m benchmarks --check            # fails if the page has others
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results" / "speed.json", ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- speed -->", "<!-- /speed -->"

NAMES = {
    "single": "single network", "looped": "4 networks in turn", "packed": "`Packed(alpha=2)`",
    "packed_gamma2": "`Packed(alpha=2, gamma=2)`", "packed_frozen": "`Packed(alpha=2)`, frozen", "deep": "`Deep()`",
    "deep_frozen": "`Deep()`, frozen", "masksembles": "`Masksembles()`", "masksembles_compact": "`Masksembles()`, compacted",
    "mimo": "`MIMO(members=3)`", "mimo_compact": "`MIMO(members=3)`, compacted", "batchensemble": "`BatchEnsemble()`",
    "emp": "`EMP(members=20)`", "mcdropout": "`MCDropout(members=4)`", "multihead": "`MultiHead()`",
    "tu_packed": "torch-uncertainty, Packed", "tu_packed_gamma2": "torch-uncertainty, Packed with γ = 2",
    "tu_masksembles": "torch-uncertainty, Masksembles", "tu_batchensemble": "torch-uncertainty, BatchEnsemble",
}  # fmt: skip
"""What contenders are called on the page."""

HOW = {"no": "eager", "yes": "compiled", "graphs": "compiled, CUDA graphs"}

NETWORKS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "wideresnet28_10": "WideResNet-28-10", "vit": "ViT", "mlp": "MLP"}


def tables(rows: list[dict[str, Any]]) -> str:
    """Returns one table for each machine, its rows in the order of cells."""
    text = ""
    for machine in dict.fromkeys(row["machine"] for row in rows):
        lines = ["| network | call | rows | | contender | ms | × single | first call, s | peak memory, MiB |", "|" + "---|" * 9]
        lines += [_line(row) for row in sorted((r for r in rows if r["machine"] == machine and "ms" in r), key=_order)]
        versions = ", ".join(sorted({str(row["torch"]) for row in rows if row["machine"] == machine}))
        text += f"\n**{machine}**, torch {versions}\n\n" + "\n".join(lines) + "\n"
    return text


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return list(NETWORKS).index(row["network"]), row["mode"], row["batch"], row["compiled"], list(NAMES).index(row["contender"])


def _line(row: dict[str, Any]) -> str:
    what = "prediction" if row["mode"] == "infer" else "training step"
    how = f"{row['precision']}, {HOW[row['compiled']]}"
    ratio = "" if row.get("of_single") is None else f"{row['of_single']:.2f}"
    memory = "" if row.get("peak_mib") is None else f"{row['peak_mib']:,.0f}"
    cells = (NETWORKS[row["network"]], what, row["batch"], how, NAMES[row["contender"]], f"{row['ms']:.1f}", ratio)
    return "| " + " | ".join(map(str, cells)) + f" | {row['first_call_s']:.1f} | {memory} |"


def page() -> str:
    """Returns the page with the tables of the results."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    return f"{before}{BEGIN}\n{tables(rows)}\n{END}{rest.partition(END)[2]}"


def write() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


def is_current() -> bool:
    """Whether the page has the tables of the results."""
    return PAGE.read_text(encoding="utf-8") == page()
