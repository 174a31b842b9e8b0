"""Times training steps and predictions: this library, torch-uncertainty, M networks in turn, one network. Results: JSON rows.

python -m benchmarks --device cuda --networks resnet18 --methods single packed deep --batches 128 1024 --precisions bf16

All contenders of one cell (network, batch, precision, compiled or not) run in one process, in turn, and medians are taken. With
torch-uncertainty 0.13 on the path its networks run beside ours, and without it they are left out.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import itertools
import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
from benchmarks.turns import in_turns, turn
from multitudes import models
from multitudes.shell.census.timm_networks import declare_operators

MEMBERS = 4
PRECISIONS = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}

NETWORKS: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "resnet18": (lambda **k: models.resnet18(classes=100, **k), (3, 32, 32)),
    "resnet50": (lambda **k: models.resnet50(classes=100, **k), (3, 32, 32)),
    "wideresnet28_10": (lambda **k: models.wideresnet28_10(classes=100, **k), (3, 32, 32)),
    "vit": (lambda **k: models.ViT(classes=100, size=384, depth=6, heads=6, **k), (3, 32, 32)),
    "mlp": (lambda **k: models.MLP(784, (1024, 1024, 1024), 10, **k), (784,)),
}
"""Networks: how each is made, and the shape of one input."""

METHODS: dict[str, mt.Method] = {
    "packed": mt.Packed(members=MEMBERS, alpha=2, gamma=1),
    "packed_gamma2": mt.Packed(members=MEMBERS, alpha=2, gamma=2),
    "deep": mt.Deep(members=MEMBERS),
    "masksembles": mt.Masksembles(members=MEMBERS, scale=2.0, feed="part"),
    "mimo": mt.MIMO(members=3),
    "batchensemble": mt.BatchEnsemble(members=MEMBERS, feed="part"),
    "emp": mt.EMP(members=20),
    "mcdropout": mt.MCDropout(members=MEMBERS, p=0.1),
    "multihead": mt.MultiHead(members=MEMBERS),
}
COMPACT, FROZEN, IN_TURN = "_compact", "_frozen", "_in_turn"
"""What follows the name of a method whose ensemble is compacted, frozen, or taken apart into networks that run in turn."""


@dataclass(frozen=True)
class Cell:
    """What is measured, and how long."""

    network: str
    batch: int
    mode: str
    """"infer" or "train"."""
    device: str
    precision: str
    compiled: str = "no"
    seconds: float = 0.3
    """For each contender."""
    tune: bool = False
    profiled: bool = False
    members: int = 0
    """Members of every ensemble; 0 for those of `METHODS`."""
    width: float = 1.0
    """A factor on all widths of the network."""
    limit: float = 0.0
    """Seconds that the calls of one contender may take; 0 for no limit."""

    @property
    def make(self) -> Callable[..., nn.Module]:
        """The network's maker."""
        return made(self.network, self.width)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return NETWORKS[self.network][1]


def made(network: str, width: float) -> Callable[..., nn.Module]:
    """Returns the maker of a network whose widths are multiplied by `width`, and by that of its call."""
    make = NETWORKS[network][0]
    return make if width == 1 else lambda **given: make(**{**given, "width": width * given.get("width", 1.0)})


@dataclass
class Contender:
    """A network or an ensemble, with what one call and one step are."""

    name: str
    module: nn.Module
    predict: Callable[[Tensor], Tensor]
    """Returns the logits of all members, one batch after the other."""
    outputs: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None
    """Returns logits and targets of a training step; None if it cannot be trained."""


def compiled_as(module: nn.Module, how: str) -> Any:
    """Returns the module itself ("no"), compiled ("yes"), or compiled with CUDA graphs ("graphs")."""
    if how == "no":
        return module
    return torch.compile(module, dynamic=False, mode="reduce-overhead" if how == "graphs" else None)


def _whole(y: Tensor, count: int) -> Tensor:
    return y.repeat(count)


@functools.cache
def converted(network: str, method: str, members: int = 0, width: float = 1.0) -> mt.Ensemble:
    """Converts a network of the grid on the CPU, once for all cells; 0 members are those of `METHODS`."""
    how = replace(METHODS[method], members=members) if members else METHODS[method]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mt.ensemble(made(network, width), how, torch.randn(2, *NETWORKS[network][1]), seed=0)


def ours(name: str, cell: Cell, x: Tensor) -> Contender:
    """Makes a contender of this library: a method's name, and perhaps `COMPACT`, then `FROZEN` or `IN_TURN`."""
    compact, frozen, in_turn, compiled = COMPACT in name, FROZEN in name, IN_TURN in name, cell.compiled
    method = name.replace(COMPACT, "").replace(FROZEN, "").replace(IN_TURN, "")
    ens = copy.deepcopy(converted(cell.network, method, cell.members, cell.width))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if in_turn:
            return _in_turn(name, ens, x, compiled)
        ens = _moved(ens, x)
        ens = _moved(ens.eval().compact(), x) if compact else ens
        ens = _moved(ens.eval().freeze(), x) if frozen else ens
        if cell.tune:
            with precision(cell.device, cell.precision):
                ens.tune(x)
    trains = not (compact or frozen)
    prepared = ens.batch(x, torch.zeros(len(x), dtype=torch.long, device=x.device)) if trains else None
    run: Any = compiled_as(ens, compiled)

    def predict(x: Tensor) -> Tensor:
        return run(x).flatten(0, 1)

    def outputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        assert prepared is not None
        if "rows" in prepared.kwargs:
            return run(x, rows=prepared.kwargs["rows"].to(x.device)), y
        if prepared.per_member:
            return run(*prepared.inputs, **prepared.kwargs).flatten(0, 1), prepared.target.flatten()
        if "draws" in prepared.kwargs:
            return run(*prepared.inputs, **prepared.kwargs).flatten(0, 1), y
        return run(x).flatten(0, 1), _whole(y, ens.members)

    return Contender(name, ens, predict, outputs if trains else None)


def _moved(module: Any, x: Tensor) -> Any:
    """Moves a module to the device of x; on a GPU images have channels last."""
    module = module.to(x.device)
    return module.to(memory_format=torch.channels_last) if x.ndim == 4 and x.is_cuda else module


def _in_turn(name: str, ens: mt.Ensemble, x: Tensor, compiled: str) -> Contender:
    """Makes the plain members of an ensemble, which run in turn."""
    nets = nn.ModuleList(_moved(ens.member(m), x) for m in range(ens.members))
    runs: list[Any] = [compiled_as(net, compiled) for net in nets]
    return Contender(name, nets, lambda x: torch.cat([run(x) for run in runs]), None)


def package(make: Callable[..., nn.Module], x: Tensor, compiled: str) -> Contender | None:
    """Makes a network with layers of the `masksembles` package before its convolutions; None if it is not installed."""
    try:
        from masksembles.torch import Masksembles2D
    except Exception:
        return None
    net = make()
    for name, part in list(net.named_modules()):
        if isinstance(part, nn.Conv2d) and part.in_channels > 3:
            masked = nn.Sequential(Masksembles2D(part.in_channels, MEMBERS, 2.0), part)
            net.get_submodule(name.rpartition(".")[0]).__setattr__(name.rpartition(".")[2], masked)
    net = _moved(net, x)
    run: Any = compiled_as(net, compiled)
    return Contender("package", net, lambda x: run(x.repeat(MEMBERS, 1, 1, 1)), lambda x, y: (run(x), y))


def single(make: Callable[..., nn.Module], device: str, compiled: str, images: bool) -> Contender:
    """Makes one network."""
    net = make().to(device)
    net = net.to(memory_format=torch.channels_last) if images and device == "cuda" else net
    run: Any = compiled_as(net, compiled)
    return Contender("single", net, run, lambda x, y: (run(x), y))


def looped(make: Callable[..., nn.Module], device: str, compiled: str, images: bool, members: int) -> Contender:
    """Makes M networks that run in turn."""
    nets = [single(make, device, compiled, images) for _ in range(members)]
    module = nn.ModuleList(net.module for net in nets)

    def predict(x: Tensor) -> Tensor:
        return torch.cat([net.predict(x) for net in nets])

    return Contender("looped", module, predict, lambda x, y: (predict(x), _whole(y, members)))


def theirs(name: str, network: str, device: str, compiled: str) -> Contender | None:
    """Makes a contender of torch-uncertainty; None if it is not installed or has no such network."""
    try:
        declare_operators()
        from torch_uncertainty.models import classification as peer
    except Exception:
        return None
    arch = {"resnet18": 18, "resnet50": 50}.get(network)
    wide = network == "wideresnet28_10"
    common: dict[str, Any] = {"in_channels": 3, "num_classes": 100, "num_estimators": MEMBERS, "style": "cifar"}
    common |= {"conv_bias": False, "dropout_rate": 0.0} | ({"arch": arch} if arch else {})
    makers: dict[str, Callable[[], nn.Module]] = {}
    if arch:
        makers = {
            "tu_packed": lambda: peer.packed_resnet(alpha=2, gamma=1, **common),
            "tu_packed_gamma2": lambda: peer.packed_resnet(alpha=2, gamma=2, **common),
            "tu_masksembles": lambda: peer.masked_resnet(scale=2.0, **common),
            "tu_batchensemble": lambda: peer.batched_resnet(**common),
        }
    elif wide:
        makers = {
            "tu_packed": lambda: peer.packed_wideresnet28x10(alpha=2, gamma=1, **common),
            "tu_masksembles": lambda: peer.masked_wideresnet28x10(scale=2.0, **common),
            "tu_batchensemble": lambda: peer.batched_wideresnet28x10(**common),
        }
    if name not in makers:
        return None
    net = makers[name]().to(device)
    net = net.to(memory_format=torch.channels_last) if device == "cuda" else net
    run: Any = compiled_as(net, compiled)

    def outputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = run(x)
        return logits, _whole(y, len(logits) // len(y))

    return Contender(name, net, run, outputs)


@contextlib.contextmanager
def precision(device: str, name: str) -> Iterator[None]:
    dtype = PRECISIONS[name]
    with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
        yield


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def call_of(contender: Contender, mode: str, x: Tensor, y: Tensor, device: str, name: str) -> Callable[[], None]:
    """Returns one prediction or one training step as a function without arguments."""

    def infer() -> None:
        with torch.no_grad(), precision(device, name):
            contender.predict(x)

    optimizer = torch.optim.SGD(contender.module.parameters(), lr=1e-3, momentum=0.9) if mode == "train" else None
    scaler = torch.amp.GradScaler(device, enabled=name == "fp16" and device == "cuda")

    def step() -> None:
        assert optimizer is not None
        assert contender.outputs is not None
        optimizer.zero_grad(set_to_none=True)
        with precision(device, name):
            logits, target = contender.outputs(x, y)
            loss = F.cross_entropy(logits.float(), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return infer if mode == "infer" else step


def clock(device: str) -> Callable[[], float]:
    """Returns what measures seconds: of this process where it is alone on one thread, so that other processes do not count."""
    return time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def measure(calls: dict[str, Callable[[], None]], device: str, seconds: float, fewest: int = 5) -> dict[str, list[float]]:
    """Times calls in turn. Returns the milliseconds of each in every round.

    seconds     for each contender; a round in which every contender is called runs to its end
    fewest      rounds
    """
    now, counts = clock(device), {}  # type: Callable[[], float], dict[str, int]
    times: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        for _ in range(4):
            start = now()
            call()
            wait(device)
            counts[name] = max(1, min(20, round(0.05 / max(now() - start, 1e-6))))
            if now() - start > 0.2:
                break
    until = time.perf_counter() + seconds * len(calls)
    rounds = 0
    while rounds < fewest or time.perf_counter() < until:
        for name, call in calls.items():
            start = now()
            for _ in range(counts[name]):
                call()
            wait(device)
            times[name].append((now() - start) / counts[name] * 1000)
        rounds += 1
    return times


def profile(calls: dict[str, Callable[[], None]], turns: int = 3) -> None:
    """Prints what the GPU does in a call of each contender: milliseconds of kernels, launches, the longest kernels."""
    for name, call in calls.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(turns):
                call()
            torch.cuda.synchronize()
        kernels = [event for event in found.key_averages() if event.self_device_time_total]
        spent, count = sum(e.self_device_time_total for e in kernels) / 1e3, sum(e.count for e in kernels)
        print(f"    {name}: {spent / turns:.2f} ms of kernels, {count // turns} launches", flush=True)
        for event in sorted(kernels, key=lambda e: -e.self_device_time_total)[:10]:
            print(f"      {event.self_device_time_total / 1e3 / turns:8.3f} ms {event.count // turns:5d}  {event.key[:100]}")


def contender(name: str, cell: Cell, x: Tensor) -> Contender | None:
    """Makes a contender by its name; None if it does not exist for this network, or is not installed."""
    images = len(cell.shape) == 3
    if name == "single":
        return single(cell.make, cell.device, cell.compiled, images)
    if name == "looped":
        return looped(cell.make, cell.device, cell.compiled, images, cell.members or MEMBERS)
    if name == "package":
        return package(cell.make, x, cell.compiled) if images else None
    if name.startswith("tu_"):
        return theirs(name, cell.network, cell.device, cell.compiled)
    return ours(name, cell, x)


def example(cell: Cell) -> tuple[Tensor, Tensor]:
    """Draws the inputs and targets of a cell."""
    torch.manual_seed(0)
    x = torch.randn(cell.batch, *cell.shape, device=cell.device)
    x = x.to(memory_format=torch.channels_last) if len(cell.shape) == 3 and cell.device == "cuda" else x
    return x, torch.randint(10, (cell.batch,), device=cell.device)


def measure_cell(cell: Cell, names: list[str]) -> list[dict[str, Any]]:
    """Measures all contenders of one cell. Returns one row for each."""
    x, y = example(cell)
    device, calls, rows = cell.device, {}, []  # type: str, dict[str, Callable[[], None]], list[dict[str, Any]]
    torch._dynamo.reset() if cell.compiled != "no" else None
    later = in_turns() and cell.compiled != "graphs"  # what is recorded cannot choose
    _choose_convolutions(not later)
    for name in names:
        try:
            one = contender(name, cell, x)
            if one is None or (cell.mode == "train" and one.outputs is None):
                continue
            one.module.train(cell.mode == "train") if cell.mode == "train" else one.module.eval()
            call = call_of(one, cell.mode, x, y, device, cell.precision)
            first = _seconds_of(call, device)
            if cell.compiled == "no":  # a call that is compiled would be compiled again without gradients
                check_work(one, cell, x, y)
            if cell.limit and 4 * first > cell.limit and 4 * (again := _seconds_of(call, device)) > cell.limit:
                rows.append({"contender": name, "skipped": f"a call takes {again:.1f} s"})
                print(f"  {name}: skipped, {rows[-1]['skipped']}", flush=True)
                continue
        except Exception as error:
            rows.append({"contender": name, "error": f"{type(error).__name__}: {str(error)[:300]}"})
            print(f"  {name}: {rows[-1]['error']}", flush=True)
            continue
        calls[name] = call
        executor = one.module.executor if isinstance(one.module, mt.Ensemble) else ""
        seconds = None if in_turns() else round(first, 2)
        if in_turns():
            print(f"  {name} is ready: {cell.network} {cell.mode} {cell.batch} {cell.compiled}", flush=True)
        rows.append({"contender": name, "first_call_s": seconds, "executor": executor})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with turn():
            _choose_convolutions(True)
            peaks = {name: _peak(call, device) for name, call in calls.items()}
            found = measure(calls, device, cell.seconds, 3 if cell.limit else 5)
            if cell.profiled and device == "cuda":
                profile(calls)
    rows = [_with_times({**row, "peak_mib": peaks.get(row["contender"])}, found, cell.batch) for row in rows]
    del calls
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    about = {key: getattr(cell, key) for key in ("network", "batch", "mode", "device", "precision", "compiled")}
    return [{**about, **row} for row in rows]


def _choose_convolutions(by_time: bool) -> None:
    """Lets cuDNN choose its kernels by time, or not. It keeps its choices for each value of `deterministic` apart."""
    torch.backends.cudnn.benchmark = by_time
    torch.backends.cudnn.deterministic = not by_time


def check_work(contender: Contender, cell: Cell, x: Tensor, y: Tensor) -> None:
    """Refuses a contender that does not compute what it is timed for: a prediction of every row, or a finite loss of some.

    Some layers divide a batch that is smaller than the number of members into empty ones, and are done in no time.
    """
    with torch.no_grad(), precision(cell.device, cell.precision):
        if cell.mode == "infer":
            logits = contender.predict(x)
            if not len(logits) or len(logits) % len(x) or not logits.isfinite().all():
                raise ValueError(f"{len(logits)} predictions of {len(x)} rows, or not finite: this is no prediction")
            return
        assert contender.outputs is not None
        logits, target = contender.outputs(x, y)
        if not len(logits) or not F.cross_entropy(logits.float(), target).isfinite():
            raise ValueError(f"{len(logits)} outputs of {len(x)} rows, or a loss that is not finite: this is no training step")


def _seconds_of(call: Callable[[], None], device: str) -> float:
    """Returns the seconds of one call."""
    now = clock(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = now()
        call()
        wait(device)
    return now() - start


def _with_times(row: dict[str, Any], found: dict[str, list[float]], batch: int) -> dict[str, Any]:
    """Adds the median of the rounds to a row, and the median of its ratios to the single network in the same round."""
    times, alone = found.get(row["contender"]), found.get("single")
    if not times:
        return row
    ms = statistics.median(times)
    ratio = alone and round(statistics.median(a / b for a, b in zip(times, alone, strict=True)), 3)
    return {**row, "ms": round(ms, 4), "per_s": round(batch / ms * 1000), "of_single": ratio}


def _peak(call: Callable[[], None], device: str) -> float | None:
    if device != "cuda":
        return None
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


def machine_name(device: str) -> str:
    """Returns the machine's name as rows have it."""
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU, threads: {torch.get_num_threads()}"


def prepare(threads: int) -> None:
    """Sets what all measurements of a process share."""
    torch.backends.cudnn.benchmark = True
    torch._dynamo.config.recompile_limit = 64  # all ensembles of a cell have one forward
    if threads:
        torch.set_num_threads(threads)


def keep(out: Path, found: list[dict[str, Any]], machine: str, **more: Any) -> None:
    """Writes rows to a file of results, in place of older ones of the same cells."""
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"] if out.exists() else []
    for row in found:
        row |= {"machine": machine, "torch": torch.__version__, **more}
    rows = [row for row in rows if not any(_same(row, other) for other in found)] + found
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"rows": rows}, indent=1))


def told(found: list[dict[str, Any]]) -> str:
    """Returns the rows of one cell as a line."""
    return "  ".join(f"{r['contender']} {r['ms']:.2f} ({r['of_single']})" for r in found if "of_single" in r)


def run(arguments: Any) -> None:
    """Measures the cells that the arguments name, and writes their rows as they come."""
    prepare(arguments.threads)
    machine = machine_name(arguments.device)
    lists = (arguments.networks, arguments.compiled, arguments.precisions, arguments.modes, arguments.batches)
    grid = list(itertools.product(*lists))
    for number, (network, compiled, how, mode, batch) in enumerate(grid, start=1):
        start = time.perf_counter()
        cell = Cell(
            network, batch, mode, arguments.device, how, compiled, arguments.seconds, arguments.tune, arguments.profile,
            limit=arguments.limit,
        )  # fmt: skip
        found = measure_cell(cell, arguments.methods)
        keep(Path(arguments.out or "results/speed.json"), found, machine, tuned=arguments.tune)
        kind = {"no": "eager", "yes": "compiled", "graphs": "CUDA graphs"}[compiled]
        spent = f"{time.perf_counter() - start:.0f} s"
        print(f"{number}/{len(grid)} {network} {mode} {batch} {how} {kind} [{spent}]: {told(found)}", flush=True)
        if compiled != "no":
            print(
                "    first call s: " + "  ".join(f"{r['contender']} {r['first_call_s']}" for r in found if "of_single" in r),
                flush=True,
            )


def _same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    keys = ("network", "batch", "mode", "device", "precision", "compiled", "contender", "machine", "tuned", "growth", "members")
    return all(row.get(key) == other.get(key) for key in (*keys, "width"))
