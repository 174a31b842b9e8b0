"""Items: what a paper's table or figure prints, and what is run for it at each scale. Nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from multitudes.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = ("smoke", "small", "full")
"""smoke: seconds, data of the package. small: minutes on one GPU. full: the paper's protocol."""

Time = Literal["seconds", "minutes", "hours", "days"]


class Number(NamedTuple):
    """A printed number."""

    text: str
    """As it is printed, without its spread."""
    value: float
    spread: float | None = None
    """What stands behind ±."""

    @property
    def digits(self) -> int:
        """Number of printed decimals."""
        return len(self.text.partition(".")[2])

    def __str__(self) -> str:
        return self.text if self.spread is None else f"{self.text} ± {self.spread:g}"


@dataclass(frozen=True)
class Printed:
    """A printed table: rows by label, numbers by column. What the paper leaves out is missing."""

    columns: tuple[str, ...] = ()
    rows: Mapping[str, Mapping[str, Number]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(row) for row in self.rows.values())

    def of(self, label: str) -> Mapping[str, Number]:
        """Returns the numbers of a row; none if the paper does not have it."""
        return self.rows.get(label, {})


def printed(text: str) -> Printed:
    """Reads a table as it is typed: a heading and a line for each row, cells between bars; - for a number that is missing.

    >>> printed("method | Acc | ECE\\nSingle | 94.0 | 0.035 ± 0.001").rows["Single"]["ECE"]
    Number(text='0.035', value=0.035, spread=0.001)
    """
    heading, *lines = [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]
    columns, rows = tuple(heading[1:]), dict[str, dict[str, Number]]()
    for label, *cells in lines:
        if len(cells) != len(columns) or label in rows:
            raise InputError(
                f"the printed row {label!r} has {len(cells)} numbers for {len(columns)} columns, or is there twice"
            )
        rows[label] = {name: _number(cell) for name, cell in zip(columns, cells, strict=True) if cell != "-"}
    return Printed(columns, rows)


def _number(cell: str) -> Number:
    text, sign, spread = (part.strip() for part in cell.partition("±"))
    plain = text.replace(",", "")
    return Number(plain, float(plain), float(spread) if sign else None)


class Column(NamedTuple):
    """A column of an item: where its numbers are found among the results of a run."""

    score: str
    """Name of the score. `ood/...` is of the first OOD set, whatever its name; `cost/...` is a cost, `relative/...` a cost
    divided by that of the single network, `measured/...` a further number of the job. {key} is the row's own."""
    factor: float = 1.0
    """What the score is multiplied by to be as printed: 100 for percents."""
    over: Literal["mean", "error", "sd", "count"] = "mean"
    """How runs are summarised: by their mean ± standard deviation, mean ± standard error, the standard deviation itself, or
    the number of runs in which the score is 1 and not 0."""


class Place(NamedTuple):
    """What a row of a table is trained as: a row of jobs."""

    row: str
    """Name of the row in its job, as in `bench --methods`."""
    jobs: tuple[str, ...]
    """The jobs; several for a mean over splits of a dataset."""
    key: str = ""
    """What {key} in the scores of columns stands for in this row, such as the criterion of its OOD detection."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What is run for an item at one scale."""

    time: Time
    """How long it takes: on a CPU at smoke, on one fast GPU otherwise."""

    differs: str = ""
    """What differs from the paper. Empty if nothing does."""

    seeds: tuple[int, ...] = (0,)
    """The seeds, unless others are typed."""

    work: str = ""
    """A function in work/PAPER.py, if another than the item's: work(scale, seed, root) returns Findings."""

    jobs: tuple[str, ...] = ()
    """The jobs that are trained, in place of a function."""

    rows: tuple[str, ...] = ()
    """Labels of the rows that are trained, if not all."""

    apart: tuple[str, ...] = ()
    """Columns whose printed numbers do not stand beside ours: those of corrupted images that are not the published files."""

    beside: bool = True
    """Whether the printed numbers stand beside ours. They do not where data or images are others than the paper's."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or a figure of a paper."""

    name: str
    """PAPER/ITEM."""

    title: str
    """What it shows, in a few words."""

    protocol: str
    """What the paper does, as far as it says."""

    scales: Mapping[str, Scale]
    """What is run, by scale."""

    printed: Printed = field(default_factory=Printed)
    """The numbers that the paper prints."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    """Columns of our table, by heading. By default the printed columns, with numbers of the same name."""

    rows: Mapping[str, Place] = field(default_factory=dict)
    """For trained items: what each row is trained as, by its label."""

    misses: str = ""
    """Why our numbers differ from the printed ones where they do."""

    source: str = ""
    """The item whose jobs these are, if it only shows them otherwise: a figure of a table."""

    sources: Mapping[str, str] = field(default_factory=dict)
    """Items of single jobs, by job, if they are not those of `source`: a table of two networks."""

    derives: str = ""
    """A function in work/PAPER.py that computes further numbers from a row and all rows of its job:
    derives(row, rows) returns them by name, for `measured/...`."""

    draws: str = ""
    """A function in work/PAPER.py that draws the figures of trained rows: draws(results) returns figures by name."""

    @property
    def paper(self) -> str:
        """The paper: the first part of the name."""
        return self.name.partition("/")[0]

    def trained(self, job: str) -> str:
        """Returns the item that a job belongs to."""
        return self.sources.get(job) or self.source or self.name

    def at(self, scale: str) -> Scale:
        """Returns what is run at a scale; an error names the scales that there are."""
        if scale not in self.scales:
            known = ", ".join(self.scales)
            raise InputError(f"{self.name} has no --scale {scale}: it has {known}")
        return self.scales[scale]

    def rows_at(self, scale: str) -> dict[str, Place]:
        """Returns the rows that are trained at a scale, by label."""
        at = self.at(scale)
        chosen = {label: one for label, one in self.rows.items() if label in (at.rows or self.rows)}
        return {label: one for label, one in chosen.items() if set(one.jobs) & set(at.jobs)}

    def beside(self, label: str, scale: str) -> dict[str, Number]:
        """Returns the printed numbers that stand beside ours in a row."""
        at = self.scales.get(scale)
        if at is None or not at.beside:
            return {}
        return {name: number for name, number in self.printed.of(label).items() if name not in at.apart}

    def job(self, name: str, scale: str) -> str:
        """Returns the name of one of its jobs for `bench --job`: packed/table-1/cifar10-resnet18@small."""
        return f"{self.trained(name)}/{name}@{scale}"

    def shown_columns(self) -> Mapping[str, Column]:
        """Returns the columns of the table that compares ours with theirs."""
        return self.columns or {name: Column(name) for name in self.printed.columns}


@dataclass(frozen=True)
class Findings:
    """What the function of an item returns."""

    rows: Mapping[str, Mapping[str, Any]]
    """Numbers by row and column."""
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """Figures by the name of their file."""
    budget: str = ""
    """How much was computed, in words."""


def places(rows: Mapping[str, str], jobs: Sequence[str], name: str = "{row}") -> dict[str, Place]:
    """Makes the places of rows that several jobs have alike; `name` may hold {row} and {job}."""
    return {name.format(row=label, job=job): Place(row, (job,)) for job in jobs for label, row in rows.items()}
