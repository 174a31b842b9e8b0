"""Conformal prediction in one call: every score of `mt.conformal` on the embedded images and on a curve of varying noise."""

from __future__ import annotations

import torch
from torch import nn

import multitudes as mt
from multitudes import data, models

LEVEL = 0.9


def images() -> tuple[mt.Prediction, mt.Prediction]:
    """Predictions of held-out and of test images, by a small ensemble."""
    train, val, test = (data.fashion(split) for split in ("train", "validation", "test"))
    ens = mt.ensemble(models.SmallCNN(channels=1), mt.Packed(members=4, alpha=2), test.batch([0, 1])[0], seed=0)
    recipe = mt.Recipe(epochs=1, batch=64, lr=0.003, optimizer="adamw")
    mt.fit(ens, train.subset(range(1000)), recipe, progress=False)
    return mt.predict(ens, val), mt.predict(ens, test)


def curve() -> tuple[mt.Prediction, mt.Prediction]:
    """Predictions of held-out and of test numbers; there is more noise on the right."""
    generator = torch.Generator().manual_seed(0)
    x = 6 * torch.rand(3000, 1, generator=generator) - 3
    y = torch.sin(2 * x) + (0.05 + 0.3 * (x > 0)) * torch.randn(x.shape, generator=generator)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))
    ens = mt.ensemble(net, mt.Deep(members=3), x[:2], task="gaussian", seed=0)
    mt.fit(ens, data.Data(x[:1000], y[:1000]), mt.Recipe(epochs=20, batch=64, lr=0.01, optimizer="adam"), progress=False)
    return mt.predict(ens, data.Data(x[1000:2000], y[1000:2000])), mt.predict(ens, data.Data(x[2000:], y[2000:]))


def main() -> dict[str, dict[str, float]]:
    found = {}
    for held_out, test, scores in ((*images(), ("thr", "aps", "raps")), (*curve(), ("split", "scaled", "cqr"))):
        for score in scores:
            found[score] = mt.conformal(held_out, level=LEVEL, score=score)(test).scores()

    print(f"asked for {LEVEL:.0%} coverage\n{'score':<10}{'coverage':>10}{'size':>8}{'coverage of the worst size':>30}")
    for score, (coverage, size, worst) in ((name, values.values()) for name, values in found.items()):
        print(f"{score:<10}{coverage:>10.3f}{size:>8.2f}{worst:>30.3f}")
    return found


if __name__ == "__main__":
    main()
