"""Writes docs/results.md from the rows in results/: every item, its protocol, what was run, ours beside theirs.

The evidence of docs/guide.md, sections `<!-- evidence -->`, is written from the same rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from multitudes.shell.reproduce.catalog import ITEMS, PAPERS, find_item
from multitudes.shell.reproduce.comparison import cell, markdown, number_text, pairs
from multitudes.shell.reproduce.item import Column, Item
from multitudes.shell.reproduce.results import Result, about_runs, load_all, place

PUBLISHED = ("small", "full")
"""Scales whose rows are published. Those of smoke only show that the commands run."""

FIGURES = "results"
"""Folder of the figures, beside the page."""

HEAD = """# Results: the papers' tables and figures

`multitudes reproduce PAPER/ITEM` runs the experiment behind each table and figure of five papers, and `--list` lists them all.
This page is written by `multitudes reproduce --page` from the rows in [results/](../results): every item with its protocol,
what was run, and ours beside theirs. Columns called *paper* have the printed numbers. Ours are means over runs, with the
standard deviation, or standard error where it says so, if there are several. ECE has 15 bins, and 20 in EMP's tables, the only
paper that prints their number.

`small` takes minutes to hours on one GPU, or on a CPU where nothing is trained on images; `full` is the paper's protocol. At
`small`, networks on images are trained compiled and in bfloat16 unless it says otherwise. *Not run* means that there are no
published rows, not that there is no command. No printed number stands beside corrupted images that we generated, because they
are not the published files.
"""

POINTS, SHARE = 0.5, 0.15
"""A row of the evidence is met if accuracy is at most this many points lower, and NLL at most this share higher."""

EVIDENCE = {
    "Acc %": Column("accuracy", 100), "NLL": Column("nll"), "ECE": Column("ece"), "AUPR": Column("ood/aupr_out/msp", 100),
    "AUC": Column("ood/auroc/msp", 100), "FPR95": Column("ood/fpr95/msp", 100),
}  # fmt: skip


def write_pages(results: Path, docs: Path) -> list[Path]:
    """Writes docs/results.md with its figures, and the guide's evidence. Returns the files."""
    shown = docs / FIGURES
    shutil.rmtree(shown, ignore_errors=True)
    for item in ITEMS.values():
        for scale in PUBLISHED:
            for file in sorted(place(results, item.name, scale).glob("*.png")):
                target = shown / item.name / f"{scale}-{file.name}"
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)
    draw_against(results, shown)
    page, guide = docs / "results.md", docs / "guide.md"
    page.write_text(page_text(results, docs), encoding="utf-8")
    if guide.is_file():
        guide.write_text(with_evidence(guide.read_text(encoding="utf-8"), results), encoding="utf-8")
    return [page, guide]


def draw_against(results: Path, shown: Path) -> None:
    """Draws all numbers against the printed ones, one dot each, by column; counts are left out, since they are equal."""
    from multitudes.figures.against import against

    found: dict[str, list[tuple[float, float]]] = {}
    for item in ITEMS.values():
        for scale in PUBLISHED:
            for name, own in pairs(item, load_all(results, item, scale)).items():
                if name in AGAINST:
                    found.setdefault(name, []).extend(own)
    if found:
        shown.mkdir(parents=True, exist_ok=True)
        against({name: found[name] for name in AGAINST if name in found}).savefig(shown / "against.png", dpi=110)


AGAINST = ("Acc", "NLL", "ECE", "AUPR", "AUC", "FPR95", "RMSE", "LPD")
"""Columns of the figure of ours against theirs."""


def page_text(results: Path, docs: Path) -> str:
    """Returns the text of docs/results.md."""
    parts = [HEAD]
    if (docs / FIGURES / "against.png").is_file():
        parts.append(
            "Every published number against the paper's, one dot each, with the line of equal numbers:\n\n"
            f"![ours against theirs]({FIGURES}/against.png)\n"
        )
    rows = ["| item | what it shows | printed numbers | small | full |", "| --- | --- | ---: | --- | --- |"]
    for item in ITEMS.values():
        cells = [_state(item, scale, results) for scale in PUBLISHED]
        rows.append(f"| [{item.name}](#{_anchor(item)}) | {item.title} | {len(item.printed) or ''} | {' | '.join(cells)} |")
    parts.append("\n".join(rows) + "\n")
    for paper, reference in PAPERS.items():
        parts.append(f"## {paper}\n\n{reference[0].upper()}{reference[1:]}\n")
        parts += [_item_text(item, results, docs) for item in ITEMS.values() if item.paper == paper]
    return "\n".join(parts)


def _anchor(item: Item) -> str:
    """Returns the anchor of an item's heading on the page."""
    return item.name.replace("/", "")


def _state(item: Item, scale: str, results: Path) -> str:
    """Says whether an item was run at a scale."""
    if scale not in item.scales:
        return ""
    found, expected = load_all(results, item, scale), len(item.rows_at(scale))
    if not found:
        return "not run"
    return "run" if len(found) >= expected else f"{len(found)} of {expected} rows"


def _item_text(item: Item, results: Path, docs: Path) -> str:
    """Returns the part of the page about an item."""
    parts = [f"### {item.name}\n", f"{item.title[0].upper()}{item.title[1:]}. {item.protocol}\n"]
    for scale in PUBLISHED:
        if scale not in item.scales:
            continue
        at, found = item.scales[scale], load_all(results, item, scale)
        jobs = f" Jobs: {len(at.jobs)}." if len(at.jobs) > 1 else ""
        differs = f" {at.differs}" if at.differs else ""
        if not found:
            parts.append(f"**{scale}** ({at.time}, {_plural(len(at.seeds), 'seed')}): not run.{jobs}{differs}\n")
            continue
        parts.append(f"**{scale}**: {_about(found)}.{differs}\n")
        parts.append(markdown(item, found) + "\n")
        missing = [] if not item.rows or item.source else _missing(item, scale, found)
        if missing:
            parts.append(f"Not run: {'; '.join(missing)}.\n")
        for file in sorted((docs / FIGURES / item.name).glob(f"{scale}-*.png")):
            parts.append(f"![{item.name}, {scale}: {file.stem}]({FIGURES}/{item.name}/{file.name})\n")
    if item.misses:
        parts.append(f"Misses: {item.misses}\n")
    return "\n".join(parts)


def _missing(item: Item, scale: str, found: Sequence[Result]) -> list[str]:
    """Returns the labels of rows of this scale that have no file."""
    there = {one.label for one in found}
    return [label for label in item.rows_at(scale) if label not in there]


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _about(found: Sequence[Result]) -> str:
    """Says what runs were: budget, device, seeds and date."""
    about = about_runs(found)
    most = max(len(one.runs) for one in found)
    texts = ["; ".join(about["budget"]), ", ".join(about["device"]), f"seeds {', '.join(about['seeds'])}"]
    texts += [f"at most {most} runs for a row"] if most > 1 else []
    return ", ".join(text for text in [*texts, " and ".join(about["date"])] if text)


def evidence(results: Path, where: str) -> str:
    """Returns the guide's table of Table 1 of Packed-Ensembles for data and network (C10, R18): one line for each run."""
    item = find_item("packed/table-1")
    lines = [["method", *EVIDENCE, "paper", "parameters"]]
    for one in load_all(results, item, "small"):
        if not one.label.endswith(f", {where}"):
            continue
        theirs = item.printed.of(one.label)
        for run in one.runs:
            single = Result(item=one.item, scale=one.scale, label=one.label, runs=(run,))
            values = {name: cell(single, column, None).ours for name, column in EVIDENCE.items()}
            texts = ["" if v is None else f"{v:.2f}" if EVIDENCE[name].factor > 1 else f"{v:.3f}" for name, v in values.items()]
            name = item.rows[one.label].row + (f", seed {run.seed}" if run.seed else "")
            beside = (
                f"{theirs['Acc'].text}, {theirs['NLL'].text}{'' if met(values, theirs) else ' (not met)'}" if theirs else "—"
            )
            lines.append([name, *texts, beside, f"{number_text(run.cost['parameters'] / 1e6)} M"])
    marks = ["---"] + ["---:"] * (len(lines[0]) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (lines[0], marks, *lines[1:]))


def met(values: dict[str, float | None], theirs: object) -> bool:
    """Whether a run is as good as the printed row, within POINTS of accuracy and SHARE of the NLL."""
    accuracy, nll = values["Acc %"], values["NLL"]
    assert accuracy is not None and nll is not None
    return accuracy >= theirs["Acc"].value - POINTS and nll <= (1 + SHARE) * theirs["NLL"].value  # type: ignore[index]


SECTIONS = {"evidence": "C10, R18", "evidence cifar100": "C100, R18"}
"""Sections of the guide, and the rows that they show."""


def with_evidence(text: str, results: Path) -> str:
    """Returns the guide's text with the tables of the evidence."""
    for mark, where in SECTIONS.items():
        before, begin, rest = text.partition(f"<!-- {mark} -->")
        _, end, after = rest.partition(f"<!-- /{mark} -->")
        if end:
            text = f"{before}{begin}\n\n{evidence(results, where)}\n\n{end}{after}"
    return text
