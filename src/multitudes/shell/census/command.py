"""The command `multitudes census`: chooses networks and methods, shows progress, and writes results and page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table

from multitudes.errors import FileError, InputError
from multitudes.report.census import OUTCOMES, Result, counts, goal, group, rate, rates, read_results
from multitudes.report.census_page import write_page
from multitudes.settings import Count, check_value
from multitudes.shell.census.census import Limits, Pair, pairs, run_census
from multitudes.shell.census.networks import INSTALLED_AS, LIBRARIES, installed, matching, networks
from multitudes.shell.census.sample import sampled
from multitudes.shell.typed import unknown_name
from multitudes.terminal import bar, is_shown


@dataclass(frozen=True)
class Census:
    """The results of a census; prints as a table of rates."""

    results: Sequence[Result]
    file: Path
    page: Path

    def summary(self) -> dict[str, Any]:
        """Returns rates, counts and files, as JSON can hold them."""
        every = {name: {lib: [r.ok, r.tried] for lib, r in row.items()} for name, row in rates(self.results).items()}
        return {"rates": every, "outcomes": dict(counts(self.results)), "out": str(self.file), "page": str(self.page)}

    def __rich__(self) -> Group:
        table = Table(title="ok of tried", title_justify="left")
        every = rates(self.results)
        libraries = list(next(iter(every.values()), {}))
        for name in ("methods", *libraries, "all", "goal"):
            table.add_column(name, justify="left" if name == "methods" else "right")
        for name, row in every.items():
            total = rate(result for result in self.results if group(result.method) == name)
            share = "" if total.share is None else f"{total} ({total.percent})"
            table.add_row(name, *map(str, row.values()), share, f"{goal(name):.0%}")
        lines = [f"{count} {name}: {OUTCOMES[name]}" for name, count in counts(self.results).items()]
        return Group(table, *lines, f"results: {self.file}", f"page: {self.page}")


def take_census(
    *,
    libraries: Sequence[str] = (),
    only: Sequence[str] = (),
    methods: Sequence[str] = (),
    sample: bool = False,
    workers: int = 1,
    seconds: float = Limits.seconds,
    gigabytes: float = Limits.gigabytes,
    device: str = Limits.device,
    out: Path = Path("census.jsonl"),
    progress: bool | None = None,
) -> Census:
    """Runs the census and writes its page beside the results. `only` has globs of networks; without one, all are tried."""
    check_value("--workers", workers, Count)
    chosen = _chosen(libraries)
    every = networks(chosen)
    if unmatched := [glob for glob in only if not matching(every, [glob])]:
        raise InputError(
            f"--only {unmatched[0]!r} matches no network of {', '.join(chosen)}: type a glob of names or families, 'vit*'"
        )
    wanted = pairs(matching(every, only) if only else every, methods)
    if sample:
        wanted = sampled(wanted)
    if not wanted:
        raise InputError("no pair is left to try: the sample has none of these networks, or they are tried by other methods")
    return _written(_run(wanted, out, workers, Limits(seconds, gigabytes, device), progress), out)


def show_census(out: Path) -> Census:
    """Reads the results of a census, finished or not, and writes their page again."""
    results = list(read_results(out).values())
    if not results:
        raise FileError(f"{out} has no results: leave out --show to take a census, or name its file with --out")
    return _written(results, out)


def _written(results: Sequence[Result], out: Path) -> Census:
    page = out.with_suffix(".html")
    write_page(results, page)
    return Census(results, out, page)


def _chosen(libraries: Sequence[str]) -> list[str]:
    """Returns the libraries that are asked for and installed, and says on standard error what to install for the others."""
    if unknown := [name for name in libraries if name not in LIBRARIES]:
        raise unknown_name("library", unknown[0], LIBRARIES)
    asked = list(libraries or LIBRARIES)
    missing = [name for name in asked if not installed(name)]
    if missing:
        names = " ".join(INSTALLED_AS.get(LIBRARIES[name][0], LIBRARIES[name][0]) for name in missing)
        sys.stderr.write(f"left out, since they are not installed: {', '.join(missing)}. To try them: pip install {names}\n")
    return [name for name in asked if name not in missing]


def _run(wanted: Sequence[Pair], out: Path, workers: int, limits: Limits, progress: bool | None) -> list[Result]:
    """Runs the pairs under a progress bar; without a terminal, each new result is a line on standard error."""
    tally: dict[str, int] = {}
    with bar("census", len(wanted), progress) as tell:

        def on_end(result: Result) -> None:
            tally[result.outcome] = tally.get(result.outcome, 0) + 1
            tell(1, **tally, last=f"{result.network} × {result.method}")
            if not is_shown(progress):
                sys.stderr.write(f"{sum(tally.values())} {result.network} × {result.method}: {result.outcome}\n")

        return run_census(wanted, out, workers=workers, limits=limits, on_end=on_end)
