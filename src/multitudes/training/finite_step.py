"""StepGuard: a step whose loss or gradient is not finite changes nothing, and its error says where the NaN came from."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from multitudes.data.labels import first_not_finite
from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, axes
from multitudes.engine.sharding import is_sharded
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, MultitudesError, RunError
from multitudes.method import Method
from multitudes.training.criterion import TaskCriterion
from multitudes.training.feed import Feed
from multitudes.training.loader_feed import LoaderFeed
from multitudes.training.recipe import Recipe

Parts = Sequence[tuple[Inputs, Any]]
"""The batches of a step as they were read: inputs and targets of each accumulated part."""


class StepGuard:
    """Finds the first step whose loss or gradient is not finite, and leaves the ensemble as it was before it.

    On a CPU each step is looked at before the optimizer's step. Weights, the optimizer's state and moving averages are then
    as before; buffers, such as BatchNorm's statistics, and the ensemble's generator are restored from a copy.

    On a GPU that would wait for the device at each step. There a flag on the device makes torch's fused optimizers skip this
    step and all later ones, so weights and the optimizer's state are those before the step. `look` reads the flag about 20
    times an epoch; buffers and generator are restored as they were at the last look. A GPU works as a CPU does with `ema`,
    float16, another optimizer, a method that overrides `after_step`, and a sharded ensemble.
    """

    def __init__(
        self, ensemble: Ensemble, recipe: Recipe, feed: Feed | LoaderFeed, criterion: TaskCriterion, fabric: Any, optimizer: Any
    ):
        self.ensemble, self.recipe, self.feed, self.criterion = ensemble, recipe, feed, criterion
        self.fabric, self.optimizer = fabric, optimizer
        self.parameters = [p for p in ensemble.parameters() if p.requires_grad]
        self.defers = can_skip(optimizer, ensemble, recipe) and fabric.device.type == "cuda"
        """Whether a flag on the device makes the optimizer skip steps."""
        self.epoch, self.step, self.hint = 0, 0, ""
        self.one = torch.ones((), device=fabric.device)
        self.failed = torch.zeros_like(self.one)
        """1 from the first step on that is not finite, otherwise 0."""
        self.finite_steps = torch.zeros_like(self.one)
        self.losses = torch.zeros(0, device=fabric.device)
        """If steps are skipped: the number of finite steps of the epoch, and of the first step that is not finite, or of the
        last one, the loss and those of members."""
        self.buffers: dict[str, Tensor] = {}
        self.generator = ensemble.generator.get_state()

    def start_epoch(self, epoch: int, hint: str = "") -> None:
        """Sets the epoch, and what the error says at its end."""
        self.epoch, self.step, self.hint = epoch, 0, hint
        self.finite_steps = torch.zeros_like(self.finite_steps)
        self._save()

    def begin(self) -> None:
        """Prepares for a step."""
        self.step += 1
        self.criterion.losses.clear()
        if not self.defers:
            self._save()

    def _save(self) -> None:
        """Copies buffers and the state of the generator."""
        self.generator = self.ensemble.generator.get_state()
        current = self._current_buffers()
        if [(n, b.shape) for n, b in current.items()] != [(n, b.shape) for n, b in self.buffers.items()]:
            self.buffers = {name: buffer.clone() for name, buffer in current.items()}
        for dtype in {buffer.dtype for buffer in current.values()}:  # tensors of one dtype are copied at once
            names = [name for name, buffer in current.items() if buffer.dtype == dtype]
            torch._foreach_copy_([self.buffers[name] for name in names], [current[name] for name in names])

    def _current_buffers(self) -> dict[str, Tensor]:
        """Returns the buffers that forward may write; a step does not change stored draws."""
        engine = self.ensemble.engine
        return {name: buffer for name, buffer in engine.buffers().items() if name not in engine.drawable}

    def check(self, loss: Tensor, parts: Parts) -> None:
        """Checks loss and gradient before the optimizer's step: raises an error, or sets the flag that skips the step.

        In float16 the scaler of the loss skips steps whose gradient is not finite, so only the loss is checked. The operation
        is the scaler's: it sets the flag if a number is not finite, and multiplies all of them by 1.
        """
        if self.defers:
            losses = torch.stack([loss, *self.criterion.losses])
            self.losses = torch.where(self.failed > 0, self.losses, losses) if len(self.losses) == len(losses) else losses
        gradients = [_values(p.grad) for p in self.parameters if p.grad is not None and self.recipe.precision != "fp16"]
        torch._amp_foreach_non_finite_check_and_unscale_([loss.clone(), *gradients], self.failed, self.one)
        if self.fabric.world_size > 1:  # all processes stop together
            self.failed = self.fabric.all_reduce(self.failed, reduce_op="sum").clamp(max=1)
        if self.defers:
            self.finite_steps = self.finite_steps + (1 - self.failed)
            self.optimizer.found_inf = self.failed
        elif bool(self.failed):
            raise self._undone(loss, self.criterion.losses, self.step, parts)

    def look(self) -> None:
        """Raises an error if a step since the last look was skipped. Its batch is read again, to search it for NaN."""
        if not self.defers:
            return
        if bool(self.failed):
            finite, count = int(self.finite_steps), self.recipe.accumulate
            parts = list(islice(self.feed.epoch(self.epoch, finite * count), count))
            raise self._undone(self.losses[0], list(self.losses[1:]), finite + 1, parts)
        self._save()

    @contextlib.contextmanager
    def explained(self, parts: Parts) -> Iterator[None]:
        """Explains an error of the forward pass by a NaN in its inputs: members that share a norm may disagree about NaN."""
        try:
            yield
        except RunError as error:
            if self.fault_in(parts, self.step):
                raise self._undone(torch.tensor(math.nan), (), self.step, parts) from error
            raise

    @torch.no_grad()
    def _undone(self, loss: Tensor, losses: Sequence[Tensor], step: int, parts: Parts) -> MultitudesError:
        """Restores buffers and generator, removes gradients, and returns the error that says what is not finite."""
        named = [(name, p.grad) for name, p in self.ensemble.named_parameters() if p.grad is not None]
        gradient = next((name for name, grad in named if not bool(_values(grad).isfinite().all())), None)
        for parameter in self.parameters:
            parameter.grad = None
        for name, buffer in self._current_buffers().items():
            if buffer.shape == self.buffers[name].shape:
                buffer.copy_(self.buffers[name])
        self.ensemble.generator.set_state(self.generator)
        where = f"in step {step} of epoch {self.epoch}"
        rest = f"The ensemble has the weights before this step{self.hint}"
        if fault := self.fault_in(parts, step):
            return InputError(f"{fault}, so the loss is {float(loss)} {where}: remove or replace it. {rest}")
        what = self._which(float(loss), losses)
        if math.isfinite(loss):
            what = f"the gradient{f' of {gradient}' if gradient else ''} is not finite"
        return RunError(f"{what} {where}: try a smaller lr, clip= or warmup=. {rest}")

    def _which(self, loss: float, losses: Sequence[Tensor]) -> str:
        """Names the members whose losses are not finite, if each has a loss and some are finite."""
        members = self.ensemble.members
        each = torch.stack([*losses]).reshape(-1, members).sum(0) if losses and len(losses) % members == 0 else torch.zeros(0)
        wrong = (~each.isfinite()).nonzero().flatten().tolist()
        if not wrong or len(wrong) == members:
            return f"the loss is {loss}"
        shown = f"member {wrong[0]}" if len(wrong) == 1 else f"members {', '.join(map(str, wrong))}"
        return f"the loss of {shown} is {float(each[wrong[0]])}"

    def fault_in(self, parts: Parts, step: int, kinds: Sequence[str] = ("inputs", "targets")) -> str:
        """Names the first NaN or infinite value in the inputs or targets of a step; "" if there is none."""
        for part, (call, targets) in enumerate(parts):
            places = axes(call, self.feed.batch_axis)
            tensors = [("inputs", tensor, axis) for tensor, axis in zip(call.tensors(), places, strict=True)]
            tensors += [("targets", tensor, 0) for tensor in tree.tensors(targets)]
            for kind, tensor, axis in tensors:
                at = first_not_finite(tensor) if kind in kinds else None
                if at is not None:
                    value = "a NaN" if bool(tensor[at].isnan()) else "an infinite value"
                    example = self._example(at, (step - 1) * len(parts) + part) if axis == 0 else ""
                    return f"the training set has {value} in the {kind}{example}"
        return ""

    def _example(self, at: Sequence[int], batch: int) -> str:
        """Names the example of an entry of a batch, and the member whose training set has it."""
        own = self.feed.own
        if len(at) <= own:
            return ""
        number = self.feed.example(self.epoch, batch, at[0] if own else 0, at[own])
        if number is None:
            return ""
        member = f" of member {at[0]}'s set" if len(self.feed.sets) > 1 else ""
        return f" of example {number}{member}{'' if self.feed.augment is None else ', after augmentation'}"


def can_skip(optimizer: Any, ensemble: Ensemble, recipe: Recipe) -> bool:
    """Checks whether a flag on the device can skip all that a step changes: torch's fused optimizers read one."""
    changes_more = recipe.ema is not None or type(ensemble.method).after_step is not Method.after_step
    fused = getattr(optimizer, "_step_supports_amp_scaling", False) and recipe.precision != "fp16"
    return fused and not changes_more and not is_sharded(ensemble)


def _values(tensor: Any) -> Tensor:
    """Returns the real numbers of a sparse or complex tensor, or this process's numbers of a sharded one."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    local = local._values() if local.is_sparse else local
    return torch.view_as_real(local) if local.is_complex() else local
