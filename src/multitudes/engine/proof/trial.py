"""Trial runs of an engine: the loop, what it shows about the network, and comparisons with it.

All runs use copies, with dropout off. A small engine runs in double precision. A large one runs in its own precision, and
double precision decides where outcomes differ there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from multitudes.engine import tree
from multitudes.engine.draws import DrawWritten, drawn_names, only_read, unwritten_names
from multitudes.engine.fold import learn_output, learn_rows, run_fold
from multitudes.engine.inputs import Inputs, fresh_inputs
from multitudes.engine.listening import Quick
from multitudes.engine.loop import OUTPUT, members, run_loop
from multitudes.engine.modules import as_same_kind, batch_norms, copy_with, join_name, named_tensors, owning_module
from multitudes.engine.program import Tracer, shape_inputs, shapes_only
from multitudes.engine.proof.independence import changed, leaks, quick_leaks, repeats_afresh
from multitudes.engine.proof.outcome import (
    Outcome,
    but_first,
    close,
    difference,
    doubled,
    restored,
    run_executor,
    run_plain,
    run_without_gradients,
    weights_of,
    with_randomness,
    without_dropout,
    without_modules,
)
from multitudes.engine.proof.soft_norms import soft_eps
from multitudes.engine.proof.stored import what_is_stored
from multitudes.engine.replay import Replay
from multitudes.engine.state import MODES, Engine, SharedWrite, Traits, write_back
from multitudes.engine.vmap import run_vmap
from multitudes.errors import RunError, listed
from multitudes.terminal import step

RUNS: dict[str, Callable[..., Any]] = {"loop": run_loop, "vmap": run_vmap, "fold": run_fold}
SINGLE = 1e-4
"""Outcomes of a large engine agree if they differ by less than this, relative to the largest entry."""
WAYS = [(mutates, copies, no_replay) for mutates in (False, True) for copies, no_replay in ((0, 0), (1, 0), (1, 1))]
"""Traits under which the loop is tried: `mutates`, `copy_per_member` and `no_replay`."""


class Trial:
    """Trial runs of an engine on one batch. Each outcome is computed once.

    modes     the modes in which the loop runs first
    backward  False for runs that are forward only, if gradients and leaks are known otherwise
    pair      vmap and fold will be compared with each other in training with shared norms, where the loop has another result:
              it runs forward there, until `learn_backward`
    random    training is known to be random if it draws
    """

    def __init__(
        self,
        engine: Engine,
        inputs: Inputs,
        large: bool = False,
        modes: Sequence[str] = MODES,
        backward: bool = True,
        pair: bool = False,
        random: bool = False,
    ) -> None:
        plain = without_dropout(engine)
        self._noisy = engine, inputs
        precise = None if large else doubled(plain, inputs)
        self.engine, self.inputs = precise or (plain, inputs)
        self.large = large
        self.modes, self.backward, self.pair = modes, backward, pair and large and backward
        self.random = random
        self.failed: dict[str, Exception] = {}
        """The modes in which the network does not run, with the error."""
        self._outcomes: dict[tuple[str | int, str, frozenset[str] | None, bool], Outcome] = {}
        self._double: tuple[Engine, Inputs] | None = None
        self._runs_alone: dict[tuple[str, bool], bool] = {}
        self._eps: dict[str, float] = {}
        self._learn_loop()
        self.engine.row_axes = self._output_axes() if backward else {}

    def copy(self, precise: bool = False) -> Engine:
        """Copies the engine for one run, `precise` in double precision. What forward stores on modules goes with the copy."""
        template = (self.precision[0] if precise else self.engine).template
        return replace(self.engine, template=copy_with(template, {}), proven=dict(self.engine.proven), why={})

    def forget(self, mode: str) -> None:
        """Frees the outcomes of a mode but the loop's: gradients take the memory of the network each."""
        self._outcomes = {key: value for key, value in self._outcomes.items() if key[1] != mode or key == _key("loop", mode)}

    def loop(self, mode: str) -> Outcome | None:
        """Returns the outcome of the loop; None if the network does not run in this mode."""
        return self._outcomes.get(_key("loop", mode))

    @property
    def trains_apart(self) -> bool:
        """Whether training runs, and is another program than eval mode."""
        train = self.loop("train")
        return train is not None and train is not self.loop("eval")

    def outcome(self, name: str, mode: str, without: frozenset[str] = frozenset(), precise: bool = False) -> Outcome:
        """Returns the outcome of an executor; the modules `without` return their inputs. `precise`: in double precision."""
        key = _key(name, mode, without, precise)
        if key not in self._outcomes:
            twin = self.copy(precise)
            with without_modules(twin.template, without):
                self._outcomes[key] = self._run(RUNS[name], twin, self.batch(precise), mode)
        return self._outcomes[key]

    def batch(self, precise: bool = False) -> Inputs:
        """Returns the inputs, `precise` in double precision."""
        return self.precision[1] if precise else self.inputs

    def _run(self, executor: Callable[..., Any], engine: Engine, inputs: Inputs, mode: str) -> Outcome:
        return run_executor(executor, engine, inputs, mode, backward=self.backward)

    def difference(self, name: str, reference: str, mode: str, without: frozenset[str] = frozenset()) -> str | None:
        """Returns how the outcomes of two executors differ; None if they agree."""
        return self.decided(
            lambda precise: (self.outcome(name, mode, without, precise), self.outcome(reference, mode, without, precise)),
            SINGLE if mode == "eval" else 10 * SINGLE,  # norms over few rows amplify rounding errors, and so do missing norms
            lambda: (
                mode == "train" and not without and "loop" not in (name, reference) and self.agree_softened(name, reference)
            ),
        )

    def agree_softened(self, *names: str) -> bool:
        """Whether executors agree in training if each norm's `eps` is a few times the variance of what it normalises.

        Norms then do not blow up rounding errors where few entries are nearly equal. All else runs as before: norms normalise
        by the statistics of all members' rows, and of a wrong variance a fifth of the effect stays. Outputs and buffers must
        agree without this, too.
        """
        if not self.engine.traits.coupled:
            return False
        forward, *found = (self.forward_in_training(name) for name in names)
        if forward.drew or any(difference(other, forward, 10 * SINGLE) for other in found):
            return False
        try:
            first, *others = (self._run(RUNS[name], self.softened(), self.inputs, "train") for name in names)
        except Exception:
            return False
        return all(difference(other, first, 10 * SINGLE) is None for other in others)

    def forward_in_training(self, name: str) -> Outcome:
        """Returns the outcome of an executor in training mode, without gradients."""
        if _key(name, "train") in self._outcomes:
            return replace(self.outcome(name, "train"), gradients={})
        return run_executor(RUNS[name], self.copy(), self.inputs, "train", backward=False)

    def softened(self) -> Engine:
        """Copies the engine for one run in which norms are soft (`agree_softened`)."""
        self._eps = self._eps or soft_eps(plain_member(self.copy(), 0), self.inputs)
        twin = self.copy()
        for name, norm in batch_norms(twin.template).items():
            norm.eps = self._eps[name]
        return twin

    @property
    def is_soft(self) -> bool:
        """Whether a comparison in training needed softened norms."""
        return bool(self._eps)

    def prediction(self, name: str, precise: bool = False) -> Outcome:
        """Returns the outcome of an executor in eval mode without gradients."""
        key = _key(name, "eval", None, precise)
        if key not in self._outcomes:
            self._outcomes[key] = run_without_gradients(RUNS[name], self.copy(precise), self.batch(precise))
        return self._outcomes[key]

    def predicts_apart(self, name: str) -> bool:
        """Whether an executor without gradients, with NaN in a large engine's first member, gives the loop's other members.

        Then it neither leaks nor errs there, if NaN shows in the first one, which is then computed by its own tensors. False
        tells nothing: forward may refuse NaN.
        """
        if not self.large or self.engine.members < 2 or not self.engine.owned:
            return False
        twin, found = self.copy(), None
        with contextlib.suppress(Exception), changed(twin, 0, "NaN"):
            found = run_without_gradients(RUNS[name], twin, self.inputs)
        if found is None or not any(value[0].isnan().any() for value in found.values):
            return False
        loop = replace(self.outcome("loop", "eval"), gradients={})
        return difference(but_first(found, twin.owned), but_first(loop, twin.owned), SINGLE) is None

    def difference_of_predictions(self, name: str) -> str | None:
        """Returns how an executor's outputs without gradients differ from the loop's with them; None if they agree."""
        return self.decided(
            lambda precise: (
                self.prediction(name, precise),
                replace(self.outcome("loop", "eval", precise=precise), gradients={}),
            )
        )

    def decided(
        self,
        pair: Callable[[bool], tuple[Outcome, Outcome]],
        tolerance: float = SINGLE,
        instead: Callable[[], bool] = lambda: False,
    ) -> str | None:
        """Compares two outcomes, in double precision if those of a large engine differ. Returns the difference, or None.

        `instead` is another comparison, which takes less than double precision does: they agree if it says so.
        """
        outcome, expected = pair(False)
        differs = difference(outcome, expected, tolerance if self.large else None)
        if differs is None or not self.large:
            return differs
        if instead():
            return None
        outcome, expected = pair(self.in_double() is not None)
        return difference(outcome, expected)

    def in_double(self) -> tuple[Engine, Inputs] | None:
        """Returns the engine and inputs in double precision; None if they cannot run in it."""
        self._double = self._double or doubled(self.engine, self.inputs)
        return self._double

    @property
    def precision(self) -> tuple[Engine, Inputs]:
        """The engine and inputs in double precision if they can run in it, otherwise in their own."""
        return self._double or (self.engine, self.inputs)

    def _learn_loop(self) -> None:
        """Runs the loop in each mode. Sets the traits that it shows, and refuses members that affect each other."""
        norms = _without_norms(self.engine)
        self.engine.traits = Traits(written_buffers=norms)
        written: set[str] = set()
        for mode in reversed(self.modes):
            if (
                mode == "train"
                and self.large
                and self.backward
                and self.engine.has_backward("eval")
                and trains_as_in_eval(self.copy, self.inputs, self.outcome("loop", "eval"))
            ):
                self._outcomes[_key("loop", mode)] = self.outcome("loop", "eval")
                continue
            step(f"the loop in {mode} mode")
            outcome = self._train_forward(written) if mode == "train" and self.pair else None
            outcome = outcome or self._try_loop(mode, written)
            if outcome is not None:
                self._outcomes[_key("loop", mode)] = outcome
        self._check_numbers()
        self.engine.traits = replace(self.engine.traits, written_buffers=frozenset(written) & norms)
        self._check_shared_buffers(frozenset(written) & norms)
        for mode in reversed(MODES):
            if self.loop(mode) is not None and (mode == "eval" or self.trains_apart):
                step(f"members alone in {mode} mode")
                self._check_members(mode)
        train = self.loop("train")
        self.engine.traits = replace(self.engine.traits, random=train is not None and train.random)

    def _train_forward(self, written: set[str]) -> Outcome | None:
        """Runs the loop forward in training mode, if shared norms see members. Returns None if it must run backward too."""
        before = self.engine.traits
        if not before.coupled or self.engine.summed or before.copy_per_member:
            return None
        self.backward = False
        try:
            outcome = self._try_loop("train", written)
        finally:
            self.backward = True
        if outcome is not None and not outcome.drew:
            return outcome
        self.engine.traits, self._runs_alone = before, {}
        return None

    def learn_backward(self) -> None:
        """Runs the loop backward in training mode too, if it ran forward only."""
        train = self.loop("train")
        if train is None or not self.pair or train.gradients:
            return
        self.pair, written = False, set[str]()
        outcome = self._try_loop("train", written)
        if outcome is None:
            del self._outcomes[_key("loop", "train")]
        else:
            self._outcomes[_key("loop", "train")] = outcome
        self.engine.traits = replace(self.engine.traits, random=outcome is not None and outcome.random)

    def _check_shared_buffers(self, written: frozenset[str]) -> None:
        """Refuses members that set a shared buffer to different values only because their dropout differs."""
        engine, inputs = self._noisy
        if written <= engine.owned or self.loop("train") is None or drawn_names(engine.template):
            return
        noisy = replace(engine, template=copy_with(engine.template, {}), proven=dict(engine.proven), why={})
        noisy.traits = self.engine.traits
        run_executor(run_loop, noisy, inputs, "train", backward=False)

    def _check_numbers(self) -> None:
        """Refuses outputs that are NaN in eval mode: NaN equals NaN in every comparison, so nothing would be proved."""
        outcome = self.loop("eval")
        if outcome is None or not any(bool(value.isnan().any()) for value in outcome.values):
            return
        tensors = named_tensors(self.engine.template)
        names = [name for name, tensor in tensors if tensor.is_floating_point() and not tensor.isfinite().all()]
        if names:
            raise RunError(
                f"its outputs are NaN, and {listed(names)} is not finite: initialise it, or load weights without NaN"
            )
        raise RunError("its outputs on the example are NaN, so nothing could be compared: give an example with other outputs")

    def _try_loop(self, mode: str, written: set[str]) -> Outcome | None:
        """Runs the loop in a mode. Returns None if it does not run in training mode; in eval mode it must."""
        outcome = self._try_ways(mode, written)
        if outcome is None and mode == "eval" and not self._has_plain_backward("eval") and self._has_plain_backward("train"):
            self.engine.traits = replace(self.engine.traits, backward_in_eval=False)
            outcome = self._try_ways(mode, written)
        if outcome is None and mode == "eval":
            problem = self.failed[mode]
            what = "the model fails on the example in eval mode, even member by member (give an example that it can run)"
            with contextlib.suppress(Exception):
                run_without_gradients(run_loop, self.copy(), self.inputs)
                what = (
                    "the model runs in eval mode, but gradients cannot be computed, by which members are compared and trained"
                )
            raise RunError(f"{what}: {type(problem).__name__}: {problem}") from problem
        return outcome

    def _has_plain_backward(self, mode: str) -> bool:
        """Whether the first member runs in a mode as a plain network, with its backward if that is compared."""
        key = mode, self.backward and self.engine.has_backward(mode)
        if key not in self._runs_alone:
            try:
                run_plain(plain_member(self.copy(), 0), self.inputs, mode, backward=key[1])
                self._runs_alone[key] = True
            except Exception:  # forward may fail too, which the loop shows
                self._runs_alone[key] = False
        return self._runs_alone[key]

    def _try_ways(self, mode: str, written: set[str]) -> Outcome | None:
        """Runs the loop under the first of `WAYS` under which it runs. Otherwise returns None, and notes the first error.

        A network that does not even run alone is tried in one way.
        """
        before = self.engine.traits
        self.failed.pop(mode, None)
        for mutates, copies, no_replay in WAYS:
            self.engine.traits = replace(
                before,
                mutates=before.mutates or mutates,
                copy_per_member=before.copy_per_member or bool(copies),
                no_replay=before.no_replay or bool(no_replay),
            )
            try:
                outcome = self._watched_loop(mode, written)
                if outcome.drew and mode == "train" and self.random:
                    outcome = replace(outcome, random=True)
                elif outcome.drew:
                    outcome = with_randomness(outcome, self.copy(), self.inputs, mode)
            except DrawWritten:
                raise
            except Exception as error:
                if isinstance(error, SharedWrite) and (error.in_place or not drawn_names(self.engine.template)):
                    raise  # if members are draws, a training step runs one of them, which sets the buffer to one value
                if mode not in self.failed and not self._has_plain_backward(mode):
                    self.failed[mode] = error
                    break
                self.failed.setdefault(mode, error)
            else:
                self.failed.pop(mode, None)
                return outcome
        self.engine.traits = before
        return None

    def _watched_loop(self, mode: str, written: set[str]) -> Outcome:
        """Runs the loop once, and sets traits from it: buffers that forward writes, coupled norms, replay, written inputs."""
        twin, traits = self.copy(), self.engine.traits
        shared = {n: t for n, t in named_tensors(twin.template) if n not in twin.owned}
        replay = Replay(shared)
        replay.disabled = traits.no_replay
        coupled: set[str] = set()
        mutated: list[bool] = []
        again_in_backward: set[str] = set()

        def look(name: str, args: tuple[Any, ...]) -> None:  # until forward has ended: backward may run forward again
            if not mutated and twin.owned and not all(replay.is_shared(tensor) for tensor in tree.tensors(args)):
                coupled.add(name)

        def run(engine: Engine, call: Inputs) -> Any:
            outputs, changed = [], []
            for output, entries in members(engine, call, replay=replay):
                outputs.append(output)
                changed.append(entries)
                written.update(entries)
            mutated.append(not all(torch.equal(a, b) for a, b in zip(call.tensors(), self.inputs.tensors(), strict=True)))
            clashes = [name for name in replay.clashes if name in shared]
            if clashes and engine.members > 1:
                raise SharedWrite(clashes[0], in_place=True, draws=bool(drawn_names(twin.template)))
            write_back(engine, changed)
            return tree.stack(outputs)

        norms = [(n, norm) for n, norm in batch_norms(twin.template).items() if n in twin.shared_norms]
        handles = [norm.register_forward_pre_hook(lambda _, args, n=n: look(n, args)) for n, norm in norms]
        for name in {owning_module(name) for name in twin.owned}:
            part = twin.template.get_submodule(name)
            handles.append(
                part.register_forward_pre_hook(lambda _, __, n=name: again_in_backward.update([n] if mutated else []))
            )
        with only_read(twin.template, written):
            outcome = self._run(run, twin, self.inputs, mode)
        for handle in handles:
            handle.remove()
        if again_in_backward and twin.members > 1 and not traits.copy_per_member:  # all members' tensors are there by then
            raise RunError(f"backward runs {listed(again_in_backward)} again, whose tensors members own")
        if replay.disabled and twin.owned:
            coupled |= twin.shared_norms
        self.engine.traits = replace(
            traits,
            mutates=traits.mutates or mutated[0],
            no_replay=traits.no_replay or replay.disabled,
            data_dependent=traits.data_dependent or replay.data_dependent,
            ragged=traits.ragged or replay.ragged,
            coupled=traits.coupled | coupled,
        )
        again = self.engine.traits.mutates != traits.mutates or self.engine.traits.no_replay != traits.no_replay
        return self._run(run_loop, self.copy(), self.inputs, mode) if again else outcome

    def _check_members(self, mode: str) -> None:
        """Refuses members that differ from the same network alone, or that affect each other."""
        engine, loop = self.engine, self.outcome("loop", mode)
        self._mark_wrong_statistics(mode)
        if mode == "train" and engine.traits.coupled:
            return
        differs = None if loop.random else self._difference_from_plain(mode)
        if differs and engine.traits.copy_per_member and not engine.traits.no_replay:  # a checkpoint over part of the trunk
            engine.traits = replace(engine.traits, no_replay=True)
        if differs:  # more is known about the network now than in the first run
            loop = self._run(run_loop, self.copy(), self.inputs, mode)
            random = not repeats_afresh(self.engine, self.inputs, mode, run_loop, (0, 1))  # what is stored is no noise
            loop = self._outcomes[_key("loop", mode)] = replace(loop, random=random)
            differs = None if loop.random else self._difference_from_plain(mode)
        if differs:
            raise RunError(f"members are not independent ({mode}): {differs}. {self._stored(mode)}")
        if not self.backward:
            return
        if self.large and not loop.random:
            tried = quick_leaks(self.copy, self.inputs, mode, loop.values)
        else:
            tried = leaks(self.copy(), self.inputs, "loop", run_loop, [mode], self.large)
        for name, leak in tried:
            if leak:
                raise RunError(f"members are not independent ({name}): {leak}. {self._stored(mode)}")

    def _stored(self, mode: str) -> str:
        return what_is_stored(lambda: plain_member(self.copy(), 0), self.inputs, mode)

    def _mark_wrong_statistics(self, mode: str) -> None:
        """Marks shared norms as coupled whose statistics differ from those of a single network (a checkpointed trunk)."""
        engine = self.engine
        if mode != "train" or not engine.owned or not engine.shared_norms - engine.traits.coupled:
            return
        plain = self._plain(0, mode).buffers
        ours = self.outcome("loop", mode).buffers
        wrong = {n for n, b in ours.items() if n not in engine.owned and not close(b, plain[n])}
        norms = frozenset(name for name in engine.shared_norms if any(owning_module(n) == name for n in wrong))
        engine.traits = replace(engine.traits, coupled=engine.traits.coupled | norms)

    def _difference_from_plain(self, mode: str) -> str | None:
        """Compares each member in the loop with the same network alone: outputs, gradients of its own tensors, buffers.

        A whole network whose shallower copy was proved runs the last member alone: it meets what the others leave behind.
        """
        for m in range(self.engine.members)[0 if self.backward else -1 :]:

            def pair(precise: bool, m: int = m) -> tuple[Outcome, Outcome]:
                loop = self.outcome("loop", mode, precise=precise)
                own = _own_part(loop if self._has_backward(m, mode) else replace(loop, gradients={}), self.engine, m)
                return own, _own_part(self._plain(m, mode, precise), self.engine, None)

            differs = self.decided(pair)
            self._outcomes = {key: value for key, value in self._outcomes.items() if key[0] != m}
            if differs:
                return f"alone, member {m} gives another result: {differs}"
        return None

    def _plain(self, m: int, mode: str, precise: bool = False) -> Outcome:
        """Returns the outcome of member m as a plain network."""
        key = _key(m, mode, precise=precise)
        if key not in self._outcomes:
            weights = [w[m] for w in weights_of(self.outcome("loop", mode, precise=precise).values)]
            member = plain_member(self.precision[0] if precise else self.engine, m)
            self._outcomes[key] = run_plain(member, self.batch(precise), mode, weights, self._has_backward(m, mode))
        return self._outcomes[key]

    def _has_backward(self, m: int, mode: str) -> bool:
        """Whether member m runs backward as a plain network. Of a large network the first one does, in one mode.

        If backward runs forward again, all do: it may write into buffers.
        """
        traits = self.engine.traits
        if not self.backward or not self.engine.has_backward(mode):
            return False
        if not self.large or traits.copy_per_member:
            return True
        return m == 0 and mode == ("train" if self.trains_apart and not traits.coupled else "eval")

    def learned_rows(self) -> dict[str, list[Any]]:
        """Returns the batch axes of each layer with member tensors."""
        return self._learned(learn_rows)

    def _output_axes(self) -> dict[str, list[Any]]:
        """Returns the batch axes of the outputs; empty if they are unclear, or the model runs at one batch size only."""
        try:
            return {OUTPUT: self._learned(learn_output)}
        except Exception:
            return {}

    def _learned(self, learn: Callable[[Engine, Inputs], Any]) -> Any:
        """Returns what a function learns from shapes: of a large engine on the meta device, if it runs there."""
        if self.large:
            try:
                thin = replace(self.engine, template=shapes_only(self.engine.template).eval())
                call = shape_inputs(self.inputs)
                with Quick():
                    return learn(thin, call)
            except Exception:  # values decide what runs, or batch axes are unclear
                pass
        twin = self.copy()
        with restored(twin.template, "eval"):
            return learn(twin, fresh_inputs(self.inputs))


def _key(
    name: str | int, mode: str, without: frozenset[str] | None = frozenset(), precise: bool = False
) -> tuple[str | int, str, frozenset[str] | None, bool]:
    """Returns the key of an outcome: of an executor or a plain member. `without` None stands for a run without gradients."""
    return name, mode, without, precise


def trains_as_in_eval(copy: Callable[[], Engine], inputs: Inputs, evaluation: Outcome) -> bool:
    """Whether training runs the same program on the same values as eval mode, so that proofs in eval mode are enough.

    Values are compared too, since what members store on modules may show in later calls only. `copy` makes an engine for one
    run, and `evaluation` is the outcome of the loop in eval mode.
    """
    twin = copy()
    if evaluation.drew or any(norm.running_mean is not None for norm in batch_norms(twin.template).values()):
        return False
    try:
        tracer = Tracer(plain_member(twin, 0))
        if tracer.program(inputs, "train") != tracer.program(inputs, "eval"):
            return False
        with restored(twin.template, "train"), torch.enable_grad():
            values = tree.tensors(run_loop(twin, fresh_inputs(inputs)))
    except Exception:
        return False
    return all(torch.equal(a, b) for a, b in zip(values, evaluation.values, strict=True))


def plain_member(engine: Engine, m: int) -> nn.Module:
    """Returns a plain module with the tensors of member m; parameters and draws share their memory with the engine's."""
    tensors, unwritten = {}, unwritten_names(engine.template)
    for name, tensor in named_tensors(engine.template):
        value = tensor.detach()[m] if name in engine.owned else tensor.detach()
        shares = isinstance(tensor, nn.Parameter) or name in unwritten
        tensors[name] = as_same_kind(tensor, value if shares else value.clone())
    return copy_with(engine.template, tensors)


def _own_part(outcome: Outcome, engine: Engine, m: int | None) -> Outcome:
    """Returns outputs, gradients and buffers of member m's own tensors; with None, of a plain member."""

    def of(tensors: dict[str, Any]) -> dict[str, Any]:
        return {n: t if m is None else t[m] for n, t in tensors.items() if n in engine.owned}

    values = outcome.values if m is None else [value[m] for value in outcome.values]
    return Outcome(values, of(outcome.gradients), of(outcome.buffers))


def _without_norms(engine: Engine) -> frozenset[str]:
    """Names all buffers but those of BatchNorm layers, and those that no forward writes into."""
    norms = {join_name(name, key) for name, norm in batch_norms(engine.template).items() for key in norm._buffers}
    return frozenset(engine.buffers()) - norms - unwritten_names(engine.template)
