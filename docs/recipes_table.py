"""The table of recipes in docs/recipes.md, and the notes below it, from `multitudes.training.recipes`.

python docs/recipes_table.py            prints them
python docs/recipes_table.py --write    puts them into docs/recipes.md
python docs/recipes_table.py --check    fails if docs/recipes.md has others
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import sections

from multitudes.data import RandomCrop
from multitudes.method import Method
from multitudes.methods import Single
from multitudes.training.paper_recipe import Entry, PaperRecipe
from multitudes.training.recipe import Recipe
from multitudes.training.recipes import ABSENT, RECIPES

BESIDE = ("batches", "best", "best_by", "clip", "clip_by")
"""Settings of recipes that are told in the notes, not in the table."""


def table() -> str:
    """One row per recipe of `fit`: the methods of a paper's recipe that are trained alike share one."""
    head = ["name", "data, network", "epochs", "batch", "optimiser", "schedule", "weight decay", "augment", "loss over members"]
    rows = []
    for name, paper in RECIPES.items():
        for alike in groups(paper):
            rows.append(row(name, paper, alike))
            name = ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def groups(paper: PaperRecipe) -> list[list[Entry]]:
    """The entries of a recipe, those together whose rows of the table are equal but for the method."""
    found: dict[str, list[Entry]] = {}
    for entry in paper.entries:
        key = repr((replace(entry.recipe, **{name: getattr(Recipe(), name) for name in BESIDE}), entry.rows))
        found.setdefault(key, []).append(entry)
    return list(found.values())


def notes() -> str:
    """One item per recipe: its source, its methods, how images are read, and the settings that the source omits."""
    lines = []
    for name, paper in RECIPES.items():
        methods = "; ".join(said(entry, paper.entries[0]) for entry in paper.entries)
        ood = f" OOD detection: {paper.detection}." if paper.detection else ""
        read = [f"`data.folder(..., {settings(paper.train)})`", f"`data.folder(..., {settings(paper.test)})`"]
        images = f" Images: {read[0]} for training, {read[1]} for testing." if paper.train else ""
        lines.append(f"- `{name}`: {paper.source}. {methods}. Weight decay: {paper.decay}. {paper.silent}{images}{ood}")
    lines += [f"- `{name}` is missing: {why}." for name, why in ABSENT.items()]
    return "\n".join(lines)


def said(entry: Entry, first: Entry) -> str:
    """The method's call, and where its network, conversion or recipe is not that of the first entry, beside the table."""
    text = f"`{call(entry.method)}`"
    arguments = {name: value for name, value in entry.arguments.items() if first.arguments.get(name) != value}
    text += f" on `{entry.model}({settings(arguments)})`" if arguments else ""
    conversion = {name: value for name, value in entry.conversion.items() if first.conversion.get(name) != value}
    text += f" by `mt.ensemble(..., {settings(conversion)})`" if conversion else ""
    text += f", predicted with `{settings(entry.prediction)}`" if entry.prediction else ""
    changed = {name: getattr(entry.recipe, name) for name in BESIDE}
    changed = {name: value for name, value in changed.items() if getattr(first.recipe, name) != value}
    return text + (f" with `{settings(changed)}`" if changed else "")


def settings(values: Mapping[str, Any]) -> str:
    """Settings as arguments of a call; methods in them as calls."""

    def shown(value: Any) -> str:
        if isinstance(value, Method):
            return call(value)
        if value == RandomCrop():
            return "RandomCrop()"
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{key!r}: {shown(one)}" for key, one in value.items()) + "}"
        return repr(value)

    return ", ".join(f"{name}={shown(value)}" for name, value in values.items())


def call(method: Method) -> str:
    """The method's call, with `members` and all settings that differ from their default."""
    changed = {f.name: getattr(method, f.name) for f in fields(method) if getattr(method, f.name) != f.default}
    changed = changed if isinstance(method, Single) else {"members": method.members, **changed}
    return f"{type(method).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


def row(name: str, paper: PaperRecipe, alike: list[Entry]) -> list[str]:
    entry, recipe = alike[0], alike[0].recipe
    batch = f"{recipe.batch}" + (f" ({entry.rows} rows)" if entry.rows != recipe.batch else "")
    network = f"{entry.model}({settings(paper.entries[0].arguments)})"
    names = {one.method.reduction: [] for one in alike}
    for one in alike:
        names[one.method.reduction].append(type(one.method).__name__)
    kind = f"{recipe.optimizer} {recipe.lr:g}" + (f", {recipe.momentum:g}" if recipe.optimizer == "sgd" else "")
    falls = f"× {recipe.decay:g} at {', '.join(map(str, recipe.milestones))}" if recipe.milestones else recipe.schedule
    return [
        f"`{name}`" if name else "",
        f"{paper.data}, `{network}`" if name else "",
        f"{recipe.epochs}",
        batch,
        kind + (" Nesterov" if recipe.nesterov else ""),
        falls + (f", warm-up {recipe.warmup:g}" if recipe.warmup else ""),
        f"{recipe.weight_decay:g}",
        augmentation(recipe.augment),
        "; ".join(f"{how}: {', '.join(dict.fromkeys(kinds))}" for how, kinds in names.items()),
    ]


def augmentation(augment: Any) -> str:
    """The settings that are on."""
    if augment is None:
        return "none"
    crop = (f"crop {augment.crop}" + (" reflected" if augment.fill == "reflect" else "")) if augment.crop else ""
    said = {"flip": augment.flip, "mixup": augment.mixup, "cutmix": augment.cutmix, "label smoothing": augment.smoothing}
    parts = [*filter(None, [crop]), *(name if value is True else f"{name} {value:g}" for name, value in said.items() if value)]
    if augment.rand_augment is not None:
        drawn = augment.rand_augment
        rising = " increasing" if drawn.increasing else ""
        parts.append(f"RandAugment m={drawn.magnitude:g} n={drawn.n} mstd={drawn.std:g}{rising}")
    return ", ".join(parts)


if __name__ == "__main__":
    page = Path(__file__).resolve().parent / "recipes.md"
    sys.exit(sections.main(page, {"recipes": table(), "notes": notes()}, __doc__))
