"""Themes: contrast, colours for colour-blind readers, and an even colour scale."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from multitudes.errors import InputError
from multitudes.figures.theme import LOOKS, look, scale

BLINDNESS = {
    "none": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""Linear RGB as colour-blind people see it: Machado, Oliveira, Fernandes, "A Physiologically-based Model", IEEE TVCG 2009."""


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def cielab(rgb: np.ndarray) -> np.ndarray:
    """Converts linear RGB to CIELAB, D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ rgb / [0.9505, 1, 1.089]
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG."""
    bright, dim = sorted((float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("theme", LOOKS)
def test_text_and_lines_contrast_with_the_background(theme: str) -> None:
    """Text by 4.5 to 1 at least, lines and markers by 3 to 1."""
    colours = look(theme)
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert min(contrast(text, colours.paper) for text in (colours.ink, colours.muted)) >= 4.5
    assert min(contrast(colour, colours.paper) for colour in colours.colours) >= 3


@pytest.mark.parametrize("blindness", BLINDNESS)
@pytest.mark.parametrize("theme", LOOKS)
def test_colour_blind_readers_can_tell_runs_apart(theme: str, blindness: str) -> None:
    """Any two colours differ by more than 15 in CIELAB, where 2.3 is just noticed."""
    seen = [cielab(np.clip(BLINDNESS[blindness] @ linear(colour), 0, 1)) for colour in look(theme).colours]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 15


def test_the_first_runs_differ_without_colour_too() -> None:
    styles = [look("light").style(index) for index in range(24)]
    assert len({(style.colour, style.line) for style in styles}) == 24
    assert len({(style.colour, style.marker) for style in styles}) == 24
    assert len({(style.line, style.marker) for style in styles[:6]}) == 6


@pytest.mark.parametrize("theme", LOOKS)
def test_the_colour_scale_is_even(theme: str) -> None:
    """It runs from the background to the last stop, lightness is monotonic, and all steps look similar."""
    colours = look(theme)
    found = scale(colours)
    assert found.shape == (256, 3)
    for row, stop in ((0, colours.stops[0]), (-1, colours.stops[-1])):
        assert np.round(found[row] * 255).tolist() == [int(stop[i : i + 2], 16) for i in (1, 3, 5)]
    assert colours.stops[0] == colours.paper
    lab = np.array([cielab(linear("#" + "".join(f"{round(c * 255):02x}" for c in rgb))) for rgb in scale(colours, 17)])
    steps = np.diff(lab[:, 0])
    assert (np.sign(steps) == np.sign(steps[0])).all()
    sizes = np.linalg.norm(np.diff(lab, axis=0), axis=1)
    assert sizes.max() / sizes.min() < 1.6


def test_an_unknown_theme_is_named() -> None:
    with pytest.raises(InputError, match="theme='blue'"):
        look("blue")
