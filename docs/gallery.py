"""Writes a page with every figure of multitudes.figures in the light and the dark theme, drawn from made-up data.

python docs/gallery.py --out build/gallery.html

The page embeds its images and needs no network. It follows the theme of the system, or the button.
"""

from __future__ import annotations

import argparse
import base64
import html
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from multitudes import figures

Array = np.ndarray[Any, Any]
DPI = 150
NARROW = 640
"""Window width in pixels below which the narrow form of a figure is shown."""


@dataclass(frozen=True)
class Entry:
    """A figure with its title, caption and call."""

    title: str
    caption: str
    call: str
    draw: Callable[..., Figure]
    narrow: dict[str, Any] | None = None
    """Arguments that differ in a narrow window."""


def confidence_and_correct(rng: np.random.Generator, examples: int = 4000) -> dict[str, tuple[Array, Array]]:
    """Returns made-up runs: an overconfident single network, and ensembles that are better calibrated and more accurate."""
    runs = {}
    ease = rng.normal(1.7, 1.9, examples)
    for name, (better, pride, noise) in {
        "single": (0, 1.3, 0.9),
        "packed": (0.35, 0.35, 0.5),
        "deep": (0.5, -0.15, 0.3),
    }.items():
        true = 0.1 + 0.9 / (1 + np.exp(-ease - better))
        felt = 0.1 + 0.9 / (1 + np.exp(-ease - better - pride - rng.normal(0, noise, examples)))
        runs[name] = felt, rng.random(examples) < true
    return runs


def entropies(rng: np.random.Generator) -> dict[str, tuple[Array, Array]]:
    """Returns made-up entropies of ten classes, in and out of distribution."""
    means = {"single": (0.25, 0.95), "packed": (0.3, 1.35)}
    return {name: tuple(2.3 * rng.beta(4 * m / 2.3, 4 * (1 - m / 2.3), 4000) for m in pair) for name, pair in means.items()}


def accuracies(rng: np.random.Generator) -> dict[str, dict[int, Array]]:
    """Returns made-up accuracies on nineteen corruptions at five severities."""
    hardness = rng.gamma(2, 0.5, 19)
    start = {"single": (0.93, 0.075), "MC-Dropout": (0.925, 0.066), "Masksembles": (0.935, 0.055), "deep": (0.945, 0.053)}
    drop = {s: s**1.15 * hardness for s in range(1, 6)}
    return {
        name: {s: np.clip(top - slope * hard + rng.normal(0, 0.008, 19), 0.1, 1) for s, hard in drop.items()}
        for name, (top, slope) in start.items()
    }


def regression(rng: np.random.Generator) -> dict[str, Any]:
    """Fits ridge regressions on random features to data with a gap: a single one, and eight on resampled data."""
    x = np.concatenate([rng.uniform(-4, -1, 30), rng.uniform(1.2, 4, 30)])
    y = np.sin(1.6 * x) + 0.3 * x + rng.normal(0, 0.18, len(x))
    grid = np.linspace(-5, 5, 300)
    curves = []
    for _ in range(8):
        weight, bias = rng.normal(0, 1.3, 60), rng.uniform(-4, 4, 60)
        taken = rng.integers(len(x), size=len(x))
        inner, outer = (np.tanh(np.outer(values, weight) + bias) for values in (x[taken], grid))
        curves.append(outer @ np.linalg.solve(inner.T @ inner + 0.05 * np.eye(60), inner.T @ y[taken]))
    members = np.stack(curves)
    mean = {"single": members[0], "ensemble of eight": members.mean(0)}
    variance = {"single": np.full(300, 0.18**2), "ensemble of eight": members.var(0) + 0.18**2}
    return {
        "x": grid,
        "mean": mean,
        "variance": variance,
        "members": {"single": members[:1], "ensemble of eight": members},
        "data": (x, y),
    }


def sinusoids(rng: np.random.Generator) -> dict[str, Any]:
    """Classifies two noisy sinusoids by logistic regression on random features: one, four and sixteen members."""
    across = rng.uniform(-5, 5, 200)
    labels = (np.arange(200) % 2).astype(int)
    xy = np.column_stack([across, np.sin(across) * 1.2 + np.where(labels, 1.1, -1.1) + rng.normal(0, 0.3, 200)])
    x, y = np.linspace(-9, 9, 160), np.linspace(-6, 6, 120)
    plane = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    probs = []
    for _ in range(16):
        weight, bias = rng.normal(0, 1, (2, 60)), rng.uniform(-5, 5, 60)
        inner, outer = np.maximum(xy @ weight + bias, 0) / 5, np.maximum(plane @ weight + bias, 0) / 5
        slope = rng.normal(0, 3, 60)
        for _ in range(600):
            slope -= 0.2 * (inner.T @ (1 / (1 + np.exp(-inner @ slope)) - labels) / 20 + 0.001 * slope)
        probs.append(1 / (1 + np.exp(-outer @ slope)))
    some = {"single": 1, "four": 4, "sixteen": 16}
    maps = {name: entropy(np.mean(probs[:m], 0)).reshape(len(y), len(x)) for name, m in some.items()}
    return {"x": x, "y": y, "entropy": maps, "points": (xy, labels), "top": float(np.log(2))}


def entropy(p: Array) -> Array:
    """Returns the entropy of a Bernoulli variable."""
    p = p.clip(1e-9, 1 - 1e-9)
    return -(p * np.log(p) + (1 - p) * np.log(1 - p))


def methods() -> list[dict[str, Any]]:
    """Returns made-up methods with the sizes of a ResNet-18."""
    rows = [
        ("single", 1.0, 94.1, 11.2), ("deep", 4.0, 95.2, 44.7), ("packed (2, 4, 1)", 1.2, 94.9, 11.2),
        ("packed (2, 4, 2)", 0.9, 94.6, 8.2), ("MIMO", 1.05, 94.0, 11.2), ("Masksembles", 4.0, 94.3, 11.2),
        ("BatchEnsemble", 4.1, 94.4, 11.2), ("MC-Dropout", 4.0, 94.2, 11.2), ("TreeNet", 2.6, 94.8, 30.1),
    ]  # fmt: skip
    return [dict(zip(("name", "cost", "quality", "size"), row, strict=True)) for row in rows]


def differing(rng: np.random.Generator, members: int = 6) -> Array:
    """Returns the disagreement of made-up members with correlated errors."""
    hard = rng.random(3000) ** 3
    wrong = rng.random((members, 3000)) < hard * np.linspace(0.3, 0.6, members)[:, None]
    labels = np.where(wrong, rng.integers(1, 10, wrong.shape), 0)
    return (labels[:, None] != labels[None]).mean(-1)


def street(rng: np.random.Generator) -> dict[str, Any]:
    """Draws a road with two cars, trees and a sky; the prediction is uncertain at borders and at the farther car."""
    height, width = 96, 144
    row, column = np.mgrid[:height, :width]
    labels = np.where(row < 48, 0, 1)
    for middle, radius in ((18, 20), (52, 14), (122, 24)):
        labels[(column - middle) ** 2 + 1.2 * (row - 38) ** 2 < radius**2] = 2
    labels[(row >= 46) & (np.abs(column - 72) < 12 + 1.1 * (row - 46))] = 3
    for top, left, h, w in ((66, 46, 16, 30), (47, 76, 6, 10)):
        labels[top : top + h, left : left + w] = 4
    shades = np.array([[0.55, 0.75, 0.95], [0.5, 0.62, 0.35], [0.13, 0.4, 0.2], [0.42, 0.42, 0.45], [0.75, 0.2, 0.18]])
    light = 1 - 0.25 * row / height + rng.normal(0, 0.05, labels.shape)
    image = (shades[labels] * light[..., None]).clip(0, 1).transpose(2, 0, 1)
    scores = blurred(np.eye(5)[labels].transpose(2, 0, 1), 3) + 0.35 * blurred(rng.normal(0, 1, (5, height, width)), 4)
    scores[4, 44:56, 72:92] -= 0.3
    probs = np.exp(8 * scores) / np.exp(8 * scores).sum(0)
    doubt = -(probs * np.log(probs + 1e-12)).sum(0)
    return {"image": image, "labels": labels, "predicted": probs.argmax(0), "entropy": doubt}


def blurred(planes: Array, times: int) -> Array:
    """Blurs by averaging neighbours, several times."""
    for _ in range(times):
        for axis in (1, 2):
            edge = np.pad(planes, [(0, 0), *[(1, 1) if a == axis else (0, 0) for a in (1, 2)]], mode="edge")
            planes = sum(np.take(edge, range(i, i + planes.shape[axis]), axis) for i in range(3)) / 3
    return planes


def basins(rng: np.random.Generator) -> dict[str, Any]:
    """Makes up a loss over a plane with three basins, one at each member."""
    x, y = np.linspace(-1.5, 5.5, 60), np.linspace(-1.5, 5, 60)
    anchors = np.array([[0.0, 0.0], [4.0, 0.3], [1.8, 3.4]])
    depth = [np.exp(-((x - a) ** 2 + (y[:, None] - b) ** 2) / 1.6) for a, b in anchors]
    ripples = 0.05 * blurred(rng.normal(0, 1, (1, 60, 60)), 6)[0]
    return {"x": x, "y": y, "values": 2.3 - 1.9 * np.max(depth, 0) + ripples, "anchors": anchors}


def paths(rng: np.random.Generator) -> Array:
    """Makes up the paths of three members, which start together and part."""
    ends = np.array([[8.0, 1.0], [-3.0, 7.0], [-5.0, -6.0]])
    time = 1 - np.exp(-np.linspace(0, 3, 25))[:, None, None]
    return time * ends + np.cumsum(rng.normal(0, 0.25, (25, 3, 2)), 0)


def separated(rng: np.random.Generator) -> Array:
    """Makes up the variances of units with respect to three inputs: most depend on one."""
    return (rng.dirichlet([0.18] * 3, 500) * rng.gamma(2, 1, (500, 1))).T


def analyses(rng: np.random.Generator) -> list[Entry]:
    """Returns the figures of multitudes.analysis."""
    p, sigma = np.linspace(0.02, 1, 80), np.array([[0.3], [1.0], [3.0]])
    bound = 0.5 * (p + 1 / p - 2 + (1 - p) ** 2 / (p * sigma**2))
    members = np.arange(1, 6)
    parts = {
        name: {"bias": bias, "variance": variance, "error": bias + variance}
        for name, bias, variance in (("ensemble", 0.1 + 0.004 * members, 0.06 / members + 0.02),
                                     ("single member", 0.1 + 0.006 * members, 0.08 + 0.004 * members))
    }  # fmt: skip
    steps = np.linspace(-4, 4, 200)
    units = [np.sign(steps[None] * rng.normal(0, 1, (40, 60, 1)) + rng.normal(0, 2, (40, 60, 1))) for _ in range(2)]
    functions = {"dropped weights": units[0][:, ::4].sum(1) * 2, "EMP": units[1].sum(1)}
    scales = np.array([1, 1.5, 2, 3, 4, 5])
    masks = {n: (scales, scales * (1 - (1 - 1 / scales) ** n), 1 / (2 * scales - 1)) for n in (2, 4, 8)}
    shares = {f"layer{k}.weight": np.clip(rng.normal(0.9 - 0.1 * k, 0.03, 1 if k % 5 else 3), 0, 1) for k in range(6)}
    plane, ways, variances = basins(rng), paths(rng), separated(rng)
    return [
        Entry("Weights left out", "Divergence of a layer's units if each weight is kept with probability p, and its bound.",
              "kl_bound(p, bound, kl, names=['σ = 0.3', ...])",
              lambda **k: figures.kl_bound(p, bound, 0.6 * bound, names=["σ = 0.3", "σ = 1", "σ = 3"], **k)),
        Entry("Bias and variance", "Over training sets, for different numbers of members.",
              "bias_variance(members, {'ensemble': {'bias': bias, 'variance': variance, 'error': error}, ...})",
              lambda **k: figures.bias_variance(members, parts, **k)),
        Entry("Landscape", "Loss over the plane through three members in weight space.",
              "landscape(x, y, loss, anchors, names=['member 0', ...])",
              lambda **k: figures.landscape(**plane, names=["member 0", "member 1", "member 2"], **k)),
        Entry("Trajectories", "Predictions of members during training, in a plane.",
              "trajectories(points)", lambda **k: figures.trajectories(ways, **k)),
        Entry("Conditional variance", "How much the units of a network with three inputs depend on each input.",
              "conditional_variance(variance)", lambda **k: figures.conditional_variance(variances, **k)),
        Entry("Weights in use", "Share of weights above a threshold, by tensor.",
              "weight_share({'layer0.weight': share, ...}, total)", lambda **k: figures.weight_share(shares, 0.65, **k)),
        Entry("Functions of a prior", "Functions that two methods draw, and bands over many.",
              "function_prior(x, {'EMP': values, ...})",
              lambda **k: figures.function_prior(steps, functions, **k), {"columns": 1}),
        Entry("Masks", "Size and overlap of masks over their scale: expected and measured.",
              "mask_statistics({4: (scale, size, iou), ...})", lambda **k: figures.mask_statistics(masks, **k)),
        Entry("Parameter counts", "Parameters of methods, as multiples of the network's.",
              "counts({'EMP': 1.18, ...})",
              lambda **k: figures.counts({"Gaussian": 2, "MNFG": 300, "dropout": 1, "EMP": 1.18, "deep": 5}, **k)),
    ]  # fmt: skip


def entries(seed: int = 0) -> list[Entry]:
    """Returns all figures, each with its own random data."""
    draws = iter(np.random.default_rng(seed).spawn(9))
    runs, scores, boxes = confidence_and_correct(next(draws)), entropies(next(draws)), accuracies(next(draws))
    line, plane, matrix, scene = regression(next(draws)), sinusoids(next(draws)), differing(next(draws)), street(next(draws))
    more = analyses(next(draws))
    names = ["sky", "grass", "tree", "road", "car"]
    labels = {"cost": "multiply-adds, single network = 1", "quality": "accuracy (%)", "size": "million parameters"}
    two = {name: runs[name] for name in ("single", "packed")}
    return [
        Entry("Reliability", "Accuracy by confidence. Vertical lines are the gaps that the calibration error averages.",
              "reliability({'single': (confidence, correct), 'packed': ...})", lambda **k: figures.reliability(two, **k)),
        Entry("Risk and coverage", "Error rate if only the most confident predictions are accepted.",
              "risk_coverage({'single': (confidence, correct), ...})", lambda **k: figures.risk_coverage(runs, **k)),
        Entry("Out of distribution", "Histograms of an OOD score, and the ROC of detection by a threshold on it.",
              "ood({'single': (score_in, score_out), ...}, score='entropy')",
              lambda **k: figures.ood(scores, score="entropy", **k), {"columns": 1}),
        Entry("Corrupted inputs", "Accuracy over nineteen corruptions, at each of five severities.",
              "corruption({'single': {1: accuracies, 2: ...}, ...})", lambda **k: figures.corruption(boxes, **k)),
        Entry("Predictive bands", "A regression on data with a gap, where the members diverge.",
              "bands(x, {'single': mean, ...}, {'single': variance, ...}, members, data=(x, y))",
              lambda **k: figures.bands(**line, **k), {"columns": 1}),
        Entry("Entropy over the plane", "Two noisy sinusoids, classified by one network, four and sixteen.",
              "entropy_map(x, y, {'single': entropy, ...}, points=(xy, labels), top=log(2))",
              lambda **k: figures.entropy_map(**plane, **({"columns": 3} | k)), {"columns": 1}),
        Entry("Cost and quality", "Cost relative to the single network. Disc areas show parameters.",
              "cost_quality([{'name': 'single', 'cost': 1, 'quality': 94.1, 'size': 11.2}, ...])",
              lambda **k: figures.cost_quality(methods(), **labels, **k)),
        Entry("Ours against theirs", "Numbers of a paper's table and ours, with the line of equal numbers.",
              "against({'accuracy': [(94.0, 94.1), ...], 'NLL': [(0.238, 0.233), ...]})",
              lambda **k: figures.against({"accuracy": [(94.0, 94.1), (94.3, 94.2), (95.1, 95.0), (92.9, 94.1)],
                                           "NLL": [(0.238, 0.233), (0.178, 0.183), (0.156, 0.164), (0.257, 0.216)]}, **k)),
        Entry("Scores over a setting", "Two scores over the scale of masks, with those of four networks as a line.",
              "sweep({'accuracy': {'masksembles': (scales, scores)}}, setting='S', lines={'accuracy': {'deep': 0.95}})",
              lambda **k: figures.sweep({"accuracy": {"masksembles": ([1, 2, 3, 4], [0.940, 0.944, 0.947, 0.949])},
                                         "ECE": {"masksembles": ([1, 2, 3, 4], [0.035, 0.02, 0.012, 0.01])}}, setting="S",
                                        lines={"accuracy": {"deep": 0.951}, "ECE": {"deep": 0.008}}, **k)),
        Entry("Disagreement of members", "Share of examples on which two members differ.",
              "disagreement(matrix)", lambda **k: figures.disagreement(matrix, **k)),
        Entry("Segmentation", "One image with its true labels, predicted labels and entropy.",
              "segmentation(image, labels, predicted, entropy, classes=names)",
              lambda **k: figures.segmentation(**scene, classes=names, **k), {"columns": 2}),
        *more,
    ]  # fmt: skip


def source(figure: Figure) -> str:
    """Returns a figure as a data URL of a PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def block(entry: Entry) -> str:
    """Returns the section of a figure, in both themes."""
    parts = []
    for theme in ("light", "dark"):
        figure = entry.draw(theme=theme)
        wide = round(figure.get_figwidth() * 100)
        other = "" if entry.narrow is None else source(entry.draw(theme=theme, **entry.narrow))
        narrow = f'<source media="(max-width: {NARROW}px)" srcset="{other}">' if other else ""
        alt = html.escape(f"{entry.title}: {entry.caption}")
        parts.append(f'<picture class="{theme}">{narrow}<img width="{wide}" alt="{alt}" src="{source(figure)}"></picture>')
    title, caption, call = html.escape(entry.title), html.escape(entry.caption), html.escape(entry.call)
    return f"<section><h2>{title}</h2><p>{caption}</p><pre><code>figures.{call}</code></pre>{''.join(parts)}</section>"


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>multitudes: figures</title>
<style>
:root { color-scheme: light dark; }
:root[data-theme=light] { color-scheme: light; }
:root[data-theme=dark] { color-scheme: dark; }
body { background: light-dark(#ffffff, #15181d); color: light-dark(#1c1f24, #e8eaed); margin: 0 auto; max-width: 62rem;
  padding: 1rem; font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.5rem; } h2 { margin: 0; font-size: 1.15rem; } p { margin: .2rem 0 .6rem; max-width: 44rem; }
header { display: flex; gap: 1rem; justify-content: space-between; align-items: center; }
section { border-top: 1px solid light-dark(#e3e6ea, #2c3139); padding: 1.2rem 0; }
pre { font-size: .82rem; margin: 0 0 .8rem; overflow-x: auto; color: light-dark(#4b5563, #aeb6c0); }
img { max-width: 100%; height: auto; display: block; }
button { font: inherit; color: inherit; background: none; border: 1px solid light-dark(#6b7280, #9aa2ad); border-radius: .4rem;
  padding: .2rem .7rem; cursor: pointer; }
:root:not([data-theme=dark]) .dark, :root[data-theme=dark] .light { display: none; }
@media (prefers-color-scheme: dark) {
  :root:not([data-theme]) .dark { display: block; } :root:not([data-theme]) .light { display: none; }
}
</style></head><body>
<header><h1>Figures</h1><button type="button">light or dark</button></header>
<p>All figures of <code>multitudes.figures</code>, drawn from made-up data. No method was measured for this page.</p>
BLOCKS
<script>
const root = document.documentElement, prefers = matchMedia("(prefers-color-scheme: dark)");
document.querySelector("button").onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : prefers.matches;
  root.dataset.theme = dark ? "light" : "dark";
};
</script></body></html>
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="every figure of multitudes.figures on one page")
    parser.add_argument("--out", type=Path, default=Path("build/gallery.html"), help="path of the page")
    out = parser.parse_args(arguments).out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(PAGE.replace("BLOCKS", "\n".join(map(block, entries()))), encoding="utf-8")
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
