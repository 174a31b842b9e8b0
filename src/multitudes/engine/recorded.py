"""Recorded calls: a frozen ensemble on a GPU runs small predictions as CUDA graphs, one launch for all kernels of a call.

A small call takes the time of its launches, not of its kernels. A frozen network is a graph without Python of its own, so what
it launches depends on shapes, precisions and where its tensors lie, and on nothing else. The second call of a kind is recorded;
from then on calls of that kind are replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode

from multitudes.engine.inputs import Inputs
from multitudes.engine.kernels.ways import fp32_precisions
from multitudes.engine.run import bytes_of_member, run
from multitudes.engine.state import Engine

MOST = 16
"""Kinds of calls that are recorded; others run as usual."""
LARGEST = 2**34
"""Bytes of one member's activations, summed over layers, above which launches do not count, and memory would be held."""


class Replay:
    """A CUDA graph of one call, with the memory that it reads inputs from and writes its output to."""

    def __init__(self, call: Callable[[list[Tensor]], Tensor], tensors: list[Tensor], other: Replay | None) -> None:
        """Records a call; `other` is a recording whose memory for intermediate results this one uses too."""
        self.device = tensors[0].device
        with torch.cuda.device(self.device):
            self.inputs = [torch.empty_like(tensor).copy_(tensor) for tensor in tensors]
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                call(self.inputs)  # libraries choose their kernels before the recording, which must not measure
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            pool = None if other is None else other.graph.pool()
            with torch.cuda.graph(self.graph, pool=pool, stream=side, capture_error_mode="thread_local"):
                self.output = call(self.inputs)
            # one event for all recordings that share memory: they wait for each other
            self.done: torch.cuda.Event = torch.cuda.Event() if other is None else other.done
            self.done.record()

    def __call__(self, tensors: list[Tensor]) -> Tensor:
        """Runs the graph on these inputs. Calls on several streams wait for each other, of whatever kind: they share memory."""
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            stream.wait_event(self.done)
            for mine, given in zip(self.inputs, tensors, strict=True):
                mine.copy_(given)
            self.graph.replay()
            output = self.output.clone()
            self.done.record(stream)
        return output


class Recorded:
    """The recorded calls of one frozen ensemble."""

    def __init__(self) -> None:
        self.replays: dict[Any, Replay | None] = {}  # by kind of call; None after its first call, and if it cannot be recorded
        self.failed: set[Any] = set()
        self.places: tuple[Any, ...] = ()  # where and how the ensemble's tensors lie in memory: recordings read them there

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorded:
        return Recorded()

    def __reduce__(self) -> tuple[Any, ...]:
        return Recorded, ()

    def run(self, engine: Engine, call: Inputs) -> Any:
        """Runs a plain call of all members: as a recording if there is one, else as usual."""
        if not can_be_recorded(engine, call):
            return run(engine, call, False, None)
        places = tuple([(t.data_ptr(), t.dtype, t.shape, t.stride()) for t in stored_tensors(engine)])
        if places != self.places:  # tensors were moved, cast, or replaced: others may lie in memory that was freed
            self.replays, self.failed, self.places = {}, set(), places
        kind = _kind(engine, call)
        if kind in self.replays and kind not in self.failed:
            replay = self.replays[kind] or self._record(engine, call, kind)
            if replay is not None:
                return replay(call.tensors())
        elif len(self.replays) < MOST:
            self.replays.setdefault(kind)
        return run(engine, call, False, None)

    def _record(self, engine: Engine, call: Inputs, kind: Any) -> Replay | None:
        other = next((replay for replay in self.replays.values() if replay is not None), None)
        try:
            self.replays[kind] = Replay(lambda own: run(engine, call.refill(own), False, None), call.tensors(), other)
        except RuntimeError:  # an operation that waits for the GPU cannot be recorded
            self.failed.add(kind)
        return self.replays[kind]


def can_be_recorded(engine: Engine, call: Inputs) -> bool:
    """Whether a call of a frozen ensemble is small, on one GPU, of plain tensors without gradients, and seen by nobody.

    A recording has one graph of autograd for all calls. And tensors that require gradients are cast by autocast once, into
    memory that is free after the with-block.
    """
    given = (*call.args, *call.kwargs.values())
    if not given or not all(_is_plain(value) for value in given) or len({value.device for value in given}) > 1:
        return False
    if torch.cuda.is_current_stream_capturing() or is_watched():
        return False
    if engine.chunk is not None or bytes_of_member(engine, call) > LARGEST or engine.is_hooked():
        return False
    return not any(tensor.requires_grad for tensor in stored_tensors(engine))


def stored_tensors(engine: Engine) -> list[Tensor]:
    """Lists the tensors that an ensemble's calls read."""
    return [*engine.parameters().values(), *engine.buffers().values()]


def _is_plain(value: Any) -> bool:
    if type(value) is not Tensor or not value.is_cuda or value.layout != torch.strided:
        return False
    return not (torch.is_grad_enabled() and value.requires_grad)


def is_watched() -> bool:
    """Whether a mode, a transform of torch.func, a trace, forward-mode gradients or a hook on all modules would miss the
    operations of a replay. A default device is a mode too, but the operations of a frozen graph name their devices."""
    modes = [mode for mode in _get_current_function_mode_stack() if not isinstance(mode, DeviceContext)]
    if modes or _get_current_dispatch_mode() is not None or _has_any_global_hook():
        return True
    return functorch.maybe_current_level() is not None or torch._C._is_tracing() or forward_ad._current_level >= 0


def _kind(engine: Engine, call: Inputs) -> Any:
    """Returns what decides which kernels a call launches: shapes, layouts, precisions, torch's switches, and the executor."""
    given = tuple((tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in call.tensors())
    cast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    cudnn, cuda, products = torch.backends.cudnn, torch.backends.cuda, torch.backends.cuda.matmul
    switches = (
        cudnn.enabled, cudnn.deterministic, fp32_precisions(), products.allow_fp16_accumulation,
        products.allow_bf16_reduced_precision_reduction, products.allow_fp16_reduced_precision_reduction,
        cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled(),
        torch.are_deterministic_algorithms_enabled(), torch.is_inference_mode_enabled(), torch.is_grad_enabled(),
    )  # fmt: skip
    executors = tuple(engine.picked.values()), tuple(engine.tuned)
    return given, tuple(call.kwargs), cast, switches, executors
