"""All 95 corruptions as one picture: 19 rows, and for each image its clean form and five severities.

python docs/corruptions.py --out build/corruptions.png [--images cat.png ship.png]

Without images a drawn landscape is taken, at 32 × 32 (with CIFAR's numbers) and at 224 × 224 (with ImageNet's).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from multitudes.data.corruptions.corrupt import NAMES, SEVERITIES, corrupt

CELL, GAP, LABEL, HEAD = 112, 4, 150, 24
"""Pixels of a picture, between pictures, of the names beside and of the line above."""


def scene(size: int) -> Tensor:
    """A landscape with sky, sun, hills, a house and a striped field, ``[3, size, size]`` as uint8."""
    fine = 4 * size
    y, x = np.mgrid[:fine, :fine] / fine
    picture = np.stack([0.35 + 0.4 * y, 0.55 + 0.3 * y, 0.9 - 0.1 * y], -1)
    picture[(x - 0.78) ** 2 + (y - 0.2) ** 2 < 0.008] = (1.0, 0.9, 0.45)
    picture[y > 0.55 + 0.07 * np.sin(7 * x + 1)] = (0.25, 0.5, 0.3)
    field = y > 0.72 + 0.04 * np.sin(4 * x)
    picture[field] = np.where(np.sin(60 * (x + 0.6 * y))[field, None] > 0, (0.75, 0.65, 0.3), (0.5, 0.4, 0.2))
    picture[(abs(x - 0.35) < 0.14) & (abs(y - 0.6) < 0.12)] = (0.85, 0.8, 0.75)
    picture[(y > 0.36) & (y < 0.48) & (abs(x - 0.35) < 0.17 * (y - 0.36) / 0.12)] = (0.6, 0.15, 0.12)
    picture[(abs(x - 0.3) < 0.03) & (abs(y - 0.58) < 0.04)] = (0.1, 0.12, 0.2)
    small = picture.reshape(size, 4, size, 4, 3).mean((1, 3))
    return torch.from_numpy(np.rint(small * 255).astype(np.uint8)).permute(2, 0, 1)


def read(path: Path) -> Tensor:
    """An image file, ``[3, H, W]`` as uint8."""
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


def sheet(images: list[Tensor], seed: int) -> Image.Image:
    """The picture: clean and corrupted side by side, one row for each corruption."""
    across = len(images) * (1 + len(SEVERITIES))
    size = (LABEL + across * (CELL + GAP), HEAD + len(NAMES) * (CELL + GAP))
    page = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(page)
    for column in range(across):
        severity = column % (1 + len(SEVERITIES))
        pen.text((LABEL + column * (CELL + GAP), 6), f"severity {severity}" if severity else "clean", fill="black")
    for row, name in enumerate(NAMES):
        top = HEAD + row * (CELL + GAP)
        pen.text((6, top + CELL // 2), name, fill="black")
        found = [part for image in images for part in (image, *(corrupt(image[None], name, s, seed)[0] for s in SEVERITIES))]
        for column, part in enumerate(found):
            shown = Image.fromarray(part.permute(1, 2, 0).numpy())
            way = Image.Resampling.NEAREST if part.shape[-1] < CELL else Image.Resampling.BOX
            page.paste(shown.resize((CELL, CELL), way), (LABEL + column * (CELL + GAP), top))
    return page


def main() -> None:
    """Draws the sheet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/corruptions.png"))
    parser.add_argument("--images", type=Path, nargs="+", help="image files, instead of the landscape")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    images = [read(path) for path in options.images] if options.images else [scene(32), scene(224)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    sheet(images, options.seed).save(options.out)
    print(f"{len(NAMES) * len(SEVERITIES)} corruptions: {options.out}")


if __name__ == "__main__":
    main()
