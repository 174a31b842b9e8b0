"""The picture docs/rooms.svg: the rooms of the package from bottom to top, and the imports between them.

python docs/rooms.py --write    draws it
python docs/rooms.py --check    fails if the code has changed since it was drawn

Order and imports are those of tests/test_rooms.py. A line runs from a room down to one that it imports; the thicker it is, the
more imports there are. Lines to the rooms of conversion run on the left, lines to the others on the right.
"""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "rooms.svg"

CAPTIONS = {
    "engine": "how members run: loop, vmap, fold",
    "models": "the papers' networks",
    "data": "datasets, corruptions, augmentation",
    "prediction": "outputs of members, uncertainty",
    "conversion.anatomy": "how a model is built: layers, heads, graph",
    "conversion.resize": "the same model thinner or wider",
    "method": "Method, the base class of all methods",
    "ensemble": "Ensemble, an nn.Module of all members",
    "conversion": "plan, ensemble, check, cost, compact",
    "files": "save, load and export ensembles",
    "methods": "one file for each method",
    "scores": "one function for each score",
    "training": "fit, recipes, losses",
    "figures": "one function for each figure",
    "analysis": "what papers measure of members; recommend",
    "report": "one HTML page that compares results",
    "shell": "the multitudes command, jobs, sweeps",
    "integrations": "Lightning, transformers, scikit-learn, timm",
}
GROUND = "errors   settings   terminal   storage   version   lazy_names"
"""Modules below all rooms. Lines to them are left out, since nearly every room has one."""

LEFT = {"engine": "#4c6ef5", "conversion.anatomy": "#12b886", "conversion.resize": "#82c91e", "method": "#f59f00",
        "ensemble": "#e8590c", "conversion": "#ae3ec9", "files": "#868e96", "methods": "#e03131"}  # fmt: skip
RIGHT = {"models": "#868e96", "data": "#1098ad", "prediction": "#7048e8", "scores": "#2f9e44", "training": "#d6336c",
         "figures": "#f08c00", "analysis": "#5c940d", "report": "#1971c2"}  # fmt: skip
"""The colours of lines, by the room that they lead to."""

WIDTH, HEIGHT, STEP, MARGIN = 330, 38, 58, 24
"""Width and height of a box, distance of boxes, and margin, in pixels."""
REACH = 300
"""How far the longest line bends outwards, in pixels."""


def imports() -> tuple[list[str], Counter[tuple[str, str]]]:
    """Returns the rooms from the bottom up, and the number of imports from each room to each other one."""
    rooms = runpy.run_path(str(ROOT / "tests" / "test_rooms.py"))
    order, graph, room = rooms["ORDER"], rooms["GRAPH"], rooms["room"]
    counts: Counter[tuple[str, str]] = Counter()
    for module, others in graph.items():
        if module:
            counts.update((room(module), room(other)) for other in others)
    missing = set(order) - set(CAPTIONS) - set(GROUND.split()) - {"__main__"}
    assert not missing, f"docs/rooms.py has no caption for {missing}"
    shown = [name for name in order if name in CAPTIONS]
    return shown, Counter({pair: n for pair, n in counts.items() if pair[0] != pair[1] and {*pair} <= {*shown}})


def thickness(count: int) -> float:
    """Width of a line, in four steps: one import more or less then rarely changes the picture."""
    return 1.2 if count < 3 else 2.5 if count < 7 else 4.5 if count < 16 else 8.0


def line(x: float, top: float, bottom: float, side: int, colour: str, width: float, farthest: float) -> str:
    """Draws a curve from the box above down to the box below, with an arrowhead at its end."""
    swing = x + side * (40 + REACH * (bottom - top) / farthest)
    head = 5 + width
    end = x + side * head
    curve = f"M{x:.0f} {top:.1f} C{swing:.0f} {top:.1f} {swing:.0f} {bottom:.1f} {end:.0f} {bottom:.1f}"
    tip = f"M{x:.0f} {bottom:.1f} l{side * head:.1f} {-head / 2:.1f} v{head:.1f} z"
    return (
        f'<path d="{curve}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-opacity="0.75"/>'
        f'<path d="{tip}" fill="{colour}"/>'
    )


def picture() -> str:
    """Draws the picture as SVG."""
    rooms, counts = imports()
    left = round(MARGIN + 0.75 * (40 + REACH))
    tops = {name: MARGIN + STEP * place for place, name in enumerate(reversed(rooms))}
    ground = MARGIN + STEP * len(rooms)
    size = 2 * left + WIDTH, ground + HEIGHT + MARGIN
    farthest = STEP * (len(rooms) - 1)
    parts = []
    for (importer, imported), count in sorted(counts.items(), key=lambda entry: (entry[1], entry[0])):
        side, colour = (-1, LEFT[imported]) if imported in LEFT else (1, RIGHT[imported])
        x = left if side < 0 else left + WIDTH
        top, bottom = tops[importer] + 0.68 * HEIGHT, tops[imported] + 0.32 * HEIGHT
        parts.append(line(x, top, bottom, side, colour, thickness(count), farthest))
    for name in rooms:
        colour = LEFT.get(name) or RIGHT.get(name) or "#495057"
        parts.append(
            f'<rect x="{left}" y="{tops[name]}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#fff" stroke="{colour}" '
            f'stroke-width="2"/><text x="{left + 12}" y="{tops[name] + 16}" font-weight="bold">'
            f"{escape(name.replace('.', '/'))}</text>"
            f'<text x="{left + 12}" y="{tops[name] + 31}" font-size="12" fill="#495057">{escape(CAPTIONS[name])}</text>'
        )
    parts.append(
        f'<rect x="{left - 60}" y="{ground}" width="{WIDTH + 120}" height="{HEIGHT}" rx="6" fill="#e9ecef"/>'
        f'<text x="{left + WIDTH / 2}" y="{ground + 24}" text-anchor="middle" xml:space="preserve">{GROUND}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" height="{size[1]}" '
        f'font-family="system-ui, sans-serif" font-size="14">\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def main(option: str | None) -> int:
    if option == "--write":
        PICTURE.write_text(picture(), encoding="utf-8")
    elif option != "--check":
        print(__doc__)
        return 2
    elif not PICTURE.is_file() or PICTURE.read_text(encoding="utf-8") != picture():
        print(f"{PICTURE.name} is behind the code: python docs/rooms.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [None]))
