"""The command `multitudes reproduce`: what it lists, checks, runs and prints. Torch is imported only to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from multitudes.errors import InputError
from multitudes.shell import typed
from multitudes.shell.options import Json, Root
from multitudes.shell.printing import print_json, print_line, print_notes
from multitudes.shell.reproduce.catalog import ITEMS, find_item
from multitudes.shell.reproduce.comparison import compared, rich_table
from multitudes.shell.reproduce.item import SCALES, Item
from multitudes.shell.reproduce.results import Result, load_all, place

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Wanted:
    """What is to be run."""

    item: Item
    scale: str
    seeds: tuple[int, ...] | None

    def notes(self) -> list[str]:
        """Says what the paper does, which seeds were asked for, and what differs from the paper."""
        at = self.item.at(self.scale)
        seeds = ", ".join(map(str, self.seeds or at.seeds))
        notes = [f"what the paper does: {self.item.protocol}", f"seeds at {self.scale}: {seeds}"]
        return [*notes, f"what differs from the paper: {at.differs}"] if at.differs else notes


def check(name: str, scale: str, seeds: str, only: Sequence[str]) -> Wanted:
    """Checks what was typed, before torch is imported."""
    item = find_item(name)
    if scale not in SCALES:
        raise typed.unknown_name("--scale", scale, SCALES)
    at = item.at(scale)
    parts = [part.strip().lower() for part in only if part.strip()]
    if parts:
        if not at.jobs:
            raise InputError(f"{name} is computed at once at {scale}: leave out --only")
        every = tuple(item.rows_at(scale))
        labels = [label for label in every if any(_means(part, label, every) for part in parts)]
        if not labels:
            raise InputError(
                f"--only {' --only '.join(only)}: no row of {name} at {scale} has such a label. There are {'; '.join(every)}"
            )
        item = replace(item, scales={**item.scales, scale: replace(at, rows=tuple(labels))})
    return Wanted(item, scale, tuple(typed.seeds(seeds)) if seeds else None)


def _means(part: str, label: str, labels: Sequence[str]) -> bool:
    """Whether a text names a label: it is the label, or is a part of it and no label itself ("ρ = 0" is not "ρ = 0.2")."""
    whole = part in (one.lower() for one in labels)
    return label.lower() == part if whole else part in label.lower()


def listed(results: Path) -> list[dict[str, Any]]:
    """Returns all items: name, title, protocol, scales with their times, seeds and what differs, how many numbers the paper
    prints, and what was run."""
    return [
        {
            "name": item.name,
            "title": item.title,
            "protocol": item.protocol,
            "scales": {scale: at.time for scale, at in item.scales.items()},
            "seeds": {scale: list(at.seeds) for scale, at in item.scales.items()},
            "differs": {scale: at.differs for scale, at in item.scales.items()},
            "printed": len(item.printed),
            "published": [scale for scale in SCALES[1:] if load_all(results, item, scale)],
        }
        for item in ITEMS.values()
    ]


def list_table(items: Sequence[dict[str, Any]]) -> Table:
    """Formats the list of items for a terminal of 80 columns; scales whose rows are published have a star."""
    from rich.table import Table

    table = Table(box=None, caption="* published rows: docs/results.md", caption_justify="left")
    for name in ("item", "what it shows", *SCALES, "printed"):
        table.add_column(name, no_wrap=name != "what it shows", justify="right" if name == "printed" else "left")
    for one in items:
        times = [one["scales"].get(scale, "") + ("*" if scale in one["published"] else "") for scale in SCALES]
        table.add_row(one["name"], one["title"], *times, str(one["printed"] or ""))
    return table


def run(wanted: Wanted, *, out: Path, quiet: bool, **options: Any) -> tuple[list[Result], Path]:
    """Runs an item. Returns its rows and the folder that they are in."""
    from multitudes.shell.live_table import live_table
    from multitudes.shell.reproduce.run import run_item

    def watch(sweep: Any) -> Any:
        return live_table(sweep, live=False if quiet else None)

    results = run_item(wanted.item, wanted.scale, seeds=wanted.seeds, out=out, watch=watch, **options)
    return results, place(out, wanted.item.name, wanted.scale)


def table(wanted: Wanted, results: Sequence[Result]) -> Table:
    """Formats ours beside theirs for a terminal."""
    return rich_table(wanted.item, results)


def plain(wanted: Wanted, results: Sequence[Result]) -> dict[str, Any]:
    """Returns ours and theirs as JSON."""
    cells = compared(wanted.item, results)
    rows = {
        label: {
            name: {"ours": one.ours, "sd": one.deviation, "paper": None if one.theirs is None else one.theirs.value}
            for name, one in row.items()
            if one.ours is not None
        }
        for label, row in cells.items()
    }
    return {"item": wanted.item.name, "scale": wanted.scale, "differs": wanted.item.at(wanted.scale).differs, "rows": rows}


def write_page(results: Path) -> str:
    """Writes the page of results and the guide's tables, and says where they are."""
    from multitudes.shell.reproduce.page import write_pages

    return ", ".join(str(path) for path in write_pages(results, Path("docs")))


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="PAPER/ITEM", help="table or figure, such as packed/table-1")] = None,
    shown: Annotated[bool, typer.Option("--list", help="list all tables and figures")] = False,
    page: Annotated[
        bool, typer.Option("--page", help="write docs/results.md, and the tables of docs/guide.md, from the rows in --out")
    ] = False,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), small (minutes on a GPU), full (the paper's protocol)")
    ] = "smoke",
    seeds: Annotated[str, typer.Option(help="seeds, with commas or as a range; default: the item's")] = "",
    only: Annotated[
        list[str] | None, typer.Option(help="rows of this label, or whose label holds this text; several: --only A --only B")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder for rows and figures; default: runs/reproduce, of --list and --page: results")
    ] = None,
    runs: Annotated[Path, typer.Option(help="folder for the trained networks")] = Path("runs/reproduce"),
    workers: Annotated[int, typer.Option(help="number of processes on this machine")] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="run on Ray on this machine")] = False,
    ray_address: Annotated[str | None, typer.Option(help="run on the Ray cluster at this address, such as auto")] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="replace rows that are damaged or of other settings, and compute again what is not trained"
        ),
    ] = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Run the experiment behind a table or a figure of the papers, and print ours beside theirs.

    Rows go to --out as JSON, figures as PNG. If it is interrupted, run the same command again to resume it.

      multitudes reproduce --list

      multitudes reproduce masksembles/fig-3

      multitudes reproduce packed/table-1 --scale small --root DATA --out results
    """
    if page:
        print_line(write_page(out or Path("results")))
        return
    if shown or name is None:
        items = listed(out or Path("results"))
        print_json(items) if as_json else Console().print(list_table(items))
        return
    wanted = check(name, scale, seeds, only or ())
    results, folder = run(
        wanted, out=out or Path("runs/reproduce"), runs=runs, workers=workers, ray=ray, ray_address=ray_address, force=force,
        root=root, quiet=as_json,
    )  # fmt: skip
    if as_json:
        print_json(plain(wanted, results))
        return
    Console().print(table(wanted, results))
    print_notes(wanted.notes())
    print_line(f"rows and figures: {folder}")
