"""Binary cross entropy over classes, by hand; and the settings of a recipe that choose it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from training.small import TRAIN, VAL, made

import multitudes as mt
from multitudes.training.fit import fit
from multitudes.training.one_vs_all import one_vs_all
from multitudes.training.recipe import Recipe


def by_hand(logits: Tensor, shares: list[list[float]]) -> float:
    """−Σ y log σ(z) + (1 − y) log (1 − σ(z)), one entry after the other, over their number."""
    total, count = 0.0, 0
    for row, targets in zip(logits.tolist(), shares, strict=True):
        for z, y in zip(row, targets, strict=True):
            yes = 1 / (1 + math.exp(-z))
            total -= y * math.log(yes) + (1 - y) * math.log(1 - yes)
            count += 1
    return total / count


LOGITS = torch.tensor([[0.3, -1.2, 2.0], [1.1, 0.4, -0.7]], dtype=torch.float64)


def test_labels() -> None:
    expected = by_hand(LOGITS, [[0, 0, 1], [1, 0, 0]])
    assert one_vs_all(LOGITS, torch.tensor([2, 0])).item() == pytest.approx(expected, rel=1e-12)
    assert one_vs_all(LOGITS, torch.tensor([2, 0]), 0.2).item() == pytest.approx(expected, rel=1e-12)


def test_shares() -> None:
    """As they are, or by the threshold: above it a class is there, at it or below it is not."""
    shares = torch.tensor([[0.75, 0.25, 0.0], [0.2, 0.0, 0.8]], dtype=torch.float64)
    assert one_vs_all(LOGITS, shares).item() == pytest.approx(by_hand(LOGITS, shares.tolist()), rel=1e-12)
    assert one_vs_all(LOGITS, shares, 0.2).item() == pytest.approx(by_hand(LOGITS, [[1, 1, 0], [0, 0, 1]]), rel=1e-12)


def test_what_has_no_label_does_not_count() -> None:
    both = one_vs_all(LOGITS, torch.tensor([-100, 1]))
    assert both.item() == pytest.approx(by_hand(LOGITS[1:], [[0, 1, 0]]), rel=1e-12)
    assert one_vs_all(LOGITS, torch.tensor([-100, -100])).item() == 0


def test_pixels() -> None:
    """Classes are axis 1, as for cross entropy."""
    maps = LOGITS.T[None]  # one image of two pixels
    assert one_vs_all(maps, torch.tensor([[2, 0]])).item() == pytest.approx(by_hand(LOGITS, [[0, 0, 1], [1, 0, 0]]), rel=1e-12)


def test_half_precision_is_summed_in_full() -> None:
    logits = torch.full((64, 1000), -3.0)
    target = torch.zeros(64, dtype=torch.long)
    expected = by_hand(logits[:1].double(), [[1.0] + [0.0] * 999])
    assert one_vs_all(logits.bfloat16(), target).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("target", "says"), [(torch.tensor([2, 3]), "target 3"), (torch.tensor([[1.0, 0.5, 0.0]] * 2), "sum 1")]
)
def test_wrong_targets_are_named(target: Tensor, says: str) -> None:
    with pytest.raises(mt.InputError, match=says):
        one_vs_all(LOGITS, target)


def test_a_recipe_trains_by_it() -> None:
    """The loss of the only step is that of the members' outputs before it; validation still has the softmax's NLL."""
    recipe = Recipe(epochs=1, batch=200, lr=0.1, loss="bce", threshold=0.2)
    ens = made()
    x, y = TRAIN.tensors
    with torch.no_grad():
        before = sum(by_hand(out.double(), torch.eye(3)[y].tolist()) for out in ens.train()(x))
    run = fit(made(), TRAIN, recipe, val=VAL, progress=False)
    assert run.metrics[0]["loss"] == pytest.approx(before, rel=1e-5)
    trained = run.ensemble.eval()
    with torch.no_grad():
        probs = trained(VAL.tensors[0]).softmax(-1).mean(0)
    nll = -probs[torch.arange(len(VAL)), VAL.tensors[1]].log().mean().item()
    assert run.metrics[0]["val_nll"] == pytest.approx(nll, rel=1e-5)


def test_parts_of_a_step_are_one_step() -> None:
    """A batch in two parts has the loss of the whole, though one part has fewer labels."""
    x, y = TRAIN.tensors
    some = torch.utils.data.TensorDataset(x, torch.where(torch.arange(200) % 3 == 0, -100, y))
    losses = []
    for parts in (1, 2):
        torch.manual_seed(0)
        ens = mt.ensemble(torch.nn.Linear(6, 3), mt.Single(), x[:2], seed=0)
        run = fit(ens, some, Recipe(epochs=1, batch=200, lr=0.0, loss="bce", accumulate=parts), progress=False)
        losses.append(run.metrics[0]["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_where_it_makes_no_sense() -> None:
    regression = mt.ensemble(torch.nn.Linear(6, 1), mt.Deep(members=2), TRAIN.tensors[0][:2], task="regression", seed=0)
    with pytest.raises(mt.InputError, match=r"for classes.*regression"):
        fit(regression, TRAIN, Recipe(loss="bce"))
    with pytest.raises(mt.InputError, match="criterion="):
        fit(made(), TRAIN, Recipe(loss="bce"), criterion=torch.nn.CrossEntropyLoss())
    with pytest.raises(mt.InputError, match="loss='bce'"):
        Recipe(threshold=0.2)
