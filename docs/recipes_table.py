"""The table of recipes in docs/recipes.md, and the notes below it, from `multitudes.training.recipes`.

python docs/recipes_table.py            prints them
python docs/recipes_table.py --write    puts them into docs/recipes.md
python docs/recipes_table.py --check    fails if docs/recipes.md has others
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import sections

from multitudes.method import Method
from multitudes.methods import Single
from multitudes.training.recipes import ABSENT, RECIPES, PaperRecipe


def table() -> str:
    """One row per recipe."""
    head = ["name", "data, network", "epochs", "batch", "optimiser", "schedule", "weight decay", "augment", "loss over members"]
    rows = [row(name, entry) for name, entry in RECIPES.items()]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def notes() -> str:
    """One item per recipe: its source, its methods, and the settings that the source omits."""
    lines = []
    for name, entry in RECIPES.items():
        methods = ", ".join(f"`{method}`" for method in map(call, entry.methods))
        ood = f" OOD detection: {entry.ood}." if entry.ood else ""
        lines.append(f"- `{name}`: {entry.source}. {methods}. {entry.silent}{ood}")
    lines += [f"- `{name}` is missing: {why}." for name, why in ABSENT.items()]
    return "\n".join(lines)


def call(method: Method) -> str:
    """The method's call, with `members` and all settings that differ from their default."""
    changed = {f.name: getattr(method, f.name) for f in fields(method) if getattr(method, f.name) != f.default}
    changed = changed if isinstance(method, Single) else {"members": method.members, **changed}
    return f"{type(method).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"


def row(name: str, entry: PaperRecipe) -> list[str]:
    recipe = entry.recipe
    batch = f"{recipe.batch}" + (f" ({entry.rows} rows)" if entry.rows != recipe.batch else "")
    kind = f"{recipe.optimizer} {recipe.lr:g}" + (f", {recipe.momentum:g}" if recipe.optimizer == "sgd" else "")
    falls = f"× {recipe.decay:g} at {', '.join(map(str, recipe.milestones))}" if recipe.milestones else recipe.schedule
    joined = {how: [n for n, r in entry.reductions.items() if r == how] for how in ("sum", "mean")}
    return [
        f"`{name}`",
        f"{entry.data}, `{entry.model}`",
        f"{recipe.epochs}",
        batch,
        kind + (" Nesterov" if recipe.nesterov else ""),
        falls + (f", warm-up {recipe.warmup:g}" if recipe.warmup else ""),
        f"{recipe.weight_decay:g}: {entry.decay}",
        augmentation(recipe.augment),
        "; ".join(f"{how}: {', '.join(names)}" for how, names in joined.items() if names),
    ]


def augmentation(augment: Any) -> str:
    """The settings that are on."""
    if augment is None:
        return "none"
    crop = f"crop {augment.crop}" + (" reflected" if augment.fill == "reflect" else "")
    said = {"flip": augment.flip, "mixup": augment.mixup, "cutmix": augment.cutmix, "label smoothing": augment.smoothing}
    parts = [crop, *(name if value is True else f"{name} {value:g}" for name, value in said.items() if value)]
    if augment.rand_augment is not None:
        drawn = augment.rand_augment
        parts.append(f"RandAugment m={drawn.magnitude:g} n={drawn.n} mstd={drawn.std:g}")
    return ", ".join(parts)


if __name__ == "__main__":
    page = Path(__file__).resolve().parent / "recipes.md"
    sys.exit(sections.main(page, {"recipes": table(), "notes": notes()}, __doc__))
