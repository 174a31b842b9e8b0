"""The laws on CUDA: executors against M plain networks, autocast, channels last, torch.compile by inductor."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from engine.separate import M, answer, assert_same_buffers, assert_same_gradients, assert_separate, members, score
from laws.compare import owned, run_by
from torch import Tensor, nn

import multitudes as mt
from multitudes.engine import fold
from multitudes.engine.counting import multiply_adds
from multitudes.models import ResNet, resnet18

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

B = 6


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """float32 is float32, and kernels give the same numbers twice."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic
    cudnn.allow_tf32 = matmul.allow_tf32 = False
    cudnn.deterministic = True
    torch.manual_seed(0)
    yield
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic = before


class CNN(nn.Module):
    """Two convolutions with BatchNorm, a residual, dropout where it is asked for, and a head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.block = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=2), nn.BatchNorm2d(16), nn.Dropout(dropout))
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        return self.head(F.relu(h + self.block(h)).mean((2, 3)))


def rows_apart(tensors: dict[str, Tensor], members: Tensor, each: int) -> dict[str, Tensor]:
    """Looks up the entries of each row, tensor by tensor."""
    return {name: tensor[members.repeat_interleave(each)] for name, tensor in tensors.items()}


class Biased(nn.Module):
    """Adds biases that it reads from a table, in an order that it keeps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.biases = nn.Parameter(torch.randn(width))
        self.register_buffer("order", torch.arange(width).flip(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.biases[self.order]


class ViT(nn.Module):
    """Patches, a class token, torch's encoder layer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        return self.head(self.block(torch.cat([self.token.expand(len(x), -1, -1), patches], 1))[:, 0])


class Recurrent(nn.Module):
    """An LSTM over the rows of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.block = nn.LSTM(64, 16, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x).flatten(2))[0][:, -1])


NETS: dict[str, Callable[[], nn.Module]] = {"CNN": CNN, "ViT": ViT, "LSTM": Recurrent}
METHODS = {
    "Deep": mt.Deep(members=M),
    "TreeNet": mt.TreeNet(members=M, branch_at="block"),
    "MultiHead": mt.MultiHead(members=M),
}


def images(dtype: torch.dtype = torch.float64, count: int = B) -> Tensor:
    return torch.randn(count, 3, 8, 8, dtype=dtype, device="cuda")


def converted(net: str = "CNN", method: str = "Deep", dtype: torch.dtype = torch.float32, start: str = "fresh") -> mt.Ensemble:
    return mt.ensemble(NETS[net]().to("cuda", dtype), METHODS[method], images(dtype), start=start)


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
@pytest.mark.filterwarnings("ignore:There is a performance drop")
class TestExecutors:
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("net", NETS)
    def test_are_separate_networks(self, net: str, method: str) -> None:
        """Outputs, gradients and statistics in double precision, by the call and by every proven executor."""
        ens = converted(net, method, torch.float64)
        assert next(ens.parameters()).device.type == "cuda"
        for training in (True, False) if net != "LSTM" else (True,):  # cuDNN has no backward for it in eval mode
            proven = ens.plan.proven["train" if training else "eval"]
            for way in ("call", *(name for name in proven if name != "fold")):
                assert_separate(copy.deepcopy(ens), images(), way, training=training, steps=2)
        mt.check(ens, images())

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("net", NETS)
    def test_vmap_is_taken_where_it_is_proven(self, net: str, method: str) -> None:
        """For the convolutional network in both modes; for the others the plan says what is in the way."""
        ens = converted(net, method)
        for training in (True, False):
            mode = "train" if training else "eval"
            assert ens.train(training).executor == ("vmap" if "vmap" in ens.plan.proven[mode] else "loop")
            assert "vmap" in ens.plan.proven[mode] or net != "CNN", ens.plan.why
        assert "vmap" in ens.plan.proven["eval"] or ens.plan.why["vmap"]

    @pytest.mark.parametrize("net", NETS)
    def test_in_single_precision(self, net: str) -> None:
        ens = converted(net, "Deep")
        assert_separate(ens, images(torch.float32), training=True, tol=1e-3)

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("net", NETS)
    def test_without_gradients(self, net: str, mode: type) -> None:
        """Where plain attention takes its fused path."""
        ens = converted(net, "Deep", torch.float64).eval()
        nets, x = members(ens), images()
        with mode():
            torch.testing.assert_close(ens(x), torch.stack([one(x) for one in nets]))

    def test_a_move_from_the_cpu_and_back(self) -> None:
        ens = mt.ensemble(CNN().double(), mt.Deep(members=M), images().cpu())
        x = images()
        here = ens.eval()(x.cpu())
        there = ens.to("cuda")(x)
        assert there.device.type == "cuda"
        torch.testing.assert_close(there.cpu(), here)
        torch.testing.assert_close(ens.cpu()(x.cpu()), here)

    @pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    @pytest.mark.parametrize("count", [6, 8])
    def test_rows_of_a_batch(self, dtype: torch.dtype, count: int) -> None:
        """Their members' values and gradients, and after a first step nothing waits for the GPU."""
        half = dtype is torch.bfloat16
        x = images(torch.float32 if half else dtype)
        x = x.repeat(2, 1, 1, 1)[:count].contiguous(memory_format=torch.channels_last)
        ens = mt.ensemble(CNN().to(x), mt.BatchEnsemble(members=M, feed="part"), x, seed=0).train()
        ens(x, rows=ens.batch(x, None).kwargs["rows"])
        found = []
        for together in (True, False):
            ens.zero_grad()
            with contextlib.ExitStack() as stack:
                patch = stack.enter_context(pytest.MonkeyPatch.context())
                stack.enter_context(torch.autocast("cuda", torch.bfloat16, enabled=half))
                if not together:
                    patch.setattr(fold, "of_each_row", rows_apart)
                stack.callback(torch.cuda.set_sync_debug_mode, "default")
                torch.cuda.set_sync_debug_mode("error" if together else "default")
                ens.generator.manual_seed(0)
                y = ens(x, rows=ens.batch(x, None).kwargs["rows"])
            y.float().square().mean().backward()
            found.append([y.detach(), *(p.grad.clone() for p in ens.parameters())])
        for ours, plain in zip(*found, strict=True):
            torch.testing.assert_close(ours, plain)

    def test_rows_and_inputs_of_each_members_own(self) -> None:
        ens = converted("CNN", "Deep", torch.float64).eval()
        x, rows = images(), torch.tensor([3, 0, 0, 2, 1, 3], device="cuda")
        every = ens(x)
        torch.testing.assert_close(ens(x, rows=rows), every[rows, torch.arange(B, device="cuda")])
        torch.testing.assert_close(ens(x.expand(M, *x.shape), per_member=True), every)

    def test_a_shared_norm(self) -> None:
        """Statistics over the rows of all members, as on the CPU."""
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double().cuda()
        x = torch.randn(B, 4, dtype=torch.float64, device="cuda")
        ens = mt.ensemble(net, mt.Deep(members=M), x, keep=["1"]).train()
        twin = copy.deepcopy(ens).cpu()
        assert ens.executor == "vmap"
        torch.testing.assert_close(ens(x).cpu(), twin(x.cpu()))
        torch.testing.assert_close(ens.get_submodule("1").running_var.cpu(), twin.get_submodule("1").running_var)


class TestNoise:
    def ensemble(self, method: str) -> mt.Ensemble:
        net = CNN(dropout=0.5).cuda()
        return mt.ensemble(net, METHODS[method], images(torch.float32), start="copies").train()

    @pytest.mark.parametrize("way", ["loop", "vmap", "call"])
    @pytest.mark.parametrize("method", ["Deep", "TreeNet"])
    def test_dropout_differs_between_members_and_repeats_by_seed(self, method: str, way: str) -> None:
        ens, x = self.ensemble(method), images(torch.float32)

        def draw(seed: int) -> Tensor:
            torch.manual_seed(seed)
            return answer(ens, way, x)

        one = draw(0)
        assert torch.equal(one, draw(0))
        assert not torch.equal(one, draw(1))
        assert all(not torch.equal(one[i], one[j]) for i in range(M) for j in range(i))

    @pytest.mark.parametrize("way", ["loop", "vmap", "call"])
    def test_dropout_in_the_trunk_is_drawn_once(self, way: str) -> None:
        ens = self.ensemble("MultiHead")
        output = answer(ens, way, images(torch.float32))
        torch.testing.assert_close(output, output[:1].expand_as(output))

    @pytest.mark.parametrize("way", ["loop", "vmap", "call"])
    def test_the_trunk_is_computed_once(self, way: str) -> None:
        ens, x = self.ensemble("MultiHead"), images(torch.float32)
        one, four = multiply_adds(lambda: ens.member(0).train()(x)), multiply_adds(lambda: answer(ens, way, x))
        assert four - one == (M - 1) * B * 16 * 5

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_the_noise_operator(self, dtype: torch.dtype) -> None:
        noise = torch.ops.multitudes.noise(torch.ones(400, 50, dtype=dtype, device="cuda"), 0.25, 0)
        assert noise.dtype == dtype and noise.device.type == "cuda"
        assert abs(float((noise == 0).double().mean()) - 0.25) < 0.02
        assert noise.unique().numel() == 2


class TestAutocast:
    @pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("net", NETS)
    def test_dtypes_and_values_are_the_plain_networks(self, net: str, method: str, dtype: torch.dtype) -> None:
        """All members run together, with products in the lower precision."""
        ens, x = converted(net, method), images(torch.float32)
        for training in (True, False):
            nets = members(ens.train(training))
            with torch.autocast("cuda", dtype):
                found, wanted = ens(x), torch.stack([one(x) for one in nets])
            assert found.dtype == wanted.dtype == dtype
            torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_gradients(self, dtype: torch.dtype) -> None:
        """Float32, with a scaler's factor, and those of the plain networks up to the precision of the products."""
        ens, x = converted().train(), images(torch.float32)
        nets = members(ens)
        with torch.autocast("cuda", dtype):
            found, wanted = ens(x), [one(x) for one in nets]
        (found.float().square().sum() * 128).backward()
        for output in wanted:
            (output.float().square().sum() * 128).backward()
        assert all(p.grad.dtype == torch.float32 and bool(p.grad.isfinite().all()) for p in ens.parameters())
        plain = {name: torch.stack([one.get_parameter(name).grad for one in nets]) for name, _ in ens.named_parameters()}
        largest = max(float(own.norm()) for own in plain.values())
        for name, parameter in ens.named_parameters():  # a bias before a norm has no gradient but rounding
            assert float((parameter.grad - plain[name]).norm()) < 3e-2 * max(float(plain[name].norm()), 0.01 * largest), name

    def test_a_step_with_a_scaler(self) -> None:
        """fp16 with torch's gradient scaler and clipping for each member: the loss falls."""
        ens, x, y = converted().train(), images(torch.float32), torch.arange(B, device="cuda") % 5
        optimiser, scaler = torch.optim.SGD(ens.param_groups(lr=0.05), momentum=0.9), torch.amp.GradScaler("cuda")
        losses = []
        for _ in range(8):
            optimiser.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = ens.loss(x, y, F.cross_entropy)
            scaler.scale(loss).backward()
            scaler.unscale_(optimiser)
            ens.clip_grad_norm_(5.0)
            scaler.step(optimiser)
            scaler.update()
            losses.append(loss.item())
        assert losses[-1] < losses[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of torch's exporter, at its first import
class TestFrozen:
    @pytest.mark.parametrize("compiled", [False, True])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_one_kernel_for_a_layer_and_what_follows(self, dtype: torch.dtype, compiled: bool) -> None:
        """The frozen ensemble gives what the ensemble gives, up to the precision of the products, and runs the kernel."""
        torch._dynamo.reset()
        ens = mt.ensemble(resnet18(width=0.5), mt.Packed(members=4), torch.randn(2, 3, 32, 32), seed=0)
        ens = ens.to("cuda", memory_format=torch.channels_last).eval()
        frozen = ens.freeze().to("cuda", memory_format=torch.channels_last)
        x = torch.randn(6, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
        run = torch.compile(frozen) if compiled else frozen
        with torch.no_grad(), torch.autocast("cuda", dtype), torch.profiler.profile(acc_events=True) as profile:
            found, wanted = run(x), ens(x)
        assert found.dtype == wanted.dtype == dtype
        torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2 * float(wanted.abs().max()))
        assert any("fused_kernel" in event.key for event in profile.key_averages())

    @pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "autocast"])
    def test_small_calls_are_recorded(self, dtype: torch.dtype | None) -> None:
        """A replay gives what the kernels give: for other inputs, other rows, another stream, weights that changed or moved."""
        ens = mt.ensemble(CNN().cuda(), mt.Deep(members=M), images(torch.float32)).eval()
        plain, fast = ens.freeze(), ens.freeze()
        plain.shortcuts = None

        def compare(rows: int) -> None:
            x = images(torch.float32, rows)
            with torch.no_grad(), torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
                torch.testing.assert_close(fast(x), plain(x), rtol=0, atol=0)

        for rows in (B, B, 3, B, 3, 3, B):
            compare(rows)
        assert [replay is not None for replay in fast.shortcuts.recorded.replays.values()] == [True, True]
        with torch.no_grad():
            for mine, other in zip(fast.parameters(), plain.parameters(), strict=True):
                mine.mul_(1.25)
                other.mul_(1.25)
        compare(B)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            compare(B)
        compare(B)
        fast, plain = fast.cpu().cuda(), plain.cpu().cuda()
        for _ in range(3):
            compare(B)

    def test_methods_are_recorded(self) -> None:
        for method in (mt.Packed(members=2, alpha=1), mt.Masksembles(members=M), mt.BatchEnsemble(members=M)):
            ens = mt.ensemble(resnet18(width=0.25).cuda(), method, torch.randn(2, 3, 32, 32, device="cuda"), seed=0).eval()
            fast = ens.freeze()
            for _ in range(3):
                x = torch.randn(4, 3, 32, 32, device="cuda")
                with torch.no_grad():
                    torch.testing.assert_close(fast(x), ens(x), rtol=1e-3, atol=1e-3)
            assert [replay is not None for replay in fast.shortcuts.recorded.replays.values()] == [True]


class TestChannelsLast:
    @pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["float32", "autocast"])
    @pytest.mark.parametrize("method", METHODS)
    def test_is_right(self, method: str, dtype: torch.dtype | None) -> None:
        """Each member's kernels are in the format, and so is what convolutions return."""
        ens = converted("CNN", method).to(memory_format=torch.channels_last).train()
        for name, weight in ens.named_parameters():
            for piece in weight if name in owned(ens) else weight[None]:
                assert piece.ndim != 4 or piece.is_contiguous(memory_format=torch.channels_last), name
        nets, x = members(ens), images(torch.float32).to(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            found, wanted = ens(x), torch.stack([one(x) for one in nets])
        tol = 1e-4 if dtype is None else 2e-2
        torch.testing.assert_close(found, wanted, rtol=tol, atol=tol)
        score(found).backward()
        score(wanted).backward()
        if dtype is None:
            assert_same_gradients(ens, nets, 1e-2)
        assert_same_buffers(ens, nets, 1e-3)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")
class TestCompile:
    """By inductor, whose own warnings about the machine are not ours."""

    @pytest.mark.parametrize("picked", ["loop", "vmap"])
    @pytest.mark.parametrize("method", METHODS)
    def test_a_training_step(self, method: str, picked: str) -> None:
        """One graph; outputs, gradients and statistics are those of M plain networks."""
        ens = converted("CNN", method).train()
        run_by(ens, picked)
        nets, x = members(ens), images(torch.float32)
        compiled = torch.compile(ens, fullgraph=True)
        found, wanted = compiled(x), torch.stack([one(x) for one in nets])
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
        score(found).backward()
        score(wanted).backward()
        assert_same_gradients(ens, nets, 1e-2)
        assert_same_buffers(ens, nets, 1e-3)

    @pytest.mark.parametrize("net", ["CNN", "ViT"])
    def test_in_eval_under_autocast(self, net: str) -> None:
        ens, x = converted(net).eval(), images(torch.float32)
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            torch.testing.assert_close(torch.compile(ens)(x), ens(x), rtol=5e-2, atol=5e-2)

    @pytest.mark.parametrize("picked", ["loop", "vmap"])
    @pytest.mark.parametrize("method", ["Deep", "TreeNet"])
    def test_dropout_differs_between_members(self, method: str, picked: str) -> None:
        ens = mt.ensemble(CNN(dropout=0.5).cuda(), METHODS[method], images(torch.float32), start="copies").train()
        run_by(ens, picked)
        compiled, x = torch.compile(ens), images(torch.float32)
        one, other = compiled(x), compiled(x)
        assert not torch.equal(one, other)
        assert all(not torch.allclose(one[i], one[j]) for i in range(M) for j in range(i))

    def test_the_split_form(self) -> None:
        """Three steps of the compiled ensemble lower the loss as the eager ones do."""
        ens = converted("CNN", "Deep").train()
        twin = copy.deepcopy(ens)
        compiled, x, y = torch.compile(ens), images(torch.float32), torch.arange(B, device="cuda") % 5
        optimisers = [torch.optim.SGD(e.param_groups(lr=0.05)) for e in (ens, twin)]
        for _ in range(3):
            batch = ens.batch(x, y)
            losses = [
                ens.reduce(compiled(*batch.inputs, **batch.kwargs), batch, F.cross_entropy),
                twin.loss(x, y, F.cross_entropy),
            ]
            torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-3)
            for loss, optimiser in zip(losses, optimisers, strict=True):
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()


def test_the_zoo_converts_and_checks() -> None:
    """Every thin model of the zoo with each method here, or a refusal by name."""
    zoo = pytest.importorskip("zoo")
    refused = []
    for name, case in zoo.ZOO.items():
        if name.startswith("hugging_face"):
            continue
        call = case.example()
        call = call.refill([tensor.cuda() for tensor in call.tensors()])
        for method in (mt.Deep(members=M), mt.MultiHead(members=M), mt.TreeNet(members=M)):
            try:
                ens = mt.ensemble(case.model().cuda(), method, call, batch_axis=case.batch_axis)
            except mt.MultitudesError as error:
                refused.append(f"{name}, {type(method).__name__}: {error}")
                continue
            mt.check(ens, call)
    print("\n".join(refused))
    assert len(refused) <= len(zoo.ZOO) // 4


@pytest.mark.parametrize("net", ["CNN", "ViT"])
def test_mimo_has_other_examples_in_each_slot(net: str) -> None:
    """Conversion tries orders of rows, and a step has one loss for each slot."""
    ens = mt.ensemble(NETS[net]().to("cuda"), mt.MIMO(members=2), images(torch.float32))
    mt.check(ens, images(torch.float32))
    loss = ens.train().loss(images(torch.float32), torch.zeros(B, dtype=torch.long, device="cuda"), F.cross_entropy)
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in ens.parameters())


class TestPacked:
    @pytest.mark.filterwarnings("ignore:There is a performance drop")
    @pytest.mark.parametrize("net", ["CNN", "ViT"])
    def test_thin_members_are_separate_networks(self, net: str) -> None:
        """Thinned by channels on the device, values and gradients by every proven executor."""
        ens = mt.ensemble(NETS[net]().to("cuda", torch.float64), mt.Packed(members=M, alpha=M / 2), images())
        assert {p.device.type for p in ens.parameters()} == {"cuda"}
        for way in ("call", *(name for name in ens.plan.proven["train"] if name != "fold")):
            assert_separate(copy.deepcopy(ens), images(), way, training=True, steps=2)
        mt.check(ens, images())

    def test_networks_of_wrong_widths_do_not_end_the_process(self) -> None:
        """A table of biases that is read by index: on a GPU an index out of range would end all work on it."""
        net = nn.Sequential(nn.Linear(8, 16), Biased(16), nn.Linear(16, 3)).to("cuda")
        with contextlib.suppress(mt.ConversionError):
            mt.ensemble(net, mt.Packed(members=M, alpha=M / 2), torch.randn(4, 8, device="cuda"))
        assert net(torch.ones(2, 8, device="cuda")).isfinite().all()

    def test_pretrained_members_keep_weights_on_the_device(self) -> None:
        """And their statistics are estimated there."""
        net = CNN().to("cuda", torch.float64)
        ens = mt.ensemble(net, mt.Packed(members=M, alpha=M / 2, pretrained=True), images(), seed=0)
        weight = ens.get_parameter("head.weight")
        assert all(bool((net.head.weight == column[:, None]).all(0).any()) for m in range(M) for column in weight[m].T)
        ens.estimate_norms([images() for _ in range(3)])
        assert all(buffer.device.type == "cuda" for buffer in ens.buffers())

    def test_groups_run_in_channels_last(self) -> None:
        """A network of ours in bfloat16, by its constructor."""
        net = ResNet(18, width=0.5).to("cuda", memory_format=torch.channels_last)
        ens = mt.ensemble(
            net,
            mt.Packed(members=M, alpha=M / 2, gamma=2),
            images(torch.float32),
            at={"layer4.1": mt.Packed(members=M, alpha=M / 2, gamma=4)},
        )
        with torch.autocast("cuda", torch.bfloat16):
            assert ens(images(torch.float32)).dtype == torch.bfloat16
