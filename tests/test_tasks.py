"""Tasks: how members' outputs become one, against direct formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from laws.compare import convert
from torch import Tensor
from zoo import ZOO

import multitudes as mt
from multitudes.tasks import TASKS, checked, combine

MEMBERS = torch.randn(4, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_classes() -> None:
    """The log of the mean probability: its softmax is the mean of the softmaxes."""
    combined = combine(MEMBERS, "classes")
    torch.testing.assert_close(combined.exp(), MEMBERS.softmax(2).mean(0))
    torch.testing.assert_close(combined.logsumexp(1), torch.zeros(3, dtype=torch.float64))


def test_classes_at_every_pixel() -> None:
    """The class axis is the one behind the batch, at any rank."""
    dense = torch.randn(4, 3, 5, 2, 2, dtype=torch.float64)
    torch.testing.assert_close(combine(dense, "classes").exp(), dense.softmax(2).mean(0))


@pytest.mark.parametrize("task", ["binary", "multilabel"])
@pytest.mark.parametrize("scores", [MEMBERS, MEMBERS[:, :, 0]])
def test_binary_and_multilabel(task: str, scores: Tensor) -> None:
    """The logit of the mean probability, for each label."""
    torch.testing.assert_close(combine(scores, task).sigmoid(), scores.sigmoid().mean(0))


def test_gaussian() -> None:
    """Mean and variance of the mixture: the mean variance and the variance of the means."""
    mean, raw = MEMBERS.chunk(2, 2)
    combined_mean, combined_raw = combine(MEMBERS, "gaussian").chunk(2, 1)
    torch.testing.assert_close(combined_mean, mean.mean(0))
    second = (F.softplus(raw) + mean**2).mean(0)
    torch.testing.assert_close(F.softplus(combined_raw), second - mean.mean(0) ** 2)


def test_regression() -> None:
    """The mean."""
    torch.testing.assert_close(combine(MEMBERS, "regression"), MEMBERS.mean(0))


@pytest.mark.parametrize("task", TASKS)
def test_one_member_is_itself(task: str) -> None:
    """The mixture of one is that one: exactly, or up to a constant over the classes."""
    combined = combine(MEMBERS[:1], task)
    expected = MEMBERS[0].log_softmax(1) if task == "classes" else MEMBERS[0]
    torch.testing.assert_close(combined, expected)


@pytest.mark.parametrize("task", TASKS)
def test_scores_far_from_zero(task: str) -> None:
    """No infinity and no NaN where a member is sure of itself, and gradients are finite too."""
    scores = (MEMBERS * 200).float().requires_grad_(True)
    combined = combine(scores, task)
    combined.sum().backward()
    assert combined.isfinite().all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("task", TASKS)
def test_average_is_a_plain_network(task: str) -> None:
    """`ens.average()` combines by the task that the ensemble was given, with gradients, for code that knows no members."""
    case = ZOO["one_layer"] if task != "gaussian" else ZOO["mlp"]
    if task == "gaussian":
        net = torch.nn.Linear(4, 6).double()
        ens = mt.ensemble(net, mt.Deep(), case.example(), task=task, seed=0)
    else:
        ens = convert(mt.Deep(), case, task=task)
    x = case.example().args[0]
    average = ens.average()
    assert isinstance(average, torch.nn.Module)
    torch.testing.assert_close(average(x), combine(ens(x), task))
    average(x).sum().backward()
    assert ens.get_parameter("weight").grad is not None
    assert len(list(average.parameters())) == len(list(ens.parameters()))


def test_average_of_several_outputs() -> None:
    """The output that is meant has to be named; the error lists them."""
    case = ZOO["dict_output"]
    ens, x = convert(mt.Deep(), case), case.example().args[0]
    torch.testing.assert_close(ens.average(output="scores")(x), combine(ens(x)["scores"], "classes"))
    with pytest.raises(mt.InputError, match=r"scores, features.*average\(output="):
        ens.average()(x)
    with pytest.raises(mt.InputError, match="scores, features"):
        ens.average(output="logits")(x)


def test_outputs_that_do_not_fit_the_task() -> None:
    """Scores without a class axis, an odd number of gaussian outputs."""
    with pytest.raises(mt.InputError, match=r"task='classes' needs class scores.*\[4, 3\]"):
        combine(MEMBERS[:, :, 0], "classes")
    with pytest.raises(mt.InputError, match=r"means and variances.*\[4, 3, 5\]"):
        combine(MEMBERS[:, :, :5], "gaussian")


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_one(task: str) -> None:
    """And nothing else is."""
    assert checked(task) == task
    with pytest.raises(mt.InputError):
        checked(task + "s")
