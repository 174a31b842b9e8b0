"""Tries what may go wrong, and counts: kills, full disks, damaged and hostile files, load, broken requests.

python benchmarks/reliability.py                    # all parts, about 5 minutes on 2 cores: make reliability
python benchmarks/reliability.py load memory        # some parts
python benchmarks/reliability.py --page             # writes docs/reliability.md from the figures; --check compares it

Each part prints its figures and writes them to results/reliability. All traffic is on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results" / "reliability", ROOT / "docs" / "reliability.md"

PARTS = {
    "kills": (
        "Kills",
        "A run is killed (SIGKILL) at random moments, up to ten times, and within every write of a file; it is resumed each "
        "time, and compared with a run that was left alone.",
    ),
    "disks": (
        "Full disks",
        "Every write of a run finds a full disk, or the system lets no file grow beyond a size. Then there is room, and the "
        "run is resumed.",
    ),
    "damaged": (
        "Damaged files",
        "Files are cut, overwritten, or have bits flipped, at random places. A file is refused with an error that names it.",
    ),
    "hostile": ("Hostile files", "Files made to do harm are given to `mt.load` and to the server."),
    "load": (
        "Load",
        "ResNet-18 for CIFAR-10, written by `mt.export` with its usual outputs: as a single network, and as a Packed-Ensemble "
        "of about its size. One row of float32 per request, the server on one core and its clients on the other. onnxruntime "
        "alone runs the same batch on the server's core; both take turns. Computing time is that of the server's process, "
        "which other programs of the machine disturb less than the clock.",
    ),
    "overload": ("More than it can", "200 connections ask a server whose queue holds 20 rows."),
    "fuzz": (
        "Broken requests",
        "Bodies broken at random, and requests that schemathesis makes from the schema, within it and against it.",
    ),
    "restarts": ("Kill and restart", "The server is killed under load, and started on the same port."),
    "memory": ("Memory", "100,000 requests: raw numbers, JSON, images, and rows with NaN."),
    "reading": (
        "Reading files",
        "Paths, methods and headers that make some servers read files; a secret lies beside the ONNX file, and in the "
        "environment.",
    ),
}
"""Parts by name: the heading, and what is done."""

FIRST = """# Reliability

What was tried, and how often. `make reliability` runs all parts and prints these figures; one part is run by
`python benchmarks/reliability.py PART`. Parts of them run in `make test-full` too, with fewer tries: `tests/training`,
`tests/slow`, `tests/files` and `tests/shell/serve`. This page is written from `results/reliability` by
`python benchmarks/reliability.py --page`.
"""


def show(value: Any) -> str:
    """A figure as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {show(one)}" for key, one in value.items())
    return ", ".join(map(show, value)) if isinstance(value, list) else f"{value:,}"


def page() -> str:
    """Returns the page of all parts that have figures."""
    text = FIRST
    for name, (title, about) in PARTS.items():
        file = RESULTS / f"{name}.json"
        if file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            lines = [f"| {key} | {show(value)} |" for key, value in found["figures"].items()]
            table = "\n".join(["| | |", "|---|---|", *lines])
            text += f"\n## {title}\n\n{about} (`{name}`; {found['machine']}.)\n\n{table}\n"
    return text


def machine() -> str:
    """The machine in words."""
    return f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def run(name: str, scale: float, out: Path) -> None:
    """Runs a part, prints its figures and writes them."""
    import reliability_server
    import reliability_training

    part = getattr(reliability_training, name, None) or getattr(reliability_server, name)
    start = time.perf_counter()
    figures = part(scale)
    print(f"{PARTS[name][0]}: {PARTS[name][1]}")
    for key, value in figures.items():
        print(f"    {key:<55} {show(value)}")
    print(f"    {'seconds':<55} {time.perf_counter() - start:.0f}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps({"figures": figures, "machine": machine()}, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Reads the command line, and runs parts or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the tries; below 1 nothing is written to results")
    parser.add_argument("--page", action="store_true", help="write docs/reliability.md")
    parser.add_argument("--check", action="store_true", help="check that docs/reliability.md is current")
    given = parser.parse_args()
    if given.check:
        return int(PAGE.read_text(encoding="utf-8") != page())
    if unknown := [name for name in given.parts if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]}")
    if not given.page or given.parts:
        sys.path.insert(0, str(ROOT / "tests"))  # small ONNX files and servers are those of the tests
        warnings.simplefilter("ignore")
        for name in given.parts or PARTS:
            run(name, given.scale, RESULTS if given.scale == 1 else ROOT / "build" / "reliability")
    if given.page:
        PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
