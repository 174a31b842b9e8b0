"""recommend: finds the methods and settings that fit a model and limits on latency, memory and training.

The draft of a candidate's conversion shows how much training it needs: which parameters keep their values, and where the
others are. `cost` measures its latency and memory. Its quality is looked up: `KNOWN` has published negative log-likelihoods,
relative to the single network.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from multitudes.analysis.recommendation import LEVELS, SIZES, TIMES, Candidate, Limit, Recommendation
from multitudes.conversion.anatomy.first_layers import first_layers
from multitudes.conversion.anatomy.initialise import build, check_model
from multitudes.conversion.anatomy.structure import heads
from multitudes.conversion.arguments import check_method
from multitudes.conversion.convert import ensemble
from multitudes.conversion.cost import cost
from multitudes.conversion.draft import UNUSED, make_draft
from multitudes.engine import tree
from multitudes.engine.call_form import call_of
from multitudes.engine.inputs import BatchAxis, Inputs, count_rows, fresh_inputs, take_rows
from multitudes.engine.modules import Factory, detached_copy, inside, owning_module
from multitudes.engine.selected_output import selected, selection_of
from multitudes.engine.undisturbed import undisturbed
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, MultitudesError
from multitudes.method import Method
from multitudes.methods.single import Single
from multitudes.settings import Count, check_value
from multitudes.terminal import bar

LATE = "the last layer but one"
"""Placeholder in the settings of KNOWN. It is replaced by the name of the last layer but one."""

FAR = 1.0
"""Largest distance of untrained members from the network's outputs, relative to the outputs. Beyond it they are noise."""

MARGIN = 0.9
"""Share of the latency limit that a reduced number of draws may use: measured times vary by about a tenth."""

PACKED_1 = "Packed-Ensembles, table 1: ResNet-18 on CIFAR-10"
MIMO_1 = "MIMO, table 1: WideResNet-28-10 on CIFAR-10"
RUN = "one run here: ResNet-18 on CIFAR-10"
HAVASI = "MIMO, tables 1 to 3, the mean"


@dataclass(frozen=True)
class Variant:
    """Settings of a method that are worth trying, with their published result."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    nll: float | None = None
    """Published NLL relative to the single network's, after training from scratch; None if none is known."""
    source: str = ""
    """The table of the result."""
    why: str = ""
    levels: tuple[str, ...] = tuple(LEVELS)
    """Amounts of training for which these settings are tried."""
    start: str = "fresh"


MORE = ("finetune", "scratch")
UNTRAINED = "the weights were not trained with it: choose p on held-out data"
FROZEN = "heads on a frozen trunk become nearly equal: give each its own data, or stop early"
COMPONENTS = "draws from several last layers; on a frozen trunk they become nearly equal"
KNOWN: dict[str, tuple[Variant, ...]] = {
    "Deep": (
        Variant({}, 0.66, PACKED_1, "the best results, at the cost of M networks"),
        Variant({}, None, "", "M copies of the given network", ("finetune",), "copies"),
    ),
    "Packed": (
        Variant({"alpha": 2.0}, 0.72, MIMO_1, "costs about one network, if that is large and wide enough to divide"),
        Variant({"alpha": 2.0, "gamma": 2}, 0.75, PACKED_1, "as gamma=1, with fewer weights"),
        Variant({"alpha": 2.0, "pretrained": True}, None, "", "members keep some channels, and need training", ("finetune",)),
    ),
    "Masksembles": (Variant({}, 0.79, PACKED_1, "keeps all weights; compact() removes masked channels for prediction"),),
    "TreeNet": (
        Variant({}, 0.93, HAVASI, "shares the trunk", ("none", *MORE)),
        Variant({"branch_at": LATE}, None, "", "two layers per member let members differ more than heads do", ("head",)),
    ),
    "ECMP": (
        Variant({}, 0.84, RUN, "keeps all weights and adds few; predicts with many draws", MORE),
        Variant({"patch": "output"}, None, "", COMPONENTS, ("none", "head")),
    ),
    "EMP": (
        Variant({}, 0.86, RUN, "keeps all weights and adds few; predicts with many draws", MORE),
        Variant({"patch": "output"}, None, "", COMPONENTS, ("none", "head")),
    ),
    "MIMO": (
        Variant({}, 0.87, f"{MIMO_1}, 0.77; with rho=1 in {PACKED_1}, 0.96", "costs one network, if that is wide enough"),
    ),
    "BatchEnsemble": (
        Variant({}, 0.93, f"{RUN}; {PACKED_1} has 1.08", "keeps all weights, but members start far from the network"),
    ),
    "MCDropout": (
        Variant({"position": "existing"}, 0.98, "MIMO, tables 1 and 2, one pass", "uses the dropout that the network has"),
        Variant({"position": "layers"}, None, "", "adds dropout before layers"),
        Variant({"position": "layers", "p": 0.02}, None, "", UNTRAINED, ("none", "head")),
    ),
    "MultiHead": (
        Variant({}, 0.98, HAVASI, "members share all but the last layer: nearly free in a large network", ("none", *MORE)),
        Variant({}, None, "", FROZEN, ("head",)),
    ),
    "DropConnect": (
        Variant({}, None, "", "each member drops other weights"),
        Variant({"p": 0.02}, None, "", UNTRAINED, ("none", "head")),
    ),
    "SWAG": (Variant({}, None, "", "the training of one network; its learning rate must stay high at the end"),),
    "Snapshot": (Variant({}, None, "", "the training of one network, with M cycles of its learning rate"),),
    "Laplace": (Variant({}, None, "", "keeps all weights: ens.finish(train) fits the posterior of the last layer"),),
}  # fmt: skip
"""Variants by the method's name. Among variants without a published result the earlier one ranks higher. A method that is not
listed is tried with its default settings and ranks like the single network."""


@undisturbed
def recommend(
    model: nn.Module | Factory,
    example: Any,
    *,
    latency: float | str | None = None,
    memory: float | str | None = None,
    training: str = "scratch",
    methods: Sequence[Method] | None = None,
    batch_axis: BatchAxis = 0,
    output: str | int | None = None,
    repeats: int = 10,
    progress: bool | None = None,
) -> Recommendation:
    """Ranks the methods and settings that fit a budget, best first, with reasons. The model is not changed.

    latency     limit of one call with the example: a multiple of the single network's (1.5, "1.5x"), or a time ("20 ms")
    memory      limit of a training step with the example: a multiple of the single network's (2.0, "2x"), or a size ("2 GB")
    training    "none": keep the weights; "head": train the last layers; "finetune": train all, from the given weights;
                "scratch": train all, from new weights
    methods     methods to try, [mt.Packed(members=8, alpha=3), ...]; None tries all, each with a few settings
    batch_axis  the batch axis of the inputs, as in `ensemble`
    output      the one output that ensembles return, if the model returns several, as in `ensemble`
    repeats     number of timed calls; the latency is their median
    progress    whether to show a progress bar; None shows it in a terminal

    >>> import torch, multitudes as mt
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
    >>> mt.recommend(net, torch.randn(8, 4), training="head", methods=[mt.Deep(), mt.MultiHead(members=5)]).best
    MultiHead(members=5, reduction='sum', head=None)
    """
    limits = Limit.read("latency", latency, TIMES, "20 ms"), Limit.read("memory", memory, SIZES, "2 GB")
    if training not in LEVELS:
        from difflib import get_close_matches

        near = get_close_matches(str(training), LEVELS, n=1, cutoff=0.0)
        raise InputError(f"training={training!r} must be one of {', '.join(LEVELS)}; did you mean {near[0]!r}?")
    check_value("repeats", repeats, Count)
    check_model(model)
    search = Search.of(selected(model, output), example, batch_axis, training, limits, repeats)
    todo = search.variants(methods)
    with bar("recommend", len(todo), progress, "candidates") as advance, warnings.catch_warnings():
        warnings.filterwarnings("ignore", UNUSED)  # `needs` says which training that takes
        candidates = []
        for position, (method, variant) in enumerate(todo):
            candidates += [(position, candidate) for candidate in search.try_method(method, variant)]
            advance(1, last=type(method).__name__)
    ranked = sorted(candidates, key=lambda entry: _rank(*entry))
    return Recommendation(type(search.single).__name__, training, *limits, tuple(candidate for _, candidate in ranked))


def _rank(position: int, candidate: Candidate) -> tuple[float, ...]:
    """Sort key: verdict, expected NLL, distance from the network, place in KNOWN, latency."""
    verdicts = ("fits", "too slow", "too large", "too far", "alike", "needs training", "refused")
    expected = 1.0 if candidate.nll is None else candidate.nll
    order = verdicts.index(candidate.verdict), expected, candidate.distance or 0.0, position
    return (*order, candidate.ratio("latency") or math.inf)


@dataclass(frozen=True)
class Search:
    """The network, the example and the limits that all candidates are tried with."""

    model: nn.Module | Factory
    single: nn.Module
    example: Inputs
    rows: Inputs
    """The first two rows of the example; conversion needs no more."""
    axis: BatchAxis
    training: str
    limits: tuple[Limit | None, Limit | None]
    """Latency and memory."""
    repeats: int
    first: set[str]
    """Names of the layers that read the network's input."""
    late: set[str]
    """Names of the modules and parameters that training="head" may train."""
    branch_at: str | None
    """Name of the last layer but one."""

    @classmethod
    def of(cls, model: Any, example: Any, axis: BatchAxis, training: str, limits: Any, repeats: int) -> Search:
        """Checks the arguments and observes the network."""
        whole = call_of(model if isinstance(model, nn.Module) else build(model, 1.0, 0), example)
        if any(tensor.is_meta for tensor in whole.tensors()):
            raise InputError(
                "the example is on the meta device, where calls cannot be timed: move model and example to a real one"
            )
        draft = make_draft(model, Single(), whole, keep=(), at=None, seed=0, start="fresh", batch_axis=axis, chunk=None)
        rows = take_rows(whole, axis, torch.arange(min(2, count_rows(whole, axis))))
        if draft.plan.refused:
            ensemble(model, Single(), rows, batch_axis=axis, seed=0)  # raises, and names the parts that no method takes
        structure = draft.given.structure
        last = structure.layers()[1:][-2:]
        last_modules, loose = heads(structure)
        start = structure.order[last[0]] if last else math.inf
        parts = [name for name, _ in draft.given.model.named_modules()]
        late = {name for name in parts if inside(name, list(last_modules)) or (structure.started(name) or 0) >= start}
        return cls(
            model=model,
            single=draft.given.model,
            example=whole,
            rows=rows,
            axis=axis,
            training=training,
            limits=limits,
            repeats=repeats,
            first=first_layers(structure),
            late=late | loose,
            branch_at=last[0] if last else None,
        )

    def variants(self, methods: Sequence[Method] | None) -> list[tuple[Method, Variant]]:
        """Lists the methods to try, each with its known variant."""
        listed = []
        names = list(KNOWN)
        for kind in sorted(Method.all(), key=lambda kind: names.index(kind.__name__) if kind.__name__ in KNOWN else len(names)):
            if any(f.default is f.default_factory is dataclasses.MISSING for f in dataclasses.fields(kind)):
                continue  # a setting without a default: only methods= can give it
            for variant in KNOWN.get(kind.__name__, (Variant(),)):
                settings: dict[str, Any] = {
                    name: self.branch_at if value == LATE else value for name, value in variant.settings.items()
                }
                if self.training in variant.levels:
                    listed.append((kind(**settings), variant))
        if methods is None:
            return [(method, variant) for method, variant in listed if method.members > 1]
        if isinstance(methods, Method) or not methods:
            raise InputError(f"methods={methods!r} must be a list of methods: methods=[mt.Packed(members=4, alpha=2)]")
        for method in methods:
            check_method(self.single, method)
        known = {repr(method): variant for method, variant in reversed(listed) if variant.start == "fresh"}
        return [(method, known.get(repr(method), Variant())) for method in methods]

    def try_method(self, method: Method, variant: Variant) -> list[Candidate]:
        """Tries a method. Returns a candidate, and another if the method compacts or if fewer draws meet the latency limit."""
        candidate = Candidate(
            method, "refused", "", start=variant.start, nll=variant.nll, axis=self.axis, output=selection_of(self.single)
        )
        try:
            needs, new = self.needed(method, variant.start)
            candidate = replace(candidate, needs=needs)
            if list(LEVELS).index(needs) > list(LEVELS).index(self.training):
                names = ", ".join(sorted(new)[:2]) + (" and others" if len(new) > 2 else "")
                why = f"each member has its own {names}" if new else "each member uses only a part of the network"
                why = "members are made of a training run" if method.made_in_training else why
                return [replace(candidate, verdict="needs training", reason=f"{needs}, since {why}")]
            return self.measured(candidate, variant, new)
        except torch.OutOfMemoryError as error:
            return [replace(candidate, verdict="too large", reason=f"out of memory: {error}")]
        except Exception as error:  # a method that fails is listed with its error, and the others are tried
            kind = "" if isinstance(error, MultitudesError) else f"{type(error).__name__}: "
            return [replace(candidate, verdict="refused", reason=f"{kind}{error}")]

    def needed(self, method: Method, start: str) -> tuple[str, set[str]]:
        """Returns how much training a method needs at least, one of `LEVELS`, and the names of its new parameters: those that
        members own, or that do not start with the given model's values."""
        draft = make_draft(
            self.model, method, self.rows, keep=(), at=None, seed=0, start=start, batch_axis=self.axis, chunk=None
        )
        if draft.plan.refused:
            # raises an error that names everything that is refused
            ensemble(self.model, method, self.rows, start=start, seed=0, batch_axis=self.axis)
        weights, net = dict(draft.given.model.named_parameters()), dict(draft.network.named_parameters())
        owned = draft.owned | draft.summed
        if owned and (start == "fresh" or method.shares_weights):
            net |= {name: value for name, value in draft.member(0)[0].named_parameters() if name in owned}
        same = {n for n, p in net.items() if n in weights and p.shape == weights[n].shape and torch.equal(p, weights[n])}
        new = {name for name in net if name not in same or name in owned}
        if method.made_in_training:
            return "finetune", new
        if not new and (method.draws or method.members == 1):
            return "none", new
        if new and all(name in self.late or owning_module(name) in self.late for name in new):
            return "head", new
        most_kept = 2 * sum(weights[name].numel() for name in same) >= sum(value.numel() for value in weights.values())
        first_kept = not self.first & {owning_module(name) for name in net.keys() - same}
        all_have_weights = method.keeps_weights or method.shares_weights or start == "copies"
        return "finetune" if all_have_weights or (most_kept and first_kept) else "scratch", new

    def measured(self, candidate: Candidate, variant: Variant, new: set[str]) -> list[Candidate]:
        """Returns the candidate with its cost and verdict, and its variants after `compact` or with fewer draws."""
        method = candidate.method
        ens = ensemble(self.model, method, self.rows, start=candidate.start, seed=0, batch_axis=self.axis, check=False)
        same = candidate.start == "copies" and not method.shares_weights
        if method.members > 1 and (same or any(note.startswith("members start equal") for note in ens.plan.notes)):
            text = "members start equal, and stay equal on the same data; train each on its own with per_member=True"
            return [replace(candidate, verdict="alike", reason=text)]
        if candidate.needs == "none" and self.training in ("none", "head"):  # the network was not trained with these draws
            candidate = replace(candidate, distance=self.distance(ens))
        candidate = replace(candidate, reason=self.reason(candidate, variant, new))
        candidate = replace(candidate, cost=cost(ens, self.example, self.repeats))
        plain = self.with_verdict(candidate)
        if type(method).compact is not Method.compact:
            return [plain, self.compacted(ens, candidate)]
        fewer = self.fewer(ens, candidate) if plain.verdict == "too slow" and method.draws else []
        return [plain, *fewer]

    def fewer(self, ens: Ensemble, candidate: Candidate) -> list[Candidate]:
        """Returns the candidate with as many draws as the latency limit allows; an empty list if that is fewer than two."""
        assert candidate.cost is not None and self.limits[0] is not None
        share = self.limits[0].amount(candidate.cost.base.latency) / candidate.cost.ensemble.latency
        count = int(MARGIN * share * candidate.method.members)
        if count < 2:
            return []
        some = ens.subset(range(count))
        text = f"the latency allows {count} draws; {candidate.reason}"
        smaller = self.with_verdict(
            replace(candidate, method=some.method, reason=text, cost=cost(some, self.example, self.repeats))
        )
        return [smaller] if smaller.verdict != "too slow" else []

    def compacted(self, ens: Ensemble, candidate: Candidate) -> Candidate:
        """Returns the candidate after `compact`. Its memory includes that of training, which happens before `compact`."""
        try:
            small = cost(ens.compact(), self.example, self.repeats)
        except MultitudesError as error:
            return replace(candidate, verdict="refused", reason=str(error), cost=None, compact=True)
        assert candidate.cost is not None
        memory = max(small.ensemble.memory, candidate.cost.ensemble.memory)
        return self.with_verdict(
            replace(candidate, compact=True, cost=replace(small, ensemble=replace(small.ensemble, memory=memory)))
        )

    def with_verdict(self, candidate: Candidate) -> Candidate:
        """Returns the candidate with its verdict: its cost is compared with the limits, its distance with FAR."""
        assert candidate.cost is not None
        measured = candidate.cost
        over = {}
        for name, verdict, limit in zip(("latency", "memory"), ("too slow", "too large"), self.limits, strict=True):
            amount, single = getattr(measured.ensemble, name), getattr(measured.base, name)
            if limit and amount > limit.amount(single):
                most = limit.shown(limit.amount(single), single, name)
                over[verdict] = f"{name} of {limit.shown(amount, single, name)} > {most}"
        if over:
            return replace(candidate, verdict=next(iter(over)), reason=", ".join(over.values()))
        if candidate.distance is not None and candidate.distance > FAR:
            text = f"members are {candidate.distance:.0%} off the network's outputs: they are mostly noise"
            return replace(candidate, verdict="too far", reason=text)
        return replace(candidate, verdict="fits")

    def reason(self, candidate: Candidate, variant: Variant, new: set[str]) -> str:
        """Says why a candidate is worth trying, and which layers to train."""
        parts = [variant.why] if variant.why else []
        known = f"NLL {candidate.nll:.2f} × the single network's ({variant.source})" if candidate.nll is not None else ""
        parts.append(known or "no known result")
        if self.training == "head" and candidate.needs == "head":
            parts.append(f"train {', '.join(sorted({owning_module(name) or name for name in new}))}, freeze the rest")
        if candidate.distance is not None:
            parts.append(f"members are {candidate.distance:.0%} off the network's outputs")
        return "; ".join(parts)

    def distance(self, ens: Ensemble) -> float:
        """Root mean square distance of members from the network's outputs on the example, relative to the outputs."""
        outputs = []
        for net in (detached_copy(self.single, {}), ens):
            call = fresh_inputs(self.example)
            with torch.no_grad():
                outputs.append(
                    [t.double() for t in tree.tensors(net.eval()(*call.args, **call.kwargs)) if t.is_floating_point()]
                )
        squares = sum(float((members - alone).square().sum()) for alone, members in zip(*outputs, strict=True))
        size = sum(float(alone.square().sum()) for alone in outputs[0]) * ens.members
        return math.sqrt(squares / size) if size else 0.0
