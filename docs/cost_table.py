"""The table of costs in docs/methods.md: every method on the CIFAR ResNet-18 and ResNet-50, beside the single network.

python docs/cost_table.py            prints it, in about ten minutes
python docs/cost_table.py --write    puts it into docs/methods.md
python docs/cost_table.py --check    fails if the page has other parameters or multiply-adds; latency is not checked, and the
                                     counts of compact ensembles are tested in tests/conversion/test_compact.py

Latency is that of one CPU thread, as it is and frozen, relative to the single network's; both are timed in turn.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

import multitudes as mt
from multitudes.methods.layers.one_run import OneRun
from multitudes.models import resnet18, resnet50

PAGE = Path(__file__).resolve().parent / "methods.md"
BEGIN, END = "<!-- costs -->", "<!-- /costs -->"
NETWORKS = {"ResNet-18": resnet18, "ResNet-50": resnet50}
BATCH = 8
EXTRA = [mt.Packed(members=4, alpha=2, gamma=2)]
"""Settings that are listed besides the defaults of each method."""

COMPACT = ".compact()"

Counts = dict[tuple[str, str], tuple[int, int]]
"""Parameters and multiply-adds of one image, by network and method."""


def methods() -> list[mt.Method]:
    """Every method of the package with its default settings, and EXTRA. Methods of one run cost what others cost."""
    ours = [kind() for kind in mt.Method.all() if kind.__module__.startswith("multitudes.methods.")]
    ours = [method for method in ours if not isinstance(method, OneRun)]
    return sorted([*ours, *EXTRA], key=lambda m: (type(m) is not mt.Single, type(m).__name__, len(label(m))))


def label(method: mt.Method) -> str:
    """The method as code, without settings that are defaults."""
    fields = {name: value for name, value in method.settings().items() if value != getattr(type(method)(), name)}
    return f"{type(method).__name__}({', '.join(f'{name}={value}' for name, value in fields.items())})"


def counts() -> Counts:
    """Counts all networks and methods, on the meta device."""
    x, found = torch.empty(2, 3, 32, 32, device="meta"), {}
    for name, build in NETWORKS.items():
        with torch.device("meta"):
            net = build()
        for method in methods():
            planned = mt.plan(net, method, x).counts
            assert planned is not None
            found[name, label(method)] = planned.parameters, planned.multiply_adds // 2
    return found


def rows(name: str, method: mt.Method, planned: Counts) -> list[str]:
    """The row of a method on a network, and one for its compact form if it has one."""
    ens = mt.ensemble(NETWORKS[name](), method, torch.randn(2, 3, 8, 8), seed=0, check=False)  # a small example will do
    found = [row(name, label(method), ens, planned[name, label(method)][1])]
    if type(method).compact is not mt.Method.compact:
        found.append(row(name, label(method) + COMPACT, ens.compact()))
    return found


def row(name: str, text: str, ens: mt.Ensemble, work: int | None = None) -> str:
    """Formats a row: counts for one image, memory of a training step, latencies relative to the single network's."""
    x = torch.randn(BATCH, 3, 32, 32)
    cost = mt.cost(ens, x, repeats=5)
    ens_cost, base = cost.ensemble, cost.base
    frozen = mt.cost(ens.eval().freeze(x), x, repeats=5)
    giga, memory = (work or ens_cost.multiply_adds / BATCH) / 1e9, f"{ens_cost.memory / 2**20:.0f} MiB"
    latencies = f"{ens_cost.latency / base.latency:.1f} × | {frozen.ensemble.latency / frozen.base.latency:.1f} ×"
    return f"| {name} | `{text}` | {ens_cost.parameters:,} | {giga:.3f} G | {memory} | {latencies} |"


def table() -> str:
    """One row for each network and method."""
    torch.set_num_threads(1)
    lines = [
        "| network | method | parameters | multiply-adds | memory | latency | frozen |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    planned = counts()
    for name in NETWORKS:
        for method in methods():
            lines += rows(name, method, planned)
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def written(text: str) -> Counts:
    """Reads the counts from a table; multiply-adds are in millions."""
    rows = re.findall(r"\| (ResNet-\d+) \| `(.+?)` \| ([\d,]+) \| ([\d.]+) G \|", text)
    found = {(name, method): (int(n.replace(",", "")), round(float(g) * 1000)) for name, method, n, g in rows}
    return {key: counted for key, counted in found.items() if not key[1].endswith(COMPACT)}


def main(option: str | None) -> int:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    if option == "--check":
        current = {key: (parameters, round(work / 1e6)) for key, (parameters, work) in counts().items()}
        if written(old) != current:
            print(f"{PAGE.name} is behind the methods: python docs/cost_table.py --write")
            return 1
        return 0
    if option not in (None, "--write"):
        print(__doc__)
        return 2
    new = table()
    print(new)
    if option == "--write":
        PAGE.write_text(f"{before}{BEGIN}\n\n{new}\n\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [None]))
