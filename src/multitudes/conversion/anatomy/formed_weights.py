"""Weights of layers that are not known: which of them members can have in a form of their own, and which are shared.

A known layer gets masks or factors on its inputs and outputs. Of other modules nothing is known but how they use their weights
on the example (`Structure.summed_axes`). A weight that is a factor of products, and nothing else, can be formed: the member's
own weight is computed from the stored one wherever it is read. So can the weight of a layer that inherits from a known one and
has a forward of its own, of a known layer whose weight another module reads, and of recurrent layers. Other matrices are
shared, such as tables that pass through a norm first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from multitudes.conversion.anatomy.known_layers import PRODUCTS, is_attention, is_parametrized, known_layers
from multitudes.conversion.anatomy.structure import NORMS, Structure, additive_parameters
from multitudes.engine.modules import inside, join_name, owning_module

SHARED = (*NORMS, nn.Embedding, nn.EmbeddingBag)
"""Layers that all members share, even if they have matrices."""
UNKNOWN = "is an unknown layer"
"""How the reason of a refusal begins, after the layer's class."""
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
"""torch's recurrent layers and cells."""


def layers_by_name(structure: Structure) -> dict[str, nn.Module]:
    """Returns the known layers whose weights nothing reads but the layer itself, and torch's attention."""
    elsewhere = {owning_module(name) for name in structure.read_elsewhere}
    return {name: layer for name, layer in known_layers(structure.model) if is_attention(layer) or name not in elsewhere}


def formed_weights(structure: Structure) -> dict[str, tuple[str, ...]]:
    """Names the modules with weights that can be formed, and these weights."""
    formed = {}
    for name, keys in _other_matrices(structure).items():
        part = structure.model.get_submodule(name)
        layer = isinstance(part, (*PRODUCTS, *RECURRENT))
        fit = tuple(key for key in keys if layer or join_name(name, key) in structure.summed_axes)
        if fit and not hasattr(part, "parametrizations"):
            formed[name] = fit
    return formed


def shared_matrices(structure: Structure, formed: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Names the modules with matrices that members share because no rule for them is known, and these matrices."""
    shared = _shared_keys(structure, formed)
    return {name: f"shared: no rule is known for {', '.join(keys)}" for name, keys in shared.items()}


def mostly_shared(structure: Structure, formed: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Names the modules to refuse: no rule for their weights is known, and these are more than half of all weights."""
    shared = _shared_keys(structure, formed)
    sizes = {name: p.numel() for name, p in structure.model.named_parameters() if _is_matrix(p)}
    unknown = {join_name(name, key) for name, keys in shared.items() for key in keys}
    layers = [*layers_by_name(structure), *formed]
    known = sum(n for name, n in sizes.items() if name not in unknown and inside(owning_module(name), layers))
    return _reasons(structure, shared) if sum(sizes[name] for name in unknown) > known else {}


def unknown_layers(structure: Structure) -> dict[str, str]:
    """Names the modules with matrices that are neither known layers nor shared by all members, with a reason to refuse them.

    Parameters that are only added, or multiplied entry by entry, are shared: tokens, positions, scales.
    """
    return _reasons(structure, _other_matrices(structure))


def _reasons(structure: Structure, keys: Mapping[str, Sequence[str]]) -> dict[str, str]:
    reasons = {}
    for name, own in keys.items():
        part = structure.model.get_submodule(name)
        parent = next((p.__name__ for p in PRODUCTS if isinstance(part, p)), None)
        weights = ", ".join(join_name(name, key) for key in own)
        why = f"its forward is not that of {parent}" if parent else f"it multiplies by {weights}"
        if parent and name not in structure.order:
            reasons[name] = "the model reads its weights without calling it, so converting it would have no effect"
        else:
            reasons[name] = f"{type(part).__name__} {UNKNOWN}: {why}"
    return reasons


def _shared_keys(structure: Structure, formed: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    left = {n: [key for key in keys if key not in formed.get(n, ())] for n, keys in _other_matrices(structure).items()}
    return {name: keys for name, keys in left.items() if keys}


def _other_matrices(structure: Structure) -> dict[str, list[str]]:
    """Returns the matrices that the outputs depend on, by module: of those that are neither known nor shared by all members.

    Parameters that are only added, or multiplied entry by entry, are left out.
    """
    known = layers_by_name(structure)
    whole = [name for name, layer in known.items() if is_attention(layer) or is_parametrized(layer)]
    names = structure.used_parameters - additive_parameters(structure)
    others = {}
    for name, part in structure.model.named_modules():
        if name in known or isinstance(part, SHARED) or inside(name, whole):
            continue
        keys = [key for key, p in part._parameters.items() if p is not None and _is_matrix(p) and join_name(name, key) in names]
        if keys:
            others[name] = keys
    return others


def _is_matrix(tensor: Tensor) -> bool:
    """Whether a parameter has at least two axes longer than 1; a token or a scale has one."""
    return sum(size > 1 for size in tensor.shape) > 1
