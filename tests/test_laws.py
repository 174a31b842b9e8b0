"""Every method obeys every law on every model, or stands in the table of refusals.

Each method is run through all laws on five models with every change; on the rest of the zoo, marked slow, through the
core of the laws, and through some of the others, rotated by MULTITUDES_SEED so that each comes round.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from laws import LAWS, METHODS
from zoo import FIVE, ZOO, refusal

SEED = int(os.environ.get("MULTITUDES_SEED", "0"))

CORE = ("members_first", "unit", "member", "rows", "batching", "no_leak", "executors", "distinct", "untouched", "state_dict")
GRAPHS = {"compile": ("cnn", "unet"), "compile_sizes": ("cnn",), "export": ("resnet", "vit")}
"""Laws that trace graphs take seconds: with every change they are tried on these models."""
ONCE = ("public",)
"""Laws about a method alone."""
OTHERS = tuple(name for name in LAWS if name not in (*CORE, *ONCE))
AT_ONCE = 3
"""How many of the other laws a pair of method and model is tried on in one slow run."""


def tried(law: str, case: str, place: int, seed: int = SEED) -> str | None:
    """Whether a law is tried on a model with every change ("fast"), in the slow run, or not this time."""
    if law in ONCE:
        return "fast" if case == FIVE[0] else None
    if law.startswith("compile") and not ZOO[case].cnn:
        return None
    if law in GRAPHS and case in GRAPHS[law]:
        return "fast"
    if case in FIVE and law not in GRAPHS:
        return "fast"
    if law in CORE:
        return "slow"
    turns = [(seed + place + AT_ONCE * turn) % len(OTHERS) for turn in range(AT_ONCE)]
    return "slow" if OTHERS.index(law) in turns else None


def pairs() -> Iterator[Any]:
    """Every law that is tried, as a test."""
    for i, method in enumerate(METHODS):
        for j, case in enumerate(ZOO):
            for law in LAWS:
                when = tried(law, case, i + j)
                if when and not refusal(method, case, law):
                    marks = [pytest.mark.slow] if when == "slow" else []
                    yield pytest.param(law, method, case, marks=marks, id=f"{method}-{case}-{law}")


@pytest.mark.parametrize(("law", "method", "case"), list(pairs()))
def test_law(law: str, method: str, case: str) -> None:
    """This law holds for this method on this model."""
    LAWS[law](METHODS[method](), ZOO[case])


def test_every_law_comes_round() -> None:
    """The core is tried at every seed; over as many seeds as there are others, each of them on every model it speaks of."""
    for case in ZOO:
        for law in (*CORE, *OTHERS):
            when = [tried(law, case, place=3, seed=seed) for seed in range(len(OTHERS))]
            assert all(when) if law in CORE else any(when) or (law.startswith("compile") and not ZOO[case].cnn)


def test_five_models_meet_every_law_with_every_change() -> None:
    """No law is left to the slow run alone."""
    fast = {law for law in LAWS for case in ZOO if tried(law, case, 0) == "fast"}
    assert fast == set(LAWS)
