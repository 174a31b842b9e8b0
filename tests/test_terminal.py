"""Progress bars: shown in a terminal, and otherwise not."""

from __future__ import annotations

import io
import sys

import pytest

from multitudes.terminal import bar, is_shown


def test_quiet_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_shown(None)
    with bar("work", 3, None) as tell:
        tell(1, loss="0.5")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_shown_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    there = Terminal()
    monkeypatch.setattr(sys, "stderr", there)
    assert is_shown(None)
    with bar("work", 3, None, "steps") as tell:
        tell(2, loss="0.5")
    assert "work" in there.getvalue()
    assert "loss 0.5" in there.getvalue()
    assert not is_shown(False)
