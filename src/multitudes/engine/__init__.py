"""Executors: the loop, vmap and fold all compute the outputs of M members from one template module."""

from multitudes.engine.fold import (
    batch_coupled,
    forbidden,
    rows_lie_together,
    run_fold,
    run_fold_each_row,
    run_fold_rows,
    takes_rows,
)
from multitudes.engine.loop import run_loop, run_loop_rows
from multitudes.engine.state import MODES, Engine, Traits
from multitudes.engine.vmap import run_vmap, run_vmap_rows

EXECUTORS = {"loop": run_loop, "vmap": run_vmap, "fold": run_fold}

__all__ = [
    "EXECUTORS",
    "MODES",
    "Engine",
    "Traits",
    "batch_coupled",
    "forbidden",
    "rows_lie_together",
    "run_fold",
    "run_fold_each_row",
    "run_fold_rows",
    "run_loop",
    "run_loop_rows",
    "run_vmap",
    "run_vmap_rows",
    "takes_rows",
]
