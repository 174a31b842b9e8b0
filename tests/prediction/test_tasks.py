"""Tasks: combined outputs of members against direct formulas."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from laws.compare import convert
from torch import Tensor
from zoo import ZOO

import multitudes as mt
from multitudes.engine.selected_output import output_of
from multitudes.prediction.tasks import FLOOR, TASKS, checked_task, combine, values_of, variance_of
from multitudes.prediction.temperature import Calibrator

MEMBERS = torch.randn(4, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_classes() -> None:
    """The log of the mean probability: its softmax is the mean of the softmaxes."""
    combined = combine(MEMBERS, "classes")
    torch.testing.assert_close(combined.exp(), MEMBERS.softmax(2).mean(0))
    torch.testing.assert_close(combined.logsumexp(1), torch.zeros(3, dtype=torch.float64))


def test_classes_at_every_pixel() -> None:
    """The class axis is the second of a member's output, for outputs of any rank."""
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
    """Outputs are averaged."""
    torch.testing.assert_close(combine(MEMBERS, "regression"), MEMBERS.mean(0))


@pytest.mark.parametrize("task", TASKS)
def test_one_member_is_itself(task: str) -> None:
    """The mixture of one member equals that member, for classes up to a constant."""
    combined = combine(MEMBERS[:1], task)
    expected = MEMBERS[0].log_softmax(1) if task == "classes" else MEMBERS[0]
    torch.testing.assert_close(combined, expected)


@pytest.mark.parametrize("task", TASKS)
def test_scores_far_from_zero(task: str) -> None:
    """Large logits give no infinity and no NaN, and gradients are finite."""
    scores = (MEMBERS * 200).float().requires_grad_(True)
    combined = combine(scores, task)
    combined.sum().backward()
    assert combined.isfinite().all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("task", TASKS)
def test_average_is_a_plain_network(task: str) -> None:
    """`ens.average()` combines members by the ensemble's task and passes gradients on."""
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
    """`output` chooses one by its name; without it, the error lists the names."""
    case = ZOO["dict_output"]
    ens, x = convert(mt.Deep(), case), case.example().args[0]
    torch.testing.assert_close(ens.average(output="scores")(x), combine(ens(x)["scores"], "classes"))
    for wrong in (None, "logits"):
        with pytest.raises(mt.InputError, match="scores, features"):
            ens.average(output=wrong)(x)


def test_average_of_tokens() -> None:
    """With class_axis=-1, classes stay the last axis."""
    case = ZOO["tied"]
    ens, x = convert(mt.Deep(), case), case.example().args[0]
    average = ens.average(class_axis=-1)(x)
    torch.testing.assert_close(average.exp(), ens(x).softmax(-1).mean(0))
    assert not torch.allclose(ens.average()(x).exp(), ens(x).softmax(-1).mean(0))


@pytest.mark.parametrize("name", ["mlp", "tied", "unet"])
def test_average_is_what_a_prediction_says(name: str) -> None:
    """The average is the log of the prediction's probabilities, calibrated or not, for every class axis."""
    case, axis = ZOO[name], -1 if name == "tied" else 1
    ens, x = convert(mt.Deep(), case), case.example().args[0]
    for calibrator in (None, Calibrator(mixture=2.5), Calibrator(members=(0.5, 1.0, 2.0, 4.0))):
        ens.calibrator = calibrator
        average = ens.average(class_axis=axis)(x).detach()
        torch.testing.assert_close(average.exp().movedim(axis, 1), mt.predict(ens, x, class_axis=axis).probs)


@pytest.mark.parametrize("task", ["binary", "multilabel"])
def test_a_calibrated_average_of_yes_and_no(task: str) -> None:
    """The average is the logit of the prediction's probabilities."""
    ens, x = convert(mt.Deep(), ZOO["one_layer"], task=task), ZOO["one_layer"].example().args[0]
    for calibrator in (Calibrator(mixture=2.5), Calibrator(members=(0.5, 1.0, 2.0, 4.0))):
        ens.calibrator = calibrator
        torch.testing.assert_close(ens.average()(x).detach().sigmoid(), mt.predict(ens, x).probs)


def test_a_calibrated_average_can_be_trained_through() -> None:
    """Gradients reach every member."""
    ens, x = convert(mt.Deep(), ZOO["one_layer"]), ZOO["one_layer"].example().args[0]
    ens.calibrator = Calibrator(mixture=2.5)
    ens.average()(x)[:, 0].sum().backward()
    assert (ens.get_parameter("weight").grad.abs().flatten(1).sum(1) > 0).all()


@pytest.mark.parametrize("task", TASKS)
def test_what_outputs_mean(task: str) -> None:
    """Classification has logits, a Gaussian head means and softplus variances, regression means."""
    found = values_of(MEMBERS, task)
    if task == "gaussian":
        torch.testing.assert_close(found, {"mean": MEMBERS[:, :, :3], "variance": F.softplus(MEMBERS[:, :, 3:])})
    else:
        assert found.keys() == {"mean" if task == "regression" else "logits"}
        assert torch.equal(next(iter(found.values())), MEMBERS)
    assert not any(value.requires_grad for value in values_of(MEMBERS.clone().requires_grad_(True), task).values())
    assert {value.dtype for value in values_of(MEMBERS.bfloat16(), task).values()} == {torch.float32}


def test_the_precision_of_an_observation() -> None:
    """The noise is every member's variance, in task 'regression' only; each target may have its own."""
    found = values_of(MEMBERS, "regression", 0.25)
    assert torch.equal(found["variance"], torch.full_like(MEMBERS, 0.25))
    each = torch.arange(1.0, MEMBERS.shape[-1] + 1)
    assert torch.equal(values_of(MEMBERS, "regression", each)["variance"], each.to(MEMBERS).expand_as(MEMBERS))
    assert "variance" not in values_of(MEMBERS, "regression")
    assert values_of(MEMBERS, "classes", 0.25).keys() == {"logits"}
    torch.testing.assert_close(values_of(MEMBERS, "gaussian", 0.25)["variance"], F.softplus(MEMBERS[:, :, 3:]))


def test_a_variance_has_a_floor() -> None:
    """The variance is at least FLOOR, where softplus underflows to 0."""
    raw = torch.tensor([-200.0, 0.0, 50.0])
    torch.testing.assert_close(variance_of(raw), torch.tensor([FLOOR, torch.log(torch.tensor(2.0)), 50.0]))


def test_which_output_is_meant() -> None:
    """The only output, or the one that is named, at any depth."""
    a, b = torch.zeros(1), torch.ones(1)
    assert output_of(a, None) is a
    assert output_of({"scores": a, "note": "text"}, None) is a
    assert output_of({"scores": a, "more": [a, {"deep": b}]}, "more.1.deep") is b


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_one(task: str) -> None:
    """Other names are refused."""
    assert checked_task(task) == task
    with pytest.raises(mt.InputError):
        checked_task(task + "s")
