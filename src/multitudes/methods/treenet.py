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

    branch_at: str | None = None
    """The module, by name or glob, where the branches begin; None takes the last modules that hold at least a third of the
    blocks."""

    def layout(self, structure: Structure) -> Layout:
        """Gives each member its own copy of every module that first runs where the branches begin or later."""
        first = self._first(structure)
        start = structure.started(first)
        if start is None:
            raise InputError(
                f"TreeNet(branch_at={self.branch_at!r}): {first!r} does not run on the example: name a module that runs"
            )

        def behind(name: str) -> bool:
            when = structure.started(name)
            return when is not None and when >= start

        modules = owned_modules(structure.model, behind)
        _, met = structure.walk_back(lambda _, when: when < start)
        loose = frozenset(n for n in met - structure.feeding(lambda _, when: when < start) if owning_module(n) not in modules)
        return Layout(modules, loose, note=f"branches begin at {first or 'the whole model'}")

    def _first(self, structure: Structure) -> str:
        if self.branch_at is None:
            return last_third(structure)
        names = [name for name, _ in structure.model.named_modules() if name]
        hits = names_matching(names, [self.branch_at], f"TreeNet(branch_at={self.branch_at!r})")[self.branch_at]
        starts = {name: structure.started(name) for name in hits}
        ran = [name for name in hits if starts[name] is not None]
        if not ran:
            raise InputError(
                f"TreeNet(branch_at={self.branch_at!r}): {', '.join(hits)} does not run on the example: name a module that runs"
            )
        return min(ran, key=lambda name: starts[name] or 0)
