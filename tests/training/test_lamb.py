"""LAMB: the update of each member is that of its network alone, and that of the paper's formula."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from interruption import interrupted
from torch import Tensor, nn
from training.small import TRAIN, X, Y, made, same

import multitudes as mt
from multitudes.engine.modules import named_tensors
from multitudes.training.fit import fit
from multitudes.training.lamb import LAMB
from multitudes.training.recipe import Recipe

LR, DECAY = 0.05, 0.02


def by_formula(weight: np.ndarray, grads: list[np.ndarray], adapted: bool) -> np.ndarray:
    """Algorithm 2 of the paper for one tensor, in double precision: means as sums over all gradients so far."""
    weight = weight.astype(np.float64)
    for t in range(1, len(grads) + 1):
        powers = [(0.1 * 0.9 ** (t - s), 0.001 * 0.999 ** (t - s)) for s in range(1, t + 1)]
        mean = sum(a * g for (a, _), g in zip(powers, grads, strict=False)) / sum(a for a, _ in powers)
        square = sum(b * g**2 for (_, b), g in zip(powers, grads, strict=False)) / sum(b for _, b in powers)
        update = mean / (np.sqrt(square) + 1e-6)
        if adapted:
            update = update + DECAY * weight
            update = update * np.sqrt((weight**2).sum()) / np.sqrt((update**2).sum())
        weight = weight - LR * update
    return weight


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 4), (3, 2, 1, 2, 2)])
def test_the_formula(shape: tuple[int, ...], stacked: bool) -> None:
    """Three steps: each member's slice by its own norms, or the whole tensor by one; what has one axis has no ratio."""
    start, *grads = drawn(shape, shape, shape, shape)
    weight = nn.Parameter(start * torch.tensor([1.0, 5.0, 0.1]).view(3, *(1 for _ in shape[1:])))
    parts = [weight.detach().numpy().copy()] if not stacked else list(weight.detach().numpy().copy())
    optimizer = LAMB([weight], lr=LR, weight_decay=DECAY, stacked=stacked)
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
    for m, part in enumerate(parts):
        its = [(grad[m] if stacked else grad).double().numpy() for grad in grads]
        expected = by_formula(part, its, adapted=part.ndim > 1)
        result = (weight.detach()[m] if stacked else weight.detach()).numpy()
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


def test_without_weight_decay_the_step_is_adams() -> None:
    """As in timm: a group without decay has no ratio."""
    start, grad = drawn((4, 5), (4, 5))
    ours, adams = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    steps = [LAMB([ours], lr=LR, stacked=False), torch.optim.Adam([adams], lr=LR, eps=1e-6)]
    for _ in range(3):
        for weight, optimizer in zip((ours, adams), steps, strict=True):
            weight.grad = grad.clone()
            optimizer.step()
    torch.testing.assert_close(ours, adams)


def test_a_weight_of_zero_moves() -> None:
    """The ratio is then 1."""
    weight = nn.Parameter(torch.zeros(2, 3, 3))
    weight.data[1] = 1.0
    weight.grad = torch.ones_like(weight)
    LAMB([weight], lr=LR, weight_decay=DECAY, stacked=True).step()
    torch.testing.assert_close(weight[0], torch.full((3, 3), -LR))


@pytest.mark.parametrize("method", [mt.Deep(members=3), mt.Packed(members=4, alpha=2)])
def test_members_train_as_they_would_alone(method: mt.Method) -> None:
    """Four steps on the stack, with one member's gradients a hundred times larger, equal separate runs of each network."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    ens = mt.ensemble(net, method, torch.randn(5, 4)).train()
    nets = [ens.member(m).train() for m in range(ens.members)]
    ours = LAMB(ens.param_groups(lr=LR, weight_decay=DECAY, optimizer=LAMB))
    theirs = [LAMB(one.parameters(), lr=LR, weight_decay=DECAY, stacked=False) for one in nets]
    factors = [1.0, 100.0, 1.0, 0.01]
    for _ in range(4):
        x, y = torch.randn(6, 4), torch.randint(3, (6,))
        ours.zero_grad()
        sum(f * F.cross_entropy(out, y) for f, out in zip(factors, ens(x), strict=False)).backward()
        ours.step()
        for factor, one, optimizer in zip(factors, nets, theirs, strict=False):
            optimizer.zero_grad()
            (factor * F.cross_entropy(one(x), y)).backward()
            optimizer.step()
    for name, tensor in named_tensors(ens.template):
        expected = torch.stack([dict(named_tensors(one))[name] for one in nets])
        torch.testing.assert_close(tensor, expected, rtol=1e-4, atol=1e-5, msg=name)


def test_groups_say_what_is_stacked() -> None:
    """Shared weights and the summed slots of MIMO have one norm; a head of members one for each."""
    ens = made(mt.MIMO(members=3))
    groups = ens.param_groups(lr=0.1, weight_decay=0.1, optimizer=LAMB)
    said = {name: group["stacked"] for group in groups for name in group["names"]}
    assert said.keys() == dict(ens.named_parameters()).keys()
    assert {name for name, stacked in said.items() if stacked} == {"3.weight", "3.bias"}
    factors = made(mt.BatchEnsemble(members=2)).param_groups(lr=0.1, weight_decay=0.1, optimizer=LAMB)
    assert {(group["kind"], group["stacked"], group["weight_decay"]) for group in factors} == {
        ("shared", False, 0.1), ("factors", True, 0.0), ("biases", True, 0.1),
    }  # fmt: skip


def test_other_lambs_are_refused() -> None:
    """One that does not know members would mix them; ours without their axis too."""

    class Lamb(torch.optim.Adam):
        pass

    ens = made()
    with pytest.raises(mt.InputError, match=r"Lamb.*multitudes\.training\.lamb\.LAMB"):
        ens.param_groups(lr=0.1, optimizer=Lamb)
    with pytest.raises(mt.InputError, match=r"optimizer=LAMB.*stacked=False"):
        LAMB(ens.param_groups(lr=0.1))


@pytest.mark.parametrize("method", [mt.Deep(members=2), mt.BatchEnsemble(members=2)])
def test_a_recipe_with_lamb(method: mt.Method) -> None:
    """`fit` takes the steps of a loop of one's own."""
    recipe = Recipe(epochs=1, batch=200, lr=LR, weight_decay=DECAY, optimizer="lamb", seed=3)
    ens, own = made(method), made(method)
    fit(ens, TRAIN, recipe, progress=False)
    own.train()
    optimizer = LAMB(own.param_groups(lr=LR, weight_decay=DECAY, optimizer=LAMB))
    own.loss(X[:200], Y[:200], F.cross_entropy).backward()
    optimizer.step()
    for (name, ours), theirs in zip(ens.named_parameters(), own.parameters(), strict=True):
        if name != "0.bias":  # before BatchNorm its gradient is rounding alone
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5, msg=name)


def test_a_run_with_lamb_resumes(tmp_path: Path) -> None:
    """With the means and the number of steps: bit for bit the run that was not interrupted."""
    recipe = Recipe(epochs=3, batch=50, lr=0.02, weight_decay=DECAY, optimizer="lamb", schedule="cosine")
    whole, cut = made(), made()
    fit(whole, TRAIN, recipe, progress=False)
    with interrupted(2 * (len(TRAIN) // 50) + 1):
        fit(cut, TRAIN, recipe, out=tmp_path, progress=False)
    again = made()
    fit(again, TRAIN, recipe, out=tmp_path, resume=True, progress=False)
    assert same(again, whole)
