"""The table of refusals in zoo.py is true: each entry is refused, by an error that names the culprit."""

from __future__ import annotations

import re
from typing import Any

import pytest
from laws import LAWS, METHODS
from zoo import EVERY, REFUSALS, ZOO, refusal


def entries() -> list[Any]:
    """One for each method, network and law that the table speaks of; an entry for every law is tried by `member`.

    `make test` tries one law for each method and network, and of entries for every method Deep's.
    """
    params: dict[tuple[str, str], list[Any]] = {}
    for method, case, law in REFUSALS:
        for kind in METHODS if method == EVERY else [method]:
            group = params.setdefault((kind, case), [])
            slow = group or "hugging_face" in case or (method == EVERY and kind != "Deep")
            tried = "member" if law == EVERY else law
            group.append(pytest.param(kind, case, tried, marks=[pytest.mark.slow] if slow else []))
    return [param for group in params.values() for param in group]


@pytest.mark.parametrize(("method", "case", "law"), entries())
def test_refusal(method: str, case: str, law: str) -> None:
    """What the table says cannot hold is refused, and the error names the culprit."""
    entry = refusal(method, case, law)
    assert entry is not None
    with pytest.raises(entry.error) as caught:
        LAWS[law](METHODS[method](), ZOO[case])
    assert re.search(entry.names, str(caught.value)), f"{entry.names!r} is not named in: {caught.value}"


def test_the_table_speaks_of_what_there_is() -> None:
    """Every entry names a method, a model and a law that exist, and gives a reason."""
    for (method, case, law), entry in REFUSALS.items():
        assert method in METHODS or method == EVERY
        assert case in ZOO
        assert law in LAWS or law == EVERY
        assert entry.reason.endswith(".")
