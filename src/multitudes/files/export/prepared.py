"""Prepared calls: a frozen ensemble on a CPU runs as one graph of all members, with weights in the order of oneDNN's kernels.

An ordinary call brings the weights of every layer into that order anew, which takes longer than the layer if rows are few. Here
that is done once. Additions and GELUs behind a layer are computed with it, and what members share is computed once.
"""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from multitudes.engine.inputs import Inputs
from multitudes.engine.kernels.fused import FUSED
from multitudes.engine.recorded import is_watched, stored_tensors
from multitudes.engine.run import bytes_of_member, run
from multitudes.engine.state import Engine

FEWEST = 8
"""Input channels, or groups of one channel, from which layers are prepared: oneDNN's blocks have 8 or 16 channels."""

TOLERANCE = 1e-4
"""Largest difference of outputs that rounding explains, as a share of the largest output."""

SLOW = 2.0
"""Times as long as an ordinary call, from which the graph is not used: a machine may lack fast kernels for some layers."""

LARGE = 2 * 10**6
"""Multiply-adds of a linear layer from which oneDNN's product is faster: its call takes longer than torch's own."""

TINY = 20480
"""Entries of an image up to which torch computes convolutions by pixels itself, without oneDNN, whose call takes longer."""

MANY, SMALL = 8, 2**17
"""Members, and bytes of one member's activations: more of smaller ones run faster together, by vmap, than in turn."""

FEW = 64
"""Times the bytes of one member's activations, up to which linear layers may read shared weights once for each member. More
means few rows: all members together read them once, by vmap."""

_onednn = torch.ops.mkldnn


class Prepared:
    """The graph of all members of one frozen ensemble. It is made again when a tensor was moved, cast or changed."""

    def __init__(self) -> None:
        self.graph: fx.GraphModule | None = None
        """None before the first call, and if the graph cannot be made or has other outputs."""
        self.read_again = 0
        """Bytes of shared weights that linear layers of every member read."""
        self.places: tuple[Any, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Prepared:
        return Prepared()

    def __reduce__(self) -> tuple[Any, ...]:
        return Prepared, ()

    def run(self, engine: Engine, call: Inputs) -> Any:
        """Runs a plain call of all members: by the graph if it can, else as usual."""
        if not can_be_prepared(engine, call):
            return run(engine, call, False, None)
        places = tuple([(t.data_ptr(), t._version, t.dtype, t.shape, t.stride()) for t in stored_tensors(engine)])
        if places != self.places and self._prepare(engine, call):
            self.places = places
        if self.graph is None or self.read_again > FEW * bytes_of_member(engine, call):
            return run(engine, call, False, None)
        with torch.no_grad():
            return self.graph(*_read(engine, call))

    def _prepare(self, engine: Engine, call: Inputs) -> bool:
        """Makes the graph, and compares its outputs and its time with those of an ordinary call.

        Returns False if no output of this call is finite: then it cannot tell, and another call is tried.
        """
        self.graph = None
        with torch.inference_mode(False), torch.no_grad():
            wanted = run(engine, call, False, None)
            finite = wanted[wanted.isfinite()]
            if not finite.numel():
                return False
            tensors = _read(engine, call)
            self.read_again = bytes_read_again(engine)
            try:
                graph = graph_of_members(engine, tensors)
                found = graph(*tensors)
            except (AttributeError, RuntimeError):  # oneDNN lacks an operation on this machine
                return True
            largest = max(float(finite.abs().max()), 1e-30)
            if not torch.allclose(found, wanted, rtol=0, atol=TOLERANCE * largest, equal_nan=True):
                return True
            if _seconds(lambda: graph(*tensors)) < SLOW * _seconds(lambda: run(engine, call, False, None)):
                self.graph = graph
        return True


def can_be_prepared(engine: Engine, call: Inputs) -> bool:
    """Whether a call of a frozen ensemble runs on a CPU, in single precision, without gradients, and seen by nobody."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    if torch.is_autocast_enabled("cpu") or is_watched() or engine.is_hooked():
        return False
    given = [*call.args, *call.kwargs.values()]
    if not given or not all(type(value) is Tensor for value in given):
        return False
    if engine.members > MANY and bytes_of_member(engine, call) < SMALL:
        return False
    stored = stored_tensors(engine)
    if not all(type(tensor) in (Tensor, nn.Parameter) and not tensor.is_inference() for tensor in stored):
        return False
    return all(_is_plain(tensor) for tensor in (*given, *stored))


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor lies on the CPU, is in single precision if it has fractions, and needs no gradients in this call."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_complex():
        return False
    if tensor.is_floating_point() and tensor.dtype != torch.float32:
        return False
    return not (tensor.requires_grad and torch.is_grad_enabled())


def _read(engine: Engine, call: Inputs) -> list[Tensor]:
    template: Any = engine.template
    return template.read_tensors(call)


def graph_of_members(engine: Engine, tensors: Sequence[Tensor]) -> fx.GraphModule:
    """Returns the graph of a frozen network once for all members, ``[M, B, ...]``; `tensors` show the sizes of images."""
    network: Any = engine.template.graph
    owned = {name.removeprefix("graph.") for name in engine.owned}
    images = _Images(network, owned)
    images.run(*tensors)
    return _Unrolled(network, owned, images.sizes).of_members(engine.members)


def bytes_read_again(engine: Engine) -> int:
    """Counts the bytes of shared weights that linear layers read once for each member."""
    network: Any = engine.template.graph
    owned = {name.removeprefix("graph.") for name in engine.owned}
    each: set[Any] = differing(network, owned)
    weights = {node.args[1] for node in each if node.target is F.linear} - each
    read = [node.target for node in weights if node.op == "get_attr"]
    return sum(4 * operator.attrgetter(target)(network).numel() for target in read)  # parameters, and plain tensors


def differing(network: fx.GraphModule, owned: set[str]) -> set[fx.Node]:
    """Returns the nodes whose values differ between members."""
    found: set[fx.Node] = set()
    for node in network.graph.nodes:
        if (node.op == "get_attr" and node.target in owned) or any(one in found for one in node.all_input_nodes):
            found.add(node)
    return found


class _Images(fx.Interpreter):
    """Runs the network of the first member, and keeps the sizes of the images that convolutions are given."""

    def __init__(self, network: fx.GraphModule, owned: set[str]) -> None:
        super().__init__(network)
        self.owned = owned
        self.sizes: dict[fx.Node, list[int]] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Runs an operation."""
        if n.target is FUSED:
            self.sizes[n] = list(self.fetch_args_kwargs_from_env(n)[0][0].shape)
        return super().run_node(n)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Returns a stored tensor, of the first member if members own it."""
        tensor = super().get_attr(target, args, kwargs)
        return tensor[0] if target in self.owned else tensor


class _Unrolled:
    """A graph that has the operations of a network once for each member, and those that members share once."""

    def __init__(self, network: fx.GraphModule, owned: set[str], sizes: dict[fx.Node, list[int]]) -> None:
        self.sizes = sizes
        self.nodes = list(network.graph.nodes)
        self.stored: dict[str, Tensor] = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        self.owned, self.root, self.graph = owned, nn.Module(), fx.Graph()
        self.names: dict[str, str] = {}
        self.pays = products_pay()
        self.each = differing(network, owned)

    def of_members(self, members: int) -> fx.GraphModule:
        """Returns the graph with its tensors."""
        shared: dict[fx.Node, Any] = {}
        for node in self.nodes:
            if node.op == "placeholder":
                shared[node] = self.graph.placeholder(node.name)
        self._copy([node for node in self.nodes if node not in self.each], shared, 0)
        output = next(node for node in self.nodes if node.op == "output").args[0]
        mine = [node for node in self.nodes if node in self.each]
        outputs = [self._copy(mine, dict(shared), m)[output] for m in range(members)]
        self.graph.output(self.graph.call_function(torch.stack, (outputs,)))
        return fx.GraphModule(self.root, self.graph)

    def _copy(self, nodes: Sequence[fx.Node], found: dict[fx.Node, Any], m: int) -> dict[fx.Node, Any]:
        """Adds operations for member m to the graph. `found` has the values that they read, and then theirs."""
        for node in nodes:
            if node in found or node.op in ("placeholder", "output"):
                continue
            if node.op == "get_attr":
                found[node] = self._tensor(str(node.target), m)
            elif (layer := self._layer(node, found, m)) is not None:
                found[layer[0]] = layer[1]
            else:
                args, kwargs = (fx.map_arg(given, found.__getitem__) for given in (node.args, node.kwargs))
                found[node] = self.graph.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
        return found

    def _of_member(self, name: str, m: int) -> Tensor:
        return self.stored[name][m] if name in self.owned else self.stored[name]

    def _tensor(self, name: str, m: int, packed: Callable[[Tensor], Tensor] | None = None) -> fx.Node:
        """Adds a stored tensor of member m to the graph, as it is or as oneDNN wants it. A shared one is added once."""
        key = f"{name}_of_{m if name in self.owned else 'all'}" + ("" if packed is None else "_packed")
        if key not in self.names:
            tensor = self._of_member(name, m).detach()
            self.names[key] = f"tensor_{len(self.names)}"
            self.root.register_buffer(self.names[key], tensor if packed is None else packed(tensor.contiguous()))
        return self.graph.get_attr(self.names[key])

    def _layer(self, node: fx.Node, found: dict[fx.Node, Any], m: int) -> tuple[fx.Node, fx.Node] | None:
        """Adds a convolution or a linear layer in oneDNN's order. Returns the node whose value it has, and the new one."""
        if node.target not in (FUSED, F.linear) or any(not isinstance(one, fx.Node) for one in node.args[:2]) or node.kwargs:
            return None
        weight: Any = node.args[1]
        if weight.op != "get_attr":
            return None
        kernel = self._of_member(str(weight.target), m)
        if node.target is F.linear:
            return self._linear(node, found, m) if self.pays and kernel.ndim == 2 else None
        groups = node.args[8]
        thin = kernel.shape[1] < FEWEST and not (kernel.shape[1] == 1 and groups >= FEWEST)  # type: ignore[operator]
        return None if thin else (node, self._convolution(node, found, m))

    def _convolution(self, node: Any, found: dict[fx.Node, Any], m: int) -> fx.Node:
        x, *given = fx.map_arg(node.args, found.__getitem__)
        stride, padding, dilation, groups = node.args[5:]

        def packed(kernel: Tensor) -> Tensor:
            size = self.sizes[node]  # without it oneDNN may choose an order for which it has slow kernels alone
            return _onednn._reorder_convolution_weight(kernel, padding, stride, dilation, groups, size)

        return self.graph.call_function(convolution, (x, self._tensor(str(node.args[1].target), m, packed), *given))

    def _linear(self, node: Any, found: dict[fx.Node, Any], m: int) -> tuple[fx.Node, fx.Node]:
        x, weight, *bias = fx.map_arg(node.args, found.__getitem__)
        last, gelu = _gelu_after(node)
        packed = self._tensor(str(node.args[1].target), m, _onednn._reorder_linear_weight)
        return last, self.graph.call_function(linear, (x, packed, weight, bias[0] if bias else None, gelu))


def _gelu_after(node: fx.Node) -> tuple[fx.Node, str | None]:
    """Returns the GELU that alone reads a layer's result, and its kind; the layer itself and None if there is none."""
    user = next(iter(node.users)) if len(node.users) == 1 else None
    if user is None or user.target is not F.gelu or user.args != (node,):
        return node, None
    return user, str(user.kwargs.get("approximate", "none"))


def convolution(
    x: Tensor, packed: Tensor, kernel: Tensor, bias: Tensor | None, other: Tensor | None, relu: bool, *how: Any
) -> Tensor:
    """Computes a 2-D convolution, the addition and the ReLU behind it.

    A 1 × 1 convolution of one small image runs without oneDNN. The ReLU is torch's: oneDNN's makes 0 of NaN.
    """
    if len(x) == 1 and x.numel() <= TINY and kernel.shape[1:] == (x.shape[1], 1, 1):
        return FUSED(x, kernel, bias, other, relu, *how)
    stride, padding, dilation, groups = how
    given = (packed, bias, padding, stride, dilation, groups)
    if other is None:
        y = _onednn._convolution_pointwise(x, *given, "none", [], "")
    else:
        y = _onednn._convolution_pointwise.binary(x, other, *given, "add", 1.0, None, [], "")
    return y.relu_() if relu else y


def linear(x: Tensor, packed: Tensor, weight: Tensor, bias: Tensor | None, gelu: str | None) -> Tensor:
    """Computes a linear layer and its GELU, of the kind `gelu`, by oneDNN's product unless it is small."""
    if x.numel() * len(weight) >= LARGE:
        return _onednn._linear_pointwise(x, packed, bias, "none" if gelu is None else "gelu", [], gelu or "")
    y = F.linear(x, weight, bias)
    return y if gelu is None else F.gelu(y, approximate=gelu)


@functools.cache
def products_pay() -> bool:
    """Whether oneDNN multiplies matrices faster than torch's own library here; measured once in a process, in milliseconds."""
    x = weight = torch.ones(256, 256, dtype=torch.float32, device="cpu")  # whatever torch's defaults are
    packed = _onednn._reorder_linear_weight(weight)
    ways = (lambda: F.linear(x, weight), lambda: _onednn._linear_pointwise(x, packed, None, "none", [], ""))
    usual, prepared = (_seconds(way, 7) for way in ways)
    return prepared < 0.95 * usual


def _seconds(call: Callable[[], Any], times: int = 3) -> float:
    """Returns the seconds of the quickest of several calls."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        found.append(time.perf_counter() - begun)
    return min(found)
