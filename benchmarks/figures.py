"""The figures of docs/performance.md: cost against members and against width, and each method beside its peers.

Each file holds a digest of the rows that it shows, so that --check knows without drawing whether it is current.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multitudes.figures import canvas
from multitudes.figures.theme import LOOKS, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]

CURVES = {
    "deep": "Deep", "packed": "Packed, α = 2", "mimo": "MIMO", "batchensemble": "BatchEnsemble", "masksembles": "Masksembles"
}  # fmt: skip
MODES = {"infer": "prediction", "train": "training step"}
NETWORKS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "wideresnet28_10": "WideResNet-28-10", "vit": "ViT", "mlp": "MLP"}
PLACES = {"cpu": "one CPU thread", "cuda": "H200"}

GROUPS = {
    "Packed": {"packed": "ours", "packed_frozen": "faster", "tu_packed": "tu"},
    "Masksembles": {
        "masksembles": "ours", "masksembles_compact_frozen": "faster", "tu_masksembles": "tu", "package": "package"
    },
    "BatchEnsemble": {"batchensemble": "ours", "batchensemble_frozen": "faster", "tu_batchensemble": "tu"},
    "MIMO": {"mimo": "ours", "mimo_compact": "faster"},
    "Deep": {"deep": "ours", "deep_frozen": "faster", "looped": "turn"},
}  # fmt: skip
"""Bars of each method: contenders, and whose they are."""
WHOSE = {
    "ours": ("multitudes", 0), "faster": ("multitudes, frozen or compacted", 2), "tu": ("torch-uncertainty", 1),
    "package": ("masksembles package", 3), "turn": ("four networks in turn", None),
}  # fmt: skip
"""What is said of each kind of bar, and its colour."""
BARS = (
    ("cpu", "infer", 16, "fp32"),
    ("cpu", "train", 16, "fp32"),
    ("cuda", "infer", 1024, "bf16"),
    ("cuda", "train", 128, "bf16"),
)
"""Cells of ResNet-18 that are shown as bars."""


def growth_rows(rows: Sequence[Row], kind: str) -> list[Row]:
    """Selects the rows of a curve that were measured."""
    return [row for row in rows if row.get("growth") == kind and row.get("of_single") and row["contender"] in CURVES]


def growth(rows: Sequence[Row], kind: str, look: Look) -> Figure:
    """Draws cost against members or width: one panel for each device and mode, one curve for each method."""
    places = [place for place in PLACES if any(row["device"] == place for row in rows)]
    figure = canvas.new_figure(9.0, 3.7 * len(places) + 0.5, look)
    panels = figure.subplots(len(places), 2, squeeze=False)
    for place, line in zip(places, panels, strict=True):
        for mode, panel in zip(MODES, line, strict=True):
            _curves(panel, [row for row in rows if (row["device"], row["mode"]) == (place, mode)], kind, look)
    handles, names = panels[0][0].get_legend_handles_labels()
    canvas.legend(figure, look, handles=handles, labels=names, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _curves(panel: Axes, rows: list[Row], kind: str, look: Look) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ticks = sorted({row[kind] for row in rows})
    for index, (name, label) in enumerate(CURVES.items()):
        points = sorted((row[kind], row["of_single"]) for row in rows if row["contender"] == name)
        style = look.style(index)
        panel.plot(
            [x for x, _ in points], [y for _, y in points], color=style.colour, linestyle=style.line, marker=style.marker,
            markersize=5, linewidth=1.8, label=label,
        )  # fmt: skip
    turns = [float(row["members"]) for row in rows]
    bound = ticks if kind == "members" else [turns[0]] * len(ticks) if turns else []
    panel.plot(ticks, bound, color=look.muted, linewidth=1, linestyle=(0, (2, 2)), label="M × single", zorder=1)
    head = rows[0] if rows else None
    what = "" if head is None else f"{MODES[head['mode']]}, {_where(head, kind)}"
    canvas.style_axes(
        panel, look, title=what[:1].upper() + what[1:], x="members M" if kind == "members" else "width of the network",
        y="time, × single network",
    )  # fmt: skip
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_locator(FixedLocator(ticks))


def _where(row: Row, kind: str) -> str:
    """Says on what rows were measured."""
    width = f" of width {row['width']:g}" if kind == "members" and row["width"] != 1 else ""
    members = "" if kind == "members" else f", M = {row['members']}"
    return f"{PLACES[row['device']]}\n{NETWORKS[row['network']]}{width}, {row['batch']} rows, {row['precision']}{members}"


def bar_rows(rows: Sequence[Row]) -> list[Row]:
    """Selects the rows that are shown as bars."""
    names = {name for group in GROUPS.values() for name in group}
    return [
        row
        for row in rows
        if row["network"] == "resnet18" and row["compiled"] == "no" and row.get("of_single") and row["contender"] in names
        if (row["device"], row["mode"], row["batch"], row["precision"]) in BARS
    ]


def bars(rows: Sequence[Row], look: Look) -> Figure:
    """Draws the time of each method and of its peers as a multiple of the single network's."""
    cells = [cell for cell in BARS if any((r["device"], r["mode"], r["batch"], r["precision"]) == cell for r in rows)]
    figure = canvas.new_figure(10.0, 4.3 * -(-len(cells) // 2) + 0.5, look)
    panels = list(figure.subplots(-(-len(cells) // 2), 2, squeeze=False).flat)
    for panel, cell in zip(panels, cells, strict=False):
        found = {r["contender"]: r["of_single"] for r in rows if (r["device"], r["mode"], r["batch"], r["precision"]) == cell}
        _bars(panel, found, cell, look)
    for spare in panels[len(cells) :]:
        spare.remove()
    from matplotlib.patches import Patch

    shown = {whose for group in GROUPS.values() for name, whose in group.items() if any(r["contender"] == name for r in rows)}
    handles = [Patch(color=_colour(whose, look), label=WHOSE[whose][0]) for whose in WHOSE if whose in shown]
    canvas.legend(figure, look, handles=handles, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _colour(whose: str, look: Look) -> str:
    index = WHOSE[whose][1]
    return look.muted if index is None else look.colours[index]


def _bars(panel: Axes, found: dict[str, float], cell: tuple[str, str, int, str], look: Look) -> None:
    at, middles, names = 0.0, [], []
    longest = max(found.values())
    for method, group in GROUPS.items():
        present = [(name, whose) for name, whose in group.items() if name in found]
        if not present:
            continue
        start = at
        for name, whose in present:
            panel.barh(at, found[name], height=0.86, color=_colour(whose, look), zorder=2)
            panel.text(
                found[name] + 0.015 * longest, at, f"{found[name]:.2f}", va="center", color=look.ink, fontsize=canvas.SIZE - 2,
                bbox={"facecolor": look.paper, "edgecolor": "none", "pad": 0.6}, zorder=4,
            )  # fmt: skip
            at += 1.0
        middles.append((start + at - 1.0) / 2)
        names.append(method)
        at += 0.7
    device, mode, batch, precision = cell
    title = f"{MODES[mode].capitalize()}, {PLACES[device]}\nResNet-18, {batch} rows, {precision}, eager"
    canvas.style_axes(panel, look, title=title, x="time, × single network", grid="x")
    panel.set_yticks(middles, names)
    panel.tick_params(axis="y", length=0)
    panel.axvline(1, color=look.ink, linewidth=1, linestyle="--", zorder=3)
    panel.set_xlim(0, 1.12 * longest)
    panel.invert_yaxis()


def digest(rows: Sequence[Row]) -> str:
    """Returns a short name of what is shown."""
    keys = ("contender", "device", "network", "mode", "batch", "precision", "members", "width", "of_single")
    text = json.dumps(sorted([str(row.get(key)) for key in keys] for row in rows))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def drawn(speed: Sequence[Row], grown: Sequence[Row]) -> dict[str, list[Row]]:
    """Returns the rows that each figure shows, by the name of its file; a figure without rows is not there."""
    found = {"members": growth_rows(grown, "members"), "width": growth_rows(grown, "width"), "peers": bar_rows(speed)}
    return {name: rows for name, rows in found.items() if rows}


def files(folder: Path, name: str) -> dict[str, Path]:
    """Returns a figure's file of each theme."""
    return {theme: folder / f"{name}{'' if theme == 'light' else '-' + theme}.svg" for theme in LOOKS}


def write(folder: Path, shown: dict[str, list[Row]]) -> None:
    """Writes all figures, light and dark, as SVG."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in shown.items():
        for theme, path in files(folder, name).items():
            look = LOOKS[theme]
            figure = bars(rows, look) if name == "peers" else growth(rows, name, look)
            with matplotlib.rc_context({"svg.hashsalt": name, "axes.unicode_minus": False}):
                figure.savefig(path, metadata={"Date": None, "Description": digest(rows)}, facecolor=look.paper)


def are_current(folder: Path, shown: dict[str, list[Row]]) -> bool:
    """Whether every file shows the present rows."""
    return all(
        path.exists() and digest(rows) in path.read_text(encoding="utf-8")
        for name, rows in shown.items()
        for path in files(folder, name).values()
    )
