"""The public names of multitudes.data, and the packages that importing it must not need."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from multitudes import data

PUBLIC = """
    Augment Data Frames RandAugment RandomCrop cifar10 cifar100 cifar_c corrupt corruptions digits fashion fashion_mnist folder
    frames grouped imagenet_c kmnist mnist noisy_function notmnist objectnet of scenes sinusoids svhn uci
""".split()
MODULES = sorted(Path(data.__file__).parent.rglob("*.py"))


def test_public_names_are_these_and_documented() -> None:
    names = {name for name, value in vars(data).items() if not name.startswith("_") and not isinstance(value, ModuleType)}
    assert names == set(PUBLIC)
    assert [name for name in PUBLIC if not (getattr(data, name).__doc__ or "").strip()] == []
    assert [name for name in PUBLIC if name not in (data.__doc__ or "")] == []


def test_importing_it_needs_no_extras() -> None:
    """Pillow and scipy are imported inside functions only."""
    lines = {line for path in MODULES for line in path.read_text().splitlines() if line.startswith(("import ", "from "))}
    assert len(lines) > 50
    assert [line for line in lines if line.split()[1].split(".")[0] in ("PIL", "scipy")] == []
