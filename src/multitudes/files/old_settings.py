"""Old settings: reads files that were written when settings and options had other names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

RENAMED = {"TreeNet": {"split": "branch_at"}}
"""New names of methods' settings, by method and old name."""

REPLACED = {"feed": {"split": "part"}}
"""New values of methods' settings, by setting and old value."""


def current_settings(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a method's settings by the names that they have now.

    >>> current_settings("TreeNet", {"members": 3, "split": "head"})
    {'members': 3, 'branch_at': 'head'}
    """
    renamed = {RENAMED.get(method, {}).get(name, name): value for name, value in settings.items()}
    return {name: REPLACED[name].get(value, value) if name in REPLACED else value for name, value in renamed.items()}


def current_score(name: str) -> str:
    """Returns the present name of the score that selects an epoch. Densities were log densities, now they are an NLL."""
    return "nll" if name == "lpd" else name


def current_metrics(line: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics of an epoch by the names that they have now.

    >>> current_metrics({"epoch": 1, "val_lpd": -0.5})
    {'epoch': 1, 'val_nll': 0.5}
    """
    return {"val_nll" if name == "val_lpd" else name: -v if name == "val_lpd" else v for name, v in line.items()}


def current_text(text: str) -> str:
    """Returns the text of a method, or of a command that names one, as it is typed now.

    >>> current_text("multitudes bench --task yacht --methods 'treenet(members=3, split=None)'")
    "multitudes bench --job yacht --methods 'treenet(members=3, branch_at=None)'"
    """
    text = re.sub(r"\b(treenet\([^()]*)\bsplit=", r"\1branch_at=", text, flags=re.IGNORECASE)
    text = re.sub(r"\bfeed=(\W+)split\b", r"feed=\1part", text)
    return re.sub(r"^(multitudes .*?)--task ", r"\1--job ", text)


def with_job(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row's settings, or a command's options, with the job under its name. It was called task."""
    return {"job" if name == "task" else name: value for name, value in settings.items()}
