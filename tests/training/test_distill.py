"""distill: losses against torch's, a student that predicts what the ensemble does, and beats a network trained alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Dirichlet, Normal, kl_divergence
from torch.utils.data import TensorDataset

import multitudes as mt
from multitudes import data
from multitudes.data import Data
from multitudes.models import MLP, LeNet
from multitudes.prediction.targets import IGNORED
from multitudes.prediction.tasks import variance_of
from multitudes.training.distill import Matching, dirichlet_members, distill

X = torch.randn(128, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, :3].argmax(1)
FEW = mt.Recipe(epochs=30, batch=32, lr=0.01, optimizer="adam")


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_loss_is_the_divergence_of_softened_probabilities(temperature: float) -> None:
    torch.manual_seed(0)
    output, soft = torch.randn(5, 4), torch.randn(5, 4).softmax(1)
    found = Matching("classes", temperature)(output, soft)
    wanted = temperature**2 * kl_divergence(Categorical(soft), Categorical(logits=output / temperature)).mean()
    torch.testing.assert_close(found, wanted)
    both = Matching("classes", temperature, labels=0.25)(
        output, torch.cat([soft, torch.tensor([[0.0], [3], [1], [2], [2]])], 1)
    )
    torch.testing.assert_close(both, 0.75 * wanted + 0.25 * F.cross_entropy(output, torch.tensor([0, 3, 1, 2, 2])))


def test_the_loss_of_a_distribution_is_its_negative_log_density() -> None:
    """Of the mean over members; it is least at the Dirichlet that members come from."""
    torch.manual_seed(0)
    alpha = torch.tensor([[0.7, 2.0, 5.0]]).double()
    members = Dirichlet(alpha).sample(torch.Size([50_000]))
    target, loss = members.log().mean(0), Matching("classes", distribution=True)
    torch.testing.assert_close(loss(alpha.log(), target), -Dirichlet(alpha).log_prob(members).mean())
    for other in (0.8, 1.2):
        assert loss((other * alpha).log(), target) > loss(alpha.log(), target)


def test_the_loss_of_a_gaussian_is_the_cross_entropy_with_the_mixture() -> None:
    """Up to a constant: at the mixture's moments there is no gradient."""
    output = torch.randn(6, 2, requires_grad=True)
    mean, variance = output[:, :1].detach(), variance_of(output[:, 1:]).detach()
    loss = Matching("gaussian")
    loss(output, torch.cat([mean, variance], 1)).backward()
    torch.testing.assert_close(output.grad, torch.zeros(6, 2), atol=1e-6, rtol=0)
    wanted = torch.cat([mean + 1, 2 * variance], 1)
    gap = loss(output, wanted) - loss(torch.cat([wanted[:, :1], _raw(wanted[:, 1:])], 1), wanted)
    true = kl_divergence(Normal(mean + 1, (2 * variance).sqrt()), Normal(mean, variance.sqrt())).mean()
    torch.testing.assert_close(gap.detach(), true, rtol=1e-4, atol=1e-5)


def _raw(variance: Tensor) -> Tensor:
    """The raw output of a variance."""
    return variance + torch.log(-torch.expm1(-variance))


def trained(task: str, targets: Tensor, outputs: int) -> mt.Ensemble:
    """Three small networks."""
    torch.manual_seed(0)
    ens = mt.ensemble(MLP(4, (16,), outputs), mt.Deep(members=3), X[:2], task=task, seed=0)
    mt.fit(ens, Data(X, targets), replace(FEW, epochs=5), progress=False)
    return ens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "targets", "outputs"),
    [
        ("classes", Y, 3), ("binary", X[:, :1].gt(0).float(), 1), ("multilabel", X[:, :2].gt(0).float(), 2),
        ("regression", X[:, :1] * 2, 1), ("gaussian", X[:, :1] * 2, 2),
    ],
)  # fmt: skip
def test_a_student_predicts_what_the_ensemble_does(task: str, targets: Tensor, outputs: int) -> None:
    """The mixture, on inputs that it has not seen; the given network is not changed, the calibrator is kept."""
    ens, student = trained(task, targets, outputs), MLP(4, (64,), outputs)
    if task in ("classes", "gaussian"):
        ens.calibrator = mt.calibrate(mt.predict(ens, Data(X, targets)))
    before = [p.clone() for p in student.parameters()]
    taught = distill(ens, student, Data(X, torch.zeros_like(targets)), replace(FEW, epochs=100), progress=False)
    assert all(torch.equal(p, q) for p, q in zip(student.parameters(), before, strict=True))
    assert (taught.method, taught.task) == (mt.Single(), task)
    kept, ens.calibrator = ens.calibrator, None
    assert (kept is not None) == (task in ("classes", "gaussian"))
    other = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))
    found, wanted = (_summary(mt.predict(one, other)) for one in (taught, ens))
    assert float((found - wanted).abs().mean()) < 0.15 * float((wanted - wanted.mean(0)).abs().mean())


def _summary(pred: mt.Prediction) -> Tensor:
    return pred.probs if pred.task in ("classes", "binary", "multilabel") else pred.mean


@pytest.mark.slow
def test_a_student_of_the_distribution_keeps_disagreement() -> None:
    """Draws of its Dirichlets disagree where members do."""
    ens = trained("classes", Y, 3)
    taught = distill(ens, MLP(4, (64,), 3), Data(X, Y), replace(FEW, epochs=100), distribution=True, progress=False)
    members = dirichlet_members(mt.predict(taught, X), members=200)
    whole = mt.predict(ens, X)
    assert members.count == 200
    assert float((members.probs - whole.probs).abs().mean()) < 0.06
    pair = torch.stack([members.mutual_information, whole.mutual_information])
    assert float(torch.corrcoef(pair)[0, 1]) > 0.5


@pytest.mark.slow
def test_a_student_beats_the_same_network_trained_alone() -> None:
    """500 labelled images; the ensemble labels 1,500 for the student, which has the steps of the network alone."""
    labelled, inputs, test = (
        data.fashion("train").subset(range(500)),
        data.fashion("train").subset(range(1500)),
        data.fashion("test"),
    )
    x, recipe = (
        labelled.batch(torch.arange(2))[0],
        mt.Recipe(epochs=30, batch=25, lr=0.003, optimizer="adamw", schedule="onecycle"),
    )
    nets: list[nn.Module] = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        nets.append(LeNet())
    deep, alone = (
        mt.ensemble(net, method, x, seed=0) for net, method in zip(nets, (mt.Deep(members=3), mt.Single()), strict=True)
    )
    for ens in (deep, alone):
        mt.fit(ens, labelled, recipe, progress=False)
    student = distill(deep, nets[1], inputs, replace(recipe, epochs=10), progress=False)
    scores: list[Any] = [mt.score(mt.predict(ens, test)) for ens in (alone, student, deep)]
    nll, accuracy = ([float(s[key]) for s in scores] for key in ("nll", "accuracy"))
    print(f"alone, student, ensemble: accuracy {accuracy}, NLL {nll}")
    assert nll[1] < 0.8 * nll[0]
    assert accuracy[1] > accuracy[0] - 0.005
    assert abs(accuracy[1] - accuracy[2]) < 0.03


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": 0.0}, "temperature=0.0 must be above 0|temperature"),
        ({"labels": 0.5, "distribution": True}, "cannot be mixed"),
        ({"labels": 2.0}, "labels"),
        ({"temperature": 2.0, "distribution": True}, "distribution=True has no temperature"),
        ({"criterion": nn.CrossEntropyLoss()}, "leave criterion= out"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], text: str) -> None:
    ens = mt.ensemble(nn.Linear(4, 3), mt.Deep(members=2), X[:2], seed=0)
    with pytest.raises(mt.InputError, match=text):
        distill(ens, nn.Linear(4, 3), Data(X, Y), FEW, **options)


def test_other_tasks_have_no_temperature() -> None:
    ens = mt.ensemble(nn.Linear(4, 1), mt.Deep(members=2), X[:2], seed=0, task="regression")
    with pytest.raises(mt.InputError, match="for task 'classes', not 'regression'"):
        distill(ens, nn.Linear(4, 1), Data(X, X[:, :1]), FEW, temperature=2.0)
    with pytest.raises(mt.InputError, match="takes the prediction of one network"):
        dirichlet_members(mt.predict(ens, X))


def test_students_with_other_outputs_and_networks_for_ensembles_are_refused() -> None:
    """One output, or twice as many, would be compared with each of the ensemble's without a word."""
    ens = mt.ensemble(nn.Linear(4, 3), mt.Deep(members=2), X[:2], seed=0)
    with pytest.raises(mt.InputError, match="the student has 1 outputs for an example, but the ensemble 3"):
        distill(ens, nn.Linear(4, 1), Data(X, Y), FEW, progress=False)
    numbers = mt.ensemble(nn.Linear(4, 2), mt.Deep(members=2), X[:2], seed=0, task="gaussian")
    with pytest.raises(mt.InputError, match="the student has 4 outputs for an example, but the ensemble 2"):
        distill(numbers, nn.Linear(4, 4), Data(X, X[:, :1]), FEW, progress=False)
    with pytest.raises(mt.InputError, match="distill takes an ensemble, not Linear"):
        distill(nn.Linear(4, 3), nn.Linear(4, 3), Data(X, Y), FEW)  # type: ignore[arg-type]


def test_batches_without_a_label_that_counts_have_a_loss() -> None:
    """Their labels' share is zero, not NaN."""
    torch.manual_seed(0)
    soft = torch.randn(3, 4).softmax(1)
    target = torch.cat([soft, torch.full((3, 1), float(IGNORED))], 1)
    found = Matching("classes", labels=0.25)(torch.zeros(3, 4), target)
    torch.testing.assert_close(found, 0.75 * Matching("classes")(torch.zeros(3, 4), soft))


class Sum(nn.Module):
    """A network of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 3), nn.Linear(2, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Shape: ``[B, 2]``, ``[B, 2]`` → ``[B, 3]``"""
        return self.left(left) + self.right(right)


def test_a_student_of_several_inputs_of_tokens_and_of_targets_without_an_axis() -> None:
    """Members are linear, so that a linear student can be near their mean."""
    fast = replace(FEW, lr=0.03)
    pairs = TensorDataset(X[:, :2], X[:, 2:], Y)
    ens = mt.ensemble(Sum(), mt.Deep(members=2), (X[:2, :2], X[:2, 2:]), seed=0)
    taught = distill(ens, Sum(), pairs, fast, labels=0.01, progress=False)
    torch.testing.assert_close(mt.predict(taught, pairs).probs, mt.predict(ens, pairs).probs, atol=0.15, rtol=0)

    tokens, classes = X.unflatten(1, (2, 2)), Y[:, None].expand(-1, 2)
    ens = mt.ensemble(nn.Linear(2, 3), mt.Deep(members=2), tokens[:2], seed=0, class_axis=-1)
    taught = distill(ens, nn.Linear(2, 3), TensorDataset(tokens, classes), fast, labels=0.01, progress=False)
    torch.testing.assert_close(mt.predict(taught, tokens).probs, mt.predict(ens, tokens).probs, atol=0.15, rtol=0)

    ens = mt.ensemble(nn.Linear(4, 2), mt.Deep(members=2), X[:2], seed=0, task="gaussian")
    taught = distill(ens, nn.Linear(4, 2), TensorDataset(X, X[:, 0]), fast, progress=False)
    torch.testing.assert_close(mt.predict(taught, X).mean, mt.predict(ens, X).mean, atol=0.2, rtol=0)
