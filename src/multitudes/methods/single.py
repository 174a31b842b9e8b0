"""Single: one network, as an ensemble of one member. The baseline of every comparison; it keeps the given weights."""

from __future__ import annotations

from dataclasses import dataclass

from multitudes.conversion.anatomy.structure import Structure
from multitudes.method import Layout, Method
from multitudes.settings import check_rules, explained


@explained
@dataclass(frozen=True, kw_only=True)
class Single(Method):
    """One network: ``[1, B, ...]``."""

    members: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rules(
            self, (self.members != 1, "members", f"Single is one network: for several, use Deep(members={self.members})")
        )

    def layout(self, structure: Structure) -> Layout:
        """Adds no member axis: the one member uses the given tensors."""
        return Layout(note="the given network, with its weights")
