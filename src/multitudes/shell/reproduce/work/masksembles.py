"""What the items of Masksembles run."""

from __future__ import annotations

from multitudes.analysis.mask_sets import mask_sweep
from multitudes.data.sources import Root
from multitudes.shell.reproduce.item import Findings


def fig_3(scale: str, seed: int, root: Root) -> Findings:
    """Size and overlap of masks over S and N."""
    draws, members = (5, (2, 4)) if scale == "smoke" else (50, (2, 4, 8, 16))
    found = mask_sweep(scales=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0), members=members, draws=draws, seed=seed)
    rows = {
        f"N = {count}, S = {at:g}": {
            "size": found.size[i, j],
            "expected size": found.expected_size[i, j],
            "IoU": found.iou[i, j],
            "1 / (2 S − 1)": found.expected_iou[i, j],
        }
        for i, count in enumerate(found.members)
        for j, at in enumerate(found.scales.tolist())
    }
    return Findings(rows, {"masks": found.figure()}, budget=f"{draws} sets of masks, M = {found.ones}")
