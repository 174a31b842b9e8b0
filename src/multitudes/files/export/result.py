"""Exported: what an export has written."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from multitudes.terminal import megabytes, rendered


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What an export has written, and what its check has found."""

    path: Path
    format: str
    """onnx, pt2 (a torch.export program) or aoti (a program that torch has compiled for this machine)."""
    outputs: tuple[str, ...]
    members: int
    draws: int
    """The number of random draws that are frozen in the file; 0 for a method that draws nothing."""
    form: str
    """How members run: all at once in one graph, or which operations run member by member."""
    precision: str
    difference: float
    """The largest difference from the live ensemble that the check has found in any output."""
    bytes: int
    tensor_bytes: int
    """The bytes of the tensors that the graph holds, in single precision."""
    seconds: float
    nodes: int
    """The number of operations."""
    opset: int | None = None
    """The version of ONNX's operations."""
    compacted: bool = False
    """Whether the ensemble was compacted for the file."""
    images: bool = False
    """Whether the input is an image ``[C, H, W]``."""
    normalised: bool = False
    """Whether the file says how inputs were normalised in training, so that a server can take images as they are."""
    alone: bool = True
    """Whether a row's answer does not depend on the rows beside it."""
    scores: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Scores on `data` of the live ensemble and of the file."""

    def __str__(self) -> str:
        from rich.table import Table

        table = Table("", "", show_header=False, box=None, pad_edge=False)
        opset = "" if self.opset is None else f", opset {self.opset}"
        table.add_row("file", f"{self.path}: {megabytes(self.bytes)}, {self.format}{opset}, {self.precision} weights")
        frozen = f", {self.draws} draws frozen" if self.draws else ""
        table.add_row("members", f"{self.members}{frozen}{', compacted' if self.compacted else ''}; {self.form}")
        table.add_row("graph", f"{self.nodes} operations, {megabytes(self.tensor_bytes)} of tensors, any batch size")
        if self.images and not self.normalised:
            table.add_row("images", "no normalisation in the file, so pixels are taken from 0 to 1: give units=train")
        if not self.alone:
            table.add_row(
                "rows", "depend on each other: run those together that belong together; a server does not take the file"
            )
        table.add_row("outputs", ", ".join(self.outputs))
        table.add_row("checked", f"largest difference from the ensemble {self.difference:.1e}")
        for name, (before, after) in self.scores.items():
            table.add_row(name, f"{before:.4f} → {after:.4f}")
        table.add_row("took", f"{self.seconds:.1f} s")
        return rendered([table])
