"""CallForm: how a network takes its inputs, so that tuples, lists and dicts of tensors become the arguments of its forward.

At conversion the signature of forward decides whether a tuple or dict is one argument or several; where it allows both, the
network is tried. Afterwards the example of the conversion decides.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.inputs import Inputs, fresh_inputs, shown
from multitudes.engine.modules import detached_copy
from multitudes.engine.seeds import seeded
from multitudes.errors import InputError

LABELS = ("labels", "label", "targets", "target")
"""The keys under which a batch that is a dict may hold its targets."""

ANY = inspect.Signature(
    [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL), inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)]
)
"""The signature of a forward that tells nothing of its arguments."""


def signature_of(model: nn.Module) -> inspect.Signature:
    """Returns the signature of a model's forward."""
    try:
        return inspect.signature(model.forward)
    except (TypeError, ValueError):  # a scripted module has none
        return ANY


def is_packed(x: Any) -> bool:
    """Whether `x` is a tuple, list or dict with tensors inside, which may stand for several arguments."""
    kinds = isinstance(x, (tuple, list)) or (isinstance(x, Mapping) and all(isinstance(key, str) for key in x))
    return kinds and bool(tree.tensors(x))


def unpacked(x: Any) -> Inputs:
    """Returns the call with the entries of a tuple, list or dict as arguments."""
    return Inputs(**x) if isinstance(x, Mapping) else Inputs(*x)


def binds(signature: inspect.Signature, call: Inputs) -> bool:
    """Whether a forward of this signature takes these arguments."""
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError:
        return False
    return True


def call_of(model: nn.Module, example: Any) -> Inputs:
    """Returns the example as a call of the model: a tuple, list or dict is one argument or several, as forward takes it.

    If its signature allows both, the model is run both ways. An example that runs both ways, or neither, is refused.
    """
    if not is_packed(example):
        return Inputs.of(example)
    signature, calls = signature_of(model), (Inputs(example), unpacked(example))
    fitting = [call for call in calls if binds(signature, call)]
    surplus = _surplus(signature, example) if isinstance(example, Mapping) and calls[1] not in fitting else []
    if surplus and (calls[0] not in fitting or _error(model, calls[0])):
        raise InputError(
            f"forward{_parameters(signature)} has no argument {' and '.join(map(repr, surplus))}: leave it out of the example, "
            f"{{k: v for k, v in x.items() if k not in {surplus}}}, or give the whole dict as one argument, mt.Inputs(x)"
        )
    if not fitting:
        raise InputError(
            f"forward{_parameters(signature)} does not take the example {shown(example)}, neither as one argument nor as "
            f"{len(example)}: give its arguments as mt.Inputs(...)"
        )
    if len(fitting) == 1:
        return fitting[0]
    errors = [_error(model, call) for call in calls]
    if None not in errors:
        raise InputError(
            f"the model fails on the example {shown(example)}, as one argument ({errors[0]}) and as {len(example)} arguments "
            f"({errors[1]}). Give a batch that the model takes, as mt.Inputs(...)"
        )
    if errors == [None, None]:
        stars = "**x" if isinstance(example, Mapping) else "*x"
        raise InputError(
            f"the example x, {shown(example)}, may be one argument of forward{_parameters(signature)} or several: say which, "
            f"mt.Inputs(x) or mt.Inputs({stars})"
        )
    return calls[errors.index(None)]


def _surplus(signature: Any, example: Mapping[Any, Any]) -> list[Any]:
    """Returns the keys of a dict of arguments that forward does not take, such as "labels"; none if it takes no other key."""
    known = set(getattr(signature, "parameters", ()))
    surplus = [key for key in example if key not in known]
    return surplus if len(surplus) < len(example) else []


def _error(model: nn.Module, call: Inputs) -> str | None:
    """Runs a copy of the model in eval mode. Returns its error, or None."""
    again = fresh_inputs(call)
    try:
        with torch.no_grad(), seeded(0):
            detached_copy(model, {}).eval()(*again.args, **again.kwargs)
    except Exception as error:  # a model may raise anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return None


def packing(example: Any, call: Inputs, signature: inspect.Signature) -> str:
    """Says in the plan how a tuple, list or dict was taken; "" for other examples."""
    if not is_packed(example):
        return ""
    kind = type(example).__name__
    if len(call.args) == 1 and not call.kwargs and not isinstance(call.args[0], Tensor):
        return f"the example is one argument of forward, a {kind}"
    names = ", ".join(signature.bind(*call.args, **call.kwargs).arguments)
    return f"the {kind} of the example holds arguments of forward: {names}"


def _parameters(signature: inspect.Signature) -> str:
    return f"({', '.join(str(parameter).partition(':')[0].partition('=')[0] for parameter in signature.parameters.values())})"


@dataclass(frozen=True)
class CallForm:
    """How an ensemble is called: the arguments of its network's forward, and those of the conversion's example."""

    signature: inspect.Signature
    example: Mapping[str, Any]
    """The description of the example, by `Inputs.described`."""

    @property
    def names(self) -> list[str]:
        """The names of the example's arguments; a place, such as "0", for one that forward does not name."""
        known = [p.name for p in self.signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        places = [known[place] if place < len(known) else str(place) for place in range(len(self._args))]
        return [*places, *self._kwargs]

    @property
    def _args(self) -> list[Any]:
        return list(self.example.get("args", ()))

    @property
    def _kwargs(self) -> dict[str, Any]:
        named = self.example.get("kwargs", {})
        return {key: named[key] for key in self.example.get("order", named)}

    @property
    def _is_one(self) -> bool:
        """Whether the example's first argument was itself a tuple, list, dict or other object."""
        first = next(iter([*self._args, *self._kwargs.values()]), {"kind": "tensor"})
        return first["kind"] not in ("tensor", "plain")

    @property
    def count(self) -> int:
        """The number of tensors that are arguments; 0 if other arguments are among them."""
        kinds = [part["kind"] for part in [*self._args, *self._kwargs.values()]]
        return len(kinds) if all(kind == "tensor" for kind in kinds) else 0

    @property
    def ranks(self) -> list[int]:
        """The number of axes of each tensor that is an argument of the example."""
        return [len(part["shape"]) for part in [*self._args, *self._kwargs.values()] if part["kind"] == "tensor"]

    def inputs(self, x: Any, advice: str = "") -> Inputs:
        """Returns `x` as a call; a tuple, list or dict is unpacked, unless the example had one as its argument.

        `advice` is what an error tells to do; by default to give an `Inputs`.
        """
        if not is_packed(x) or self._is_one:
            return self.checked(Inputs.of(x))
        call = self._by_name(x) if isinstance(x, Mapping) else unpacked(x)
        if binds(self.signature, call):
            return call
        names = [p.name for p in self.signature.parameters.values() if p.kind is not p.VAR_POSITIONAL]
        unknown = [key for key in x if key not in names] if isinstance(x, Mapping) else []
        why = f"forward has no argument {', '.join(unknown)}" if unknown else "they are too few or too many"
        raise InputError(
            f"the inputs are a {type(x).__name__}, {shown(x)}, but not the arguments of forward{_parameters(self.signature)}: "
            f"{why}: {advice or f'give them as {self._line(x)}'}"
        )

    def refuse_packed(self, x: Any) -> None:
        """Refuses a tuple, list or dict in a plain call of a network that takes its entries one by one."""
        if self.count > 1 and not self._is_one and len(x) > 1:
            stars = "**x" if isinstance(x, Mapping) else "*x"
            raise InputError(f"forward{_parameters(self.signature)} takes its inputs one by one: call ens({stars})")

    def checked(self, call: Inputs) -> Inputs:
        """Returns the call, if it has as many tensors as forward needs."""
        given = len(call.args) + len(call.kwargs)
        if given < self.count and not binds(self.signature, call):
            names = ", ".join(self.names)
            raise InputError(
                f"forward{_parameters(self.signature)} takes {self.count} inputs, but the data has {given}, {call}: give all "
                f"of them, as the tuple ({names}) or as mt.Inputs({names})"
            )
        return call

    def _by_name(self, x: Mapping[str, Any]) -> Inputs:
        """Returns the call with the entries of a dict, in the form and order of the example."""
        places = self.names[: len(self._args)]
        if not all(name in x for name in places):
            return Inputs(**x)
        order = [*(key for key in self._kwargs if key in x), *(key for key in x if key not in self._kwargs)]
        return Inputs(*(x[name] for name in places), **{key: x[key] for key in order if key not in places})

    def unpack(self, batch: Any) -> tuple[Inputs, Any]:
        """Takes a batch apart into inputs and targets; targets are None if the batch has none.

        A batch is a tensor, an `Inputs`, a pair (input, targets), the inputs one by one with targets behind them, or a dict
        with its targets under one of `LABELS`.
        """
        if isinstance(batch, (Tensor, Inputs)):
            return self.checked(Inputs.of(batch)), None
        if isinstance(batch, Mapping):
            return self._unpack_dict(batch)
        if not isinstance(batch, (tuple, list)):
            raise InputError(f"a batch is a {type(batch).__name__}: {self._advice(batch)}")
        if len(batch) == 1:
            return self.inputs(batch[0]), None
        inner = isinstance(batch[0], Inputs) or is_packed(batch[0])
        if len(batch) == 2 and (inner or self.count < 2):
            return self.inputs(batch[0]), batch[1]
        if self.count > 1 and len(batch) == self.count + 1:
            return self._in_places(batch[:-1], batch), batch[-1]
        fewer = Inputs(*batch[:-1])
        if self.count > 1 and len(batch) == self.count and not binds(self.signature, fewer):
            return self._in_places(batch, batch), None
        kind = type(batch).__name__
        raise InputError(f"a batch is a {kind} of {len(batch)}, and it is unclear which are targets: {self._advice(batch)}")

    def _unpack_dict(self, batch: Mapping[str, Any]) -> tuple[Inputs, Any]:
        inner: Mapping[str, Any] = next((part.get("parts", {}) for part in self._args if part["kind"] == "dict"), {})
        needed = {*self.names, *inner}  # what the network reads is no target
        keys = [key for key in LABELS if key in batch and key not in needed]
        if len(keys) > 1:
            raise InputError(
                f"a batch is a dict with {' and '.join(keys)}, and it is unclear which are targets: {self._advice(batch)}"
            )
        kept = {key: value for key, value in batch.items() if key not in keys}
        return self.inputs(kept, self._advice(batch)), batch[keys[0]] if keys else None

    def _in_places(self, parts: Sequence[Any], batch: Any) -> Inputs:
        """Returns the call with the parts of a batch as the example's arguments, if forward has these in the same order."""
        places = list(self.signature.bind(*parts).arguments) if binds(self.signature, Inputs(*parts)) else []
        if (self._kwargs and places != self.names) or not self._is_like(parts):
            raise InputError(f"it is unclear which part of a batch is which argument of forward: {self._advice(batch)}")
        count = len(self._args)
        return Inputs(*parts[:count], **dict(zip(self._kwargs, parts[count:], strict=True)))

    def _is_like(self, parts: Sequence[Any]) -> bool:
        """Whether tensors have as many axes as the example's, and are whole numbers where these are."""
        return self._kinds == [self._kind(part) for part in parts]

    @property
    def _kinds(self) -> list[tuple[int, bool] | None]:
        """The number of axes of each of the example's tensors, and whether it holds floats."""
        described = [part for part in [*self._args, *self._kwargs.values()] if part["kind"] == "tensor"]
        return [(len(part["shape"]), getattr(torch, part["dtype"]).is_floating_point) for part in described]

    @staticmethod
    def _kind(part: Any) -> tuple[int, bool] | None:
        return (part.ndim, part.is_floating_point()) if isinstance(part, Tensor) else None

    def is_batch(self, first: Any) -> bool:
        """Whether the first entry of a list is a batch already, and no single example: its inputs have as many axes."""
        if isinstance(first, (tuple, list)) and len(first) == 2 and (isinstance(first[0], Inputs) or is_packed(first[0])):
            first = first[0]
        ranks = dict(zip(self.names, self.ranks, strict=False)) if self.count else {}
        if isinstance(first, Mapping):
            tensors = [(value, ranks[key]) for key, value in first.items() if key in ranks and isinstance(value, Tensor)]
        else:
            parts = first.tensors() if isinstance(first, Inputs) else tree.tensors(first)
            tensors = list(zip(parts[:1], self.ranks, strict=False))
        return bool(tensors) and all(tensor.ndim >= rank for tensor, rank in tensors)

    def _advice(self, batch: Any) -> str:
        """Returns the line to type, which takes such batches apart by hand."""
        count = max(1, len(self.names))
        if isinstance(batch, Mapping):
            target = next((key for key in LABELS if key in batch), None)
            keys = [key for key in batch if key not in LABELS]
            target = next(reversed(keys[count:]), None) if target is None else target
            parts = [f"batch[{key!r}]" for key in keys[:count]]
            return self._unpack_line(parts, f"batch[{target!r}]" if target else "None") + (
                "" if target else "; it has no targets"
            )
        if not isinstance(batch, (tuple, list)):
            return self._unpack_line([f"batch[{place}]" for place in range(count)], f"batch[{count}]")
        letters = [chr(ord("i") + place) for place in range(count + (len(batch) > count))]
        line = self._unpack_line(
            [f"batch[{one}]" for one in letters[:count]], f"batch[{letters[-1]}]" if len(batch) > count else "None"
        )
        may = [str(place) for place, part in enumerate(batch) if self._kind(part) in self._kinds]
        which = f" (like its inputs: {', '.join(may)})" if may else ""
        own = "" if len(batch) > count else "; targets need a column of their own"
        taken = f"forward{_parameters(self.signature)} takes {count} of the {len(batch)} columns{which}"
        return f"{taken}: {line}, with your numbers for {', '.join(letters)}{own}"

    def _unpack_line(self, parts: Sequence[str], target: str) -> str:
        names = [*("" for _ in self._args), *(f"{name}=" for name in self._kwargs)] or [""]
        listed = ", ".join(name + part for name, part in zip(names, parts, strict=False))
        inputs = listed if len(parts) == 1 and names == [""] else f"mt.Inputs({listed})"
        return f"pass a function that returns input and targets, unpack=lambda batch: ({inputs}, {target})"

    def _line(self, x: Any) -> str:
        parts = [f"x[{key!r}]" for key in x] if isinstance(x, Mapping) else [f"x[{place}]" for place in range(len(x))]
        names = [*("" for _ in self._args), *(f"{name}=" for name in self._kwargs)]
        return f"mt.Inputs({', '.join(name + part for name, part in zip(names, parts, strict=False))})"
