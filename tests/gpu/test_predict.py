"""Predictions on CUDA: those of the CPU, wherever the ensemble, the data and the answers are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import multitudes as mt
from multitudes.models import resnet18

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """float32 is float32."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


X, Y = torch.randn(37, 3, 32, 32), torch.randint(10, (37,))


def ensemble(method: mt.Method) -> mt.Ensemble:
    return mt.ensemble(resnet18(width=0.25), method, X[:2], seed=0)


@pytest.mark.parametrize("method", [mt.Packed(members=4), mt.EMP(members=5), mt.MCDropout(members=3), mt.MIMO(members=3)])
def test_a_device_for_the_time_of_a_prediction(method: mt.Method) -> None:
    """It computes there, gives answers on the CPU, and comes back as it was."""
    ens = ensemble(method)
    before = {name: tensor.clone() for name, tensor in ens.state_dict().items()}
    there = mt.predict(ens, TensorDataset(X, Y), batch_size=16, device="cuda")
    assert there.members.logits.device.type == "cpu"
    assert {tensor.device.type for tensor in ens.state_dict().values()} == {"cpu"}
    for name, tensor in ens.state_dict().items():
        assert torch.equal(tensor, before[name])
    here = mt.predict(ens, X, batch_size=37)
    torch.testing.assert_close(there.members.logits, here.members.logits, rtol=1e-3, atol=1e-3)


def test_autocast() -> None:
    """bfloat16 on the way, single precision in what is kept."""
    ens = ensemble(mt.Packed(members=4)).cuda()
    loader = DataLoader(TensorDataset(X, Y), 8, pin_memory=True)
    whole, half = mt.predict(ens, loader), mt.predict(ens, loader, amp=True)
    assert half.members.logits.dtype == torch.float32
    assert not torch.equal(whole.members.logits, half.members.logits)
    torch.testing.assert_close(whole.probs, half.probs, rtol=0.05, atol=0.02)


def test_values_on_the_device_are_scored_alike() -> None:
    """Built by hand from CUDA tensors."""
    logits = torch.randn(4, 500, 12)
    targets, other = torch.randint(12, (500,)), torch.randn(4, 300, 12)
    here = mt.score(mt.Prediction(logits=logits), targets, ood=mt.Prediction(logits=other))
    there = mt.score(mt.Prediction(logits=logits.cuda()), targets.cuda(), ood=mt.Prediction(logits=other.cuda()))
    assert list(here) == list(there)
    for name in here:
        assert here[name] == pytest.approx(there[name], abs=1e-4), name
    spread = torch.rand(4, 500) + 0.1
    here = mt.score(mt.Prediction(mean=logits[..., 0], variance=spread), targets.float())
    there = mt.score(mt.Prediction(mean=logits[..., 0].cuda(), variance=spread.cuda()), targets.float().cuda())
    for name in here:
        assert here[name] == pytest.approx(there[name], abs=1e-4), name


def test_a_calibrator_follows() -> None:
    """Fitted on CUDA, used on both."""
    ens = ensemble(mt.Packed(members=4)).cuda().eval()
    ens.calibrator = mt.calibrate(mt.predict(ens, TensorDataset(X, Y)), of="members")
    there = mt.predict(ens, X)
    torch.testing.assert_close(there.probs.log(), ens.average()(X.cuda()).cpu(), rtol=1e-3, atol=1e-3)
