"""Conformal prediction with TorchCP: sets of digits that cover the right one at the level asked for.

    pip install torchcp

TorchCP takes logits. The log of the mixture's probabilities serves as well: its softmax is the probabilities.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchcp.classification.predictor import SplitPredictor
from torchcp.classification.score import APS, LAC, RAPS
from torchcp.classification.utils.metrics import Metrics

import multitudes as mt

ALPHA = 0.05
"""Share of the sets that may miss the right class."""


def trained(x: Tensor, y: Tensor) -> mt.Ensemble:
    """Trains a small Packed-Ensemble for a few steps."""
    ens = mt.ensemble(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), mt.Packed(), x[:2], seed=0)
    optimizer = torch.optim.Adam(ens.param_groups(lr=0.01))
    for _ in range(60):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        ens.loss(x[rows], y[rows], F.cross_entropy).backward()
        optimizer.step()
    return ens.eval()


def main() -> dict[str, tuple[float, float]]:
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", "The 'temperature' parameter", DeprecationWarning)  # TorchCP's default
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    x, y = torch.tensor(digits.data, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
    ens = trained(x[:400], y[:400])
    held_out = mt.predict(ens, TensorDataset(x[400:1000], y[400:1000]))
    test = mt.predict(ens, TensorDataset(x[1000:], y[1000:]))

    print(f"asked for {1 - ALPHA:.0%} coverage")
    metrics, found = Metrics(), {}
    for score in (LAC(), APS(), RAPS(penalty=0.1)):
        predictor = SplitPredictor(score, alpha=ALPHA)
        predictor.calculate_threshold(held_out.probs.log(), held_out.targets)  # arrays of the prediction: no network runs again
        sets = predictor.predict_with_logits(test.probs.log())
        found[type(score).__name__] = metrics("coverage_rate")(sets, test.targets), metrics("average_size")(sets)

    average = ens.average()  # a plain network [B, K], for code of TorchCP that runs the model
    predictor = SplitPredictor(LAC(), model=average, alpha=ALPHA)
    predictor.calibrate(DataLoader(TensorDataset(x[400:1000], y[400:1000]), 256))
    result = predictor.evaluate(DataLoader(TensorDataset(x[1000:], y[1000:]), 256))
    found["LAC, average()"] = result["coverage_rate"], result["average_size"]

    for name, (coverage, size) in found.items():
        print(f"{name:<16} coverage {coverage:.3f}   mean size {size:.2f}")
    return found


if __name__ == "__main__":
    main()
