"""What the command says besides its results."""

from __future__ import annotations

import pytest

from multitudes.shell.messages import recipe_hint, show_warning


def test_an_option_of_the_recipe_is_told_its_place() -> None:
    options = ["--lr", "--out"]
    assert (
        recipe_hint(["train", "--batch-size=8"], options)
        == "--batch-size: set it in the recipe of your job, mt.Recipe(batch=...)"
    )
    assert recipe_hint(["train", "--learning-rate", "1"], options) == "--learning-rate: type --lr"
    assert recipe_hint(["train", "--lr", "x", "--nothing"], options) == recipe_hint(["--epochs"], []) == ""


def test_warnings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the file and the code that a Python user would see; those of Python itself keep them."""
    show_warning("all are [right]", UserWarning, "scoring.py", 72, None, None)
    show_warning("old", DeprecationWarning, "scoring.py", 72)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert (first, second) == ("multitudes: all are [right]", "scoring.py:72: DeprecationWarning: old")
