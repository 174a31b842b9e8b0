"""All figures: their public names, themes, imports, and the gallery page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from multitudes import figures
from multitudes.errors import InputError

ROOT = Path(__file__).parent.parent.parent
NAMES = """
    against bands bias_variance conditional_variance corruption cost_quality counts disagreement entropy_map function_prior
    kl_bound landscape mask_statistics ood reliability risk_coverage segmentation sweep trajectories weight_share
""".split()
PAIR = ([0.9, 0.6, 0.7], [1, 0, 1])
SQUARE = [[0.0, 0.2], [0.2, 0.0]]
CALLS: dict[str, tuple[Any, ...]] = {
    "against": ({"a": [(94.0, 94.1), (95.0, 94.8)]},),
    "bands": ([0, 1, 2], [0, 1, 0], [1, 1, 1]),
    "bias_variance": ([1, 2], {"a": {"bias": [1, 2], "variance": [2, 1], "error": [3, 3]}}),
    "conditional_variance": ([[1.0, 0.0, 2.0], [0.0, 1.0, 2.0]],),
    "corruption": ({"a": {1: [0.5, 0.6, 0.7]}},),
    "cost_quality": ([{"name": "a", "cost": 1, "quality": 2, "size": 3}],),
    "counts": ({"a": 1.0, "b": 2.0},),
    "disagreement": (SQUARE,),
    "entropy_map": ([0, 1], [0, 1], SQUARE),
    "function_prior": ([0, 1, 2], [[0, 1, 0], [1, 0, 1]]),
    "kl_bound": ([0.5, 1.0], [[1.0, 0.0]], [[0.5, 0.0]]),
    "landscape": ([0, 1], [0, 1], SQUARE, [[0, 0], [1, 0], [0.5, 1]]),
    "mask_statistics": ({4: ([1, 2], [1, 1.9], [1, 0.3])},),
    "ood": ({"a": PAIR},),
    "reliability": ({"a": PAIR},),
    "risk_coverage": ({"a": PAIR},),
    "segmentation": ([SQUARE], [[0, 1], [1, 0]], [[0, 1], [1, 1]], SQUARE),
    "sweep": ({"a": {"b": ([1, 2], [0.5, 0.6])}},),
    "trajectories": ([[[0, 0], [0, 1]], [[1, 0], [1, 1]]],),
    "weight_share": ({"a": 0.5, "b": [0.1, 0.2]}, 0.3),
}
"""Minimal arguments of each figure."""

FRESH = """
import json, sys
import multitudes, multitudes.figures as figures
early = [name for name in sys.modules if name.startswith("matplotlib")]
import matplotlib
before = dict(dict.items(matplotlib.rcParams))  # reading single keys would import pyplot
for name, arguments in json.load(sys.stdin).items():
    if name == "corruption":
        arguments = [{"a": {1: [0.5, 0.6, 0.7]}}]
    getattr(figures, name)(*arguments).savefig(sys.argv[1], dpi=20)
pyplot = "matplotlib.pyplot" in sys.modules
changed = [key for key, value in dict.items(matplotlib.rcParams) if value != before[key]]
print(json.dumps({"early": early, "pyplot": pyplot, "changed": changed}))
"""


def test_public_names_are_listed_and_documented() -> None:
    found = {name: value for name, value in vars(figures).items() if not name.startswith("_")}
    assert sorted(name for name, value in found.items() if not isinstance(value, ModuleType)) == NAMES == sorted(CALLS)
    assert [name for name in NAMES if not (found[name].__doc__ or "").strip()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_theme_colours_background_and_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dark theme has light text on a dark background everywhere in the figure; the light theme the reverse.

    Drawing imports no pyplot and changes no settings of matplotlib.
    """
    import matplotlib
    from matplotlib.colors import to_rgb
    from matplotlib.text import Text

    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    settings = dict(dict.items(matplotlib.rcParams))  # reading single keys would import pyplot
    for theme, dark in (("light", False), ("dark", True)):
        figure = getattr(figures, name)(*CALLS[name], theme=theme)
        figure.draw_without_rendering()
        assert (sum(to_rgb(figure.get_facecolor())) < 1.5) == dark
        cells = figure.axes[0].texts if name == "disagreement" else []
        texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible() and text not in cells]
        assert len(texts) > 2
        assert [text.get_text() for text in texts if (sum(to_rgb(text.get_color())) > 1.5) != dark] == []
    assert dict(dict.items(matplotlib.rcParams)) == settings


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_theme_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"theme='sepia'.*'light'.*'dark'"):
        getattr(figures, name)(*CALLS[name], theme="sepia")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_matplotlib_is_an_error_with_the_install_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match=r"pip install 'multitudes\[figures\]'"):
        getattr(figures, name)(*CALLS[name])


@pytest.mark.slow
def test_matplotlib_is_imported_late_and_its_settings_stay(tmp_path: Path) -> None:
    """In a fresh interpreter: no matplotlib before the first figure, no pyplot at all, no setting changed."""
    command = [sys.executable, "-W", "error", "-c", FRESH, str(tmp_path / "figure.png")]
    done = subprocess.run(command, input=json.dumps(CALLS), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"early": [], "pyplot": False, "changed": []}


@pytest.mark.slow
def test_the_gallery_builds(tmp_path: Path) -> None:
    """The page holds every figure in both themes and loads nothing from elsewhere."""
    out = tmp_path / "sub" / "gallery.html"
    subprocess.run([sys.executable, "-W", "error", str(ROOT / "docs" / "gallery.py"), "--out", str(out)], check=True)
    page = out.read_text(encoding="utf-8")
    assert [name for name in NAMES if f"figures.{name}(" not in page] == []
    for theme in ("light", "dark"):
        assert page.count(f'<picture class="{theme}">') == len(NAMES)
    sources = re.findall(r'(?:src|srcset|href)="([^"]{0,22})', page)
    assert len(sources) >= 2 * len(NAMES)
    assert set(sources) == {"data:image/png;base64,"}
    assert not re.search(r"https?://|@import|url\(", page)
