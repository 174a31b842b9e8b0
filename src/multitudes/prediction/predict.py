"""predict: runs an ensemble on a dataset and collects the members' outputs as a Prediction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor, nn

from multitudes.data.batches import NOTHING, Unpack, batched
from multitudes.data.dataset import ignore_of, target_std_of
from multitudes.data.labels import first_not_finite
from multitudes.engine.draws import CHUNK
from multitudes.engine.inputs import Inputs, axes, cast_advice, count_rows
from multitudes.engine.modules import WRAPPERS, unwrapped
from multitudes.engine.selected_output import checked_output, output_of
from multitudes.engine.state import Engine
from multitudes.errors import InputError, MultitudesError, RunError
from multitudes.prediction import tasks
from multitudes.prediction.features import FeatureWatch
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.targets import reshaped
from multitudes.prediction.uncertainty import MomentStream
from multitudes.prediction.values import CLASSES, check_nan
from multitudes.settings import Count, above, check_value, takes_names
from multitudes.terminal import bar

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble


@takes_names("give several inputs as one tuple, predict(ens, (x1, x2))")
@torch.no_grad()
def predict(
    ensemble: Ensemble,
    data: Any,
    *,
    batch_size: int = 256,
    device: torch.device | str | None = None,
    amp: bool | torch.dtype = False,
    progress: bool | None = None,
    task: str | None = None,
    output: str | int | None = None,
    class_axis: int | None = None,
    ignore: int | None = None,
    moments_only: bool = False,
    draws: int | None = None,
    tau_output: float | None = None,
    unpack: Unpack | None = None,
    features: bool | str = False,
) -> Prediction:
    """Runs the ensemble in eval mode on a tensor, `mt.Inputs`, a dataset or a dataloader. Examples stay in order.

    ensemble      an ensemble, also compiled by torch.compile or wrapped for several processes
    data          the inputs, or a dataset of inputs or of pairs (input, target). Where the network takes several inputs: a
                  tuple or dict of them, a TensorDataset(x1, x2, y), items {"x1": ..., "x2": ..., "labels": ...}, pairs
                  ((x1, x2), y) or (mt.Inputs(x1, x2), y)
    batch_size    number of rows of a batch; a dataloader keeps its own batches
    device        where to compute; by default where the ensemble is. The ensemble is moved back afterwards
    amp           autocast: True for bfloat16, or a dtype
    progress      whether to show a progress bar; by default on a terminal only
    task          meaning of the outputs; by default the ensemble's task
    output        the name or place of the output tensor to use, if the network returns several
    class_axis    the class axis of one network's output: 1, or -1 for tokens ``[B, T, K]``; by default the ensemble's
    ignore        label that marks entries without a target, besides -100, which the prediction remembers for `score` and
                  others; by default the dataset's `ignore`
    moments_only  stores the mixture and its uncertainty, not each member's outputs: saves memory with many members. For a
                  regression with targets it also stores the log density at them, for `nll`
    draws         for methods that draw, the number of draws in place of the members; the first are the members. With
                  moments_only a regression needs no more memory for 10,000 of them than for 256
    tau_output    for task "regression", the precision τ of an observation in the target's own units: every member predicts
                  N(f, 1/τ). By default the method's setting, if it has one. `Data.target_std` tells the units of the outputs
    unpack        a function that takes a batch apart into (input, targets), if it is none of the forms above
    features      keeps the input of the last layer of each member as `pred.features`, for `multitudes.scores.outliers`; or the
                  name of another layer. Members then also run one by one, as plain networks
    """
    called, ensemble = _as_called(ensemble), checked_ensemble(ensemble, "predict")
    task = tasks.checked_task(task or ensemble.task)
    if isinstance(data, Prediction):
        raise InputError("data= is a Prediction already: give the inputs or the dataset that it was made of")
    if isinstance(data, list) and data and unpack is None:
        data = _as_call(data, ensemble)
    check_value("draws", draws, Count | None)
    output = checked_output(output)
    output = None if output == ensemble.selected_output else output  # the ensemble returns nothing else
    total, batches = batched(data, batch_size, ensemble.engine.batch_axis, unpack, ensemble.call_form)
    noise = noise_of(ensemble, data, task, tau_output)
    class_axis = class_axis or ensemble.class_axis or 1
    ignore = ignore_of(data) if ignore is None else ignore
    kind = MomentsOnly if moments_only else AllMembers
    collector: Collector = kind(ensemble, task, output, class_axis, ignore, total, noise)
    watch = _watch(ensemble, features, output, draws, moments_only)
    with _ready(ensemble, device, amp) as place, bar("predict", total, progress, "examples") as advance:
        for inputs, targets in batches:
            call = inputs.refill([tensor.to(place, non_blocking=True) for tensor in inputs.tensors()])
            count = count_rows(inputs, ensemble.engine.batch_axis)
            with explain_inputs(ensemble, inputs), explain_nan(inputs, ensemble.engine.batch_axis, collector.seen):
                outputs = outputs_of(ensemble, call, draws, called)
                kept = None if watch is None else list(outputs)
                collector.take(outputs if kept is None else kept, targets, count)
            if watch is not None and kept is not None:
                watch.take(call, kept, count)
            advance(count)
    if not collector.seen:
        raise InputError(NOTHING)
    prediction = collector.prediction()
    prediction.features = None if watch is None else watch.features()
    return prediction


def _watch(
    ensemble: Ensemble, features: bool | str, output: str | None, draws: int | None, moments_only: bool
) -> FeatureWatch | None:
    """Returns what collects features; None if they are not asked for."""
    check_value("features", features, bool | str)
    if not features:
        return None
    for name, given in {"draws": draws is not None, "moments_only": moments_only}.items():
        if given:
            raise InputError(f"features= are those of all members: remove {name}=")
    return FeatureWatch(ensemble, features if isinstance(features, str) else None, output)


def _as_call(data: list[Any], ensemble: Ensemble) -> Any:
    """Returns a list of whole inputs as a call, if the network takes so many; another list holds single examples."""
    form = ensemble.call_form
    if 1 < form.count == len(data) and [part.ndim if isinstance(part, Tensor) else None for part in data] == form.ranks:
        return tuple(data)
    refuse_batches(data[0], ensemble)
    return data


def refuse_batches(first: Any, ensemble: Ensemble) -> None:
    """Refuses a list of batches, because a list is read as a dataset of single examples. These have one axis less."""
    if ensemble.call_form.is_batch(first):
        raise InputError("data= is a list of batches, but a list must hold single examples: pass iter(batches)")


def noise_of(ensemble: Ensemble, data: Any, task: str, tau_output: float | None) -> Tensor | None:
    """Returns the variance of an observation in the outputs' units: 1 / (τ s²) for targets divided by s; None without τ."""
    check_value("tau_output", tau_output, Annotated[float, above(0)] | None)
    if tau_output is not None and task != "regression":
        raise InputError(f"tau_output={tau_output} is for task='regression', not {task!r}: leave it out")
    tau = getattr(ensemble.method, "tau_output", None) if tau_output is None else tau_output
    if tau is None:
        return None
    std = target_std_of(data)
    return 1 / (tau * (torch.ones(()) if std is None else std) ** 2)


@contextlib.contextmanager
def explain_inputs(ensemble: Ensemble, inputs: Inputs, subject: str = "the data has", own: bool = False) -> Iterator[None]:
    """Explains an error of the network in a with-block, if its inputs differ from the conversion's example in shape or dtype.

    `own` says that the inputs have a member axis before the rows.
    """
    try:
        yield
    except RunError as error:
        if not str(error).startswith(CALL):
            raise
        raise RunError(f"{subject}{str(error).removeprefix(CALL)}") from error.__cause__
    except (RuntimeError, ValueError, IndexError) as error:
        if (reason := unlike_example(ensemble, inputs, error, own)) is None:
            raise
        raise RunError(f"{subject} {reason}") from error


CALL = "the call has"
"""How an ensemble's own error of unlike inputs begins."""


def unlike_example(ensemble: Ensemble, inputs: Inputs, error: Exception, own: bool = False) -> str | None:
    """Explains an error by inputs that differ from the conversion's example in shape or dtype; None if they do not."""
    example = Inputs.like(ensemble.plan.example, torch.device("meta"))
    tensors, others = inputs.tensors(), example.tensors()
    pairs = zip(tensors, others, strict=False)
    alike = len(tensors) == len(others) and all(a.dtype == b.dtype and a.shape[1 + own :] == b.shape[1:] for a, b in pairs)
    if isinstance(error, IndexError) and (advice := _id_advice(ensemble, tensors)):
        return f"{advice} ({error})"
    if isinstance(error, MultitudesError) or alike:
        return None
    give = cast_advice(tensors, [tensor.dtype for tensor in others]) or "give such inputs, or convert with these"
    return f"{inputs}, but the ensemble was converted for {example}: {give} ({error})"


def _id_advice(ensemble: Ensemble, tensors: list[Tensor]) -> str:
    """Says which ids an embedding of the network does not have; "" if it may be something else."""
    sizes = sorted({part.num_embeddings for part in ensemble.base.modules() if isinstance(part, nn.Embedding)})
    ids = [t for t in tensors if t.numel() and t.dtype in (torch.int64, torch.int32)]
    low, high = min((int(t.min()) for t in ids), default=0), max((int(t.max()) for t in ids), default=0)
    if not sizes or (low >= 0 and high < sizes[0]):
        return ""
    rows = " and ".join(map(str, sizes))
    return (
        f"ids from {low} to {high}, but an embedding of {rows} rows takes 0 to {sizes[0] - 1}: give such ids, or a larger one"
    )


@contextlib.contextmanager
def explain_nan(inputs: Inputs, batch_axis: Any, seen: int) -> Iterator[None]:
    """Explains an error by a NaN or an infinite value in the inputs of a batch, if there is one."""
    try:
        yield
    except InputError as error:
        for tensor, axis in zip(inputs.tensors(), axes(inputs, batch_axis), strict=True):
            at = first_not_finite(tensor)
            if at is not None:
                value = "a NaN" if bool(tensor[at].isnan()) else "an infinite value"
                where = "" if axis is None else f" of example {seen + at[axis]}"
                raise InputError(f"the data has {value} in the inputs{where}: remove or replace it") from error
        raise


def checked_ensemble(ensemble: Any, verb: str) -> Ensemble:
    """Returns the ensemble itself, also of one that is compiled or wrapped for several processes. Refuses anything else."""
    plain = unwrapped(ensemble)
    if isinstance(getattr(getattr(plain, "module", None), "engine", None), Engine):
        raise InputError(f"{verb} takes the ensemble itself, not a {type(plain).__name__} of it: give its .module")
    if not isinstance(getattr(plain, "engine", None), Engine):
        example = "mt.ensemble(model, mt.Single(), x)" if isinstance(plain, nn.Module) else "mt.ensemble(...)"
        raise InputError(f"{verb} takes an ensemble, not {type(plain).__name__}: make one with {example}")
    return plain


def _as_called(ensemble: Any) -> Any:
    """Returns what `predict` calls: a compiled ensemble as it is, without the wrapper that joins gradients of processes."""
    while type(ensemble).__name__ in WRAPPERS and type(ensemble).__name__ != "OptimizedModule":
        ensemble = getattr(ensemble, WRAPPERS[type(ensemble).__name__])
    return ensemble


def outputs_of(ensemble: Ensemble, call: Inputs, draws: int | None, run: Any = None) -> Iterator[Any]:
    """Yields the outputs of all members at once, or of draws in chunks: ``[D, B, ...]``.

    `run` is what is called: the ensemble, or its compiled form.
    """
    count, run = ensemble.members if draws is None else draws, ensemble if run is None else run
    if draws is None and (not ensemble.method.draws or count <= CHUNK):
        yield run(*call.args, **call.kwargs)
        return
    for chunk in ensemble.draw(count, *call.args, **call.kwargs):
        yield run(*call.args, **call.kwargs, draws=chunk)


class Collector:
    """Collects the outputs and targets of all batches into one Prediction."""

    def __init__(
        self,
        ensemble: Ensemble,
        task: str,
        output: str | None,
        class_axis: int,
        ignore: int | None,
        total: int | None,
        noise: Tensor | None,
    ) -> None:
        self.ensemble, self.task, self.output, self.class_axis, self.total = ensemble, task, output, class_axis, total
        self.ignore = ignore if task in CLASSES else None
        self.noise = noise
        self.targets: list[Tensor] = []
        self.seen = 0
        self.unlabelled = False

    def take(self, outputs: Iterable[Any], targets: Tensor | None, count: int) -> None:
        """Adds a batch of `count` examples: outputs ``[D, count, ...]`` of some members after the other, and the targets."""
        if targets is not None and (not targets.ndim or len(targets) != count):
            raise InputError(
                f"a batch has {count} examples, but targets of shape {list(targets.shape)}: give one target per example"
            )
        targets = None if targets is None else targets.detach().cpu()
        one = targets is not None and targets.ndim == 1 and self.task in ("gaussian", "regression")
        chunks = (self.values(chunk, count) for chunk in outputs)
        self.keep((without_last_axis(values) for values in chunks) if one else chunks, targets, count)
        self.unlabelled |= targets is None
        if targets is not None:
            self.targets.append(targets)
        self.seen += count

    def values(self, outputs: Any, count: int) -> dict[str, Tensor]:
        """Returns the named values of some members' outputs."""
        members = output_of(outputs, self.output)
        if members.ndim < 2 or members.shape[1] != count:
            raise InputError(
                f"for {count} example{'s' if count > 1 else ''} a member returns outputs of shape {list(members.shape[1:])}: "
                "make the batch their first axis"
            )
        values = tasks.values_of(members, self.task, self.noise)
        for name, value in values.items():
            check_nan(name, value, self.seen)
        return values

    def keep(self, chunks: Iterable[dict[str, Tensor]], targets: Tensor | None, count: int) -> None:
        """Stores the values of one batch, which come in chunks of members."""
        raise NotImplementedError

    def prediction(self) -> Prediction:
        """Returns the prediction of all batches."""
        raise NotImplementedError

    @property
    def all_targets(self) -> Tensor | None:
        """The targets of all examples; None if a batch had none."""
        return torch.cat(self.targets) if self.targets and not self.unlabelled else None


def without_last_axis(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the values of a regression ``[M, B, 1]`` as ``[M, B]``, as their targets are: [B, 1] − [B] would be [B, B]."""
    return {name: value.squeeze(2) if value.shape[2:] == (1,) else value for name, value in values.items()}


class AllMembers(Collector):
    """Stores every member's outputs, in tensors allocated once if the number of examples is known."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.room: dict[str, Tensor] = {}
        self.parts: list[dict[str, Tensor]] = []

    def keep(self, chunks: Iterable[dict[str, Tensor]], targets: Tensor | None, count: int) -> None:
        """Stores all members' outputs of one batch."""
        values = joined(chunks)
        if self.total is None or self.seen + count > self.total:
            self.parts.append({name: value.to("cpu", copy=True) for name, value in values.items()})
            return
        for name, value in values.items():
            if name not in self.room:
                self.room[name] = torch.empty(value.shape[0], self.total, *value.shape[2:], dtype=value.dtype)
            if value.shape[2:] != self.room[name].shape[2:]:
                raise InputError(
                    f"outputs have shape {list(value.shape[2:])} in one batch and {list(self.room[name].shape[2:])} in "
                    "another: pad or resize all inputs to one shape"
                )
            self.room[name][:, self.seen : self.seen + count] = value.cpu()

    def prediction(self) -> Prediction:
        """Returns the prediction with all members' outputs."""
        filled = [{name: room[:, : self.seen] for name, room in self.room.items()}] if self.room else []
        parts = filled + self.parts
        values = {name: torch.cat([part[name] for part in parts], 1) if len(parts) > 1 else parts[0][name] for name in parts[0]}
        return Prediction(
            **values,
            task=self.task,
            class_axis=self.class_axis,
            ignore=self.ignore,
            targets=self.all_targets,
            calibrator=self.ensemble.calibrator,
        )


class MomentsOnly(Collector):
    """Stores the mixture of each example and its uncertainty, not the members' outputs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.parts: list[dict[str, Tensor]] = []
        self.count = 0

    def keep(self, chunks: Iterable[dict[str, Tensor]], targets: Tensor | None, count: int) -> None:
        """Stores the moments of one batch."""
        if self.task in CLASSES:
            batch = self.members(joined(chunks))
            self.parts.append({**batch.described(), "logs": batch.logs})
            self.count = batch.count
            return
        stream = MomentStream()
        for values in chunks:
            members = self.members(values)
            stream.add(members.members, None if targets is None else reshaped(targets, members))
        self.parts.append(stream.moments())
        self.count = stream.count

    def members(self, values: dict[str, Tensor]) -> Prediction:
        """Returns the calibrated prediction of some members."""
        return Prediction(
            **{name: value.cpu() for name, value in values.items()},
            task=self.task,
            class_axis=self.class_axis,
            ignore=self.ignore,
            calibrator=self.ensemble.calibrator,
        )

    def prediction(self) -> Prediction:
        """Returns the prediction without members."""
        labelled = [{n: v for n, v in part.items() if n != "log_density" or not self.unlabelled} for part in self.parts]
        whole = Prediction.cat([Prediction.of_moments(self.task, self.count, part) for part in labelled])
        whole.targets, whole.calibrator, whole.ignore = self.all_targets, self.ensemble.calibrator, self.ignore
        return whole


def joined(chunks: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenates the values of chunks of members."""
    parts = list(chunks)
    return parts[0] if len(parts) == 1 else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@contextlib.contextmanager
def _ready(ensemble: Ensemble, device: torch.device | str | None, amp: bool | torch.dtype) -> Iterator[torch.device]:
    """Puts the ensemble into eval mode and on the device for a with-block, and restores both afterwards."""
    modes = {part: part.training for part in ensemble.template.modules()}
    home = next((tensor.device for tensor in ensemble.state_dict().values()), torch.device("cpu"))
    place = home if device is None else torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device={str(place)!r}, but torch finds no CUDA GPU here: leave device= out to compute on {home}")
    dtype = torch.bfloat16 if amp is True else amp or None
    try:
        ensemble.eval()
        if place != home:
            ensemble.to(place)
        with torch.autocast(place.type, dtype=dtype, enabled=dtype is not None):
            yield place
    finally:
        if place != home:
            ensemble.to(home)
        for part, mode in modes.items():
            part.training = mode
        ensemble.training = modes[ensemble.template]
