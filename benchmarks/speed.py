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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import multitudes as mt
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


@dataclass
class Contender:
    """A network or an ensemble, with what one call and one step are."""

    name: str
    module: nn.Module
    predict: Callable[[Tensor], Tensor]
    """Returns the logits of all members, one batch after the other."""
    outputs: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None
    """Returns logits and targets of a training step; None if it cannot be trained."""
    compile_seconds: float = 0.0


def compiled_as(module: nn.Module, how: str) -> Any:
    """Returns the module itself ("no"), compiled ("yes"), or compiled with CUDA graphs ("graphs")."""
    if how == "no":
        return module
    return torch.compile(module, dynamic=False, mode="reduce-overhead" if how == "graphs" else None)


def _whole(y: Tensor, count: int) -> Tensor:
    return y.repeat(count)


@functools.cache
def converted(network: str, method: str) -> mt.Ensemble:
    """Converts a network of the grid on the CPU, once for all cells."""
    make, shape = NETWORKS[network]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mt.ensemble(make, METHODS[method], torch.randn(2, *shape), seed=0)


def ours(name: str, network: str, x: Tensor, compiled: str, tune: str) -> Contender:
    """Makes a contender of this library: a method's name, and perhaps `COMPACT`, then `FROZEN` or `IN_TURN`."""
    compact, frozen, in_turn = COMPACT in name, FROZEN in name, IN_TURN in name
    made = converted(network, name.replace(COMPACT, "").replace(FROZEN, "").replace(IN_TURN, ""))
    ens = copy.deepcopy(made)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if in_turn:
            return _in_turn(name, ens, x, compiled)
        ens = _moved(ens, x)
        ens = _moved(ens.eval().compact(), x) if compact else ens
        ens = _moved(ens.eval().freeze(), x) if frozen else ens
        if tune:
            with precision(x.device.type, tune):
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


def looped(make: Callable[..., nn.Module], device: str, compiled: str, images: bool) -> Contender:
    """Makes M networks that run in turn."""
    nets = [single(make, device, compiled, images) for _ in range(MEMBERS)]
    module = nn.ModuleList(net.module for net in nets)

    def predict(x: Tensor) -> Tensor:
        return torch.cat([net.predict(x) for net in nets])

    return Contender("looped", module, predict, lambda x, y: (predict(x), _whole(y, MEMBERS)))


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


def measure(calls: dict[str, Callable[[], None]], device: str, seconds: float) -> dict[str, float]:
    """Times calls in turn. Returns the median milliseconds of each."""
    counts, times = {}, {name: [] for name in calls}  # type: dict[str, int], dict[str, list[float]]
    for name, call in calls.items():
        for _ in range(3):
            call()
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        counts[name] = max(1, min(20, round(0.05 / max(time.perf_counter() - start, 1e-6))))
    until = time.perf_counter() + seconds * len(calls)
    rounds = 0
    while rounds < 5 or time.perf_counter() < until:
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            wait(device)
            times[name].append((time.perf_counter() - start) / counts[name] * 1000)
        rounds += 1
    return {name: statistics.median(found) for name, found in times.items()}


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


def cell(
    network: str,
    names: list[str],
    batch: int,
    mode: str,
    device: str,
    how: str,
    compiled: str,
    seconds: float,
    tune: bool,
    profiled: bool = False,
) -> list[dict[str, Any]]:
    """Measures all contenders of one cell. Returns one row for each."""
    make, shape = NETWORKS[network]
    torch.manual_seed(0)
    x = torch.randn(batch, *shape, device=device)
    x = x.to(memory_format=torch.channels_last) if len(shape) == 3 and device == "cuda" else x
    y = torch.randint(10, (batch,), device=device)
    images = len(shape) == 3
    calls: dict[str, Callable[[], None]] = {}
    rows = []
    for name in names:
        torch._dynamo.reset() if compiled != "no" else None
        try:
            if name == "single":
                contender: Contender | None = single(make, device, compiled, images)
            elif name == "looped":
                contender = looped(make, device, compiled, images)
            elif name.startswith("tu_"):
                contender = theirs(name, network, device, compiled)
            elif name == "package":
                contender = package(make, x, compiled) if images else None
            else:
                contender = ours(name, network, x, compiled, how if tune else "")
            if contender is None or (mode == "train" and contender.outputs is None):
                continue
            contender.module.train(mode == "train") if mode == "train" else contender.module.eval()
            call = call_of(contender, mode, x, y, device, how)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                start = time.perf_counter()
                call()
                wait(device)
            seconds_first = time.perf_counter() - start
            call()
            peak = _peak(call, device)
        except Exception as error:
            rows.append({"contender": name, "error": f"{type(error).__name__}: {str(error)[:300]}"})
            print(f"  {name}: {rows[-1]['error']}", flush=True)
            continue
        calls[name] = call
        executor = contender.module.executor if isinstance(contender.module, mt.Ensemble) else ""
        rows.append({"contender": name, "first_call_s": round(seconds_first, 2), "peak_mib": peak, "executor": executor})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = measure(calls, device, seconds)
        if profiled and device == "cuda":
            profile(calls)
    about = {"network": network, "batch": batch, "mode": mode, "device": device, "precision": how, "compiled": compiled}
    alone = found.get("single")
    for row in rows:
        if (ms := found.get(row["contender"])) is not None:
            row |= {"ms": round(ms, 4), "per_s": round(batch / ms * 1000), "of_single": alone and round(ms / alone, 3)}
    del calls
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
    return [{**about, **row} for row in rows]


def _peak(call: Callable[[], None], device: str) -> float | None:
    if device != "cuda":
        return None
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


def run(arguments: Any) -> None:
    """Measures the cells that the arguments name, and writes their rows as they come."""
    out = Path(arguments.out)
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"] if out.exists() else []
    torch.backends.cudnn.benchmark = True
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    machine = torch.cuda.get_device_name() if arguments.device == "cuda" else f"CPU, threads: {torch.get_num_threads()}"
    grid = itertools.product(arguments.networks, arguments.compiled, arguments.precisions, arguments.modes, arguments.batches)
    for network, compiled, how, mode, batch in grid:
        start = time.perf_counter()
        found = cell(
            network,
            arguments.methods,
            batch,
            mode,
            arguments.device,
            how,
            compiled,
            arguments.seconds,
            arguments.tune,
            arguments.profile,
        )
        for row in found:
            row |= {"machine": machine, "torch": torch.__version__, "tuned": arguments.tune}
        rows = [row for row in rows if not any(_same(row, other) for other in found)] + found
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"rows": rows}, indent=1))
        shown = "  ".join(f"{r['contender']} {r['ms']:.2f} ({r['of_single']})" for r in found if "ms" in r)
        kind = {"no": "eager", "yes": "compiled", "graphs": "CUDA graphs"}[compiled]
        print(f"{network} {mode} {batch} {how} {kind} [{time.perf_counter() - start:.0f} s]: {shown}", flush=True)
        if compiled != "no":
            print(
                "    first call s: " + "  ".join(f"{r['contender']} {r['first_call_s']}" for r in found if "ms" in r),
                flush=True,
            )


def _same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    keys = ("network", "batch", "mode", "device", "precision", "compiled", "contender", "machine", "tuned")
    return all(row.get(key) == other.get(key) for key in keys)
