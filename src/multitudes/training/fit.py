"""fit: trains an ensemble by a recipe: devices, precision and processes by Lightning Fabric, the loop in sight."""

from __future__ import annotations

import contextlib
import math
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from multitudes.data.batches import Split
from multitudes.engine import tree
from multitudes.engine.sharding import full_tensor, gathered, load_full, reshard, shard_like
from multitudes.ensemble import Ensemble
from multitudes.errors import FileError, InputError, RunError
from multitudes.files.ensemble_file import save
from multitudes.method import Batch, Criterion
from multitudes.terminal import Tell, bar
from multitudes.training.criterion import TaskCriterion, explain_inputs, ignored_by
from multitudes.training.fabric import (
    check_fabric,
    compiled,
    device_of,
    fabric_for,
    optimizer_for,
    quiet_fabric,
    replay_log,
    seed_everything,
    torch_settings,
)
from multitudes.training.feed import Feed, seed_of
from multitudes.training.fingerprint import dataset_fingerprint
from multitudes.training.recipe import Recipe
from multitudes.training.run_folder import RunFolder, optimizer_tensors, other_tensors, restore_optimizer
from multitudes.training.validation import Best, best_by
from multitudes.training.weight_average import WeightAverage

AMP: dict[str, bool | torch.dtype] = {"32": False, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Run:
    """What came of a run: a line of metrics for each epoch, and the weights of the best one."""

    ensemble: Ensemble
    recipe: Recipe
    metrics: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int | None = None
    """The epoch of the best validation, from 1 on; for members each by itself, that of the last one's best."""
    best_state: dict[str, Tensor] | None = None
    done: int = 0
    """How many epochs are done."""
    path: Path | None = None

    def use_best(self) -> Ensemble:
        """The ensemble with the weights of its best epoch."""
        if self.best_state is None:
            raise InputError("there is no best epoch: fit(..., val=...) finds it")
        load_full(self.ensemble, self.best_state)
        return self.ensemble


def fit(
    ensemble: Ensemble,
    train: Any,
    recipe: Recipe | None = None,
    *,
    val: Any = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    criterion: Criterion | None = None,
    fabric: Any = None,
    loggers: Any = None,
    progress: bool | None = None,
    split: Split | None = None,
    output: str | None = None,
    class_axis: int | None = None,
    ignore: int | None = None,
) -> Run:
    """Trains the ensemble, in place, and returns the run.

    train       a dataset of pairs (input, target), or one for each member
    val         a dataset that tells the best epoch
    out         the run's folder: settings, metrics, checkpoints, the best and the last ensemble
    resume      goes on where the run in the folder stopped, as if it had not
    criterion   loss(output, target) with mean reduction; by default the task's own
    fabric      a Lightning Fabric for devices and processes; by default one for the device of the ensemble
    split       takes a batch of a dataset apart, (input, targets)
    output      which of several output tensors the task's own criterion and the validation take
    class_axis  the axis of classes in one network's output: 1, or -1 for tokens ``[B, T, K]``
    ignore      the target of what has no label; by default what the training set says, and -100. A criterion of one's own
                has to leave it out by itself, and then it is for the validation
    """
    recipe = recipe or Recipe()
    if not isinstance(recipe, Recipe):
        raise InputError(f"fit takes a Recipe, not a {type(recipe).__name__}: mt.Recipe(epochs=10)")
    if ensemble.is_compact:
        raise RunError("a compact ensemble is for prediction: train the one that it was made of, and compact that again")
    judge = TaskCriterion(ensemble.task, criterion, output, class_axis, ignored_by(train) if ignore is None else ignore, split)
    modes = {part: part.training for part in (ensemble, *ensemble.template.modules())}
    folder = None if out is None else RunFolder(out)
    with folder or contextlib.nullcontext(), torch_settings(recipe, device_of(ensemble)), _layout_kept(ensemble):
        work = _begin(ensemble, train, recipe, val, folder, resume, judge, fabric, loggers)
        steps = work.steps
        try:
            with bar("train", recipe.epochs * steps, progress if work.fabric.is_global_zero else False, "steps") as tell:
                tell(work.run.done * steps)
                for epoch in range(work.run.done + 1, recipe.epochs + 1):
                    seconds = time.perf_counter()
                    line = {"epoch": epoch, **_epoch(work, epoch, tell)}
                    _finish(work, epoch, {**line, "seconds": time.perf_counter() - seconds})
        except Exception:
            if folder is not None and not work.run.done and work.fabric.is_global_zero:
                folder.remove_new_files()
            raise
        except KeyboardInterrupt:
            where = f"; fit(..., out={str(out)!r}, resume=True) goes on" if out is not None else ""
            work.log(f"stopped after {work.run.done} of {recipe.epochs} epochs{where}", aloud=True)
            raise
        finally:
            for part, mode in modes.items():
                part.training = mode
            for logger in work.fabric.loggers:
                logger.finalize("success" if work.run.done == recipe.epochs else "failed")
        _end(work)
        return work.run


@contextlib.contextmanager
def _layout_kept(ensemble: Ensemble) -> Iterator[None]:
    """A recipe's channels last are for training: afterwards members are run all at once again."""
    before = ensemble.engine.channels_last
    try:
        yield
    finally:
        if ensemble.engine.channels_last and not before:
            ensemble.to(memory_format=torch.contiguous_format)


@dataclass
class _Work:
    """What a run works with."""

    run: Run
    net: Any
    optimizer: Any
    fabric: Any
    feed: Feed
    judge: TaskCriterion
    val: Any
    folder: RunFolder | None
    moving: WeightAverage | None
    best: Best

    @property
    def steps(self) -> int:
        """Of one epoch."""
        return len(self.feed) // self.run.recipe.accumulate

    def log(self, text: str, aloud: bool = False) -> None:
        """A line for the run's log."""
        if self.folder is not None and self.fabric.is_global_zero:
            self.folder.log(text)
        if aloud and self.fabric.is_global_zero:
            sys.stderr.write(f"{text}\n")


def _begin(
    ensemble: Ensemble,
    train: Any,
    recipe: Recipe,
    val: Any,
    folder: RunFolder | None,
    resume: bool,
    judge: TaskCriterion,
    fabric: Any,
    loggers: Any,
) -> _Work:
    """Everything that a run needs, taken up where it stopped if it did."""
    with contextlib.suppress(TypeError):  # streams have no length
        if val is not None and not len(val):
            raise InputError("val= has no examples")
    if fabric is not None and loggers is not None:
        raise InputError("a Fabric has loggers of its own: Fabric(loggers=...), or loggers= without fabric=")
    if fabric is not None:
        check_fabric(fabric, ensemble, recipe)
    fabric = fabric or fabric_for(ensemble, recipe, loggers)
    if recipe.channels_last:
        ensemble.to(memory_format=torch.channels_last)
    ensemble.to(fabric.device)
    net = compiled(ensemble, recipe, fabric.device)
    with quiet_fabric():
        net, optimizer = fabric.setup(net, optimizer_for(ensemble, recipe, fabric.device))
    feed = Feed(
        train, batch=recipe.batch // recipe.accumulate, seed=recipe.seed, members=ensemble.members, own=recipe.batches == "own",
        rank=fabric.global_rank, ranks=fabric.world_size, device=fabric.device, split=judge.split, augment=recipe.augment,
        batch_axis=ensemble.engine.batch_axis,
    )  # fmt: skip
    work = _Work(
        Run(ensemble, recipe, path=None if folder is None else folder.path), net, optimizer, fabric, feed,
        judge, val, folder, None if recipe.ema is None else WeightAverage(ensemble, recipe.ema), best_by(ensemble, recipe.best),
    )  # fmt: skip
    if not work.steps:
        raise InputError(
            f"{feed.count} examples make no whole step of {recipe.accumulate} parts: a smaller batch, or fewer parts"
        )
    if val is not None:
        judge.try_validation(ensemble, val)
    if work.folder is None:
        if resume:
            raise InputError("resume=True needs the folder of the run: fit(..., out='runs/a', resume=True)")
        return work
    if fabric.is_global_zero:
        config: dict[str, Any] = {
            "recipe": recipe.settings(),
            "task": ensemble.task,
            "train": [dataset_fingerprint(one) for one in feed.sets],
        }
        config.update(method=type(ensemble.method).__name__, settings=ensemble.method.settings(), torch=torch.__version__)
        work.folder.start(config, resume)
    fabric.barrier()
    found = resume and _restore(work)
    _agree(work)
    if not found:
        work.log(f"{ensemble.method}: {recipe.epochs} epochs of {work.steps} steps on {feed.count} examples, {fabric.device}")
        _save(work, 0)
    return work


def _agree(work: _Work) -> None:
    """All processes have found the same checkpoint."""
    epochs = work.fabric.all_gather(torch.tensor([work.run.done], device=work.fabric.device)).flatten().tolist()
    if len(set(epochs)) > 1:
        shown = ", ".join(map(str, epochs))
        raise RunError(f"processes have found checkpoints of epochs {shown}: all of them must see the folder {work.run.path}")


def _epoch(work: _Work, epoch: int, tell: Tell) -> dict[str, Any]:
    """One pass over the training set; the mean loss."""
    run, feed, recipe = work.run, work.feed, work.run.recipe
    seed = seed_of(recipe.seed, epoch)
    seed_everything(seed_of(seed, 1 + work.fabric.global_rank))
    run.ensemble.generator.manual_seed(seed)
    run.ensemble.train()
    steps, total, first = work.steps, torch.zeros((), device=work.fabric.device), time.perf_counter()
    last = run.metrics[-1] if run.metrics else {}
    shown = {key.removeprefix("val_"): f"{last[key]:.4f}" for key in ("val_accuracy", "val_nll", "val_rmse") if key in last}
    batches = feed.epoch(epoch)
    for step in range(steps):
        _set_rates(work, (epoch - 1) * steps + step, steps)
        loss = _step(work, batches)
        total += loss
        if step % max(1, steps // 20) == 0 or step == steps - 1:
            _finite(work, float(loss), epoch, step)
            speed = f"{(step + 1) / (time.perf_counter() - first):.1f}"
            tell(0, epoch=f"{epoch}/{recipe.epochs}", loss=f"{float(loss):.4f}", **{"steps/s": speed}, **shown)
        tell(1)
    mean = work.fabric.all_reduce(total / steps, reduce_op="mean")
    _finite(work, float(mean), epoch, steps - 1)
    return {"loss": float(mean), "lr": work.optimizer.param_groups[0]["lr"]}


def _step(work: _Work, batches: Iterator[tuple[Any, Any]]) -> Tensor:
    """One step of the optimiser."""
    ensemble, recipe, parts = work.run.ensemble, work.run.recipe, work.run.recipe.accumulate
    total = torch.zeros((), device=work.fabric.device)
    for part, (call, targets) in enumerate(work.judge.weighted_parts(batches, parts, work.fabric, work.feed.own)):
        if recipe.compile:
            torch.compiler.cudagraph_mark_step_begin()
        if recipe.channels_last:
            layout = torch.channels_last
            call = call.refill([t.contiguous(memory_format=layout) if t.ndim == 4 else t for t in call.tensors()])
        batch = ensemble.batch(call, targets, per_member=work.feed.own)
        with work.fabric.no_backward_sync(work.net, enabled=part < parts - 1):
            with explain_inputs(ensemble, call, work.feed.own):
                outputs = work.net(*batch.inputs, **batch.kwargs)
            if work.judge.own is None and not work.feed.expects:
                _expect(work, outputs, batch)
            loss = ensemble.reduce(outputs, batch, work.judge, work.feed.size * parts)
            if recipe.l1:
                loss = loss + recipe.l1 * sum(p.abs().sum() for p in ensemble.parameters() if p.requires_grad)
            work.fabric.backward(loss / parts)
        total += loss.detach() / parts
    if recipe.clip is not None:
        work.fabric.strategy.precision.unscale_gradients(work.optimizer.optimizer)  # what step() will step, and not its wrapper
        ensemble.clip_grad_norm_(recipe.clip)
    work.optimizer.step()
    work.optimizer.zero_grad(set_to_none=True)
    if work.moving is not None:
        work.moving.update()
    return total


def _expect(work: _Work, outputs: Any, batch: Batch) -> None:
    """From the first outputs on it is known what targets may be; these here, and all that come."""
    work.judge.learn_classes(outputs, "rows" in batch.kwargs)
    for target in tree.tensors(batch.target):
        work.judge.check(target.flatten(0, 1) if batch.per_member and target.ndim > 1 else target)
    work.feed.expect(work.judge.check)


def _finish(work: _Work, epoch: int, line: dict[str, Any]) -> None:
    """Validates an epoch, and keeps what is needed to go on from it."""
    run, ensemble = work.run, work.run.ensemble
    better = False
    if work.fabric.world_size > 1:  # statistics of the first process's rows are everyone's
        for buffer in ensemble.buffers():
            torch.distributed.broadcast(buffer, 0)
    with work.moving.swapped_in() if work.moving is not None else contextlib.nullcontext():
        if work.val is not None:
            scores, each = work.judge.validated(work.judge.predicted(ensemble, work.val, AMP[run.recipe.precision]))
            line.update(scores)
            better = work.best.update(ensemble, epoch, scores, each)
    run.metrics.append(line)
    run.done = epoch
    if better:
        run.best_epoch, run.best_state = epoch, work.best.state
    work.log("  ".join(f"{k} {v:.6g}" for k, v in line.items()))
    work.fabric.log_dict(line, step=epoch)
    if work.folder is not None:
        _save(work, epoch)
    work.fabric.barrier()


def _save(work: _Work, epoch: int) -> None:
    """Gathers what is needed to go on, in all processes, and writes it in the first."""
    assert work.folder is not None
    reshard(work.run.ensemble)
    tensors, numbers = optimizer_tensors(work.optimizer)
    tensors.update({f"state.{name}": full_tensor(value) for name, value in work.run.ensemble.state_dict().items()})
    tensors.update({f"best.{name}": value for name, value in work.best.state.items()})
    tensors.update({f"ema.{name}": full_tensor(value) for name, value in (work.moving.values if work.moving else {}).items()})
    if not work.fabric.is_global_zero:
        return
    scaler = {k: v for k, v in work.fabric.strategy.precision.state_dict().items() if isinstance(v, (int, float))}
    about = {"numbers": numbers, "best": work.best.described(), "scaler": scaler, "metrics": work.run.metrics}
    work.folder.save(epoch, about, {name: value.detach().clone() for name, value in tensors.items()})
    work.folder.write_metrics(work.run.metrics)


def _restore(work: _Work) -> bool:
    """Takes a run up where its last whole checkpoint was written, if there is one."""
    assert work.folder is not None

    def tell(text: str) -> None:
        work.log(text)
        warnings.warn(text, stacklevel=6)

    found = work.folder.newest(tell)
    if found is None:
        return False
    about, tensors = found
    run = work.run

    def named(front: str) -> dict[str, Tensor]:
        return {name.removeprefix(front): value for name, value in tensors.items() if name.startswith(front)}

    wrong = other_tensors(named("state."), run.ensemble.state_dict())
    if wrong:
        raise FileError(f"{work.folder.path} is of another model: {'; '.join(wrong[:6])}")
    load_full(run.ensemble, named("state."))
    restore_optimizer(work.optimizer, tensors, about["numbers"])
    if work.moving is not None:
        for name, value in named("ema.").items():
            work.moving.values[name].copy_(shard_like(value, work.moving.values[name]))
    work.best = Best(**about["best"], state=named("best."))
    run.done, run.best_epoch, run.best_state = int(about["epoch"]), work.best.epoch, work.best.state or None
    run.metrics = about["metrics"]
    if work.fabric.is_global_zero:
        work.folder.write_metrics(run.metrics)  # what was written last may not have come so far, or have been damaged
        replay_log(work.fabric, run.metrics)
    if about["scaler"]:
        work.fabric.strategy.precision.load_state_dict(about["scaler"])
    work.log(f"goes on behind epoch {run.done}")
    return True


def _end(work: _Work) -> None:
    """The ensemble with its last weights, or their moving average, and the files of the run."""
    ensemble = work.run.ensemble
    reshard(ensemble)
    if work.moving is not None:
        work.moving.copy_to_weights()
    if work.folder is None:
        return
    _write(work, "last")
    if work.best.state:
        last = {name: full_tensor(tensor).clone() for name, tensor in ensemble.state_dict().items()}
        load_full(ensemble, work.best.state)
        _write(work, "best")
        load_full(ensemble, last)


def _write(work: _Work, name: str) -> None:
    """The ensemble as it is, in a file of the run."""
    assert work.folder is not None
    with gathered(work.run.ensemble):
        if work.fabric.is_global_zero:
            save(work.run.ensemble, work.folder.path / f"{name}.multitude")


def _set_rates(work: _Work, step: int, steps: int) -> None:
    factor = work.run.recipe.factor(step, steps)
    for group in work.optimizer.param_groups:
        group["lr"] = group["first_lr"] * factor


def _finite(work: _Work, loss: float, epoch: int, step: int) -> None:
    if math.isfinite(loss):
        return
    kept = ""
    if work.folder is not None and work.run.done:
        kept = f"; the checkpoint of epoch {work.run.done} is whole"
    elif work.best.state:
        load_full(work.run.ensemble, work.best.state)
        kept = f"; the ensemble has the weights of epoch {work.best.epoch} again, its best"
    raise RunError(f"the loss is {loss} in step {step + 1} of epoch {epoch}: a smaller lr, clip=, or warmup= may help{kept}")
