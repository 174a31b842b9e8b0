"""Figures as inline SVG. Colours are CSS variables of the page, so that one drawing follows the light and the dark theme.

Text stays text, in the fonts of the page. Figures with a colour scale, such as heat maps, cannot switch themes by CSS
variables: `inline_both_themes` draws them once per theme.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from multitudes.errors import InputError
from multitudes.figures.theme import LOOKS, Look, Theme
from multitudes.report.wording import readable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Theme], "Figure"]

SETTINGS: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "multitudes", "path.simplify": True, "path.simplify_threshold": 0.4,
}  # fmt: skip
"""Settings of matplotlib while drawing: text as text, reproducible ids, few points."""

SPACE = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
PIXELS = 100
"""Pixels of the page per inch of the figure."""


def inline(draw: Draw, name: str, label: str, colours: Sequence[int] = (), theme: Theme = "light") -> str:
    """Returns one SVG for both themes. `colours` are the colour indices of the runs, 0, 1, ... by default."""
    with _settings():
        return _svg(draw(theme), name, label, css_names(LOOKS[theme], colours))


def inline_both_themes(draw: Draw, name: str, label: str) -> str:
    """Returns one SVG per theme; the page shows one of them."""
    themes: tuple[Theme, ...] = ("light", "dark")
    drawings = (f'<div class="only-{theme}">{inline(draw, f"{name}-{theme}", label, theme=theme)}</div>' for theme in themes)
    return "".join(drawings)


def css_names(look: Look, colours: Sequence[int] = ()) -> dict[str, str]:
    """Maps the colours of a theme to the CSS variables of the page."""
    order = [*colours, *(index for index in range(len(look.colours)) if index not in colours)]
    runs = {colour: f"var(--run-{order[index] % len(look.colours)})" for index, colour in enumerate(look.colours)}
    return {name: f"var(--{role})" for role, name in css_variables(look).items() if not role.startswith("run")} | runs


def css_variables(look: Look) -> dict[str, str]:
    """Maps the names of the CSS variables to the colours of a theme."""
    roles = {role: getattr(look, role) for role in ("paper", "ink", "muted", "grid")}
    return roles | {f"run-{index}": colour for index, colour in enumerate(look.colours)}


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """Applies `SETTINGS` and hides warnings about missing glyphs: the fonts of the page have them."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("the figures of a report need matplotlib: pip install 'multitudes[figures]'") from error
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


def _svg(figure: Figure, name: str, label: str, colours: dict[str, str]) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = ElementTree.fromstring(file.getvalue())
    for child in [child for child in root if child.tag == f"{SPACE}metadata"]:
        root.remove(child)
    width, height = (round(float(number)) for number in root.attrib["viewBox"].split()[2:])
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": readable(label)}
    root.attrib["style"] = f"max-width: {round(width / 72 * PIXELS)}px; aspect-ratio: {width} / {height}"
    for part in root.iter():
        _shorten(part, name, colours)
    used = {link for part in root.iter() for value in part.attrib.values() for link in re.findall(r"#([\w-]+)", value)}
    for part in root.iter():
        if part.attrib.get("id") not in used:
            part.attrib.pop("id", None)
        part.tag = part.tag.removeprefix(SPACE)
    return ElementTree.tostring(root, encoding="unicode").replace("\n", "")


def _font(match: re.Match[str]) -> str:
    """Returns size and weight of a font without its family."""
    return f"font-size: {match[2]}{f'; font-weight: {match[1].strip()}' if match[1] else ''}"


def _shorten(part: ElementTree.Element, name: str, colours: dict[str, str]) -> None:
    """Prefixes ids with the name of the figure, inserts CSS variables, and rounds coordinates to two decimals."""
    attributes = part.attrib
    if LINK in attributes:
        attributes["href"] = attributes.pop(LINK)
    if attributes.get("href", "").startswith("#"):
        attributes["href"] = f"#{name}-{attributes['href'][1:]}"
    if "clip-path" in attributes:
        attributes["clip-path"] = attributes["clip-path"].replace("url(#", f"url(#{name}-")
    if "id" in attributes:
        attributes["id"] = f"{name}-{attributes['id']}"
    if "style" in attributes and part.tag != f"{SPACE}svg":
        style = re.sub(r"#[0-9a-f]{6}\b", lambda match: colours.get(match[0], match[0]), attributes["style"])
        style = re.sub(r"font: (\w+ )?([\d.]+px) [^;]*", _font, style)
        attributes["style"] = re.sub(r"font-family: [^;]*; ?", "", style)
    for key in ("d", "x", "y", "transform"):
        if key in attributes:
            attributes[key] = re.sub(
                r"-?\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", " ".join(attributes[key].split())
            )
    if part.text is not None and not part.text.strip():
        part.text = None
    part.tail = None
