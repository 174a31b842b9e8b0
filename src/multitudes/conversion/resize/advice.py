"""What to type where a network cannot be resized: a factory of this very network, as far as its arguments are known."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import nn

from multitudes.conversion.anatomy.structure import Structure, last_layers
from multitudes.conversion.resize.audit import width_of
from multitudes.conversion.resize.constants import Path
from multitudes.conversion.resize.constructors import is_known, recipe_of, timm_architecture, timm_recipe
from multitudes.conversion.resize.pruning import ADVICE, is_transformers
from multitudes.conversion.resize.recipe import Recipe
from multitudes.conversion.resize.widths import UNEVEN, Search
from multitudes.errors import ConversionError
from multitudes.models.network import Network

Multiples = Mapping[Path, int]
"""Widths by their paths, and the number of heads that each must be divisible by; 1 if there are none."""

SIZES = "hidden_size|intermediate_size|embed_dim|hidden_dim|d_model|d_ff|ffn_dim|embedding_size|n_embd"
"""Names of widths in configurations."""

OTHERS = "class|label|num_|depth|layer|iter|step|args|drop"
"""Parts of names of arguments that are no widths."""

BASES = "deg|order|grid|knot|freq"
"""Parts of names of arguments that count the functions of a basis, as of splines: parameters have an axis of them."""

FIXED = r"\b\w+\.(?:view|reshape)\(\s*-1\s*,\s*([\d *]+)\)"
"""Code that makes rows of a fixed number of entries: a thinner network would have fewer rows."""

STREAM = "Its output is its residual stream"
"""How the reason begins why a network cannot be thinned whose blocks add to the output."""


def advice(structure: Structure, factory: Any = None) -> str:
    """Writes what to type instead: a last layer for a network without one, else a factory."""
    model = structure.model
    if isinstance(model, Network):
        said = ", ".join(f"{key}={value!r}" for key, value in model.arguments.items() if key != "width")
        call = f"{type(model).__name__}({said}, width={model.arguments['width']:g} * ratio)"
        return f"Give a factory that makes it at any width, with your changes:  {_example(call)}"
    if text := _stream(structure) or _fixed(model):
        return text
    call, widths = "", None
    try:
        if recipe := recipe_of(structure, factory):
            widths = _widths(recipe, structure, not is_known(model, factory))
            call = written(model, recipe, widths)
    except Exception:  # of a constructor; then the general line is given
        pass
    return f"Give a factory that makes it at any width:  {_example(call)}" if "ratio" in call else _general(model, widths == {})


def _general(model: nn.Module, without: bool = False) -> str:
    """Writes what to type for a network whose widths are not known: its class, or configuration, and the names of arguments.

    `without` says that all arguments were tried, and none is a width.
    """
    kind = type(model)
    if is_transformers(model):
        config: Any = model.config
        heads = getattr(config, "num_attention_heads", 1)
        heads = heads if isinstance(heads, int) else 1
        sizes = {n: v for n, v in vars(config).items() if type(v) is int and v > 1 and re.search(SIZES, n)}
        texts = ", ".join(f"{name}={_rounded(value, heads)}" for name, value in sizes.items())
        if texts:
            call = _example(f"{kind.__name__}({type(config).__name__}({texts}))")
            return f"Give a factory that makes it at any width, with your other settings:  {call}"
    if kind.__module__.startswith("torch.nn."):
        return ADVICE
    if architecture := timm_architecture(model):
        call = f"timm.create_model({architecture!r}, <your arguments>)"
        return f"Give the call that made it, as a factory:  mt.ensemble(lambda: {call}, mt.Packed(...), x)"
    names = [name for name in list(inspect.signature(kind.__init__).parameters)[1:] if not re.search(OTHERS, name)]
    texts = ", ".join(f"{name}=..." for name in names)
    if not names or without:
        return (
            f"Let {kind.__name__} take its width, and give a factory:  {_example(f'{kind.__name__}(width=round(64 * ratio))')}"
        )
    return f"Give a factory that multiplies its widths by the ratio:  {_example(f'{kind.__name__}({texts})')}"


def _widths(recipe: Recipe, structure: Structure, guessed: bool) -> Multiples:
    """Returns the widths that a search finds, without those that change more than widths; if none are left, with these."""
    search = Search(recipe, structure, guessed=guessed)
    try:
        paths: Collection[Path] = search.widths().paths
    except ConversionError:
        paths = search.alone()
    for chosen in (paths, [path for path in search.numbers if _is_harmless(search, path)]):
        multiples = {path: search.heads(path) for path in chosen}
        if multiples and not _fail(search, multiples):
            return multiples
    return {}


def _is_harmless(search: Search, path: Path) -> bool:
    """Whether half of a number gives other sizes of parameters, and the same outputs: a width, if not the only one."""
    if re.search(BASES, ".".join(map(str, path))):
        return False
    effect = search.effect((path,)) or {}
    return any(name in search.parameters for name, _ in effect) and not _fail(search, {path: search.heads(path)})


def _fail(search: Search, widths: Multiples) -> bool:
    """Whether the network does not run with half of these widths: then some of them are none."""
    half = {}
    for path, heads in widths.items():
        value = search.numbers[path]
        half[path] = value / 2 if isinstance(value, float) else heads * max(1, round(value / heads / 2))
    return search.wrong_at(half) not in ("", UNEVEN)


def _stream(structure: Structure) -> str:
    """Says what to do where the output is a residual stream, to which many layers add; "" elsewhere."""
    model, ends, layers = structure.model, last_layers(structure)[0], structure.layers()
    without_head = not layers or layers[0] in ends or getattr(model, "num_classes", None) == 0 or 2 * len(ends) > len(layers)
    outputs = {size for shape in structure.output_shapes.values() for size in shape}
    if len(ends) < 3 or not without_head or not all(width_of(model.get_submodule(end)) in outputs for end in ends):
        return ""
    name = timm_architecture(model)
    head = (
        f":  timm.create_model({name!r}, num_classes=10)" if name else " (a network for classification in place of a backbone)"
    )
    return (
        f"{STREAM}: {len(ends)} layers are added up to it, so they must stay as wide as the output. "
        f"Use another method, such as mt.BatchEnsemble(members=4), or give it a last layer of its own{head}"
    )


def _fixed(model: nn.Module) -> str:
    """Says what to write in place of code such as ``x.view(-1, 64)``, in which a width stands as a number; "" without it."""
    kinds = dict.fromkeys(kind for part in model.modules() for kind in type(part).__mro__)
    for kind in kinds:
        if kind.__module__.partition(".")[0] in ("torch", "builtins", "typing", "abc"):
            continue
        for name, function in vars(kind).items():
            try:
                lines = inspect.getsource(function) if inspect.isfunction(function) and name != "__init__" else ""
            except OSError:  # its file is gone
                continue
            if found := re.search(FIXED, lines):
                tensor = found[0].partition(".")[0]
                return (
                    f"{kind.__name__}.{name} has a width as a number, which a thinner network has not: write "
                    f"{tensor}.flatten(1) in place of {found[0]}"
                )
    return ""


def _example(call: str) -> str:
    return f"mt.ensemble(lambda ratio: {call}, mt.Packed(...), x)"


def written(model: nn.Module, recipe: Recipe, widths: Multiples) -> str:
    """Writes the call that makes a model, for a factory: the arguments at the paths `widths` are multiplied by the ratio.

    Arguments that are no widths are written where they differ from the default.
    """
    if is_transformers(model):
        ((name, config),) = recipe.arguments.items()
        plain = type(config)()
        texts = [text for text in _texts(vars(config), vars(plain), widths, (name,)) if "..." not in text]
        texts += [f"num_labels={config.num_labels}"] if config.num_labels != plain.num_labels else []
        return f"{recipe.kind.__name__}({type(config).__name__}({', '.join(texts)}))"
    defaults = {n: p.default for n, p in inspect.signature(recipe.kind.__init__).parameters.items()}
    function, first = recipe.kind.__name__, []
    if (architecture := timm_architecture(model)) and (plain := timm_recipe(architecture, recipe.kind)):
        defaults, function, first = plain.arguments, "timm.create_model", [repr(architecture)]
    return f"{function}({', '.join([*first, *_texts(recipe.arguments, defaults, widths, ())])})"


def _texts(values: Mapping[str, Any], defaults: Mapping[str, Any], widths: Multiples, path: Path) -> Iterator[str]:
    """Yields arguments as they are typed: those that follow the ratio or are no defaults."""
    for name, value in values.items():
        if name.startswith("_"):
            continue
        text = _text(value, widths, (*path, name))
        known = name in defaults and (value is defaults[name] or bool(value == defaults[name]))
        if "ratio" in text or not known:
            yield f"{name}={text}"


def _text(value: Any, widths: Multiples, path: Path) -> str:
    if isinstance(value, (list, tuple)) and len(value) < 8:
        inner = ", ".join(_text(part, widths, (*path, index)) for index, part in enumerate(value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner},)" if len(value) == 1 else f"({inner})"
    if path in widths:
        return f"{value:g} * ratio" if isinstance(value, float) else _rounded(value, widths[path])
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    return getattr(value, "__name__", "...")


def _rounded(width: int, heads: int) -> str:
    """Writes a width that follows the ratio, and stays divisible by the number of heads."""
    return f"{heads} * round({width // heads} * ratio)" if heads > 1 and width % heads == 0 else f"round({width} * ratio)"
