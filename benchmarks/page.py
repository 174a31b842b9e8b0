"""Writes the tables and figures of docs/performance.md from results/speed.json, growth.json and compile.json.

python -m benchmarks --page             # writes them
python -m benchmarks --check            # fails if the page has others
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.goals import slower, table
from benchmarks.precisions import precisions

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, FIGURES = ROOT / "results", ROOT / "docs" / "performance.md", ROOT / "docs" / "performance"
MARKS = {
    name: (f"<!-- {name} -->", f"<!-- /{name} -->")
    for name in ("goals", "compiling", "precisions", "members", "width", "peers", "speed")
}
"""What stands between two marks of the page is written by this file."""

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
    "mcdropout_frozen": "`MCDropout(members=4)`, frozen", "multihead_frozen": "`MultiHead()`, frozen",
    "tu_packed": "torch-uncertainty, Packed", "tu_packed_gamma2": "torch-uncertainty, Packed with γ = 2",
    "tu_masksembles": "torch-uncertainty, Masksembles", "tu_batchensemble": "torch-uncertainty, BatchEnsemble",
}  # fmt: skip
"""What contenders are called on the page."""

HOW = {"no": "eager", "yes": "compiled", "graphs": "compiled, CUDA graphs"}

NETWORKS = figures.NETWORKS

SHOWN = {
    "members": "Time of a call against the number of members, beside the single network",
    "width": "Time of a call against the width of the network, beside the single network",
    "peers": "Time of each method and of its peers, beside the single network",
}
"""Figures, and what they show."""


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


def results(name: str) -> list[dict[str, Any]]:
    """Reads the rows of a file of results; none if there is no such file."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []


def compiling(rows: list[dict[str, Any]]) -> str:
    """Returns the seconds of first compiled calls as a table."""
    lines = ["| machine | network | call | rows | contender | seconds | × single |", "|" + "---|" * 7]
    for row in rows:
        what = "prediction" if row["mode"] == "infer" else "training step"
        cells = (row["machine"], NETWORKS[row["network"]], what, row["batch"], NAMES[row["contender"]])
        lines.append("| " + " | ".join(map(str, cells)) + f" | {row['compile_s']:.1f} | {row['of_single']:.2f} |")
    return "\n".join(lines)


def picture(name: str) -> str:
    """Returns the lines that show a figure, light or dark as the reader's page is."""
    light, dark = (f"performance/{path.name}" for path in figures.files(FIGURES, name).values())
    return (
        f'<picture>\n<source media="(prefers-color-scheme: dark)" srcset="{dark}">\n'
        f'<img src="{light}" alt="{SHOWN[name]}">\n</picture>'
    )


def page() -> str:
    """Returns the page with the tables of the results."""
    rows, seconds = results("speed"), results("compile")
    behind = "".join(f"- {one}\n" for one in slower(rows))
    parts = {
        "goals": f"{table(rows, seconds)}\n\nCells in which a peer is ahead, × single against × single:\n\n{behind}",
        "compiling": compiling(seconds) + "\n",
        "precisions": precisions(rows) + "\n",
        "speed": tables(rows),
    }
    shown = figures.drawn(rows, results("growth"))
    parts |= {name: picture(name) + "\n" if name in shown else "" for name in SHOWN}
    text = PAGE.read_text(encoding="utf-8")
    for name, new in parts.items():
        text = _between(text, MARKS[name][0], new if name == "speed" else f"\n{new}", MARKS[name][1])
    return text


def _between(text: str, begin: str, new: str, end: str) -> str:
    """Replaces what stands between two marks, which must be there."""
    assert begin in text, f"the page has no {begin}"
    assert end in text, f"the page has no {end}"
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{new}\n{end}{rest.partition(end)[2]}"


def write() -> None:
    """Writes the page and its figures."""
    PAGE.write_text(page(), encoding="utf-8")
    figures.write(FIGURES, figures.drawn(results("speed"), results("growth")))


def is_current() -> bool:
    """Whether the page has the tables of the results, and the figures show them."""
    shown = figures.drawn(results("speed"), results("growth"))
    return PAGE.read_text(encoding="utf-8") == page() and figures.are_current(FIGURES, shown)
