"""Runs the census: each pair of network and method in a process of its own, with limits on time and memory.

Processes are forked from one that has imported torch and the libraries and has built nothing, so that a pair costs no imports.
Results are appended to a file as they come; a census that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from multitudes.errors import FileError, InputError
from multitudes.method import Method
from multitudes.report.census import Result, read_results
from multitudes.shell.census.networks import Network, module_of
from multitudes.shell.census.warm import LIBRARIES_ASKED

SECONDS, GIGABYTES = 60.0, 6.0
"""Limits of a pair: processor time in all, and memory beyond that of a process that has imported the libraries."""
BY_CLOCK = 2.5
"""How many times as long a pair may take by the clock, if the machine has other work, or the pair waits. On a GPU once."""
WARM = ("multitudes.shell.census.pair", "torch._dynamo", "safetensors.torch", "multitudes.shell.census.warm")
"""Modules that the process from which pairs are forked imports, beside the libraries' (optimizers would import dynamo late)."""


@dataclass(frozen=True)
class Limits:
    """What one pair may use."""

    seconds: float = SECONDS
    gigabytes: float = GIGABYTES
    device: str = "cpu"
    """Where it runs. On a GPU there is no limit on memory: the driver reserves more addresses than any limit."""


@dataclass(frozen=True)
class Pair:
    """A network and a method, by name."""

    network: Network
    method: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Names the pair as `Result.key` does."""
        return self.network.library, self.network.name, self.method

    def result(self, outcome: str, reason: str, seconds: float = 0.0) -> Result:
        """Makes a result that the pair's process could not write."""
        network = self.network
        return Result(
            library=network.library, family=network.family, network=network.name, method=self.method, outcome=outcome,
            reason=reason, seconds=round(seconds, 3),
        )  # fmt: skip


def pairs(networks: Iterable[Network], methods: Sequence[str] = ()) -> list[Pair]:
    """Lists every network with each of its methods; `methods` limits them, by name in any case."""
    known = {kind.__name__.lower(): kind.__name__ for kind in Method.all()}
    if unknown := [name for name in methods if name.lower() not in known]:
        raise InputError(f"there is no method {unknown[0]!r}: choose from {', '.join(known)}")
    chosen = [known[name.lower()] for name in methods] or list(known.values())
    return [Pair(network, name) for network in networks for name in chosen if not network.methods or name in network.methods]


def run_census(
    every: Sequence[Pair],
    file: Path,
    *,
    workers: int = 1,
    limits: Limits | None = None,
    on_end: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Runs the pairs that the file has no result for, appends theirs to it, and returns the results of all pairs.

    on_end    called with every result that is new
    """
    known = read_results(file)
    waiting = [pair for pair in every if pair.key not in known]
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lines = file.open("a", encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot write {file}: {error.strerror}") from error
    with lines:
        for result in _finished(waiting, workers, limits or Limits()):
            known[result.key] = result
            lines.write(result.line() + "\n")
            lines.flush()
            on_end(result)
    return [known[pair.key] for pair in every]


def _finished(waiting: Sequence[Pair], workers: int, limits: Limits) -> Iterable[Result]:
    """Runs pairs in processes and yields results as they come. If a network is not built, its other pairs are not tried."""
    context = _context(sorted({pair.network.library for pair in waiting}))
    queue, running = deque(waiting), list[_Running]()
    not_built: dict[tuple[str, str], str] = {}
    try:
        while queue or running:
            while queue and len(running) < workers:
                pair = queue.popleft()
                if reason := not_built.get(pair.key[:2]):
                    yield pair.result("not built", reason)
                else:
                    running.append(_Running(pair, context, limits))
            connection.wait(
                [each.messages for each in running], timeout=max(0.01, min(e.left() for e in running)) if running else 0
            )
            for each in list(running):
                result = each.poll()
                if result is None:
                    continue
                running.remove(each)
                if result.outcome == "not built":
                    not_built[result.key[:2]] = result.reason
                yield result
    finally:
        for each in running:
            each.end()


def _context(libraries: Sequence[str]) -> Any:
    """Returns the context of a server that has imported what pairs need, and forks itself for each."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported: a fork of a process with threads would hang
    context = get_context("forkserver")
    os.environ[LIBRARIES_ASKED] = " ".join(libraries)
    context.set_forkserver_preload([*WARM, *map(module_of, libraries)])
    return context


class _Running:
    """A pair in its process."""

    def __init__(self, pair: Pair, context: Any, limits: Limits) -> None:
        self.pair, self.limits = pair, limits
        self.step = "starting"
        self.messages, theirs = context.Pipe(duplex=False)
        where = pair.network.library, pair.network.name
        self.process = context.Process(target=_in_process, args=(where, pair.method, limits, theirs), daemon=True)
        self.process.start()  # the first one waits until the libraries are imported
        self.begun = time.perf_counter()
        theirs.close()

    def left(self) -> float:
        """Returns the seconds that are left: of the processor, which other programs do not shorten, or by the clock at most."""
        by_clock = self.begun + self.limits.seconds - time.perf_counter()
        if self.limits.device != "cpu":
            return by_clock
        spent = processor_seconds(self.process.pid or 0)
        return by_clock if spent is None else min(self.limits.seconds - spent, by_clock + (BY_CLOCK - 1) * self.limits.seconds)

    def poll(self) -> Result | None:
        """Reads what the process has sent. Returns the result at its end, or at the end of its time."""
        spent = time.perf_counter() - self.begun
        try:
            while self.messages.poll():
                message = self.messages.recv()
                if isinstance(message, Result):
                    self.end()
                    return message
                self.step = message
        except (EOFError, OSError):
            self.process.join()
            return self._died(spent)
        if self.left() > 0:
            return None
        self.end()
        return self.pair.result("timeout", f"{self.limits.seconds:g} s were over at the step: {self.step}", spent)

    def _died(self, spent: float) -> Result:
        """Makes the result of a process that ended without one."""
        code = self.process.exitcode or 0
        if code == -signal.SIGKILL:
            return self.pair.result("memory", f"the system ended the process at the step: {self.step}", spent)
        return self.pair.result("error", f"the process died at the step {self.step} (exit code {code})", spent)

    def end(self) -> None:
        """Ends the process, and those that it started."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.messages.close()


def processor_seconds(pid: int) -> float | None:
    """Returns the processor time that a process has taken; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # in user mode, and in the system's


def _in_process(where: tuple[str, str], method: str, limits: Limits, messages: Any) -> None:
    """Tries one pair in a process of its own, and sends its steps and its result."""
    from multitudes.shell.census.networks import find
    from multitudes.shell.census.pair import try_pair

    before = _peak()
    if limits.device == "cpu":
        _limit_memory(limits.gigabytes)
    result = try_pair(find(*where), method, messages.send, limits.device)
    messages.send(replace(result, memory=max(0, _peak() - before)))


def _peak() -> int:
    """Returns the largest memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _limit_memory(gigabytes: float) -> None:
    """Limits the address space to what is used now and `gigabytes` more. Other systems than Linux have no such limit."""
    sizes = Path("/proc/self/statm")
    if sizes.exists():
        now = int(sizes.read_text().split()[0]) * resource.getpagesize()
        limit = now + int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
