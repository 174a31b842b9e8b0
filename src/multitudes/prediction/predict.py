"""predict: an ensemble's answers to all of a dataset, as a Prediction."""

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
    """The members' answers to a tensor, `mt.Inputs`, a dataset, or a loader of batches, in eval mode and in the order given.

    device        where to compute, by default where the ensemble is; it goes back afterwards
    amp           autocast: True for bfloat16, or a dtype
    progress      a bar; by default where there is a terminal
    task          what the outputs mean, if not what the ensemble was made for
    output        which of several output tensors is meant
    class_axis    the axis of classes in one network's output: 1, or -1 for tokens ``[B, T, K]``
    moments_only  holds only what members come to, not each member's values: for many draws
    split         takes a batch of a dataset or loader apart, (input, targets); by default a pair is that, a tensor the input
    """
    if not isinstance(getattr(ensemble, "engine", None), Engine):
        shown = "mt.ensemble(model, mt.Single(), x)" if isinstance(ensemble, nn.Module) else "mt.ensemble(...)"
        raise InputError(f"predict is for ensembles, not {type(ensemble).__name__}: {shown} makes one")
    task = tasks.checked_task(task or ensemble.task)
    if isinstance(data, list) and data and split is None:
        refuse_batches(data[0], ensemble)
    total, batches = batched(data, batch_size, ensemble.engine.batch_axis, split or input_and_target)
    kept: Collector = (MomentsOnly if moments_only else AllMembers)(ensemble, task, output, class_axis, total)
    with _ready(ensemble, device, amp) as place, bar("predict", total, progress, "examples") as advance:
        for inputs, targets in batches:
            call = inputs.refill([tensor.to(place, non_blocking=True) for tensor in inputs.tensors()])
            count = count_rows(inputs, ensemble.engine.batch_axis)
            kept.take(ensemble(*call.args, **call.kwargs), targets, count)
            advance(count)
    return kept.prediction()


def refuse_batches(first: Any, ensemble: Ensemble) -> None:
    """A list is read as a dataset of examples; ready batches have one axis more, and are refused."""
    shapes = [part["shape"] for part in ensemble.plan.example["args"] if part.get("kind") == "tensor"]
    tensors = Inputs.of(input_and_target(first)[0]).tensors() if isinstance(first, (Tensor, Inputs, tuple, list)) else []
    if shapes and tensors and tensors[0].ndim >= len(shapes[0]):
        raise InputError("this is a list of batches, and a list is read as one of examples: predict(ens, iter(batches))")


class Collector:
    """What is kept of the batches' outputs."""

    def __init__(self, ensemble: Ensemble, task: str, output: str | None, class_axis: int, total: int | None) -> None:
        self.ensemble, self.task, self.output, self.class_axis, self.total = ensemble, task, output, class_axis, total
        self.targets: list[Tensor] = []
        self.seen = 0
        self.lacking = False

    def take(self, outputs: Any, targets: Tensor | None, count: int) -> None:
        """One batch of so many examples, all members."""
        found = tasks.output_of(outputs, self.output)
        if found.ndim < 2 or found.shape[1] != count:
            raise InputError(
                f"a member's outputs for {count} example{'s' if count > 1 else ''} are {list(found.shape[1:])}: "
                "examples must be their first axis"
            )
        values = tasks.values_of(found, self.task, self.ensemble.method)
        if targets is not None and (not targets.ndim or len(targets) != count):
            raise InputError(f"a batch of {count} examples has targets {list(targets.shape)}")
        self.keep(values, count)
        self.lacking |= targets is None
        if targets is not None:
            self.targets.append(targets.detach().cpu())
        self.seen += count

    def keep(self, values: dict[str, Tensor], count: int) -> None:
        """Keeps a batch's values."""
        raise NotImplementedError

    def prediction(self) -> Prediction:
        """All that was kept."""
        raise NotImplementedError

    @property
    def all_targets(self) -> Tensor | None:
        """The targets of all examples, if all had some."""
        return torch.cat(self.targets) if self.targets and not self.lacking else None

    def _nothing(self) -> InputError:
        return InputError(NOTHING)


class AllMembers(Collector):
    """Every member's values, in memory that is taken once where the number of examples is known."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.room: dict[str, Tensor] = {}
        self.parts: list[dict[str, Tensor]] = []

    def keep(self, values: dict[str, Tensor], count: int) -> None:
        """Keeps a batch's values."""
        if self.total is None or self.seen + count > self.total:
            self.parts.append({name: value.to("cpu", copy=True) for name, value in values.items()})
            return
        for name, value in values.items():
            if name not in self.room:
                self.room[name] = torch.empty(value.shape[0], self.total, *value.shape[2:], dtype=value.dtype)
            if value.shape[2:] != self.room[name].shape[2:]:
                raise InputError(
                    f"outputs are {list(value.shape[2:])} in one batch and {list(self.room[name].shape[2:])} in another"
                )
            self.room[name][:, self.seen : self.seen + count] = value.cpu()

    def prediction(self) -> Prediction:
        """All that was kept."""
        filled = [{name: room[:, : self.seen] for name, room in self.room.items()}] if self.room else []
        parts = filled + self.parts
        if not parts:
            raise self._nothing()
        shapes = {tuple(next(iter(part.values())).shape[2:]) for part in parts}
        if len(shapes) > 1:
            shown = " and ".join(str(list(shape)) for shape in sorted(shapes))
            raise InputError(f"outputs have different shapes from batch to batch: {shown}")
        values = {name: torch.cat([part[name] for part in parts], 1) if len(parts) > 1 else parts[0][name] for name in parts[0]}
        return Prediction(
            **values, task=self.task, class_axis=self.class_axis, targets=self.all_targets, calibrator=self.ensemble.calibrator
        )


class MomentsOnly(Collector):
    """What members come to, for each example."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.parts: list[Prediction] = []

    def keep(self, values: dict[str, Tensor], count: int) -> None:
        """Keeps a batch's moments."""
        here = Prediction(
            **{name: value.cpu() for name, value in values.items()},
            task=self.task, class_axis=self.class_axis, calibrator=self.ensemble.calibrator,
        )  # fmt: skip
        if self.task in CLASSES:
            made = {**here.described(), "logs": here.logs}
        else:
            made = {"mean": here.mean, "aleatoric": here.aleatoric, "epistemic": here.epistemic}
        self.parts.append(Prediction.of_moments(self.task, here.count, made))

    def prediction(self) -> Prediction:
        """All that was kept."""
        if not self.parts:
            raise self._nothing()
        whole = Prediction.cat(self.parts)
        whole.targets, whole.calibrator = self.all_targets, self.ensemble.calibrator
        return whole


@contextlib.contextmanager
def _ready(ensemble: Ensemble, device: torch.device | str | None, amp: bool | torch.dtype) -> Iterator[torch.device]:
    """The ensemble in eval mode and on the device, as it was afterwards."""
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
