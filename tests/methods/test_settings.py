"""Settings that a method refuses as soon as it is made, before there is a model: the error names the field."""

from __future__ import annotations

import math
from typing import Any

import pytest
from laws import METHODS

import multitudes as mt

NAN, INF = math.nan, math.inf

REFUSED: dict[type[mt.Method], list[tuple[dict[str, Any], str]]] = {
    mt.Single: [({"members": 2}, "Deep")],
    mt.Deep: [({"reduction": "max"}, "reduction")],
    mt.BatchEnsemble: [({"init": "zeros"}, "init"), ({"feed": "some"}, "feed"), ({"lr_factor": -1}, "lr_factor")],
    mt.MIMO: [
        *(({"rho": value}, "rho") for value in (-0.1, 1.5, True, NAN, "half")),
        *(({"repeat": value}, "repeat") for value in (0, 2.0, True)),
        ({"reduction": "max"}, "reduction"),
    ],
    mt.MCDropout: [
        *(({"p": value}, "p=") for value in (1.0, -0.1, True, NAN, "some")),
        *(({"position": value}, "position") for value in ((), "")),
        ({"filterwise": 1}, "filterwise"),
    ],
    mt.DropConnect: [
        *(({"p": value}, "p=") for value in (1.0, -0.1, True, None, NAN)),
    ],
    mt.Packed: [
        *(({"alpha": value}, "alpha") for value in (0.5, 4.5, NAN, True, "2")),
        ({"members": 1}, "alpha"),  # its alpha of 2 is more than one member
        *(({"gamma": value}, "gamma") for value in (0, 1.5, True)),
        ({"pretrained": 1}, "pretrained"),
        *(({"of": value}, "of") for value in (0, 2)),
    ],
    mt.Masksembles: [
        *(({"scale": value}, "scale") for value in (0.5, INF)),
        ({"width": "wide"}, "width"),
        ({"position": "between"}, "position"),
        ({"feed": "some"}, "feed"),
        ({"capacity": 0.5}, "width"),
        ({"width": "grow", "capacity": 0.0}, "capacity"),
        ({"fewest": 0}, "fewest"),
    ],
    mt.EMP: [
        *(({"components": value}, "components") for value in (0, True, 2.0)),
        ({"components": 1, "zero_component": True}, "components"),
        ({"zero_component": "yes"}, "zero_component"),
        ({"init": "zeros"}, "init"),
        ({"draw": "epoch"}, "draw"),
        ({"prior": "l1"}, "prior"),
        ({"reduction": "max"}, "reduction"),
        ({"sigma": -0.1}, "sigma"),
        *(({"strength": value}, "strength") for value in (NAN, "much")),
        ({"tau": INF}, "tau"),
        ({"rho": -1.0}, "rho"),
        ({"gamma": "low"}, "gamma"),
        *(({"tau_output": value}, "tau_output") for value in (0.0, "much", True)),
        *(
            ({"components": 2, "probabilities": value}, "probabilities")
            for value in ((0.5, 0.2, 0.3), (1.5, -0.5), (0.5, 0.4), (NAN, NAN), 0.5)
        ),
        ({"prior": "elbo"}, "examples"),
        *(({"prior": "elbo", "examples": value}, "examples") for value in (0, "all", True)),
        *(({"patch": value}, "patch") for value in ("", (), "norm+head", (1,), 5)),
    ],
}
"""By method: fields, and the field that the error names (of Single, the method to take instead)."""
REFUSED[mt.ECMP] = REFUSED[mt.EMP]


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [pytest.param(kind, *row, id=f"{kind.__name__}-{row[0]}") for kind, rows in REFUSED.items() for row in rows],
)
def test_a_setting_is_refused_by_name(kind: type[mt.Method], fields: dict[str, Any], named: str) -> None:
    with pytest.raises(mt.InputError, match=named):
        kind(**fields)


@pytest.mark.parametrize("name", METHODS)
def test_members_are_a_whole_number_from_one_on(name: str) -> None:
    for members in (0, -1, True, 2.5, "4", None):
        with pytest.raises(mt.InputError, match=rf"{name}\(members={members!r}\)"):
            getattr(mt, name)(members=members)
