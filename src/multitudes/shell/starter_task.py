"""A task of your own, to start from: a network, datasets, and how to train.

Train one method, or compare several:

    multitudes train --task MODULE:task --method packed --out runs/packed
    multitudes bench --task MODULE:task --methods single,packed,deep --out runs/first
"""

import torch
from torch import nn

import multitudes as mt
from multitudes.data import Data
from multitudes.shell.jobs import Job


def network() -> nn.Module:
    """Your network: any nn.Module. Here two numbers go in, and one logit per class comes out."""
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def examples(count: int, seed: int) -> Data:
    """Your data: inputs [N, ...] and labels [N], whole numbers from 0. Here they are three groups of points.

    Other sources: a torch dataset of pairs, or multitudes.data.folder("photos") for images in one folder per class.
    """
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = 2 * torch.stack([(2.1 * labels).cos(), (2.1 * labels).sin()], 1)
    points = centres + 0.9 * torch.randn(count, 2, generator=random)
    return Data(points, labels, name="groups", classes=["red", "green", "blue"])


def between(count: int) -> Data:
    """Inputs unlike those of training, of which a good ensemble is unsure. Here they lie between the groups."""
    points = 0.4 * torch.randn(count, 2, generator=torch.Generator().manual_seed(3))
    return Data(points, torch.zeros(count, dtype=torch.long), name="between")  # their labels are not used


def task() -> Job:
    """What `--task MODULE:task` names. `help(Job)` lists all fields."""
    return Job(
        name="groups",
        network=network,
        train=examples(1500, seed=0),
        validation=examples(300, seed=1),  # chooses the best epoch, and fits the temperature
        test=examples(600, seed=2),
        ood={"between": between(300)},
        recipe=mt.Recipe(epochs=20, batch=64, lr=0.003, optimizer="adam"),
        about="Three groups of points; points between them are out of distribution.",
        # Numbers instead of classes: let the network end in nn.Linear(64, 2), for a mean and a variance, give targets as
        # floats [N], and add here
        #     task="gaussian",
    )
