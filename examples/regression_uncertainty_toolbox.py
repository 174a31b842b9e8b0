"""uncertainty-toolbox on our predictions: its metrics and its recalibration take the arrays of a Prediction.

    pip install uncertainty-toolbox

It describes a prediction by a mean and a standard deviation, as a Gaussian: `pred.mean` and `pred.std` of the mixture.
"""

from __future__ import annotations

import numpy as np
import torch
import uncertainty_toolbox as uct
from torch import nn

import multitudes as mt
from multitudes import data


def arrays(pred: mt.Prediction) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, standard deviations and targets, [N] each."""
    assert pred.targets is not None
    return tuple(values.flatten().double().numpy() for values in (pred.mean, pred.std, pred.targets))


def main() -> dict[str, dict[str, float]]:
    generator = torch.Generator().manual_seed(0)
    x = 6 * torch.rand(2000, 1, generator=generator) - 3
    y = torch.sin(2 * x) + (0.05 + 0.3 * (x > 0)) * torch.randn(x.shape, generator=generator)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))
    ens = mt.ensemble(net, mt.Deep(members=3), x[:2], task="gaussian", seed=0)
    mt.fit(ens, data.Data(x[:1000], y[:1000]), mt.Recipe(epochs=20, batch=64, lr=0.01, optimizer="adam"), progress=False)
    val, test = data.Data(x[1000:1500], y[1000:1500]), data.Data(x[1500:], y[1500:])
    held_out, pred = mt.predict(ens, val), mt.predict(ens, test)

    ratio = uct.recalibration.optimize_recalibration_ratio(*arrays(held_out))  # theirs: a factor of the standard deviation
    factor = mt.calibrate(held_out).variance  # ours: a factor of the members' variances
    mean, std, targets = arrays(pred)
    found = {"as trained": (mean, std), "their recalibration": (mean, ratio * std)}
    found["mt.calibrate"] = arrays(pred.calibrated(mt.calibrate(held_out)))[:2]

    ours, metrics = mt.score(pred), {}
    for name, (centre, spread) in found.items():
        accuracy = uct.metrics.get_all_accuracy_metrics(centre, targets, verbose=False)
        rules = uct.metrics.get_all_scoring_rule_metrics(centre, spread, targets, resolution=99, scaled=True, verbose=False)
        area = uct.metrics.miscalibration_area(centre, spread, targets)
        metrics[name] = {"rmse": accuracy["rmse"], "miscalibration": area, "nll": rules["nll"], "crps": rules["crps"]}
        print(f"{name:<22}" + "".join(f"{key} {value:.4f}   " for key, value in metrics[name].items()))
    print(f"{'mt.score':<22}rmse {ours['rmse']:.4f}   gaussian_nll {ours['gaussian_nll']:.4f}   crps {ours['crps']:.4f}")
    return {**metrics, "mt.score": dict(ours), "factors": {"theirs": float(ratio) ** 2, "ours": float(factor or 1.0)}}


if __name__ == "__main__":
    main()
