"""Settings are checked by their annotations, all at once."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
import pydoc
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import pytest

from multitudes.errors import InputError
from multitudes.settings import (
    ALIASES,
    Count,
    Rate,
    Settings,
    above,
    as_tuple,
    at_least,
    below,
    between,
    check_rules,
    check_settings,
    check_value,
    fits,
)


class Kernel:
    """A class that a setting may be of."""


@dataclass(frozen=True, kw_only=True)
class Plain:
    members: Count = 4
    seed: Annotated[int, at_least(0)] = 0


@dataclass(frozen=True, kw_only=True)
class Filter(Plain):
    rate: Rate = 0.5
    share: Annotated[float, between(0, 1)] = 1
    clip: Annotated[float, above(0)] | None = None
    width: Literal["same", "grow"] = "same"
    axis: Literal[1, -1] | None = None
    names: str | tuple[str, ...] = "auto"
    strict: bool = False
    kernel: Kernel | None = None
    function: Callable[..., Any] | None = None
    anything: Any = None

    def __post_init__(self) -> None:
        as_tuple(self, "names")
        check_settings(self)
        check_rules(
            self,
            (self.members == 3 and self.strict, "members strict", "three members cannot be strict"),
            (self.seed > 9, "seed", "take a smaller seed"),
        )


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        *[("members", value, "a whole number of at least 1") for value in (0, -1, 1.0, True, "4", None, math.nan, np.int64(2))],
        ("seed", -1, "a whole number of at least 0"),
        *[("rate", value, "a number of at least 0 and below 1") for value in (1, -0.1, math.nan, True, "0.5", None)],
        *[("share", value, "a number from 0 to 1") for value in (1.01, -0.1, math.inf, False)],
        *[("clip", value, "a number above 0 or None") for value in (0, math.inf, "1", True)],
        *[("width", value, "'same' or 'grow'") for value in ("wide", None, 1, np.zeros(2))],
        *[("axis", value, "1 or -1 or None") for value in (0, True, 1.0, "1")],
        *[("names", value, "a string or a tuple with a string at each place") for value in (3, [3], None)],
        *[("strict", value, "True or False") for value in (1, None, "yes")],
        *[("function", value, "a function (not a class) or None") for value in (3, Kernel)],
        ("kernel", "gauss", "a Kernel or None"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(name: str, value: Any, text: str) -> None:
    with pytest.raises(InputError) as error:
        Filter(**{name: value})
    assert str(error.value).startswith(f"Filter({name}=")
    assert str(error.value).endswith(f"): {name} must be {text}")


@pytest.mark.parametrize(
    "settings",
    [
        {
            "members": 1,
            "rate": 0,
            "share": 1,
            "clip": 1e-9,
            "axis": -1,
            "kernel": Kernel(),
            "function": len,
            "anything": object(),
        },
        {"rate": np.float64(0.25), "share": 0.0, "clip": None, "width": "grow", "axis": None, "strict": True},
    ],
)
def test_right_settings_pass(settings: dict[str, Any]) -> None:
    assert Filter(**settings).rate == settings["rate"]


def test_one_error_lists_all() -> None:
    with pytest.raises(InputError) as error:
        Filter(members=0, width="wide", strict=2)  # type: ignore[arg-type]
    assert str(error.value) == (
        "Filter(members=0, width='wide', strict=2): members must be a whole number of at least 1; "
        "width must be 'same' or 'grow'; strict must be True or False"
    )


def test_rules_between_settings_are_listed_too() -> None:
    with pytest.raises(InputError) as error:
        Filter(members=3, strict=True, seed=10)
    assert str(error.value) == "Filter(members=3, strict=True, seed=10): three members cannot be strict; take a smaller seed"


def test_a_list_becomes_a_tuple_and_a_string_stays() -> None:
    assert Filter(names=["a", "b"]).names == ("a", "b")  # type: ignore[arg-type]
    assert Filter(names="norm").names == "norm"
    with pytest.raises(InputError, match="names"):
        Filter(names={"a", "b"})  # type: ignore[arg-type]


def test_a_type_that_cannot_be_named_is_not_checked() -> None:
    class Local:
        pass

    @dataclass(frozen=True)
    class Made:
        inner: Local
        members: Count = 4

    check_settings(Made(3))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="members"):
        check_settings(Made(3, 0))  # type: ignore[arg-type]


class Quack(Protocol):
    """A protocol, which isinstance refuses."""


@pytest.mark.parametrize(("kind", "value"), [(Quack, 3), (Annotated[int, "a note"], 3), (Count, 10**400), (float, 10**400)])
def test_odd_annotations_and_values_pass(kind: Any, value: Any) -> None:
    check_value("value", value, kind)


def test_one_argument_is_checked_by_the_same_words() -> None:
    check_value("workers", 2, Count)
    with pytest.raises(InputError, match=r"^workers=0: workers must be a whole number of at least 1$"):
        check_value("workers", 0, Count)


def test_bounds_exclude_and_include_their_ends() -> None:
    bounds = (at_least(1), above(1), below(1), between(0, 1))
    assert [fits(Annotated[float, bound], 1) for bound in bounds] == [True, False, False, True]


def test_the_checker_needs_no_torch() -> None:
    code = "import sys, multitudes.settings; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@dataclass(frozen=True, kw_only=True)
class Named(Settings):
    """Settings whose names are checked."""

    members: Count = 4
    alpha: float = 2.0

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Named(3), r"Named takes settings by name, as in Named\(members=3\)\. Settings: members, alpha"),
        (lambda: Named("many"), r"as in Named\(\)\."),
        (lambda: Named(num_estimators=3), r"Named\(num_estimators=\.\.\.\): there is no such setting: type members=\."),
        (lambda: Named(alfa=3, member=2), r"alfa=\.\.\., member=\.\.\..*type alpha= and members="),
        (lambda: Named(banana=3), r"no such setting\. Settings: members, alpha"),
    ],
)
def test_a_wrong_name_is_answered_with_the_right_one(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        make()


def test_names_of_other_libraries_lead_to_ours() -> None:
    """A name is listed for one setting only, and is no setting itself."""
    import multitudes as mt
    from multitudes.shell.jobs import Job

    fields = {field.name for kind in (mt.Recipe, mt.Packed, Job) for field in dataclasses.fields(kind)}
    others = [name for names in ALIASES.values() for name in names.split()]
    assert len(others) == len(set(others))
    assert not fields & set(others)
    for wrong, right in (("batch_size", "batch"), ("learning_rate", "lr"), ("max_epochs", "epochs")):
        with pytest.raises(InputError, match=rf"Recipe\({wrong}=\.\.\.\).*type {right}=\."):
            mt.Recipe(**{wrong: 3})
    with pytest.raises(InputError, match=r"Packed takes settings by name, as in Packed\(members=4\)"):
        mt.Packed(4)  # type: ignore[misc]


def test_help_shows_the_settings_and_copies_are_equal() -> None:
    assert str(inspect.signature(Named)) == "(*, members: 'Count' = 4, alpha: 'float' = 2.0) -> None"
    assert "alpha: 'float' = 2.0" in pydoc.render_doc(Named)
    made = Named(members=3)
    assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == dataclasses.replace(made) == made
