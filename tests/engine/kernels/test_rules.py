"""The mode around vmap: precision under autocast, functions of functions, and other transforms of torch.func."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multitudes.engine.kernels import Together
from multitudes.engine.kernels.autocast import KEPT, LOWERED, ON_CPU, ON_CUDA, RAISED
from multitudes.engine.kernels.noise import DROPOUTS
from multitudes.engine.kernels.pointwise import NAMES
from multitudes.engine.kernels.rules import PLAIN, RULES

X = torch.randn(2, 4, 4, 4, 4)
ARGUMENTS = {
    "conv1d": (torch.randn(2, 4, 4), torch.randn(3, 4, 3)), "conv2d": (torch.randn(2, 4, 4, 4), torch.randn(3, 4, 3, 3)),
    "conv3d": (X, torch.randn(3, 4, 3, 3, 3)), "conv_transpose2d": (torch.randn(2, 4, 4, 4), torch.randn(4, 3, 3, 3)),
    "linear": (torch.randn(2, 4), torch.randn(3, 4)), "matmul": (torch.randn(2, 4), torch.randn(4, 3)),
    "mm": (torch.randn(2, 4), torch.randn(4, 3)), "bmm": (torch.randn(2, 2, 4), torch.randn(2, 4, 3)),
    "addmm": (torch.randn(2, 3), torch.randn(2, 4), torch.randn(4, 3)),
    "baddbmm": (torch.randn(2, 2, 3), torch.randn(2, 2, 4), torch.randn(2, 4, 3)),
    "scaled_dot_product_attention": (torch.randn(2, 1, 4, 4),) * 3, "avg_pool3d": (X.bfloat16(), 2),
    "prod": (X.bfloat16(),), "cdist": (torch.randn(2, 4, 4).bfloat16(), torch.randn(2, 4, 4)),
    "layer_norm": (X.bfloat16(), [4], torch.randn(4), torch.randn(4)), "exp": (X.bfloat16(),), "softmax": (X.bfloat16(), 1),
    "group_norm": (X.bfloat16(), 2, torch.randn(4), torch.randn(4)),
}  # fmt: skip


@pytest.mark.parametrize("name", ARGUMENTS)
def test_precisions_are_those_of_autocast(name: str) -> None:
    """Dtype and values of each function are torch's own under autocast, for tensors of members."""
    function = getattr(F, name, None) or getattr(torch, name)
    args = ARGUMENTS[name]
    with torch.autocast("cpu", torch.bfloat16):
        wanted = function(*args)
    tensors = [a for a in args if isinstance(a, Tensor)]
    rest = [a for a in args if not isinstance(a, Tensor)]

    def run(*own: Tensor) -> Tensor:
        values = iter(own)
        others = iter(rest)
        return function(*[next(values) if isinstance(a, Tensor) else next(others) for a in args])

    with Together(torch.bfloat16, "cpu"):
        found = torch.func.vmap(run)(*[torch.stack([t, t]) for t in tensors])
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found[1], wanted, rtol=2**-6, atol=2**-6)


def test_arguments_by_name() -> None:
    x, weight = torch.randn(3, 2, 4).bfloat16(), torch.randn(4, dtype=torch.float32)
    with Together(torch.bfloat16, "cpu"):
        found = torch.func.vmap(lambda rows: F.layer_norm(input=rows, normalized_shape=[4], weight=weight))(x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, F.layer_norm(x.float(), [4], weight).bfloat16(), rtol=2**-6, atol=2**-6)


def test_the_table_has_every_kind() -> None:
    assert {LOWERED, RAISED, KEPT} == set(ON_CPU.values())


def test_attention_modules_inside() -> None:
    """torch's attention is a function of functions: the products inside it are cast too."""
    torch.set_default_dtype(torch.float32)
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 2, 5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = layer(x[1], x[1], x[1], need_weights=False)[0]
    with Together(torch.bfloat16, "cpu"):
        found = torch.func.vmap(lambda rows: layer(rows, rows, rows, need_weights=False)[0])(x)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found[1], wanted, rtol=2**-5, atol=2**-5)


@pytest.mark.parametrize("masks", [False, True])
def test_attention_of_what_all_members_see(masks: bool) -> None:
    """Where the input is common, projections of members lie side by side: heads and rows cannot be joined without a copy."""
    layer, x, other = nn.MultiheadAttention(8, 2, kdim=6, vdim=6), torch.randn(3, 5, 8), torch.randn(3, 5, 6)
    matrices = torch.randn(4, 8, 8), torch.randn(4, 8, 6)
    mask = torch.zeros(5, 3, dtype=torch.bool).index_fill(1, torch.tensor([2]), True) if masks else None

    def run(q: Tensor, k: Tensor) -> Tensor:
        given = {"key_padding_mask": mask, "need_weights": masks}
        output: Tensor = torch.func.functional_call(layer, {"q_proj_weight": q, "k_proj_weight": k}, (x, other, other), given)[
            0
        ]
        return output

    with Together():
        found = torch.func.vmap(run)(*matrices)
    torch.testing.assert_close(found, torch.stack([run(q, k) for q, k in zip(*matrices, strict=True)]))


def test_functions_that_run_as_they_are_have_no_rule() -> None:
    assert not PLAIN & {*ON_CPU, *ON_CUDA, *(getattr(func, "__name__", "") for func in (*RULES, *NAMES, *DROPOUTS))}


def test_pooling_to_one_pixel() -> None:
    """As a mean: with channels last, vmap would run torch's own way member by member, and warn."""
    x = torch.randn(3, 2, 5, 5, 4).movedim(-1, 2)
    with Together():
        found = torch.func.vmap(lambda rows: F.adaptive_avg_pool2d(rows, 1))(x)
        some = torch.func.vmap(lambda rows: F.adaptive_avg_pool2d(rows, (2, 2)))(x)
    torch.testing.assert_close(found, x.mean((-2, -1), keepdim=True))
    torch.testing.assert_close(some, torch.stack([F.adaptive_avg_pool2d(rows, (2, 2)) for rows in x]))


def test_groups_of_channels_that_come_last() -> None:
    """Torch asks for the layout of its input, which vmap does not tell: a whole network would run member by member."""
    x = torch.randn(3, 2, 5, 5, 4).movedim(-1, 2).requires_grad_()
    weight = torch.randn(3, 4, requires_grad=True)
    with Together():
        found = torch.func.vmap(lambda rows, w: F.group_norm(rows, 2, w, w))(x, weight)
    expected = torch.stack([F.group_norm(rows, 2, w, w) for rows, w in zip(x, weight, strict=True)])
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(y.square().sum(), (x, weight)) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("padding", [None, 0, -1])
@pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("sum", True), ("mean", False)])
def test_bags_of_rows(mode: str, weighted: bool, padding: int | None) -> None:
    """Values and gradients are torch's own, which vmap would run member by member; also of bags of padding alone."""
    tables = torch.randn(3, 6, 2, requires_grad=True)
    ids = torch.tensor([[0, 1, 5], [2, 2, 3], [0, 0, 0], [5, 5, 5]])
    weights = torch.rand(4, 3, requires_grad=True) if weighted else None
    options = {"mode": mode, "per_sample_weights": weights, "padding_idx": padding}
    with Together(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = torch.func.vmap(lambda table: F.embedding_bag(ids, table, **options))(tables)
    expected = torch.stack([F.embedding_bag(ids, table, **options) for table in tables])
    torch.testing.assert_close(found, expected)
    leaves = [tables, *([weights] if weights is not None else [])]
    ours, theirs = (torch.autograd.grad(y.square().sum(), leaves) for y in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_inside_other_transforms() -> None:
    """A gradient inside, and another vmap outside: the operators' rules are found by torch."""
    weight, x = torch.randn(3, 5, 4, dtype=torch.float64), torch.randn(2, 6, 4, dtype=torch.float64)

    def slope(w: Tensor, rows: Tensor) -> Tensor:
        return torch.func.grad(lambda r: F.linear(r, w).square().sum())(rows)

    with Together():
        found = torch.func.vmap(torch.func.vmap(slope, (0, None)), (None, 0))(weight, x)
    wanted = torch.stack([torch.stack([2 * (rows @ w.T) @ w for w in weight]) for rows in x])
    torch.testing.assert_close(found, wanted)
