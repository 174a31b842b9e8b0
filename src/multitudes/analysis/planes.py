"""landscape: loss, accuracy and disagreement over a plane through three members in the space of their weights.

Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, §3.1 and Fig. 3,
https://arxiv.org/abs/2010.06610, after Fort, Hu, Lakshminarayanan, https://arxiv.org/abs/1912.02757. A point of the plane is
Σ_i c_i θ_i, with the weights θ_i of the anchors. What members share does not move: for Deep all weights move, for MultiHead the
heads, for MIMO first layers and heads.

MIMO: the moved subnetwork has its own slot beside the M of the network, with the first layer Σ_i c_i W_i. It takes the place
of the anchors by as much as it is one of them: slot m has the weight (1 − c_m) W_m. So at anchor i it is subnetwork i.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor, nn

from multitudes.data.batches import batched
from multitudes.data.dataset import ignore_of
from multitudes.data.labels import UNLABELLED
from multitudes.engine import tree
from multitudes.engine.batch_norm import estimate_norms
from multitudes.engine.inputs import Inputs, count_rows, stack_slots, take_rows
from multitudes.engine.modules import batch_norms, detached_copy, join_name, named_tensors
from multitudes.engine.selected_output import output_of
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.method import Criterion
from multitudes.prediction.reduction import ReductionCheck
from multitudes.prediction.values import CLASSES
from multitudes.settings import Count, at_least, check_value
from multitudes.terminal import bar
from multitudes.training.criterion import TaskCriterion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from multitudes.figures.theme import Theme

Anchor = int | Literal["origin"]
Others = Literal["other", "same"]
Norms = Literal["interpolate", "estimate"]
Network = Callable[..., Any]
"""The network at a point of the plane: a module, or for MIMO a function that runs the moved subnetwork."""


@dataclass(frozen=True)
class Landscape:
    """Loss, accuracy and disagreement on a grid over the plane, and at the three anchors."""

    anchors: tuple[Anchor, ...]
    """The members at the three anchors, or "origin"."""
    corners: Tensor
    """Coordinates of the anchors, ``[3, 2]``, in units of the distance in weight space."""
    x: Tensor
    """First coordinate of the grid, ``[G]``."""
    y: Tensor
    """Second coordinate of the grid, ``[G]``."""
    loss: Tensor
    """Loss at each point, ``[G, G]``: rows are y, columns x."""
    corner_loss: Tensor
    """Loss at the anchors, ``[3]``: the members' own losses."""
    accuracy: Tensor | None = None
    """Accuracy at each point, ``[G, G]``; None for a regression."""
    corner_accuracy: Tensor | None = None
    """Accuracy at the anchors, ``[3]``."""
    disagreement: Tensor | None = None
    """Share of examples on which the point and anchor i predict different classes, ``[3, G, G]``."""

    def figure(self, show: Literal["loss", "accuracy", "disagreement"] = "loss", theme: Theme = "light") -> Figure:
        """Draws the loss, the accuracy, or the disagreement with each anchor over the plane."""
        from multitudes.figures import landscape as draw

        check_value("show", show, Literal["loss", "accuracy", "disagreement"])
        values = getattr(self, show)
        if values is None:
            raise InputError(f"a regression has no {show}: draw the loss")
        names = [anchor if isinstance(anchor, str) else f"member {anchor}" for anchor in self.anchors]
        maps = {f"Disagreement with {n}": v for n, v in zip(names, values, strict=True)} if show == "disagreement" else values
        return draw(self.x, self.y, maps, self.corners, names=names, label=show.capitalize(), theme=theme)


@torch.no_grad()
def landscape(
    ensemble: Ensemble,
    data: Any,
    members: Sequence[Anchor] = (0, 1, 2),
    *,
    steps: int = 21,
    margin: float = 0.25,
    others: Others = "other",
    norms: Norms = "interpolate",
    criterion: Criterion | None = None,
    batch_size: int = 256,
    seed: int = 0,
    progress: bool | None = None,
) -> Landscape:
    """Evaluates the networks of a plane through three members, or through two and the origin, in eval mode.

    data        dataset of pairs (input, target)
    members     the three anchors: numbers of members, and "origin" for weights that are all zero
    steps       points of the grid along each axis
    margin      how far the grid reaches beyond the anchors, as a share of their extent
    others      MIMO: what the other slots hold. "other": other examples, as in training. "same": the same example, as at
                prediction; the first layer then has the same sum everywhere, and only the heads move
    norms       running statistics of BatchNorm. "interpolate": those of members like their weights, but variances
                geometrically, so that they stay positive. "estimate": all of them anew at each point, from the inputs of
                `data`; the anchors keep theirs
    criterion   loss(output, target) with mean reduction; by default the task's loss
    seed        seed of the examples in the other slots
    """
    check_value("steps", steps, Annotated[int, at_least(2)])
    check_value("margin", margin, Annotated[float, at_least(0)])
    check_value("others", others, Others)
    check_value("norms", norms, Norms)
    check_value("batch_size", batch_size, Count)
    anchors = _checked_anchors(ensemble, members)
    judge = Judge(ensemble, data, criterion, batch_size)
    plane = SlotPlane(ensemble, anchors, others, seed) if ensemble.engine.summed else Plane(ensemble, anchors)
    corners = _corners(plane.gram())
    x, y = (_axis(corners[:, k], steps, margin) for k in (0, 1))
    ends = [judge(plane.at(unit)) for unit in torch.eye(3, dtype=torch.float64)]
    rows = []
    with bar("landscape", steps * steps, progress, "points") as advance:
        for place in torch.cartesian_prod(y, x).flip(1):
            network = plane.at(_barycentric(corners, place))
            if norms == "estimate":
                plane.estimate(judge.inputs)
            point = judge(network)
            rows.append([point.loss, point.accuracy, *(point.disagreement(end) for end in ends)])
            advance(1)
    loss, accuracy, *differ = torch.tensor(rows, dtype=torch.float64).T.reshape(5, steps, steps)
    corner_loss, corner_accuracy = torch.tensor([[end.loss, end.accuracy] for end in ends], dtype=torch.float64).T
    if not judge.has_classes:
        return Landscape(anchors, corners, x, y, loss, corner_loss)
    return Landscape(anchors, corners, x, y, loss, corner_loss, accuracy, corner_accuracy, torch.stack(differ))


def _checked_anchors(ensemble: Ensemble, members: Sequence[Anchor]) -> tuple[Anchor, ...]:
    known = ["origin", *range(ensemble.members)]
    if len(members) != 3 or len(set(members)) != 3 or not set(members) <= set(known):
        raise InputError(
            f"members={tuple(members)!r}: give three different anchors, such as (0, 1, 2) or (0, 1, 'origin'); "
            f"this ensemble has members 0 to {ensemble.members - 1}"
        )
    return tuple(members)


def _corners(gram: Tensor) -> Tensor:
    """Places three anchors in a plane with their distances in weight space, from the inner products of θ_1 − θ_0, θ_2 − θ_0."""
    base = math.sqrt(float(gram[0, 0]))
    along = float(gram[0, 1]) / base if base else 0.0
    height = math.sqrt(max(float(gram[1, 1]) - along**2, 0.0))
    if not base or height <= 1e-6 * base:
        raise InputError(
            "the three anchors lie on one line in weight space, or two are equal, so they span no plane: choose other members"
        )
    return torch.tensor([[0.0, 0.0], [base, 0.0], [along, height]], dtype=torch.float64)


def _axis(ends: Tensor, steps: int, margin: float) -> Tensor:
    low, high = float(ends.min()), float(ends.max())
    beyond = margin * (high - low)
    return torch.linspace(low - beyond, high + beyond, steps, dtype=torch.float64)


def _barycentric(corners: Tensor, place: Tensor) -> Tensor:
    """Returns c with Σ c_i corner_i = place and Σ c_i = 1."""
    rest = torch.linalg.solve((corners[1:] - corners[0]).T, place - corners[0])
    return torch.cat([1 - rest.sum()[None], rest])


class Plane:
    """The plane through members as plain networks; the tensors that members own, or that differ between them, move."""

    def __init__(self, ensemble: Ensemble, anchors: Sequence[Anchor]) -> None:
        nets = [None if anchor == "origin" else ensemble.member(anchor).eval() for anchor in anchors]
        first = next(net for net in nets if net is not None)
        self.network = copy.deepcopy(first)
        self.target = dict(named_tensors(self.network))
        self.tensors = [None if net is None else dict(named_tensors(net)) for net in nets]
        own = ensemble.engine.owned
        statistics = {join_name(name, key) for name in batch_norms(first) for key in ("running_mean", "running_var")}
        self.variances = {name for name in statistics if name.endswith("running_var")}
        self.moved = [n for n, t in self.target.items() if t.is_floating_point() and (n in own or self._differs(n))]
        masks = [n for n in self.moved if not isinstance(self.target[n], nn.Parameter) and n not in statistics]
        if masks:
            raise InputError(
                f"members differ in {', '.join(masks[:3])}, which is no weight, so no network lies between them: "
                "landscape is for methods whose members have different weights"
            )
        if not self.moved:
            raise InputError(f"members of {type(ensemble.method).__name__} have the same weights, so they span no plane")

    def _differs(self, name: str) -> bool:
        values = [tensors[name] for tensors in self.tensors if tensors is not None]
        return any(not torch.equal(value, values[0]) for value in values[1:])

    def gram(self) -> Tensor:
        """Returns the inner products of θ_1 − θ_0 and θ_2 − θ_0 over parameters, ``[2, 2]``."""
        names = [name for name in self.moved if isinstance(self.target[name], nn.Parameter)]
        ends = [[torch.zeros_like(self.target[n]) if t is None else t[n] for n in names] for t in self.tensors]
        return _gram(ends)

    def at(self, c: Tensor) -> nn.Module:
        """Returns the network at the point Σ c_i θ_i."""
        for name in self.moved:
            mix = _geometric if name in self.variances else _linear
            self.target[name].copy_(mix(c, [None if tensors is None else tensors[name] for tensors in self.tensors]))
        return self.network

    def estimate(self, inputs: list[Inputs]) -> None:
        """Estimates BatchNorm's statistics of the present point anew."""
        estimate_norms(self.network, inputs)


class SlotPlane:
    """The plane through subnetworks of MIMO: a network with one more slot and head, which move."""

    def __init__(self, ensemble: Ensemble, anchors: Sequence[Anchor], others: Others, seed: int) -> None:
        self.engine, self.anchors = ensemble.engine, anchors
        own = {n: t for n, t in named_tensors(ensemble.template) if n in self.engine.owned | self.engine.summed}
        self.source = {name: tensor.detach() for name, tensor in own.items() if tensor.is_floating_point()}
        one_more = [*range(ensemble.members), 0]
        template = detached_copy(ensemble.template, {name: tensor[one_more] for name, tensor in own.items()})
        engine = replace(self.engine, template=template, members=ensemble.members + 1)
        engine.refresh()
        self.twin = Ensemble(engine, ensemble.method, task=ensemble.task, seed=0, base=ensemble.base, plan=ensemble.plan)
        self.twin.eval()
        self.target = dict(named_tensors(self.twin.template))
        self.mixed = others == "other"
        self.seed = seed

    def gram(self) -> Tensor:
        """Returns the inner products of θ_1 − θ_0 and θ_2 − θ_0 over first layers and heads, ``[2, 2]``."""
        weights = [tensor for name, tensor in self.source.items() if isinstance(self.target[name], nn.Parameter)]
        return _gram([[torch.zeros_like(w[0]) if a == "origin" else w[a] for w in weights] for a in self.anchors])

    def at(self, c: Tensor) -> Network:
        """Returns the moved subnetwork at the point Σ c_i θ_i, as a function of the inputs."""
        for name, source in self.source.items():
            whole, mix = self.target[name], _geometric if name.endswith("running_var") else _linear
            whole[-1].copy_(mix(c, [None if a == "origin" else source[a] for a in self.anchors]))
            if name in self.engine.summed:
                for weight, anchor in zip(c, self.anchors, strict=True):
                    if anchor != "origin":
                        whole[anchor].copy_((1 - weight).to(source) * source[anchor])
        return self._run

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        call = Inputs(*args, **kwargs)
        slots = self._slots(call)
        return tree.take(self.twin(*slots.args, **{**slots.kwargs, "per_member": True}), self.twin.members - 1)

    def _slots(self, call: Inputs) -> Inputs:
        """Returns the inputs of all slots; the other slots' rows are the batch in another order, the same at each point."""
        axis = self.engine.batch_axis
        count, last = count_rows(call, axis), self.twin.members - 1
        generator = torch.Generator().manual_seed(self.seed)
        rows = [torch.randperm(count, generator=generator) if self.mixed else torch.arange(count) for _ in range(last)]
        return stack_slots([take_rows(call, axis, index) for index in [*rows, torch.arange(count)]], axis)

    def estimate(self, inputs: list[Inputs]) -> None:
        """Estimates BatchNorm's statistics of the present point anew, with all slots."""
        slots = [self._slots(call) for call in inputs]
        estimate_norms(self.twin, [Inputs(*call.args, **{**call.kwargs, "per_member": True}) for call in slots])


def _gram(ends: list[list[Tensor]]) -> Tensor:
    first, second = ([(b - a).double().flatten() for a, b in zip(ends[0], end, strict=True)] for end in ends[1:])
    pairs = ((first, first), (first, second), (second, first), (second, second))
    products = [sum(float(a @ b) for a, b in zip(u, v, strict=True)) for u, v in pairs]
    return torch.tensor(products, dtype=torch.float64).view(2, 2)


def _linear(c: Tensor, values: list[Tensor | None]) -> Tensor:
    """Returns Σ c_i value_i; None stands for zeros. At an anchor it is the anchor's value, exactly."""
    return sum(weight.to(value) * value for weight, value in zip(c, values, strict=True) if value is not None)


def _geometric(c: Tensor, values: list[Tensor | None]) -> Tensor:
    """Returns Π value_i^c_i, which is positive; None stands for ones. At an anchor it is the anchor's value, exactly."""
    tiny = torch.finfo(next(value for value in values if value is not None).dtype).tiny
    powers = [v.clamp(min=tiny) ** w.to(v) for w, v in zip(c, values, strict=True) if v is not None]
    return math.prod(powers[1:], start=powers[0])


@dataclass(frozen=True)
class Verdict:
    """Loss, accuracy and predicted classes of one network; accuracy 0 and no classes for a regression."""

    loss: float
    """Mean loss."""
    accuracy: float
    """Share of labels that are predicted."""
    labels: Tensor
    """Predicted classes."""

    def disagreement(self, other: Verdict) -> float:
        """Returns the share of predictions that differ."""
        return float((self.labels != other.labels).double().mean()) if len(self.labels) else 0.0


class Judge:
    """Computes the loss and the accuracy of a network on a dataset."""

    def __init__(self, ensemble: Ensemble, data: Any, criterion: Criterion | None, batch_size: int) -> None:
        checked = None if criterion is None else ReductionCheck()(criterion)
        axis: Any = ensemble.class_axis
        self.criterion = TaskCriterion(ensemble.task, checked, class_axis=axis, ignore=ignore_of(data))
        self.has_classes = ensemble.task in CLASSES
        device = next(tensor.device for tensor in ensemble.parameters())
        self.inputs: list[Inputs] = []
        self.targets: list[Tensor] = []
        for call, target in batched(data, batch_size, ensemble.engine.batch_axis, None, ensemble.call_form)[1]:
            if target is None or (ensemble.task == "classes" and target.is_floating_point()):
                raise InputError(
                    "landscape needs targets: give a dataset of pairs (input, target); targets of classes are labels"
                )
            self.inputs.append(call.refill([tensor.to(device) for tensor in call.tensors()]))
            self.targets.append(self.criterion.mark_ignored(target, maybe_probabilities=False).to(device))

    def __call__(self, network: Network) -> Verdict:
        """Returns the loss, a mean over examples or labelled entries, and the accuracy."""
        losses, counts, right, predicted = [], [], 0, []
        for call, target in zip(self.inputs, self.targets, strict=True):
            output = network(*call.args, **call.kwargs)
            losses.append(float(self.criterion(output, target)))
            if not self.has_classes:
                counts.append(len(target))
                continue
            scores = output_of(output, None)
            labels = (
                scores.argmax(self.criterion.class_axis or 1)
                if self.criterion.task == "classes"
                else (scores > 0).long().view_as(target)
            )
            counts.append(int((target != UNLABELLED).sum()))
            right += int((labels == target).sum())
            predicted.append(labels)
        rows = sum(counts)
        loss = sum(loss * count for loss, count in zip(losses, counts, strict=True) if count) / rows
        return Verdict(loss, right / rows, torch.cat(predicted) if predicted else torch.empty(0))
