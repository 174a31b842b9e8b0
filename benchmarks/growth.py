"""How cost grows with the number of members, and with the width of the network.

python -m benchmarks --growth members                      # 1 to 64 members
python -m benchmarks --growth width                        # a quarter to twice the width, 4 members
python -m benchmarks --growth members --device cuda --compiled yes --methods single packed

Every contender runs beside the single network of the same width, in one process and in turn, as in speed.py. A cell that
would take longer than --limit seconds for one contender is skipped, and its row says so. Rows: results/growth.json.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.speed import MEMBERS, Cell, converted, keep, machine_name, measure_cell, prepare, told

COUNTS = (1, 2, 4, 8, 16, 32, 64)
WIDTHS = (0.25, 0.5, 1.0, 1.5, 2.0)
METHODS = ("single", "deep", "packed", "mimo", "batchensemble", "masksembles")
ROWS = {"cpu": 8, "cuda": 128}
"""Rows of a batch, by device."""
WIDTH = {"cpu": 0.5, "cuda": 1.0}
"""Width of the network whose members grow, by device: on a CPU 64 ResNets of full width take minutes, and gigabytes."""
CALLS = 5
"""Calls of a contender in a cell: the first, one that is not counted, and three rounds."""


def steps(kind: str, device: str) -> list[tuple[int, float]]:
    """Lists members and width of every step of a curve."""
    if kind == "members":
        return [(count, WIDTH[device]) for count in COUNTS]
    return [(MEMBERS, width) for width in WIDTHS]


def run(arguments: Any) -> None:
    """Measures one curve for every method, prediction and training step, and writes its rows as they come."""
    prepare(arguments.threads)
    device, kind, limit = arguments.device, arguments.growth, arguments.limit or 60.0
    names, network = [name for name in arguments.methods if name in METHODS], arguments.networks[0]
    batch, compiled = (arguments.batches or [ROWS[device]])[0], arguments.compiled[0]
    last: dict[tuple[str, str], tuple[float, int]] = {}
    until = time.perf_counter() + arguments.most if arguments.most else float("inf")
    for members, width in steps(kind, device):
        for mode in arguments.modes:
            if time.perf_counter() > until:
                print(f"stopped after {arguments.most:.0f} s: {kind} from {members} members, width {width:g}", flush=True)
                return
            start = time.perf_counter()
            late = {
                name: f"about {seconds:.0f} s" for name in names if (seconds := _expected(last, name, mode, members)) > limit
            }
            cell = Cell(
                network, batch, mode, device, arguments.precisions[0], compiled, arguments.seconds, arguments.tune,
                members=members, width=width, limit=limit,
            )  # fmt: skip
            found = measure_cell(cell, [name for name in names if name not in late])
            about = {key: found[0][key] for key in ("network", "batch", "mode", "device", "precision", "compiled")}
            found += [{**about, "contender": name, "skipped": f"would take {how_long}"} for name, how_long in late.items()]
            last |= {(row["contender"], mode): (row["ms"] / 1000, members) for row in found if "ms" in row}
            keep(
                Path(arguments.out or "results/growth.json"), found, machine_name(device), tuned=arguments.tune, growth=kind,
                members=members, width=width,
            )  # fmt: skip
            where = f"{network} {mode} {batch} rows, {members} members, width {width:g}"
            print(f"{where} [{time.perf_counter() - start:.0f} s]: {told(found)}", flush=True)
        converted.cache_clear()


def _expected(last: dict[tuple[str, str], tuple[float, int]], name: str, mode: str, members: int) -> float:
    """Returns the seconds that a cell may take, if cost grows as the members since the last cell; 0 if nothing is known."""
    seconds, count = last.get((name, mode), (0.0, members))
    return CALLS * seconds * max(1.0, members / count) if name != "single" else 0.0
