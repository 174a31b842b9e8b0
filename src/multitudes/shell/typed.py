"""What can be read and refused of a command line before torch and a job are imported, which takes seconds."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.metadata import entry_points, packages_distributions, requires
from pathlib import Path
from typing import Any

from multitudes.errors import InputError

UNITS = {
    "epoch": "epochs", "epochs": "epochs", "s": "seconds", "second": "seconds", "seconds": "seconds", "flop": "flops",
    "flops": "flops",
}  # fmt: skip

SPLITS = ("train", "test", "validation")
"""Datasets that jobs call by these names."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Makes the error for a name that does not exist: it lists the known names and suggests the nearest."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f": did you mean {near!r}?" if near else "."
    return InputError(f"there is no {kind} {name!r}{hint} Known: {', '.join(names)}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that a misspelt one most likely means."""
    by_case = {one.lower(): one for one in sorted(known)}
    near = get_close_matches(name.lower(), by_case, n=1, cutoff=0.55)
    return by_case[near[0]] if near else None


def split_list(text: str) -> list[str]:
    """Splits a list at its commas, except at those inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def seeds(text: str) -> list[int]:
    """Reads seeds: numbers with commas, ranges with a dash.

    >>> seeds("0,4-6")
    [0, 4, 5, 6]
    """
    numbers: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            numbers += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError as error:
        raise InputError(f"--seeds {text!r} are not whole numbers: type 0,1,2 or a range, 0-4") from error
    if not numbers:
        raise InputError(f"--seeds {text!r} is an empty range: type the smaller number first, 0-4")
    return numbers


def amount(text: str) -> tuple[float, str]:
    """Reads a budget: its amount and its unit. A bare number is epochs.

    >>> amount("2e12 flops")
    (2000000000000.0, 'flops')
    """
    match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    unit = UNITS.get(match[2] or "epochs") if match else None
    if match is None or unit is None or not 0 < _number(match[1]) < float("inf"):
        raise InputError(f"--budget {text!r} is not a budget: type '10 epochs', '30 seconds' or '2e12 flops'")
    number = _number(match[1])
    if unit == "epochs" and number != int(number):
        raise InputError(f"--budget {text!r}: epochs must be a whole number, such as '10 epochs'")
    return number, unit


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def method_names() -> list[str]:
    """Returns the names of methods, without importing them: of our files, and of other packages' entry points."""
    ours = [file.stem for file in (Path(__file__).parents[1] / "methods").glob("[!_]*.py")]
    return sorted({*ours, *(entry.name.lower() for entry in entry_points(group="multitudes.methods"))})


def check_methods(texts: Sequence[str], job: str) -> None:
    """Refuses a misspelt method, unless `job`, or the function of a network, may bring a method of this name."""
    if "@" in job:  # a paper's job has rows, which it knows itself
        return
    known = method_names()
    for text in texts:
        _check_one(text, known)
        name, bracket, _ = text.strip().partition("(")
        name = name.strip()
        if name.lower() not in known and nearest(name, known) and not _may_bring(name, job):
            raise unknown_name("method", name, known)
        if bracket:
            keywords(text.strip())


def _check_one(text: str, known: Sequence[str]) -> None:
    """Refuses several methods, and settings without brackets, where one method is read."""
    if len(several := split_list(text)) > 1:
        raise InputError(f"{text!r} names several methods: compare them by `multitudes bench --methods {','.join(several)}`")
    words = text.partition("(")[0].split()
    if len(words) > 1 and all(word.lower() in known for word in words):
        raise InputError(f"{text!r} names several methods: type them with commas, {','.join(words)}")
    if len(words) > 1 and words[0].lower() in known and all("=" in word for word in words[1:]):
        raise InputError(f"cannot read {text!r}: type settings in brackets, '{words[0]}({', '.join(words[1:])})'")


def keywords(text: str) -> dict[str, Any]:
    """Reads the settings between the brackets of a method: Python literals by keyword. No code is run.

    >>> keywords("packed(alpha=2, gamma=2)")
    {'alpha': 2, 'gamma': 2}
    """
    form = "type settings as name=value, as in 'packed(alpha=2, gamma=2)'"
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise InputError(f"cannot read {text!r}: {form}") from error
    if not isinstance(call, ast.Call) or call.args or any(word.arg is None for word in call.keywords):
        raise InputError(f"cannot read {text!r}: {form}")
    settings = {}
    for word in call.keywords:
        try:
            settings[str(word.arg)] = ast.literal_eval(word.value)
        except ValueError as error:
            value = ast.unparse(word.value)
            quoted = f", or a string in quotes: {word.arg}={value!r}" if value.isidentifier() else ""
            raise InputError(f"{text}: {word.arg}={value} is no value: type a number, as in {word.arg}=2{quoted}") from error
    return settings


def check_data(name: str, run: Path, job: str | None) -> None:
    """Refuses a misspelt dataset of a run, by the sets that its row has scores of, unless its job may have such a set.

    job    the job if it is given, else that of the run
    """
    scores, own = _scored(run)
    known = {*SPLITS, *(key.partition("/")[0] for key in scores if "/auroc/" in key)}
    job = job or own
    if scores and job is not None and name not in known and nearest(name, known) and not _may_bring(name, job):
        raise unknown_name(f"dataset --data of {job}", name, known)


def check_is_no_segmentation(out: Path, run: Path) -> None:
    """Refuses a table of predictions for each pixel, by the scores of the run."""
    if out.suffix.lower() == ".csv" and "miou" in _scored(run)[0]:
        raise InputError(
            f"a table has one line per example, but each example of {run} has a prediction for every pixel: "
            f"type --out {out.with_suffix('.safetensors')}"
        )


def _scored(run: Path) -> tuple[dict[str, float], str | None]:
    """Returns the scores and the job of a run's row; none if there is no row."""
    try:
        row = json.loads((run / "row.json").read_text(encoding="utf-8"))
        return row["scores"]["scores"], row["settings"].get("job")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}, None


def _may_bring(name: str, job: str) -> bool:
    """Whether your own job may know a name: the files in its folder hold it, or import what may build on this package."""
    if ":" not in job:
        return False
    file = Path(*job.partition(":")[0].split(".")).with_suffix(".py")
    if not file.is_file():
        return True
    files = list(file.parent.glob("*.py"))
    try:
        texts = [one.read_text(encoding="utf-8") for one in files]
        imported = {top for text in texts for top in _imported(text)}
    except (OSError, ValueError, SyntaxError):
        return True
    foreign = imported - sys.stdlib_module_names - {one.stem for one in files} - {"multitudes"}
    return any(name.lower() in text.lower() for text in texts) or any(map(_may_build_on_us, foreign))


def _imported(text: str) -> Iterable[str]:
    """Yields the first parts of the modules that a source imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _may_build_on_us(top: str) -> bool:
    """Whether a module may have methods of its own: it is of no installed package, or of one that requires this one."""
    found = packages_distributions().get(top)
    needs = [need for package in found or () for need in requires(package) or ()]
    return found is None or any(re.match(r"multitudes\b", need) for need in needs)
