"""Methods and factories as the shell writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import multitudes as mt
from multitudes.shell import parse as spoken


def test_every_method_has_a_name() -> None:
    assert [spoken.method(name) for name in spoken.methods_by_name()] == [kind() for kind in mt.Method.all()]
    assert spoken.method("Packed") == mt.Packed()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("packed(alpha=3, gamma=2)", mt.Packed(alpha=3, gamma=2)),
        (" mimo( members=2 ) ", mt.MIMO(members=2)),
        ("emp(prior='none', patch=('a', 'b'))", mt.EMP(prior="none", patch=("a", "b"))),
        ("treenet(split=None)", mt.TreeNet()),
    ],
)
def test_settings_are_plain_values(text: str, wanted: mt.Method) -> None:
    assert spoken.method(text) == wanted


def test_settings_of_a_job_are_there_unless_the_text_says_otherwise() -> None:
    assert spoken.method("mimo", members=2, rho=0.5) == mt.MIMO(members=2, rho=0.5)
    assert spoken.method("mimo(members=4)", members=2, rho=0.5) == mt.MIMO(members=4, rho=0.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("paked", r"no method 'paked': did you mean 'packed'\? there are batchensemble, deep"),
        ("packed(alpa=2)", r"no setting of packed 'alpa': did you mean 'alpha'\?"),
        ("packed(2)", "plain values by name"),
        ("packed(alpha=__import__('os'))", "plain values by name"),
        ("packed(alpha=2", "cannot read"),
        ("packed(**{})", "plain values by name"),
        ("packed(alpha=-1)", "alpha"),
        ("", "no method ''"),
    ],
)
def test_what_cannot_be_meant(text: str, says: str) -> None:
    with pytest.raises(mt.InputError, match=says):
        spoken.method(text)


def test_a_list_is_cut_at_commas_outside_of_brackets() -> None:
    assert spoken.split_list("single, packed(alpha=2, gamma=2) ,mimo") == ["single", "packed(alpha=2, gamma=2)", "mimo"]
    assert spoken.split_list("") == []


def test_a_factory_of_the_folder_that_the_shell_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_mine.py").write_text(
        "from torch import nn\nclass Nets:\n    make = staticmethod(lambda: nn.Linear(3, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    assert isinstance(spoken.import_by_name("nets_of_mine:Nets.make")(), nn.Linear)
    with pytest.raises(mt.InputError, match=r"no name in nets_of_mine 'Net': did you mean|there are"):
        spoken.import_by_name("nets_of_mine:Net")
    for text in ("nets_of_mine", ":make", "nets_of_mine:"):
        with pytest.raises(mt.InputError, match="MODULE:NAME"):
            spoken.import_by_name(text)
    with pytest.raises(mt.InputError, match=r"no module 'nowhere\.nets'"):
        spoken.import_by_name("nowhere.nets:make")


def test_a_module_that_lacks_something_says_so_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import not_there_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        spoken.import_by_name("needs_more:make")
