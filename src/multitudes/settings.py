"""Checks settings: the annotation of a dataclass field says which values are allowed.

>>> @dataclasses.dataclass(frozen=True)
... class Mask:
...     members: Count = 4
...     scale: Annotated[float, at_least(1), below(6)] = 2.0
...     width: Literal["a", "b"] = "a"
...     def __post_init__(self):
...         check_settings(self)
>>> Mask(members=0, width="c")
Traceback (most recent call last):
multitudes.errors.InputError: Mask(members=0, width='c'): members must be a whole number of at least 1; width must be 'a' or 'b'
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import itertools
import math
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Set
from difflib import get_close_matches
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from multitudes.errors import InputError


@dataclasses.dataclass(frozen=True)
class Bound:
    """A bound for numbers, as in ``Annotated[float, above(0)]``."""

    text: str
    """The bound in words, to stand after "a number": "above 0"."""

    holds: Callable[[float], bool]


def at_least(low: float) -> Bound:
    """Bound for numbers of at least `low`."""
    return Bound(f"of at least {low:g}", lambda value: value >= low)


def above(low: float) -> Bound:
    """Bound for numbers greater than `low`."""
    return Bound(f"above {low:g}", lambda value: value > low)


def below(high: float) -> Bound:
    """Bound for numbers less than `high`."""
    return Bound(f"below {high:g}", lambda value: value < high)


def between(low: float, high: float) -> Bound:
    """Bound for numbers from `low` to `high`, both included."""
    return Bound(f"from {low:g} to {high:g}", lambda value: low <= value <= high)


Count = Annotated[int, at_least(1)]
"""A whole number of at least 1."""

Rate = Annotated[float, at_least(0), below(1)]
"""A number of at least 0 and below 1, such as a dropout rate or a momentum."""

Kind = TypeVar("Kind")
P = ParamSpec("P")
R = TypeVar("R")

ALIASES = {
    "members": "M k n num_members n_members ensemble_size num_estimators n_estimators num_models size samples num_samples "
    "n_samples passes heads num_heads masks num_masks",
    "batch": "batch_size bs", "epochs": "max_epochs num_epochs n_epochs num_train_epochs", "lr": "learning_rate max_lr base_lr",
    "weight_decay": "wd l2", "clip": "gradient_clip_val grad_clip max_grad_norm clip_grad_norm", "optimizer": "optim optimiser",
    "schedule": "scheduler lr_scheduler lr_schedule", "accumulate": "accumulate_grad_batches gradient_accumulation_steps",
    "validation": "val valid val_set", "warmup": "warmup_epochs", "seed": "random_state", "precision": "amp dtype",
    "loss": "criterion", "patience": "early_stopping early_stop early_stopping_patience",
    "class_weights": "weight weights class_weight", "branch_at": "split",
}  # fmt: skip
"""Names that other libraries have for a setting, separated by spaces."""

ARGUMENT_ALIASES = {
    "batch_size": "batch bs", "val": "validation valid val_set val_data validation_data eval_set",
    "out": "out_dir output_dir folder path save_dir", "callbacks": "callback", "loggers": "logger", "criterion": "loss loss_fn",
    "targets": "y Y labels target", "example": "x input inputs sample", "data": "x inputs dataset",
    "inputs": "x X images features input", "classes": "class_names names labels_names target_names",
}  # fmt: skip
"""Names that an argument of a function has elsewhere, also among our settings, separated by spaces."""

ELSEWHERE = {
    "members": "it is a setting of the method, as in mt.Deep({name}={value})",
    "device": "move the ensemble, ens.to({value})",
}
"""Where arguments belong that a function does not take, by name."""

KIND_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", NoneType: "None"}


class _Signature:
    """The signature of a dataclass's `__init__`, for help(): Python would show that of `__new__`."""

    def __get__(self, instance: Any, owner: Any) -> inspect.Signature:
        made = inspect.signature(owner.__init__)
        return made.replace(parameters=list(made.parameters.values())[1:])


class Settings:
    """Base of keyword-only dataclasses. An argument without a name, or with an unknown one, is answered with the right name.

    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Mask(Settings):
    ...     members: Count = 4
    >>> Mask(ensemble_size=4)
    Traceback (most recent call last):
    multitudes.errors.InputError: Mask(ensemble_size=...): there is no such setting: type members=. Settings: members
    """

    __signature__ = _Signature()

    def __new__(cls, *values: Any, **settings: Any) -> Any:
        """Checks the names of the arguments; `__init__` then takes them."""
        names = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
        if values:
            line = f"{cls.__name__}()"
            with contextlib.suppress(Exception):
                cls(**{names[0]: values[0]})
                line = f"{cls.__name__}({names[0]}={_short(values[0])})"
            raise InputError(f"{cls.__name__} takes settings by name, as in {line}. Settings: {', '.join(names)}")
        unknown = [name for name in settings if name not in names]
        if unknown:
            shown = ", ".join(f"{name}=..." for name in unknown)
            meant = [f"{near}=" for name in unknown if (near := _nearest(name, names))]
            hint = f": type {' and '.join(dict.fromkeys(meant))}" if meant else ""
            raise InputError(f"{cls.__name__}({shown}): there is no such setting{hint}. Settings: {', '.join(names)}")
        return super().__new__(cls)


class Named:
    """Base of dataclasses whose arguments may have no name. One with an unknown name is answered with the right name."""

    __signature__ = _Signature()

    def __new__(cls, *values: Any, **settings: Any) -> Any:
        """Checks the arguments; `__init__` then takes them. Pickle and copy give none."""
        if values or settings:
            check_call(cls.__name__, inspect.signature(cls.__init__), (cls, *values), settings)
        return super().__new__(cls)


def _nearest(name: str, names: list[str]) -> str | None:
    """Returns the setting that an unknown name most likely means."""
    aliases = [*ALIASES.items(), *ARGUMENT_ALIASES.items()]
    alias = next((own for own, others in aliases if own in names and name in others.split()), None)
    return alias or next(iter(get_close_matches(name, names, n=1, cutoff=0.6)), None)


def takes_names(positional: str = "", **settings: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a public function: arguments that it does not take are answered with the right name, or where they belong.

    positional  what to type in place of more arguments without a name than the function takes
    settings    arguments that are settings: an argument that is one of their fields is told to belong there

    >>> @takes_names()
    ... def train(data, *, epochs=1): ...
    >>> train(0, epoch=3)
    Traceback (most recent call last):
    multitudes.errors.InputError: train(epoch=3): there is no such argument: type epochs=. Arguments: data, epochs
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            check_call(function.__name__, signature, args, kwargs, positional, settings)
            return function(*args, **kwargs)

        return run

    return decorate


def check_call(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    positional: str = "",
    settings: Mapping[str, type] = MappingProxyType({}),
) -> None:
    """Checks that a function takes these arguments; see `takes_names`."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = [parameter for parameter in signature.parameters if parameter != "self"]
        unknown = [key for key in kwargs if key not in names]
        ordered = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        needed = [one for one in ordered if signature.parameters[one].default is inspect.Parameter.empty]
        missing = [one for one in needed[len(args) :] if one not in kwargs]
        called = f"{name}({', '.join(one for one in needed if one != 'self')})"
        if unknown:
            shown = ", ".join(f"{key}={_short(kwargs[key])}" for key in unknown)
            hint = _where(unknown[0], kwargs[unknown[0]], names, settings)
            text = f"{name}({shown}): there is no such argument{hint}. Arguments: {', '.join(names)}"
        elif missing:
            text = f"{name} needs {' and '.join(missing)}: call {called}"
        elif len(args) > len(ordered):
            own, count = [one for one in ordered if one != "self"], len(args) - ("self" in ordered)
            by_name = [one for one in names if one not in own]
            usual = f"give those after {own[-1]} by name, as in {by_name[0]}=..." if own and by_name else "leave out the others"
            taken = f"{', '.join(own)} without a name" if own else "no argument without a name"
            text = f"{name} takes {taken}, but {count} arguments are given: {positional or usual}"
        else:
            text = f"{name}: {error}: call {called}"
        raise InputError(text) from None


def _where(name: str, value: Any, names: list[str], settings: Mapping[str, type]) -> str:
    """Says what an unknown argument is called, or where it belongs."""
    for argument, kind in settings.items():
        fields = [field.name for field in dataclasses.fields(kind)]
        field = name if name in fields else None if _nearest(name, names) else _nearest(name, fields)
        if field is not None:
            return f": it is a setting of the {argument}, mt.{kind.__name__}({field}={_short(value)})"
    near = _nearest(name, names)
    if near is None and name in ELSEWHERE:
        return f": {ELSEWHERE[name].format(name=name, value=_short(value))}"
    return f": type {near}=" if near else ""


def _short(value: Any) -> str:
    """Returns a value as typed, if that is short."""
    return text if len(text := repr(value)) <= 20 else "..."


def check_settings(settings: Any) -> None:
    """Checks every field of a dataclass against its annotation, and raises one InputError that lists all wrong fields.

    It knows numbers, strings, bools, classes, functions, ``Literal``, ``Annotated`` with the bounds above, and unions and
    tuples of these. It does not check other annotations. A bool does not count as a number, and numbers must be finite.
    """
    kinds = _kinds(settings.__class__)
    wrong = {name: words(kind) for name, kind in kinds.items() if not fits(kind, getattr(settings, name))}
    if wrong:
        raise _error(settings, wrong, "; ".join(f"{name} must be {text}" for name, text in wrong.items()))


def check_rules(settings: Any, *rules: tuple[bool, str, str]) -> None:
    """Checks rules between settings, and raises one InputError that lists all broken rules.

    A rule is a tuple: whether it is broken, the names of its fields separated by spaces, and what to do.
    """
    broken = [(names.split(), text) for is_broken, names, text in rules if is_broken]
    if broken:
        fields = dict.fromkeys(name for names, _ in broken for name in names)
        raise _error(settings, fields, "; ".join(text for _, text in broken))


def check_value(name: str, value: Any, kind: Any) -> None:
    """Checks one argument: ``check("workers", workers, Count)``."""
    if not fits(kind, value):
        raise InputError(f"{name}={value!r}: {name} must be {words(kind)}")


def as_tuple(settings: Any, name: str) -> None:
    """Turns a field of a frozen dataclass into a tuple, if it is a list or another ordered iterable but not a string."""
    value = getattr(settings, name)
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping, Set)):
        with contextlib.suppress(TypeError):  # a tensor without axes is not iterable
            object.__setattr__(settings, name, tuple(value))


def fits(kind: Any, value: Any) -> bool:
    """Checks whether a value matches an annotation."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return fits(parts[0], value) and all(bound.holds(value) for bound in parts[1:] if isinstance(bound, Bound))
    if origin is Literal:
        return any(fits(type(choice), value) and value == choice for choice in parts)
    if origin in (Union, UnionType):
        return any(fits(part, value) for part in parts)
    if origin is tuple and parts[1:] == (...,):
        return isinstance(value, (tuple, list)) and all(fits(parts[0], item) for item in value)
    if origin is Callable:
        return callable(value) and not isinstance(value, type)
    if kind is Any or not isinstance(kind, type) or origin is not None:
        return True
    if kind in (int, float):
        number = isinstance(value, (int, kind)) and not isinstance(value, bool)
        return number and (isinstance(value, int) or math.isfinite(value))
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol or a TypedDict
        return True


def words(kind: Any) -> str:
    """Describes an annotation in words, to stand after "must be"."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{words(parts[0])} {' and '.join(bound.text for bound in parts[1:] if isinstance(bound, Bound))}".rstrip()
    if origin is Literal:
        return _either([repr(choice) for choice in parts])
    if origin in (Union, UnionType):
        return _either([words(part) for part in parts])
    if origin is tuple:
        return f"a tuple with {words(parts[0])} at each place"
    if origin is Callable:
        return "a function (not a class)"
    return KIND_WORDS.get(kind) or f"a {kind.__name__}"


def _either(texts: list[str]) -> str:
    return " or ".join([", ".join(texts[:-1]), texts[-1]] if texts[1:] else texts)


def _error(settings: Any, names: Any, text: str) -> InputError:
    shown = ", ".join(f"{name}={getattr(settings, name)!r}" for name in names)
    return InputError(f"{getattr(settings, 'shown_as', type(settings).__name__)}({shown}): {text}")


@functools.cache
def _kinds(kind: Any) -> dict[str, Any]:
    """Returns the annotation of each field of a dataclass, by name."""
    hints: dict[str, Any] = {field.name: Any for field in dataclasses.fields(kind)}
    for base in reversed(kind.__mro__):
        for name, hint in inspect.get_annotations(base).items():
            if name in hints:
                try:
                    hints[name] = eval(hint, vars(sys.modules[base.__module__])) if isinstance(hint, str) else hint
                except (NameError, KeyError, AttributeError, TypeError):  # local to a function, or for type checkers only
                    hints[name] = Any
    return hints


class _Explained:
    """A class's docstring with its settings, as `help()` shows it. It is made from the source when it is first read."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.whole = ""

    def __get__(self, instance: Any, owner: type) -> str:
        self.whole = self.whole or "\n\n".join(filter(None, [inspect.cleandoc(self.text), settings_text(owner)]))
        return self.whole


def explained(kind: type[Kind]) -> type[Kind]:
    """Decorates a dataclass: `help()` also shows its settings, each with its default and the string below it in the source."""
    kind.__doc__ = _Explained(kind.__doc__ or "")  # type: ignore[assignment]
    return kind


def settings_text(kind: Any) -> str:
    """Returns a list of a dataclass's settings: name, default and explanation."""
    texts = field_texts(kind)
    lines = []
    for field in dataclasses.fields(kind):
        if field.init:
            required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            lines.append(f"{field.name}" if required else f"{field.name} = {_default(field)}")
            lines += textwrap.wrap(texts.get(field.name, ""), 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(["Settings:", *(f"    {line}" for line in lines)]) if lines else ""


def _default(field: Any) -> str:
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    text = repr(value)
    return text if len(text) <= 60 else f"{type(value).__name__}(...)"


def field_texts(kind: type) -> dict[str, str]:
    """Returns the strings below the fields of a dataclass and its bases, by the field's name; empty if there is no source."""
    texts: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if dataclasses.is_dataclass(base)]):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        except (OSError, TypeError, SyntaxError):
            continue
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts
