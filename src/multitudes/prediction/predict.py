"""predict: runs an ensemble on a dataset and collects the members' outputs as a Prediction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from multitudes.data.batches import NOTHING, Split, batched, input_and_target
from multitudes.engine.inputs import Inputs, count_rows
from multitudes.engine.state import Engine
from multitudes.errors import InputError
from multitudes.prediction import tasks
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.values import CLASSES
from multitudes.terminal import bar

if TYPE_CHECKING:
    from multitudes.ensemble import Ensemble


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
    output: str | None = None,
    class_axis: int = 1,
    moments_only: bool = False,
    split: Split | None = None,
) -> Prediction:
    """Runs the ensemble in eval mode on a tensor, `mt.Inputs`, a dataset or a dataloader. Examples stay in order.

    device        where to compute; by default where the ensemble is. The ensemble is moved back afterwards
    amp           autocast: True for bfloat16, or a dtype
    progress      whether to show a progress bar; by default on a terminal only
    task          meaning of the outputs; by default the ensemble's task
    output        the name of the output tensor to use, if the network returns several
    class_axis    the class axis of one network's output: 1, or -1 for tokens ``[B, T, K]``
    moments_only  stores the mixture and its uncertainty, not each member's outputs: saves memory with many members
    split         a function that splits a batch into (input, targets); by default a batch is a tensor or a pair
    """
    if not isinstance(getattr(ensemble, "engine", None), Engine):
        example = "mt.ensemble(model, mt.Single(), x)" if isinstance(ensemble, nn.Module) else "mt.ensemble(...)"
        raise InputError(f"predict takes an ensemble, not {type(ensemble).__name__}: make one with {example}")
    task = tasks.checked_task(task or ensemble.task)
    if isinstance(data, list) and data and split is None:
        refuse_batches(data[0], ensemble)
    total, batches = batched(data, batch_size, ensemble.engine.batch_axis, split or input_and_target)
    collector: Collector = (MomentsOnly if moments_only else AllMembers)(ensemble, task, output, class_axis, total)
    with _ready(ensemble, device, amp) as place, bar("predict", total, progress, "examples") as advance:
        for inputs, targets in batches:
            call = inputs.refill([tensor.to(place, non_blocking=True) for tensor in inputs.tensors()])
            count = count_rows(inputs, ensemble.engine.batch_axis)
            collector.take(ensemble(*call.args, **call.kwargs), targets, count)
            advance(count)
    if not collector.seen:
        raise InputError(NOTHING)
    return collector.prediction()


def refuse_batches(first: Any, ensemble: Ensemble) -> None:
    """Refuses a list of batches, because a list is read as a dataset of single examples. These have one axis less."""
    shapes = [part["shape"] for part in ensemble.plan.example["args"] if part.get("kind") == "tensor"]
    tensors = Inputs.of(input_and_target(first)[0]).tensors() if isinstance(first, (Tensor, Inputs, tuple, list)) else []
    if shapes and tensors and tensors[0].ndim >= len(shapes[0]):
        raise InputError("data= is a list of batches, but a list must hold single examples: pass iter(batches)")


class Collector:
    """Collects the outputs and targets of all batches into one Prediction."""

    def __init__(self, ensemble: Ensemble, task: str, output: str | None, class_axis: int, total: int | None) -> None:
        self.ensemble, self.task, self.output, self.class_axis, self.total = ensemble, task, output, class_axis, total
        self.targets: list[Tensor] = []
        self.seen = 0
        self.unlabelled = False

    def take(self, outputs: Any, targets: Tensor | None, count: int) -> None:
        """Adds a batch of `count` examples: all members' outputs ``[M, count, ...]`` and the targets."""
        members = tasks.output_of(outputs, self.output)
        if members.ndim < 2 or members.shape[1] != count:
            raise InputError(
                f"for {count} example{'s' if count > 1 else ''} a member returns outputs of shape {list(members.shape[1:])}: "
                "make the batch their first axis"
            )
        values = tasks.values_of(members, self.task, self.ensemble.method)
        if targets is not None and (not targets.ndim or len(targets) != count):
            raise InputError(
                f"a batch has {count} examples, but targets of shape {list(targets.shape)}: give one target per example"
            )
        self.keep(values, count)
        self.unlabelled |= targets is None
        if targets is not None:
            self.targets.append(targets.detach().cpu())
        self.seen += count

    def keep(self, values: dict[str, Tensor], count: int) -> None:
        """Stores the values of one batch."""
        raise NotImplementedError

    def prediction(self) -> Prediction:
        """Returns the prediction of all batches."""
        raise NotImplementedError

    @property
    def all_targets(self) -> Tensor | None:
        """The targets of all examples; None if a batch had none."""
        return torch.cat(self.targets) if self.targets and not self.unlabelled else None


class AllMembers(Collector):
    """Stores every member's outputs, in tensors allocated once if the number of examples is known."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.room: dict[str, Tensor] = {}
        self.parts: list[dict[str, Tensor]] = []

    def keep(self, values: dict[str, Tensor], count: int) -> None:
        """Stores all members' outputs of one batch."""
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
            targets=self.all_targets,
            calibrator=self.ensemble.calibrator,
        )


class MomentsOnly(Collector):
    """Stores the mixture of each example and its uncertainty, not the members' outputs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.parts: list[Prediction] = []

    def keep(self, values: dict[str, Tensor], count: int) -> None:
        """Stores the moments of one batch."""
        batch = Prediction(
            **{name: value.cpu() for name, value in values.items()},
            task=self.task,
            class_axis=self.class_axis,
            calibrator=self.ensemble.calibrator,
        )
        if self.task in CLASSES:
            moments = {**batch.described(), "logs": batch.logs}
        else:
            moments = {"mean": batch.mean, "aleatoric": batch.aleatoric, "epistemic": batch.epistemic}
        self.parts.append(Prediction.of_moments(self.task, batch.count, moments))

    def prediction(self) -> Prediction:
        """Returns the prediction without members."""
        whole = Prediction.cat(self.parts)
        whole.targets, whole.calibrator = self.all_targets, self.ensemble.calibrator
        return whole


@contextlib.contextmanager
def _ready(ensemble: Ensemble, device: torch.device | str | None, amp: bool | torch.dtype) -> Iterator[torch.device]:
    """Puts the ensemble into eval mode and on the device for a with-block, and restores both afterwards."""
    modes = {part: part.training for part in ensemble.template.modules()}
    home = next((tensor.device for tensor in ensemble.state_dict().values()), torch.device("cpu"))
    place = home if device is None else torch.device(device)
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
