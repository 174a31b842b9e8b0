"""Ensemble: an nn.Module whose forward returns all members, members first."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from multitudes.conversion.anatomy.structure import heads, observe
from multitudes.data.batches import read_once
from multitudes.engine import Engine, tree
from multitudes.engine.base_weights import load_base
from multitudes.engine.batch_norm import estimate_norms
from multitudes.engine.call_form import CallForm, is_packed, signature_of
from multitudes.engine.choose import choose
from multitudes.engine.draws import checked_draws, draw_chunks, redraw, resample, reset_counts
from multitudes.engine.inputs import Inputs, checked_example, count_rows, fresh_inputs, slot
from multitudes.engine.modules import deep_copied, detached_copy, in_layout, kept_modes, named_tensors, under_autocast
from multitudes.engine.proof.executors import needed_by_call, pick, prove_later
from multitudes.engine.proof.outcome import clean_autograd
from multitudes.engine.proof.smaller import smaller
from multitudes.engine.proof.tune import tune
from multitudes.engine.run import run
from multitudes.engine.selected_output import selection_of
from multitudes.engine.timing import medians
from multitudes.engine.undisturbed import undisturbed
from multitudes.errors import InputError, RunError
from multitudes.method import Batch, Criterion, Method, into_slots
from multitudes.prediction.predict import CALL, unlike_example
from multitudes.prediction.reduction import ReductionCheck
from multitudes.prediction.tasks import Average, checked_task, values_of
from multitudes.prediction.temperature import Calibrator, checked_calibrator
from multitudes.prediction.uncertainty import moments
from multitudes.settings import check_value, takes_names

if TYPE_CHECKING:
    from multitudes.conversion.plan import Plan
    from multitudes.files.export.shortcuts import Shortcuts

COUPLING = ("LBFGS", "Adafactor", "Muon", "LAMB", "Lamb", "LARS", "Lars", "Shampoo", "SOAP", "NovoGrad")
"""Optimizers that use norms or shapes of whole tensors, which would mix members."""


class Ensemble(nn.Module):
    """M networks in one module: ``ens(x)`` is ``[M, B, ...]``, in training and in eval mode.

    Parameters and buffers keep the given model's names, without a prefix. Tensors that belong to members have a leading
    member axis, ``[M, ...]``; all others are shared.
    """

    def __init__(
        self,
        engine: Engine,
        method: Method,
        *,
        task: str,
        seed: int,
        base: nn.Module,
        plan: Plan,
        compact: bool = False,
    ) -> None:
        super().__init__()
        self.method = method
        self.is_compact = compact
        self.is_frozen = False
        self.task = checked_task(task)
        self.seed = seed
        self.engine = engine
        self._plan = plan
        self.calibrator: Calibrator | None = None
        self.class_axis: int | None = None
        """The axis of the classes in one network's output, 1 or -1; None if nobody said, which means 1."""
        self.generator = torch.Generator().manual_seed(seed)
        self._drawn_for: list[torch.Size] | None = None
        self.shortcuts: Shortcuts | None = None
        """Faster ways to run plain calls, if the ensemble is frozen."""
        self._warned = False
        self._reduction_check = ReductionCheck()
        self._base = [base]  # the architecture on the meta device: no memory, and in a list no child either
        self._adopt_registers(engine.template)
        self.register_load_state_dict_post_hook(_loaded)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "calibrator" and value is not None:
            checked_calibrator(value, "ens.calibrator")
        super().__setattr__(name, value)
        if name == "training" and "engine" in vars(self):  # code that restores modes module by module does not see the template
            self.engine.template.training = value

    def _adopt_registers(self, template: nn.Module) -> None:
        """Uses the template's parameters, buffers and modules as its own: names in checkpoints have no prefix."""
        vars(self).update(_modules=template._modules, _parameters=template._parameters, _buffers=template._buffers)
        vars(self)["_non_persistent_buffers_set"] = template._non_persistent_buffers_set
        self.training = template.training

    @property
    def template(self) -> nn.Module:
        """The network that is run for every member, each time with that member's tensors."""
        return self.engine.template

    @property
    def base(self) -> nn.Module:
        """The given model's architecture on the meta device, without weights."""
        return self._base[0]

    @property
    def plan(self) -> Plan:
        """The plan of the conversion, with the executors that are proven and picked now."""
        engine = self.engine
        return replace(self._plan, executor=dict(engine.picked), proven=dict(engine.proven), why=dict(engine.why))

    @property
    def selected_output(self) -> str | None:
        """The one output that the ensemble returns of a model that returns several; None if it returns all."""
        return selection_of(self.template)

    @property
    def call_form(self) -> CallForm:
        """How the network takes its inputs, from its forward and the conversion's example."""
        return CallForm(signature_of(self.base), self._plan.example)

    @property
    def members(self) -> int:
        """The number of members, M."""
        return self.engine.members

    @property
    def effective_size(self) -> int:
        """The number of different networks that can occur as members; larger than M for methods that draw."""
        return self.method.effective_size(self)

    @property
    def executor(self) -> str:
        """The executor that a call would use now: loop, vmap or fold."""
        return choose(self.engine)

    def forward(
        self, *inputs: Any, per_member: bool = False, rows: Tensor | None = None, draws: Any = None, **kwargs: Any
    ) -> Any:
        """Runs all members on the inputs. Returns ``[M, B, ...]``.

        per_member  the inputs are ``[M, B, ...]``: separate data for each member
        rows        ``[B]``, the member of each row, or ``[K, 1]``, that of each of K equal blocks of rows; the output is
                    ``[B, ...]``
        draws       for methods that draw: D draws to run instead of the members, tensors ``[D, ...]`` by name; the output is
                    ``[D, B, ...]``. With `rows`, which then names the draw of each row, the output is ``[B, ...]``
        """
        if len(inputs) == 1 and not kwargs and is_packed(inputs[0]):
            self.call_form.refuse_packed(inputs[0])
        call = Inputs(*inputs, **kwargs)
        if draws is not None and (not self.method.draws or self.is_frozen):
            raise InputError(f"{self._kind()} has no random draws: leave draws= out")
        if torch.compiler.is_compiling():
            return self.run_drawn(call, per_member, rows, draws)
        if self.training and draws is None and rows is None and not per_member:
            self._warn_once()
        with self.engine.lock:
            if self.engine.untried:
                several = self.members > 1 if draws is None else any(t.ndim and len(t) > 1 for t in tree.tensors(draws))
                self.prove_later(needed_by_call(self.engine, per_member, rows is not None, several))
            if self.method.draws and self.method.draws_by_shape and not self.is_frozen:
                self._fit_draws(slot(call, self.engine.batch_axis, 0) if per_member else call)
            try:
                if self.shortcuts is not None and rows is None and not per_member:
                    return self.shortcuts.run(self.engine, call)
                return self.run_drawn(call, per_member, rows, draws)
            except (RuntimeError, IndexError) as error:
                if (reason := unlike_example(self, call, error, per_member)) is None:
                    raise
                raise RunError(f"{CALL} {reason}") from error

    def _kind(self) -> str:
        return "a frozen ensemble" if self.is_frozen else type(self.method).__name__

    def _fit_draws(self, call: Inputs) -> None:
        """Draws again, from the same seeds, if draws depend on the shapes of the call and these have changed."""
        shapes = reset_counts(self.engine, call)
        if shapes != self._drawn_for and self.method.fit_shapes(self.template, call, self.engine.batch_axis):
            redraw(self.engine)
        self._drawn_for = shapes

    def run_drawn(self, call: Inputs, per_member: bool, rows: Tensor | None, draws: Any) -> Any:
        """Runs a call with the stored draws, or with `draws`; `forward` explains the arguments."""
        if draws is None:
            return run(self.engine, call, per_member, rows)
        with self.engine.with_draws(checked_draws(self.engine, draws, any_shape=self.method.draws_by_shape)):
            return run(self.engine, call, per_member, rows)

    @torch.no_grad()
    def moments(self, *inputs: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Returns the predictive mean and variance of a regression, ``[B, ...]`` (appendix B.3 of Ensemble Model Patching).

        The variance is the variance between the members' outputs, plus 1 / tau_output if the method has that setting. So the
        network must be trained on targets in their own units; for standardised targets use `predict`, which knows their scale.
        """
        outputs = self(*inputs, **kwargs)
        if not isinstance(outputs, Tensor):
            raise InputError(
                "moments() needs a model that returns one tensor, but this one returns several: wrap it to return one"
            )
        tau = getattr(self.method, "tau_output", None)
        values = values_of(outputs, "regression", None if tau is None else 1 / tau)
        if self.calibrator is not None:
            values, _ = self.calibrator.applied(values, "regression")
        found = moments(values["mean"], values.get("variance"))
        return found["mean"], found["aleatoric"] + found["epistemic"]

    def draw(self, count: int, *inputs: Any, **kwargs: Any) -> Iterator[dict[str, Tensor]]:
        """Makes `count` draws in chunks, ``[D, ...]`` by name, for calls ``ens(*inputs, draws=...)`` on inputs of this shape.

        The first draws are the members'. Unless it was resampled, the ensemble continues like one made with `count` members.
        """
        if not self.method.draws or self.is_frozen:
            raise InputError(f"{self._kind()} has no random draws: draws= is for methods such as MCDropout or EMP")
        if self.method.draws_by_shape:
            with self.engine.lock:
                self._fit_draws(Inputs(*inputs, **kwargs))
        return draw_chunks(self.engine, self.seed, count)

    def resample(self, seed: int | None = None) -> Ensemble:
        """Draws all members again, from `seed`; None takes a seed from the ensemble's generator."""
        if not self.method.draws or self.is_frozen:
            raise InputError(f"{self._kind()} has no random draws: resample() is for methods that draw, such as MCDropout")
        resample(self.engine, int(torch.randint(2**62, (), generator=self.generator)) if seed is None else seed)
        return self

    def redraw(self) -> None:
        """Makes the draws again from the members' seeds."""
        redraw(self.engine)

    def _warn_once(self) -> None:
        """Warns once that a plain call is not the training step of this method."""
        if self._warned or not self.method.trains_by_part:
            return
        self._warned = True
        warnings.warn(
            f"{type(self.method).__name__} trains by parts: a plain call, which runs all members on all rows, is no training "
            "step. Call ens.loss(x, y, criterion), or ens(*batch.inputs, **batch.kwargs) with batch = ens.batch(x, y)",
            stacklevel=3,
        )

    def batch(self, x: Any, y: Any, per_member: bool = False) -> Batch:
        """Prepares the data of one training step. Changes nothing but the state of the ensemble's random generator.

        x           a tensor, an `mt.Inputs`, or a tuple, list or dict of the arguments of the model's forward
        y           the targets
        per_member  x and y hold separate data for each member, ``[M, B, ...]``
        """
        call = self._call(x)
        count = 0 if per_member else count_rows(call, self.engine.batch_axis)
        found = self.method.batch(call, y, self.generator, per_member, count)
        own, several = per_member or found.slots is not None, len(found.kwargs.get("draws", ())) > 1
        self.prove_later(needed_by_call(self.engine, own, found.kwargs.get("rows") is not None, several))
        if found.slots is not None:
            return into_slots(found, self.engine.batch_axis)
        seeds = found.kwargs.get("draws")
        if seeds is None:
            return found
        return replace(found, kwargs={**found.kwargs, "draws": self.method.drawn_for_step(self.template, seeds)})

    def reduce(self, outputs: Any, batch: Batch, criterion: Criterion, global_batch: int | None = None) -> Tensor:
        """Returns the loss of a step, from outputs = ens(*batch.inputs, **batch.kwargs): the members' losses and the prior.

        Some priors depend on the number of rows of the whole step. By default these are the rows of this batch in all
        processes. With gradient accumulation, give the number as `global_batch`. At its first step a criterion is tried on a
        few rows; one that does not take the mean over rows is refused.
        """
        loss = self.method.loss(outputs, batch, self.method.likelihood(self._reduction_check(criterion), self.task))
        prior = self.method.penalty(self, global_batch or self.rows_of_step(batch))
        return loss if prior is None else loss + prior

    def rows_of_step(self, batch: Batch) -> int:
        """Returns the number of rows of a step, over all processes; with gradient accumulation, of one of its parts."""
        distributed = torch.distributed
        ranks = distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1
        slots = [t.shape[1] for t in tree.tensors(batch.target) if batch.per_member and t.ndim > 1]
        return ranks * max(batch.count or next(iter(slots), 1), 1)

    @takes_names()
    def loss(self, x: Any, y: Any, criterion: Criterion, per_member: bool = False, global_batch: int | None = None) -> Tensor:
        """Computes the loss of one training step.

        x             a tensor, an `mt.Inputs`, or a tuple, list or dict of the arguments of the model's forward
        y             the targets
        criterion     any torch loss with mean reduction, called as criterion(output, target); others are refused
        per_member    x and y hold separate data for each member, ``[M, B, ...]``
        global_batch  the number of rows of the whole step; give it with gradient accumulation
        """
        batch = self.batch(x, y, per_member)
        return self.reduce(self(*batch.inputs, **batch.kwargs), batch, criterion, global_batch)

    def param_groups(
        self,
        *,
        lr: float,
        weight_decay: float = 0.0,
        optimizer: type[torch.optim.Optimizer] | None = None,
        only: str | None = None,
    ) -> list[dict[str, Any]]:
        """Makes the parameter groups of an optimizer.

        optimizer  the class of the optimizer, to check: one whose updates would mix members is refused. For our LAMB, which
                   keeps members apart, each group says whether its tensors are `stacked`, with an axis of members
        only       return only the groups of this kind, such as "shared" or "patches", for one of two alternating optimizers
        """
        kinds = [kind.__name__ for kind in (optimizer.__mro__ if optimizer is not None else ())]
        own = any(name in self.engine.owned | self.engine.summed for name, _ in self.named_parameters())
        by_member = getattr(optimizer, "by_member", False)
        if own and not by_member and (coupling := [kind for kind in kinds if kind in COUPLING]):
            raise InputError(
                f"{coupling[0]} uses norms or shapes of whole tensors, so the members' updates would depend on each other. "
                "Use SGD, Adam, AdamW or multitudes.training.lamb.LAMB, or train each ens.member(m)"
            )
        groups = self.method.param_groups(self, lr, weight_decay)
        if by_member:
            groups = [part for group in groups for part in self._split_stacked(group)]
        found = [group.get("kind") for group in groups]
        if only is not None and only not in found:
            raise InputError(f"only={only!r}: {type(self.method).__name__} has no groups of this kind; choose one of {found}")
        return [group for group in groups if only is None or group.get("kind") == only]

    def _split_stacked(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """Splits a parameter group into the tensors of members and the others; `stacked` says which."""
        names = {id(p): name for name, p in self.named_parameters()}
        parts = []
        for stacked in (True, False):
            params = [p for p in group["params"] if (names[id(p)] in self.engine.owned) is stacked]
            if params:
                parts.append({**group, "params": params, "names": [names[id(p)] for p in params], "stacked": stacked})
        return parts

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, by: Literal["member", "all"] = "member") -> Tensor:
        """Clips gradients to `max_norm`: each member's tensors by that member's norm, shared tensors by theirs.

        Returns the members' norms ``[M]``. With by="all" there is one norm over all tensors of all members; it is returned.
        """
        check_value("by", by, Literal["member", "all"])
        if by == "all":
            return nn.utils.clip_grad_norm_(self.parameters(), max_norm)
        named = [(n, p.grad) for n, p in self.named_parameters() if p.grad is not None]
        own = [g for n, g in named if n in self.engine.owned]
        rest = [g for n, g in named if n not in self.engine.owned]
        if rest:
            norm: Tensor = torch.stack([g.norm() for g in rest]).norm()
            for g in rest:
                g.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        if not own:
            return norm.expand(self.members) if rest else torch.zeros(self.members)
        norms: Tensor = torch.stack([g.flatten(1).norm(dim=1) for g in own]).norm(dim=0)
        scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
        for g in own:
            g.mul_(scale.view(-1, *(1 for _ in g.shape[1:])).to(g.dtype))
        return norms

    @clean_autograd()
    def member(self, m: int) -> nn.Module:
        """Returns a copy of member m: a plain module with the given model's layers and names, and the member's outputs."""
        index = self._index(m)
        member = detached_copy(self.template, self._slice(lambda tensor: tensor[index]))
        if self.engine.traits.plain_weights:
            self.method.bake(member)
        for part in member.modules():
            if isinstance(part, nn.RNNBase):
                part._init_flat_weights()
        return member

    def find_head(self, *inputs: Any, **kwargs: Any) -> str:
        """Names the last layer of a member, found by a run on these inputs. What it is given are the member's features."""
        found, loose = heads(observe(self.member(0), Inputs(*inputs, **kwargs)))
        if len(found) != 1 or loose:
            shown = ", ".join(sorted(found | loose)) or "none"
            raise InputError(f"features need one last layer, but here are {shown}: name a layer, predict(..., features='...')")
        return next(iter(found))

    @clean_autograd()
    def subset(self, members: Sequence[int]) -> Ensemble:
        """Returns a new ensemble with copies of these members, in this order."""
        if self.engine.summed:
            return self.compact().subset(members)
        chosen = [self._index(m) for m in members]
        if not chosen:
            raise InputError("subset([]) leaves no member: give at least one index")
        template = detached_copy(self.template, self._slice(lambda tensor: tensor[chosen]))
        method = self.method.subset(len(chosen))
        engine = replace(self.engine, template=template, members=len(chosen), picked=dict(self.engine.picked))
        engine.refresh()
        counts = self.plan.counts and self.plan.counts.with_fewer(self.members - len(chosen))
        planned = replace(self.plan, method=method, counts=counts)
        new = Ensemble(engine, method, task=self.task, seed=self.seed, base=self.base, plan=planned, compact=self.is_compact)
        new.calibrator, new.class_axis = self.calibrator and self.calibrator.subset(chosen), self.class_axis
        return new

    def compact(self, x: Any = None) -> Ensemble:
        """Returns a smaller ensemble for prediction, without the channels that members do not use.

        Its outputs are the same. Its plan shows the multiply-adds before and after, and the change of each layer. An ensemble
        that would compute as much as before is refused. With `x` both are timed on it, under the present autocast; if the
        compact one is not faster, a warning says so, and the ensemble itself is returned.
        """
        if self.is_compact:
            raise InputError("this ensemble is compact already: use it as it is")
        if not self.engine.traits.plain_weights:
            raise InputError(
                "compact() cannot cut weights that forward reads outside the layers that hold them: use the ensemble as it is"
            )
        new = undisturbed(self.method.compact)(self)
        new.calibrator, new.class_axis = self.calibrator, self.class_axis
        if x is None:
            return new
        before, after = self._times_beside(new, self._call(x))
        if not after >= before:  # on the meta device neither has a time
            return new
        warnings.warn(
            f"compact() is no gain on this input, so the ensemble is returned as it is: {1000 * after:.2f} ms compact, "
            f"{1000 * before:.2f} ms as it is. ens.compact().freeze() may be faster than both",
            stacklevel=2,
        )
        return self

    def _times_beside(self, other: Ensemble, call: Inputs) -> list[float]:
        """Returns the seconds of a prediction of this ensemble and of another, in turn."""
        inputs = fresh_inputs(call)
        with torch.no_grad(), kept_modes(self):
            return medians([partial(one, *inputs.args, **inputs.kwargs) for one in (self.eval(), other.eval())], 5, call)

    @undisturbed
    def freeze(self, *inputs: Any, **kwargs: Any) -> Ensemble:
        """Returns an ensemble for prediction that computes less in each call: BatchNorm is folded into the layers before it.

        Its outputs are the same up to rounding. It takes inputs like these, given as in a call, with any number of rows; by
        default like the conversion's example. It cannot be trained or saved: keep this one. A GPU runs it as CUDA graphs. A CPU
        runs it as one graph of all members, which holds the weights once more, as kernels read them. So changes that are
        written into the `.data` of weights are not seen there; all others are.
        """
        from multitudes.files.export.freeze import freeze

        if self.is_frozen:
            raise InputError("this ensemble is frozen already: use it as it is")
        device = next((tensor.device for _, tensor in named_tensors(self.template)), torch.device("cpu"))
        if len(inputs) == 1 and not kwargs:
            given = self._call(inputs[0])
        elif inputs or kwargs:
            given = self.call_form.checked(Inputs(*inputs, **kwargs))
        else:
            given = Inputs.like(self._plan.example, device)
        return freeze(self, checked_example(self.template, given, self.engine.batch_axis, 3))

    def average(self, output: str | None = None, class_axis: int | None = None) -> Average:
        """Wraps the ensemble as a module that returns ``[B, K]``: the log of the mean probability, or for regression the mean.

        output      the tensor to average, by name, if the model returns several
        class_axis  the axis of the classes, -1 for tokens ``[B, T, K]``; by default the ensemble's
        """
        return Average(self, output, class_axis or self.class_axis or 1)

    @clean_autograd()
    def load_base(self, state_dict: Mapping[str, Tensor], start: str = "copies") -> None:
        """Loads a checkpoint of the given model, by the model's own names.

        start="copies" loads its weights into every member; "fresh" loads shared tensors only.
        """
        load_base(self, state_dict, start)

    def estimate_norms(self, batches: Iterable[Any]) -> Ensemble:
        """Sets BatchNorm's running statistics to their averages over these batches; use it after `Packed(pretrained=True)`.

        batches   a dataloader, or a list of inputs; targets beside the inputs are not used
        """
        estimate_norms(self, batches, lambda batch: self.call_form.unpack(batch)[0])
        return self

    def finish(self, data: Any, batch_size: int = 256, unpack: Any = None) -> Ensemble:
        """Makes members after training, in methods that need the training data for it; others do nothing.

        Laplace fits its posterior, SWAG averages weights and draws. `fit` does this itself; call it after a training loop of
        your own, or on a network that is trained already.

        data    the training set: a dataset of pairs (input, target) or a dataloader, as in `predict`
        unpack  function that takes a batch of the dataloader apart into (input, targets)
        """
        if isinstance(data, Tensor):
            raise InputError("finish() needs inputs and targets: give one dataset, torch.utils.data.TensorDataset(x, y)")
        home = next(tensor.device for _, tensor in named_tensors(self.template))
        batches = read_once(data, batch_size, self.engine.batch_axis, unpack, self.call_form, home)
        self.method.after_training(self, batches)
        return self

    def tune(self, x: Any, seconds: float = 0.2) -> Ensemble:
        """Proves and times the executors on `x`, and picks the fastest in each mode. No tensor changes.

        On a GPU it also measures how convolutions of all members run fastest, and keeps that on disk for other processes. Call
        it as you will run the ensemble: under autocast, and with `x` of that batch size and memory format.
        """
        home = self._home()
        dtype = torch.get_autocast_dtype(home) if under_autocast(home) else None
        undisturbed(tune)(self.engine, self._call(x), seconds, dtype)
        return self

    def train(self, mode: bool = True) -> Ensemble:
        """Sets training or eval mode. A compact ensemble refuses training mode."""
        if mode and self.is_compact:
            what, how = ("frozen", "freeze") if self.is_frozen else ("compact", "compact")
            raise RunError(f"a {what} ensemble is for prediction only: train the original ensemble, then call {how}() again")
        self.template.train(mode)
        self.training = mode
        return self

    def to(self, *args: Any, **kwargs: Any) -> Ensemble:
        """Moves or converts the ensemble, as `nn.Module.to`; a memory format applies to each member's slice."""
        layout = kwargs.pop("memory_format", None)
        if args or kwargs:
            super().to(*args, **kwargs)
        if layout is not None:
            with torch.no_grad():
                for name, tensor in named_tensors(self.template):
                    tensor.data = in_layout(tensor.data, layout, name in self.engine.owned)
            self.engine.refresh()
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Ensemble:
        before = self._home()
        super()._apply(fn, recurse)
        if self._home() != before:
            pick(self.engine)
            if self._home() not in ("cpu", "meta"):
                self.prove_later(["vmap"])
        return self

    def prove_later(self, names: Sequence[str]) -> None:
        """Tries executors that conversion left to later ("vmap", "fold", "per member"), since they may be chosen now."""
        untried = self.engine.untried.intersection(names)
        if not untried:
            return
        try:
            example = self._example()
            if self.method.draws_by_shape and self.method.fit_shapes(self.template, example, self.engine.batch_axis):
                redraw(self.engine)
                self._drawn_for = None
            prove_later(self.engine, untried, example)
        except (InputError, RunError) as error:  # a file cannot describe every example
            self.engine.untried -= untried
            self.engine.why.update(dict.fromkeys(untried, f"not tried: {error}"))

    def _example(self) -> Inputs:
        """Returns the small example of the conversion; for a loaded ensemble, one of the shape of the example."""
        device = next((tensor.device for _, tensor in named_tensors(self.template)), torch.device("cpu"))
        known = self.engine.example
        if known is not None:
            return known.refill([tensor.to(device) for tensor in known.tensors()])
        example = checked_example(self.template, Inputs.like(self._plan.example, device), self.engine.batch_axis)
        return smaller(self.member(0), example, self.engine.batch_axis).two_rows

    def _call(self, x: Any) -> Inputs:
        """Returns the arguments of a call: those in a tuple, list or dict, or `x` itself."""
        return self.call_form.inputs(x) if is_packed(x) else self.call_form.checked(Inputs.of(x))

    def _home(self) -> str:
        return next((tensor.device.type for _, tensor in named_tensors(self.template)), "cpu")

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "generator": self.generator.get_state(), "_reduction_check": ReductionCheck()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        generator = torch.Generator()
        generator.set_state(state["generator"])
        super().__setstate__({**state, "generator": generator})

    def __deepcopy__(self, memo: dict[int, Any]) -> Ensemble:
        new = type(self).__new__(type(self))
        memo[id(self)] = new
        new.__setstate__(deep_copied(self.__getstate__(), self.template, memo))
        return new

    def _slice(self, take: Any) -> dict[str, Tensor]:
        return {name: take(tensor) for name, tensor in named_tensors(self.template) if name in self.engine.owned}

    def _index(self, m: int) -> int:
        if isinstance(m, bool) or not hasattr(m, "__index__") or not -self.members <= operator.index(m) < self.members:
            raise InputError(f"no member {m!r}: this ensemble has members 0 to {self.members - 1}")
        return operator.index(m) % self.members

    def __repr__(self) -> str:
        return f"Ensemble({self.method}, {self.plan.cost_line()}, executor={self.engine.picked['eval']!r})"


def _loaded(ensemble: Ensemble, _: Any) -> None:
    ensemble.engine.refresh()
    if ensemble.method.draws:
        ensemble.redraw()
