"""Exports the best ensemble of a comparison, with names, threshold and reference, and serves it.

make serve-demo
python examples/serve_demo.py runs/demo --port 8000

The best is the one with the lowest NLL on the test set. It abstains below the confidence that answers nine of ten examples of
the validation set, whose uncertainty is also the reference for inputs that are unlike those of training.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import multitudes as mt
from multitudes.report.row import Row
from multitudes.shell.jobs import find_job
from multitudes.shell.serve.command import serve
from multitudes.shell.steps import load_ensemble, told_of


def best_run(folder: Path) -> Path:
    """The run with the lowest NLL in a folder."""
    runs = sorted(file.parent for file in folder.rglob("row.json"))
    if not runs:
        raise SystemExit(f"{folder} holds no runs: type `make demo`")
    return min(runs, key=lambda run: Row.load(run).scores["nll"])


def export(run: Path, path: Path) -> None:
    """Exports the ensemble of a run."""
    told = told_of(run, None, None, None)
    job = find_job(told.job, told.root)
    ens = load_ensemble(run, job, told)
    held_out = mt.predict(ens, job.validation)
    limit = mt.threshold(held_out, coverage=0.9)
    print(mt.export(ens, job.example, path, threshold=limit, reference=held_out, labels=job.classes, units=job.train))


def main() -> None:
    """Exports and serves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs/demo"))
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--export-only", action="store_true")
    given = parser.parse_args()
    run = best_run(given.folder)
    path = given.folder / "best.onnx"
    export(run, path)
    print(f"{run} as {path}: http://127.0.0.1:{given.port}, to stop it press Ctrl-C", flush=True)
    if not given.export_only:
        with contextlib.suppress(KeyboardInterrupt):  # the server has answered all, and passes the signal on
            serve(path, port=given.port)


if __name__ == "__main__":
    main()
