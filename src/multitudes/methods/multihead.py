"""Naive multi-head: one network with M last layers.

The baseline of Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021,
https://arxiv.org/abs/2010.06610, section 3.2: input and body are shared, and each member has its own output layer.

The heads differ only in their initialisation. Each is trained on the same labels, and the body receives the sum of their
gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

from multitudes.conversion.anatomy.structure import Structure, heads
from multitudes.engine.modules import inside, names_matching, owned_modules
from multitudes.errors import InputError
from multitudes.method import Layout, Method
from multitudes.settings import explained


@explained
@dataclass(frozen=True, kw_only=True)
class MultiHead(Method):
    """A shared body and M heads: ``[M, B, ...]``."""

    head: str | None = None
    """The last layer, by name or glob; None finds it by running the example."""

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own last layer, and its own parameters between that layer and the output."""
        names = [name for name, _ in structure.model.named_modules() if name]
        if self.head is not None:
            found = set(names_matching(names, [self.head], f"MultiHead(head={self.head!r})")[self.head])
            loose: set[str] = set()
        else:
            found, loose = heads(structure)
        if not found and not loose:
            raise InputError(
                "MultiHead finds no last layer, since no output depends on a weight. Name one: MultiHead(head='...')"
            )
        modules = owned_modules(structure.model, lambda name: inside(name, frozenset(found)))
        shown = sorted(found | loose)
        return Layout(modules, frozenset(loose), note=f"heads: {', '.join(name or 'the whole model' for name in shown)}")
