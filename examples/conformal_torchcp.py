"""Conformal prediction with TorchCP: sets of digits that cover the right one at the level asked for.

    pip install torchcp

TorchCP takes logits. The log of the mixture's probabilities serves as well: its softmax is the probabilities.
"""

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader
from torchcp.classification.predictor import SplitPredictor
from torchcp.classification.score import APS, LAC, RAPS
from torchcp.classification.utils.metrics import Metrics

import multitudes as mt
from multitudes import data

ALPHA = 0.05
"""Share of the sets that may miss the right class."""


def main() -> dict[str, tuple[float, float]]:
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", "The 'temperature' parameter", DeprecationWarning)  # TorchCP's default
    digits = data.digits()
    order = torch.randperm(len(digits)).tolist()
    (x, y), held_out, test = digits.batch(order[:400]), digits.subset(order[400:1000]), digits.subset(order[1000:])
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    ens = mt.ensemble(net, mt.Packed(), x[:2], seed=0)
    optimizer = torch.optim.Adam(ens.train().param_groups(lr=0.01))
    for rows in (torch.randint(400, (64,)) for _ in range(60)):
        optimizer.zero_grad()
        ens.loss(x[rows], y[rows], F.cross_entropy).backward()
        optimizer.step()

    known, new, metrics, found = mt.predict(ens, held_out), mt.predict(ens, test), Metrics(), {}
    for score in (LAC(), APS(), RAPS(penalty=0.1)):
        predictor = SplitPredictor(score, alpha=ALPHA)
        predictor.calculate_threshold(known.probs.log(), known.targets)  # arrays of the prediction: no network runs again
        sets = predictor.predict_with_logits(new.probs.log())
        found[type(score).__name__] = metrics("coverage_rate")(sets, new.targets), metrics("average_size")(sets)

    predictor = SplitPredictor(LAC(), model=ens.average(), alpha=ALPHA)  # a plain network [B, K], for code that runs the model
    predictor.calibrate(DataLoader(held_out, 256))
    result = predictor.evaluate(DataLoader(test, 256))
    found["LAC, average()"] = result["coverage_rate"], result["average_size"]

    print(f"asked for {1 - ALPHA:.0%} coverage")
    for name, (coverage, size) in found.items():
        print(f"{name:<16} coverage {coverage:.3f}   mean size {size:.2f}")
    return found


if __name__ == "__main__":
    main()
