"""Out-of-distribution detection with pytorch-ood: its detectors on our predictions, its metrics on our uncertainties.

    pip install pytorch-ood

The ensemble learns the digits 0 to 7; 8 and 9 are out of distribution. In both libraries a larger score means more out of
distribution. pytorch-ood marks out-of-distribution examples by a negative label.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pytorch_ood.detector import EnergyBased, KLMatching, MaxLogit, MaxSoftmax
from pytorch_ood.metrics import OODMetrics
from sklearn.datasets import load_digits
from torch import Tensor, nn

import multitudes as mt

KNOWN = 8


def trained(x: Tensor, y: Tensor) -> mt.Ensemble:
    """Trains a small deep ensemble for a few steps."""
    ens = mt.ensemble(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, KNOWN)), mt.Deep(), x[:2], seed=0)
    optimizer = torch.optim.Adam(ens.param_groups(lr=0.01))
    for _ in range(150):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        ens.loss(x[rows], y[rows], F.cross_entropy).backward()
        optimizer.step()
    return ens.eval()


def scores(pred: mt.Prediction, held_out: mt.Prediction) -> dict[str, Tensor]:
    """Out-of-distribution scores by name, [N] each."""
    logits = pred.members.logits.mean(0)
    detectors = {
        "MaxSoftmax": MaxSoftmax(None).predict_logits(pred.probs.log()),
        "MaxLogit": MaxLogit(None).predict_logits(logits),
        "EnergyBased": EnergyBased(None).predict_logits(logits),
        "KLMatching": KLMatching(None).fit_logits(held_out.probs.log(), held_out.targets).predict_logits(pred.probs.log()),
    }
    ours = {
        "1 − pred.confidence": 1 - pred.confidence,
        "−pred.max_logit": -pred.max_logit,
        "pred.energy": pred.energy,
        "pred.entropy": pred.entropy,
        "pred.mutual_information": pred.mutual_information,
    }
    return detectors | ours


def main() -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    digits = load_digits()
    order = torch.randperm(len(digits.target))
    x, y = torch.tensor(digits.data, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
    unknown, (x, y) = x[y >= KNOWN], (x[y < KNOWN], y[y < KNOWN])
    ens = trained(x[:600], y[:600])
    held_out = mt.predict(ens, torch.utils.data.TensorDataset(x[600:900], y[600:900]))
    test, ood = mt.predict(ens, x[900:]), mt.predict(ens, unknown)

    inside, outside, found = scores(test, held_out), scores(ood, held_out), {}
    for name in inside:
        labels = torch.cat([y[900:], torch.full((len(ood),), -1)])
        found[name] = OODMetrics().update(torch.cat([inside[name], outside[name]]), labels).compute()

    print(f"{len(test)} digits 0 to {KNOWN - 1}, and {len(ood)} that are none of these")
    print(f"{'score':<26}{'AUROC':>8}{'AUPR':>8}{'FPR95':>8}")
    for name, result in found.items():
        print(f"{name:<26}{result['AUROC']:>8.4f}{result['AUPR-OUT']:>8.4f}{result['FPR95TPR']:>8.4f}")
    own = mt.score(test, y[900:], ood=ood)
    print(f"{'mt.score, by msp':<26}" + "".join(f"{own[f'ood/{name}/msp']:>8.4f}" for name in ("auroc", "aupr_out", "fpr95")))
    return found | {"mt.score": dict(own)}


if __name__ == "__main__":
    main()
