"""python -m benchmarks: the grid of speeds. See speed.py."""

from __future__ import annotations

import argparse
import sys

import torch

from benchmarks import page
from benchmarks.speed import METHODS, NETWORKS, PRECISIONS, run

THEIRS = ["package", "tu_packed", "tu_packed_gamma2", "tu_masksembles", "tu_batchensemble"]


def main() -> None:
    """Reads the arguments, and measures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--methods", nargs="+", default=["single", "looped", *METHODS, *THEIRS])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 128, 1024])
    parser.add_argument("--precisions", nargs="+", default=["bf16"], choices=list(PRECISIONS))
    parser.add_argument("--modes", nargs="+", default=["infer", "train"], choices=["infer", "train"])
    parser.add_argument("--compiled", nargs="+", choices=["no", "yes", "graphs"], default=["no"], help="graphs: CUDA graphs")
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds for each contender of a cell")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tune", action="store_true", help="let ens.tune(x) choose")
    parser.add_argument("--profile", action="store_true", help="print what a GPU does in each call")
    parser.add_argument("--out", default="results/speed.json")
    parser.add_argument("--page", action="store_true", help="write docs/performance.md from results/speed.json")
    parser.add_argument("--check", action="store_true", help="check that docs/performance.md is current")
    given = parser.parse_args()
    if given.check:
        sys.exit(not page.is_current())
    page.write() if given.page else run(given)


if __name__ == "__main__":
    main()
