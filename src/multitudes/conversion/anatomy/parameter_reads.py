"""Observes forward while it runs: parameters read outside their own module, their products, and calls of dropout functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from multitudes.engine import tree
from multitudes.engine.modules import join_name, owning_module

DROPOUT_FUNCTIONS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)


MOVES = frozenset("t transpose to contiguous type type_as float half bfloat16 double __getitem__ unsqueeze expand".split())
"""Methods that return a matrix as it is, transposed, in another type, or a part of a stack of matrices."""
SCALINGS = frozenset("mul __mul__ __rmul__ multiply div __truediv__ divide neg __neg__".split())
"""Methods that may multiply a matrix by one number."""
REARRANGEMENTS = frozenset("cat concat stack reshape view permute flatten flip rot90 roll".split())
"""Methods that put the entries of matrices into another order."""
SUMS = frozenset("linear matmul mm bmm _grouped_mm addmm baddbmm __matmul__ __rmatmul__ conv1d conv2d conv3d".split())
"""Products that sum over one axis of a weight, and `_summed_axis` knows which."""
LOOKUPS = frozenset({"embedding", "embedding_bag"})
PRODUCTS = SUMS | frozenset("einsum bilinear lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell".split())


class Roles(NamedTuple):
    """How a product uses the axes of a weight, counted from the last."""

    inputs: int | None
    """The axis that it sums over; None if it is not known."""
    outputs: int | None
    """The axis of its outputs."""
    kernel: bool = False
    """Whether the axes from the third on are those of a kernel."""

    def turned(self) -> Roles | None:
        """Returns the roles in the transposed matrix."""
        places: dict[int | None, int] = {-1: -2, -2: -1}
        return Roles(places[self.inputs], places[self.outputs]) if {self.inputs, self.outputs} == {-1, -2} else None


class ParameterReads(TorchFunctionMode):
    """Records which parameters are read outside their own module or only multiplied with, and calls of dropout functions."""

    HARMLESS = frozenset("size dim ndimension numel nelement is_floating_point is_complex stride __len__ __hash__".split())
    ATTRIBUTES = frozenset("data T mT H mH real imag".split())

    def __init__(self, probe: nn.Module, inputs: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.data: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._mark(inputs)
        self.weight_nodes: set[Any] = set()
        """Autograd nodes of tensors that are computed from parameters and constants alone: a weight in another form."""
        self.read_elsewhere: set[str] = set()
        self.functional_dropout: set[str] = set()
        self.tables: set[str] = set()
        """Parameters whose rows are looked up."""
        self.products: dict[str, set[int | None]] = {}
        self.other_reads: set[str] = set()
        self.roles: dict[str, set[Roles | None]] = {}
        """How products use the axes of parameters."""
        self.moved: dict[int, tuple[Tensor, tuple[str, ...], bool | None]] = {}
        """Parameters in another form: as they are, transposed (True), or in another order (None); by the id of the tensor."""
        self.names = {id(part): name for name, part in probe.named_modules()}
        self.running: list[nn.Module] = [probe]
        self.owners: dict[int, tuple[str, list[nn.Module]]] = {}
        for name, part in probe.named_modules():
            layer = probe.get_submodule(owning_module(f"{name}."))  # what a parametrization reads, its layer reads
            for key, parameter in part.named_parameters(recurse=isinstance(part, nn.MultiheadAttention)):
                self.owners.setdefault(id(parameter), (join_name(name, key), []))[1].append(layer)
            if layer is not part:
                continue
            part.register_forward_pre_hook(lambda module, _: self.running.append(module), prepend=True)  # before its own hooks
            part.register_forward_hook(self._leave)

    def _leave(self, _: Any, args: Any, output: Any) -> None:
        self.running.pop()
        if self._reads_data(args):  # functions of a library's own are not seen
            self._mark(tree.tensors(output))

    def _mark(self, tensors: Iterable[Tensor]) -> None:
        """Notes that tensors depend on the network's inputs."""
        self.data.update({id(tensor): tensor for tensor in tensors})

    def _reads_data(self, values: Any) -> bool:
        return any(self.data.get(id(tensor)) is tensor for tensor in tree.tensors(values))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        running = self.running[-1]
        if func in DROPOUT_FUNCTIONS and not isinstance(running, _DropoutNd):
            rate = args[1] if len(args) > 1 else (kwargs or {}).get("p", 0.5)
            self.functional_dropout |= {self.names[id(running)]} if rate else set()
        reads = getattr(getattr(func, "__self__", None), "__name__", "") in self.ATTRIBUTES if name == "__get__" else True
        if reads and name not in self.HARMLESS:
            for tensor in tree.tensors((args, kwargs or {})):
                parameter, owners = self.owners.get(id(tensor), ("", [running]))
                if not any(part is running for part in owners):
                    self.read_elsewhere.add(parameter)
        result = func(*args, **(kwargs or {}))
        if name not in self.HARMLESS:
            self._note_products(func, name, args, kwargs or {}, result)
            made = tree.tensors(result)
            if self._reads_data((args, kwargs or {})):
                self._mark(made)
            else:
                self.weight_nodes |= {tensor.grad_fn for tensor in made if tensor.grad_fn is not None}
        return result

    def add(self, *runs: ParameterReads) -> None:
        """Adds what other runs read, such as one in training mode."""
        for other in runs:
            self.read_elsewhere |= other.read_elsewhere
            self.functional_dropout |= other.functional_dropout
            self.tables |= other.tables
            self.other_reads |= other.other_reads
            for name, axes in other.products.items():
                self.products.setdefault(name, set()).update(axes)
            for name, roles in other.roles.items():
                self.roles.setdefault(name, set()).update(roles)

    def summed_axes(self) -> dict[str, int | None]:
        """Returns the parameters that are factors of products and nothing else, each with the axis summed over.

        The axis is counted from the last; it is None if products differ in it, or if it is not known.
        """
        only = {name: axes for name, axes in self.products.items() if name not in self.other_reads}
        return {name: next(iter(axes)) if len(axes) == 1 else None for name, axes in only.items()}

    def weight_roles(self) -> dict[str, Roles]:
        """Returns how products use the axes of parameters, where all use them in the same way, and it is known."""
        return {name: role for name, (role, *others) in self.roles.items() if role is not None and not others}

    def _note_products(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Records what an operation does with parameters, and which tensors are parameters in another form."""
        read = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else name
        if name == "__get__" and read not in ("T", "mT"):
            return
        values = [*args, *kwargs.values()]
        for tensor in tree.tensors((args, kwargs)):
            names, flipped = self._origin(tensor)
            if not names:
                continue
            if (read in MOVES or name == "__get__") and isinstance(result, Tensor) and tensor is values[0]:
                turned = _turned(read, tensor, result, args)
                if turned is not None:
                    form = flipped if flipped is None else flipped != turned
                    self.moved[id(result)] = (result, names, form)  # held, so that its id stays its own
                    continue
            if read in SCALINGS and isinstance(result, Tensor) and self._by_one_number(tensor, values):
                self.moved[id(result)] = (result, names, flipped)
                continue
            if read in REARRANGEMENTS and isinstance(result, Tensor) and not self._reads_data((args, kwargs)):
                known = self.moved.get(id(result), (result, (), None))[1]
                self.moved[id(result)] = (result, (*known, *names), None)
                continue
            if read in PRODUCTS and tensor.ndim > 1:
                role = _role(read, tensor, args, kwargs)
                role = None if role is None or flipped is None else role.turned() if flipped else role
                if role is None and read.startswith("conv"):
                    role = Roles(None, None, True)
                for parameter in names:
                    self.products.setdefault(parameter, set()).add(role and role.inputs)
                    self.roles.setdefault(parameter, set()).add(role)
            elif tensor.ndim > 1:
                self.other_reads |= set(names)
                self.tables |= set(names) if read in LOOKUPS else set()

    def _origin(self, tensor: Tensor) -> tuple[tuple[str, ...], bool | None]:
        """Returns the parameters that a tensor is, or is another form of, and whether it is transposed or rearranged."""
        if id(tensor) in self.owners:
            return (self.owners[id(tensor)][0],), False
        _, names, form = self.moved.get(id(tensor), (tensor, (), False))
        return names, form

    def _by_one_number(self, tensor: Tensor, values: list[Any]) -> bool:
        """Whether the other values of an operation are numbers, which are no data and no parameters."""
        others = [value for value in values if value is not tensor]
        single = [v for v in others if isinstance(v, Tensor) and v.numel() == 1 and not self._origin(v)[0]]
        return not self._reads_data(single) and all(isinstance(v, (int, float)) or any(v is s for s in single) for v in others)


def _turned(read: str, before: Tensor, after: Tensor, args: tuple[Any, ...]) -> bool | None:
    """Whether an operation transposes a matrix, or each of a stack; None if its result is no such matrix any more."""
    flips = read in ("T", "mT", "t", "transpose")
    if read == "transpose" and {axis % before.ndim for axis in args[1:]} != {before.ndim - 2, before.ndim - 1}:
        return None
    expected = before.shape[-2:][::-1] if flips else before.shape[-2:]
    return flips if after.ndim > 1 and after.shape[-2:] == expected else None


def _role(read: str, weight: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Roles | None:
    """Returns how a product uses the axes of a weight; None for groups of channels, and where it is not known."""
    if read == "linear":
        return Roles(-1, -2) if weight is kwargs.get("weight", args[1] if len(args) > 1 else None) else None
    if read.startswith("conv"):
        given = kwargs.get("groups", args[6] if len(args) > 6 else 1)
        kernel = given == 1 and weight is kwargs.get("weight", args[1] if len(args) > 1 else None)
        return Roles(1 - weight.ndim, -weight.ndim, True) if kernel else None
    if read == "einsum":
        return _role_in_einsum(weight, args)
    if read not in SUMS:
        return None
    factors = args[1:3] if read in ("addmm", "baddbmm") else args[:2]
    if len(factors) != 2 or factors[0] is factors[1]:
        return None
    first = weight is (factors[1] if read == "__rmatmul__" else factors[0])
    return Roles(-1, -2) if first else Roles(-2, -1)


def _role_in_einsum(weight: Tensor, args: tuple[Any, ...]) -> Roles | None:
    """Returns how an einsum of two tensors uses the axes of one of them: it sums over inputs, and outputs are its own."""
    if not isinstance(args[0], str) or "->" not in args[0] or "." in args[0]:
        return None
    read, made = args[0].replace(" ", "").split("->")
    operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    pairs = list(zip(read.split(","), operands, strict=False))
    mine = [letters for letters, operand in pairs if operand is weight]
    others = [letters for letters, operand in pairs if operand is not weight]
    if len(mine) != 1 or len(others) != 1:
        return None
    inputs = [k for k, letter in enumerate(mine[0]) if letter in others[0] and letter not in made]
    outputs = [k for k, letter in enumerate(mine[0]) if letter not in others[0] and letter in made]
    return Roles(inputs[0] - weight.ndim, outputs[0] - weight.ndim) if len(inputs) == len(outputs) == 1 else None
