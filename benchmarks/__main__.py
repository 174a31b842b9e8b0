"""python -m benchmarks: the grid of speeds (speed.py), how cost grows (growth.py), seconds of compiling (compiling.py)."""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks import compiling, growth, page, speed
from benchmarks.speed import METHODS, NETWORKS, PRECISIONS

THEIRS = ["package", "tu_packed", "tu_packed_gamma2", "tu_masksembles", "tu_batchensemble"]


def main() -> None:
    """Reads the arguments, and measures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--growth", choices=["members", "width"], help="how cost grows with members (1 to 64) or width (¼ to 2)"
    )
    parser.add_argument("--compile-seconds", action="store_true", help="the first compiled call of each method, alone")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", default=["single", "looped", *METHODS, *THEIRS])
    parser.add_argument("--batches", nargs="+", type=int, default=[], help="rows: by default 1 128 1024, on a CPU 1 16 64")
    parser.add_argument("--precisions", nargs="+", default=[], choices=list(PRECISIONS), help="by default bf16, on a CPU fp32")
    parser.add_argument("--modes", nargs="+", default=["infer", "train"], choices=["infer", "train"])
    parser.add_argument("--compiled", nargs="+", choices=["no", "yes", "graphs"], default=["no"], help="graphs: CUDA graphs")
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds for each contender of a cell")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds above which a contender is left out of a cell")
    parser.add_argument("--most", type=float, default=0.0, help="seconds after which --growth begins no other cell")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tune", action="store_true", help="let ens.tune(x) choose")
    parser.add_argument("--profile", action="store_true", help="print what a GPU does in each call")
    parser.add_argument("--out", help="by default results/speed.json, growth.json or compile.json")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md and its figures from the results")
    parser.add_argument("--check", action="store_true", help="check that docs/performance.md is current")
    given = parser.parse_args()
    given.precisions = given.precisions or ["fp32" if given.device == "cpu" else "bf16"]
    if given.check:
        sys.exit(not page.is_current())
    if given.page:
        page.write()
    elif given.growth:
        growth.run(given)
    elif given.compile_seconds:
        compiling.run(given)
    else:
        given.batches = given.batches or ([1, 16, 64] if given.device == "cpu" else [1, 128, 1024])
        speed.run(given)


if __name__ == "__main__":
    main()
