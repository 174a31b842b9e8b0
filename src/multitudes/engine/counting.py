"""Counts of one call: its multiply-adds, and the numbers it stores for backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from multitudes.engine.listening import Listening, on_one_device, result_of
from multitudes.engine.modules import plain_attention
from multitudes.engine.seeds import seeded

RECURRENT = frozenset(("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn"))
"""Operators that run an LSTM, a GRU or a plain recurrent layer at once: one layer on a CPU, all layers on a GPU."""

NO_HOOKS = "saved tensor hooks"
"""In torch's message where a call computes gradients by torch.func, in which what is saved cannot be seen."""


def multiply_adds(run: Callable[[], Any]) -> int:
    """Counts the multiply-adds of one call, by torch's formulas."""
    counter = _Counter()
    with plain_attention(), counter, torch.no_grad(), seeded(0):  # the fused path has no formula
        run()
    return counter.flops // 2


def formula_of(func: Any) -> Callable[..., Any] | None:
    """Returns the formula that counts the floating-point operations of an operator, from its arguments and result; or None."""
    formula = flop_registry.get(func._overloadpacket)
    if formula is None and func.__name__.split(".")[0] in RECURRENT:
        return _recurrent_flops
    return formula


def _recurrent_flops(inputs: Tensor, *others: Any, **options: Any) -> int:
    """Counts a recurrent layer, for which torch has no formula: every matrix multiplies every step of every row.

    Inputs are ``[T, B, C]``, or the ``[N, C]`` steps of sequences of different lengths.
    """
    weights = others[0] if isinstance(others[0], (list, tuple)) else others[:4]
    return 2 * math.prod(inputs.shape[:-1]) * sum(weight.numel() for weight in weights if weight.ndim == 2)


class _Counter(Listening):
    """Counts floating-point operations as torch's FlopCounterMode does, but without importing the compiler."""

    flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = on_one_device(func, args, kwargs or {})
        formula = formula_of(func)
        if formula is None:
            with self:
                parts = func.decompose(*args, **kwargs)
            return parts if parts is not NotImplemented else result_of(func, args, kwargs)
        result = func(*args, **kwargs)
        self.flops += int(formula(*args, **kwargs, out_val=result))
        return result


def work_and_memory(run: Callable[[], Any]) -> tuple[int, int]:
    """Counts the multiply-adds of one call, and the numbers that it stores for backward without the weights."""
    counter = _Counter()

    def counted() -> None:
        with plain_attention(), counter:
            run()

    saved = saved_numbers(counted)
    return counter.flops // 2, saved


def saved_numbers(run: Callable[[], Any]) -> int:
    """Counts the numbers that one call stores for backward, without the weights; at most all that it computes."""
    try:
        return _saved_numbers(run)
    except RuntimeError as error:
        if NO_HOOKS not in str(error):
            raise
    made = _Made()
    with torch.enable_grad(), seeded(0), made:
        run()
    return made.numbers


class _Made(Listening):
    """Counts the numbers that operations compute."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not result._is_view():
            self.numbers += result.numel()
        return result


def _saved_numbers(run: Callable[[], Any]) -> int:
    """Counts the numbers that one call stores for backward, by hooks on what autograd saves."""
    sizes: dict[int, int] = {}
    kept: list[Tensor] = []  # on the meta device, where they take no memory: another tensor could get a freed one's address

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter) and not (tensor._is_view() and isinstance(tensor._base, nn.Parameter)):
            sizes[tensor.untyped_storage()._cdata if tensor.is_meta else tensor.data_ptr()] = tensor.numel()
            kept.extend([tensor] if tensor.is_meta else [])
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.enable_grad(), seeded(0):
        run()
    return sum(sizes.values())
