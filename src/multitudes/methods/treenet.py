"""TreeNet: a shared trunk that splits into one branch for each member.

Lee, Purushwalkam, Cogswell, Crandall, Batra, "Why M Heads are Better than One: Training a Diverse Ensemble of Deep
Networks", 2015, https://arxiv.org/abs/1511.06314; as a baseline of Havasi et al., ICLR 2021: on a WideResNet-28-10 the
first two residual groups are shared, the last group and the output layer are trained separately for each member.

Branches differ in their initialisation and are trained on the same labels; the trunk receives the sum of their gradients.
BatchNorm has one set of statistics in the trunk and one in each branch.
"""

from __future__ import annotations

from dataclasses import dataclass

from multitudes.conversion.anatomy.structure import Structure, last_third
from multitudes.engine.modules import names_matching, owned_modules, owning_module
from multitudes.errors import InputError
from multitudes.method import Layout, Method
from multitudes.settings import explained


@explained
@dataclass(frozen=True, kw_only=True)
class TreeNet(Method):
    """A shared trunk and M branches: ``[M, B, ...]``."""

    split: str | None = None
    """The module, by name or glob, where the branches begin; None takes the last modules that hold at least a third of the
    blocks."""

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own copy of every module that first runs at the split or later."""
        split = self._first(structure)
        start = structure.started(split)
        if start is None:
            raise InputError(f"TreeNet(split={self.split!r}): {split!r} does not run on the example: name a module that runs")

        def behind(name: str) -> bool:
            first = structure.started(name)
            return first is not None and first >= start

        modules = owned_modules(structure.model, behind)
        _, met = structure.walk_back(lambda _, when: when < start)
        loose = frozenset(n for n in met - structure.feeding(lambda _, when: when < start) if owning_module(n) not in modules)
        return Layout(modules, loose, note=f"branches begin at {split or 'the whole model'}")

    def _first(self, structure: Structure) -> str:
        if self.split is None:
            return last_third(structure)
        names = [name for name, _ in structure.model.named_modules() if name]
        hits = names_matching(names, [self.split], f"TreeNet(split={self.split!r})")[self.split]
        starts = {name: structure.started(name) for name in hits}
        ran = [name for name in hits if starts[name] is not None]
        if not ran:
            raise InputError(
                f"TreeNet(split={self.split!r}): {', '.join(hits)} does not run on the example: name a module that runs"
            )
        return min(ran, key=lambda name: starts[name] or 0)
