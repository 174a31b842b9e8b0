"""Times conversions: four networks by every method, on one core with two rows, beside the time of one training step.

python benchmarks/conversion.py [--networks resnet50 vit] [--methods packed emp]     about ten minutes for all
python benchmarks/conversion.py --page                                               the table of docs/census.md

It needs timm and transformers, and keeps what it measured in results/conversion.json. Seconds are those of the process, without
the members' own tensors and their initialisation, and without what torch imports once in a process. Memory is what the
conversion takes at its peak beyond these tensors, beside what one training step of the ensemble takes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import platform
import time
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import multitudes as mt
from multitudes.engine.modules import named_tensors
from multitudes.shell.census.timm_networks import declare_operators

OWN = ("the members' tensors",)
"""Steps that make the members' tensors."""
ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "results" / "conversion.json", ROOT / "docs" / "census.md"
NETWORKS = {"resnet50": "ResNet-50", "vit": "ViT-S/16", "convnext": "ConvNeXt-T", "bert": "BERT-base"}

Row = dict[str, Any]


def make(name: str) -> tuple[torch.nn.Module, Any]:
    """Returns a network in eval mode and an example of two rows."""
    if name == "bert":
        from transformers import BertConfig, BertForSequenceClassification

        ids = torch.randint(1, 1000, (2, 128))
        return BertForSequenceClassification(BertConfig()), mt.Inputs(ids, attention_mask=torch.ones_like(ids))
    import timm

    names = {"resnet50": "resnet50", "vit": "vit_small_patch16_224", "convnext": "convnext_tiny"}
    return timm.create_model(names[name]), torch.randn(2, 3, 224, 224)


def peak(function: Callable[[], Any]) -> tuple[Any, float]:
    """Runs a function. Returns its result, and how many gigabytes the process grew at most in the meantime.

    Linux keeps the peak. A thread that watches memory would take a tenth of the function's time itself.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed would be used again, unseen
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = kilobytes("VmRSS")
    result = function()
    return result, (kilobytes("VmHWM") - before) / 2**20


def kilobytes(key: str) -> float:
    """Returns a line of what Linux knows of the process: the memory that it holds, VmRSS, or has held at most, VmHWM."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(lines[key].split()[0])


def step(ens: mt.Ensemble, x: Any) -> None:
    """Runs one forward and backward in training mode."""
    call = mt.Inputs.of(x)
    out = ens.train()(*call.args, **call.kwargs)
    logits = out if isinstance(out, torch.Tensor) else out.logits
    logits.float().square().mean().backward()


def main() -> None:
    """Prints one line per network and method."""
    methods = {kind.__name__.lower(): kind for kind in mt.Method.all()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--methods", nargs="*", default=sorted(methods))
    parser.add_argument("--page", action="store_true", help="write the table of what was measured into docs/census.md")
    chosen = parser.parse_args()
    if chosen.page:
        PAGE.write_text(page(), encoding="utf-8")
        return
    operators = declare_operators()  # held: torch forgets what nobody holds
    torch.set_num_threads(1)
    print(f"{'network':<10} {'method':<14} {'seconds':>8} {'of tensors':>11} {'GB beyond':>10} {'step, GB':>9}  executors")
    for network in chosen.networks:
        net, x = make(network)
        mt.plan(net, mt.Packed(), x)  # imports, and what torch sets up once in a process
        for name in chosen.methods:  # each in a process of its own: freed memory would hide what the next one takes
            fork = get_context("fork")
            found: Any = fork.SimpleQueue()
            pair = fork.Process(target=convert, args=(network, net, x, methods[name](), found))
            pair.start()
            pair.join()
            if not found.empty():
                keep(found.get())
    del operators


def keep(row: Row) -> None:
    """Puts a row into the file of results, in the place of an earlier one of the same pair."""
    rows = {(old["network"], old["method"]): old for old in measured()}
    rows[row["network"], row["method"]] = row
    RESULTS.write_text(json.dumps([rows[key] for key in sorted(rows)], indent=1) + "\n", encoding="utf-8")


def measured() -> list[Row]:
    """Returns what was measured so far."""
    rows: list[Row] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    return rows


def page() -> str:
    """Returns docs/census.md with the table of what was measured."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition("<!-- seconds -->")
    _, end, after = rest.partition("<!-- /seconds -->")
    if not end:
        raise SystemExit(f"{PAGE.name} has no section <!-- seconds --> ... <!-- /seconds -->")
    return f"{before}{begin}\n\n{table(measured())}\n\n{end}{after}"


def table(rows: list[Row]) -> str:
    """Returns seconds, and gigabytes beside those of a training step, of each method on each network."""
    lines = ["| method | " + " | ".join(NETWORKS.values()) + " |", "|---|" + "---:|" * len(NETWORKS)]
    cells = {
        (row["method"], row["network"]): f"{row['seconds']:.1f} s, {row['gigabytes']:.1f} / {row['step']:.1f}" for row in rows
    }
    for method in sorted({row["method"] for row in rows}):
        lines.append(f"| `{method}` | " + " | ".join(cells.get((method, network), "") for network in NETWORKS) + " |")
    return "\n".join(lines)


def convert(network: str, net: torch.nn.Module, x: Any, method: mt.Method, found: Any) -> None:
    """Converts a network, prints what it took, and puts it into a queue."""
    start = time.process_time()
    try:
        with mock.patch("time.perf_counter", time.process_time):  # steps are timed by the clock, which runs for others too
            ens, grown = peak(lambda: mt.ensemble(net, method, x, seed=0))
    except mt.MultitudesError as error:
        print(f"{network:<10} {type(method).__name__:<14} refused: {str(error).splitlines()[0][:90]}", flush=True)
        return
    seconds, steps = time.process_time() - start, ens.plan.seconds
    share = sum(steps.get(name, 0.0) for name in OWN) / max(sum(steps.values()), 1e-9)
    tensors = sum(t.numel() * t.element_size() for _, t in named_tensors(ens.template)) / 2**30
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # methods that train by parts
        _, one_step = peak(lambda: step(ens, x))
    used = ", ".join(dict.fromkeys(ens.plan.executor.values()))
    row = {
        "network": network, "method": type(method).__name__, "seconds": seconds * (1 - share), "of_tensors": seconds * share,
        "gigabytes": max(grown - tensors, 0.0), "step": one_step, "torch": torch.__version__, "machine": platform.machine(),
    }  # fmt: skip
    found.put({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    print(
        f"{network:<10} {row['method']:<14} {row['seconds']:8.1f} {row['of_tensors']:11.1f} "
        f"{row['gigabytes']:10.2f} {one_step:9.2f}  {used}",
        flush=True,
    )


if __name__ == "__main__":
    main()
