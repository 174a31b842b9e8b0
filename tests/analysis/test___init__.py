"""The public names of multitudes.analysis: imported when used, documented, and each with a figure."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import multitudes as mt
from multitudes import analysis, figures

pytestmark = pytest.mark.slow

PUBLIC = """
    Trajectories bias_variance conditional_variance counts function_prior kl_bound landscape mask_iou mask_size mask_statistics
    mask_sweep weight_share
""".split()


def test_public_names_are_these() -> None:
    assert analysis.__all__ == PUBLIC == dir(analysis)
    assert [name for name in PUBLIC if name not in str(analysis.__doc__)] == []
    assert [name for name in PUBLIC if not (getattr(mt.analysis, name).__doc__ or "").strip()] == []
    with pytest.raises(AttributeError, match="no attribute 'landscapes'"):
        analysis.landscapes  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(analysis.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.name: str(node.module) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name: f"multitudes.analysis.{home}" for name, home in analysis._HOME_OF.items()}


def test_no_module_hides_a_function() -> None:
    """Importing a module sets its name in the room: if it had the name of a function, that would be gone."""
    stems = {path.stem for path in Path(analysis.__file__).parent.glob("*.py")}
    assert stems & set(PUBLIC) == set()
    assert callable(figures.landscape)


@pytest.mark.slow
def test_heavy_packages_wait() -> None:
    code = (
        "import sys, multitudes as mt\n"
        "[getattr(mt.analysis, name) for name in mt.analysis.__all__]\n"
        "assert not {'matplotlib', 'sklearn', 'scipy', 'lightning'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
