"""Groups the numbers that a network was built with by their roles, and tells by name which of them are counts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from multitudes.conversion.resize import constants
from multitudes.conversion.resize.constants import Path, Place

COUNTS = "num|len|position|token|quer|latent|slot|regist|expert|mode"
"""Words in the names of arguments that are numbers of something, not widths."""


def groups(paths: Iterable[Path]) -> list[tuple[Path, ...]]:
    """Groups numbers of the same role: entries of one list, or the same field of several stages, or in one function's code."""
    alike: dict[Path, list[Path]] = {}
    for path in paths:
        if isinstance(path, Place):
            alike.setdefault((path.function,), []).append(path)
            continue
        indices = [i for i, key in enumerate(path) if isinstance(key, int)]
        last = indices[-1] if len(indices) > 1 and indices[-1] == len(path) - 1 and indices[-2] == len(path) - 2 else None
        role = tuple(_role(key) if i != last else key for i, key in enumerate(path))
        alike.setdefault(role, []).append(path)
    return [tuple(group) for group in alike.values()]


def fine_groups(paths: Iterable[Path]) -> list[tuple[Path, ...]]:
    """Groups numbers as `groups` does, those in code also by value."""
    return [part for g in groups(paths) for part in (constants.by_value(g) if isinstance(g[0], Place) else [g])]


def _role(key: Any) -> Any:
    return "*" if isinstance(key, int) else re.sub(r"\d+", "*", str(key))


def split(group: tuple[Path, ...]) -> list[tuple[Path, ...]]:
    """Splits a group of list entries by their last index, else into single numbers; other groups cannot be split."""
    by_last: dict[Any, list[Path]] = {}
    for path in group:
        by_last.setdefault(path[-1], []).append(path)
    if 1 < len(by_last) < len(group):
        return [tuple(part) for part in by_last.values()]
    return [(path,) for path in group] if 1 < len(by_last) <= 8 else []


def is_head_count(path: Path) -> bool:
    """Whether an argument is a number of attention heads, by its name."""
    name = _name(path)
    return "head" in name and not re.search("dim|size|channel|width|hidden|conv|init|scale|drop|bias|d_head|per_head", name)


def is_head_width(path: Path) -> bool:
    """Whether an argument is the width of an attention head, by its name: it scales where the number of heads is kept."""
    return bool(re.fullmatch("(attention_|attn_)?(dim_heads?|d_head|heads?_(dim|size|width|channels))", _name(path)))


def is_expert_count(path: Path) -> bool:
    """Whether an argument is a number of experts, by its name: they stand along an axis of their own."""
    name = _name(path)
    return "experts" in name and not re.search("dim|size|channel|width|hidden", name)


def heads_at(path: Path, numbers: Mapping[Path, Any]) -> int:
    """Returns the number of heads that a width must be divisible by: of the same stage, if there is one per stage."""
    counts = []
    for other, value in numbers.items():
        if (
            not isinstance(other, Place)
            and is_head_count(other)
            and isinstance(value, int)
            and other[: trunk(other)] == path[: trunk(path)][: trunk(other)]
        ):
            stages = isinstance(other[-1], int)
            if not stages or not isinstance(path[-1], int) or other[-1] == path[-1]:
                counts.append(value)
    return math.lcm(*(c for c in counts if c > 0)) if counts else 1


def trunk(path: Path) -> int:
    """Returns how many keys of a path name the object that the argument belongs to."""
    return len(path) - 1 - isinstance(path[-1], int)


def _name(path: Path) -> str:
    """Returns the last name of a path, in small letters."""
    names = [path.parameter] if isinstance(path, Place) else path[::-1]
    return next((str(key).lower() for key in names if isinstance(key, str)), "")
