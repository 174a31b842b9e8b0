"""What is read and refused of a command line before torch is imported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import multitudes as mt
from multitudes.shell import parse, typed


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a job and the row of a segmentation."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("import torch\nfrom multitudes.shell.jobs import Job\ndef make(): ...\n")
    Path("run").mkdir()
    scores = {"miou": 0.5, "far/auroc/msp": 0.9}
    Path("run/row.json").write_text(json.dumps({"scores": {"scores": scores}, "settings": {"job": "own:job"}}))


def test_the_names_of_methods_are_those_of_their_files() -> None:
    own = {name for name, kind in parse.methods_by_name().items() if kind.__module__.startswith("multitudes.methods")}
    assert typed.method_names() == sorted(own)


REFUSED = [
    (["bench", "--job", "own:job", "--methods", "single,pakced(alpha=2)"], "'pakced': did you mean 'packed'"),
    (["bench", "--job", "own:make", "--budget", "nonsense"], "--budget 'nonsense' is not a budget"),
    (["bench", "--seeds", "a"], "--seeds 'a'"),
    (["train", "--method", "pakced", "--out", "new"], "'pakced': did you mean 'packed'"),
    (["plan", "own:net", "--example", "2,6", "--method", "pakced"], "'pakced': did you mean 'packed'"),
    (["predict", "run", "--data", "tst", "--out", "a.safetensors"], "--data of own:job 'tst': did you mean 'test'"),
    (["train", "--method", "packed(alpha=two)", "--out", "new"], "alpha=two is no value: type a number, as in alpha=2"),
    (["train", "--job", "own.py:job", "--out", "new"], "names a file: type the module, --job own:job"),
    (["bench", "--job", "sub/own.py:job"], "names a file: type the module, --job sub.own:job"),
    (["train", "--job", "/a/own.py:job", "--out", "new"], "cd /a, and type --job own:job"),
    (
        ["train", "--job", "onw:make", "--out", "new"],
        "no module 'onw': run the command in its folder, or install it. Did you mean own:",
    ),
    (["bench", "--job", "own:mak"], "no name in own 'mak': did you mean 'make'"),
    (["train", "--job", "own", "--out", "new"], "'own' is a file of yours: type MODULE:FUNCTION, --job own:job"),
    (["train", "--job", "fashon", "--out", "new"], "no job 'fashon': did you mean 'fashion'"),
    (["train", "--job", "own:make", "--model", "own:mak", "--out", "new"], "no name in own 'mak': did you mean 'make'"),
    (["plan", "own:mak", "--example", "2,6"], "no name in own 'mak': did you mean 'make'"),
    (
        ["predict", "rum", "--out", "a.csv"],
        "rum does not exist: give a .multitude file, or --out of a `multitudes train`. Did you mean run?",
    ),
    (["score", "rum"], "rum does not exist"),
    (
        ["score", "run", "--ood", "far"],
        "type `multitudes predict run --data far --out far.safetensors`, and then --ood far=far.s",
    ),
    (["score", "run", "--ood", "far=a.safetensors"], "a.safetensors does not exist: --ood far=a.safetensors: type NAME=FILE"),
    (["report", "rum"], "Did you mean run?"),
    (["predict", "run", "--out", "a.csv"], "a prediction for every pixel: type --out a.safetensors"),
]


def test_mistakes_are_refused_before_torch_is_imported() -> None:
    script = (
        "import json, sys\nfrom multitudes.shell import commands\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    assert commands.exit_code(lambda: commands.app(words, standalone_mode=False)) == 2, words\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    words = json.dumps([words for words, _ in REFUSED])
    done = subprocess.run([sys.executable, "-c", script, words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line, (_, text) in zip(done.stderr.splitlines(), REFUSED, strict=True):
        assert text in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("own.py", "class Pakced(Method): ..."),
        ("mine.py", "class Pakced(Method): ..."),
        ("own.py", "import a_module_of_no_package"),
        ("own.py", "this is no Python"),
    ],
)
def test_a_name_that_the_job_may_know_is_not_refused(file: str, source: str) -> None:
    with pytest.raises(mt.InputError, match="pakced"):
        typed.check_methods(["pakced"], "own:job")
    Path(file).write_text(source)
    typed.check_methods(["pakced"], "own:job")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("packed,deep", "`multitudes bench --methods packed,deep`"),
        ("packed(alpha=2), deep", "`multitudes bench --methods packed(alpha=2),deep`"),
        ("single packed", "with commas, single,packed"),
        ("packed alpha=2 gamma=2", "type settings in brackets, 'packed(alpha=2, gamma=2)'"),
    ],
)
def test_several_methods_and_settings_without_brackets_are_told_the_line(text: str, line: str) -> None:
    with pytest.raises(mt.InputError, match=re.escape(line)):
        typed.check_methods([text], "own:job")


def test_names_that_nothing_tells_are_left_to_the_job() -> None:
    typed.check_methods(["packed", "Deep(members=2)", "quite_another"], "own:job")
    typed.check_methods(["pakced"], "elsewhere:job")
    typed.check_data("far", Path("run"), None)
    typed.check_data("tst", Path("nowhere"), None)


@pytest.mark.parametrize(("read", "text", "nouns"), [(typed.seeds, "a", "--seeds 'a'"), (typed.seeds, "4-0", "--seeds '4-0'")])
def test_wrong_texts_are_refused(read: Callable[[str], Any], text: str, nouns: str) -> None:
    with pytest.raises(mt.InputError, match=nouns):
        read(text)


def test_a_list_is_split_at_commas_outside_brackets() -> None:
    assert typed.split_list("single, packed(alpha=2, gamma=2) ,mimo") == ["single", "packed(alpha=2, gamma=2)", "mimo"]
    assert typed.split_list("") == []
