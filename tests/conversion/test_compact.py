"""compact: the same outputs with fewer channels, whatever stands between layers; what cannot be cut is named."""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws.compare import assert_same, call, convert, owned
from laws.graphs import Positional
from torch import Tensor, nn
from torch.export import Dim
from zoo import ZOO, refusal

import multitudes as mt
from multitudes.conversion import compact
from multitudes.conversion.anatomy.structure import observe
from multitudes.conversion.compact import _kept, links
from multitudes.conversion.cut_layers import CutLayer
from multitudes.engine import tree
from multitudes.models import MLP, resnet18, resnet50

pytestmark = pytest.mark.slow

POSITIONS = ("before", "after")
IMAGES = torch.randn(3, 3, 16, 16, dtype=torch.float64)
NAMES = [name for name in ZOO if refusal("Masksembles", name, "member") is None and name not in ("branching", "loose")]
MASKED_OUTPUTS = ("dict_output", "tuple_output", "dataclass_output", "namedtuple_output", "lstm", "recurrent_between")
"""Networks whose hidden layers are all outputs, or return states beside their output: nothing can be masked behind a layer."""

NO_GAIN = [(name, "after") for name in ("shufflenet", "in_place", "several_inputs", "weight_norm", "table", "padding_mask")]
"""Networks whose masked layers are computed once for all members, or cannot be cut: there is as much to compute as before."""


def trained(net: nn.Module) -> nn.Module:
    """The network with norms as training leaves them: no statistic at 0 or 1."""
    with torch.no_grad():
        for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
            if tensor.ndim == 1 and tensor.is_floating_point() and "mask" not in name:
                tensor.copy_(torch.rand_like(tensor) + 0.2)
    return net.double().eval()


def cases() -> list[Any]:
    found = []
    for name in NAMES:
        for position in POSITIONS:
            if position == "before" or name not in (*MASKED_OUTPUTS, "reassigning"):  # its masked layer sets a shared average
                marks = [] if name in ("mlp", "vit") else [pytest.mark.slow]
                found.append(pytest.param(name, position, marks=marks))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "position"), cases())
def test_the_zoo(name: str, position: Any) -> None:
    """In double precision, by the ensemble, each member and a subset, and never for as many multiply-adds as before."""
    case = ZOO[name]
    ens = convert(mt.Masksembles(fewest=2, position=position), case)
    before = copy.deepcopy(ens.state_dict())
    if (name, position) in NO_GAIN:
        with pytest.raises(mt.ConversionError, match="no gain, so use the ensemble as it is"):
            ens.compact()
        return
    compact = ens.compact()
    expected = call(ens, case.example(5))
    assert_same(call(compact, case.example(5)), expected)
    assert_same(call(compact.member(2), case.example(5)), tree.take(expected, 2))
    assert_same(call(compact.subset([3, 1]), case.example(5)), tree.apply(lambda t: t[[3, 1]], expected))
    assert compact.plan.counts.multiply_adds < ens.plan.counts.multiply_adds
    assert f"{ens.plan.counts.multiply_adds:,} multiply-adds for all members have become" in compact.plan.notes[-1]
    assert_same(dict(ens.state_dict()), dict(before))


def masked(net: nn.Module, position: str, x: Tensor = IMAGES) -> mt.Ensemble:
    return mt.ensemble(net, mt.Masksembles(position=position), x, seed=0)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("position", POSITIONS)
def test_it_saves_loads_and_exports(tmp_path: Path, position: str) -> None:
    """As any ensemble: a file that needs the base model's architecture alone, and a graph with a free batch size."""
    ens = masked(trained(resnet18(width=0.25)), position)
    compact = ens.compact()
    mt.save(compact, tmp_path / "a.multitude")
    back = mt.load(tmp_path / "a.multitude", resnet18(width=0.25).double())
    assert back.is_compact
    assert back.plan == compact.plan
    assert_same(back(IMAGES), ens(IMAGES))
    assert_same(mt.load(tmp_path / "a.multitude")(IMAGES), ens(IMAGES))
    inputs = mt.Inputs(IMAGES)
    shapes = {"tensors": ({0: Dim("batch", min=2, max=64)},)}
    program = torch.export.export(Positional(compact, inputs), (IMAGES,), dynamic_shapes=shapes).module()
    other = torch.randn(7, 3, 16, 16, dtype=torch.float64)
    assert_same(program(other), ens(other))
    assert mt.check(compact, IMAGES).laws


@pytest.mark.slow
def test_it_is_for_prediction() -> None:
    """Training it, or compacting what has nothing to compact, is refused with what to do."""
    compact = masked(MLP(5, (16, 12), 3).double(), "before", torch.randn(2, 5).double()).compact()
    assert not compact.training
    with pytest.raises(mt.RunError, match="compact"):
        compact.train()
    with pytest.raises(mt.InputError, match="compact already"):
        compact.compact()
    with pytest.raises(mt.InputError, match="Deep has nothing to compact"):
        mt.ensemble(MLP(5, (16,), 3), mt.Deep(), torch.randn(2, 5)).compact()


@pytest.mark.parametrize("seconds", [(0.004, 0.003), (0.003, 0.003), (0.003, 0.004)])
def test_with_an_input_the_faster_one_is_returned(monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, float]) -> None:
    """Timed in eval mode, as predictions run; if compact is not faster, a warning has both times, and nothing is changed."""
    x, ran = torch.randn(2, 5).double(), list[tuple[bool, Tensor]]()
    ens = mt.ensemble(MLP(5, (64, 64), 3).double(), mt.Masksembles(members=4, scale=2.0), x, seed=0).train()
    part = next(ens.template.children()).eval()

    def times(runs: list[Callable[[], Tensor]], repeats: int, inputs: Any) -> list[float]:
        ran.extend((ens.training, run()) for run in runs)
        return list(seconds)

    monkeypatch.setattr(sys.modules["multitudes.ensemble"], "medians", times)
    if seconds[1] < seconds[0]:
        found = ens.compact(x)
        assert found.is_compact
    else:
        with pytest.warns(UserWarning, match=f"no gain on this input.* {1000 * seconds[1]:.2f} ms compact, 3.00 ms as it is"):
            found = ens.compact(x)
        assert found is ens
        assert not ens.is_compact
    assert ens.training and ens.template.training and not part.training, "modes are as before, layer by layer"
    assert [mode for mode, _ in ran] == [False, False]
    assert_same(ran[1][1], ran[0][1])
    assert ens.compact().is_compact, "without an input nothing is timed"


def test_weights_that_forward_reads_are_left_alone() -> None:
    """A network that decides by its own weights would decide otherwise with masks in them."""
    ens = convert(mt.Masksembles(fewest=2), ZOO["branching"])
    with pytest.raises(mt.InputError, match="forward"):
        ens.compact()
    expected = call(ens, ZOO["branching"].example())
    for m in range(4):
        assert_same(call(ens.member(m), ZOO["branching"].example()), expected[m])


@pytest.mark.slow
@pytest.mark.parametrize(("build", "stem", "ratio"), [(resnet18, 0.0032, 1.69), (resnet50, 0.0014, 1.43)])
def test_the_papers_networks(build: Callable[[], nn.Module], stem: float, ratio: float) -> None:
    """Four members at scale 2 cost 1.69 and 1.43 single networks, if each had a stem of its own, instead of 4."""
    ens = mt.ensemble(build(), mt.Masksembles(members=4, scale=2.0), torch.randn(2, 3, 32, 32), seed=0, check=False)
    counts = ens.compact().plan.counts
    assert ens.plan.counts.multiply_adds / counts.base_multiply_adds == pytest.approx(4 - 3 * stem, abs=0.01)
    assert counts.multiply_adds / counts.base_multiply_adds + 3 * stem == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize(("channels", "ones", "count"), [(64, 34, 40), (64, 32, 32), (64, 62, 64), (60, 58, 60), (40, 20, 20)])
def test_on_a_gpu_wide_layers_keep_a_multiple_of_eight_channels(channels: int, ones: int, count: int) -> None:
    """Those that the mask keeps are among them, in order; the others that fill up have zero weights."""
    mask = torch.zeros(channels).index_fill(0, torch.randperm(channels)[:ones], 1)
    kept = _kept(mask, align=True)
    assert len(kept) == len(set(kept.tolist())) == count and bool((kept.diff() > 0).all())
    assert set(mask.nonzero().flatten().tolist()) <= set(kept.tolist())
    assert torch.equal(_kept(mask, align=False), mask.nonzero().flatten())


def test_more_channels_than_the_mask_keeps_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "_kept", lambda mask, align: _kept(mask, align=True))
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 24, 1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)
    ).double()
    net(IMAGES)
    ens = mt.ensemble(net, mt.Masksembles(members=4, scale=2.0), IMAGES).eval()
    thin = ens.compact()
    assert thin.get_parameter("2.weight").shape[2] == 40
    torch.testing.assert_close(thin(IMAGES), ens(IMAGES))


class Between(nn.Module):
    """Two convolutions and a head, with something between the convolutions."""

    def __init__(self, between: Callable[[Tensor], Tensor], padding_mode: str = "zeros", bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 12, 3, padding=1, bias=bias)
        self.second = nn.Conv2d(12, 12, 3, padding=1, bias=bias)
        self.third = nn.Conv2d(12, 12, 3, padding=2, padding_mode=padding_mode, bias=bias)
        self.norm, self.slope, self.head = nn.BatchNorm2d(12), nn.PReLU(12), nn.Linear(12, 4)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.second(F.relu(self.first(x))))
        return self.head(F.relu(self.third(self.between(self, h))).mean((2, 3)))


def shuffled(net: Any, h: Tensor) -> Tensor:
    return h.unflatten(1, (3, 4)).transpose(1, 2).flatten(1, 2)


HARMLESS: dict[str, Callable[..., Tensor]] = {
    "nothing": lambda net, h: h,
    "norm": lambda net, h: net.norm(h).relu(),
    "norm, then a function with f(0) = 1": lambda net, h: net.norm(h).cos(),
    "slopes": lambda net, h: net.slope(net.norm(h)),
    "pooling": lambda net, h: F.max_pool2d(net.norm(h), 3, 1, 1),
}
"""What works channel by channel: channels go on both sides."""

MIXING: dict[str, Callable[..., Tensor]] = {
    "softmax": lambda net, h: h.softmax(1),
    "gate": lambda net, h: h * h.mean(1, keepdim=True),
    "norm over channels": lambda net, h: F.layer_norm(h.movedim(1, -1), [12]).movedim(-1, 1),
    "shuffle": shuffled,
    "residual": lambda net, h: h + h.roll(1, 1),
    "average with a border": lambda net, h: F.avg_pool2d(net.norm(h).cos(), 3, 1, 1),
}
"""What mixes channels or places: channels go where the mask stands alone."""


@pytest.mark.slow
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize("kind", [*HARMLESS, *MIXING])
def test_what_stands_between(kind: str, mode: str, position: str) -> None:
    """Exact with every kind of padding; a link is cut on both sides only where that changes nothing."""
    net = trained(Between({**HARMLESS, **MIXING}[kind], mode, bias=mode == "zeros"))
    ens = masked(net, position)
    compact = ens.compact()
    x = torch.randn(4, 3, 9, 9, dtype=torch.float64)
    assert_same(compact(x), ens(x))
    third: Any = compact.template.third
    both = not ("reads" in third._buffers or "places" in compact.template.second._buffers)
    assert both == (kind in HARMLESS)
    assert compact.plan.counts.multiply_adds < ens.plan.counts.multiply_adds


def test_links() -> None:
    """Layers with norms between them, the first feeding the second alone: inside a block, not along the stream."""
    net = resnet18(width=0.25).double().eval()
    found = {(link.source, link.target): link.norms for link in links(observe(net, mt.Inputs(IMAGES)))}
    inner = {(f"layer{k}.{b}.conv1", f"layer{k}.{b}.conv2"): (f"layer{k}.{b}.bn1",) for k in range(1, 5) for b in (0, 1)}
    assert found == inner


@pytest.mark.slow
def test_what_is_computed_once_stays_so() -> None:
    """The first layer, before which there is no mask, works once for all members, and is one tensor for all."""
    net, x = MLP(64, (12, 16), 3).double(), torch.randn(2, 64).double()
    for position in POSITIONS:
        compact = masked(net, position, x).compact()
        assert "layers.0.weight" not in owned(compact)
        assert isinstance(compact.template.layers[0], CutLayer) == (position == "after")


@pytest.mark.slow
def test_grouped_layers_are_named() -> None:
    """Their masks are worked into their weights; a network with nothing else is refused."""
    compact = convert(mt.Masksembles(fewest=2), ZOO["mobilenet"]).compact()
    reasons = {entry.name: entry.reason for entry in compact.plan.converted}
    assert "in groups" in reasons["3"]
    grouped = nn.Sequential(nn.Conv2d(3, 12, 3), nn.Conv2d(12, 12, 3, groups=3), nn.Conv2d(12, 12, 3, groups=2))
    with pytest.raises(mt.ConversionError, match=r"compacted.*\n  1: .*in groups\n  2: .*in groups"):
        masked(grouped.double(), "before").compact()


FROM_AFAR: dict[str, Callable[..., Tensor]] = {
    "largest norm": lambda net, h: h * (3 / h.flatten(1).norm(dim=1).clamp(min=3.0))[:, None, None, None],
    "rare choice": lambda net, h: torch.where(h.amax((1, 2, 3), keepdim=True) > 8, h.sin(), h),
    "comparison": lambda net, h: h * (h.amax(1, keepdim=True) > 8),
    "padding": lambda net, h: F.pad(net.norm(h), (0, -h.shape[-1] % 4, 0, -h.shape[-2] % 4)),
    "size": lambda net, h: net.norm(h) * h.shape[-1],
}
"""What looks as if it worked channel by channel on small values, or on one size of images."""


@pytest.mark.parametrize(("kind", "position"), list(zip(FROM_AFAR, itertools.cycle(POSITIONS), strict=False)))
def test_what_shows_only_elsewhere(kind: str, position: str) -> None:
    """Exact for large values and other sizes too."""
    ens = masked(trained(Between(FROM_AFAR[kind])), position)
    compact = ens.compact()
    for x in (torch.randn(4, 3, 16, 16).double(), torch.randn(4, 3, 13, 13).double(), 100 * torch.randn(4, 3, 9, 9).double()):
        assert_same(compact(x), ens(x))


def test_a_fixed_precision_tells_too_little() -> None:
    """There layers are cut on the side of their mask alone, which is right whatever comes before."""

    class Fixed(Between):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.bfloat16())

    net = Fixed(lambda net, h: (h * 32).softmax(1) * 32).bfloat16().eval()
    ens = mt.ensemble(net, mt.Masksembles(), torch.randn(3, 3, 16, 16), seed=0)
    compact, x = ens.compact(), torch.randn(4, 3, 16, 16)
    torch.testing.assert_close(compact(x), ens(x), rtol=0.05, atol=0.05)
    assert all("reads" in entry.reason for entry in compact.plan.converted)


class Tokens(nn.Module):
    """Ids, a mask with -inf, and something that mixes channels by what tokens say."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.a, self.b, self.c = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = F.relu(self.a(self.table(ids)))
        h = F.relu(self.b(h.amax(-1, keepdim=True) - h))
        weights = torch.zeros_like(h[..., 0]).masked_fill(~mask, float("-inf")).softmax(1)
        return self.c((h * weights[..., None]).sum(1))


def test_tokens_and_masks() -> None:
    """Whole numbers and truth values are drawn too: all zeros, or nothing but padding, would show nothing."""
    mask = torch.ones(4, 6, dtype=torch.bool)
    call = mt.Inputs(torch.randint(50, (4, 6)), mask)
    ens = mt.ensemble(Tokens().double(), mt.Masksembles(position="after"), call, seed=0).eval()
    assert_same(ens.compact()(*call.args), ens(*call.args))
