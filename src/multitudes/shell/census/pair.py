"""One pair of the census: a network is built and converted by one method, and the ensemble is compared with plain networks."""

from __future__ import annotations

import functools
import random
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from multitudes.conversion.check import check
from multitudes.conversion.convert import ensemble as convert
from multitudes.conversion.resize.advice import STREAM
from multitudes.engine.inputs import Inputs
from multitudes.engine.proof.slots import DEPENDENT
from multitudes.errors import ConversionError, InputError, MultitudesError, lacks_memory
from multitudes.files.ensemble_file import load, save
from multitudes.method import Method
from multitudes.report.census import Result
from multitudes.shell.census import comparisons, untouched
from multitudes.shell.census.comparisons import Subject
from multitudes.shell.census.networks import Network, NotBuilt, example, made

MEMBERS = 2
SETTINGS: dict[str, dict[str, Any]] = {"Packed": {"members": 4, "alpha": 2}, "SWAG": {"members": MEMBERS, "columns": 2}}
"""Packed at about the size of one network; SWAG with few deviations, each of which is as large as the network."""

NODES = "nodes of one graph depend on each other, so no other example can stand in another slot"
GRAPHS = ("gcn", "gat", "graphsage", "gin")
IMPOSSIBLE: dict[tuple[str, str], str] = {("MIMO", name): NODES for kind in GRAPHS for name in (kind, f"{kind}_by_hand")}
"""Pairs that no implementation could convert, by method and family, with the reason."""

BY_DEFINITION = (STREAM, DEPENDENT)
"""Refusals of other such pairs: Packed on networks whose output is the stream that all blocks add to, since outputs keep their
width; MIMO on networks whose outputs depend on the order of rows (gcvit of timm)."""

CHECKED = 4
"""`mt.check` follows one conversion in so many: it tries again what the conversion has just proved."""
WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": nullcontext, " under torch.no_grad()": torch.no_grad, " under torch.inference_mode()": torch.inference_mode
}  # fmt: skip
"""Ways to load a file. A pair has its turn at one; every network and every method meet all of them."""

Tell = Callable[[str], None]
"""Receives the step that begins."""


class Wrong(Exception):
    """A comparison that is broken."""


def method_for(name: str, library: str = "") -> Method:
    """Makes a method with the members of the census. On the nodes of one graph, which belong together, members see all rows."""
    kind = next(kind for kind in Method.all() if kind.__name__ == name)
    if name == "Masksembles" and library == "geometric":
        return kind(members=MEMBERS, feed="all")  # type: ignore[call-arg]
    if name in SETTINGS:
        return kind(**SETTINGS[name])
    try:
        return kind(members=MEMBERS)
    except InputError:
        return kind()


def turn(network: Network, method: str, count: int) -> int:
    """Returns a number below `count`: the same whenever a pair is tried; the methods of a network take turns."""
    order = sorted(kind.__name__ for kind in Method.all())
    return (zlib.crc32(network.name.encode()) + order.index(method)) % count


def clock_of(device: str) -> Callable[[], float]:
    """Returns the clock of results: on a CPU that of the process, which other programs do not slow down as much."""
    return time.process_time if device == "cpu" else time.perf_counter


def try_pair(network: Network, method: str, tell: Tell = lambda step: None, device: str = "cpu") -> Result:
    """Converts a network by a method on a device, and compares."""
    named: dict[str, Any] = {"library": network.library, "family": network.family, "network": network.name, "method": method}
    if reason := IMPOSSIBLE.get((method, network.family)):
        return Result(**named, outcome="impossible", reason=reason)
    clock = clock_of(device)
    begun = clock()
    attempt = Attempt(network, method, tell, device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome, reason = attempt.outcome()
    seconds = clock() - begun
    return Result(
        **named, outcome=outcome, reason=reason, conversion=attempt.conversion, seconds=round(seconds, 3),
        notes=tuple(attempt.notes),
    )  # fmt: skip


class Attempt:
    """The conversion of one network by one method, and what is known of it so far."""

    def __init__(self, network: Network, method: str, tell: Tell, device: str) -> None:
        self.network, self.method, self.tell, self.device = network, method, tell, device
        self.conversion: float | None = None
        self.notes: list[str] = []
        self.broken: list[str] = []

    def outcome(self) -> tuple[str, str]:
        """Returns the outcome and its reason."""
        try:
            self._compare()
        except NotBuilt as error:
            return "not built", str(error)
        except Wrong as error:
            return "wrong", str(error)
        except Exception as error:  # a library's network or a defect here may raise anything
            if lacks_memory(error):
                return "memory", "more memory was asked for than is allowed"
            if isinstance(error, (ConversionError, InputError)):
                return "impossible" if any(text in str(error) for text in BY_DEFINITION) else "refused", str(error)
            last = traceback.extract_tb(error.__traceback__)[-1]
            return "error", f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
        except BaseException as error:  # safetensors panics where Python has no memory left
            if type(error).__name__ != "PanicException":
                raise
            return "memory", "more memory was asked for than is allowed"
        return ("wrong", "; ".join(self.broken)) if self.broken else ("ok", "")

    def _compare(self) -> None:
        self.tell("building")
        model = made(self.network, seed=0)
        inputs = example(self.network, model)
        if self.device != "cpu":  # a network that has run may hold tensors of the CPU
            model = made(self.network, seed=0).to(self.device)
            inputs = inputs.refill([tensor.to(self.device) for tensor in inputs.tensors()])
        self.tell("converting")
        subject = Subject(self._converted(model, inputs), model, inputs, self.notes)
        if turn(self.network, self.method, CHECKED) == 0:
            self._law("mt.check", lambda: _checked(subject))
        self._law("values", lambda: comparisons.values(subject))
        self._law("start", lambda: comparisons.start(subject))
        self._law("size", lambda: comparisons.size(subject, _outputs(subject)))
        self._law("files", lambda: self._files(subject))
        eval_first = comparisons.drops(subject)  # in training mode dropout is turned off, and with it what they draw
        for training in (False, True) if eval_first else (True, False):
            name = "gradients in training" if training else "gradients"
            self._law(name, functools.partial(comparisons.gradients, subject, training=training))
        self._law("training", lambda: comparisons.training(subject, len(inputs.tensors()[0])))

    def _converted(self, model: nn.Module, inputs: Inputs) -> Any:
        """Converts the model. Whatever comes of it, model, example and random states must be as before."""
        random.seed(4)
        np.random.seed(4)
        before = untouched.state(model, inputs)
        clock = clock_of(self.device)
        begun = clock()
        try:
            return convert(
                model, method_for(self.method, self.network.library), inputs, seed=0, batch_axis=self.network.batch_axis
            )
        finally:
            self.conversion = round(clock() - begun, 3)
            changed = untouched.changes(before, untouched.state(model, inputs))
            if changed:
                raise Wrong(f"untouched: the conversion changed {', '.join(changed[:4])}")

    def _law(self, name: str, compare: Callable[[], str | None]) -> None:
        """Makes a comparison; an error in it is a broken comparison too."""
        self.tell(name)
        try:
            differs = compare()
        except Exception as error:
            if lacks_memory(error):
                raise
            differs = f"{type(error).__name__}: {error}"
        if differs:
            self.broken.append(f"{name}: {differs}")

    def _files(self, subject: Subject) -> str | None:
        """Saves the ensemble, and loads it in one of three ways into a model with other weights, which must stay as it is."""
        words, way = tuple(WAYS.items())[turn(self.network, self.method, len(WAYS))]
        other = made(self.network, seed=5).to(self.device)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ensemble.multitude"
            save(subject.ensemble, file)
            try:
                differs = self._loaded(subject, file, other, way)
            except MultitudesError as error:
                differs = f"{type(error).__name__}: {error}".replace(str(file), "the file")
        return f"loaded{words}: {differs}" if differs else None

    def _loaded(
        self, subject: Subject, file: Path, other: nn.Module, way: Callable[[], AbstractContextManager[Any]]
    ) -> str | None:
        """Loads a file into a model with other weights, and compares outputs."""
        before = untouched.state(other, subject.inputs)
        with way():
            ensemble = load(file, other).eval()
        changed = untouched.changes(before, untouched.state(other, subject.inputs))  # a call may draw random numbers
        with way():
            outputs = comparisons.run(ensemble, subject.inputs)
        if changed:
            return f"changed {', '.join(changed[:4])}"
        largest = max((comparisons.gap(a, b) for a, b in zip(outputs, subject.outputs, strict=True)), default=0.0)
        return f"outputs differ by {largest:.1e} of the largest" if largest > comparisons.DOUBLE else None


def _checked(subject: Subject) -> str | None:
    """Runs the library's own check."""
    try:
        check(subject.ensemble, subject.inputs)
    except MultitudesError as error:
        return str(error)
    return None


def _outputs(subject: Subject) -> int:
    """Returns the number of classes, channels or features that the network returns."""
    first = next(output for output in subject.outputs if output.is_floating_point())
    return int(first.shape[2]) if first.ndim > 2 else 1
