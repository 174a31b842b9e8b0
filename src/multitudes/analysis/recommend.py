"""recommend: which methods and settings fit a model, a latency, a memory, and the training that one can afford.

What training a candidate needs is read off its draft: which parameters are the given ones, and where the others stand. What
it costs is measured by `cost`. How good it is to be expected is the one thing that is looked up: `KNOWN` has the negative
log-likelihood that was printed for it, over that of the single network.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from multitudes.analysis.recommendation import LEVELS, SIZES, TIMES, Candidate, Limit, Recommendation
from multitudes.conversion.anatomy.first_layers import first_layers
from multitudes.conversion.anatomy.structure import heads, observe
from multitudes.conversion.arguments import check_method
from multitudes.conversion.convert import ensemble
from multitudes.conversion.cost import cost
from multitudes.conversion.draft import make_draft
from multitudes.engine import tree
from multitudes.engine.inputs import BatchAxis, Inputs, count_rows, fresh_inputs, take_rows
from multitudes.engine.modules import Factory, detached_copy, inside, owning_module
from multitudes.engine.proof.outcome import clean_autograd
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, MultitudesError
from multitudes.method import Method
from multitudes.methods.single import Single
from multitudes.settings import Count, check
from multitudes.terminal import bar

LATE = "the last layer but one"
"""Stands for the name of that layer in settings."""

FAR = 1.0
"""Without training, members may be so far off the given network's outputs, as a share of these: then noise is all there is."""

MARGIN = 0.9
"""How much of a latency is given to fewer draws, since times move by about a tenth."""

PACKED_1 = "Packed-Ensembles, table 1: ResNet-18 on CIFAR-10"
MIMO_1 = "MIMO, table 1: WideResNet-28-10 on CIFAR-10"
RUN = "one run here: ResNet-18 on CIFAR-10"
HAVASI = "MIMO, tables 1 to 3, the mean"


@dataclass(frozen=True)
class Variant:
    """Settings that are worth a try, and what is known of them."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    nll: float | None = None
    """Printed, over the single network's; all of it after training from scratch."""
    source: str = ""
    why: str = ""
    levels: tuple[str, ...] = tuple(LEVELS)
    """With how much training it is offered."""
    start: str = "fresh"


MORE = ("finetune", "scratch")
UNTRAINED = "these weights were not trained with it: choose p on held-out data"
FROZEN = "on a frozen trunk heads learn nearly the same: give each its own data, or stop early"
COMPONENTS = "last layers to draw from, which on a frozen trunk learn nearly the same"
KNOWN: dict[str, tuple[Variant, ...]] = {
    "Deep": (
        Variant({}, 0.66, PACKED_1, "the best there is, at the cost of M networks"),
        Variant({}, None, "", "M copies of the given network", ("finetune",), "copies"),
    ),
    "Packed": (
        Variant({"alpha": 2.0}, 0.72, MIMO_1, "about the cost of one network, if that is wide enough to divide"),
        Variant({"alpha": 2.0, "gamma": 2}, 0.75, PACKED_1, "as gamma=1, with fewer weights"),
        Variant({"alpha": 2.0, "pretrained": True}, None, "", "members keep some channels, and have to recover", ("finetune",)),
    ),
    "Masksembles": (Variant({}, 0.79, PACKED_1, "keeps all weights; compact() drops what masks leave unused"),),
    "TreeNet": (
        Variant({}, 0.93, HAVASI, "shares the trunk", ("none", *MORE)),
        Variant({"split": LATE}, None, "", "two layers of their own let members differ more than heads do", ("head",)),
    ),
    "ECMP": (
        Variant({}, 0.84, RUN, "keeps all weights, and hardly adds any; many draws at prediction", MORE),
        Variant({"patch": "output"}, None, "", COMPONENTS, ("none", "head")),
    ),
    "EMP": (
        Variant({}, 0.86, RUN, "keeps all weights, and hardly adds any; many draws at prediction", MORE),
        Variant({"patch": "output"}, None, "", COMPONENTS, ("none", "head")),
    ),
    "MIMO": (Variant({}, 0.87, f"{MIMO_1}, 0.77; with rho=1 in {PACKED_1}, 0.96", "at the cost of one, if it is wide enough"),),
    "BatchEnsemble": (
        Variant({}, 0.93, f"{RUN}; {PACKED_1} has 1.08", "keeps all weights, but starts far from the network"),
    ),
    "MCDropout": (
        Variant({"position": "existing"}, 0.98, "MIMO, tables 1 and 2, one pass", "the network is trained with this dropout"),
        Variant({"position": "layers"}, None, "", "dropout before layers, where there was none"),
        Variant({"position": "layers", "p": 0.02}, None, "", UNTRAINED, ("none", "head")),
    ),
    "MultiHead": (
        Variant({}, 0.98, HAVASI, "nearly free: all but the last layer is shared", ("none", *MORE)),
        Variant({}, None, "", FROZEN, ("head",)),
    ),
    "DropConnect": (
        Variant({}, None, "", "each member drops weights of its own"),
        Variant({"p": 0.02}, None, "", UNTRAINED, ("none", "head")),
    ),
}  # fmt: skip
"""By a method's name; of two without a result the first is the better one. A method that is not here is tried as it is by
default, and ranks as the single network."""


@clean_autograd()
def recommend(
    model: nn.Module | Factory,
    example: Any,
    *,
    latency: float | str | None = None,
    memory: float | str | None = None,
    training: str = "scratch",
    methods: Sequence[Method] | None = None,
    batch_axis: BatchAxis = 0,
    repeats: int = 10,
    progress: bool | None = None,
) -> Recommendation:
    """Which methods and settings fit, best first, with reasons; the model given is left untouched.

    latency     of one call with the example: a multiple of the single network's (1.5, "1.5x"), or a time ("20 ms")
    memory      of a training step with the example, as `cost` counts it: a multiple too (2.0, "2x"), or a size ("2 GB")
    training    "none": weights stay; "head": only the last layers; "finetune": from the given weights on; "scratch": anew
    methods     what to try, [mt.Packed(members=8, alpha=3), ...]; None for all methods there are, with a few settings each
    repeats     how many calls a latency is the median of
    progress    whether to show a bar; None shows it where there is a terminal

    >>> import torch, multitudes as mt
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    >>> mt.recommend(net, torch.randn(8, 4), training="head", methods=[mt.Deep(), mt.MultiHead(members=5)]).best
    MultiHead(members=5, reduction='sum', head=None)
    """
    budgets = Limit.read("latency", latency, TIMES, "20 ms"), Limit.read("memory", memory, SIZES, "2 GB")
    if training not in LEVELS:
        from difflib import get_close_matches

        near = get_close_matches(str(training), LEVELS, n=1, cutoff=0.0)
        raise InputError(f"training={training!r}: there are {', '.join(LEVELS)}; nearest: {near[0]!r}")
    check("repeats", repeats, Count)
    with torch.random.fork_rng():
        search = Search.of(model, example, batch_axis, training, budgets, repeats)
        todo = search.variants(methods)
        with bar("recommend", len(todo), progress, "candidates") as tell:
            found = []
            for position, (method, variant) in enumerate(todo):
                found += [(position, candidate) for candidate in search.tried(method, variant)]
                tell(1, last=type(method).__name__)
    ranked = sorted(found, key=lambda entry: _rank(*entry))
    return Recommendation(type(search.single).__name__, training, *budgets, tuple(candidate for _, candidate in ranked))


def _rank(position: int, candidate: Candidate) -> tuple[float, ...]:
    """What fits comes first, then what was measured; the lower its likelihood is known to be, the better."""
    verdicts = ("fits", "too slow", "too large", "too far", "alike", "needs training", "refused")
    expected = 1.0 if candidate.nll is None else candidate.nll
    order = verdicts.index(candidate.verdict), expected, candidate.distance or 0.0, position
    return (*order, candidate.ratio("latency") or math.inf)


@dataclass(frozen=True)
class Search:
    """What all candidates are tried with."""

    model: nn.Module | Factory
    single: nn.Module
    example: Inputs
    few: Inputs
    """Two rows of the example, for conversion."""
    axis: BatchAxis
    training: str
    budgets: tuple[Limit | None, Limit | None]
    repeats: int
    first: set[str]
    """The layers on the network's input."""
    late: set[str]
    """The parameters that training="head" may change."""
    split: str | None
    """The last layer but one."""

    @classmethod
    def of(cls, model: Any, example: Any, axis: BatchAxis, training: str, budgets: Any, repeats: int) -> Search:
        """Answers bad input, and looks at the network."""
        whole = Inputs.of(example)
        if any(tensor.is_meta for tensor in whole.tensors()):
            raise InputError("the example is on the meta device, where nothing can be timed: give it and the model values")
        begun = make_draft(model, Single(), example, keep=(), at=None, seed=0, start="fresh", batch_axis=axis, chunk=None)
        few = take_rows(whole, axis, torch.arange(min(2, count_rows(whole, axis))))
        if begun.plan.refused:
            ensemble(model, Single(), few, batch_axis=axis, seed=0)  # which says what no method can take
        structure = observe(begun.base, begun.inputs)
        last = structure.layers()[1:][-2:]
        last_modules, loose = heads(structure)
        start = structure.order[last[0]] if last else math.inf
        parts = [name for name, _ in begun.base.named_modules()]
        late = {name for name in parts if inside(name, list(last_modules)) or (structure.started(name) or 0) >= start}
        return cls(
            model, begun.base, whole, few, axis, training, budgets, repeats, first_layers(structure), late | loose,
            last[0] if last else None,
        )  # fmt: skip

    def variants(self, methods: Sequence[Method] | None) -> list[tuple[Method, Variant]]:
        """What is to be tried, and what is known of it."""
        found = []
        names = list(KNOWN)
        for kind in sorted(Method.all(), key=lambda kind: names.index(kind.__name__) if kind.__name__ in KNOWN else len(names)):
            if any(f.default is f.default_factory is dataclasses.MISSING for f in dataclasses.fields(kind)):
                continue  # it has no settings of its own: methods= gives them
            for variant in KNOWN.get(kind.__name__, (Variant(),)):
                settings: dict[str, Any] = {
                    name: self.split if value == LATE else value for name, value in variant.settings.items()
                }
                if self.training in variant.levels:
                    found.append((kind(**settings), variant))
        if methods is None:
            return [(method, variant) for method, variant in found if method.members > 1]
        if isinstance(methods, Method) or not methods:
            raise InputError(f"methods={methods!r}: give a list of methods, methods=[mt.Packed(members=4, alpha=2)]")
        for method in methods:
            check_method(self.single, method)
        known = {repr(method): variant for method, variant in reversed(found) if variant.start == "fresh"}
        return [(method, known.get(repr(method), Variant())) for method in methods]

    def tried(self, method: Method, variant: Variant) -> list[Candidate]:
        """A candidate, and another one where it compacts, or where fewer draws are within the latency."""
        found = Candidate(method, "refused", "", start=variant.start, nll=variant.nll, axis=self.axis)
        try:
            needs, new = self.needed(method, variant.start)
            found = replace(found, needs=needs)
            if list(LEVELS).index(needs) > list(LEVELS).index(self.training):
                names = ", ".join(sorted(new)[:2]) + (" and others" if len(new) > 2 else "")
                what = f"members have their own {names}" if new else "members have to learn to do with a part of the network"
                return [replace(found, verdict="needs training", reason=f"{needs}, since {what}")]
            return self.measured(found, variant, new)
        except torch.OutOfMemoryError as error:
            return [replace(found, verdict="too large", reason=f"out of memory: {error}")]
        except Exception as error:  # one method that fails is told of, and does not stand in the way of others
            kind = "" if isinstance(error, MultitudesError) else f"{type(error).__name__}: "
            return [replace(found, verdict="refused", reason=f"{kind}{error}")]

    def needed(self, method: Method, start: str) -> tuple[str, set[str]]:
        """The least training that a method takes, and the parameters that are members' own or not the given ones."""
        begun = make_draft(
            self.model, method, self.few, keep=(), at=None, seed=0, start=start, batch_axis=self.axis, chunk=None
        )
        if begun.plan.refused:
            ensemble(self.model, method, self.few, start=start, seed=0, batch_axis=self.axis)  # which says all that is refused
        given, net = dict(begun.base.named_parameters()), dict(begun.model.named_parameters())
        owned = begun.owned | begun.summed
        if owned and (start == "fresh" or method.shares_weights):
            net |= {name: value for name, value in begun.fresh(0)[0].named_parameters() if name in owned}
        same = {n for n, p in net.items() if n in given and p.shape == given[n].shape and torch.equal(p, given[n])}
        new = {name for name in net if name not in same or name in owned}
        if not new and (method.draws or method.members == 1):
            return "none", new
        if new and all(name in self.late or owning_module(name) in self.late for name in new):
            return "head", new
        kept = 2 * sum(given[name].numel() for name in same) >= sum(value.numel() for value in given.values())
        kept = kept and not self.first & {owning_module(name) for name in net.keys() - same}
        given_to_all = method.keeps_weights or method.shares_weights or start == "copies"
        return "finetune" if given_to_all or kept else "scratch", new

    def measured(self, found: Candidate, variant: Variant, new: set[str]) -> list[Candidate]:
        """The candidate with its cost and a verdict; and those that follow from it."""
        method = found.method
        ens = ensemble(self.model, method, self.few, start=found.start, seed=0, batch_axis=self.axis, check=False)
        same = found.start == "copies" and not method.shares_weights
        if method.members > 1 and (same or any(note.startswith("members start equal") for note in ens.plan.notes)):
            text = "members start equal, and stay so on the same data; with per_member=True each can have its own"
            return [replace(found, verdict="alike", reason=text)]
        if found.needs == "none" and self.training in ("none", "head"):  # what is dropped was not dropped in training
            found = replace(found, distance=self.distance(ens))
        found = replace(found, reason=self.said(found, variant, new))
        found = replace(found, cost=cost(ens, self.example, self.repeats))
        plain = self.judged(found)
        if type(method).compact is not Method.compact:
            return [plain, self.compacted(ens, found)]
        fewer = self.fewer(ens, found) if plain.verdict == "too slow" and method.draws else []
        return [plain, *fewer]

    def fewer(self, ens: Ensemble, found: Candidate) -> list[Candidate]:
        """As many draws as the latency allows, if that is several: one is like another, so that there may be fewer."""
        assert found.cost is not None and self.budgets[0] is not None
        share = self.budgets[0].limit(found.cost.base.latency) / found.cost.ensemble.latency
        count = int(MARGIN * share * found.method.members)
        if count < 2:
            return []
        some = ens.subset(range(count))
        text = f"{count} draws are what the latency allows; {found.reason}"
        made = self.judged(replace(found, method=some.method, reason=text, cost=cost(some, self.example, self.repeats)))
        return [made] if made.verdict != "too slow" else []

    def compacted(self, ens: Ensemble, found: Candidate) -> Candidate:
        """The same as `compact` makes it for prediction; what it takes to train stays."""
        try:
            own = cost(ens.compact(), self.example, self.repeats)
        except MultitudesError as error:
            return replace(found, verdict="refused", reason=str(error), cost=None, compact=True)
        assert found.cost is not None
        memory = max(own.ensemble.memory, found.cost.ensemble.memory)
        return self.judged(replace(found, compact=True, cost=replace(own, ensemble=replace(own.ensemble, memory=memory))))

    def judged(self, found: Candidate) -> Candidate:
        """The verdict on what was measured."""
        assert found.cost is not None
        measured = found.cost
        over = {}
        for name, verdict, budget in zip(("latency", "memory"), ("too slow", "too large"), self.budgets, strict=True):
            mine, single = getattr(measured.ensemble, name), getattr(measured.base, name)
            if budget and mine > budget.limit(single):
                over[verdict] = (
                    f"{name} of {budget.shown(mine, single, name)} > {budget.shown(budget.limit(single), single, name)}"
                )
        if over:
            return replace(found, verdict=next(iter(over)), reason=", ".join(over.values()))
        if found.distance is not None and found.distance > FAR:
            text = f"members are {found.distance:.0%} off the network's outputs: with these weights there is little but noise"
            return replace(found, verdict="too far", reason=text)
        return replace(found, verdict="fits")

    def said(self, found: Candidate, variant: Variant, new: set[str]) -> str:
        """What speaks for a candidate that fits, and what is to be done."""
        parts = [variant.why] if variant.why else []
        known = f"NLL {found.nll:.2f} × the single network's ({variant.source})" if found.nll is not None else ""
        parts.append(known or "no result is known")
        if self.training == "head" and found.needs == "head":
            parts.append(f"train {', '.join(sorted({owning_module(name) or name for name in new}))}, freeze the rest")
        if found.distance is not None:
            parts.append(f"members are {found.distance:.0%} off the network's outputs")
        return "; ".join(parts)

    def distance(self, ens: Ensemble) -> float:
        """How far members are off the network's outputs, as a share of these, by root mean squares over the example."""
        outputs = []
        for net in (detached_copy(self.single, {}), ens):
            own = fresh_inputs(self.example)
            with torch.no_grad():
                outputs.append([t.double() for t in tree.tensors(net.eval()(*own.args, **own.kwargs)) if t.is_floating_point()])
        apart = sum(float((members - alone).square().sum()) for alone, members in zip(*outputs, strict=True))
        size = sum(float(alone.square().sum()) for alone in outputs[0]) * ens.members
        return math.sqrt(apart / size) if size else 0.0
