"""One small network as an ensemble, by every method there is: its plan, its cost, and how often its members disagree.

Run by `make demo`. A method that is added appears by itself.
"""

from __future__ import annotations

from itertools import combinations
from statistics import mean

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import multitudes as mt

SEED = 0
CLASSES, ROWS, STEPS, NOISE = 10, 32, 20, 2.0


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.skip = nn.Identity() if width == out and stride == 1 else nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class ResNet(nn.Module):
    """A thin CIFAR ResNet: one block for each of three widths."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.res1 = Block(width, width, 1)
        self.res2 = Block(width, 2 * width, 2)
        self.res3 = Block(2 * width, 4 * width, 2)
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.res3(self.res2(self.res1(F.relu(self.stem(x)))))
        return self.head(x.mean((2, 3)))


def images(patterns: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """A class is a pattern, and an image of it the pattern in noise."""
    y = torch.randint(len(patterns), (ROWS,), generator=rng)
    return patterns[y] + NOISE * torch.randn(ROWS, *patterns.shape[1:], generator=rng), y


def train(ens: mt.Ensemble, patterns: Tensor, rng: torch.Generator) -> None:
    """A few steps, so that members have something to disagree about."""
    optimizer = torch.optim.SGD(ens.param_groups(lr=0.05), momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        ens.loss(*images(patterns, rng), F.cross_entropy).backward()
        optimizer.step()


def disagreement(outputs: Tensor) -> float:
    """The share of rows for which two members name different classes, over all pairs: [M, B, K] → one number."""
    return mean((a != b).float().mean().item() for a, b in combinations(outputs.argmax(-1), 2))


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # the same numbers on every machine, and latencies that another program does not spoil
    console, table = Console(highlight=False), Table(title="all methods", title_justify="left")
    for name in ("method", "M", "parameters", "multiply-adds", "latency", "disagree"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    model, patterns = ResNet(), torch.randn(CLASSES, 3, 32, 32)
    x, _ = images(patterns, torch.Generator().manual_seed(SEED + 1))
    for kind in mt.Method.all():
        ens = mt.ensemble(model, kind(), x[:2], seed=SEED)
        cost = mt.cost(ens, x)
        console.rule(kind.__name__)
        print(f"{ens.plan}\n{cost}\n")
        train(ens, patterns, torch.Generator().manual_seed(SEED))
        with torch.no_grad():
            differ = f"{disagreement(ens.eval()(x)):.1%}" if ens.members > 1 else "–"
        ours, single = cost.ensemble, cost.base
        work, time = f"{ours.multiply_adds / single.multiply_adds:.2f} ×", f"{ours.latency * 1e3:.1f} ms"
        table.add_row(kind.__name__, str(ens.members), f"{ours.parameters:,}", work, time, differ)
    console.print(table)
    print(f"On {ROWS} images, after {STEPS} steps, on one thread; × is against the single network.")


if __name__ == "__main__":
    main()
