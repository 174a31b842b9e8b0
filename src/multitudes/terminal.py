"""Progress bars, and tables and sizes as text."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

Tell = Callable[..., None]
"""Function that advances a bar by `count` and shows values, and a line below them: tell(count, below="nll ▃▂▁", loss="0.5")."""


def is_shown(progress: bool | None) -> bool:
    """Returns `progress`; if it is None, whether standard error is a terminal."""
    return sys.stderr.isatty() if progress is None else progress


@contextlib.contextmanager
def bar(name: str, total: int | None, progress: bool | None, unit: str = "") -> Iterator[Tell]:
    """Shows a bar on standard error during a with-block. Yields a function that advances it and shows values below."""
    if not is_shown(progress):
        yield lambda count=1, below="", **shown: None
        return
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class BarAndValues(Progress):
        def get_renderables(self) -> Iterator[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            for task in self.tasks:
                for line in filter(None, task.fields["shown"].split("\n")):
                    yield Text(line, no_wrap=True, overflow="ellipsis")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with BarAndValues(*columns, console=Console(stderr=True), transient=True) as live:
        job = live.add_task(name, total=total, shown="")

        def tell(count: int = 1, below: str = "", **shown: object) -> None:
            live.advance(job, count)
            if shown:
                values = "  ".join(f"{key} {value}" for key, value in shown.items())
                live.update(job, shown=f"{values}\n{below}")

        yield tell


BLOCKS = "▁▂▃▄▅▆▇█"


def curve(values: Sequence[float], width: int = 24) -> str:
    """Draws the last `width` values as a line of blocks, the lowest value lowest; NaN and infinite ones as gaps.

    >>> curve([1.0, 0.5, 0.25, 0.3])
    '█▃▁▁'
    """
    last = values[-width:]
    finite = [value for value in last if math.isfinite(value)]
    low, span = min(finite, default=0.0), max(finite, default=0.0) - min(finite, default=0.0)
    return "".join(BLOCKS[int((v - low) / (span or 1) * 7 + 0.5)] if math.isfinite(v) else " " for v in last)


class Steps:
    """Times the steps of a long function, and shows the present one on standard error once they take long."""

    PATIENCE = 3.0
    """Seconds after which steps are shown."""

    def __init__(self, name: str, progress: bool | None = None) -> None:
        self.name = name
        self.shown = is_shown(progress)
        self.begin = self.since = time.perf_counter()
        self.present = ""
        self.seconds: dict[str, float] = {}
        """The seconds of each step, by its name."""

    def next(self, what: str) -> None:
        """Ends the present step and begins another one; an empty name ends the last."""
        now = time.perf_counter()
        if self.present:
            self.seconds[self.present] = self.seconds.get(self.present, 0.0) + now - self.since
        self.present, self.since = what, now
        if self.shown and now - self.begin > self.PATIENCE:
            line = f"{self.name}: {what} ({now - self.begin:.0f} s)" if what else ""
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()


_STEPS: ContextVar[Steps | None] = ContextVar("steps", default=None)


@contextlib.contextmanager
def steps(name: str, progress: bool | None = None) -> Iterator[Steps]:
    """Times the steps that functions announce by `step` in a with-block. After 3 s it shows them on standard error."""
    timed = Steps(name, progress)
    token = _STEPS.set(timed)
    try:
        yield timed
    finally:
        timed.next("")
        _STEPS.reset(token)


def step(what: str) -> None:
    """Announces the next step to the innermost `steps` block, if there is one."""
    timed = _STEPS.get()
    if timed is not None:
        timed.next(what)


def rendered(parts: list[Any], width: int | None = None) -> str:
    """Renders tables as text without colour, so that logs and notebooks show them too. `width` defaults to the terminal's."""
    import shutil
    from io import StringIO

    from rich.console import Console

    width = width or min(140, max(80, shutil.get_terminal_size((140, 24)).columns))
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False, markup=False, emoji=False)
    for part in parts:
        console.print(part)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip()


def megabytes(size: float) -> str:
    """Formats a number of bytes: 512 B, 1.5 KiB, 3.0 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
