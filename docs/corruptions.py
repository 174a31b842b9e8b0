"""Draws all 95 corruptions as one picture: a row per corruption, a column per severity, a block of columns per image.

python docs/corruptions.py --out build/corruptions.png [--sizes 28 96] [--grey] [--images cat.png ship.png]

Without --images it draws a landscape, at 32 × 32 (CIFAR's parameters) and at 224 × 224 (ImageNet's parameters).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from multitudes.data.corruptions.corrupt import NAMES, corrupt
from multitudes.data.corruptions.published import SEVERITIES

CELL, GAP, BLOCK, LABEL, HEAD, FONT = 128, 4, 20, 176, 56, 18
"""Pixels: side of a cell, gap between cells, gap between blocks, width of names, height of titles, size of letters."""


def scene(size: int) -> Tensor:
    """Draws a landscape with sky, sun, hills, a house and a striped field, uint8 ``[3, size, size]``."""
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
    """Reads an image file, uint8 ``[3, H, W]``."""
    return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1)


def grey(image: Tensor) -> Tensor:
    """Converts an image to grey: ``[3, H, W]`` → ``[1, H, W]``."""
    return torch.from_numpy(np.array(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("L")))[None]


def sheet(images: list[Tensor], seed: int) -> Image.Image:
    """Draws the picture: a block per image with the clean image and five severities, one row per corruption."""
    step, font = CELL + GAP, ImageFont.load_default(FONT)
    block = (1 + len(SEVERITIES)) * step + BLOCK
    page = Image.new("RGB", (LABEL + len(images) * block, HEAD + len(NAMES) * step), "white")
    pen = ImageDraw.Draw(page)
    for row, name in enumerate(NAMES):
        pen.text((8, HEAD + row * step + CELL // 2), name.replace("_", " "), fill="black", font=font, anchor="lm")
    for number, image in enumerate(images):
        left, (height, width) = LABEL + number * block, image.shape[-2:]
        pen.text((left, 16), f"{height} x {width} pixels; severities", fill="black", font=font, anchor="lm")
        for column, title in enumerate(("clean", *map(str, SEVERITIES))):
            pen.text((left + column * step + CELL // 2, 42), title, fill="black", font=font, anchor="mm")
        for row, name in enumerate(NAMES):
            versions = [image, *(corrupt(image[None], name, severity, seed)[0] for severity in SEVERITIES)]
            for column, version in enumerate(versions):
                page.paste(cell(version), (left + column * step, HEAD + row * step))
    return page


def cell(image: Tensor) -> Image.Image:
    """Scales an image to a cell of the picture; small images keep sharp pixels."""
    pixels = image.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
    resample = Image.Resampling.NEAREST if image.shape[-1] < CELL else Image.Resampling.BOX
    return Image.fromarray(pixels).resize((CELL, CELL), resample)


def main() -> None:
    """Draws the picture from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/corruptions.png"))
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[32, 224], help="side of the landscape in pixels, one block each"
    )
    parser.add_argument("--images", type=Path, nargs="+", help="image files to corrupt instead of the landscape")
    parser.add_argument("--grey", action="store_true", help="convert images to grey first")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    images = [read(path) for path in options.images] if options.images else [scene(size) for size in options.sizes]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    sheet([grey(image) for image in images] if options.grey else images, options.seed).save(options.out)
    print(f"{len(NAMES) * len(SEVERITIES)} corruptions: {options.out}")


if __name__ == "__main__":
    main()
