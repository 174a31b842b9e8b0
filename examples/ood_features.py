"""Out-of-distribution scores of outputs and of features: an ensemble learns the digits 0 to 7, and meets 8 and 9."""

from __future__ import annotations

import torch
from torch import nn

import multitudes as mt
from multitudes import data
from multitudes.scores import outliers

KNOWN = 8


def main() -> dict[str, float]:
    digits = data.digits()
    x, y = digits.batch(torch.randperm(len(digits), generator=torch.Generator().manual_seed(0)))
    x, known = x.flatten(1), y < KNOWN
    unknown, (x, y) = x[~known], (x[known], y[known])
    train, test = data.Data(x[:800], y[:800]), data.Data(x[800:], y[800:])

    net = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, KNOWN))
    ens = mt.ensemble(net, mt.Deep(members=3), x[:2], seed=0)
    mt.fit(ens, train, mt.Recipe(epochs=10, batch=64, lr=0.01, optimizer="adam"), progress=False)

    find = outliers(mt.predict(ens, train, features=True), k=10)
    near, far = (find(mt.predict(ens, one, features=True)) for one in (test, unknown))
    scores = mt.score(near, ood=far)

    print(f"{find}\n{len(near)} digits 0 to {KNOWN - 1}, and {len(far)} that are none of these")
    print(f"{'score':<22}{'AUROC':>8}{'FPR95':>8}")
    found = {key.rpartition("/")[2]: value for key, value in scores.items() if key.startswith("ood/auroc/")}
    for name, value in found.items():
        print(f"{name:<22}{value:>8.4f}{scores[f'ood/fpr95/{name}']:>8.4f}")
    return found


if __name__ == "__main__":
    main()
