"""The page to try a server: one file in the looks of the report, without other files and without other hosts."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from string import Template

from multitudes.version import __version__

COLOURS = {
    "light": "--paper: #ffffff; --ink: #1c1f24; --muted: #6b7280; --grid: #e3e6ea; --run-0: #0072b2; --run-1: #d55e00; "
    "--run-2: #0a9f6a; --run-3: #d2709a; --run-4: #6e5410; --run-5: #2a2650;",
    "dark": "--paper: #15181d; --ink: #e8eaed; --muted: #9aa2ad; --grid: #2c3139; --run-0: #56b4e9; --run-1: #e66a10; "
    "--run-2: #0f8f62; --run-3: #f5a6bf; --run-4: #f0e442; --run-5: #e0f4f7;",
}
"""The colours of the report. They are written here again, and a test compares them, since the report's modules import torch."""


@functools.cache
def page() -> str:
    """Returns the page as text."""
    style = Template(_file("report/page.css")).substitute(COLOURS) + _file("shell/serve/page.css")
    return Template(_file("shell/serve/page.html")).substitute(style=style, script=_script(), version=__version__)


def headers() -> dict[str, str]:
    """Returns the headers of the page: it may run its own script and ask its own server, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    policy = {
        "default-src": "'none'", "script-src": f"'sha256-{digest}'", "style-src": "'unsafe-inline'", "img-src": "data: blob:",
        "connect-src": "'self'", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
    }  # fmt: skip
    return {
        "Content-Security-Policy": "; ".join(f"{key} {value}" for key, value in policy.items()),
        "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
    }  # fmt: skip


@functools.cache
def _script() -> str:
    return _file("shell/serve/page.js")


def _file(name: str) -> str:
    """Returns a file of this package; the package of the report is not imported for it."""
    return resources.files("multitudes").joinpath(name).read_text(encoding="utf-8")
