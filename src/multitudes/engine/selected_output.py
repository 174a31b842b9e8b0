"""SelectOutput: a network that returns several tensors, hidden states beside logits, returns one of them.

It is a hook on the network, so that names, classes and constructors stay the user's. Methods then see one output: layers that
only hidden states depend on are no last layers, and their widths may change.
"""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn

from multitudes.engine import tree
from multitudes.engine.modules import Factory, copy_with
from multitudes.errors import InputError


class SelectOutput:
    """A forward hook that returns the output tensor of this name."""

    sees_members = False
    """Whether it reads values, which are those of all members at once; `hooked` asks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Tensor:
        """Returns the tensor; an error names those that there are."""
        return output_of(output, self.name)


def output_of(outputs: Any, name: str | None) -> Tensor:
    """Returns the output tensor of this name; None is the name of a single one."""
    tensors = {path: leaf for path, leaf in tree.leaves(outputs) if isinstance(leaf, Tensor)}
    if name is None and len(tensors) == 1:
        return next(iter(tensors.values()))
    if tensors.keys() == {""}:
        raise InputError(f"output={name!r} names no output: the model returns one tensor without a name. Leave output= out")
    if name not in tensors:
        first = f"output={typed(next(iter(tensors)))}" if tensors else "a model that returns a tensor"
        asked = "" if name is None else f"output={typed(name)} names no output: "
        raise InputError(f"{asked}the model returns {', '.join(tensors) or 'no tensor'}: choose one, as in {first}")
    return tensors[name]


def typed(name: str) -> str:
    """Returns the name of an output as it is typed: a place in a tuple is a number."""
    return name if name.isdigit() else repr(name)


def checked_output(output: Any) -> str | None:
    """Checks the type of `output`. Returns the name of the output tensor; a place in a tuple, as text, is such a name."""
    if output is None or isinstance(output, str):
        return output
    if isinstance(output, bool) or not isinstance(output, int) or output < 0:
        raise InputError(f"output={output!r}: give the output's name, such as 'logits', or its place in a tuple, from 0 on")
    return str(output)


def selection_of(model: nn.Module) -> str | None:
    """Returns the name of the output that a model was told to return; None if it returns all."""
    return next((hook.name for hook in model._forward_hooks.values() if isinstance(hook, SelectOutput)), None)


def selecting(model: nn.Module, output: str | None) -> nn.Module:
    """Lets a model return this output only, in place. Returns it."""
    if output is not None and selection_of(model) is None:
        model.register_forward_hook(SelectOutput(output))
    return model


def selected(model: nn.Module | Factory, output: str | int | None) -> nn.Module | Factory:
    """Returns a copy of a model that returns this output only and has the same tensors; the model itself for None.

    Of a factory, returns one of the same signature whose networks return this output only.
    """
    name = checked_output(output)
    if name is None:
        return model
    if isinstance(model, nn.Module):
        return selecting(copy_with(model, {}), name)

    @functools.wraps(model)
    def make(*args: Any, **kwargs: Any) -> Any:
        made = model(*args, **kwargs)
        return selecting(made, name) if isinstance(made, nn.Module) else made

    return make
