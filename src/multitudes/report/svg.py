"""Figures as SVG inside of the page: drawn once, in colours that the page names, so that they follow its theme.

Text stays text, in the page's own fonts. What a theme changes beyond its named colours, such as those of a heat map, needs a
drawing for each; `both` makes these.
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
"""Of matplotlib, for the time of a drawing: text as text, names that do not change from one time to the next, few points."""

SPACE = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
PIXELS = 100
"""Of the page to an inch of the figure."""


def inline(draw: Draw, name: str, label: str, colours: Sequence[int] = (), theme: Theme = "light") -> str:
    """One drawing for both themes. `colours` says which of the page's colours each run has, if not the first ones."""
    with _settings():
        return _svg(draw(theme), name, label, css_names(LOOKS[theme], colours))


def inline_both_themes(draw: Draw, name: str, label: str) -> str:
    """A drawing for each theme, of which the page shows one."""
    themes: tuple[Theme, ...] = ("light", "dark")
    found = (f'<div class="only-{theme}">{inline(draw, f"{name}-{theme}", label, theme=theme)}</div>' for theme in themes)
    return "".join(found)


def css_names(look: Look, colours: Sequence[int] = ()) -> dict[str, str]:
    """The page's names of a theme's colours, by the colours."""
    order = [*colours, *(index for index in range(len(look.colours)) if index not in colours)]
    runs = {colour: f"var(--run-{order[index] % len(look.colours)})" for index, colour in enumerate(look.colours)}
    return {name: f"var(--{role})" for role, name in css_variables(look).items() if not role.startswith("run")} | runs


def css_variables(look: Look) -> dict[str, str]:
    """A theme's colours, by the page's names of them."""
    found = {role: getattr(look, role) for role in ("paper", "ink", "muted", "grid")}
    return found | {f"run-{index}": colour for index, colour in enumerate(look.colours)}


@contextlib.contextmanager
def _settings() -> Iterator[None]:
    """matplotlib's settings for a page, and none of its warnings of letters that its own font lacks and the page's have."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("a report's figures need matplotlib: pip install 'multitudes[figures]'") from error
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
    used = {found for part in root.iter() for value in part.attrib.values() for found in re.findall(r"#([\w-]+)", value)}
    for part in root.iter():
        if part.attrib.get("id") not in used:
            part.attrib.pop("id", None)
        part.tag = part.tag.removeprefix(SPACE)
    return ElementTree.tostring(root, encoding="unicode").replace("\n", "")


def _font(found: re.Match[str]) -> str:
    """A font's size and weight, without its family."""
    return f"font-size: {found[2]}{f'; font-weight: {found[1].strip()}' if found[1] else ''}"


def _shorten(part: ElementTree.Element, name: str, colours: dict[str, str]) -> None:
    """Names of its own, the page's colours, and two decimals of a point."""
    own = part.attrib
    if LINK in own:
        own["href"] = own.pop(LINK)
    if own.get("href", "").startswith("#"):
        own["href"] = f"#{name}-{own['href'][1:]}"
    if "clip-path" in own:
        own["clip-path"] = own["clip-path"].replace("url(#", f"url(#{name}-")
    if "id" in own:
        own["id"] = f"{name}-{own['id']}"
    if "style" in own and part.tag != f"{SPACE}svg":
        style = re.sub(r"#[0-9a-f]{6}\b", lambda found: colours.get(found[0], found[0]), own["style"])
        style = re.sub(r"font: (\w+ )?([\d.]+px) [^;]*", _font, style)
        own["style"] = re.sub(r"font-family: [^;]*; ?", "", style)
    for key in ("d", "x", "y", "transform"):
        if key in own:
            own[key] = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", " ".join(own[key].split()))
    if part.text is not None and not part.text.strip():
        part.text = None
    part.tail = None
