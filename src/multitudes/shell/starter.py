"""`multitudes init`: writes a job file to start from, and says which command comes next."""

from __future__ import annotations

import importlib.util
import keyword
from importlib import resources
from pathlib import Path

from multitudes.errors import InputError
from multitudes.shell.outputs import check_output


def write_job(path: Path, force: bool) -> str:
    """Writes the job file, and returns the command that trains on it."""
    if path.suffix != ".py":
        raise InputError(f"{path} must be a Python file: type {path}.py")
    if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        good = "".join(letter if letter.isalnum() else "_" for letter in path.stem)
        good = good if good.isidentifier() and not keyword.iskeyword(good) else f"my_{good}"
        raise InputError(f"Python cannot import a file called {path.name}: type {path.with_name(f'{good}.py')}")
    place = path.resolve()
    here = place.is_relative_to(Path.cwd()) and all(part.isidentifier() for part in place.relative_to(Path.cwd()).parts[:-1])
    root = Path.cwd() if here else place.parent
    module = ".".join(place.relative_to(root).with_suffix("").parts)
    if not path.exists() and _is_taken(module.split(".")[0], root):
        raise InputError(
            f"there is a module {module} already, which Python would import: type {path.with_name(f'my_{path.name}')}"
        )
    check_output(path, force, typed="name")
    text = resources.files("multitudes.shell").joinpath("starter_job.py.txt").read_text(encoding="utf-8")
    path.write_text(text.replace("MODULE", module), encoding="utf-8")
    command = f"multitudes bench --job {module}:job --methods single,packed,deep --out runs/{path.stem}"
    return command if here else f"cd {place.parent} && {command}"


def _is_taken(name: str, root: Path) -> bool:
    """Whether a module of this name exists elsewhere than in the folder `root`."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    homes = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return not any(home and Path(home).resolve().is_relative_to(root.resolve()) for home in homes)
