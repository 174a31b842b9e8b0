"""Small image files for tests."""

from __future__ import annotations

from pathlib import Path

from PIL import Image


def picture(path: Path, colour: tuple[int, int, int] = (255, 0, 0), size: tuple[int, int] = (40, 30)) -> Path:
    """An image of one colour; a path that ends in .png is kept to the last bit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path
