"""Comparisons of an ensemble with plain networks, made without the engine that built it.

values     ``ens(x)[m]`` is the output of ``ens.member(m)``, in eval mode
gradients  the ensemble's gradients are those of its plain members, in eval mode, and in training mode where members are apart;
           of tensors that no member holds as they are, such as factors, by the chain rule
start      members differ; what is shared is the given model's; what members own starts at the given model's scale
size       Packed has about as many parameters as the given model
training   a step of SGD has a finite loss and changes what every member owns

Every comparison returns what is broken, or nothing. Numbers that differ are compared again in double precision, which tells
rounding from errors.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from multitudes.engine.inputs import Inputs
from multitudes.engine.state import SharedWrite
from multitudes.ensemble import Ensemble

SINGLE, DOUBLE, COARSE = 1e-4, 1e-6, 1e-2
"""Largest relative difference in single precision; in double precision; and in single precision where double does not run."""
STEPS = {torch.float32: 1e-2, torch.float64: 1e-5}
"""How far formed tensors are moved to see how plain members follow; products of tensors follow exactly over any step."""
PERIOD = 1_000_003
"""How many random numbers a direction has; a prime, so that no two rows of a tensor have the same ones."""
ENOUGH = 64
"""Entries of a tensor above which its standard deviation means something."""
FACTOR = 2.0
"""By how much the standard deviation of a member's tensor may differ from the given model's."""
APART = ("Deep", "Packed", "Single", "MultiHead", "TreeNet")
"""Methods whose members do not share a BatchNorm that sees the rows of several members, unless the plan says so."""
COUPLED = "one set of statistics over the rows of all members"
"""How the plan says so."""
RANDOM = "gradients in training mode: the network is random without its dropout too"
"""The note on a network of which plain members differ from themselves."""
ONE_DRAW = "gradients in training mode: forward sets a buffer, which has one value if a step runs one draw, as training does"
"""The note on a network of which several draws do not run together in training mode; the error says so."""
NO_BACKWARD = "gradients: the network has a backward in training mode alone"
"""The note on a network whose layers compute gradients in training mode alone."""
AROUND = ("EMP", "ECMP")
"""Methods that draw whole tensors; members start around the given model's norms and constants, not at them."""


@dataclasses.dataclass
class Subject:
    """An ensemble, and what it was made from."""

    ensemble: Ensemble
    model: nn.Module
    inputs: Inputs
    notes: list[str] = dataclasses.field(default_factory=list)
    """Comparisons that could not be made."""

    @property
    def method(self) -> str:
        """The name of the method."""
        return type(self.ensemble.method).__name__

    @functools.cached_property
    def outputs(self) -> list[Tensor]:
        """The ensemble's outputs in eval mode."""
        return run(self.ensemble.eval(), self.inputs)

    @functools.cached_property
    def moved(self) -> Subject:
        """The same with a copy of the ensemble whose constants are moved (`_without_constants`)."""
        return dataclasses.replace(self, ensemble=_without_constants(self.ensemble))

    @functools.cached_property
    def holders(self) -> dict[str, str]:
        """How plain members hold each parameter (`holders`)."""
        return holders(self.ensemble)

    compared: bool = False
    """Whether gradients were compared in training mode, and eval mode has the very same values."""


def tensors(output: Any) -> Iterator[Tensor]:
    """Yields the tensors of an output: tuples, dicts and dataclasses of them."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors(value)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from tensors(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        yield from tensors(list(vars(output).values()))


def run(network: nn.Module, inputs: Inputs, grad: bool = False) -> list[Tensor]:
    """Runs a network and returns the tensors of its output."""
    with torch.set_grad_enabled(grad):
        return list(tensors(network(*inputs.args, **inputs.kwargs)))


def gap(one: Tensor, other: Tensor, floor: float = 1e-12) -> float:
    """Returns the largest difference, relative to the largest entry of `other`, or to `floor`; infinite for other shapes."""
    if one.shape != other.shape:
        return math.inf
    if one.is_complex():
        return gap(torch.view_as_real(one), torch.view_as_real(other.to(one.dtype)), floor)
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else math.inf
    if not one.numel():
        return 0.0
    a, b = one.detach(), other.detach().to(one.dtype)
    difference, largest = float((a - b).abs().max()), max(float(b.abs().max()), floor)
    if math.isfinite(difference) and math.isfinite(largest):
        return difference / largest
    a, b = a.double(), b.double()
    if torch.equal(a.isfinite(), b.isfinite()) and torch.equal(a[~a.isfinite()].nan_to_num(), b[~b.isfinite()].nan_to_num()):
        a, b = a[a.isfinite()], b[b.isfinite()]
    else:
        return math.inf
    largest = max(float(b.abs().max()), floor) if b.numel() else 1.0
    return float((a - b).abs().max()) / largest if b.numel() else 0.0


Gaps = dict[str, float]
Measure = Callable[[Ensemble, Inputs], Gaps]


def in_double(subject: Subject) -> tuple[Ensemble, Inputs]:
    """Returns a copy of ensemble and example in double precision."""
    inputs = subject.inputs
    doubled = [t.double() if t.is_floating_point() else t for t in inputs.tensors()]
    return copy.deepcopy(subject.ensemble).double(), inputs.refill(doubled)


def broken(subject: Subject, measure: Measure) -> str | None:
    """Measures gaps in single precision, and again in double precision if they are large; returns the largest that remains."""
    gaps = measure(subject.ensemble, subject.inputs)
    limit = SINGLE
    if max(gaps.values(), default=0.0) > limit:
        try:
            gaps, limit = measure(*in_double(subject)), DOUBLE
        except Exception:  # a network may insist on its precision in any way
            limit = COARSE
    worst = max(gaps, key=lambda name: gaps[name], default="")
    if not gaps or gaps[worst] <= limit:
        return None
    return f"{worst} differs by {gaps[worst]:.1e} of its largest entry"


def values(subject: Subject) -> str | None:
    """Compares the ensemble's outputs in eval mode with those of its plain members."""

    def measure(ensemble: Ensemble, inputs: Inputs) -> Gaps:
        outputs = subject.outputs if ensemble is subject.ensemble else run(ensemble.eval(), inputs)
        gaps: Gaps = {}
        for m in range(ensemble.members):
            expected = run(ensemble.member(m).eval(), inputs)
            if len(expected) != len(outputs):
                return {f"the number of outputs, {len(outputs)} instead of {len(expected)},": math.inf}
            for index, (mine, plain) in enumerate(zip(outputs, expected, strict=True)):
                gaps[f"output {index} of member {m}"] = gap(mine[m], plain)
        return gaps

    return broken(subject, measure)


def gradients(subject: Subject, training: bool = False) -> str | None:
    """Compares the ensemble's gradients with those of its plain members, tensor by tensor, buffers included."""
    subject = subject.moved
    if subject.compared or (training and not _comparable_in_training(subject)):
        return None
    try:
        differs = broken(subject, functools.partial(_gradient_gaps, training=training, formed=formed(subject.holders)))
    except SharedWrite:
        if not (training and subject.ensemble.method.draws):
            raise
        subject.notes.append(ONE_DRAW)
        return None
    except Exception:
        if training or _has_backward(subject):
            raise
        subject.notes.append(NO_BACKWARD)
        return None
    if not training:
        return differs
    if differs and _random_in_training(subject):
        subject.notes.append(RANDOM)
        return None
    subject.compared = not differs and _same_in_both_modes(subject)
    return differs and f"{differs} in training mode"


def _without_constants(ensemble: Ensemble) -> Ensemble:
    """Copies an ensemble and moves constant parameters, such as a head of zeros, behind which wrong gradients would hide."""
    moved = copy.deepcopy(ensemble)
    generator = torch.Generator().manual_seed(2)
    for parameter in moved.parameters():
        values = parameter.detach()
        if values.is_floating_point() and values.numel() > 1 and bool((values == values.flatten()[0]).all()):
            values.add_(0.02 * torch.randn(values.shape, generator=generator).to(values))
    return moved


def _comparable_in_training(subject: Subject) -> bool:
    """Turns dropout off, and returns whether plain members then say in training mode what the ensemble must say."""
    coupled = subject.method not in APART or any(COUPLED in note for note in subject.ensemble.plan.notes)
    if coupled and any(isinstance(part, _BatchNorm) for part in subject.model.modules()):
        return False
    for part in subject.ensemble.modules():
        for key, value in vars(part).items():
            if isinstance(value, float) and (key == "p" or "drop" in key):
                vars(part)[key] = 0.0
    outputs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        outputs.append(run(subject.ensemble.member(0).train(), subject.inputs))
    same = all(gap(a, b) <= DOUBLE for a, b in zip(*outputs, strict=True))  # noise may be small
    if not same and not subject.ensemble.method.draws:
        subject.notes.append(RANDOM)
    return same


def _has_backward(subject: Subject) -> bool:
    """Whether the given network, outside any ensemble, has a backward in eval mode."""
    try:
        outputs = run(copy.deepcopy(subject.model).eval(), subject.inputs, grad=True)
        torch.autograd.backward([output.sum() for output in outputs if output.requires_grad])
    except Exception:  # a network may insist on training mode in any way
        return False
    return True


def drops(subject: Subject) -> bool:
    """Whether the method draws what is dropped, not whole tensors."""
    return subject.ensemble.method.draws and subject.method not in AROUND


def _same_in_both_modes(subject: Subject) -> bool:
    """Whether ensemble and members have in training mode, with dropout off, the very values of eval mode.

    Methods that drop are not asked: turning dropout off has turned off what they draw.
    """
    if drops(subject) or any(isinstance(part, _BatchNorm) for part in subject.model.modules()):
        return False
    for network in (subject.ensemble, subject.ensemble.member(0)):
        seen = [run(network.train(mode), subject.inputs) for mode in (True, False)]
        train, predicting = seen  # in one mode a network may return more, such as a cache
        if len(train) != len(predicting) or not all(map(torch.equal, train, predicting)):
            return False
    return True


def _random_in_training(subject: Subject) -> bool:
    """Whether a plain member's gradients in training mode depend on the seed, by far more than rounding does.

    Routers of experts draw, and the two draws of `_comparable_in_training` may agree by chance.
    """
    for m in range(subject.ensemble.members):
        seen = []
        for seed in range(8):
            member = subject.ensemble.member(m).train()
            torch.manual_seed(seed)
            seen.append(_gradients(member, subject.inputs, False))
        floor = 1e-3 * max((float(g.abs().max()) for g in seen[0].values() if g.numel()), default=0.0)
        if any(gap(grads[name], first, floor) > COARSE for grads in seen[1:] for name, first in seen[0].items()):
            return True
    return False


def _weighted(outputs: Sequence[Tensor], members: bool) -> Tensor:
    """Returns one number: the outputs times fixed random directions, the same for every member."""
    total = torch.zeros((), dtype=torch.float64)
    for index, output in enumerate(output for output in outputs if output.is_floating_point()):
        generator = torch.Generator().manual_seed(index)
        shape = output.shape[1:] if members else output.shape
        direction = torch.randn(shape, generator=generator, dtype=torch.float64).to(output)
        total = total + (output * direction).sum().double()
    return total


def _gradients(network: nn.Module, inputs: Inputs, members: bool, also: Collection[str] = ()) -> dict[str, Tensor]:
    """Returns the gradients of a network's parameters, by name; zeros for those that the output does not depend on.

    also  names tensors that do not train, and whose gradients are wanted too
    """
    named = {name: tensor.requires_grad_() for name, tensor in _tensors(network).items() if name in also}
    named |= {name: p for name, p in network.named_parameters() if p.requires_grad}
    outputs = run(network, inputs, grad=True)
    found = torch.autograd.grad(_weighted(outputs, members), list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), found, strict=True)}


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers of a network, by name."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _gradient_gaps(ensemble: Ensemble, inputs: Inputs, training: bool, formed: Collection[str]) -> Gaps:
    """Measures the gaps of gradients and of buffers after a step. `formed` names tensors that no member holds as they are."""
    expected, after = [], []
    directions = _directions(ensemble, formed)
    changes = _changes(ensemble, directions)
    for m in range(ensemble.members):
        member = ensemble.member(m).train(training)
        expected.append(_gradients(member, inputs, False, also=changes[m]))
        after.append(dict(member.named_buffers()))
    mine = _gradients(ensemble.train(training), inputs, True)
    largest = max((float(g.abs().max()) for g in mine.values() if g.numel()), default=0.0)
    floor = max(largest, 1e-6) * (1e-6 if any(g.dtype == torch.float64 for g in mine.values()) else 1e-3)
    gaps: Gaps = {}
    for name, found in mine.items():
        if name in formed or any(name not in each for each in expected):
            continue
        each = [grads[name] for grads in expected]
        if found.shape[1:] == each[0].shape and found.ndim == each[0].ndim + 1:
            gaps |= {f"the gradient of {name} of member {m}": gap(found[m], plain, floor) for m, plain in enumerate(each)}
        else:
            gaps[f"the gradient of {name}"] = gap(found, sum(each[1:], each[0]), floor)
    for layer, along in _gaps_along(_layers(ensemble), directions, mine, changes, expected, floor).items():
        gaps[f"the gradient of what forms {layer or 'the members'}, along a direction,"] = along
    buffers = dict(ensemble.named_buffers()) if training else {}
    for m, plain_buffers in enumerate(after):
        for name, plain in plain_buffers.items():
            if name in buffers and buffers[name].shape[1:] == plain.shape and buffers[name].ndim == plain.ndim + 1:
                gaps[f"{name} of member {m} after a step"] = gap(buffers[name][m], plain)
    return gaps


def _directions(ensemble: Ensemble, formed: Collection[str]) -> dict[str, Tensor]:
    """Returns a random direction for each of these tensors, at its scale; numbers repeat in large ones, for speed."""
    numbers = torch.randn(PERIOD, generator=torch.Generator().manual_seed(0))
    named = dict(ensemble.named_parameters())
    found = {}
    for name in formed:
        tensor = named[name].detach()
        repeated = numbers.repeat(tensor.numel() // PERIOD + 1)[: tensor.numel()].view(tensor.shape)
        found[name] = repeated.to(tensor) * max(float(tensor.abs().mean()), 1e-3)
    return found


def _changes(ensemble: Ensemble, directions: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Returns for each plain member how its tensors change along directions, by name; without those that stay."""
    if not directions:
        return [{} for _ in range(ensemble.members)]
    named = dict(ensemble.named_parameters())
    step = STEPS.get(next(iter(directions.values())).dtype, COARSE)

    def moved(by: float) -> None:
        with torch.no_grad():
            for name, direction in directions.items():
                named[name].add_(direction, alpha=by)

    before = {name: named[name].detach().clone() for name in directions}
    moved(step)
    ends = [{n: t.detach().clone() for n, t in _floating(ensemble.member(m))} for m in range(ensemble.members)]
    moved(-2 * step)
    changes = []
    for m, end in enumerate(ends):
        start = dict(_floating(ensemble.member(m)))
        changes.append({n: (t - start[n].detach()).div_(2 * step) for n, t in end.items() if not torch.equal(t, start[n])})
    with torch.no_grad():
        for name, values in before.items():
            named[name].copy_(values)
    return changes


def _floating(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a network that can have gradients."""
    return ((name, tensor) for name, tensor in _tensors(network).items() if tensor.is_floating_point())


def _layers(ensemble: Ensemble) -> dict[str, str]:
    """Maps the layers that have parameters to themselves; of layers that share one, to the first."""
    first: dict[Tensor, str] = {}
    found: dict[str, str] = {}
    for name, parameter in ensemble.named_parameters(remove_duplicate=False):
        layer = name.rpartition(".")[0]
        owner = first.setdefault(parameter, layer)
        found[layer] = owner if owner != layer else found.get(layer, layer)
    return found


def _gaps_along(
    layers: Mapping[str, str],
    directions: Mapping[str, Tensor],
    mine: Mapping[str, Tensor],
    changes: Sequence[Mapping[str, Tensor]],
    expected: Sequence[Mapping[str, Tensor]],
    floor: float,
) -> Gaps:
    """Measures by layer the gap between the ensemble's gradient along directions and the plain members', by the chain rule.

    It is relative to the size of the sum's parts, and of what rounding by `floor` makes of them. If a layer's tensors form
    those of another layer, all layers are summed under the name "".
    """

    def layer_of(name: str) -> str:
        layer = name.rpartition(".")[0]
        return layers.get(layer, layer)

    ours, plain, rounding = (
        defaultdict[str, list[float]](list),
        defaultdict[str, list[float]](list),
        defaultdict[str, float](float),
    )
    for name, direction in directions.items():
        ours[layer_of(name)].append(_dot(mine[name], direction))
        rounding[layer_of(name)] += _dot(direction, direction)
    for grads, each in zip(expected, changes, strict=True):
        for name, change in each.items():
            plain[layer_of(name)].append(_dot(grads[name], change))
    if plain.keys() != ours.keys():
        ours, plain = ({"": list(chain(*parts.values()))} for parts in (ours, plain))  # type: ignore[assignment]
        rounding[""] = sum(rounding.values())
    gaps = {}
    for layer, parts in ours.items():
        size = math.sqrt(sum(part * part for part in (*parts, *plain[layer])))
        difference = sum(parts) - sum(plain[layer])
        gaps[layer] = abs(difference) / max(size, floor * math.sqrt(rounding[layer]), 1e-12)
    return gaps


def _dot(one: Tensor, other: Tensor) -> float:
    """Returns the inner product, summed in double precision."""
    return float((one.detach() * other).sum(dtype=torch.float64))


HELD, OWNED, FORMED = "held", "owned", "formed"


def holders(ensemble: Ensemble) -> dict[str, str]:
    """Says how plain members hold each parameter that trains.

    HELD    every member holds the tensor
    OWNED   member m holds entry m of it
    FORMED  no member holds it as it is: factors, components, weights under a mask
    """
    every = dict(ensemble.named_parameters(remove_duplicate=False))
    trained = {name: parameter.detach() for name, parameter in ensemble.named_parameters() if parameter.requires_grad}
    tied = {name: {other for other, same in every.items() if same is every[name]} - {name} for name in trained}
    found = {name: {HELD, OWNED} if p.ndim and len(p) == ensemble.members else {HELD} for name, p in trained.items()}
    for m in range(ensemble.members):
        plain = dict(ensemble.member(m).named_parameters())
        for name, parameter in trained.items():
            if name not in plain or any(other in plain for other in tied[name]):
                found[name] = set()
            entries = {HELD: parameter, OWNED: parameter[m] if OWNED in found[name] else None}
            found[name] = {way for way in found[name] if torch.equal(plain[name], entries[way])}  # type: ignore[arg-type]
    return {name: HELD if HELD in ways else OWNED if OWNED in ways else FORMED for name, ways in found.items()}


def formed(holders: Mapping[str, str]) -> list[str]:
    """Names the parameters that plain members do not hold as they are."""
    return [name for name, way in holders.items() if way == FORMED]


def start(subject: Subject) -> str | None:
    """Compares members with each other and with the given model, tensor by tensor."""
    ensemble, base = subject.ensemble, dict(subject.model.named_parameters())
    for name, parameter in ensemble.named_parameters():
        given = base.get(name)
        if given is None:
            continue
        if parameter.shape == given.shape:
            if not torch.equal(parameter, given):
                return f"{name} is shared and is not the given model's"
        elif parameter.ndim == given.ndim + 1:
            for m, mine in enumerate(parameter.detach()):
                if wrong := _other_scale(mine, given.detach(), subject.method):
                    return f"{name} of member {m} {wrong}"
    return _equal_members(subject)


def _other_scale(mine: Tensor, given: Tensor, method: str) -> str | None:
    """Says how a member's tensor starts otherwise than the given model's."""
    if not given.is_floating_point() or given.numel() < 2 or mine.numel() < 2:
        return None
    constant = bool((given == given.flatten()[0]).all())
    if method in AROUND and (constant or given.ndim == 1):
        value = float(given.mean())
        near = abs(float(mine.mean()) - value) <= 0.5 and float(mine.std()) <= max(0.5, FACTOR * float(given.std()))
        return None if near else f"starts far from {value:.3g}, the mean of the given model's"
    if constant:
        value = float(given.flatten()[0])
        same = bool((mine == mine.flatten()[0]).all()) and math.isclose(float(mine.flatten()[0]), value, rel_tol=0.5)
        return None if same else f"does not start at {value:.3g}, the given model's constant"
    if min(mine.numel(), given.numel()) <= ENOUGH:
        return None
    ratio = float(mine.std() / given.std())
    thinner = max((g / m for g, m in zip(given.shape, mine.shape, strict=True) if m), default=1.0)
    if 1 / FACTOR <= ratio <= FACTOR * math.sqrt(max(thinner, 1.0)):
        return None
    return f"starts at {ratio:.2g} times the given model's standard deviation"


def _equal_members(subject: Subject) -> str | None:
    """Names two members with the same outputs, unless no output depends on what they own.

    Members that are draws may be equal by chance, unless there is but one draw.
    """
    outputs = [output for output in subject.outputs if output.is_floating_point()]
    if all(bool((output == output[0].flatten()[0]).all()) for output in outputs):
        return None  # a head that starts at zero: every member says the same
    others = range(1, subject.ensemble.members)
    equal = [m for m in others if not any(gap(output[m], output[0], floor=1e-38) > 1e-7 for output in outputs)]
    if not equal or (subject.ensemble.method.draws and subject.ensemble.effective_size > 1):
        return None
    if _ignores_inputs(subject):  # signals vanish on the way to the last layer
        subject.notes.append("start: the given model's outputs do not depend on its inputs, so members cannot be told apart")
        return None
    return f"members 0 and {equal[0]} are equal"


def _ignores_inputs(subject: Subject) -> bool:
    """Whether the given model has the same outputs for other inputs, up to rounding."""
    inputs = subject.inputs
    if not all(tensor.is_floating_point() for tensor in inputs.tensors()):
        return False
    generator = torch.Generator().manual_seed(0)
    other = inputs.refill([torch.randn(t.shape, generator=generator).to(t) for t in inputs.tensors()])
    model = copy.deepcopy(subject.model).eval()
    return all(gap(a, b, floor=1e-38) <= 1e-7 for a, b in zip(run(model, inputs), run(model, other), strict=True))


def size(subject: Subject, outputs: int) -> str | None:
    """Compares Packed's parameters with the expected number; `outputs` is the number of the model's outputs.

    With α = 2 and four members of half the width, a layer between hidden layers has as many weights as before; a vector, a
    depthwise layer, a table, a first layer or a head, of which one side alone is thinner, has twice as many. Layers as wide as
    the output on both sides may have four times as many: they may be parts of a stream that is the output.
    """
    if subject.method != "Packed":
        return None
    tables = {id(part.weight) for part in subject.model.modules() if isinstance(part, nn.Embedding)}
    example = subject.inputs.tensors()[0]
    channels = set(example.shape[1:-2] if example.ndim > 3 else example.shape[-1:]) if example.is_floating_point() else set()
    expected = streams = 0
    for parameter in subject.model.parameters():
        one_side = parameter.ndim < 2 or 1 in parameter.shape[:2] or id(parameter) in tables
        one_side = one_side or outputs in parameter.shape or parameter.shape[1] in channels
        expected += parameter.numel() * (2 if one_side else 1)
        streams += 2 * parameter.numel() if parameter.ndim > 1 and set(parameter.shape[:2]) == {outputs} else 0
    count = sum(parameter.numel() for parameter in subject.ensemble.parameters())
    if 0.5 * expected <= count <= 1.6 * (expected + streams):
        return None
    return f"has {count:,} parameters, {count / expected:.2f} times as many as α, M and γ say"


def squared_error(output: Any, target: Tensor) -> Tensor:
    """The mean squared error of an output's first tensor, over all its entries."""
    first = next(tensor for tensor in tensors(output) if tensor.is_floating_point()).flatten(1)
    return (first - target[:, None].to(first.dtype)).square().mean()


def training(subject: Subject, rows: int) -> str | None:
    """Takes one step of SGD and looks at the loss, the gradients and what changed."""
    ensemble = subject.ensemble.train()
    torch.manual_seed(3)
    before = {name: p.detach().clone() for name, p in ensemble.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD([p for p in ensemble.parameters() if p.requires_grad], lr=1e-2)
    loss = ensemble.loss(subject.inputs, torch.randn(rows).to(subject.inputs.tensors()[0].device), squared_error)
    if not bool(loss.detach().isfinite()):
        return f"the loss of a training step is {float(loss.detach())}"
    loss.backward()
    infinite = [n for n, p in ensemble.named_parameters() if p.grad is not None and not bool(p.grad.isfinite().all())]
    if infinite:
        return f"the gradient of {infinite[0]} is not finite in a training step"
    optimizer.step()
    now = {name: p.detach() for name, p in ensemble.named_parameters() if name in before}
    if not any(not torch.equal(now[name], old) for name, old in before.items()):
        return "a training step changes nothing"
    used = [name for name, p in ensemble.named_parameters() if p.grad is not None]  # an example may leave out a whole branch
    own = [name for name in used if subject.moved.holders.get(name) == OWNED]
    for m in range(ensemble.members):
        if own and all(torch.equal(now[name][m], before[name][m]) for name in own):
            return f"a training step changes nothing that member {m} owns"
    return None
