"""Writes docs/results.md from the rows in results/: every item, its protocol, what was run, ours beside theirs."""

from __future__ import annotations

from pathlib import Path


def write_pages(results: Path, docs: Path) -> list[Path]:
    """Writes the pages."""
    return []
