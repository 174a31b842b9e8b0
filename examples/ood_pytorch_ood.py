"""Out-of-distribution detection with pytorch-ood: its detectors on our predictions, its metrics on our uncertainties.

    pip install pytorch-ood

The ensemble learns the digits 0 to 7; 8 and 9 are out of distribution. In both libraries a larger score means more out of
distribution. pytorch-ood marks out-of-distribution examples by a negative label.
"""

import torch
import torch.nn.functional as F
from pytorch_ood.detector import EnergyBased, KLMatching, MaxLogit, MaxSoftmax
from pytorch_ood.metrics import OODMetrics
from torch import nn

import multitudes as mt
from multitudes import data

KNOWN = 8


def main() -> dict[str, dict[str, float]]:
    torch.manual_seed(0)
    digits = data.digits()
    x, y = digits.batch(torch.randperm(len(digits)))
    x, known = x.flatten(1), y < KNOWN
    unknown, (x, y) = x[~known], (x[known], y[known])
    ens = mt.ensemble(nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, KNOWN)), mt.Deep(members=4), x[:2], seed=0)
    optimizer = torch.optim.Adam(ens.train().param_groups(lr=0.01))
    for rows in (torch.randint(600, (64,)) for _ in range(150)):
        optimizer.zero_grad()
        ens.loss(x[rows], y[rows], F.cross_entropy).backward()
        optimizer.step()

    held_out, pred = mt.predict(ens, x[600:900]), mt.predict(ens, torch.cat([x[900:], unknown]))
    logits, logs = pred.members.logits.mean(0), pred.probs.log()
    scores = {
        "MaxSoftmax": MaxSoftmax(None).predict_logits(logs),
        "MaxLogit": MaxLogit(None).predict_logits(logits),
        "EnergyBased": EnergyBased(None).predict_logits(logits),
        "KLMatching": KLMatching(None).fit_logits(held_out.probs.log(), y[600:900]).predict_logits(logs),
        "1 − pred.confidence": 1 - pred.confidence,
        "−pred.max_logit": -pred.max_logit,
        "pred.energy": pred.energy,
        "pred.entropy": pred.entropy,
        "pred.mutual_information": pred.mutual_information,
    }
    labels = torch.cat([y[900:], torch.full((len(unknown),), -1)])
    found = {name: OODMetrics().update(score, labels).compute() for name, score in scores.items()}

    print(f"{'score':<26}{'AUROC':>8}{'AUPR':>8}{'FPR95':>8}")
    for name, result in found.items():
        print(f"{name:<26}{result['AUROC']:>8.4f}{result['AUPR-OUT']:>8.4f}{result['FPR95TPR']:>8.4f}")
    own = mt.score(mt.predict(ens, x[900:]), y[900:], ood=mt.predict(ens, unknown))
    print(f"{'mt.score, by msp':<26}" + "".join(f"{own[f'ood/{name}/msp']:>8.4f}" for name in ("auroc", "aupr_out", "fpr95")))
    return found | {"mt.score": dict(own)}


if __name__ == "__main__":
    main()
