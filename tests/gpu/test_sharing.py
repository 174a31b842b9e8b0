"""Methods that share weights, on CUDA: eval against plain members, training against the CPU, autocast, compact, compiled."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from gpu.test_gpu import CNN, ViT
from torch import Tensor, nn

import multitudes as mt
from multitudes.models import resnet18

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

METHODS: list[mt.Method] = [
    mt.BatchEnsemble(), mt.Masksembles(), mt.Masksembles(feed="all", position="after"), mt.EMP(members=4),
    mt.EMP(members=4, draw="row"), mt.ECMP(members=4), mt.DropConnect(members=4), mt.MIMO(),
    mt.MCDropout(members=4, p=0.0, position="layers"),
]  # fmt: skip
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'feed', '')}")


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """float32 is float32."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def images(dtype: torch.dtype = torch.float64, count: int = 6) -> Tensor:
    return torch.randn(count, 3, 8, 8, dtype=dtype, device="cuda")


@each_method
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("net", [CNN, ViT])
def test_members_are_plain_networks(net: type[nn.Module], method: mt.Method) -> None:
    """In eval mode, and `check` holds."""
    ens = mt.ensemble(net().cuda().double(), method, images(), seed=0).eval()
    x = images()
    torch.testing.assert_close(ens(x), torch.stack([ens.member(m)(x) for m in range(ens.members)]))
    assert {tensor.device.type for tensor in [*ens.parameters(), *ens.buffers()]} == {"cuda"}
    mt.check(ens, x)


@each_method
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("net", [CNN, ViT])
def test_a_step_is_that_of_the_cpu(net: type[nn.Module], method: mt.Method) -> None:
    """Loss, gradients and statistics of the same batch, from a conversion on either side."""
    ens = mt.ensemble(net().cuda().double(), method, images(), seed=0).train()
    twin = copy.deepcopy(ens).cpu()
    x, y = images(), torch.arange(6, device="cuda") % 5
    loss, expected = ens.loss(x, y, F.cross_entropy), twin.loss(x.cpu(), y.cpu(), F.cross_entropy)
    torch.testing.assert_close(loss.cpu(), expected)
    loss.backward()
    expected.backward()
    for (name, p), q in zip(ens.named_parameters(), twin.parameters(), strict=True):
        if p.grad is not None and q.grad is not None:
            torch.testing.assert_close(p.grad.cpu(), q.grad, msg=name)
    for (name, a), b in zip(ens.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a.cpu(), b, msg=name)


@each_method
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(method: mt.Method, dtype: torch.dtype) -> None:
    """Predictions are those of plain members up to the precision of products; a training step is finite."""
    ens = mt.ensemble(CNN().cuda(), method, images(torch.float32), seed=0)
    x, y = images(torch.float32), torch.arange(6, device="cuda") % 5
    with torch.autocast("cuda", dtype):
        found = ens.eval()(x)
        wanted = torch.stack([ens.member(m)(x) for m in range(ens.members)])
        assert found.dtype == wanted.dtype == dtype
        torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)
        loss = ens.train().loss(x, y, F.cross_entropy)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in ens.parameters())


@pytest.mark.filterwarnings("ignore")
@each_method
def test_compiled(method: mt.Method) -> None:
    """By inductor, one graph: predictions and a training step by the split form."""
    torch._dynamo.reset()
    ens = mt.ensemble(CNN().cuda(), method, images(torch.float32), seed=0)
    twin = copy.deepcopy(ens)
    x, y = images(torch.float32), torch.arange(6, device="cuda") % 5
    compiled = torch.compile(ens, fullgraph=True)
    with torch.no_grad():
        ens.eval(), twin.eval()
        torch.testing.assert_close(compiled(x), twin(x), rtol=1e-3, atol=1e-3)
    ens.train(), twin.train()
    batch = ens.batch(x, y)
    loss = ens.reduce(compiled(*batch.inputs, **batch.kwargs), batch, F.cross_entropy)
    torch.testing.assert_close(loss, twin.loss(x, y, F.cross_entropy), rtol=1e-3, atol=1e-3)
    loss.backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in ens.parameters())


@pytest.mark.parametrize("position", ["before", "after"])
def test_compact(position: str) -> None:
    """The same outputs in double precision, and it stays on the device."""
    ens = mt.ensemble(resnet18(width=0.25).cuda().double(), mt.Masksembles(position=position), images(), seed=0).eval()  # type: ignore[arg-type]
    compact = ens.compact()
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64, device="cuda")
    torch.testing.assert_close(compact(x), ens(x))
    assert compact.plan.counts.multiply_adds < ens.plan.counts.multiply_adds


def test_draws_follow_a_move() -> None:
    """From the CPU, with the same seeds and so the same members."""
    for method in (mt.EMP(members=4), mt.ECMP(members=4), mt.DropConnect(members=4), mt.MCDropout(members=4)):
        ens = mt.ensemble(CNN().double(), method, images().cpu(), seed=0).eval()
        x = images()
        here = ens(x.cpu())
        torch.testing.assert_close(ens.cuda()(x).cpu(), here)
        torch.testing.assert_close(ens.resample(3)(x).cpu(), ens.cpu().resample(3)(x.cpu()))
