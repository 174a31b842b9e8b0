"""Names of the user's own modules, functions and runs on a command line, looked up before torch and a job are imported."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

from multitudes.errors import InputError
from multitudes.shell.reproduce.catalog import split_job
from multitudes.shell.typed import nearest, unknown_name

BUILT_IN = ("cifar10", "energy", "fashion", "yacht")
"""Names of the built-in jobs."""

OUTPUTS = (".multitude", ".safetensors")
"""Endings of the files that commands read."""


def check_job(text: str, folder: str | None = None) -> None:
    """Refuses a job that there is not: a misspelt name, module or function. `folder` may hold its module, too."""
    if "@" in text:
        split_job(text)
    elif ":" in text:
        check_import(text, "--job", folder)
    elif text not in BUILT_IN:
        raise unknown_job(text)


def unknown_job(name: str) -> InputError:
    """Makes the error for a job without a colon that is not built in. It may be the name of a file."""
    module = name.removesuffix(".py").replace("/", ".").strip(".")
    file = Path(name).with_suffix(".py")
    if file.is_file():
        job = nearest("job", _defined(file))
        more = "" if job else ", with a function in it that returns a Job: `multitudes init` writes one"
        return InputError(f"{name!r} is a file of yours: type MODULE:FUNCTION, --job {module}:{job or 'job'}{more}")
    stem = module if module.replace(".", "_").isidentifier() else "myjob"
    own = f". Your own job is typed as MODULE:FUNCTION, as in {stem}:job; `multitudes init` writes one"
    return InputError(f"{unknown_name('job', name, BUILT_IN)}{own}")


def check_import(text: str, option: str, folder: str | None = None) -> None:
    """Refuses MODULE:NAME if there is no such module, or its file has no such name. What cannot be known passes."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise InputError(f"{option} {text!r} is not of the form MODULE:NAME, as in mypackage.nets:make")
    if module.endswith(".py") or "/" in module:
        raise InputError(f"{option} {text} names a file: {_as_module(Path(module), name, option)}")
    folders = [Path.cwd(), *([] if folder is None else [Path(folder)])]
    file = _source(module, folders)
    if file is None:
        _check_installed(module, name, folders)
        return
    source = _text(file)
    first = name.partition(".")[0]
    if source and not re.search(rf"\b{re.escape(first)}\b|import \*|__getattr__|globals\(", source):
        raise unknown_name(f"name in {module}", first, _defined(file))


def _as_module(file: Path, name: str, option: str) -> str:
    """Says what to type in place of the path of a Python file."""
    parts = file.with_suffix("").parts
    if file.is_absolute() or ".." in parts:
        return f"go to its folder, cd {file.parent}, and type {option} {file.stem}:{name}"
    return f"type the module, {option} {'.'.join(part for part in parts if part != '.')}:{name}"


def _source(module: str, folders: Sequence[Path]) -> Path | None:
    """Returns the file of a module in these folders; None if it is elsewhere."""
    inside = Path(*module.split("."))
    files = [folder / one for folder in folders for one in (inside.with_suffix(".py"), inside / "__init__.py")]
    return next((file for file in files if file.is_file()), None)


def _check_installed(module: str, name: str, folders: Sequence[Path]) -> None:
    """Refuses a module whose first part is neither in these folders nor installed, and suggests the nearest file."""
    top = module.partition(".")[0]
    try:
        is_there = any((folder / top).is_dir() for folder in folders) or importlib.util.find_spec(top) is not None
    except (ImportError, ValueError):  # what cannot be known passes
        return
    if is_there:
        return
    near = nearest(module, {file.stem for folder in folders for file in folder.glob("[!_]*.py")})
    hint = f" Did you mean {near}:{name}?" if near else ""
    raise InputError(f"there is no module {module!r}: run the command in its folder, or install it.{hint}")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _defined(file: Path) -> list[str]:
    """Returns the public functions and classes that a Python file defines."""
    try:
        body = ast.parse(_text(file)).body
    except (SyntaxError, ValueError):
        return []
    made = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return [name for name in made if not name.startswith("_")]


def check_there(paths: Sequence[Path], what: str) -> None:
    """Refuses paths that do not exist, and suggests the run or the file beside each that has the nearest name.

    what    what to give instead, as in "give folders of runs"
    """
    missing = [path for path in paths if not path.exists()]
    if missing:
        near = [str(one) for path in missing if (one := _beside(path)) is not None]
        hint = f" Did you mean {' and '.join(near)}?" if near else ""
        verb = "does" if len(missing) == 1 else "do"
        raise InputError(f"{' and '.join(map(str, missing))} {verb} not exist: {what}.{hint}")


def _beside(path: Path) -> Path | None:
    """Returns the run, the folder of runs or the file in the same folder with the nearest name."""
    if not path.parent.is_dir():
        return None
    found = {one.name: one for one in path.parent.iterdir() if one.is_dir() or one.suffix in OUTPUTS}
    near = nearest(path.name, found)
    return None if near is None else found.get(near)
