"""recommend: verdicts, reasons and order. Costs are made up where the order must not depend on timing."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import multitudes as mt
from multitudes.analysis.recommend import KNOWN, recommend
from multitudes.analysis.recommendation import LEVELS, Candidate, Recommendation
from multitudes.conversion.anatomy.structure import Structure
from multitudes.conversion.cost import Cost, CostRow
from multitudes.engine.modules import owned_modules
from multitudes.method import Given, Layout
from multitudes.models import MLP, SmallCNN, ViT

pytestmark = pytest.mark.slow

OURS = [
    kind.__name__ for kind in mt.Method.all() if kind.__module__.startswith("multitudes.methods.") and kind is not mt.Single
]
TIMES = {"Deep": 4.0, "Packed": 1.2, "MIMO": 1.0, "MultiHead": 1.1, "TreeNet": 2.5, "MCDropout": 10.0, "DropConnect": 13.0}
"""Made-up latencies relative to the single network; other methods have 4. Every method has twice its memory."""


def net(dropout: float = 0.0) -> nn.Module:
    """An MLP of three layers."""
    return MLP(8, (32, 32), 4, dropout=dropout)


def names(found: Recommendation, verdict: str = "fits") -> list[str]:
    """The library's methods with this verdict, in order, each once."""
    listed = [type(c.method).__name__ for c in found.candidates if c.verdict == verdict]
    return [name for name in dict.fromkeys(listed) if name in OURS]


def one(found: Recommendation, kind: type[mt.Method], **settings: Any) -> Candidate:
    """The first candidate of a method, with these settings."""
    hits = [c for c in found.candidates if type(c.method) is kind]
    return next(c for c in hits if all(getattr(c.method, key) == value for key, value in settings.items()))


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> list[mt.Ensemble]:
    """Replaces `cost` by `TIMES`, scaled by members if they are drawn. Returns the list of ensembles that were measured."""
    asked: list[mt.Ensemble] = []

    def cost(ens: mt.Ensemble, x: Any, repeats: int) -> Cost:
        asked.append(ens)
        times = TIMES.get(type(ens.method).__name__, 4.0) * (0.4 if ens.is_compact else 1.0)
        share = ens.members / type(ens.method)().members if ens.method.draws else 1.0
        return Cost(CostRow(20, 20, 200 if not ens.is_compact else 150, 0.01 * times * share), CostRow(10, 10, 100, 0.01))

    monkeypatch.setattr(sys.modules[recommend.__module__], "cost", cost)
    return asked


def only(monkeypatch: pytest.MonkeyPatch, *kinds: type[mt.Method]) -> None:
    """Makes these the only methods."""
    monkeypatch.setattr(mt.Method, "all", staticmethod(lambda: list(kinds)))


@pytest.mark.slow
@pytest.mark.usefixtures("fixed")
def test_without_budgets_the_order_is_that_of_printed_results() -> None:
    found = recommend(net(0.1), torch.randn(5, 8))
    assert found.best == mt.Deep(members=4)
    order = "Deep Packed Masksembles ECMP EMP MIMO TreeNet BatchEnsemble MCDropout MultiHead DropConnect"
    order += " SWAG Snapshot Laplace"
    assert names(found) == order.split()
    known = [c.nll for c in found.candidates if c.fits and c.nll is not None]
    assert known == sorted(known)
    assert "NLL 0.66 × the single network's (Packed-Ensembles, table 1" in found.why


@pytest.mark.slow
@pytest.mark.usefixtures("fixed")
def test_slower_methods_do_not_fit_a_latency() -> None:
    tried = [mt.Deep(), mt.MultiHead(), mt.Packed(), mt.TreeNet()]
    found = recommend(net(), torch.randn(5, 8), latency=1.5, methods=tried)
    assert found.best == mt.Packed(members=4)
    assert names(found) == ["Packed", "MultiHead"]
    assert names(found, "too slow") == ["Deep", "TreeNet"]
    assert one(found, mt.Deep).reason == "latency of 4 × > 1.5 ×"
    amount = recommend(net(), torch.randn(5, 8), latency="15 ms", methods=[mt.Deep(), mt.MultiHead()])
    assert [c.verdict for c in amount.candidates] == ["fits", "too slow"]
    assert amount.candidates[1].reason == "latency of 40 ms > 15 ms"


@pytest.mark.usefixtures("fixed")
def test_larger_methods_do_not_fit_a_memory() -> None:
    x = torch.randn(5, 8)
    assert recommend(net(), x, memory=2.0, methods=[mt.Deep()]).best == mt.Deep()
    found = recommend(net(), x, memory="150 B", methods=[mt.Deep()])
    assert found.best is None
    assert (found.candidates[0].verdict, found.candidates[0].reason) == ("too large", "memory of 200 B > 150 B")
    both = recommend(net(), x, memory=1.5, latency="3x", methods=[mt.Deep()]).candidates[0]
    assert (both.verdict, both.reason) == ("too slow", "latency of 4 × > 3 ×, memory of 2 × > 1.5 ×")


@pytest.mark.usefixtures("fixed")
def test_a_method_that_compacts_is_listed_twice_with_the_memory_of_its_training() -> None:
    found = recommend(net(), torch.randn(5, 8), latency=2.0, methods=[mt.Masksembles()])
    assert [(c.compact, c.verdict) for c in found.candidates] == [(True, "fits"), (False, "too slow")]
    assert found.candidates[0].ratio("memory") == 2.0
    assert found.candidates[0].code.endswith(".compact()")


def test_fewer_draws_are_tried_if_all_are_too_slow(fixed: list[mt.Ensemble]) -> None:
    found = recommend(net(0.1), torch.randn(5, 8), latency=5.0, methods=[mt.MCDropout(position="existing")], training="none")
    assert [(c.method.members, c.verdict) for c in found.candidates] == [(4, "fits"), (10, "too slow")]
    assert "4 draws" in found.candidates[0].reason
    assert [ens.members for ens in fixed] == [10, 4]
    assert recommend(net(0.1), torch.randn(5, 8), latency=1.5, methods=[mt.MCDropout()]).best is None


def test_costs_are_those_of_cost() -> None:
    """Counts are equal; latencies of both networks are measured."""
    model, x = net(), torch.randn(5, 8)
    for method in (mt.Packed(), mt.BatchEnsemble(members=3)):
        found = recommend(model, x, methods=[method], repeats=2).candidates[0].cost
        direct = mt.cost(mt.ensemble(model, method, x, seed=0), x, repeats=2)
        assert found is not None
        for mine, other in ((found.ensemble, direct.ensemble), (found.base, direct.base)):
            assert (mine.parameters, mine.multiply_adds, mine.memory) == (other.parameters, other.multiply_adds, other.memory)
            assert mine.latency > 0


def test_a_limit_between_two_measured_costs() -> None:
    """Of memory, which is the same on every run."""
    found = recommend(net(), torch.randn(5, 8), memory=1.5, methods=[mt.Deep(), mt.MultiHead()], repeats=1)
    assert found.best == mt.MultiHead()
    assert one(found, mt.Deep).verdict == "too large"


@pytest.mark.slow
@pytest.mark.usefixtures("fixed")
def test_without_training_only_methods_that_draw_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, mt.MCDropout, mt.DropConnect, mt.Masksembles, mt.MultiHead, mt.MIMO)
    found = recommend(net(0.1), torch.randn(5, 8), training="none")
    assert set(names(found)) == {"MCDropout", "DropConnect"}
    assert found.best == mt.MCDropout(position="existing")
    distance = found.candidates[0].distance
    assert distance is not None
    assert 0 < distance < 1
    assert f"members are {distance:.0%} off the network's outputs" in found.why
    assert one(found, mt.Masksembles).reason.startswith("finetune, since each member uses only a part")
    assert {c.needs for c in found.candidates if c.verdict == "needs training"} == {"head", "finetune", "scratch"}


def test_missing_dropout_is_refused() -> None:
    found = recommend(net(), torch.randn(5, 8), training="none", methods=[mt.MCDropout(position="existing")], repeats=1)
    assert found.candidates[0].verdict == "refused"
    assert "dropout" in found.candidates[0].reason
    assert found.why == "nothing fits: refused 1"


def test_without_training_members_that_are_noise_do_not_fit() -> None:
    found = recommend(
        net(), torch.randn(5, 8), training="none", methods=[mt.DropConnect(p=0.9), mt.DropConnect(p=0.01)], repeats=1
    )
    assert [(c.method.p, c.verdict) for c in found.candidates] == [(0.01, "fits"), (0.9, "too far")]  # type: ignore[attr-defined]


@pytest.mark.usefixtures("fixed")
def test_training_the_head_freezes_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, mt.MultiHead, mt.TreeNet, mt.EMP, mt.Deep, mt.BatchEnsemble)
    found = recommend(net(), torch.randn(5, 8), training="head")
    assert names(found) == ["TreeNet", "EMP", "MultiHead"]
    assert "train layers.4, freeze the rest" in one(found, mt.MultiHead).reason
    late = one(found, mt.TreeNet)
    assert late.method == mt.TreeNet(branch_at="layers.2")
    assert "train layers.2, layers.4, freeze the rest" in late.reason
    assert one(found, mt.EMP).method == mt.EMP(patch="output")


@pytest.mark.slow
@pytest.mark.usefixtures("fixed")
def test_finetuning_fits_methods_that_keep_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, mt.BatchEnsemble, mt.EMP, mt.Packed, mt.MIMO, mt.Deep)
    found = recommend(MLP(8, (16, 16, 16), 4, norm="hidden"), torch.randn(5, 8), training="finetune")
    assert names(found) == ["EMP", "BatchEnsemble", "Packed"]
    assert one(found, mt.Packed, pretrained=True).fits
    assert one(found, mt.Packed, pretrained=False).needs == "scratch"
    assert one(found, mt.EMP).needs == "finetune"
    assert one(found, mt.MIMO).verdict == "needs training"
    assert one(found, mt.MIMO).needs == "scratch"
    deep = [c for c in found.candidates if type(c.method) is mt.Deep]
    assert {(c.start, c.verdict) for c in deep} == {("copies", "alike"), ("fresh", "needs training")}


def test_members_that_stay_equal_do_not_fit() -> None:
    found = recommend(net(), torch.randn(5, 8), methods=[mt.BatchEnsemble(init="ones", members=3)], repeats=1)
    assert found.candidates[0].verdict == "alike"
    assert found.best is None


@pytest.mark.usefixtures("fixed")
def test_a_refusal_has_the_error_of_the_conversion() -> None:

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 16))

        def forward(self, input: Tensor) -> Tensor:
            return input * self.weight.diagonal()

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Own(), nn.Linear(16, 3))
    found = recommend(model, torch.randn(5, 8), methods=[mt.BatchEnsemble(), mt.Deep(), mt.MultiHead(head="nobody")])
    assert found.best == mt.Deep()
    refused = one(found, mt.BatchEnsemble)
    assert (refused.verdict, refused.needs, refused.cost) == ("refused", None, None)
    with pytest.raises(mt.ConversionError) as error:
        mt.ensemble(model, mt.BatchEnsemble(), torch.randn(5, 8))
    assert refused.reason == str(error.value)
    assert "2 " in refused.reason
    assert "nobody" in one(found, mt.MultiHead).reason


def test_your_own_method_is_tried() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Lower(mt.Method):
        """Members own the first layer."""

        def layout(self, structure: Structure) -> Layout:
            return Layout(owned_modules(structure.model, lambda name: name == structure.layers()[0]))

    @dataclass(frozen=True, kw_only=True)
    class Broken(mt.Method):
        """Raises."""

        def prepare(self, given: Given) -> nn.Module:
            raise ZeroDivisionError("a mistake")

    found = recommend(net(), torch.randn(5, 8), methods=[Lower(), Broken()], repeats=1)
    assert found.best == Lower()
    assert found.candidates[0].needs == "scratch"
    assert found.candidates[0].code == "mt.ensemble(model, Lower(members=4), x)"
    assert found.candidates[1].reason == "ZeroDivisionError: a mistake"


@pytest.mark.parametrize(
    "case", ["inputs", "columns", *(pytest.param(case, marks=pytest.mark.slow) for case in ("cnn", "vit", "factory"))]
)
def test_every_kind_of_network_is_taken(case: str) -> None:
    """Images, tokens, several inputs, rows on another axis, an example of one row, a factory. The code to type runs."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(4, 16), nn.Linear(3, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor, extra: Tensor) -> Tensor:
            return self.out(torch.relu(self.a(x) + self.b(extra)))

    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.out = nn.Linear(4, 16), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.relu(self.a(x.transpose(0, 1))))

    model, x, axis = {
        "cnn": (SmallCNN(width=0.5), torch.randn(1, 3, 16, 16), 0),
        "vit": (ViT(image=8, size=12, depth=1), torch.randn(3, 3, 8, 8), 0),
        "inputs": (Two(), mt.Inputs(torch.randn(3, 4), extra=torch.randn(3, 3)), 0),
        "columns": (Columns(), torch.randn(4, 5), 1),
        "factory": (lambda ratio: MLP(8, (32, 32), 4, width=ratio), torch.randn(3, 8), 0),
    }[case]  # fmt: skip
    tried = [mt.Packed(members=2, alpha=1), mt.EMP(members=3)]
    found = recommend(model, x, methods=tried, batch_axis=axis, repeats=1)
    assert {c.verdict for c in found.candidates} == {"fits"}
    ens = eval(found.candidates[0].code, {"mt": mt, "model": model, "x": x})
    assert ens.method == found.best
    call = mt.Inputs.of(x)
    assert len(ens(*call.args, **call.kwargs)) == ens.members


@pytest.mark.slow
def test_the_model_is_not_changed() -> None:
    """Nor are the example and torch's random state."""
    model, x = MLP(8, (16, 16), 4, norm="hidden", dropout=0.2), torch.randn(5, 8)
    model.eval()
    model.layers[1].train()  # type: ignore[union-attr,operator,index]
    before, example = copy.deepcopy(model.state_dict()), x.clone()
    modes = [part.training for part in model.modules()]
    random = torch.get_rng_state()
    tried = [mt.Packed(pretrained=True), mt.MCDropout(members=2), mt.Masksembles(members=2), mt.MIMO(members=2)]
    found = recommend(model, x, methods=tried, repeats=1)
    assert {c.verdict for c in found.candidates} == {"fits"}
    found = recommend(model, x, training="none", methods=[mt.MCDropout(members=2)], repeats=1)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(x, example)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [part.training for part in model.modules()] == modes
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert Recommendation.from_json(found.json()) == found


@pytest.mark.parametrize(
    ("arguments", "nouns"),
    [
        ({"training": "fine-tune"}, "training='fine-tune'.*none, head, finetune, scratch.*'finetune'"),
        ({"training": None}, "training=None.*'none'"),
        ({"latency": "20"}, "latency='20'"),
        ({"memory": "2 ms"}, "memory='2 ms'.* b, kb"),
        ({"repeats": 0}, "repeats=0"),
        ({"methods": []}, "methods="),
        ({"methods": mt.Deep()}, "methods="),
        ({"methods": [mt.Deep]}, r"Deep\(\)"),
        ({"example": torch.randn(2, 9)}, "example"),
        ({"model": nn.ReLU()}, "parameters"),
        ({"model": "resnet18"}, "Module"),
        ({"example": torch.randn(2, 8, device="meta")}, "meta device"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(arguments: dict[str, Any], nouns: str) -> None:
    call = {"model": net(), "example": torch.randn(2, 8), **arguments}
    with pytest.raises(mt.InputError, match=nouns):
        recommend(call.pop("model"), call.pop("example"), **call)


def test_a_network_that_no_method_takes_is_a_conversion_error() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(2))
    with pytest.raises(mt.ConversionError, match="LazyLinear"):
        recommend(model, torch.randn(2, 4))


def test_out_of_memory_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    def cost(*_: Any) -> Cost:
        raise torch.OutOfMemoryError("8 GiB more")

    monkeypatch.setattr(sys.modules[recommend.__module__], "cost", cost)
    found = recommend(net(), torch.randn(2, 8), methods=[mt.Deep()])
    assert (found.candidates[0].verdict, found.candidates[0].reason) == ("too large", "out of memory: 8 GiB more")
    assert found.why == "nothing fits: too large 1"


def test_a_bar_counts_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    @contextlib.contextmanager
    def bar(name: str, total: int, progress: bool | None, unit: str) -> Iterator[Any]:
        calls.append((total, progress))
        yield lambda count, **shown: calls.append((count, shown))

    monkeypatch.setattr(sys.modules[recommend.__module__], "bar", bar)
    recommend(net(), torch.randn(2, 8), methods=[mt.MultiHead(), mt.Deep()], repeats=1, training="head")
    assert calls == [(2, None), (1, {"last": "MultiHead"}), (1, {"last": "Deep"})]


def test_every_method_has_known_variants() -> None:
    """With settings that it accepts, at every level of training."""
    assert sorted(KNOWN) == sorted(OURS)
    for name, variants in KNOWN.items():
        for variant in variants:
            getattr(mt, name)(**variant.settings)
            assert variant.levels
            assert set(variant.levels) <= set(LEVELS)
            assert (variant.nll is None) == (not variant.source)
        offered = [level for variant in variants if variant.start == "fresh" for level in variant.levels]
        assert set(offered) == set(LEVELS)
