"""Ensemble: the contract of its calls, its parts, and what a training loop needs of it."""

from __future__ import annotations

import copy
import threading
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws import METHODS, taken
from laws.compare import assert_exact, assert_same, buffers, call, convert, owned, run_by
from torch import Tensor, nn
from zoo import ZOO

import multitudes as mt
from multitudes.engine.modules import named_tensors

X = ZOO["mlp"].example().args[0]
Y = torch.tensor([0, 4, 2])


def deep(**options: Any) -> mt.Ensemble:
    """A Deep ensemble of a small perceptron."""
    return convert(mt.Deep(), ZOO["mlp"], **options)


def slow(params: list[Any]) -> list[Any]:
    """The same parameters, in `make test-full` alone."""
    return [pytest.param(*param.values, id=param.id, marks=pytest.mark.slow) for param in params]


def test_repr_says_method_and_cost() -> None:
    """On one line."""
    text = repr(convert(mt.TreeNet(), ZOO["wideresnet"]))
    assert text.startswith("Ensemble(TreeNet(members=4")
    assert "parameters" in text
    assert "× single" in text
    assert "multiply-adds" in text
    assert "executor=" in text
    assert "\n" not in text


def test_it_says_what_it_is() -> None:
    """Method, number of members, executor and task."""
    ens = deep(task="regression")
    assert (ens.method, ens.members, ens.task, ens.executor) == (mt.Deep(), 4, "regression", "loop")


@pytest.mark.parametrize("m", [4, -5, 1.0, True, None, "0"])
def test_there_is_no_such_member(m: Any) -> None:
    """The error says which there are."""
    with pytest.raises(mt.InputError, match="0 to 3"):
        deep().member(m)
    with pytest.raises(mt.InputError, match="0 to 3"):
        deep().subset([0, m])


def test_members_count_from_the_end_too() -> None:
    """As sequences do."""
    ens = deep()
    assert_same(dict(ens.member(-1).state_dict()), dict(ens.member(3).state_dict()))


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_a_member_is_a_detached_copy(kind: type[mt.Method]) -> None:
    """Training it leaves the ensemble alone, and the other way round; its parameters are leaves that take gradients."""
    case = ZOO["cumulative_batchnorm"]
    ens = convert(kind(), case).train()
    member, before = ens.member(0), copy.deepcopy(ens.state_dict())
    assert all(p.is_leaf and p.requires_grad for p in member.parameters())
    assert member.training
    member(*case.example().args).sum().backward()
    with torch.no_grad():
        for _, tensor in named_tensors(member):
            tensor.add_(1)
    assert_same(dict(ens.state_dict()), dict(before))
    assert all(p.grad is None for p in ens.parameters())


def test_a_subset_has_the_members_in_the_order_given() -> None:
    """Save, member and training work on it; the original is left alone; method and cost are its own."""
    ens = convert(mt.TreeNet(), ZOO["resnet"])
    few, x = ens.subset([3, 0, 3]), ZOO["resnet"].example()
    assert_same(call(few, x), call(ens, x)[[3, 0, 3]])
    assert few.method == mt.TreeNet(members=3)
    assert few.plan.method == few.method
    assert few.plan.counts.parameters == sum(p.numel() for p in few.parameters())
    with torch.no_grad():
        for _, tensor in named_tensors(few):
            tensor.zero_()
    assert call(ens, x).abs().sum() > 0
    with pytest.raises(mt.InputError, match="no member"):
        ens.subset([])


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (torch.tensor([0, 1]), "3 whole numbers"),
        (torch.tensor([0.0, 1.0, 2.0]), "whole numbers"),
        (torch.tensor([[0], [1]]), "3 whole numbers"),
        (torch.tensor([0, 1, 4]), "0 to 3"),
        (torch.tensor([0, -1, 1]), "0 to 3"),
        (torch.tensor([True, False, True]), "whole numbers"),
    ],
)
def test_rows_that_name_no_members(rows: Tensor, says: str) -> None:
    """One whole number for each row, and no mask."""
    with pytest.raises(mt.InputError, match=says):
        deep()(X, rows=rows)


def test_rows_and_per_member_exclude_each_other() -> None:
    """Each row has one member, or each member has rows of its own."""
    with pytest.raises(mt.InputError, match="per_member"):
        deep()(X.expand(4, 3, 4), rows=torch.zeros(3, dtype=torch.long), per_member=True)


def test_a_method_that_draws_nothing_takes_no_draws() -> None:
    """The error names the method."""
    with pytest.raises(mt.InputError, match=r"Deep.*draws"):
        deep()(X, draws={})


def test_rows_through_a_shared_trunk_count_once() -> None:
    """In training the trunk's BatchNorm sees all rows together, as it would in one network."""
    case = ZOO["resnet"]
    ens, members = convert(mt.MultiHead(), case).train(), torch.tensor([1, 3, 0, 1, 1])
    twin, x = copy.deepcopy(ens), case.example(5)
    expected = call(twin, x)
    assert_same(call(ens, x, rows=members), torch.stack([expected[m, b] for b, m in enumerate(members.tolist())]))
    assert_same(buffers(ens), buffers(twin))


def test_a_batch_changes_nothing() -> None:
    """Two forwards before a backward are right: batch only describes the step."""
    ens = deep()
    state = copy.deepcopy(ens.state_dict())
    one, two = ens.batch(X, Y), ens.batch(X.flip(0), Y.flip(0))
    losses = [ens.reduce(ens(*b.inputs, **b.kwargs), b, F.cross_entropy) for b in (one, two)]
    torch.testing.assert_close(losses[0], losses[1])
    assert_same(dict(ens.state_dict()), dict(state))


BY_PARTS = ("Masksembles", "MIMO", "EMP", "ECMP", "MCDropout", "DropConnect", "SWAG", "Snapshot", "Laplace")


@pytest.mark.parametrize("name", METHODS)
def test_a_plain_call_in_training_warns_where_it_is_no_training_step(name: str) -> None:
    """Once, and only for methods that train by parts; `loss` and prediction warn of nothing."""
    ens = convert(METHODS[name](), ZOO["mlp"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ens.train().loss(X, Y, F.cross_entropy)
        ens.eval()(X)
        assert not caught
        ens.train()(X)
        ens(X)
    assert [name in str(warning.message) for warning in caught] == [True] * (name in BY_PARTS)


def test_param_groups() -> None:
    """All trainable parameters by name, with the rate and decay that were asked for."""
    ens = deep()
    ens.get_parameter("2.bias").requires_grad_(False)
    groups = ens.param_groups(lr=0.3, weight_decay=0.01)
    assert [(g["lr"], g["weight_decay"]) for g in groups] == [(0.3, 0.01)]
    names = [name for group in groups for name in group["names"]]
    assert set(names) == {"0.weight", "0.bias", "2.weight", "4.weight", "4.bias"}
    assert all(ens.get_parameter(n) is p for g in groups for n, p in zip(g["names"], g["params"], strict=True))
    torch.optim.SGD(groups, momentum=0.9).step()
    torch.optim.AdamW(ens.param_groups(lr=0.1, optimizer=torch.optim.AdamW)).step()


class Muonish(torch.optim.SGD):
    """Stands for an optimiser derived from one that couples members."""


@pytest.mark.parametrize("name", ["LBFGS", "Adafactor", "Muon"])
def test_optimisers_that_couple_members_are_refused(name: str) -> None:
    """By name; what derives from them too; a network without members may have them."""
    kind = getattr(torch.optim, name)
    with pytest.raises(mt.InputError, match=rf"(?s)^{name} .*SGD"):
        deep().param_groups(lr=0.1, optimizer=kind)
    with pytest.raises(mt.InputError, match=name):
        deep().param_groups(lr=0.1, optimizer=type("Mine", (kind,), {}))
    convert(mt.Single(), ZOO["mlp"]).param_groups(lr=0.1, optimizer=kind)
    deep().param_groups(lr=0.1, optimizer=Muonish)


@pytest.mark.parametrize("limit", [0.05, 0.5, 100.0])
def test_clipping_is_done_for_each_member(limit: float) -> None:
    """As clipping each member's network separately; the norms before clipping are returned."""
    ens = deep()
    with torch.no_grad():
        ens.get_parameter("4.weight")[1] *= 30
    nets = [ens.member(m) for m in range(4)]
    ens.loss(X, Y, F.cross_entropy).backward()
    norms = ens.clip_grad_norm_(limit)
    for m, net in enumerate(nets):
        F.cross_entropy(net(X), Y).backward()
        expected = torch.nn.utils.clip_grad_norm_(net.parameters(), limit)
        torch.testing.assert_close(norms[m], expected)
        for name, parameter in net.named_parameters():
            assert_same(ens.get_parameter(name).grad[m], parameter.grad)


def test_clipping_what_is_shared() -> None:
    """The trunk's gradient has a norm of its own, and is clipped as one network's."""
    ens = convert(mt.MultiHead(), ZOO["mlp"])
    ens.loss(X, Y, F.cross_entropy).backward()
    shared = [p for n, p in ens.named_parameters() if n not in owned(ens)]
    twins = [nn.Parameter(p.detach().clone()) for p in shared]
    for twin, parameter in zip(twins, shared, strict=True):
        twin.grad = parameter.grad.clone()
    torch.nn.utils.clip_grad_norm_(twins, 0.05)
    ens.clip_grad_norm_(0.05)
    assert_same([p.grad for p in shared], [p.grad for p in twins])


@pytest.mark.parametrize("limit", [0.05, 100.0])
def test_clipping_all_by_one_norm(limit: float) -> None:
    """The norm over members and shared tensors together; all gradients have one factor."""
    ens = convert(mt.MultiHead(), ZOO["mlp"])
    ens.loss(X, Y, F.cross_entropy).backward()
    before = {name: p.grad.double().clone() for name, p in ens.named_parameters()}
    norm = sum(float((g**2).sum()) for g in before.values()) ** 0.5
    assert float(ens.clip_grad_norm_(limit, by="all")) == pytest.approx(norm, rel=1e-5)
    for name, p in ens.named_parameters():
        torch.testing.assert_close(p.grad.double(), before[name] * min(1.0, limit / norm), rtol=1e-4, atol=1e-7)
    with pytest.raises(mt.InputError, match="'member' or 'all'"):
        ens.clip_grad_norm_(limit, by="shared")  # type: ignore[arg-type]


def test_the_state_dict_refuses_what_does_not_fit() -> None:
    """As any module does: another number of members is a shape that does not match."""
    with pytest.raises(RuntimeError, match="size mismatch"):
        deep().load_state_dict(convert(mt.Deep(members=3), ZOO["mlp"]).state_dict())


@pytest.mark.parametrize(("kind", "case"), [*taken("dropout"), *slow(taken("resnet", "lstm", "in_place"))])
def test_tune_takes_the_faster_of_the_proven(kind: type[mt.Method], case: str) -> None:
    """It picks an executor for each mode, and changes neither tensors, mode, input nor randomness."""
    ens, x = convert(kind(), ZOO[case]), ZOO[case].example(4)
    state, expected = {n: t.detach().clone() for n, t in named_tensors(ens)}, call(ens, x)
    given, random = [t.clone() for t in x.tensors()], torch.get_rng_state()
    assert ens.tune(x, seconds=0.01) is ens
    assert torch.equal(torch.get_rng_state(), random)
    assert_exact(x.tensors(), given)
    assert all(ens.plan.executor[mode] in ens.plan.proven[mode] for mode in ("train", "eval"))
    assert_exact([t.detach() for _, t in named_tensors(ens)], state.values())
    assert not ens.training
    assert not any(p.grad is not None for p in ens.parameters())
    assert_same(call(ens, x), expected)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_dropout_differs_between_members(executor: str) -> None:
    """Members that are equal drop other units, and the seed repeats them."""
    case = ZOO["dropout"]
    ens = run_by(convert(mt.Deep(), case, start="copies"), executor).train()
    one, two = call(ens, case.example()), call(ens, case.example())
    assert_same(one, two)
    assert not torch.equal(one[0], one[1])


def test_modes_reach_every_part() -> None:
    """train and eval set all parts of the template, and one part can be set alone."""
    ens = convert(mt.Deep(), ZOO["resnet"]).train()
    assert all(part.training for part in ens.template.modules())
    ens.get_submodule("bn1").eval()
    assert not ens.template.bn1.training
    mean = ens.get_buffer("bn1.running_mean").clone()
    call(ens, ZOO["resnet"].example())
    assert torch.equal(ens.get_buffer("bn1.running_mean"), mean)
    ens.eval()
    assert not any(part.training for part in ens.template.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_casting(dtype: torch.dtype) -> None:
    """`.to(dtype)` casts what members own and what is shared, and calls follow."""
    ens = convert(mt.TreeNet(), ZOO["resnet"]).to(dtype)
    assert {p.dtype for p in ens.template.parameters()} == {dtype}
    assert call(ens, ZOO["resnet"].example(dtype=dtype)).dtype == dtype


def test_channels_last() -> None:
    """A memory format is given to each member's slice, and changes no number."""
    case = ZOO["resnet"]
    ens = convert(mt.TreeNet(), case)
    expected = call(ens, case.example())
    assert ens.to(memory_format=torch.channels_last) is ens
    assert ens.get_parameter("conv1.weight").is_contiguous(memory_format=torch.channels_last)
    assert ens.get_parameter("groups.2.0.conv1.weight")[2].is_contiguous(memory_format=torch.channels_last)
    assert_same(call(ens, case.example()), expected)


@pytest.mark.parametrize(("kind", "case"), [*taken("dropout"), *slow(taken("transformer_encoder"))])
def test_inference_mode(kind: type[mt.Method], case: str) -> None:
    """Gives what a call with gradients gives."""
    ens, x = convert(kind(), ZOO[case]), ZOO[case].example()
    expected = call(ens, x).detach()
    with torch.inference_mode():
        found = call(ens, x)
    assert_same(found.clone(), expected)


def test_threads_do_not_meet() -> None:
    """Calls from several threads at once give what each alone gives."""
    case = ZOO["resnet"]
    ens = convert(mt.Deep(), case)
    inputs = [case.example(seed=seed) for seed in range(4)]
    expected, found = [ens(*x.args).detach() for x in inputs], [None] * 4

    def work(index: int) -> None:
        for _ in range(5):
            found[index] = ens(*inputs[index].args).detach()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b)


def test_an_empty_batch() -> None:
    """No rows give no rows, as in the base model."""
    assert deep()(X[:0]).shape == (4, 0, 5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_rows_of_any_whole_numbers(dtype: torch.dtype) -> None:
    """Small types would be taken for truth values, or for none at all; a list is as good."""
    case = ZOO["mlp"]
    for method in (mt.Deep(), mt.BatchEnsemble()):
        ens, x = convert(method, case), case.example(4)
        expected = torch.stack([call(ens, x)[m, b] for b, m in enumerate([1, 2, 3, 1])])
        assert_same(call(ens, x, rows=torch.tensor([1, 2, 3, 1], dtype=dtype)), expected)
        assert_same(call(ens, x, rows=[1, 2, 3, 1]), expected)


def test_modes_that_are_set_module_by_module_reach_the_network() -> None:
    """As Lightning restores them after a validation: a training step then runs in training mode."""
    case = ZOO["cnn"]
    ens = mt.ensemble(case.model(), mt.Deep(members=2), case.example(), seed=0, check=False).train()
    modes = {part: part.training for part in ens.modules()}
    ens.eval()
    for part, mode in modes.items():
        part.training = mode
    assert ens.template.training
    mt.predict(ens, case.example().args[0])
    assert ens.training and ens.template.training
