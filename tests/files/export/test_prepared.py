"""Prepared calls of frozen ensembles on a CPU: the same outputs as without, when they run, and when they do not."""

from __future__ import annotations

import copy
import functools
import math
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws import METHODS
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import multitudes as mt
from multitudes.engine.inputs import Inputs
from multitudes.engine.run import run
from multitudes.files.export import prepared
from multitudes.files.export.prepared import Prepared, can_be_prepared, graph_of_members

PAY = prepared.products_pay


@pytest.fixture(autouse=True)
def _single_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


class Net(nn.Module):
    """Convolutions of all kinds that are prepared, or not, and linear layers before activations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.wide = nn.Conv2d(16, 16, 3, 2, padding=2, dilation=2)
        self.depthwise, self.grouped = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(16, 16, 1, groups=2)
        self.a, self.b, self.c = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 16, bias=False)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Returns class scores."""
        x = self.norm(self.stem(x)).relu()
        y = self.wide(x)
        y = (self.grouped(self.depthwise(y)) + y).relu()  # a residual
        z = y.flatten(2).transpose(1, 2)
        z = z + self.c(self.b(F.gelu(self.a(z), approximate="tanh")).relu())
        return self.head(z.mean(1))


def made(method: mt.Method, net: nn.Module | None = None) -> mt.Ensemble:
    torch.manual_seed(0)
    return mt.ensemble(Net() if net is None else net, method, images(2), seed=0).eval()


def images(rows: int) -> Tensor:
    return torch.randn(rows, 3, 8, 8)


@functools.cache
def _frozen() -> mt.Ensemble:
    return made(mt.Deep(members=2)).freeze()


def two_networks() -> mt.Ensemble:
    """A copy of a frozen ensemble; its first call prepares it."""
    return copy.deepcopy(_frozen())


def usual(frozen: mt.Ensemble, x: Tensor) -> Tensor:
    """Runs a call without shortcuts."""
    kept, frozen.shortcuts = frozen.shortcuts, None
    try:
        with torch.no_grad():
            return frozen(x)  # type: ignore[no-any-return]
    finally:
        frozen.shortcuts = kept


def graph(frozen: mt.Ensemble) -> Any:
    return frozen.shortcuts.prepared.graph  # type: ignore[union-attr]


def names(frozen: mt.Ensemble) -> list[str]:
    return [
        str(getattr(node.target, "__name__", node.target)) for node in graph(frozen).graph.nodes if node.op == "call_function"
    ]


@pytest.fixture(autouse=True)
def _all_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear layers are prepared whatever their size, and wherever this runs."""
    monkeypatch.setattr(prepared, "LARGE", 0)
    monkeypatch.setattr(prepared, "products_pay", lambda: True)
    monkeypatch.setattr(prepared, "SLOW", math.inf)  # times on a machine with other work say nothing


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method(name: str) -> None:
    """With the outputs of the ensemble that was frozen, for other numbers of rows too."""
    ens = made(METHODS[name]())
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        frozen = ens.freeze()
        for rows in (1, 2, 5):
            x = images(rows)
            torch.testing.assert_close(frozen(x), ens(x), rtol=1e-4, atol=1e-5)
    assert graph(frozen) is not None


def test_layers_are_prepared_with_what_follows_them() -> None:
    """Each member has its own layers; the thin first convolution, of three channels, stays."""
    found = names(made(mt.Deep(members=3)).freeze())
    assert found.count("convolution") == 3 * 3
    assert found.count("linear") == 4 * 3 and found.count("gelu") == 0
    assert found.count("fused.default") == 3
    assert found.count("relu") == 3, "behind a linear layer"


def test_what_members_share_is_computed_once() -> None:
    found = names(made(mt.MultiHead(members=5)).freeze())
    assert found.count("convolution") == 3 and found.count("linear") == 3 + 5


@pytest.mark.parametrize(("large", "tiny"), [(0, 0), (10**9, 10**9)])
def test_small_layers(large: int, tiny: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large layers run by oneDNN, small ones in torch's own way: with the same outputs, and the activation."""
    monkeypatch.setattr(prepared, "LARGE", large)
    monkeypatch.setattr(prepared, "TINY", tiny)
    frozen = made(mt.Deep(members=2)).freeze()
    for x in (images(1), images(4)):
        torch.testing.assert_close(frozen(x), usual(frozen, x), rtol=1e-5, atol=1e-6)


def test_products_that_do_not_pay_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "products_pay", lambda: False)
    frozen, x = made(mt.Deep(members=2)).freeze(), images(4)
    assert prepared.linear not in [node.target for node in graph(frozen).graph.nodes]
    torch.testing.assert_close(frozen(x), usual(frozen, x), rtol=1e-5, atol=1e-6)


def change(ens: mt.Ensemble) -> None:
    with torch.no_grad():
        for tensor in (*ens.parameters(), *ens.buffers()):
            tensor.mul_(1.5)


def load(ens: mt.Ensemble) -> None:
    ens.load_state_dict({name: 2 * tensor for name, tensor in ens.state_dict().items()})


def replace(ens: mt.Ensemble) -> None:
    for parameter in ens.parameters():
        parameter.data = 0.5 * parameter.data


def turn(ens: mt.Ensemble) -> None:
    """The same memory, read in another order."""
    weight = next(p for p in ens.parameters() if p.shape[1:] == (32, 32))
    weight.data = weight.data.mT


@pytest.mark.parametrize("how", [change, load, replace, turn])
def test_weights_that_change_are_read(how: Callable[[mt.Ensemble], None]) -> None:
    frozen, x = two_networks(), images(4)
    before = frozen(x)
    how(frozen)
    found = frozen(x)
    assert graph(frozen) is not None and not torch.allclose(found, before)
    torch.testing.assert_close(found, usual(frozen, x), rtol=1e-5, atol=1e-6)


def test_a_graph_with_other_outputs_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(engine: Any, tensors: list[Tensor]) -> Callable[..., Tensor]:
        right = graph_of_members(engine, tensors)
        return lambda *tensors: 1.01 * right(*tensors)

    monkeypatch.setattr(prepared, "graph_of_members", wrong)
    ens, x = made(mt.Deep(members=2)), images(4)
    frozen = ens.freeze()
    assert graph(frozen) is None
    torch.testing.assert_close(frozen(x), ens(x), rtol=1e-5, atol=1e-5)


def test_a_slow_graph_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(engine: Any, tensors: list[Tensor]) -> Callable[..., Tensor]:
        right = graph_of_members(engine, tensors)

        def run(*tensors: Tensor) -> Tensor:
            time.sleep(0.2)
            return right(*tensors)  # type: ignore[no-any-return]

        return run

    monkeypatch.setattr(prepared, "graph_of_members", slow)
    monkeypatch.setattr(prepared, "SLOW", 2.0)
    assert graph(made(mt.Deep(members=2)).freeze()) is None


def test_thin_layers_of_compact_ensembles_have_fast_kernels() -> None:
    """oneDNN may choose an order for which it has slow kernels alone, if it does not know the image: 5 ms in place of 0.1."""
    layer = nn.Conv2d(135, 135, 3, padding=1)
    torch.manual_seed(0)
    ens = mt.ensemble(nn.Sequential(layer, nn.Flatten(), nn.Linear(135 * 64, 3)), mt.Deep(members=1), torch.randn(2, 135, 8, 8))
    frozen, x = ens.eval().freeze(), torch.randn(1, 135, 8, 8)
    assert graph(frozen) is not None
    with torch.no_grad():
        ours, theirs = (prepared._seconds(lambda run=run: run(x), 5) for run in (frozen, layer))  # type: ignore[misc]
    assert ours < 3 * theirs + 0.001


@pytest.mark.parametrize(("large", "tiny"), [(0, 0), (10**9, 10**9)])
def test_nan_stays(large: int, tiny: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN's ReLU makes 0 of NaN, and so numbers of an image that has none."""
    monkeypatch.setattr(prepared, "LARGE", large)
    monkeypatch.setattr(prepared, "TINY", tiny)
    frozen, x = made(mt.Deep(members=2)).freeze(), images(3)
    x[1] = torch.nan
    found = frozen(x)
    assert found[:, 1].isnan().all() and found[:, [0, 2]].isfinite().all()


@pytest.mark.parametrize("after", [nn.ReLU(), nn.GELU(), nn.GELU("tanh")])
@pytest.mark.parametrize("layer", [nn.Linear(8, 16), nn.Conv2d(8, 16, 1)])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite(layer: nn.Module, after: nn.Module, value: float) -> None:
    example = torch.randn(3, 8) if isinstance(layer, nn.Linear) else torch.randn(3, 8, 4, 4)
    frozen = mt.ensemble(nn.Sequential(layer, after), mt.Deep(members=2), example, seed=0).eval().freeze()
    x = torch.randn_like(example)
    x[1] = value
    torch.testing.assert_close(frozen(x), usual(frozen, x), equal_nan=True)


@pytest.mark.parametrize("bad", [lambda x: x[:0], lambda x: x + torch.nan, lambda x: x + torch.inf])
def test_a_call_without_finite_outputs_decides_nothing(bad: Callable[[Tensor], Tensor]) -> None:
    frozen, x = two_networks(), images(3)
    torch.testing.assert_close(frozen(bad(x)), usual(frozen, bad(x)), equal_nan=True)
    assert graph(frozen) is None
    torch.testing.assert_close(frozen(x), usual(frozen, x), rtol=1e-5, atol=1e-6)
    assert graph(frozen) is not None


def test_some_outputs_that_are_not_finite_are_compared_too() -> None:
    frozen, x = two_networks(), images(3)
    x[1] = torch.nan
    frozen(x)
    assert graph(frozen) is not None


def test_operations_that_a_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(engine: Any, tensors: list[Tensor]) -> None:
        raise NotImplementedError("could not run 'mkldnn::_convolution_pointwise'")

    monkeypatch.setattr(prepared, "graph_of_members", missing)
    ens, x = made(mt.Deep(members=2)), images(4)
    torch.testing.assert_close(ens.freeze()(x), ens(x), rtol=1e-5, atol=1e-5)


class TestCanBePrepared:
    """Other calls run as usual."""

    @pytest.fixture
    def frozen(self) -> mt.Ensemble:
        return two_networks()

    def can(self, frozen: mt.Ensemble, x: Any = None) -> bool:
        return can_be_prepared(frozen.engine, Inputs(images(3) if x is None else x))

    def test_plain_calls(self, frozen: mt.Ensemble) -> None:
        assert self.can(frozen)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert self.can(frozen)
                torch.testing.assert_close(frozen(x := images(3)), usual(frozen, x), rtol=1e-5, atol=1e-6)

    def test_calls_with_more_than_plain_tensors(self, frozen: mt.Ensemble) -> None:
        x = images(3)
        for other in (
            Inputs(x, [x]),
            Inputs(x, 1.0),
            Inputs(x, flag=None),
            Inputs(nn.Parameter(x, requires_grad=False)),
            Inputs(),
        ):
            assert not can_be_prepared(frozen.engine, other)

    def test_weights_made_in_inference_mode(self, frozen: mt.Ensemble) -> None:
        """Torch does not count their changes."""
        with torch.inference_mode():
            frozen.load_state_dict({name: tensor.clone() for name, tensor in frozen.state_dict().items()}, assign=True)
        x = images(3)
        assert not self.can(frozen, x)
        torch.testing.assert_close(frozen(x), usual(frozen, x))

    def test_gradients(self, frozen: mt.Ensemble) -> None:
        x = images(3).requires_grad_()
        assert not self.can(frozen, x)
        frozen(x).sum().backward()
        assert x.grad is not None and x.grad.abs().sum() > 0
        with torch.no_grad():
            assert self.can(frozen, x)
        next(frozen.parameters()).requires_grad_()
        assert not self.can(frozen)

    def test_precisions(self, frozen: mt.Ensemble) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            assert not self.can(frozen)
            assert frozen(images(3)).dtype == torch.bfloat16
        assert not self.can(frozen, images(3).double())
        assert not self.can(frozen.double(), images(3).double())
        assert frozen(images(3).double()).dtype == torch.float64

    def test_whoever_sees_operations(self, frozen: mt.Ensemble) -> None:
        with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
            assert not self.can(frozen)
            frozen(images(3))
        assert counter.get_total_flops() > 0
        handle = register_module_forward_hook(lambda *_: None)
        assert not self.can(frozen)
        handle.remove()
        assert torch.func.vmap(lambda x: torch.tensor(float(self.can(frozen, x))))(images(3)[None]).item() == 0

    def test_a_default_device_is_nobody_who_sees_operations(self, frozen: mt.Ensemble) -> None:
        x = images(3)
        with torch.device("meta"):
            assert self.can(frozen, x)
            found = frozen(x)
        torch.testing.assert_close(found, usual(frozen, x), rtol=1e-5, atol=1e-6)

    def test_without_onednn(self, frozen: mt.Ensemble) -> None:
        torch._C._set_mkldnn_enabled(False)
        try:
            assert not self.can(frozen)
        finally:
            torch._C._set_mkldnn_enabled(True)

    def test_many_small_members(self, frozen: mt.Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(prepared, "MANY", 1)
        assert not self.can(frozen)
        assert self.can(frozen, images(1000))

    def test_rows_and_inputs_of_members(self, frozen: mt.Ensemble) -> None:
        x = images(4)
        whole = frozen(x)
        torch.testing.assert_close(
            frozen(x, rows=torch.tensor([0, 1, 1, 0])), whole[[0, 1, 1, 0], range(4)], rtol=1e-5, atol=1e-6
        )
        torch.testing.assert_close(frozen(torch.stack([x, x]), per_member=True), whole, rtol=1e-5, atol=1e-6)


def test_sizes_are_checked() -> None:
    frozen = two_networks()
    with pytest.raises(mt.InputError, match=r"frozen for inputs \[rows, 3, 8, 8\], not \[2, 3, 9, 9\]"):
        frozen(torch.randn(2, 3, 9, 9))


def test_copies_prepare_their_own() -> None:
    frozen, x = two_networks(), images(3)
    other = copy.deepcopy(frozen)
    change(other)
    assert not torch.allclose(other(x), frozen(x))
    torch.testing.assert_close(other(x), usual(other, x), rtol=1e-5, atol=1e-6)
    assert pickle.loads(pickle.dumps(Prepared())).graph is None


def test_outputs_are_the_callers_own() -> None:
    frozen, x = two_networks(), images(3)
    first = frozen(x)
    kept = first.clone()
    frozen(images(3)).zero_()
    first_again = frozen(x)
    assert torch.equal(first, kept) and torch.equal(first_again, kept)


def test_the_state_is_that_of_the_network() -> None:
    """Prepared weights are no part of the state, and move nowhere."""
    frozen = two_networks()
    assert set(frozen.state_dict()) == {name for name, _ in (*frozen.named_parameters(), *frozen.named_buffers())}
    assert not any("packed" in name or tensor.is_mkldnn for name, tensor in frozen.state_dict().items())


def test_which_library_multiplies_faster_is_measured_once() -> None:
    PAY.cache_clear()
    assert PAY() in (True, False) and PAY() == PAY() and PAY.cache_info().misses == 1


def test_the_measurement_depends_on_no_default_of_torch_and_draws_nothing() -> None:
    PAY.cache_clear()
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    with torch.device("meta"):
        assert PAY() in (True, False)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("method", "again"), [(mt.BatchEnsemble(members=3), 1), (mt.Deep(members=3), 0), (mt.MultiHead(members=3), 0)]
)
def test_few_rows_on_large_shared_matrices_run_together(method: mt.Method, again: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In turn, every member would read them from memory again. What members own is read once anyway, as is a shared trunk."""
    net = nn.Sequential(nn.Linear(16, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 3))
    frozen = mt.ensemble(net, method, torch.randn(2, 16), seed=0).eval().freeze()
    assert graph(frozen) is not None
    assert frozen.shortcuts.prepared.read_again == again * 4 * 1024 * (16 + 1024 + 3)  # type: ignore[union-attr]
    calls: list[int] = []

    def counted(engine: Any, call: Inputs, *more: Any) -> Any:
        calls.append(len(call.args[0]))
        return run(engine, call, *more)

    monkeypatch.setattr(prepared, "run", counted)
    for rows in (1, 500):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(frozen(x), usual(frozen, x), rtol=1e-4, atol=1e-5)
    assert calls == [1] * again
