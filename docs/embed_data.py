"""Makes the data files of the package, src/multitudes/data/files, from the published files.

python docs/embed_data.py --data FOLDER

FOLDER holds fashion-mnist/ (four idx files) and uci/yacht, uci/energy (data.csv, or the published data.txt; energy with both
targets, heating and cooling load); the digits come from scikit-learn. It prints the checksums for
src/multitudes/data/embedded.py. imagenet.txt, the names of ImageNet's 1000 class folders in order, is not made here.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from multitudes import data
from multitudes.data.uci import EMBEDDED, TWO_TARGETS, read_table

FILES = Path(__file__).parent.parent / "src" / "multitudes" / "data" / "files"
SIZES = {"train": 600, "validation": 100, "test": 200}
"""Images of each class."""


def fashion(root: Path) -> dict[str, Any]:
    """The first images of each class, in the published order; validation follows training."""
    arrays: dict[str, Any] = {}
    for split, published in (("train", "train"), ("validation", "train"), ("test", "test")):
        whole = data.fashion_mnist(published, root)
        start = SIZES["train"] if split == "validation" else 0
        order = [(whole.targets == label).nonzero().squeeze(1)[start : start + SIZES[split]] for label in range(10)]
        rows = np.sort(np.concatenate([part.numpy() for part in order]))
        arrays[f"{split}_images"] = whole.inputs[rows].squeeze(1).numpy()
        arrays[f"{split}_labels"] = whole.targets[rows].numpy().astype(np.uint8)
    return arrays


def digits() -> dict[str, Any]:
    """8×8 pixels from 0 to 16."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    return {"images": loaded.images.astype(np.uint8), "labels": loaded.target.astype(np.uint8)}


def regression(root: Path) -> dict[str, Any]:
    """Rows as published: features, and the targets last."""
    return {name: np.concatenate(read_table(name, root, 1 + (name in TWO_TARGETS))[:2], 1) for name in EMBEDDED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    root = parser.parse_args().data
    for name, arrays in (("fashion", fashion(root)), ("digits", digits()), ("regression", regression(root))):
        path = FILES / f"{name}.npz"
        np.savez_compressed(path, **arrays)
        print(f"{path.name} {path.stat().st_size:,} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")


if __name__ == "__main__":
    main()
