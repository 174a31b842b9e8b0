"""Single: the network itself."""

from __future__ import annotations

import torch
from laws.compare import owned
from zoo import ZOO

import multitudes as mt


def test_it_is_the_given_network() -> None:
    """It keeps the weights it is given, whatever the seed, and answers [1, B, K]."""
    case = ZOO["resnet"]
    model, x = case.model(), case.example()
    ens = mt.ensemble(model, mt.Single(), x, seed=3)
    torch.testing.assert_close(ens(*x.args), model(*x.args)[None])
    assert {name: t.shape for name, t in ens.state_dict().items()} == {n: t.shape for n, t in model.state_dict().items()}
    assert not owned(ens)
    assert ens.plan.converted == ()
    assert "with its weights" in str(ens.plan)


def test_training_it_is_training_the_network() -> None:
    """A step of SGD gives the weights and the statistics that the network alone would have."""
    case = ZOO["resnet"]
    model, x = case.model(train=True), case.example()
    y = case.target(model(*x.args))
    model = case.model(train=True)
    ens = mt.ensemble(model, mt.Single(), x)
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (ens, model)]
    for _ in range(3):
        ens.loss(x, y, case.criterion).backward()
        case.criterion(model(*x.args), y).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(dict(ens.state_dict()), dict(model.state_dict()))
