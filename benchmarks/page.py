"""Writes the tables of docs/performance.md from results/speed.json.

python -m benchmarks --page             # writes them
python -m benchmarks --check            # fails if the page has others
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.goals import slower, table

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results" / "speed.json", ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- speed -->", "<!-- /speed -->"
GOALS_BEGIN, GOALS_END = "<!-- goals -->", "<!-- /goals -->"

NAMES = {
    "single": "single network", "looped": "4 networks in turn", "packed": "`Packed(alpha=2)`",
    "packed_gamma2": "`Packed(alpha=2, gamma=2)`", "packed_frozen": "`Packed(alpha=2)`, frozen", "deep": "`Deep()`",
    "deep_frozen": "`Deep()`, frozen", "package": "the package masksembles", "masksembles": "`Masksembles()`",
    "masksembles_frozen": "`Masksembles()`, frozen", "masksembles_compact": "`Masksembles()`, compacted",
    "masksembles_compact_frozen": "`Masksembles()`, compacted and frozen", "batchensemble_frozen": "`BatchEnsemble()`, frozen",
    "mimo_compact_frozen": "`MIMO(members=3)`, compacted and frozen", "emp_in_turn": "20 members of EMP in turn",
    "emp_frozen": "`EMP(members=20)`, frozen",
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
    first = "" if row.get("first_call_s") is None else f"{row['first_call_s']:.1f}"
    cells = (NETWORKS[row["network"]], what, row["batch"], how, NAMES[row["contender"]], f"{row['ms']:.1f}", ratio)
    return "| " + " | ".join(map(str, cells)) + f" | {first} | {memory} |"


def page() -> str:
    """Returns the page with the tables of the results."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"]
    behind = "".join(f"- {one}\n" for one in slower(rows))
    goals = f"\n{table(rows)}\n\nCells in which a peer is ahead, × single against × single:\n\n{behind}"
    text = _between(PAGE.read_text(encoding="utf-8"), GOALS_BEGIN, goals, GOALS_END)
    return _between(text, BEGIN, tables(rows), END)


def _between(text: str, begin: str, new: str, end: str) -> str:
    """Replaces what stands between two marks."""
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{new}\n{end}{rest.partition(end)[2]}"


def write() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


def is_current() -> bool:
    """Whether the page has the tables of the results."""
    return PAGE.read_text(encoding="utf-8") == page()
