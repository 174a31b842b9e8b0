"""The table of refusals is true: each entry really refuses, by an error that names the culprit."""

from __future__ import annotations

import re

import pytest
from laws import LAWS, METHODS
from zoo import EVERY, REFUSALS, ZOO, refusal


def expanded() -> list[tuple[str, str, str]]:
    """The entries, one for each method that they speak of; what is refused for every law is refused at conversion."""
    found = []
    for method, case, law in REFUSALS:
        for kind in METHODS if method == EVERY else [method]:
            found.append((kind, case, "member" if law == EVERY else law))
    return found


@pytest.mark.parametrize(("method", "case", "law"), expanded())
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
