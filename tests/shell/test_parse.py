"""Parsing of methods, lists, seeds, shapes and factories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import multitudes as mt
from multitudes.shell import parse


def test_every_method_has_a_name() -> None:
    assert [parse.method(name) for name in parse.methods_by_name()] == [kind() for kind in mt.Method.all()]
    assert parse.method("Packed") == mt.Packed()


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ("packed(alpha=3, gamma=2)", mt.Packed(alpha=3, gamma=2)),
        (" mimo( members=2 ) ", mt.MIMO(members=2)),
        ("emp(prior='none', patch=('a', 'b'))", mt.EMP(prior="none", patch=("a", "b"))),
        ("treenet(branch_at=None)", mt.TreeNet()),
    ],
)
def test_settings_are_plain_values(text: str, method: mt.Method) -> None:
    assert parse.method(text) == method


def test_the_text_overrides_settings_of_the_job() -> None:
    assert parse.method("mimo", members=2, rho=0.5) == mt.MIMO(members=2, rho=0.5)
    assert parse.method("mimo(members=4)", members=2, rho=0.5) == mt.MIMO(members=4, rho=0.5)


@pytest.mark.parametrize(
    ("read", "text", "nouns"),
    [
        (parse.method, "paked", "method 'paked'.*'packed'.*batchensemble, .*deep"),
        (parse.method, "packed(alpa=2)", "alpa=.*no such setting: type alpha="),
        (parse.method, "packed(2)", "name=value"),
        (parse.method, "packed(alpha=__import__('os'))", "is no value: type a number, as in alpha=2"),
        (parse.method, "packed(alpha=2", "name=value"),
        (parse.method, "packed(**{})", "name=value"),
        (parse.method, "packed(alpha=-1)", "alpha"),
        (parse.method, "", "method ''"),
        (parse.shape, "two", "--example 'two'"),
        (parse.shape, "2,0", "--example '2,0'"),
        (lambda text: parse.example([text]), "8x3:whole", "type such as float32"),
        (lambda text: parse.example([text]), "8x3:float32:5", "only ids have a count"),
        (lambda text: parse.example([text]), "8x3:int64:few", "'few' must be the number"),
        (lambda text: parse.example([text]), "a b=8x3", "no name of an argument"),
        (parse.import_by_name, "pathlib", "MODULE:NAME"),
        (parse.import_by_name, ":make", "MODULE:NAME"),
        (parse.import_by_name, "pathlib:", "MODULE:NAME"),
        (parse.import_by_name, "pathlib:PurePth", "name in pathlib 'PurePth'.*'PurePath'"),
        (parse.import_by_name, "nowhere.nets:make", r"module 'nowhere\.nets'"),
    ],
)
def test_wrong_text_is_refused(read: Callable[[str], object], text: str, nouns: str) -> None:
    with pytest.raises(mt.InputError, match=nouns):
        read(text)


def test_examples_are_random_numbers_and_ids() -> None:
    """Ids stay below their count and reach it; numbers are not all zero, or a proof on them would prove little."""
    ids, mask = parse.example(["4x500:int32:7", "mask=4x500:bool"]).tensors()
    assert (ids.dtype, ids.shape, int(ids.min()), int(ids.max())) == (torch.int32, (4, 500), 0, 6)
    assert mask.dtype == torch.bool
    (numbers,) = parse.example(["8,3"]).tensors()
    assert float(numbers.std()) > 0.5


def test_a_factory_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_mine.py").write_text(
        "from torch import nn\nclass Nets:\n    make = staticmethod(lambda: nn.Linear(3, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    assert isinstance(parse.import_by_name("nets_of_mine:Nets.make")(), nn.Linear)


@pytest.mark.parametrize(
    ("name", "code", "match"),
    [
        ("needs_more", "import not_there_at_all\n", r"ModuleNotFoundError: .*not_there_at_all.*needs_more\.py, line 1\)"),
        ("unfinished", "x = 1\ndef make(:\n", r"SyntaxError: .*unfinished\.py, line 2\)"),
        ("raising", "def load():\n    raise KeyError('col')\nload()\n", r"KeyError: 'col' .*raising\.py, line 2\)"),
    ],
)
def test_errors_of_own_code_are_told_with_their_place(
    name: str, code: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    with pytest.raises(mt.InputError, match=f"{name}:make fails: {match}"):
        parse.import_by_name(f"{name}:make")
