"""The goals for speed, and what results/speed.json says of them. Ratios are of rows that were measured beside one network."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
GPU, CPU = "cuda", "cpu"
COMPILE = 1.6
"""Seconds of compiling any method may be this many times the single network's."""


@dataclass(frozen=True)
class Goal:
    """A ratio of two contenders of one cell, and its bound."""

    what: str
    cell: tuple[str, str, str, int, str]
    """Device, network, mode, rows, and whether it is compiled."""
    contender: str
    other: str
    bound: float
    at_most: bool = True
    column: str = "ms"


CELLS = {
    "r50": (GPU, "resnet50", "infer", 1024, "yes"), "r50_train": (GPU, "resnet50", "train", 512, "yes"),
    "r18_128": (GPU, "resnet18", "train", 128, "yes"), "r18_512": (GPU, "resnet18", "train", 512, "yes"),
    "r18": (GPU, "resnet18", "infer", 1024, "yes"), "wide": (GPU, "wideresnet28_10", "infer", 1024, "yes"),
    "few": (GPU, "resnet18", "infer", 16, "no"), "cpu": (CPU, "resnet18", "infer", 16, "no"),
    "cpu_train": (CPU, "resnet18", "train", 16, "no"),
}  # fmt: skip

GOALS = [
    Goal("`Packed`, frozen, ResNet-50, images/s of single", CELLS["r50"], "single", "packed_frozen", 0.55, False),
    Goal("`Packed`, ResNet-50, training 512, × single", CELLS["r50_train"], "packed", "single", 2.0),
    Goal("the same, memory × single", CELLS["r50_train"], "packed", "single", 2.2, column="peak_mib"),
    Goal("`Packed`, ResNet-18, training 128, × single", CELLS["r18_128"], "packed", "single", 1.35),
    Goal("the same, training 512", CELLS["r18_512"], "packed", "single", 2.0),
    Goal("`Packed(gamma=2)`, × `Packed`", CELLS["r50"], "packed_gamma2", "packed", 1.02),
    Goal("`Deep`, ResNet-18, training 128, × four networks in turn", CELLS["r18_128"], "deep", "looped", 0.70),
    Goal("the same, training 512", CELLS["r18_512"], "deep", "looped", 1.0),
    Goal(
        "`Masksembles`, ResNet-50, compacted and frozen: times as fast as not", CELLS["r50"], "masksembles",
        "masksembles_compact_frozen", 1.7, False,
    ),
    Goal("the same: times as fast as torch-uncertainty's", CELLS["r50"], "tu_masksembles",
         "masksembles_compact_frozen", 2.5, False),
    Goal("`MIMO`, WideResNet-28-10, compacted, images/s of single", CELLS["wide"], "single", "mimo_compact", 0.97, False),
    Goal(
        "`BatchEnsemble`, prediction: times as fast as torch-uncertainty's", CELLS["r18"], "tu_batchensemble", "batchensemble",
        1.0, False,
    ),
    Goal("the same, training 512", CELLS["r18_512"], "tu_batchensemble", "batchensemble", 1.0, False),
    Goal("`EMP`, 20 members, 16 rows, × 20 passes in turn", CELLS["few"], "emp", "emp_in_turn", 0.5),
    Goal("CPU: `Packed`, 16 rows, × single", CELLS["cpu"], "packed", "single", 1.12),
    Goal("the same, frozen", CELLS["cpu"], "packed_frozen", "single", 1.05),
    Goal("the same, training", CELLS["cpu_train"], "packed", "single", 1.22),
    Goal("CPU: `Masksembles`, compacted and frozen, × single", CELLS["cpu"], "masksembles_compact_frozen", "single", 2.03),
]  # fmt: skip


def ratio(rows: Sequence[Row], goal: Goal) -> float | None:
    """Returns the ratio of a goal: of times that each row has beside one network, or as they are; None if one is missing."""
    device, network, mode, batch, compiled = goal.cell
    precision = "fp32" if device == CPU else "bf16"
    cell = (device, network, mode, batch, compiled, precision)
    keys = ("device", "network", "mode", "batch", "compiled", "precision")
    found = {row["contender"]: row for row in rows if tuple(row[key] for key in keys) == cell and "ms" in row}
    if goal.contender not in found or goal.other not in found:
        return None
    one, other = found[goal.contender], found[goal.other]
    beside = goal.column == "ms" and one.get("of_single") and other.get("of_single")
    key = "of_single" if beside else goal.column
    return float(one[key]) / float(other[key])


def slowest_to_compile(rows: Sequence[Row], device: str, mode: str) -> Row | None:
    """Returns the row of the method that takes longest to compile beside the single network; None if none was measured."""
    found = [row for row in rows if row["device"] == device and row["mode"] == mode and row["contender"] != "single"]
    return max(found, key=lambda row: float(row["of_single"]), default=None)


def compile_lines(rows: Sequence[Row]) -> list[str]:
    """Returns the lines about seconds of compiling: the slowest method decides."""
    lines = []
    for device, mode in itertools.product((GPU, CPU), ("infer", "train")):
        row = slowest_to_compile(rows, device, mode)
        call = "prediction" if mode == "infer" else "training"
        what = f"{'GPU' if device == GPU else 'CPU'}: seconds to compile ResNet-18, {call}"
        if row is None:
            lines.append(f"| {what}, the slowest method, × single | ≤ {COMPILE:.2f} | not measured |  |")
            continue
        holds = "holds" if row["of_single"] <= COMPILE else "missed"
        lines.append(
            f"| {what}, the slowest ({row['contender']}), × single | ≤ {COMPILE:.2f} | {row['of_single']:.2f} | {holds} |"
        )
    return lines


def table(rows: Sequence[Row], compiling: Sequence[Row] = ()) -> str:
    """Returns the goals as a table; `compiling` are the rows of results/compile.json."""
    lines = ["| goal | bound | measured | |", "|---|---|---|---|"]
    for goal in GOALS:
        found = ratio(rows, goal)
        holds = found is not None and (found <= goal.bound if goal.at_most else found >= goal.bound)
        shown = "not measured" if found is None else f"{found:.2f}"
        bound = f"{'≤' if goal.at_most else '≥'} {goal.bound:.2f}"
        lines.append(f"| {goal.what} | {bound} | {shown} | {'holds' if holds else '' if found is None else 'missed'} |")
    return "\n".join([*lines, *compile_lines(compiling)])


def slower(rows: Sequence[Row]) -> list[str]:
    """Names the cells in which a method is slower than torch-uncertainty's, or an ensemble of four than four networks in turn.

    Differences below 3 % are noise.
    """
    keys = ("machine", "network", "mode", "batch", "precision", "compiled")
    cells: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        if row.get("of_single"):
            cells.setdefault(tuple(row[key] for key in keys), {})[row["contender"]] = row["of_single"]
    found = []
    for (_, network, mode, batch, precision, compiled), times in sorted(cells.items(), key=str):
        for name in ("packed", "masksembles", "batchensemble", "deep"):
            best = min((times[one] for one in (name, f"{name}_frozen", f"{name}_compact_frozen") if one in times), default=None)
            rival = "looped" if name == "deep" else f"tu_{name}"
            if best is not None and rival in times and best > 1.03 * times[rival]:
                where = (
                    f"{network} {mode} {batch} {precision} {({'no': 'eager', 'yes': 'compiled'}).get(compiled, 'CUDA graphs')}"
                )
                found.append(f"{name}, {where}: {best:.2f} against {times[rival]:.2f}")
    return found
