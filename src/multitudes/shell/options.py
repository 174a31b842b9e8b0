"""Options that several commands of the shell have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def complete_method(incomplete: str) -> list[str]:
    """Completes the name of a method."""
    from multitudes.shell.parse import methods_by_name

    return [name for name in methods_by_name() if name.startswith(incomplete)]


def complete_methods(incomplete: str) -> list[str]:
    """Completes the last name of a list with commas."""
    front, comma, last = incomplete.rpartition(",")
    return [f"{front}{comma}{name}" for name in complete_method(last)]


def complete_job(incomplete: str) -> list[str]:
    """Completes the name of a job."""
    from multitudes.shell.jobs import JOBS

    return [name for name in JOBS if name.startswith(incomplete)]


JOB_NAMES = "fashion, yacht, energy (embedded), cifar10, or your own MODULE:FUNCTION (see `multitudes init`)"
JobName = Annotated[str, typer.Option("--job", help=f"network and data: {JOB_NAMES}", autocompletion=complete_job)]
OwnJob = Annotated[
    str | None, typer.Option("--job", help=f"network and data: {JOB_NAMES}; default: fashion", autocompletion=complete_job)
]
RunJob = Annotated[
    str | None,
    typer.Option("--job", help=f"network and data, if not those of the training: {JOB_NAMES}", autocompletion=complete_job),
]
RunModel = Annotated[str | None, typer.Option(help="the network, if not that of the training: MODULE:FACTORY")]
METHOD = "a method, such as packed or 'packed(alpha=2, gamma=2)'"
Method = Annotated[str, typer.Option(help=METHOD, autocompletion=complete_method)]
Methods = Annotated[
    str,
    typer.Option(help="methods, with commas: single,packed,'mimo(members=2)'; default: all", autocompletion=complete_methods),
]
Root = Annotated[Path | None, typer.Option(help="folder of the datasets; default: the folder in MULTITUDES_DATA")]
Calibrated = Annotated[
    bool,
    typer.Option(
        "--calibrated", help="apply the temperature, or factor of variances, that the run fitted on its validation set"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="print JSON, and nothing else, to standard output")]
Force = Annotated[bool, typer.Option("--force", help="replace what is there")]
