"""fit: trains an ensemble by a recipe. Lightning Fabric handles devices, precision and processes; the training loop is here."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multitudes.data.batches import Unpack
from multitudes.data.dataset import ignore_of
from multitudes.engine import tree
from multitudes.engine.seeds import seed_all
from multitudes.engine.selected_output import checked_output
from multitudes.engine.sharding import full_tensor, gathered, load_full, reshard, shard_like
from multitudes.ensemble import Ensemble
from multitudes.errors import InputError, RunError
from multitudes.files.ensemble_file import save
from multitudes.files.old_settings import current_metrics
from multitudes.method import Batch, Criterion
from multitudes.prediction.predict import explain_inputs
from multitudes.prediction.temperature import Calibrator
from multitudes.settings import takes_names
from multitudes.terminal import Tell, bar
from multitudes.training.criterion import TaskCriterion
from multitudes.training.fabric import check_fabric, compiled, fabric_for, quiet_fabric, replay_log, torch_settings
from multitudes.training.feed import Feed, explain_single_rows, seed_of
from multitudes.training.fingerprint import dataset_fingerprint
from multitudes.training.finite_step import Parts, StepGuard
from multitudes.training.fit_arguments import check_ensemble, check_held_out, check_units, checked_callbacks, checked_recipe
from multitudes.training.loader_feed import LoaderFeed, feed_for
from multitudes.training.one_vs_all import recipe_loss
from multitudes.training.own_optimizer import OwnParts, OwnSchedule, described, groups_of, restore_groups, the_optimizer
from multitudes.training.recipe import Recipe
from multitudes.training.run_folder import STATE, RunFolder, optimizer_tensors, restore_optimizer, tensor_differences
from multitudes.training.validation import Best, LossWatch, Validator, curves, empty_best, leap, restored_best
from multitudes.training.weight_average import WeightAverage

AMP: dict[str, bool | torch.dtype] = {"32": False, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Run:
    """The result of `fit`: one line of metrics per epoch, and the weights of the best epoch."""

    ensemble: Ensemble
    recipe: Recipe
    metrics: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int | None = None
    """Epoch of the best validation, from 1 on. With best="members": the last epoch in which a member was at its best."""
    best_state: dict[str, Tensor] | None = None
    best_calibrator: Calibrator | None = None
    """With calibrate=True: the calibrator of the best epoch's weights."""
    done: int = 0
    """Number of epochs done."""
    stopped: str = ""
    """Why training ended before the last epoch: the patience ran out, or a callback said so; "" if it did not."""
    left_out: int = 0
    """Number of examples that each epoch leaves out, others each time: those after the last whole step."""
    path: Path | None = None

    def use_best(self) -> Ensemble:
        """Loads the weights of the best epoch, and their calibrator if there is one, into the ensemble, and returns it."""
        if self.best_state is None:
            raise InputError("there is no best epoch, since fit ran without val=: pass fit(..., val=...)")
        load_full(self.ensemble, self.best_state)
        self.ensemble.calibrator = self.best_calibrator
        return self.ensemble

    def __repr__(self) -> str:
        parts = [str(self.ensemble.method), f"{self.done} of {self.recipe.epochs} epochs"]
        parts += [f"{self.left_out} examples left out of each"] if self.left_out else []
        parts += [] if self.best_epoch is None else [f"best epoch {self.best_epoch}"]
        last = self.metrics[-1] if self.metrics else {}
        names = {"loss": _loss_name(self.ensemble), **{name: name for name in last if name.startswith("val_")}}
        return f"Run({', '.join([*parts, *(f'{shown} {last[name]:.4g}' for name, shown in names.items() if name in last)])})"


def _loss_name(ensemble: Ensemble) -> str:
    """Names the loss of a step, which beside the validation's mean over examples may be a sum over members."""
    method = ensemble.method
    is_sum = method.reduction == "sum" and not method.trains_by_part and ensemble.members > 1
    return f"loss (sum of {ensemble.members} members)" if is_sum else "loss"


Callback = Callable[[Run], Any]
"""Function that is called with the run after each epoch; one that returns True ends the training."""


@takes_names("inputs and targets are one dataset, fit(ens, torch.utils.data.TensorDataset(x, y), recipe)", recipe=Recipe)
def fit(
    ensemble: Ensemble,
    train: Any,
    recipe: Recipe | None = None,
    *,
    val: Any = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    criterion: Criterion | None = None,
    optimizer: Any = None,
    scheduler: Any = None,
    scheduler_by: str = "epoch",
    callbacks: Callback | Sequence[Callback] = (),
    fabric: Any = None,
    loggers: Any = None,
    progress: bool | None = None,
    unpack: Unpack | None = None,
    output: str | int | None = None,
    class_axis: int | None = None,
    ignore: int | None = None,
    calibrate: bool = False,
) -> Run:
    """Trains the ensemble, in place, and returns the run.

    A step whose loss or gradient is not finite ends the run with an error, and changes nothing: weights and the optimizer's
    state are those before it; BatchNorm's statistics and the generator too (on a GPU those of up to 1/20 epoch earlier). An
    error names a NaN in the data, if there is one. A calibrator that the ensemble had is removed, since weights change.

    ensemble    the ensemble to train
    train       dataset of pairs (input, target), or a list with one dataset per member. Where the network takes several inputs,
                as in `predict`. Or a DataLoader, whose batches are taken as they come: its sampler, workers and collate_fn, and
                its batch size instead of the recipe's; with accumulate= a step takes so many of its batches
    recipe      how to train: epochs, batch, optimizer, schedule and more; by default `Recipe()`
    val         dataset that selects the best epoch
    out         folder of the run: settings, metrics, checkpoints, the best and the last ensemble
    resume      continues the run in the folder `out` from its last checkpoint, with the same result as an uninterrupted run.
                The recipe may have more epochs or another patience than before
    criterion   loss(output, target) with mean reduction; by default the recipe's loss
    optimizer   your optimizer in place of the recipe's: an object made of `ens.parameters()` or `ens.param_groups(...)`, or a
                function `lambda parameters: torch.optim.NAdam(parameters, lr=1e-3)`, to which the method's rules are applied
    scheduler   your scheduler in place of the recipe's schedule: an object of torch.optim.lr_scheduler, or a function of the
                optimizer. A ReduceLROnPlateau reads the validation score
    scheduler_by  whether it takes a step after each "epoch" or each "step" of the optimizer
    callbacks   functions called as callback(run) after each epoch, when it is validated and saved: `run.metrics[-1]` has its
                numbers, `run.ensemble` its weights. One that returns True ends the training
    fabric      Lightning Fabric for devices and processes; by default one for the ensemble's device
    loggers     loggers for that default Fabric
    progress    whether to show a progress bar; by default only in a terminal
    unpack      function that takes a batch of the dataloader apart into (input, targets)
    output      name or place of the output tensor for the task's criterion and the validation, if the model returns several
    class_axis  axis of the classes in one network's output: 1, or -1 for tokens ``[B, T, K]``; by default the ensemble's, and
                remembered there for `predict`
    ignore      label that marks entries to ignore, besides -100; by default the training set's `ignore`. With criterion=
                it affects only the validation: your criterion must ignore these entries itself
    calibrate   fits `ens.calibrator` on val after training: temperature, or factor of the variances. `run.use_best()` and
                the two saved ensembles have their own. During training the validation is not calibrated
    """
    recipe = checked_recipe(recipe, train)
    check_ensemble(ensemble)
    calls = checked_callbacks(callbacks)
    check_units(ensemble, train)
    ignore = ignore_of(train) if ignore is None else ignore
    output = checked_output(output)
    output = None if output == ensemble.selected_output else output  # the ensemble returns nothing else
    class_axis = ensemble.class_axis if class_axis is None else class_axis
    loss = TaskCriterion(ensemble.task, criterion, output, class_axis, ignore)  # type: ignore[arg-type]
    loss.from_recipe = recipe_loss(recipe, ensemble.task, criterion)
    validator = None if val is None else Validator(val, loss, unpack)
    check_held_out(ensemble, recipe, validator, calibrate)
    ensemble.class_axis = class_axis
    folder = None if out is None else RunFolder(out)
    given = OwnParts(optimizer, scheduler, scheduler_by)
    with folder or contextlib.nullcontext(), torch_settings(recipe), _same_layout(ensemble):
        setup = _set_up(ensemble, train, recipe, loss, unpack, validator, folder, resume, fabric, loggers, given)
        _train(setup, progress, calls)
        _finish(setup, calibrate)
        return setup.run


def _train(setup: _Setup, progress: bool | None, callbacks: Sequence[Callback]) -> None:
    """Trains for the epochs that are left, or until the patience runs out or a callback ends it."""
    run, steps = setup.run, setup.steps
    epochs, shown = run.recipe.epochs, progress if setup.is_first else False
    with _closing(setup), bar("train", epochs * steps, shown, "steps") as tell:
        tell(run.done * steps)
        for epoch in range(run.done + 1, epochs + 1):
            run.stopped = run.stopped or _lost_patience(setup)
            if run.stopped:
                setup.log(f"stopped after epoch {run.done}: {run.stopped}")
                break
            start = time.perf_counter()
            line = {"epoch": epoch, **_train_epoch(setup, epoch, tell)}
            _finish_epoch(setup, epoch, {**line, "seconds": time.perf_counter() - start})
            ended = _called_back(setup, callbacks)
            run.stopped = ended if epoch < epochs else ""


def _lost_patience(setup: _Setup) -> str:
    """Says that no epoch was the best for longer than the recipe's patience; "" if one was."""
    run, patience = setup.run, setup.run.recipe.patience
    if patience is None or run.best_epoch is None or run.done - run.best_epoch < patience:
        return ""
    return f"no better {setup.best.score} since epoch {run.best_epoch}, which is the patience of {patience} epochs"


def _called_back(setup: _Setup, callbacks: Sequence[Callback]) -> str:
    """Calls the callbacks with the run, on the weights that were validated. Says that one of them ends the training, or ""."""
    if not callbacks:
        return ""
    with setup.average.swapped_in() if setup.average is not None else contextlib.nullcontext():
        ends = [callback(setup.run) is True for callback in callbacks]
    votes = setup.fabric.all_reduce(torch.tensor(float(any(ends)), device=setup.fabric.device), reduce_op="sum")
    return "a callback returned True" if float(votes) else ""


@contextlib.contextmanager
def _same_layout(ensemble: Ensemble) -> Iterator[None]:
    """On exit, restores the contiguous layout if the recipe set channels_last: vmap cannot run in channels_last."""
    channels_last = ensemble.engine.channels_last
    try:
        yield
    finally:
        if ensemble.engine.channels_last and not channels_last:
            ensemble.to(memory_format=torch.contiguous_format)


@contextlib.contextmanager
def _closing(setup: _Setup) -> Iterator[None]:
    """On exit, restores the modes of all modules, and closes loggers.

    After an error in the first epoch, removes the run's new files. After Ctrl-C, says how to resume.
    """
    run, folder = setup.run, setup.folder
    modes = {part: part.training for part in (run.ensemble, *run.ensemble.template.modules())}
    try:
        yield
    except Exception:
        if folder is not None and not run.done and setup.is_first:
            folder.remove_new_files()
        raise
    except KeyboardInterrupt:
        hint = "" if folder is None else f"; resume with fit(..., out={str(folder.path)!r}, resume=True)"
        setup.log(f"stopped after {run.done} of {run.recipe.epochs} epochs{hint}", to_stderr=True)
        raise
    finally:
        for part, mode in modes.items():
            part.training = mode
        for logger in setup.fabric.loggers:
            logger.finalize("success" if run.done == run.recipe.epochs or run.stopped else "failed")


@dataclass
class _Setup:
    """Everything that the training loop uses."""

    run: Run
    net: Any
    optimizer: Any
    fabric: Any
    feed: Feed | LoaderFeed
    criterion: TaskCriterion
    validator: Validator | None
    folder: RunFolder | None
    average: WeightAverage | None
    best: Best
    guard: StepGuard
    watch: LossWatch
    schedule: OwnSchedule | None = None
    """The user's scheduler; None for the recipe's schedule."""
    own_optimizer: bool = False
    """Whether the optimizer is the user's."""
    has_warned: bool = False
    """Whether a leap of the validation or of the loss was told."""

    @property
    def steps(self) -> int:
        """Number of optimizer steps in an epoch."""
        return len(self.feed) // self.run.recipe.accumulate

    def warn_once(self, text: str) -> None:
        """Warns of a leap, if there is a text and none was told before."""
        if text and not self.has_warned:
            self.has_warned = True
            self.log(text)
            warnings.warn(text, stacklevel=6)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and shows progress."""
        return bool(self.fabric.is_global_zero)

    def log(self, text: str, to_stderr: bool = False) -> None:
        """Adds a line to the run's log."""
        if self.folder is not None and self.is_first:
            self.folder.log(text)
        if to_stderr and self.is_first:
            sys.stderr.write(f"{text}\n")


def _set_up(
    ensemble: Ensemble,
    train: Any,
    recipe: Recipe,
    criterion: TaskCriterion,
    unpack: Unpack | None,
    validator: Validator | None,
    folder: RunFolder | None,
    resume: bool,
    fabric: Any,
    loggers: Any,
    given: OwnParts,
) -> _Setup:
    """Prepares everything for the training loop, and restores the last checkpoint of a resumed run."""
    if folder is None and resume:
        raise InputError("resume=True needs the folder of the run: fit(..., out='runs/a', resume=True)")
    if fabric is not None and loggers is not None:
        raise InputError("pass either loggers= or fabric=, not both: with fabric=, give the loggers to Fabric(loggers=...)")
    if fabric is not None:
        check_fabric(fabric, ensemble, recipe)
    if folder is not None and resume:
        folder.check_resumed(_about(ensemble, recipe), ensemble.state_dict())
    fabric = fabric or fabric_for(ensemble, recipe, loggers)
    if recipe.channels_last:
        ensemble.to(memory_format=torch.channels_last)
    ensemble.to(fabric.device)
    net = compiled(ensemble, recipe, fabric.device)
    plain = the_optimizer(ensemble, recipe, fabric.device, given.optimizer)
    best = empty_best(ensemble, recipe)
    schedule = OwnSchedule.of(given.scheduler, given.by, plain, recipe, None if validator is None else best.score)
    with quiet_fabric():
        net, optimizer = fabric.setup(net, plain)
    feed = feed_for(ensemble, train, recipe, fabric.device, unpack, fabric.global_rank, fabric.world_size)
    if len(feed) < recipe.accumulate:
        raise InputError(f"{feed.count} examples are too few for one step of {recipe.accumulate} parts: take a smaller batch")
    run = Run(ensemble, recipe, path=None if folder is None else folder.path)
    average = None if recipe.ema is None else WeightAverage(ensemble, recipe.ema)
    guard = StepGuard(ensemble, recipe, feed, criterion, fabric, optimizer.optimizer)
    watch = LossWatch(ensemble, criterion)
    setup = _Setup(run, net, optimizer, fabric, feed, criterion, validator, folder, average, best, guard, watch, schedule)
    run.left_out = feed.count - feed.rows_in(setup.steps * recipe.accumulate)
    setup.own_optimizer = given.optimizer is not None
    if validator is not None:
        validator.check(ensemble)
    if not resume:
        with gathered(ensemble, keep=True):
            ensemble.method.before_training(ensemble)
    if folder is not None:
        _open_folder(setup, folder, resume)
    ensemble.calibrator = None  # it was fitted to other weights
    return setup


def _about(ensemble: Ensemble, recipe: Recipe) -> dict[str, Any]:
    """Returns the part of a run's config that is known before anything is set up."""
    method = {"method": type(ensemble.method).__name__, "settings": ensemble.method.settings()}
    return {"recipe": recipe.settings(), "task": ensemble.task, **method}


def _open_folder(setup: _Setup, folder: RunFolder, resume: bool) -> None:
    """Starts a new run in the folder, or restores its last checkpoint."""
    ensemble, recipe, val = setup.run.ensemble, setup.run.recipe, setup.validator
    if setup.is_first:
        config = {
            **_about(ensemble, recipe),
            "train": [dataset_fingerprint(data, batches=True) for data in setup.feed.sets],
            "val": None if val is None else dataset_fingerprint(val.data),
            "torch": torch.__version__,
            "optimizer": described(setup.optimizer.optimizer) if setup.own_optimizer else None,
            "scheduler": setup.schedule and setup.schedule.described(),
            **setup.criterion.settings(),
        }
        folder.start(config, resume)
    setup.fabric.barrier()
    restored = resume and _restore(setup, folder)
    epochs = setup.fabric.all_gather(torch.tensor([setup.run.done], device=setup.fabric.device)).flatten().tolist()
    if len(set(epochs)) > 1:
        shown = ", ".join(map(str, epochs))
        raise RunError(
            f"processes read checkpoints of different epochs ({shown}): all of them must see the folder {folder.path}"
        )
    if not restored:
        size = f"{setup.steps} steps on {setup.feed.count} examples"
        setup.log(f"{ensemble.method}: {recipe.epochs} epochs of {size}, {setup.fabric.device}")
        if setup.run.left_out:
            count = f"{setup.run.left_out} of {setup.feed.count} examples"
            setup.log(f"each epoch leaves out {count}, others each time: they do not fill a step")
        _save(setup, folder, 0)


def _train_epoch(setup: _Setup, epoch: int, tell: Tell) -> dict[str, Any]:
    """Trains for one epoch. Returns the mean loss and the learning rate."""
    run, recipe, steps = setup.run, setup.run.recipe, setup.steps
    seed = seed_of(recipe.seed, epoch)
    seed_all(seed_of(seed, 1 + setup.fabric.global_rank))
    run.ensemble.generator.manual_seed(seed)
    run.ensemble.train()
    total, start = torch.zeros((), device=setup.fabric.device), time.perf_counter()
    below = curves(run.metrics)
    without = f" without {run.left_out} of {setup.feed.count} examples" if run.left_out else ""
    batches = setup.feed.epoch(epoch)
    setup.guard.start_epoch(epoch, f"; the folder has the checkpoint of epoch {run.done}" if setup.folder and run.done else "")
    for step in range(steps):
        if setup.schedule is None:
            factor = recipe.factor((epoch - 1) * steps + step, steps)
            for group in setup.optimizer.param_groups:
                group["lr"] = group["first_lr"] * factor
        loss = _step(setup, batches)
        if setup.schedule is not None:
            setup.schedule.after_step()
        total += loss
        if step % max(1, steps // 20) == 0 or step == steps - 1:
            setup.guard.look()
            setup.warn_once(setup.watch.look(float(loss), epoch, step + 1))
            speed = f"{(step + 1) / (time.perf_counter() - start):.1f}"
            shown = {
                "epoch": f"{epoch}/{recipe.epochs}{without}",
                _loss_name(run.ensemble): f"{float(loss):.4f}",
                "steps/s": speed,
            }
            tell(0, below=below, **shown)
        tell(1)
    mean = setup.fabric.all_reduce(total / steps, reduce_op="mean")
    setup.criterion.check_has_label(float(mean))
    return {"loss": float(mean), "lr": setup.optimizer.param_groups[0]["lr"]}


def _step(setup: _Setup, batches: Iterator[tuple[Any, Any]]) -> Tensor:
    """Takes one step of the optimizer, and returns the loss. Refuses a loss or gradient that is not finite; see `StepGuard`."""
    ensemble, recipe, feed, fabric = setup.run.ensemble, setup.run.recipe, setup.feed, setup.fabric
    total, parts, read = torch.zeros((), device=fabric.device), recipe.accumulate, []
    setup.guard.begin()
    for part, (call, targets) in enumerate(setup.criterion.weighted_parts(batches, parts, fabric, feed.own)):
        if recipe.compile:
            torch.compiler.cudagraph_mark_step_begin()
        if recipe.channels_last:
            layout = torch.channels_last
            call = call.refill([t.contiguous(memory_format=layout) if t.ndim == 4 else t for t in call.tensors()])
        read.append((call, targets))
        batch = ensemble.batch(call, targets, per_member=feed.own)
        with fabric.no_backward_sync(setup.net, enabled=part < parts - 1):
            told = explain_inputs(ensemble, call, "the training set has", feed.own)
            with told, explain_single_rows(call), setup.guard.explained(read):
                outputs = setup.net(*batch.inputs, **batch.kwargs)
            if setup.criterion.custom is None and not feed.has_check:
                _start_checking_targets(setup, outputs, batch, read)
            loss = ensemble.reduce(outputs, batch, setup.criterion, feed.step_rows(call, parts))
            if recipe.l1:
                loss = loss + recipe.l1 * sum(p.abs().sum() for p in ensemble.parameters() if p.requires_grad)
            fabric.backward(loss / parts)
        total += loss.detach() / parts
    setup.guard.check(total, read)
    if recipe.clip is not None:
        fabric.strategy.precision.unscale_gradients(setup.optimizer.optimizer)  # step() steps this one, not its wrapper
        ensemble.clip_grad_norm_(recipe.clip, recipe.clip_by)
    setup.optimizer.step()
    setup.optimizer.zero_grad(set_to_none=True)
    ensemble.method.after_step(ensemble)
    if setup.average is not None:
        setup.average.update()
    return total


def _start_checking_targets(setup: _Setup, outputs: Any, batch: Batch, read: Parts) -> None:
    """Learns the number of classes from the first outputs, and checks this batch's targets and all later ones."""
    setup.criterion.learn_classes(outputs, "rows" in batch.kwargs)
    fault = setup.guard.fault_in(read, setup.guard.step, ("targets",))
    if fault:
        raise InputError(f"{fault}: remove or replace it")
    for target in tree.tensors(batch.target):
        setup.criterion.check_target(target.flatten(0, 1) if batch.per_member and target.ndim > 1 else target)
        setup.warn_once(setup.criterion.scale_advice(outputs, target))
    setup.feed.set_check(setup.criterion.check_target)


def _finish_epoch(setup: _Setup, epoch: int, line: dict[str, Any]) -> None:
    """Validates the epoch, and writes metrics and a checkpoint."""
    run, ensemble = setup.run, setup.run.ensemble
    better = False
    if setup.fabric.world_size > 1:  # all processes take the BatchNorm statistics of the first
        for buffer in ensemble.buffers():
            torch.distributed.broadcast(buffer, 0)
    with gathered(ensemble, keep=True):
        ensemble.method.after_epoch(ensemble, epoch / run.recipe.epochs)
    with setup.average.swapped_in() if setup.average is not None else contextlib.nullcontext():
        if setup.validator is not None:
            scores, each = setup.validator(ensemble, AMP[run.recipe.precision])
            line.update(scores)
            better = setup.best.update(ensemble, epoch, scores, each)
    if setup.schedule is not None:
        setup.schedule.after_epoch(line.get(f"val_{setup.best.score}"))
    run.metrics.append(line)
    run.done = epoch
    setup.warn_once(leap(run.metrics, setup.best.score, run.recipe.warmup) if setup.validator is not None else "")
    if better:
        run.best_epoch, run.best_state = epoch, setup.best.state
    setup.log("  ".join(f"{k} {v:.6g}" for k, v in line.items()))
    setup.fabric.log_dict(line, step=epoch)
    if setup.folder is not None:
        _save(setup, setup.folder, epoch)
    setup.fabric.barrier()


def _save(setup: _Setup, folder: RunFolder, epoch: int) -> None:
    """Gathers a checkpoint from all processes; the first process writes it."""
    ensemble, average = setup.run.ensemble, setup.average
    reshard(ensemble)
    tensors, numbers = optimizer_tensors(setup.optimizer)
    tensors.update({f"state.{name}": full_tensor(value) for name, value in ensemble.state_dict().items()})
    tensors.update({f"best.{name}": value for name, value in setup.best.state.items()})
    tensors.update({f"ema.{name}": full_tensor(value) for name, value in (average.values if average else {}).items()})
    if not setup.is_first:
        return
    scaler = {k: v for k, v in setup.fabric.strategy.precision.state_dict().items() if isinstance(v, (int, float))}
    about: dict[str, Any] = {"numbers": numbers, "best": setup.best.described(), "scaler": scaler, "metrics": setup.run.metrics}
    if setup.own_optimizer or setup.schedule is not None:
        about["groups"] = groups_of(setup.optimizer.optimizer)
        about["scheduler"] = setup.schedule and setup.schedule.described()
    folder.save(epoch, about, {name: value.detach().clone() for name, value in tensors.items()})
    folder.write_metrics(setup.run.metrics)


def _restore(setup: _Setup, folder: RunFolder) -> bool:
    """Loads the last readable checkpoint. Returns whether there is one."""

    def warn(text: str) -> None:
        setup.log(text)
        warnings.warn(text, stacklevel=8)

    checkpoint = folder.newest(warn)
    if checkpoint is None:
        return False
    about, tensors = checkpoint
    run, average = setup.run, setup.average

    def named(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    folder.refuse_other_model(tensor_differences(named(STATE), run.ensemble.state_dict()))
    load_full(run.ensemble, named(STATE))
    restore_optimizer(setup.optimizer, tensors, about["numbers"])
    if "groups" in about:
        restore_groups(setup.optimizer.optimizer, about["groups"])
    if setup.schedule is not None:
        setup.schedule.restore(about["scheduler"])
    if average is not None:
        for name, value in named("ema.").items():
            average.values[name].copy_(shard_like(value, average.values[name]))
    setup.best = restored_best(about["best"], named("best."), run.ensemble.task)
    if "score" not in about["best"] and setup.validator is not None:
        warn(
            f"the run was started before Recipe(best_by=...): its best epoch is chosen by {setup.best.score} to the end. "
            "To choose by the task's proper score, start a new run"
        )
    run.done, run.best_epoch, run.best_state = int(about["epoch"]), setup.best.epoch, setup.best.state or None
    run.metrics = [current_metrics(line) for line in about["metrics"]]
    if setup.is_first:
        folder.write_metrics(run.metrics)  # the file may be damaged, or behind the checkpoint
        replay_log(setup.fabric, run.metrics)
    if about["scaler"]:
        setup.fabric.strategy.precision.load_state_dict(about["scaler"])
    setup.log(f"resumed after epoch {run.done}")
    return True


def _finish(setup: _Setup, calibrate: bool) -> None:
    """Makes members that are made after training, calibrates the last and the best ensemble, and writes them to the folder.

    The ensemble keeps its last weights; with ema=, their average.
    """
    run, ensemble = setup.run, setup.run.ensemble
    reshard(ensemble)
    if setup.average is not None:
        setup.average.copy_to_weights()
    _complete(setup, "last", calibrate)
    if setup.best.state and (calibrate or setup.folder is not None or ensemble.method.overrides("after_training")):
        last = {name: full_tensor(tensor).clone() for name, tensor in ensemble.state_dict().items()}
        calibrator = ensemble.calibrator
        load_full(ensemble, setup.best.state)
        _complete(setup, "best", calibrate)
        run.best_state = {name: full_tensor(tensor).clone() for name, tensor in ensemble.state_dict().items()}
        load_full(ensemble, last)
        run.best_calibrator, ensemble.calibrator = ensemble.calibrator, calibrator


def _complete(setup: _Setup, name: str, calibrate: bool) -> None:
    """Makes members after training, calibrates the ensemble if it is asked for, and writes it if there is a folder."""
    ensemble = setup.run.ensemble
    with gathered(ensemble, keep=True):
        ensemble.method.after_training(ensemble, setup.feed.once())
    ensemble.calibrator = None
    if calibrate and setup.validator is not None:
        ensemble.calibrator = setup.validator.calibrator(ensemble)
        setup.log(f"{name}: {ensemble.calibrator}")
    if setup.folder is not None:
        with gathered(ensemble):
            if setup.is_first:
                save(ensemble, setup.folder.path / f"{name}.multitude")
