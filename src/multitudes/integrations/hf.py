"""Hugging Face: `wrap(ens)` is a model that an unchanged Trainer trains, evaluates and saves; `LoRA` are ensembles of adapters.

The wrapped ensemble takes the base model's inputs and labels. It returns

    loss      in training the method's loss (`ens.batch` and `ens.reduce`), in eval mode that of the mixture
    logits    the mixture, ``[B, K]``: the log of the mean probability; of a regression, the mean
    members   the members' outputs, ``[B, M, K]``; of tokens ``[B, T, M, K]``, since the Trainer pads the second axis
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.data.batches import each_once
from multitudes.engine.inputs import Inputs
from multitudes.engine.modules import Factory, named_tensors
from multitudes.engine.selected_output import output_of
from multitudes.ensemble import Ensemble
from multitudes.errors import FileError, InputError, RunError
from multitudes.files.ensemble_file import load as load_ensemble
from multitudes.files.ensemble_file import save
from multitudes.integrations.lora import LoRA as LoRA
from multitudes.method import Criterion
from multitudes.prediction.predict import checked_ensemble
from multitudes.prediction.prediction import Prediction
from multitudes.prediction.tasks import values_of
from multitudes.scores.score import score
from multitudes.training.criterion import TaskCriterion

try:
    import transformers
    from transformers.modeling_outputs import ModelOutput
except ImportError as error:
    raise ImportError("multitudes.integrations.hf needs transformers: pip install 'multitudes[hf]'") from error

FILE = "model.safetensors"
"""Name of an ensemble's file in a folder of `save_pretrained`: the name that the Trainer looks for."""
HOOKS = ("before_training", "after_step", "after_epoch", "after_training")
"""What a method may do in the course of a run."""


@dataclass
class EnsembleOutput(ModelOutput):  # type: ignore[misc]
    """The output of a wrapped ensemble."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    """The mixture, ``[B, ...]``; None in a training step in which members see different rows."""
    members: Tensor | None = None
    """The members' outputs, with the member axis last but one: ``[B, M, K]``, ``[B, T, M, K]``."""


class _Forward:
    """The forward of a wrapped ensemble, with the base model's signature: the Trainer drops columns that it does not name."""

    def __init__(self, wrapped: EnsembleForTrainer) -> None:
        self.wrapped = wrapped
        names = inspect.signature(wrapped.ensemble.base.forward).parameters
        words = [p.replace(kind=p.KEYWORD_ONLY) for p in names.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        labels = [] if "labels" in names else [inspect.Parameter("labels", inspect.Parameter.KEYWORD_ONLY, default=None)]
        self.__signature__ = inspect.Signature([*words, *labels])

    def __call__(self, *args: Any, **kwargs: Any) -> EnsembleOutput:
        return self.wrapped.run(*args, **kwargs)


class EnsembleForTrainer(transformers.PreTrainedModel):  # type: ignore[misc]
    """An ensemble as a model of transformers: see `wrap`."""

    accepts_loss_kwargs = False  # its loss is a mean over the rows of a call: the Trainer divides it by accumulated parts
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True
    main_input_name = "input_ids"

    def __init__(self, ensemble: Ensemble, criterion: Criterion | None, output: str | None, accumulate: int) -> None:
        super().__init__(_config(ensemble.base))
        self.ensemble = ensemble
        self.output = None if output == ensemble.selected_output else output
        self.accumulate = accumulate
        self.main_input_name = getattr(ensemble.base, "main_input_name", "input_ids")
        self.criterion = TaskCriterion(ensemble.task, criterion, None, ensemble.class_axis)  # type: ignore[arg-type]
        self.has_hooks = False
        self.forward = _Forward(self)  # type: ignore[method-assign]

    def forward(self, labels: Any = None, **inputs: Any) -> EnsembleOutput:
        """Runs a training step or a prediction; an object with the base model's signature takes its place."""
        return self.run(labels=labels, **inputs)

    def run(self, *args: Any, labels: Any = None, **inputs: Any) -> EnsembleOutput:
        """Returns the loss of a training step, or in eval mode the mixture, the members and the mixture's loss."""
        inputs = {name: value for name, value in inputs.items() if value is not None and name != "return_dict"}
        self.criterion.losses.clear()
        return self._trained(Inputs(*args, **inputs), labels) if self.training else self._evaluated(args, inputs, labels)

    def _trained(self, call: Inputs, labels: Any) -> EnsembleOutput:
        ens = self.ensemble
        if labels is None:
            raise RunError(
                "a training step needs labels=, so that each member has its own loss. For label smoothing, or a loss of your "
                "own, leave the Trainer's out and type hf.wrap(ens, criterion=nn.CrossEntropyLoss(label_smoothing=0.1))"
            )
        if ens.method.overrides(*HOOKS) and not self.has_hooks:
            raise RunError(f"{type(ens.method).__name__} acts in the course of a run: Trainer(..., callbacks=[hf.Hooks()])")
        batch = ens.batch(call, self._targets(labels))
        outputs = output_of(ens(*batch.inputs, **batch.kwargs), self.output)
        loss = ens.reduce(outputs, batch, self.criterion, self.accumulate * ens.rows_of_step(batch))
        if batch.per_member or {"rows", "draws"} & batch.kwargs.keys():
            return EnsembleOutput(loss=loss)
        logits, members = self._joined(outputs)
        return EnsembleOutput(loss=loss, logits=logits.detach(), members=members.detach())

    def _evaluated(self, args: tuple[Any, ...], inputs: Mapping[str, Any], labels: Any) -> EnsembleOutput:
        logits, members = self._joined(output_of(self.ensemble(*args, **inputs), self.output))
        loss = None if labels is None else self.criterion(logits, self._targets(labels))
        return EnsembleOutput(loss=loss, logits=logits, members=members)

    def _joined(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mixture, and the members with their axis last but one."""
        ens = self.ensemble
        if ens.task == "classes" and ens.class_axis is None and outputs.ndim > 3:
            raise InputError(
                f"members return {list(outputs.shape[1:])}: say where the classes are, mt.ensemble(..., class_axis=-1) for "
                "tokens [B, T, K], class_axis=1 for pixels [B, K, H, W]"
            )
        return ens.average().mixture(outputs), outputs.movedim(0, -2 if outputs.ndim > 2 else -1)

    def _targets(self, labels: Any) -> Any:
        """Gives the numbers of a regression the axis of a head with one output: the Trainer collates them as ``[B]``."""
        numbers = self.ensemble.task in ("regression", "gaussian", "binary", "multilabel") and isinstance(labels, Tensor)
        if not numbers:
            return labels
        return labels.float()[:, None] if labels.ndim == 1 else labels.float()

    def compute_metrics(self, results: Any) -> dict[str, float]:
        """Returns the scores of `mt.score` by name, for ``Trainer(..., compute_metrics=net.compute_metrics)``."""
        labels = torch.as_tensor(results.label_ids)
        found = score(self.prediction(results.predictions, None if labels.numel() == 0 else self._targets(labels)))
        return {name: float(value) for name, value in found.items()}

    def prediction(self, predictions: Any, targets: Any = None) -> Prediction:
        """Returns what the Trainer collected, ``trainer.predict(data).predictions``, as a Prediction."""
        if not isinstance(predictions, tuple) or len(predictions) != 2:
            raise InputError("give the predictions of a Trainer with this model, a pair of logits and members")
        members = torch.as_tensor(predictions[1])
        members = members.movedim(-2 if members.ndim > 2 else -1, 0)
        task, values = self.ensemble.task, dict[str, Any](values_of(members, self.ensemble.task))
        options: Any = {"class_axis": self.ensemble.class_axis or 1, "calibrator": self.ensemble.calibrator}
        return Prediction(**values, **options, task=task, targets=targets)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the ensemble's tensors, under the base model's names."""
        return self.ensemble.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Loads the ensemble's tensors, of a state dict or a file; a file also has buffers that a state dict leaves out."""
        wanted = self.ensemble.state_dict().keys()
        beside = {name for name, _ in named_tensors(self.ensemble.template)} - wanted
        given = {name: tensor for name, tensor in state_dict.items() if name not in beside}
        return self.ensemble.load_state_dict(given, strict, assign)

    @classmethod
    def from_pretrained(cls, folder: Any, model: Any = None, **options: Any) -> EnsembleForTrainer:
        """Loads a folder of `save_pretrained`, as `hf.load` does."""
        if options:
            raise InputError(f"an ensemble is loaded whole, without {', '.join(options)}: hf.load(folder)")
        return load(folder, model)

    def save_pretrained(self, save_directory: str | PathLike[str], **options: Any) -> None:
        """Writes the ensemble and its base model's config into a folder, for `hf.load` or `mt.load`.

        options   those of transformers that the Trainer passes; they change nothing
        """
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        save(self.ensemble, folder / FILE)
        self.config.save_pretrained(folder)


class Hooks(transformers.TrainerCallback):  # type: ignore[misc]
    """Tells a method of the course of a run, if it acts in it, as SWAG, Snapshot and Laplace do.

    After the last step it passes over the training data, and members are made.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any, train_dataloader: Any, **others: Any) -> None:
        """Begins a run, or goes on with one."""
        model.has_hooks = True
        method = model.ensemble.method
        if method.overrides("after_training"):
            each_once(train_dataloader)  # refused now, not at the end
        if state.global_step == 0:
            method.before_training(model.ensemble)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, *, model: Any, **others: Any) -> None:
        """Lets the method act after a step."""
        model.ensemble.method.after_step(model.ensemble)

    def on_epoch_end(self, args: Any, state: Any, control: Any, *, model: Any, **others: Any) -> None:
        """Lets the method act after an epoch, before the Trainer evaluates and saves."""
        model.ensemble.method.after_epoch(model.ensemble, min(state.global_step / state.max_steps, 1.0))

    def on_train_end(self, args: Any, state: Any, control: Any, *, model: Any, train_dataloader: Any, **others: Any) -> None:
        """Lets the method make its members."""
        model.has_hooks = False
        if model.ensemble.method.overrides("after_training"):
            model.ensemble.finish(each_once(train_dataloader), unpack=_call_and_labels)


def _call_and_labels(batch: Mapping[str, Any]) -> tuple[Inputs, Any]:
    return Inputs(**{name: value for name, value in batch.items() if name != "labels"}), batch.get("labels")


def wrap(
    ensemble: Ensemble, *, criterion: Criterion | None = None, output: str | None = None, accumulate: int = 1
) -> EnsembleForTrainer:
    """Makes an ensemble a model of transformers, for an unchanged `Trainer`.

    criterion   loss(output, target) of one member, with mean reduction; by default that of the ensemble's task
    output      the name of the output to use, if the ensemble returns several; by default "logits"
    accumulate  the Trainer's gradient_accumulation_steps, for priors that depend on the rows of a whole step
    """
    ensemble = checked_ensemble(ensemble, "hf.wrap")
    several = ensemble.selected_output is None and isinstance(ensemble.base, transformers.PreTrainedModel)
    return EnsembleForTrainer(ensemble, criterion, output or ("logits" if several else None), accumulate)


def load(folder: str | PathLike[str], model: nn.Module | Factory | None = None) -> EnsembleForTrainer:
    """Loads a folder that `save_pretrained` or a Trainer wrote. Nothing is unpickled.

    model   the base model's architecture; by default a model of transformers is made from the folder's config.json
    """
    place = Path(folder)
    return wrap(load_ensemble(place / FILE, model if model is not None else _built(place)))


def _built(folder: Path) -> nn.Module:
    """Makes the base model of a folder from its config, without weights."""
    if not (folder / "config.json").is_file():
        raise FileError(f"{folder} has no config.json: give a folder of save_pretrained, or pass the base model")
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, next(iter(config.architectures or []), ""), None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise FileError(f"the config of {folder} names no model of transformers: pass the base model, hf.load(folder, model)")
    with torch.random.fork_rng(devices=[]):
        return kind(config)


def _config(base: nn.Module) -> Any:
    """Returns a copy of the base model's config, with the name of its class; an empty config if it has none."""
    config = getattr(base, "config", None)
    if not isinstance(config, transformers.PreTrainedConfig):
        return transformers.PreTrainedConfig()
    new = copy.deepcopy(config)
    new.architectures = [kind.__name__ for kind in type(base).__mro__ if kind.__name__ in dir(transformers)][:1]
    return new
