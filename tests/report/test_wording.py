"""Wording: formats of numbers and names, and escaped text."""

from __future__ import annotations

import math

import pytest

from multitudes.report import wording
from multitudes.scores.meaning import MEANINGS


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.91234, "0.9123"), (-1.5, "−1.5000"), (0.0, "0.0000"), (0.00051, "0.00051"), (2.5e-7, "2.50e−07"),
        (1234.56, "1,234.6"), (5e9, "5.000e+09"), (math.nan, "NaN"), (math.inf, "∞"), (-math.inf, "−∞"),
    ],
)  # fmt: skip
def test_numbers(value: float, shown: str) -> None:
    assert wording.number(value) == shown


def test_a_spread_has_the_decimals_of_its_mean() -> None:
    assert wording.number(0.00029, beside=0.99) == "0.0003"
    assert wording.number(0.5, beside=2000.0) == "0.5"
    assert wording.number(0.5, beside=math.nan) == "0.5000"


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("parameters", 11_173_962, "11.2 M"), ("parameters", 999_999, "1,000 k"), ("multiply_adds", 5.55e8, "555 M"),
        ("multiply_adds", 12, "12"), ("memory", 79 * 2**20, "79.0 MiB"), ("memory", 3 * 2**30, "3.00 GiB"),
        ("latency", 0.0123, "12.3 ms"), ("latency", 2.0, "2.00 s"), ("seconds", 200, "3 min 20 s"), ("seconds", 8.24, "8.2 s"),
        ("seconds", 7500, "2 h 05 min"), ("seconds", 59.99, "60.0 s"), ("watts", 12.5, "12.5"), ("watts", math.nan, "–"),
    ],
)  # fmt: skip
def test_costs(key: str, value: float, shown: str) -> None:
    assert wording.cost(key, value) == shown


def test_titles() -> None:
    assert wording.title("nll") == "NLL"
    assert wording.title("svhn/auroc/entropy") == "AUROC svhn (entropy)"
    assert wording.title("svhn/aupr_out/mutual_information") == "AUPR-Out svhn (mutual information)"
    assert wording.title("ood/fpr95_in/msp") == "FPR95-In ood (MSP)"
    assert wording.title("error_auroc/entropy") == "Error AUROC (entropy)"
    assert wording.title("svhn/mean_mutual_information") == "Mutual information svhn"
    assert wording.title("sketches/rAcc") == "rAcc sketches"
    assert wording.title("interval_width") == "Interval width"
    assert all(wording.title(key) for key in MEANINGS)


def test_text_is_escaped() -> None:
    assert wording.safe('<a href="x">&\'') == "&lt;a href=&quot;x&quot;&gt;&amp;&#x27;"
    assert wording.safe("\ud800\x00ü") == "��ü"


def test_names_are_shortened_in_the_middle_and_on_one_line() -> None:
    assert wording.shortened("packed\n of 4") == "packed of 4"
    found = wording.shortened("x" * 40 + "end")
    assert len(found) == 28
    assert found.endswith("end")
    assert "\x1b" not in wording.shortened("a\x1b[1mb")


def test_lists_and_counts() -> None:
    assert wording.listed(["a"]) == "a"
    assert wording.listed(["a", "b", "c"]) == "a, b and c"
    assert (wording.counted(1, "seed"), wording.counted(2000, "seed")) == ("1 seed", "2,000 seeds")
