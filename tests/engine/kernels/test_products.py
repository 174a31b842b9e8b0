"""The product of rows of all members: values and gradients of torch's, in the layout of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import multitudes as mt
from multitudes.engine.kernels import products
from multitudes.engine.kernels.products import plain_product, product_of_pixels, product_of_rows, tell_counters

M, B, C, K = 3, 5, 4, 6


def given(bias: bool) -> list[Tensor | None]:
    torch.manual_seed(0)
    tensors = [torch.randn(M, B, C), torch.randn(M, K, C), torch.randn(M, K)]
    return [tensor.double().requires_grad_() for tensor in tensors[: 3 if bias else 2]] + [None] * (not bias)


@pytest.fixture(autouse=True)
def _all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LARGE", 0)


@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients(bias: bool) -> None:
    tensors = given(bias)
    own = [tensor for tensor in tensors if tensor is not None]
    y, wanted = product_of_rows(*tensors), plain_product(*tensors)  # type: ignore[arg-type]
    assert "product_of_rows" in str(y.grad_fn).lower() and y.is_contiguous()
    torch.testing.assert_close(y, wanted)
    slopes = torch.randn_like(y)
    found = torch.autograd.grad(y, own, slopes)
    for a, b in zip(found, torch.autograd.grad(wanted, own, slopes), strict=True):
        torch.testing.assert_close(a, b)
    assert all(gradient.stride() == tensor.stride() for gradient, tensor in zip(found, own, strict=True))
    assert torch.autograd.gradcheck(lambda *t: product_of_rows(*t, *tensors[len(t) :]), own)
    assert torch.autograd.gradgradcheck(lambda *t: product_of_rows(*t, *tensors[len(t) :]), own)
    torch.library.opcheck(products.operator_of_rows(), tuple(tensors))


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_tensors_that_do_not_train(frozen: int) -> None:
    tensors = [tensor.detach().requires_grad_(at != frozen) for at, tensor in enumerate(given(True))]  # type: ignore[union-attr]
    product_of_rows(*tensors).sum().backward()
    plain = [tensor.detach().requires_grad_(at != frozen) for at, tensor in enumerate(tensors)]
    plain_product(*plain).sum().backward()
    for a, b in zip(tensors, plain, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_transforms_of_torch_func_get_torchs_operations() -> None:
    x, weight, bias = given(True)
    assert x is not None and weight is not None
    found = torch.func.jvp(lambda w: product_of_rows(x, w, bias), (weight,), (torch.ones_like(weight),))[1]
    torch.testing.assert_close(found, x.sum(2, keepdim=True).expand(M, B, K))
    each = torch.func.vmap(lambda w: product_of_rows(x, w, bias))(torch.stack([weight, 2 * weight]))
    torch.testing.assert_close(each[0], product_of_rows(x, weight, bias))


def test_multiply_adds_are_counted() -> None:
    tell_counters()
    with FlopCounterMode(display=False) as counter:
        product_of_rows(*given(True))  # type: ignore[arg-type]
    assert counter.get_total_flops() == 2 * M * B * C * K
    with FlopCounterMode(display=False) as counter:
        product_of_pixels(torch.randn(B, M * C, 7), torch.randn(M, K, C))
    assert counter.get_total_flops() == 2 * 7 * M * B * C * K


@pytest.mark.parametrize("method", [mt.MIMO(members=3), mt.MultiHead(members=3)])
def test_gradients_of_members_have_the_layout_of_their_weights(method: mt.Method) -> None:
    """Autograd would copy others into it."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6))
    ens = mt.ensemble(net, method, torch.randn(5, 4), seed=0).train()
    made: dict[str, Tensor] = {}
    for name, parameter in ens.named_parameters():
        parameter.register_hook(lambda gradient, name=name: made.setdefault(name, gradient))
    ens.loss(torch.randn(5, 4), torch.randint(6, (5,)), nn.functional.cross_entropy).backward()
    stacked = [name for name, parameter in ens.named_parameters() if parameter.ndim == 3]
    assert stacked and all(made[name].is_contiguous() for name in stacked)
