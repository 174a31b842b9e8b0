"""Lightning: `EnsembleModule`, a LightningModule around an ensemble, and `LogUncertainty`, a callback.

The Trainer brings devices, processes, precision, accumulation, loggers and checkpoints. The module brings what ensembles need:
the method's batches, losses, parameter groups and priors, clipping for each member, and scores of the mixture. `mt.load` reads
the Trainer's checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from multitudes.data.batches import Unpack, each_once
from multitudes.engine.inputs import Inputs
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError
from multitudes.files.ensemble_file import IN_CHECKPOINT, contents
from multitudes.method import Criterion
from multitudes.prediction.predict import checked_ensemble, predict
from multitudes.prediction.prediction import Prediction
from multitudes.scores.score import score
from multitudes.training.criterion import TaskCriterion
from multitudes.training.validation import validate

try:
    import lightning
except ImportError as error:
    raise ImportError("multitudes.integrations.lightning needs Lightning: pip install 'multitudes[lightning]'") from error

PREFIX = "ensemble."
"""The ensemble's name in the module, and so in the checkpoint's state dict."""
USUAL = "ece brier disagreement mean_mutual_information error_auroc/entropy coverage width crps".split()
"""The scores that `LogUncertainty` logs by default, as far as the task has them."""


class EnsembleModule(lightning.LightningModule):  # type: ignore[misc]
    """Trains an ensemble with Lightning's Trainer.

    ensemble      the ensemble; the Trainer trains it in place
    lr            the learning rate of `ens.param_groups`
    weight_decay  the weight decay; a method may exempt parameters
    optimizer     a class of torch.optim, or a function of the parameter groups: `lambda groups: SGD(groups, momentum=0.9)`
    scheduler     a function of the optimizer that returns a scheduler, which takes a step after each epoch
    criterion     loss(output, target) of one member with mean reduction; by default that of the ensemble's task
    unpack        function that takes a batch of the dataloader apart into (input, targets), if it is no usual form
    output        the name of the output to use, if the ensemble returns several

    It logs `train_loss`, and of the validation set `val_nll` and `val_accuracy`, or `val_rmse`, all of the mixture. Subclass it
    to change a step; `predict_step` returns an `mt.Prediction`.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        optimizer: Callable[[Any], torch.optim.Optimizer] = torch.optim.AdamW,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        criterion: Criterion | None = None,
        unpack: Unpack | None = None,
        output: str | None = None,
    ) -> None:
        super().__init__()
        self.ensemble = checked_ensemble(ensemble, "EnsembleModule")
        if not callable(optimizer):
            raise InputError(
                f"optimizer={optimizer!r} must be a class of torch.optim, such as torch.optim.AdamW, or a function"
            )
        self.lr, self.weight_decay, self.make_optimizer, self.make_scheduler = lr, weight_decay, optimizer, scheduler
        self.criterion = TaskCriterion(ensemble.task, criterion, output, ensemble.class_axis)  # type: ignore[arg-type]
        self.unpack, self.output = unpack, output
        self.seen: list[Prediction] = []
        """The predictions of the validation so far, in this process."""

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Runs all members, ``[M, B, ...]``."""
        return self.ensemble(*inputs, **kwargs)

    def configure_optimizers(self) -> Any:
        """Makes the optimizer of the method's parameter groups."""
        optimizer = self.make_optimizer(self.ensemble.param_groups(lr=self.lr, weight_decay=self.weight_decay))
        self.ensemble.param_groups(lr=self.lr, optimizer=type(optimizer))  # refuses one that would mix members
        return optimizer if self.make_scheduler is None else ([optimizer], [self.make_scheduler(optimizer)])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Returns the method's loss. A prior counts the rows of the whole step: of all processes and accumulated parts."""
        x, y = self._unpacked(batch)
        ens = self.ensemble
        step = ens.batch(x, y)
        rows = ens.rows_of_step(step) * self.trainer.accumulate_grad_batches
        self.criterion.losses.clear()
        loss = ens.reduce(ens(*step.inputs, **step.kwargs), step, self.criterion, rows)
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=max(step.count, 1))
        return loss

    def on_train_start(self) -> None:
        """Tells the method that a new run begins; a resumed one goes on."""
        method, trainer = self.ensemble.method, self.trainer
        if method.overrides("after_training"):
            each_once(trainer.train_dataloader)  # refused now, not at the end
        if method.overrides("after_epoch") and trainer.estimated_stepping_batches == float("inf"):
            raise InputError(f"{type(method).__name__} needs to know the end of the run: Trainer(max_epochs=...)")
        if trainer.global_step == 0:
            method.before_training(self.ensemble)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Tells the method, before validation, that an epoch has ended, with the share of the run that is done."""
        trainer, ens = self.trainer, self.ensemble
        done = trainer.global_step / trainer.estimated_stepping_batches
        if not ens.method.overrides("after_epoch") or not (trainer.is_last_batch or done >= 1):
            return
        if trainer.world_size > 1:  # BatchNorm's statistics are those of the first process
            for buffer in ens.buffers():
                torch.distributed.broadcast(buffer, 0)
        ens.method.after_epoch(ens, min(done, 1.0))

    def on_train_end(self) -> None:
        """Lets a method make its members, by a pass over the training data."""
        if self.ensemble.method.overrides("after_training"):
            self.ensemble.finish(each_once(self.trainer.train_dataloader), unpack=self.unpack)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Takes the step, and lets the method act after it."""
        super().optimizer_step(*args, **kwargs)
        self.ensemble.method.after_step(self.ensemble)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clips each member's gradients by that member's norm; with the algorithm "value", each entry."""
        if gradient_clip_val and gradient_clip_algorithm in (None, "norm"):
            self.ensemble.clip_grad_norm_(float(gradient_clip_val))
        else:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def predict_step(self, batch: Any, batch_idx: int = 0) -> Prediction:
        """Returns the prediction of a batch; `mt.Prediction.cat` joins those of all batches."""
        return predict(self.ensemble, iter([self._unpacked(batch, True)]), progress=False, output=self.output)

    def on_validation_epoch_start(self) -> None:
        """Begins a validation."""
        self.seen = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Predicts a batch, for the scores at the end."""
        self.seen.append(self.predict_step(batch))

    def on_validation_epoch_end(self) -> None:
        """Logs the scores of the whole validation set."""
        self.log_dict(validate(self.validated())[0], prog_bar=True, sync_dist=True)

    on_test_epoch_start, test_step = on_validation_epoch_start, validation_step

    def on_test_epoch_end(self) -> None:
        """Logs all scores of the test set."""
        self.log_dict({f"test_{name}": value for name, value in score(self.validated()).items()}, sync_dist=True)

    def validated(self) -> Prediction:
        """Returns the prediction of the whole set that is being validated, gathered from all processes."""
        if not self.seen:
            raise InputError("there is no validation yet: ask in on_validation_epoch_end")
        mine = Prediction.cat(self.seen)
        self.seen = [mine]
        if self.trainer.world_size == 1:
            return mine
        parts: list[Any] = [None] * self.trainer.world_size
        torch.distributed.all_gather_object(parts, mine)
        return Prediction.cat(parts)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Describes the ensemble in the checkpoint, so that `mt.load` can read it."""
        tensors, text = contents(self.ensemble)
        beside = {name: tensor for name, tensor in tensors.items() if PREFIX + name not in checkpoint["state_dict"]}
        checkpoint[IN_CHECKPOINT] = {"text": text, "prefix": PREFIX, "names": sorted(tensors), "beside": beside}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes over the state of the ensemble's random generator, so that a resumed run draws as one without a stop."""
        about = json.loads(checkpoint[IN_CHECKPOINT]["text"]) if IN_CHECKPOINT in checkpoint else {}
        if "generator" in about:
            self.ensemble.generator.set_state(torch.frombuffer(bytearray.fromhex(about["generator"]), dtype=torch.uint8))

    def _unpacked(self, batch: Any, targets_may_miss: bool = False) -> tuple[Inputs, Any]:
        x, y = self.ensemble.call_form.unpack(batch) if self.unpack is None else self.unpack(batch)
        if y is None and not targets_may_miss:
            raise InputError("a batch has no targets: give pairs (input, target), or say unpack=lambda batch: (x, y)")
        return x, y


class LogUncertainty(lightning.Callback):  # type: ignore[misc]
    """Logs uncertainty scores of the validation set after each validation, as `val_ece` and so on.

    scores   names of `mt.score`, such as ("ece", "aurc"); by default some of each task
    ood      out-of-distribution sets by name, anything that `mt.predict` takes: {"svhn": loader} logs `val_svhn/auroc/entropy`
    """

    def __init__(self, scores: Sequence[str] | None = None, ood: Mapping[str, Any] | None = None) -> None:
        self.scores, self.ood = scores, dict(ood or {})

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Scores the validation set, all processes' parts of it."""
        if not isinstance(pl_module, EnsembleModule):
            raise InputError(f"LogUncertainty needs an EnsembleModule, not a {type(pl_module).__name__}")
        if trainer.sanity_checking:
            return
        far = {name: predict(pl_module.ensemble, data, progress=False) for name, data in self.ood.items()}
        found = score(pl_module.validated(), ood=far or None)
        usual = [name for name in found if name in USUAL or name.endswith(("/auroc/entropy", "/fpr95/entropy"))]
        names = usual if self.scores is None else list(self.scores)
        if unknown := [name for name in names if name not in found]:
            raise InputError(f"LogUncertainty(scores={unknown}): this task has the scores {', '.join(found)}")
        pl_module.log_dict({f"val_{name}": found[name] for name in names}, sync_dist=True)
